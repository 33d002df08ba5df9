"""Variables of MATLAB files of versions 4, 5 and 7.3: arrays of numbers, and lists of texts.

    version 5    header ─► elements: tag (type, size), content ─► matrix: flags, sizes, name, values or fields
    version 7.3  HDF5: groups ─► datasets, whose arrays are transposed

SciPy ends the process on damaged files of version 5, so they are decoded here. Of HDF5, nothing is read that lies in
another file, and each chunk is unpacked once without keeping it, because the library's filters have no limit.

Format: MAT-File Format, MathWorks, https://www.mathworks.com/help/pdf_doc/matlab/matfile_format.pdf.
"""

from __future__ import annotations

import io
import math
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heartlm.errors import HeartlmError, needs
from heartlm.formats.mapped import byte_view
from heartlm.storage.foreign import inflated, inflates_beyond
from heartlm.storage.limits import check_samples

HDF5 = b"\x89HDF"

# Types of the values of elements.
_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_CODECS = {1: "latin-1", 2: "utf-8", 4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}
_MATRIX, _COMPRESSED = 14, 15
# Classes of matrices. Objects, sparse matrices and functions are left out.
_CELL, _STRUCT, _CHAR, _NUMERIC = 1, 2, 4, range(6, 16)
_IS_COMPLEX = 0x800
_NUMBERS_4 = ("f8", "f4", "i4", "i2", "u2", "u1")

_MOST_ELEMENTS = 100_000
_MOST_CELLS = 64
_LONGEST_TEXT = 10_000
_DEEPEST = 3
# Bytes of a compressed variable in which its flags, sizes and name stand.
_HEAD_BYTES = 4096
# Bytes of memory for each sample: as stored, float64 of the columns and float32 of the recording.
_HELD_BYTES = 20
_SHUFFLE, _FLETCHER32, _DEFLATE, _LZF = 2, 3, 1, 32000
# The LZF filter has no limit but the ratio of its method, 88.
_MOST_LZF_BYTES = 1 << 24

Variables = Iterator[tuple[str, "NDArray[Any] | list[str]"]]


def is_hdf5(begin: bytes) -> bool:
    """Return whether a file is HDF5 by its first 4096 bytes, after a block of the user of any size allowed there."""
    return any(begin.startswith(HDF5, place) for place in (0, 512, 1024, 2048))


def matlab_variables(path: Path, content: bytes | None = None) -> Variables:
    """Yield name and value of each variable; fields of structures as `name.field`.

    Args:
        path: path of the file.
        content: its bytes, if the file is compressed.

    Raises:
        HeartlmError: the file is damaged, states more samples than it can hold, or refers to other files.
    """
    data = np.frombuffer(content, np.uint8) if content is not None else _mapped(path)
    if is_hdf5(data[:_HEAD_BYTES].tobytes()):
        yield from _Hdf5(path, path.stat().st_size).variables(path if content is None else io.BytesIO(content))
    elif data[126:128].tobytes() in (b"IM", b"MI"):  # little or big endian
        yield from _Mat5(path, path.stat().st_size).variables(data)
    else:
        yield from _mat4_variables(path, data)


def variable_names(path: Path) -> list[str]:
    """Return the names of the variables of a file of version 5, without their values.

    Raises:
        HeartlmError: the file is damaged.
    """
    reader = _Mat5(path, path.stat().st_size)
    heads = (reader.head(element) for element in reader.elements_of_file(_mapped(path)))
    return [head.name for head in heads if head is not None]


def _mapped(path: Path) -> NDArray[np.uint8]:
    """Return the bytes of a file."""
    return byte_view(path)[:]


@dataclass
class _Total:
    """Samples of all variables of a file so far, which are limited together."""

    path: Path
    file_bytes: int
    num_samples: int = 0
    num_elements: int = 0

    def add(self, num_samples: int) -> None:
        self.num_samples += num_samples
        check_samples(self.path, self.num_samples, self.file_bytes, _HELD_BYTES)

    def count(self) -> None:
        self.num_elements += 1
        if self.num_elements > _MOST_ELEMENTS:
            raise HeartlmError(f"{self.path}: has more than {_MOST_ELEMENTS} variables and fields; save the ECG alone")

    def refuse(self, what: str) -> HeartlmError:
        return HeartlmError(f"{self.path}: not readable as a MATLAB file ({what}); save or fetch it again")


class _Element(NamedTuple):
    """Type and content of an element."""

    kind: int
    content: NDArray[np.uint8]


class _Head(NamedTuple):
    """Class, sizes and name of a matrix, and the byte after them; `is_complex` if it has imaginary parts."""

    kind: int
    is_complex: bool
    sizes: tuple[int, ...]
    name: str
    stop: int

    @property
    def size(self) -> int:
        return math.prod(self.sizes)


@dataclass
class _Mat5(_Total):
    """Reader of a file of version 5."""

    order: str = field(default="<", init=False)
    unpacked_bytes: int = field(default=0, init=False)

    def variables(self, data: NDArray[np.uint8]) -> Variables:
        for element in self.elements_of_file(data):
            head = self.head(element)
            if head is None or not head.name or head.is_complex:
                continue
            content = element.content
            if element.kind == _COMPRESSED:
                if head.kind in _NUMERIC:
                    check_samples(self.path, self.num_samples + head.size, self.file_bytes, _HELD_BYTES)
                content = self._unpacked(content)
            yield from self._values(head.name, head, content, 0)

    def elements_of_file(self, data: NDArray[np.uint8]) -> Iterator[_Element]:
        """Yield the elements after the header of the file."""
        self.order = "<" if data[126:128].tobytes() == b"IM" else ">"
        yield from self._elements(data, 128)

    def _elements(self, data: NDArray[np.uint8], place: int) -> Iterator[_Element]:
        while place + 8 <= len(data):
            self.count()
            element, place = self._element(data, place)
            yield element

    def _element(self, data: NDArray[np.uint8], place: int) -> tuple[_Element, int]:
        """Return the element that begins at a byte, and the byte after it."""
        if place + 8 > len(data):
            raise self.refuse("it ends within a variable")
        kind, size = np.frombuffer(data[place : place + 8], f"{self.order}u4").tolist()
        begin, stop = place + 8, place + 8 + size
        if kind >> 16:  # up to four bytes stand within the tag
            kind, size = kind & 0xFFFF, kind >> 16
            begin, stop = place + 4, place + 4 + size
            if size > 4:
                raise self.refuse(f"an element of {size} bytes within its tag")
        if stop > len(data):
            raise self.refuse("it ends within a variable")
        # compressed elements are not filled up to eight bytes
        after = stop if kind == _COMPRESSED else place + -(-(stop - place) // 8) * 8
        return _Element(kind, data[begin:stop]), after

    def head(self, element: _Element) -> _Head | None:
        """Return what a variable of the file states; None if it is none that is read."""
        if element.kind == _COMPRESSED:
            try:
                begin = zlib.decompressobj().decompress(element.content.data, _HEAD_BYTES)
            except zlib.error as error:
                raise self.refuse(f"a compressed variable is damaged: {error}") from error
            return self._head(np.frombuffer(begin[8:], np.uint8))
        return self._head(element.content) if element.kind == _MATRIX else None

    def _head(self, content: NDArray[np.uint8]) -> _Head | None:
        if not len(content):  # an empty matrix
            return None
        flags, place = self._element(content, 0)
        if len(flags.content) != 8 or flags.kind != 6:
            raise self.refuse("a variable without flags")
        stated = int(np.frombuffer(flags.content[:4], f"{self.order}u4")[0])
        kind = stated & 0xFF
        if kind not in (_CELL, _STRUCT, _CHAR, *_NUMERIC):
            return None
        sizes, place = self._element(content, place)
        if sizes.kind not in (5, 6) or len(sizes.content) % 4 or not 8 <= len(sizes.content) <= 128:
            raise self.refuse("a variable without sizes")
        shape = tuple(np.frombuffer(sizes.content, f"{self.order}i4").tolist())
        if min(shape) < 0:
            raise self.refuse(f"a variable of the sizes {list(shape)}")
        name, place = self._element(content, place)
        return _Head(kind, bool(stated & _IS_COMPLEX), shape, name.content.tobytes().decode("latin-1"), place)

    def _unpacked(self, packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the content of the matrix in a compressed variable."""
        content, done = np.empty(8, np.uint8), 0  # the tag, which states the size
        try:
            for unpacked in inflated(packed.data):
                piece = memoryview(unpacked)
                while piece and done < len(content):
                    part, piece = piece[: len(content) - done], piece[len(content) - done :]
                    content[done : done + len(part)] = part
                    done += len(part)
                    if done == 8 == len(content):
                        kind, size = content.view(f"{self.order}u4").tolist()
                        if kind != _MATRIX:
                            raise self.refuse(f"a compressed element of type {kind}")
                        # in float64; a small field of a structure keeps all of it in memory
                        self.unpacked_bytes += size
                        check_samples(self.path, self.unpacked_bytes // 8, self.file_bytes)
                        content = np.empty(8 + size, np.uint8)
        except zlib.error as error:
            raise self.refuse(f"a compressed variable is damaged: {error}") from error
        if done < len(content) or done == 8:
            raise self.refuse("it ends within a variable")
        return content[8:]

    def _values(self, name: str, head: _Head, content: NDArray[np.uint8], depth: int) -> Variables:
        if head.kind in _NUMERIC:
            yield name, self._numbers(head, content)
        elif head.kind == _CHAR:
            if (texts := self._texts(head, content)) is not None:
                yield name, texts
        elif head.kind == _CELL and head.size <= _MOST_CELLS:
            texts = [text for _, cell in zip(range(head.size), self._elements(content, head.stop), strict=False)
                     for text in self._text_of_cell(cell)]  # fmt: skip
            if texts:
                yield name, texts
        elif head.kind == _STRUCT and head.size == 1 and depth < _DEEPEST:
            length, place = self._element(content, head.stop)
            names, place = self._element(content, place)
            width = int(np.frombuffer(length.content, f"{self.order}i4")[0]) if len(length.content) == 4 else 0
            if width < 1:
                raise self.refuse("a structure without names of its fields")
            text = names.content.tobytes().decode("latin-1")
            fields = [text[first : first + width].split("\0")[0] for first in range(0, len(text), width)]
            for label, element in zip(fields, self._elements(content, place), strict=False):
                inner = self._head(element.content) if element.kind == _MATRIX else None
                if inner is not None and not inner.is_complex:
                    yield from self._values(f"{name}.{label}", inner, element.content, depth + 1)

    def _numbers(self, head: _Head, content: NDArray[np.uint8]) -> NDArray[Any]:
        self.add(head.size)
        values, _ = self._element(content, head.stop)
        kind = _NUMBERS.get(values.kind)
        if kind is None or len(values.content) != head.size * np.dtype(kind).itemsize:
            raise self.refuse(f"{len(values.content)} bytes of type {values.kind} for the sizes {list(head.sizes)}")
        return np.frombuffer(values.content, self.order + kind).reshape(head.sizes, order="F")

    def _texts(self, head: _Head, content: NDArray[np.uint8]) -> list[str] | None:
        """Return the rows of a matrix of characters; None if they are too many."""
        if head.size > _LONGEST_TEXT:
            return None
        if not head.size:
            return []
        values, _ = self._element(content, head.stop)
        codec = _CODECS.get(values.kind)
        if codec is None or len(values.content) > 4 * _LONGEST_TEXT:
            raise self.refuse(f"a text of type {values.kind}")
        wide = {"<": "-le", ">": "-be"}[self.order] if codec in ("utf-16", "utf-32") else ""
        text = values.content.tobytes().decode(codec + wide, "replace")
        rows = head.sizes[0]
        return [text[row::rows].strip("\0 ") for row in range(rows)] if len(text) == head.size else [text.strip("\0 ")]

    def _text_of_cell(self, element: _Element) -> list[str]:
        head = self._head(element.content) if element.kind == _MATRIX else None
        return ((self._texts(head, element.content) or []) if head and head.kind == _CHAR and head.size else [])[:1]


def _mat4_variables(path: Path, data: NDArray[np.uint8]) -> Variables:
    """Yield the variables of version 4: a header of five integers, the name, and the values."""
    total, place = _Total(path, path.stat().st_size), 0
    while place + 20 <= len(data):
        total.count()
        head = data[place : place + 20]
        order = "<" if 0 <= int(np.frombuffer(head, "<i4")[0]) < 5000 else ">"
        kind, rows, columns, is_complex, length = np.frombuffer(head, f"{order}i4").tolist()
        order, number, content = ("<", ">")[kind // 1000 % 2], kind // 10 % 10, kind % 10
        if not (0 <= kind < 2000 and kind % 1000 < 100 and number < len(_NUMBERS_4) and content < 3):
            raise total.refuse("it begins with no header of version 4 or 5")
        if min(rows, columns) < 0 or not 0 < length <= _LONGEST_TEXT:
            raise total.refuse(f"a variable of {rows} rows and {columns} columns")
        name = data[place + 20 : place + 20 + length].tobytes().split(b"\0")[0].decode("latin-1")
        kind, begin = np.dtype(order + _NUMBERS_4[number]), place + 20 + length
        place = begin + rows * columns * kind.itemsize * (2 if is_complex else 1)
        if place > len(data):
            raise total.refuse("it ends within a variable")
        total.add(rows * columns)
        if content == 2 or is_complex:
            continue
        values = np.frombuffer(data[begin:place], kind).reshape((rows, columns), order="F")
        if content == 0:
            yield name, values
        elif values.size <= _LONGEST_TEXT and ((values >= 0) & (values < 0x110000)).all():
            yield name, ["".join(map(chr, row.astype(int))).strip() for row in values]


@dataclass
class _Hdf5(_Total):
    """Reader of a file of version 7.3."""

    addresses: set[int] = field(default_factory=set)

    def variables(self, source: Path | io.BytesIO) -> Variables:
        with needs("formats", "h5py"):
            import h5py

        with h5py.File(source, "r") as file:
            yield from self._group("", file, 0)

    def _group(self, prefix: str, group: Any, depth: int) -> Variables:
        import h5py

        for key in group:
            link = group.get(key, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                raise HeartlmError(f"{self.path}: {prefix}{key} is a link to another file; copy the data into this one")
            if not isinstance(link, h5py.HardLink):
                continue  # what a soft link names is read under its own name
            item, name = group[key], f"{prefix}{key}"
            # several names of one object; a group may hold itself
            if (address := h5py.h5o.get_info(item.id).addr) in self.addresses:
                continue
            self.addresses.add(address)
            self.count()
            if isinstance(item, h5py.Group) and not key.startswith("#") and depth < _DEEPEST:
                yield from self._group(f"{name}.", item, depth + 1)
            elif isinstance(item, h5py.Dataset) and item.dtype.kind in "iuf":
                if self._is_text(item):
                    if item.size <= _LONGEST_TEXT:
                        yield name, [_text_of(self._read(name, item))]
                elif item.ndim == 3 and item.shape[0] == 1:
                    yield name, self._read(name, item)[0]
                elif item.ndim == 3 and key == "tracings":
                    raise HeartlmError(
                        f"{self.path}: tracings holds {item.shape[0]} recordings of several patients, expected one; "
                        "write each to a file of its own, for example by numpy.save, and open it with --rate 400"
                    )
                elif item.ndim <= 2:
                    yield name, np.atleast_2d(self._read(name, item))
            elif (
                isinstance(item, h5py.Dataset)
                and h5py.check_ref_dtype(item.dtype) is h5py.Reference
                and 0 < item.size <= _MOST_CELLS
            ):
                # only references: `group[text]` would take a text for a path, also into another file
                cells = [group[reference] for reference in self._read(name, item).ravel() if reference]
                texts = [
                    _text_of(self._read(name, cell))
                    for cell in cells
                    if isinstance(cell, h5py.Dataset) and cell.dtype.kind == "u" and cell.size <= _LONGEST_TEXT
                ]
                if len(texts) == len(cells) and texts:
                    yield name, texts

    def _is_text(self, dataset: Any) -> bool:
        """Return whether the attribute of a dataset says that it holds characters."""
        import h5py

        with suppress(KeyError):
            attribute = h5py.h5a.open(dataset.id, b"MATLAB_class")
            # longer than any name of a class: not read
            return attribute.get_storage_size() <= 64 and dataset.attrs["MATLAB_class"] in (b"char", "char")
        return False

    def _read(self, name: str, dataset: Any) -> NDArray[Any]:
        """Return the values of a dataset.

        Raises:
            HeartlmError: they lie in other files, or are more than the file can hold.
        """
        settings = dataset.id.get_create_plist()
        if settings.get_external_count() or dataset.is_virtual:
            raise HeartlmError(f"{self.path}: the values of {name} lie in another file; copy them into this one")
        if dataset.shape is None:
            return np.empty((0, 0))
        self.add(max(dataset.size, math.prod(dataset.chunks or ())))
        if dataset.chunks:
            self._check_chunks(name, dataset, settings)
        return np.asarray(dataset[()])

    def _check_chunks(self, name: str, dataset: Any, settings: Any) -> None:
        """Check that no chunk unpacks to more than its size: the filters of the library have no limit of their own."""
        filters = [settings.get_filter(place)[0] for place in range(settings.get_nfilters())]
        packers = [each for each in filters if each not in (_SHUFFLE, _FLETCHER32)]
        if not packers:
            return
        if packers not in ([_DEFLATE], [_LZF]):
            raise HeartlmError(f"{self.path}: {name} is compressed by the filters {filters}; save it with gzip alone")
        chunk_bytes = math.prod(dataset.chunks) * dataset.dtype.itemsize

        def check(chunk: Any) -> None:
            if packers == [_LZF]:
                is_larger = chunk.size > min(chunk_bytes + 4096, _MOST_LZF_BYTES)
            elif chunk.filter_mask >> filters.index(_DEFLATE) & 1:  # stored as it is
                is_larger = False
            else:
                _, packed = dataset.id.read_direct_chunk(chunk.chunk_offset)
                is_larger = inflates_beyond(packed, chunk_bytes + 4096)
            if is_larger:
                raise HeartlmError(
                    f"{self.path}: a chunk of {name} unpacks to more than {chunk_bytes} bytes; save it again"
                )

        dataset.id.chunk_iter(check)


def _text_of(codes: NDArray[Any]) -> str:
    return "".join(chr(code) for code in codes.ravel().tolist() if 0 <= code < 0x110000)
