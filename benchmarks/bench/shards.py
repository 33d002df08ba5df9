"""Labelled windows of ECG on disk, twice: in shards as the CrossScale study writes them, and each sample once.

    recordings ─► windows of L samples, a stride apart, class of the beat in the middle
                    ├─► shard-0000.bin …   int64 N, int64 L, float32 [N · L]: where windows overlap, samples lie twice
                    └─► signal.bin         float32 [num_samples], and where each window begins

The study trained on labels that were all zero. Here the label of a window is the AAMI class of the beat nearest to its
middle; what has no such beat, no labels or invalid samples is left out and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.database import open_database
from heartlm.ecg.recording import BEAT_CLASSES, UNLABELLED, Annotations
from heartlm.errors import HeartlmError
from heartlm.storage.atomic import atomic_folder

HEADER = np.dtype("<i8")
SHARD_WINDOWS = 4096
"""Windows of a shard, 8 MB of 500 samples each."""

Lead = tuple[NDArray[np.float32], Annotations]
"""A lead in mV `[num_samples]`, and its annotations."""


@dataclass(frozen=True)
class Shards:
    """Windows in a folder.

    Attributes:
        paths: of the shards, in order.
        signal: the file of every sample once.
        length: L, samples of a window.
        first: where each window begins in `signal`, int64 `[N]`.
        label: AAMI class index of each, int64 `[N]`.
        left_out: windows that were left out, by reason.
    """

    paths: tuple[Path, ...]
    signal: Path
    length: int
    first: NDArray[np.int64]
    label: NDArray[np.int64]
    left_out: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self.first)

    @property
    def shard_bytes(self) -> int:
        """Of all shards."""
        return sum(path.stat().st_size for path in self.paths)

    @property
    def signal_bytes(self) -> int:
        """Of every sample once."""
        return self.signal.stat().st_size

    @property
    def class_counts(self) -> dict[str, int]:
        """Windows of each class that occurs."""
        counts = np.bincount(self.label, minlength=len(BEAT_CLASSES))
        return {name: int(count) for name, count in zip(BEAT_CLASSES, counts, strict=True) if count}

    def place(self, window: int) -> tuple[int, int]:
        """The shard that holds a window, and the byte it begins at there."""
        shard, row = divmod(window, SHARD_WINDOWS)
        return shard, 2 * HEADER.itemsize + row * self.length * 4


def leads_of(folder: Path, num_windows: int, length: int, stride: int) -> Iterator[Lead]:
    """The first lead of every recording of a database, as much of each as about `num_windows` of all of them need.

    Raises:
        HeartlmError: no such folder, no recordings, or nothing there has annotated beats.
    """
    database = open_database(folder)
    wanted = -(-num_windows // len(database.record_ids)) * stride + length
    labelled = False
    for record_id in database.record_ids:
        recording = database.recording(record_id)
        annotations = database.annotations(record_id, recording)
        if recording.has_signal and annotations is not None and annotations.beats_labelled:
            labelled = True
            yield recording.signal(0, min(wanted, recording.num_samples), leads=[0])[0], annotations
    if not labelled:
        raise HeartlmError(f"{folder}: no recording with labelled beats found; give a database such as mitdb")


def simulated_leads(num_windows: int, stride: int, seed: int = 0) -> Iterator[Lead]:
    """Leads of simulated patients, ten minutes of each, as many as `num_windows` need."""
    from heartlm.ecg.simulator.config import SimulationConfig
    from heartlm.ecg.simulator.synthesis import simulate_recording

    config = SimulationConfig(minutes=10.0, rate_hz=360, leads=("MLII",), seed=seed)
    patients = -(-num_windows * stride // config.num_samples)
    for patient in range(max(2, patients)):
        signal, annotations = simulate_recording(config, patient)
        yield signal[0], annotations


def write_shards(folder: Path, leads: Iterable[Lead], *, length: int, stride: int, num_windows: int) -> Shards:
    """Write windows of `leads` to `folder`, at most `num_windows`, whole or not at all.

    Raises:
        HeartlmError: fewer than two windows could be labelled, or the folder cannot be written.
    """
    left_out: Counter[str] = Counter()
    firsts, labels, num_samples = [np.empty(0, np.int64)], [np.empty(0, np.int64)], 0
    with atomic_folder(folder) as temporary:
        with (temporary / "signal.bin").open("wb") as stream:
            for signal, annotations in leads:
                first, label = labelled_windows(signal, annotations, length, stride, left_out)
                firsts.append(num_samples + first)
                labels.append(label)
                num_samples += len(signal)
                np.ascontiguousarray(signal, "<f4").tofile(stream)
        first, label = (np.concatenate(parts)[:num_windows] for parts in (firsts, labels))
        if len(first) < 2:
            told = ", ".join(f"{count} {reason}" for reason, count in left_out.items()) or "recordings are too short"
            raise HeartlmError(f"windows: {len(first)} with a labelled beat found, 2 or more expected ({told})")
        names = _write_shards(temporary, first, length)
    return Shards(tuple(folder / name for name in names), folder / "signal.bin", length, first, label, left_out)


def labelled_windows(
    signal: NDArray[np.float32], annotations: Annotations, length: int, stride: int, left_out: Counter[str]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Windows of one lead: where each begins, and the class of the beat nearest to its middle; both int64 `[N]`.

    Args:
        signal: mV `[num_samples]`, NaN where invalid.
        annotations: of the recording.
        length: samples of a window.
        stride: samples from one window to the next.
        left_out: counts what is left out, by reason.
    """
    first = np.arange(0, max(len(signal) - length + 1, 0), stride, dtype=np.int64)
    beats, classes = annotations.sample, annotations.beat_classes()
    if not len(first) or not len(beats):
        left_out["without a beat"] += len(first)
        return np.empty(0, np.int64), np.empty(0, np.int64)
    middle = first + length // 2
    after = np.searchsorted(beats, middle)
    before, after = np.maximum(after - 1, 0), np.minimum(after, len(beats) - 1)
    nearest = np.where(np.abs(beats[before] - middle) <= np.abs(beats[after] - middle), before, after)
    inside = (beats[nearest] >= first) & (beats[nearest] < first + length)
    labelled = classes[nearest] != UNLABELLED
    bad = np.concatenate(([0], np.cumsum(~np.isfinite(signal))))
    valid = bad[first + length] == bad[first]
    left_out["without a beat"] += int((~inside).sum())
    left_out["with an unclassified beat"] += int((inside & ~labelled).sum())
    left_out["with invalid samples"] += int((inside & labelled & ~valid).sum())
    kept = inside & labelled & valid
    return first[kept], classes[nearest[kept]].astype(np.int64)


def _write_shards(folder: Path, first: NDArray[np.int64], length: int) -> list[str]:
    signal: NDArray[np.float32] = np.memmap(folder / "signal.bin", "<f4", "r")
    names: list[str] = []
    for begin in range(0, len(first), SHARD_WINDOWS):
        part = first[begin : begin + SHARD_WINDOWS]
        names.append(f"shard-{len(names):04d}.bin")
        with (folder / names[-1]).open("wb") as stream:
            np.array([len(part), length], HEADER).tofile(stream)
            signal[part[:, None] + np.arange(length)].tofile(stream)
    return names


def read_shard(path: Path) -> NDArray[np.float32]:
    """All windows of a shard, float32 `[N, L]`.

    Raises:
        HeartlmError: it is cut short, or no shard.
    """
    with path.open("rb") as stream:
        header = np.fromfile(stream, HEADER, 2)
        windows = np.fromfile(stream, "<f4")
    if len(header) < 2 or header.min() < 1 or len(windows) != header.prod():
        raise HeartlmError(f"{path}: no shard of windows: int64 N, int64 L and N · L float32 expected")
    return windows.reshape(header)
