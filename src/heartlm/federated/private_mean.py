"""The mean of a round from updates of bounded length with noise, in front of any other way to make a mean.

    PrivateMean ─► ExactMean, or MaskedMean, so that nobody sees single updates, or CompressedMean

Compression comes after the noise, so it costs no privacy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from heartlm.distributed.communicator import Communicator
from heartlm.federated.aggregate import Aggregator, PendingMean, Share
from heartlm.federated.privacy import Ledger, clip_and_noise, secret_generator


class PrivateMean:
    """Clips, adds noise, and lets every client count the same.

    Args:
        inner: makes the mean.
        communicator: of the ranks.
        ledger: told who took part; the same on every rank.
        generator: of the noise; from the system's entropy unless a test wants to know it.

    Attributes:
        inner: makes the mean.
        ledger: who took part how often.
    """

    def __init__(
        self,
        inner: Aggregator,
        communicator: Communicator,
        ledger: Ledger,
        generator: Callable[[], torch.Generator] = secret_generator,
    ) -> None:
        self.inner, self._communicator, self.ledger, self._generator = inner, communicator, ledger, generator()

    def start(
        self, round_index: int, shares: Sequence[Share], asked_samples: int, at_once: bool = False
    ) -> PendingMean:
        """Clip, add each client's share of the noise, and hand over to the inner mean."""
        here = [share.client for share in shares]
        everybody = sorted(client for clients in self._communicator.gather_objects(here) for client in clients)
        self.ledger.took_part(everybody)
        number = len(everybody)
        return self.inner.start(round_index, [self._private(share, number) for share in shares], number, at_once)

    def _private(self, share: Share, number: int) -> Share:
        delta = clip_and_noise(share.update.delta, self.ledger.privacy, number, self._generator)
        return Share(share.client, 1 / number, replace(share.update, delta=delta, num_samples=1))
