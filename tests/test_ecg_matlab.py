"""MATLAB files: the variables that SciPy and h5py write are read, and no damaged or hostile file ends the process."""

from __future__ import annotations

import io
import random
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import loadmat, savemat

from heartlm.errors import HeartlmError
from heartlm.formats.matlab import matlab_variables

ECG = np.round(np.sin(np.arange(1500) / 9), 3)
CONTENTS: dict[str, dict[str, Any]] = {
    "numbers": {"val": ECG[np.newaxis, :40], "fs": 500.0, "flags": np.array([True, False])},
    "integers": {"val": (1000 * ECG[:40]).astype(np.int16)[np.newaxis], "fs": np.uint16(500), "units": "uV"},
    "struct": {"s": {"ecg": ECG[:20], "fs": 250, "inner": {"leads": np.array(["I", "II"], dtype=object), "x": {}}}},
    "others": {
        "cells": np.array([1.0, "text", np.arange(3), np.array(["a", "b"], dtype=object)], dtype=object),
        "structs": np.array([(1, "x"), (2, "y")], dtype=[("n", "O"), ("t", "O")]),
        "complex": np.array([1 + 2j, 3]),
        "cube": np.zeros((2, 3, 4)),
        "words": np.array(["one", "four"]),
        "empty": np.empty((0, 0)),
    },
}


def mat_file(contents: dict[str, Any], **options: Any) -> bytes:
    stream = io.BytesIO()
    savemat(stream, contents, **options)
    return stream.getvalue()


def sparse_file() -> bytes:
    from scipy.sparse import csc_matrix

    return mat_file({"sparse": csc_matrix(np.eye(3)), "fs": 500.0})


@pytest.mark.parametrize("options", [{}, {"do_compression": True}, {"format": "4"}])
@pytest.mark.parametrize("name", CONTENTS)
def test_variables_are_those_of_scipy(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    if options.get("format") == "4" and name in ("struct", "others"):
        pytest.skip("version 4 has arrays and texts only")
    path = tmp_path / "a.mat"
    path.write_bytes(mat_file(CONTENTS[name], **options))
    variables = dict(matlab_variables(path))
    expected = loadmat(path)
    if name == "struct":
        assert variables["s.inner.leads"] == ["I", "II"]
        assert np.array_equal(variables["s.ecg"], expected["s"][0, 0]["ecg"])
        return
    for key, value in variables.items():
        if key != "cells":
            same = [str(text).strip() for text in expected[key]] if isinstance(value, list) else expected[key]
            assert np.array_equal(value, same), key
    unread = {"structs", "complex"} if name == "others" else set()
    assert set(variables) == set(CONTENTS[name]) - unread


def test_big_endian_files_and_texts_of_utf_16_are_read(tmp_path: Path) -> None:
    def element(kind: int, content: bytes) -> bytes:
        return struct.pack(">II", kind, len(content)) + content + b"\0" * (-len(content) % 8)

    def matrix(kind: int, sizes: tuple[int, ...], name: bytes, values: bytes) -> bytes:
        head = element(6, struct.pack(">II", kind, 0)) + element(5, struct.pack(f">{len(sizes)}i", *sizes))
        return element(14, head + element(1, name) + values)

    text = matrix(4, (1, 2), b"units", element(17, "µV".encode("utf-16-be")))
    small = struct.pack(">HH4s", 3, 2, b"\1\2\3\0")  # three bytes within the tag
    content = b"MATLAB 5.0".ljust(124) + b"\1\0MI" + text + matrix(9, (3, 1), b"x", small)
    (tmp_path / "b.mat").write_bytes(content)
    variables = dict(matlab_variables(tmp_path / "b.mat"))
    assert variables["units"] == ["µV"] and variables["x"].tolist() == [[1], [2], [3]]  # type: ignore[union-attr]


def damaged(content: bytes, draw: random.Random) -> list[bytes]:
    """Each byte set to 0, 1, 255 and at random, and the file cut short everywhere."""
    changed = list[bytes]()
    for place, value in enumerate(content):
        for new in {0, 1, 255, draw.randrange(256)} - {value}:
            changed.append(content[:place] + bytes([new]) + content[place + 1 :])
    return changed + [content[:length] for length in range(0, len(content), 7)]


@pytest.mark.parametrize("name", [*CONTENTS, "sparse", "version 4", "within a compressed element"])
def test_no_byte_of_a_file_ends_the_process_or_gives_another_error(tmp_path: Path, name: str) -> None:
    draw, path = random.Random(name), tmp_path / "a.mat"
    match name:
        case "sparse":
            files = damaged(sparse_file(), draw)
        case "version 4":
            files = damaged(mat_file(CONTENTS["numbers"], format="4"), draw)
        case "within a compressed element":
            whole = mat_file(CONTENTS["struct"])
            packed = [zlib.compress(each, 1) for each in damaged(whole[128:], draw)]
            files = [whole[:128] + struct.pack("<II", 15, len(each)) + each for each in packed]
        case _:
            files = damaged(mat_file(CONTENTS[name]), draw)
            files += damaged(mat_file(CONTENTS[name], do_compression=True), draw)[::5]
    refused = 0
    for content in files:
        path.unlink(missing_ok=True)  # arrays of the file before are mapped from it
        path.write_bytes(content)
        try:
            dict(matlab_variables(path))
        except HeartlmError:
            refused += 1
    assert 0 < refused < len(files)
