"""Load the compiled kernels.

One shared library serves every hot loop. It is built with the package and found next to it; each of its functions
exists once for each kind of processor, and `kernel` picks the best this machine can run.

`HEARTLM_KERNELS` overrides the choice: `portable`, `avx2` or `avx512`.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.errors import HeartlmError

VARIANTS: tuple[str, ...] = ("portable", "avx2", "avx512")
"""Processor variants that the kernels are compiled for. A processor that runs one also runs those before it."""

_NAME = "libheartlm_kernels.so"
_PACKAGE = Path(__file__).parent.parent
_HEADERS = [Path(__file__).with_name("kernels.h"), *sorted(_PACKAGE.glob("extensions/*/kernels.h"))]


class _Array:
    """The type of an argument that is None, an address, or a contiguous array of `kind`, passed as its address."""

    def __init__(self, kind: np.dtype[Any]) -> None:
        self._kind = kind

    def from_param(self, array: NDArray[Any] | int | bytes | None) -> Any:
        if not isinstance(array, np.ndarray):
            return ctypes.c_void_p.from_param(array)
        self._check(array)
        if array.flags.writeable and array.size:
            return ctypes.byref(ctypes.c_char.from_buffer(array.data))  # a quarter of the time of the other
        return ctypes.c_void_p(array.ctypes.data)

    def address_of(self, array: NDArray[Any]) -> int:
        """Return the address, for a field of a struct."""
        self._check(array)
        return array.ctypes.data

    def _check(self, array: NDArray[Any]) -> None:
        fits = array.dtype == self._kind or (array.dtype == np.bool_ and self._kind == np.uint8)
        assert fits and array.flags.c_contiguous, f"{array.dtype} {array.shape} given to a kernel of {self._kind}"


@functools.cache
def library() -> ctypes.CDLL:
    """Load and return the shared library.

    Raises:
        HeartlmError: the library is missing, or it was built from sources that differ from those here.
    """
    import heartlm.kernels

    for path in (Path(folder) / "lib" / _NAME for folder in heartlm.kernels.__path__):
        if path.is_file():
            loaded = ctypes.CDLL(str(path))
            _check_sources(loaded, path)
            return loaded
    raise HeartlmError(f"{_NAME} is missing: install heartlm again, or build it with  make kernels")


def _check_sources(loaded: ctypes.CDLL, path: Path) -> None:
    """Compare the library with the C sources of a checkout: a face in Python may call what an older one does not have.

    An installation from a wheel has no sources; its library and its Python files were built together.
    """
    folders = [*_PACKAGE.glob("*/c"), *_PACKAGE.glob("extensions/*/c")]
    sources = [path for folder in folders for path in folder.iterdir() if path.is_file()]
    if not sources:
        return
    sources = sorted([*sources, *_HEADERS], key=str)
    digests = "".join(hashlib.sha256(source.read_bytes()).hexdigest() for source in sources)
    built_from = getattr(loaded, "heartlm_sources", None)
    if built_from is not None:
        built_from.restype = ctypes.c_char_p
    if built_from is None or built_from() != hashlib.sha256(digests.encode()).hexdigest().encode():
        raise HeartlmError(f"{path}: built from other sources than those of {_PACKAGE}: build it with  make kernels")


@functools.cache
def variants() -> tuple[str, ...]:
    """Return the variants that this machine can run, slowest first."""
    return VARIANTS[: int(library().heartlm_cpu_level()) + 1]


def chosen_variant() -> str:
    """Return the variant named by `HEARTLM_KERNELS`, else the fastest.

    Raises:
        HeartlmError: there is no such variant, or this machine cannot run it.
    """
    setting, possible = os.environ.get("HEARTLM_KERNELS", ""), variants()
    if setting and setting not in possible:
        raise HeartlmError(f"HEARTLM_KERNELS: {setting!r} found, but this processor runs {', '.join(possible)} only")
    return setting or possible[-1]


_in_use: str | None = None


@contextmanager
def using(variant: str) -> Iterator[None]:
    """Make `kernel` return functions of `variant`, one of `variants()`, within the block; for comparisons."""
    global _in_use
    before, _in_use = _in_use, variant
    kernel.cache_clear()
    try:
        yield
    finally:
        _in_use = before
        kernel.cache_clear()


@functools.cache
def kernel(name: str, variant: str | None = None, by_address: bool = False) -> Any:
    """Return the function `name` of the library, with the types of kernels.h.

    Args:
        name: without the suffix of the variant.
        variant: one of `variants()`; by default that of `using`, or `chosen_variant()`.
        by_address: whether arrays are given by their addresses alone, which is faster than checking them.

    Raises:
        HeartlmError: there is no library, or `HEARTLM_KERNELS` names a variant that this machine cannot run.
    """
    # An index makes a new function object. An attribute would be shared by calls with other types of arguments.
    function = library()[f"{name}_{variant or _in_use or chosen_variant()}"]
    result, arguments = prototypes()[name]
    function.argtypes = [_type_of(argument, by_address) for argument in arguments]
    function.restype = None if result == "void" else _type_of(result)
    return function


_HEADER = re.sub(r"/\*.*?\*/", "", "".join(each.read_text("utf-8") for each in _HEADERS), flags=re.DOTALL)


@functools.cache
def prototypes() -> dict[str, tuple[str, list[str]]]:
    """Return the type of the result and the declared arguments of each function in kernels.h."""
    declarations = re.findall(r"^(\w+) (\w+)\(([^)]*)\);", _HEADER, re.MULTILINE)
    return {name: (result, re.split(r",\s*", arguments)) for result, name, arguments in declarations}


@functools.cache
def constants() -> dict[str, int]:
    """Return the values of the enums in kernels.h."""
    values = dict[str, int]()
    for enum in re.findall(r"^enum \w+ {([^}]*)};", _HEADER, re.MULTILINE):
        value = -1
        for name, given in re.findall(r"(\w+)(?: = (\d+))?", enum):
            value = values[name] = int(given or value + 1)
    return values


def struct_fields(struct: str, header: str = _HEADER) -> list[tuple[str, Any]]:
    """Return the `_fields_` of the `ctypes.Structure` for a struct of kernels.h."""
    fields = list[tuple[str, Any]]()
    for declared, name, lengths in _declarations(struct, header):
        kind = _type_of(declared, by_address=True)
        for length in reversed(re.findall(r"\w+", lengths)):
            kind *= int(length) if length.isdecimal() else constants()[length]
        fields.append((name, kind))
    return fields


def struct_of(struct: str, values: Mapping[str, Any]) -> Any:
    """Return a struct of kernels.h with values of its fields by name; an array is given by its address and kept."""
    declared = {name: kind for kind, name, _ in _declarations(struct, _HEADER)}
    assert declared.keys() == values.keys(), f"{struct}: {declared.keys() ^ values.keys()}"
    struct_value = structure(struct)()
    if arrays := [value for value in values.values() if isinstance(value, np.ndarray)]:
        struct_value.arrays = arrays  # alive as long as the struct, which has their addresses only
    for name, value in values.items():
        setattr(
            struct_value, name, _type_of(declared[name]).address_of(value) if isinstance(value, np.ndarray) else value
        )
    return struct_value


@functools.cache
def structure(struct: str) -> type[ctypes.Structure]:
    """Return the `ctypes.Structure` for a struct of kernels.h."""
    return type(struct, (ctypes.Structure,), {"_fields_": struct_fields(struct)})


@functools.cache
def _declarations(struct: str, header: str) -> list[tuple[str, str, str]]:
    """Return the type of each field of a struct, such as `double *`, its name, and its lengths, such as `[8][5]`."""
    body = header.partition(f"struct {struct} {{")[2].partition("}")[0]
    return [
        (f"{kind} {star}".strip(), name, lengths)
        for kind, names in re.findall(r"(?:const )?((?:struct )?\w+) ([^;]+);", body)
        for star, name, lengths in re.findall(r"(\*?)(\w+)((?:\[\w+\])*)", names)
    ]


def _type_of(declared: str, by_address: bool = False) -> Any:
    """Return the ctypes type of an argument such as `const float *signal` or `int64_t num_samples`."""
    kind = declared.removeprefix("const ").split()[0].removesuffix("_t")
    if "*" not in declared:
        return getattr(ctypes, f"c_{kind}")
    if by_address or kind not in ("float", "double", "int8", "uint8", "uint16", "int32", "uint32", "int64", "uint64"):
        return ctypes.c_void_p
    return _Array(np.dtype("single" if kind == "float" else kind))  # NumPy's "float" is a double
