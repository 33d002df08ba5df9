"""Timing of gradient synchronisation, reported to the meters."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack

import torch

from heartlm.instrumentation.meters import Meters


class GradientSync:
    """Records the time that a rank waits for sums of gradients over ranks.

    Args:
        meters: meters of this rank; waiting for sums counts as communication.
        device: device of the model.
        measured: whether the times of the parts of a step are needed. On a GPU, `ready` then synchronises. Otherwise
            sums of gradients on a GPU count as part of the backward pass.
    """

    def __init__(self, meters: Meters, device: torch.device, measured: bool = False) -> None:
        self._meters, self._device, self._exposed, self._measured = meters, device, ExitStack(), measured

    def ready(self) -> None:
        """Record that this rank computed its last gradient; the rest of the backward pass is communication."""
        if self._device.type == "cuda":
            if not self._measured:
                return
            torch.cuda.current_stream(self._device).synchronize()
        self._exposed.enter_context(self._meters.span("communication"))

    def returned(self) -> None:
        """Record that the backward pass returned; on a CPU all sums are then complete."""
        if self._device.type == "cpu":
            self.over()

    def over(self) -> None:
        """Record that all sums are complete."""
        self._exposed.close()

    def waiting(self) -> AbstractContextManager[None]:
        """Return a context for a blocking sum."""
        return self._meters.span("communication")
