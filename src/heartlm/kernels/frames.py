"""Samples of a message, read from its JSON in C."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heartlm.kernels.library import kernel


def frame_samples(text: bytes, most_leads: int, limit: float) -> tuple[NDArray[np.float32], int] | None:
    """Read the JSON list that `text` begins with: of numbers and null, or of such lists of one length.

    Args:
        text: of which only the list is read.
        most_leads: lists in the list, at most.
        limit: numbers beyond ± this are no samples.

    Returns:
        float32 `[num_leads, num_samples]`, NaN for null and beyond the limit, and the length of the list in bytes; None
        where it is something else, or is written in an unusual way: `json` knows.
    """
    out, sizes = np.empty(len(text) // 2 + 1, np.float32), np.empty(2, np.int64)
    length = kernel("frame_samples")(text, len(text), most_leads, limit, out, sizes)
    if length < 0:
        return None
    num_leads, num_samples = sizes.tolist()
    return out[: num_leads * num_samples].reshape(num_leads, num_samples).copy(), length
