"""Predictions of a fine-tuned model for every token of a recording.

Windows overlap by half. The probabilities of a token are averaged over the windows that contain it, so a token near the
edge of one window is also classified from the middle of another.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heartlm.corpus.windows import covering_windows
from heartlm.models.heart import HeartModel

WINDOWS_AT_ONCE = 32
JUDGED_AT_ONCE = 256
"""Batch size in `window_probabilities`, mostly used by the waveform task, whose network is small."""


def batches_of_windows(
    model: HeartModel, codes: NDArray[np.uint16], window: int, stride: int
) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
    """Yield all tokens of a recording in batches of windows.

    Args:
        model: model whose device the codes are moved to.
        codes: codes of the recording, uint16 `[num_tokens, num_facets]`.
        window: tokens per window; a shorter recording is one window.
        stride: tokens between the starts of consecutive windows; the last window ends with the recording.

    Yields:
        Indices of the tokens, `[num_windows, width]`, and their codes, int64 `[num_windows, width, num_facets]`.
    """
    device = next(model.parameters()).device
    windows = covering_windows(0, len(codes), window, stride)
    index = windows.index[:, : int(windows.length[0])]  # every window of a recording has the same length
    for begin in range(0, len(index), WINDOWS_AT_ONCE):
        places = index[begin : begin + WINDOWS_AT_ONCE]
        yield places, torch.from_numpy(codes[places].astype(np.int64)).to(device)


@torch.inference_mode()
def token_probabilities(
    model: HeartModel, codes: NDArray[np.uint16], window: int, overlap: bool = True
) -> NDArray[np.float32]:
    """Return class probabilities of every token of one recording.

    Args:
        model: model with a class head; the output of a pooled head applies to every token of its window.
        codes: codes of all tokens of the recording, uint16 `[num_tokens, num_facets]`.
        window: tokens per window.
        overlap: whether windows overlap by half, which takes twice the time.

    Returns:
        Probabilities, float32 `[num_tokens, num_classes]`.
    """
    total = np.zeros((len(codes), model.num_classes), np.float32)
    count = np.zeros(len(codes), np.float32)
    for places, part in batches_of_windows(model, codes, window, max(1, window // 2) if overlap else window):
        answer = model.class_logits(part).float().softmax(dim=-1).cpu().numpy()
        np.add.at(total, places, answer[:, None] if model.pooled else answer)
        np.add.at(count, places, 1)
    return total / count[:, None]


@torch.inference_mode()
def window_probabilities(model: HeartModel, codes: NDArray[np.uint16], window: int) -> NDArray[np.float32]:
    """Return class probabilities of windows, each computed from its own tokens only.

    A pooled head classifies the whole window; the probabilities of a token head are averaged over the window. A window
    wider than the model's is split into overlapping parts of the model's width.

    Args:
        model: model with a class head.
        codes: codes of the windows, uint16 `[num_windows, width, num_facets]`.
        window: tokens per window in the model's training.

    Returns:
        Probabilities, float32 `[num_windows, num_classes]`.
    """
    if codes.shape[1] > window:
        return np.stack([token_probabilities(model, each, window).mean(axis=0) for each in codes])
    device = next(model.parameters()).device
    answers = []
    for begin in range(0, len(codes), JUDGED_AT_ONCE):
        part = torch.from_numpy(codes[begin : begin + JUDGED_AT_ONCE].astype(np.int64))
        answer = model.class_logits(part.to(device)).float().softmax(dim=-1)
        answers.append((answer if model.pooled else answer.mean(dim=1)).cpu().numpy())
    return np.concatenate(answers)
