"""Rate of tokenising recordings to beat tokens, and the resulting time for a large archive.

recordings ─► read ─► find the beats ─► beat tokens ─► corpus on disk
              |------------ stages, one core -------|
              |------ one process, several, and the usual script ------| ─► hours for 272 GB

    python benchmarks/machine.py tokenize
    python benchmarks/machine.py tokenize --recordings mitdb --processes '[1, 2, 4]'
    python benchmarks/machine.py tokenize --recordings mitdb --usual false
"""

from __future__ import annotations

import contextlib
import io
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.measure import BenchTable, Chart, Rival, cores, on_one_core, race
from bench.options import BenchOptions, at_least, each_at_least
from heartlm.errors import HeartlmError

if TYPE_CHECKING:
    from heartlm.tokenizers.beat import BeatTokenizer

ARCHIVE_BYTES, BYTES_PER_SAMPLE = 272e9, 2
"""Archive of the published study on 16 databases (arXiv 2503.21033), at two bytes per sample and lead."""

FILES = ("codes.bin", "sample.bin", "labels.bin", "scale.bin")
STAGED_RECORDS = 12


@dataclass(frozen=True)
class Options(BenchOptions):
    """Options of the tokenizing bench.

    Attributes:
        rounds: number of turns of every method; the median is reported.
        recordings: folder of a database; by default patients are simulated.
        patients: number of patients to simulate.
        minutes: length of each simulated recording in minutes.
        processes: numbers of processes of a build to measure; by default 1 and the number of cores.
        usual: also measure typical scripts: wfdb, a detector (XQRS, gqrs, sleepecg) and a loop over the beats.
        usual_s: seconds of a recording to time the typical scripts on; both are linear in the length.
    """

    rounds: int = 3
    recordings: Path | None = None
    patients: int = 16
    minutes: float = 30.0
    processes: tuple[int, ...] | None = None
    usual: bool = True
    usual_s: float = 120.0

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            HeartlmError: a value is invalid; the message names the field, what was found and what is expected.
        """
        super().__post_init__()
        at_least("patients", self.patients, 4)
        at_least("usual_s", self.usual_s, 10, " s")
        if self.processes is not None:
            each_at_least("processes", self.processes, 1)


def run(options: Options) -> list[BenchTable]:
    """Fit a tokenizer, then time its stages, whole builds and the usual script."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        recordings = options.recordings or _simulated(folder / "recordings", options)
        tokenizer = _fitted(recordings, folder)
        with on_one_core():
            stages = _stages(recordings, tokenizer, options.rounds)
        return [stages, _builds(options, recordings, tokenizer, folder)]


def _simulated(folder: Path, options: Options) -> Path:
    from heartlm.ecg.simulator.config import SimulationConfig
    from heartlm.ecg.simulator.write import simulate_database

    patients = SimulationConfig(options.patients, options.minutes, rate_hz=360, leads=("MLII",), name="bench")
    simulate_database(folder, patients)
    return folder


def _fitted(recordings: Path, folder: Path) -> BeatTokenizer:
    """The beat tokenizer, fitted on the training split; also shows that everything is readable."""
    from heartlm.corpus.build import build_corpus
    from heartlm.tokenizers.base import load_tokenizer
    from heartlm.tokenizers.beat import BeatTokenizer

    with contextlib.redirect_stderr(io.StringIO()):
        build_corpus([recordings], BeatTokenizer(compare=False), folder / "fitted")  # usual scripts compare nothing
    tokenizer = load_tokenizer(folder / "fitted" / "tokenizer")
    assert isinstance(tokenizer, BeatTokenizer)
    return tokenizer


def _stages(recordings: Path, tokenizer: BeatTokenizer, rounds: int) -> BenchTable:
    """Each stage by itself, on some of the recordings, whose results are kept in memory."""
    from bench.usual_script import detected
    from heartlm.ecg.database import open_database
    from heartlm.ecg.detect import detect_beats
    from heartlm.tokenizers.base import Lead

    database = open_database(recordings)
    opened = [
        database.recording(name) for name in database.record_ids[:: -(-len(database.record_ids) // STAGED_RECORDS)]
    ]
    signals = [each.signal(leads=[0])[0] for each in opened]
    leads = [Lead(detected(signal, each.rate_hz), signal) for each, signal in zip(opened, signals, strict=True)]
    num_samples, num_beats = sum(map(len, signals)), sum(lead.annotations.num_beats for lead in leads)
    stages: dict[str, Callable[[], object]] = {
        "read": lambda: [each.signal(leads=[0]) for each in opened],
        "find the beats": lambda: [
            detect_beats(signal, each.rate_hz) for each, signal in zip(opened, signals, strict=True)
        ],
        "read, beats to tokens": lambda: [tokenizer.encode(lead) for lead in leads],
    }
    title = f"Stages on one core, {len(opened)} recordings (median of {rounds})"
    table = BenchTable(title, ("stage", "M samples/s", "ns a sample", "µs a beat", "spread %"))
    for name, timed in race([Rival(name, work, num_samples) for name, work in stages.items()], rounds).items():
        per = 1e9 * timed.median_s / num_samples, 1e6 * timed.median_s / num_beats
        table.add(name, timed.rate / 1e6, *per, 100 * timed.spread)
    table.notes.append(f"{num_samples:,} samples of first leads, {num_beats:,} beats; files in the page cache.")
    return table.close()


def _builds(options: Options, recordings: Path, tokenizer: BeatTokenizer, folder: Path) -> BenchTable:
    """Whole builds by every number of processes, which must end in the same bytes, and the usual script."""
    from heartlm.corpus.corpus import open_corpus

    numbers = options.processes or tuple(sorted({1, len(cores())}))
    outs = {number: folder / f"by-{number}" for number in numbers}
    for number, out in outs.items():
        _build(recordings, tokenizer, out, number)
        _check_same(outs[numbers[0]], out)
    num_samples = sum(each.num_samples for each in open_corpus(outs[numbers[0]]).records.rows)
    names = {number: f"heartlm, {number} process{'es' if number > 1 else ''}" for number in numbers}
    rivals = [
        Rival(names[number], partial(_build, recordings, tokenizer, out, number), num_samples)
        for number, out in outs.items()
    ]
    columns = ("way", "cores", "M samples/s", "a core", "spread %", "times the first", "hours for 272 GB")
    table = BenchTable(f"Recordings to a corpus of beat tokens (median of {options.rounds})", columns)
    table.chart = Chart("bars", ("way",), ("M samples/s",), "M samples a second")
    used = {name: number for number, name in names.items()}
    if options.usual:
        rivals += _usual(recordings, tokenizer, folder, options.usual_s, table)
    found = race(rivals, options.rounds)
    first = found[rivals[0].name]
    for name, timed in found.items():
        num = min(used.get(name, 1), len(cores()))
        hours = ARCHIVE_BYTES / BYTES_PER_SAMPLE / timed.rate / 3600
        rates = timed.rate / 1e6, timed.rate / 1e6 / num, 100 * timed.spread
        table.add(name, num, *rates, timed.times_faster_than(first), hours)
    table.notes += [
        f"{num_samples:,} samples of first leads, beats detected, corpus written; all builds gave the same bytes.",
        "Hours: 272 GB at two bytes a sample and lead, every lead at this rate, the disk keeping up.",
    ]
    return table.close()


def _build(recordings: Path, tokenizer: BeatTokenizer, out: Path, processes: int) -> None:
    """Make a corpus where there was none; a single process on one core."""
    from heartlm.corpus.build import build_corpus

    shutil.rmtree(out, ignore_errors=True)
    where = on_one_core() if processes == 1 else contextlib.nullcontext()
    with where, contextlib.redirect_stderr(io.StringIO()):
        build_corpus([recordings], tokenizer, out, beats="detected", fit=False, processes=processes)


def _check_same(one: Path, other: Path) -> None:
    for name in FILES:
        if (one / name).read_bytes() != (other / name).read_bytes():
            raise HeartlmError(f"{name}: differs between numbers of processes: a defect of heartlm, report it")


def _usual(recordings: Path, tokenizer: BeatTokenizer, folder: Path, most_s: float, table: BenchTable) -> list[Rival]:
    """Usual scripts on the beginning of the first record they can read; first they must give heartlm's codes."""
    from bench.usual_script import detectors, differing_codes, tokenise_record
    from heartlm.ecg.database import open_database

    database = open_database(recordings)
    record_id = database.record_ids[0]
    recording = database.recording(record_id)
    if recording.path.suffix != ".hea":
        raise HeartlmError(f"{recording.path}: the usual script reads WFDB records alone: give --no-usual")
    differing, num_codes = differing_codes(database, record_id, tokenizer)
    num_samples = min(recording.num_samples, round(most_s * recording.rate_hz))
    table.notes.append(
        f"On the same beats of {record_id}, the usual script gives {differing} of {num_codes:,} codes otherwise."
    )
    record = str(recording.path.with_suffix(""))
    script = partial(tokenise_record, record, 0, tokenizer, folder / "usual.pickle", num_samples)
    return [
        Rival(f"usual script, {name}", partial(script, find=find), num_samples) for name, find in detectors().items()
    ]
