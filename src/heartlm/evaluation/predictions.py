"""What a fine-tuned model says of every token of a recording.

Windows overlap by half; where two cover a token their probabilities are averaged, so a token near the edge of one
window is also judged from the middle of another.
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
"""Windows that are judged by their own tokens: of the task waveform mostly, whose network is small."""


def batches_of_windows(
    model: HeartModel, codes: NDArray[np.uint16], window: int, stride: int
) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
    """All tokens of a recording in windows, some at once.

    Args:
        model: on whose device the codes are put.
        codes: uint16 `[num_tokens, num_facets]`.
        window: tokens a window; a shorter recording is one window.
        stride: tokens from one window to the next; the last window ends with the recording.

    Yields:
        Places of the tokens, `[num_windows, width]`, and their codes, int64 `[num_windows, width, num_facets]`.
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
    """Class probabilities of every token of one recording.

    Args:
        model: with a class head; a pooled head's answer counts for every token of its window.
        codes: uint16 `[num_tokens, num_facets]`, all tokens of the recording.
        window: tokens a window.
        overlap: windows overlap by half; without, it takes half the time.

    Returns:
        float32 `[num_tokens, num_classes]`.
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
    """Class probabilities of windows, each judged by its own tokens alone.

    A pooled head answers for the window; the answers of a token head are averaged over the window's tokens. A window
    wider than the model's is read in overlapping parts of the model's width.

    Args:
        model: with a class head.
        codes: uint16 `[num_windows, width, num_facets]`.
        window: tokens a window the model was trained on.

    Returns:
        float32 `[num_windows, num_classes]`.
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
