"""Answers to the page as bytes: a header in JSON, then arrays in little endian, as the page maps them.

4 bytes: length of the header │ header, padded to 8 bytes │ array │ array ...
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ALIGNED = 8


def pack(header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> bytes:
    """Return `header` and `arrays` in one message; `header["arrays"]` gets their types, shapes and offsets."""
    parts, described, offset = list[bytes](), dict[str, Any](), 0
    for name, array in arrays.items():
        content = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        described[name] = [array.dtype.name, list(array.shape), offset]
        parts.append(content + bytes(-len(content) % _ALIGNED))
        offset += len(parts[-1])
    text = json.dumps(header | {"arrays": described}, allow_nan=False).encode()
    text += b" " * (-(len(text) + 4) % _ALIGNED)
    return b"".join([len(text).to_bytes(4, "little"), text, *parts])
