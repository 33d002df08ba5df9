"""Encoding recordings: several processes, one order, so the corpus is the same whatever their number."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heartlm.corpus.sources import Beats, Source, Unusable, usable_leads
from heartlm.errors import HeartlmError
from heartlm.tokenizers.base import Lead, Tokenizer, Tokens

LeftOut = Mapping[str, str | int]
"""What is not in the corpus: `record`, `reason` and, where several of a kind are left out, their `count`."""

Result = tuple[list["Encoded"], list[LeftOut]]
"""The leads of one recording, and what was left out of it."""

AHEAD = 4
"""So many recordings for each process may be ahead of the writer, which bounds the memory they take."""


@dataclass(frozen=True)
class Encoded:
    """One lead as tokens, with the class of each of its beats, int8 `[num_beats]`."""

    lead: int
    tokens: Tokens
    beat_class: NDArray[np.int8]


@dataclass(frozen=True)
class Work:
    """What a process needs to encode any of the sources; inherited by forking, not sent."""

    sources: Sequence[Source]
    tokenizer: Tokenizer
    beats: Beats
    skip_unreadable: bool

    def encode(self, index: int) -> Result:
        """Encode every usable lead of source `index`."""
        source, left_out = self.sources[index], list[LeftOut]()
        leads, ignored = list[Encoded](), dict[str, int]()
        for lead in readable_leads(source, self.tokenizer, self.beats, left_out, self.skip_unreadable):
            leads.append(Encoded(lead.lead, self.tokenizer.encode(lead), lead.annotations.beat_classes()))
            ignored = lead.annotations.ignored
        for reason, count in ignored.items():
            left_out.append({"record": source.name, "reason": f"annotation: {reason}", "count": count})
        return leads, left_out


_work: Work | None = None


def _encode(index: int) -> Result:
    assert _work is not None, "set before the processes were forked"
    return _work.encode(index)


def encode_all(work: Work, processes: int) -> Generator[Result]:
    """Encode every source, in order, by `processes` forked ones.

    Raises:
        HeartlmError: a recording is unreadable and none are to be skipped, or a process was killed.
    """
    global _work
    if processes == 1 or len(work.sources) < 2:
        yield from map(work.encode, range(len(work.sources)))
        return
    _work = work
    pool = ProcessPoolExecutor(min(processes, len(work.sources)), multiprocessing.get_context("fork"))
    waiting = deque[Future[Result]]()
    try:
        for index in range(len(work.sources)):
            waiting.append(pool.submit(_encode, index))
            if len(waiting) > AHEAD * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise HeartlmError(
            "a process that encodes was killed, maybe for want of memory: use fewer --processes"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)
        _work = None


def readable_leads(
    source: Source, tokenizer: Tokenizer, beats: Beats, dropped: list[LeftOut], skip_unreadable: bool
) -> Iterator[Lead]:
    """Yield the usable leads of `source` and add the others, with the reason, to `dropped`.

    Raises:
        HeartlmError: the recording is unreadable and such are not to be skipped.
    """
    try:
        for lead in usable_leads(source, tokenizer, beats):
            if isinstance(lead, Unusable):
                dropped.append({"record": source.name, "reason": lead.reason})
            else:
                yield lead
    except HeartlmError as error:
        if not skip_unreadable:
            raise
        dropped.append({"record": source.name, "reason": str(error)})
