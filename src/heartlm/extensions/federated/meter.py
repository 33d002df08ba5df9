"""Communication cost of a rank in a round: exposed time, hidden time and bytes.

    local steps   |====== round t ======|    |============== round t+1 ==============|
    sum of t                            |post|- - - - - - - - - - there              |wait|

Exposed are the seconds that this rank spends on communication alone: converting to fixed point, sending, waiting, and
making the mean. Hidden is the time from when a sum was sent until it was found complete, while this rank computed. The
sum is found by a thread that polls or when it is waited for, so hidden seconds do not measure the network.
"""

from __future__ import annotations

import time
from typing import Any


class CommunicationMeter:
    """Sums of what communication costs this rank; a context around what is done for communication alone.

    Attributes:
        exposed_s: seconds spent on communication alone.
        hidden_s: seconds of sums in transit while this rank computed.
        num_bytes: bytes sent.
    """

    exposed_s, hidden_s, num_bytes = 0.0, 0.0, 0

    def __enter__(self) -> None:
        self._begin_s = time.perf_counter()

    def __exit__(self, *raised: object) -> None:
        self.exposed_s += time.perf_counter() - self._begin_s

    def take(self) -> dict[str, Any]:
        """Return the sums since the last call, as a line of metrics has them."""
        cost = {"exposed_s": self.exposed_s, "hidden_s": self.hidden_s, "bytes": self.num_bytes}
        self.exposed_s, self.hidden_s, self.num_bytes = 0.0, 0.0, 0
        return cost
