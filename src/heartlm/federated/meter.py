"""Communication cost of a round: exposed time, hidden time and bytes.

    local steps   |====== round t ======|    |============== round t+1 ==============|
    sum of t                            |post|- - - - - - - - - - there              |wait|
                                        |<---------- flight --------->|

A flight lasts from when the first bucket is sent until the last sum has arrived. Exposed are the seconds that this
rank spends on communication alone: converting to fixed point, sending, testing, waiting, and making the mean. The rest
of the flight is hidden: local steps or an evaluation were computed meanwhile. A sum has arrived when it is found, by a
thread that polls or by a test between steps. So a flight does not measure the network.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


class CommunicationMeter:
    """Sums up what communication costs this rank; a context around what is done for communication alone.

    Args:
        now_s: the clock.
    """

    def __init__(self, now_s: Callable[[], float] = time.perf_counter) -> None:
        self._now_s = now_s
        self._exposed_s = self._hidden_s = self._within_s = 0.0
        self._num_bytes = 0
        self._flight_s: float | None = None
        self._begin_s: float | None = None

    def __enter__(self) -> None:
        self._begin_s = self._now_s()

    def __exit__(self, *raised: object) -> None:
        now_s, begin_s = self._now_s(), self._begin_s
        assert begin_s is not None
        self._exposed_s += now_s - begin_s
        if self._flight_s is not None:
            self._within_s += now_s - max(begin_s, self._flight_s)
        self._begin_s = None

    def sent(self, num_bytes: int, arrived: bool = False) -> None:
        """Bytes were handed over; unless they have arrived, the first of a round begin a flight."""
        self._num_bytes += num_bytes
        if self._flight_s is None and not arrived:
            self._flight_s = self._now_s()

    def landed(self, there_s: float) -> None:
        """Everything that was under way is there, since `there_s`."""
        if self._flight_s is None:
            return
        within_s = self._within_s
        if self._begin_s is not None:
            within_s += max(0.0, there_s - max(self._begin_s, self._flight_s))
        self._hidden_s += max(0.0, there_s - self._flight_s - within_s)
        self._flight_s, self._within_s = None, 0.0

    def inside_s(self) -> float:
        """Exposed seconds since the last `take`."""
        return self._exposed_s

    def take(self) -> dict[str, Any]:
        """What it was since the last time; a flight that is under way is counted when it has landed.

        Returns:
            As a line of metrics has it: `exposed_s`, spent on communication alone; `hidden_s` of flights, while
            something was computed; `hidden_share` of both, None where there were none; `bytes` sent by this rank.
        """
        exposed_s, hidden_s, num_bytes = self._exposed_s, self._hidden_s, self._num_bytes
        self._exposed_s, self._hidden_s, self._num_bytes = 0.0, 0.0, 0
        share = hidden_s / (exposed_s + hidden_s) if exposed_s + hidden_s > 0 else None
        return {"exposed_s": exposed_s, "hidden_s": hidden_s, "hidden_share": share, "bytes": num_bytes}
