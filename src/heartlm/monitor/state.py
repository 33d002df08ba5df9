"""State of live streams as bytes, for snapshots on disk and in a broker. Nothing is pickled.

header: length of the text, CRC-32 of all that follows
text:   JSON {"schema": SCHEMA, "state": ...}, in which {"array": [dtype, *shape]} stands for an array
arrays: their bytes, in the order of the text
"""

from __future__ import annotations

import dataclasses
import json
import math
import struct
import zlib
from collections import deque
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from heartlm.errors import HeartlmError

SCHEMA = 14
"""Version of the state. Raise it whenever a `STATE` or the meaning of a value changes."""
_HEADER = struct.Struct("<II")
# Values of a state are of the same kind as those that they replace.
_KINDS = ((int, float, np.number), str, list, dict)


class Stateful:
    """Base class of objects that are part of a snapshot.

    `STATE` names the attributes that are saved. They hold numbers, texts, None, arrays, dataclasses, other `Stateful`
    objects, and lists, tuples, deques and dictionaries of these. No dictionary may have a list under the key `array`.
    A class converts what `unpacked` returns (lists for tuples and deques, texts for keys) in its own `restore`.
    """

    STATE: ClassVar[tuple[str, ...]]

    def restore(self, state: dict[str, Any]) -> None:
        """Set the saved attributes.

        Args:
            state: what `unpacked` returns for the object that was saved, which had the same constructor arguments.
        """
        for name in self.STATE:
            value, current = state[name], getattr(self, name)
            if isinstance(current, Stateful):
                current.restore(value)
            elif isinstance(current, list) and current and isinstance(current[0], Stateful):
                for member, saved in zip(current, value, strict=True):
                    member.restore(saved)
            elif isinstance(current, deque):
                current.extend(value)
            elif isinstance(current, np.ndarray):
                if (value.dtype, value.shape) != (current.dtype, current.shape):
                    raise ValueError(f"{name}: an array of another shape")
                current[...] = value  # in place: C code may hold its address
            elif any(isinstance(current, kind) and not isinstance(value, kind) for kind in _KINDS):
                raise ValueError(f"{name}: {type(value).__name__}")
            else:
                setattr(self, name, value)


def packed(state: Any) -> bytes:
    """Return a state as bytes; see `Stateful` for what it may hold."""
    arrays = list[NDArray[Any]]()

    def described(value: Any) -> Any:
        if isinstance(value, Stateful):
            return {name: getattr(value, name) for name in value.STATE}
        if isinstance(value, deque):
            return list(value)
        if dataclasses.is_dataclass(value):
            return vars(value)
        arrays.append(np.asarray(value))  # a NumPy number too: results may depend on its type
        return {"array": [arrays[-1].dtype.str, *arrays[-1].shape]}

    text = json.dumps({"schema": SCHEMA, "state": state}, default=described).encode()
    content = b"".join([text, *(np.ascontiguousarray(each).reshape(-1).view(np.uint8).data for each in arrays)])
    return _HEADER.pack(len(text), zlib.crc32(content)) + content


def checked(content: bytes) -> int:
    """Return the length of the text in what `packed` wrote.

    Raises:
        ValueError: the bytes are damaged.
    """
    if len(content) < _HEADER.size:
        raise ValueError("too short")
    length, checksum = _HEADER.unpack_from(content)
    if zlib.crc32(memoryview(content)[_HEADER.size :]) != checksum:
        raise ValueError("wrong checksum")
    return int(length)


def unpacked(content: bytes) -> Any:
    """Return the state that `packed` wrote, with objects as dictionaries and tuples and deques as lists.

    Raises:
        ValueError: the bytes are damaged.
        HeartlmError: another version of heartlm wrote them.
    """
    at = _HEADER.size + checked(content)

    def array_of(value: dict[str, Any]) -> Any:
        nonlocal at
        if not isinstance(value.get("array"), list):
            return value
        dtype, *shape = value["array"]
        array = np.frombuffer(content, dtype, math.prod(shape), at).reshape(shape).copy()
        at += array.nbytes
        return array if shape else array[()]

    whole = json.loads(content[_HEADER.size : at], object_hook=array_of)
    if whole.get("schema") != SCHEMA:
        raise HeartlmError("state written by another version of heartlm")
    return whole["state"]
