"""Reading speed of WFDB records (signals, annotations, short records), compared with `wfdb`.

    python -m benchmarks.reading --data FOLDER --work FOLDER

`--data` contains mitdb and nsrdb. `--work` (1.3 GB, kept for the next run) gets simulated records: a thousand of ten
seconds and one of a day, all with 12 leads at 500 Hz in format 16. Every reader must give the same values before it is
timed. Files are in the page cache unless a row says otherwise. One core; about two minutes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import wfdb
from numpy.typing import NDArray

from heartlm.databases.database import open_database
from heartlm.formats.annotation_file import read_annotation_file
from heartlm.formats.wfdb import read_wfdb
from heartlm.formats.wfdb_header import adu_type, decode, read_header
from heartlm.kernels.library import chosen_variant, using, variants
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.synthesis import simulate_recording
from lab.measure import Table, interleaved, one_by_one, pin, rates, seconds
from lab.output import write_results
from lab.places import options

RATE_HZ = 500
LEADS = ("I", "II", "III", "aVR", "aVL", "aVF", "V1", "V2", "V3", "V4", "V5", "V6")
ADU_PER_MV = 1000
NUM_SHORT = 1000
DAY_SAMPLES = 24 * 3600 * RATE_HZ
SLICE_SAMPLES = 10 * RATE_HZ
PIECE_BYTES = 1 << 20


def write_record(folder: Path, name: str, adu: NDArray[np.int16], repeats: int = 1) -> None:
    """Write `adu` `[num_samples, 12]`, `repeats` times one after the other, as format 16."""
    with (folder / f"{name}.dat").open("wb") as stream:
        for _ in range(repeats):
            stream.write(adu.astype("<i2").tobytes())
        os.fsync(stream.fileno())
    sums = adu.sum(axis=0, dtype=np.int64) * repeats % 65536
    lines = [f"{name} {len(LEADS)} {RATE_HZ} {len(adu) * repeats}"]
    lines += [
        f"{name}.dat 16 {ADU_PER_MV}(0)/mV 16 0 {first} {total} 0 {lead}"
        for lead, first, total in zip(LEADS, adu[0], sums, strict=True)
    ]
    (folder / f"{name}.hea").write_text("\n".join(lines) + "\n")


def generate(work: Path) -> tuple[Path, Path]:
    """The folder of short records and the header of the day, made where they are not there."""
    short, day = work / "short", work / "day" / "day.hea"
    if not day.is_file():
        minutes = NUM_SHORT * SLICE_SAMPLES / RATE_HZ / 60 / 16
        signal, _ = simulate_recording(SimulationConfig(1, minutes, RATE_HZ, LEADS), 0, 0)
        adu = np.rint(signal.T * ADU_PER_MV).astype(np.int16)
        for folder in (short, day.parent):
            folder.mkdir(parents=True, exist_ok=True)
        for number in range(NUM_SHORT):
            begin = number * SLICE_SAMPLES % (len(adu) - SLICE_SAMPLES)
            write_record(short, f"r{number:04d}", adu[begin : begin + SLICE_SAMPLES])
        ten_minutes = adu[: 600 * RATE_HZ]
        assert len(ten_minutes) == 600 * RATE_HZ
        write_record(day.parent, day.stem, ten_minutes, DAY_SAMPLES // len(ten_minutes))
    return short, day


def first_hour(day: Path, folder: Path) -> Path:
    """The header of a record of the first hour of `day`."""
    folder.mkdir(parents=True, exist_ok=True)
    num_samples = 3600 * RATE_HZ
    adu = np.fromfile(day.with_suffix(".dat"), "<i2", num_samples * len(LEADS)).reshape(-1, len(LEADS))
    write_record(folder, "hour", adu)
    return folder / "hour.hea"


def read_adu(path: Path, variant: str) -> NDArray[Any]:
    """All leads of a record of one signal file, `[num_leads, num_samples]`."""
    header = read_header(path)
    file = header.files[0]
    columns = list(file.columns.values())
    out = np.empty((len(columns), header.num_samples), adu_type(file.format))
    with using(variant):
        for first, last, content, skip in file.frames(0, header.num_samples):
            decode(content, file.format, file.samples_per_frame, columns, out[:, first:last], skip)
    return out


def by_wfdb(path: Path, **options: Any) -> Any:
    return wfdb.rdrecord(str(path.with_suffix("")), **options)


def signals(title: str, paths: list[Path], rounds: int) -> Table:
    """Whole records, header included."""
    for path in paths:
        expected = by_wfdb(path, physical=False, return_res=16).d_signal.T
        assert all(np.array_equal(read_adu(path, variant), expected) for variant in variants()), path
        assert np.array_equal(read_wfdb(path).signal(), by_wfdb(path).p_signal.T.astype(np.float32)), path
    lengths = [(read_header(path).num_samples, len(read_header(path).signals)) for path in paths]
    total, one = sum(num * leads for num, leads in lengths), sum(num for num, _ in lengths)
    database = open_database(paths[0].parent)

    def opened(path: Path, leads: list[int] | None = None) -> object:
        return database.recording(path.stem).signal(leads=leads)

    all_leads: dict[str, Callable[[Path], object]] = {
        "wfdb, float64": by_wfdb,
        "wfdb, int16": partial(by_wfdb, physical=False, return_res=16),
        **{f"heartlm, int16, {variant}": partial(read_adu, variant=variant) for variant in variants()},
        "heartlm recording().signal(), float32 mV, checksums": opened,
    }
    one_lead: dict[str, Callable[[Path], object]] = {
        "wfdb, float64": partial(by_wfdb, channels=[0]),
        "wfdb, int16": partial(by_wfdb, channels=[0], physical=False, return_res=16),
        "heartlm recording().signal(leads=[0]), float32 mV, checksum": lambda path: opened(path, [0]),
    }
    ways = {("all", name): read for name, read in all_leads.items()}
    ways |= {("one", name): read for name, read in one_lead.items()}
    times = interleaved({str(key): one_by_one(read, paths) for key, read in ways.items()}, rounds)
    table = Table(
        f"{title}: {total / 1e6:.1f} M samples (median of {rounds})",
        ("leads", "reader", "M samples/s", "times wfdb as float64, the same leads"),
    )
    found = {key: rates(times[str(key)], (total if key[0] == "all" else one) / 1e6) for key in ways}
    for (leads, name), rate in found.items():
        table.add(leads, name, rate, rate.median / found[leads, "wfdb, float64"].median)
    return table.close()


def annotation_files(paths: list[Path], rounds: int) -> Table:
    """Whole annotation files to positions, codes and texts; heartlm's last row picks beats and rhythms too."""
    total = 0
    for path in paths:
        found, expected = read_annotation_file(path), wfdb.rdann(str(path.with_suffix("")), "atr")
        assert np.array_equal(found.sample, expected.sample) and found.symbol.tolist() == expected.symbol
        total += len(found.sample)
    databases = {path.parent: open_database(path.parent) for path in paths}
    opened = {path: databases[path.parent].recording(path.stem) for path in paths}
    rivals: dict[str, Callable[[Path], object]] = {
        "wfdb": lambda path: wfdb.rdann(str(path.with_suffix("")), "atr"),
        "heartlm": read_annotation_file,
        "heartlm, beats and rhythms": lambda path: databases[path.parent].annotations(path.stem, opened[path]),
    }
    table = Table(
        f"Annotations: {total} in {len(paths)} files (median of {rounds})", ("reader", "M annotations/s", "times wfdb")
    )
    times = interleaved({name: one_by_one(read, paths) for name, read in rivals.items()}, rounds)
    return table.add_rates(times, dict.fromkeys(rivals, total / 1e6), "wfdb")


def short_records(folder: Path, rounds: int) -> Table:
    """Records of ten seconds, one after the other; wfdb reads a tenth of them."""
    database = open_database(folder)
    paths = [folder / f"{name}.hea" for name in database.record_ids]
    for path in paths[:20]:
        assert np.array_equal(read_wfdb(path).signal(), by_wfdb(path).p_signal.T.astype(np.float32))
    few = paths[:: len(paths) // 100]
    read = partial(read_adu, variant=chosen_variant())
    rivals: dict[str, tuple[Callable[[], object], int]] = {
        "wfdb, float64": (one_by_one(by_wfdb, few), len(few)),
        "wfdb, int16": (one_by_one(partial(by_wfdb, physical=False, return_res=16), few), len(few)),
        "heartlm, header": (one_by_one(read_header, paths), len(paths)),
        "heartlm, header and int16, no checksums": (one_by_one(read, paths), len(paths)),
        "heartlm, float32 mV, checksums": (
            one_by_one(lambda name: database.recording(name).signal(), database.record_ids),
            len(paths),
        ),
        "heartlm, open_database() and every recording opened": (lambda: open_all(folder), len(paths)),
    }
    table = Table(
        f"Records of 10 s, {len(LEADS)} leads at {RATE_HZ} Hz, format 16 (median of {rounds})",
        ("reader", "records/s", "times wfdb"),
    )
    times = interleaved({name: work for name, (work, _) in rivals.items()}, rounds)
    return table.add_rates(times, {name: num for name, (_, num) in rivals.items()}, "wfdb, float64")


def open_all(folder: Path) -> None:
    database = open_database(folder)
    one_by_one(database.recording, database.record_ids)()


def uncached(path: Path, work: Callable[[], object], rounds: int) -> list[float]:
    """Seconds of `work` in every round, `path` out of the page cache before each."""
    times = []
    for _ in range(rounds):
        with path.open("rb") as stream:
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        times.append(seconds(work))
    return times


def plain(path: Path) -> None:
    """Read a file from end to end and do nothing with it."""
    buffer = bytearray(PIECE_BYTES)
    with path.open("rb", buffering=0) as stream:
        while stream.readinto(buffer):
            pass


def main() -> None:
    given = options(__doc__, "work", data="mitdb and nsrdb", rounds=5).parse_args()
    pin(0)
    short, day = generate(given.work)
    mitdb = sorted((given.data / "mitdb").glob("*.hea"))
    with_beats = [path.with_suffix(".atr") for path in mitdb[::4]] + sorted((given.data / "nsrdb").glob("*.atr"))[:2]
    tables = [
        signals("Format 212, records of mitdb", mitdb[::4], given.rounds),
        signals("Format 16, an hour of 12 leads", [first_hour(day, given.work / "hour")], given.rounds),
        annotation_files(with_beats, given.rounds),
        short_records(short, given.rounds),
    ]
    write_results("reading", "Reading recordings and annotations", tables)


if __name__ == "__main__":
    main()
