"""Timing of gradient synchronisation, reported to the meters."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

import torch

from heartlm.instrumentation.flights import InFlight
from heartlm.instrumentation.meters import Meters


class GradientSync:
    """Records the sums of gradients over ranks.

    Args:
        meters: meters of this rank; waiting for sums counts as communication.
        device: device of the model.
        flights: recorder of sums in flight; None records none.
        measured: whether the times of the parts of a step are needed. On a GPU, `ready` then synchronises. Otherwise
            sums of gradients on a GPU count as part of the backward pass.
    """

    def __init__(
        self, meters: Meters, device: torch.device, flights: InFlight | None = None, measured: bool = False
    ) -> None:
        self._meters, self._device, self._exposed = meters, device, ExitStack()
        self._in_flight, self._measured = flights if device.type == "cpu" else None, measured

    def ready(self) -> None:
        """Record that this rank computed its last gradient; the rest of the backward pass is communication."""
        if self._device.type == "cuda":
            if not self._measured:
                return
            torch.cuda.current_stream(self._device).synchronize()
        if self._in_flight is not None:
            self._in_flight.ready()
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

    def launch(self) -> Callable[[], None]:
        """Record the start of a sum; call the result, from any thread, when the sum is complete."""
        return self._in_flight.launch() if self._in_flight is not None else lambda: None
