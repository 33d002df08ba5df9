"""The synchronisation of gradients, as the code that asks for it reports it to the meters."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

import torch

from heartlm.instrumentation.flights import InFlight
from heartlm.instrumentation.meters import Meters


class GradientSync:
    """The sums of gradients over ranks, as those who ask for them describe them.

    Args:
        meters: of this rank, which count what it waits for as communication.
        device: it computes on.
        flights: where sums under way are noted; None to note none.
        measured: the times of the parts of a step are used. On a GPU, `ready` then waits for the gradients. Without it
            a GPU's sums of gradients count as part of the backward pass.
    """

    def __init__(
        self, meters: Meters, device: torch.device, flights: InFlight | None = None, measured: bool = False
    ) -> None:
        self._meters, self._device, self._exposed = meters, device, ExitStack()
        self._in_flight, self._measured = flights if device.type == "cpu" else None, measured

    def ready(self) -> None:
        """The gradients of this rank are there: what is left of the backward pass is communication."""
        if self._device.type == "cuda":
            if not self._measured:
                return
            torch.cuda.current_stream(self._device).synchronize()
        if self._in_flight is not None:
            self._in_flight.ready()
        self._exposed.enter_context(self._meters.span("communication"))

    def returned(self) -> None:
        """The backward pass returned; on a CPU all sums are there then, a GPU has yet to be waited for."""
        if self._device.type == "cpu":
            self.over()

    def over(self) -> None:
        """All sums are there."""
        self._exposed.close()

    def waiting(self) -> AbstractContextManager[None]:
        """Around a sum that is waited for at once."""
        return self._meters.span("communication")

    def launch(self) -> Callable[[], None]:
        """A sum is on its way; call the result, from any thread, when it is there."""
        return self._in_flight.launch() if self._in_flight is not None else lambda: None
