"""Encoding recordings: several processes, one order, so the corpus is the same whatever their number.

A process encodes a part of the plan at a time and sends back bytes to append and rows to note; the one that writes has
next to nothing to do for a recording. Never more than a few parts for each process are under way.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from heartlm.corpus.plan import Plan
from heartlm.corpus.schema import FILES, ROW_FIELDS
from heartlm.corpus.sources import Beats, Source, TrainingLeads, Unusable, find_source, usable_leads
from heartlm.ecg.beats import BEAT_CLASSES
from heartlm.ecg.rhythms import RHYTHMS
from heartlm.errors import HeartlmError
from heartlm.memory import keep_memory
from heartlm.tokenizers.base import Lead, Tokenizer, Tokens


@dataclass
class LeftOut:
    """What is not in the corpus.

    Attributes:
        entries: `record`, `reason` and, where several of a kind are left out, their `count`.
        num_unreadable: how many of them because they could not be read.
    """

    entries: list[dict[str, str | int]] = field(default_factory=list)
    num_unreadable: int = 0

    def add(self, record: str, reason: str, *, unreadable: bool = False) -> None:
        """List one."""
        self.entries.append({"record": record, "reason": reason})
        self.num_unreadable += unreadable


AHEAD = 4
"""So many parts for each process may be ahead of the writer, which bounds the memory they take."""


@dataclass
class Part:
    """The recordings of one part as tokens.

    Attributes:
        num_records: recordings, those left out included.
        num_samples: samples of the leads that were encoded.
        tokens: what to append to each file of the corpus.
        rows: for each field of a row, `first_token` apart, its values.
        left_out: what was left out.
        beats: beats of each class, by split; a beat that several leads show is counted once.
        rhythms: tokens of each rhythm, by split.
    """

    database: str
    num_records: int = 0
    num_samples: int = 0
    tokens: dict[str, bytes] = field(default_factory=dict)
    rows: dict[str, list[Any]] = field(
        default_factory=lambda: {name: [] for name in ROW_FIELDS if name != "first_token"}
    )
    left_out: LeftOut = field(default_factory=LeftOut)
    beats: dict[str, dict[str, int]] = field(default_factory=dict)
    rhythms: dict[str, dict[str, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Work:
    """What a process needs to encode any part; inherited by forking, not sent."""

    plan: Plan
    tokenizer: Tokenizer
    training_leads: TrainingLeads
    beats: Beats
    skip_unreadable: bool

    def encode(self, number: int) -> Part:
        """Encode every usable lead of the recordings of part `number`."""
        database, record_ids = self.plan.records(number)
        part, tokens = Part(database.name, len(record_ids)), list[Tokens]()
        for record_id in record_ids:
            source = find_source(database, record_id, self.tokenizer, self.training_leads, self.skip_unreadable)
            if isinstance(source, Unusable):
                part.left_out.add(f"{database.name}/{record_id}", source.reason, unreadable=source.unreadable)
            else:
                tokens += self._encode_source(source, part)
        part.tokens = {name: _joined(name, tokens) for name in FILES}
        return part

    def _encode_source(self, source: Source, part: Part) -> Iterator[Tokens]:
        ignored, first = dict[str, int](), True
        for lead in readable_leads(source, self.tokenizer, self.beats, part.left_out, self.skip_unreadable):
            tokens = self.tokenizer.encode(lead)
            if first:
                _count(part.beats, source.split, lead.annotations.beat_classes(), BEAT_CLASSES)
                _count(part.rhythms, source.split, tokens.rhythm, RHYTHMS)
            ignored, first = lead.annotations.ignored, False
            part.num_samples += source.recording.num_samples
            _add_row(part.rows, source, lead.lead, tokens.num_tokens)
            del lead
            yield tokens
        for reason, count in ignored.items():
            part.left_out.entries.append({"record": source.name, "reason": f"annotation: {reason}", "count": count})


def _add_row(rows: dict[str, list[Any]], source: Source, lead: int, num_tokens: int) -> None:
    recording = source.recording
    values = {
        "database": recording.database,
        "record_id": recording.record_id,
        "patient_id": recording.patient_id,
        "split": source.split,
        "lead": recording.lead_names[lead] if recording.lead_names else "",
        "lead_index": lead,
        "rate_hz": float(recording.rate_hz),
        "num_samples": int(recording.num_samples),
        "num_tokens": num_tokens,
        "source": f"{_real_folder(recording.path.parent)}/{recording.path.name}",
    }
    for name, value in values.items():
        rows[name].append(value)


@lru_cache
def _real_folder(folder: Path) -> Path:
    return folder.resolve()


def _joined(name: str, tokens: Sequence[Tokens]) -> bytes:
    kind, _ = FILES[name]
    return b"".join(np.ascontiguousarray(_array_of(name, each), kind).tobytes() for each in tokens)


def _array_of(name: str, tokens: Tokens) -> np.ndarray[Any, Any]:
    if name == "labels.bin":
        return np.stack([tokens.beat_class, tokens.rhythm], axis=1)
    array: np.ndarray[Any, Any] = getattr(tokens, FILES[name][1])
    return array


def _count(counts: dict[str, dict[str, int]], split: str, index: np.ndarray[Any, Any], names: Sequence[str]) -> None:
    """Add how often each of `names` is in `index`, −1 being the unlabelled."""
    counted = counts.setdefault(split, {})
    for place, count in enumerate(np.bincount(index + 1).tolist()):
        if count:
            name = names[place - 1] if place else "unlabelled"
            counted[name] = counted.get(name, 0) + count


_work: Work | None = None


def _encode(number: int) -> Part:
    assert _work is not None, "set before the processes were forked"
    return _work.encode(number)


def encode_all(work: Work, processes: int, first_part: int = 0) -> Generator[Part]:
    """Encode every part from `first_part` on, in order, by `processes` forked processes.

    Raises:
        HeartlmError: a recording is unreadable and none are to be skipped, or a process was killed.
    """
    global _work
    keep_memory()
    numbers = range(first_part, len(work.plan.parts))
    if processes == 1 or not numbers:
        yield from map(work.encode, numbers)
        return
    _work = work
    cores = sorted(os.sched_getaffinity(0))
    context = multiprocessing.get_context("fork")
    places = context.SimpleQueue()
    for place in range(processes):
        places.put(place)
    pool = ProcessPoolExecutor(
        min(processes, len(numbers)),
        context,
        _begin_process,
        (os.getpid(), places, cores if len(cores) == processes else []),
    )
    waiting = deque[Future[Part]]()
    try:
        for number in numbers:
            waiting.append(pool.submit(_encode, number))
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


_PR_SET_PDEATHSIG = 1


def _begin_process(parent: int, places: Any, cores: Sequence[int]) -> None:
    """Leave interrupts to the parent, end when it is killed, and keep to one core where there is one for each process.

    Kernels may pack busy processes on few cores; keeping each to its own makes their number count.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
    if cores:
        os.sched_setaffinity(0, {cores[places.get()]})


def readable_leads(
    source: Source, tokenizer: Tokenizer, beats: Beats, left_out: LeftOut, skip_unreadable: bool
) -> Iterator[Lead]:
    """Yield the usable leads of `source` and add the others, with the reason, to `left_out`.

    Raises:
        HeartlmError: the recording is unreadable and such are not to be skipped.
    """
    try:
        for lead in usable_leads(source, tokenizer, beats):
            if isinstance(lead, Unusable):
                left_out.add(source.name, lead.reason)
            else:
                yield lead
    except HeartlmError as error:
        if not skip_unreadable:
            raise
        left_out.add(source.name, str(error), unreadable=True)
