"""The codes of a corpus in the memory of a GPU, so that a step sends the places of its windows only."""

from __future__ import annotations

import torch
from torch import Tensor

from heartlm.corpus.corpus import Corpus

CHUNK_TOKENS = 1 << 20


class ResidentCodes:
    """Codes of all tokens of `corpus` on `device`.

    Args:
        corpus: corpus of the codes.
        width: tokens per window.
        device: device to keep them on.
    """

    def __init__(self, corpus: Corpus, width: int, device: torch.device) -> None:
        # the bits of uint16 as int16, since few operations support uint16
        self._codes = torch.empty(corpus.codes.shape, dtype=torch.int16, device=device)
        for first in range(0, len(corpus.codes), CHUNK_TOKENS):
            chunk = torch.from_numpy(corpus.codes[first : first + CHUNK_TOKENS].copy()).view(torch.int16)
            self._codes[first : first + len(chunk)] = chunk.to(device)
        self._offset = torch.arange(width, device=device)

    def gather(self, windows: Tensor) -> Tensor:
        """Return the codes of windows, int64 `[B, W, F]`; padding repeats the last valid token.

        Args:
            windows: first token and number of valid tokens of each window, int64 `[B, 2]`.
        """
        first, length = windows.unsqueeze(-1).unbind(dim=1)
        return self._codes[first + torch.minimum(self._offset, length - 1)].to(torch.int64) & 0xFFFF


def fits(corpus: Corpus, device: torch.device) -> bool:
    """Return whether the codes of `corpus` need at most half of the free memory of the GPU `device`."""
    return corpus.codes.nbytes <= torch.cuda.mem_get_info(device)[0] / 2
