"""`heartlm compare` against the WFDB programs bxb, epicmp and sumstats: every number, on real recordings.

    python benchmarks/ec57.py PROGRAMS DATA [--predicted FOLDER] [--seeds 3]

PROGRAMS is the folder of the programs (https://github.com/bemoody/wfdb, no part of heartlm), DATA holds mitdb, cudb
and, if at hand, afdb. Test files are
- what heartlm's detector finds, named by a rule on RR interval and amplitude,
- the reference with beats moved, lost, added and renamed, and marks of VF, AF and noise moved, lost and doubled, by
  `--seeds` seeds, the second of them at 1,000 ticks a second,
- files `RECORD.hlm` of mitdb in `--predicted`.
A number is equal if it is the same to the last digit that the program prints. Exit status 1 where one is not. One core,
two minutes.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import wfdb

from heartlm.cli.compare import SCORES, line_cells
from heartlm.cli.main import main as heartlm
from heartlm.ecg.database import open_database
from heartlm.ecg.detect import detect_beats
from heartlm.ecg.readers.annotation_file import read_annotation_file
from heartlm.evaluation.ec57 import LABELS

RESULTS = Path(__file__).parent / "results"


def by_rule(signal_mv: np.ndarray, rate_hz: float) -> tuple[np.ndarray, list[str]]:
    """Beats of the detector; V: early and large, or very large; S: early; Q: very small."""
    beats = detect_beats(signal_mv, rate_hz)
    height = np.array([np.ptp(signal_mv[max(at - 20, 0) : at + 20]) for at in beats.tolist()])
    rr, typical = np.diff(beats, prepend=2 * beats[0] - beats[1]), np.median(height)
    early, large = rr < 0.85 * np.median(rr), height > 1.3 * typical
    choices = [(early & large) | (height > 2 * typical), early, height < typical / 3]
    return beats, np.select(choices, ["V", "S", "Q"], "N").tolist()


def disturbed(reference: Path, rate_hz: float, length: int, seed: int) -> dict[str, Any]:
    """Annotations of the reference, moved, lost, added and renamed, as arguments of `wfdb.wrann`."""
    file, rng = read_annotation_file(reference), np.random.default_rng(seed)
    entries: list[tuple[int, str, int, str]] = []
    for index, (time, symbol) in enumerate(zip(file.sample.tolist(), file.symbol.tolist(), strict=True)):
        is_mark = symbol in "+[]~"
        draw, far = rng.random(), rng.normal(0, (3 if is_mark else 0.06) * rate_hz)
        if draw < 0.06:
            continue
        moved = int(time + (far if is_mark or draw > 0.8 else rng.normal(0, 0.01 * rate_hz)))
        if not is_mark and rng.random() < 0.1:
            symbol = str(rng.choice(list("NLRaVFJASEj/QrBen?f!|")))
        entries.append((moved, symbol, int(file.subtype[index]), file.aux.get(index, "")))
        if rng.random() < 0.05:
            entries.append((moved + int(rng.normal(0, 0.3 * rate_hz)), symbol, 0, file.aux.get(index, "")))
    for _ in range(6):
        start, stop = np.sort(rng.integers(0, length, 2)).tolist()
        stop = min(stop, start + int(rng.exponential(20) * rate_hz))
        kind = rng.random()
        if kind < 0.4:
            entries += [(start, "[", 0, ""), (stop, "]", 0, "")][: rng.integers(1, 3)]
        elif kind < 0.7:
            entries += [(start, "+", 0, "(AFIB"), (stop, "+", 0, "(N")]
        else:
            entries += [(start, "~", -1, ""), (stop, "~", 0, "")][: rng.integers(1, 3)]
    entries = sorted(each for each in entries if 0 < each[0] < length)
    return {
        "sample": np.array([each[0] for each in entries]),
        "symbol": [each[1] for each in entries],
        "subtype": np.array([each[2] for each in entries]),
        "aux_note": [each[3] for each in entries],
    }


def prepare(database: Path, folder: Path, seeds: int, predicted: Path | None) -> list[str]:
    """Copy headers and reference annotations, write the test annotations, and name the test annotators."""
    folder.mkdir()
    names = [f"rnd{chr(97 + seed)}" for seed in range(seeds)]
    for reference in sorted(database.glob("*.atr")):
        shutil.copy(reference, folder)
        record = reference.stem
        if (header := reference.with_suffix(".hea")).exists():
            shutil.copy(header, folder)
        else:  # afdb: no header, so that its length is that of its beats
            beats = wfdb.rdann(str(reference.with_suffix("")), "qrs").sample
            (folder / f"{record}.hea").write_text(f"{record} 0 250 {beats[-1] + 250}\n")
        head = wfdb.rdheader(str(folder / record))
        for seed, name in enumerate(names):
            content = disturbed(reference, head.fs, head.sig_len, seed)
            if seed == 1:
                content["sample"] = np.rint(content["sample"] * (1000 / head.fs)).astype(np.int64)
            wfdb.wrann(record, name, write_dir=str(folder), fs=1000 if seed == 1 else head.fs, **content)
        if header.exists():
            recording = open_database(database).recording(record)
            beats, symbols = by_rule(recording.signal(leads=[0])[0], recording.rate_hz)
            wfdb.wrann(record, "det", beats, symbols, write_dir=str(folder), fs=recording.rate_hz)
            (folder / f"{record}.dat").symlink_to((database / f"{record}.dat").resolve())
        if predicted is not None and (own := predicted / f"{record}.hlm").exists():
            shutil.copy(own, folder)
    return [name for name in (*names, "det", "hlm") if any(folder.glob(f"*.{name}"))]


class Programs:
    """The WFDB programs, run in `folder`."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self.programs, self.folder = programs.resolve(), folder

    def run(self, name: str, *arguments: str) -> str:
        """What a program prints."""
        command, environment = [str(self.programs / name), *arguments], {"WFDB": "."}
        done = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=True)
        return done.stdout


def milliseconds(text: str) -> int:
    """Of a time such as `1:02:03.456`, `2:03.456` or `3.456`."""
    return round(1000 * sum(float(part) * 60**place for place, part in enumerate(reversed(text.split(":")))))


class Check:
    """Counts of numbers that are equal, and what is not."""

    def __init__(self) -> None:
        self.equal: Counter[str] = Counter()
        self.different: list[str] = []

    def __call__(self, kind: str, where: str, ours: list[Any], theirs: list[Any]) -> None:
        if len(ours) != len(theirs):
            self.different.append(f"{where} {kind}: {len(ours)} numbers, {len(theirs)} expected")
        for place, (own, other) in enumerate(zip(ours, theirs, strict=False)):
            self.equal[kind] += own == other
            if own != other:
                self.different.append(f"{where} {kind} {place}: {own}, {other} expected")


def text(value: float | None, digits: int = 2) -> str:
    """A share as bxb prints it."""
    return "-" if value is None else f"{100 * value:.{digits}f}"


def whole(part: int, of: int) -> str:
    """A share as epicmp prints it."""
    return str(int(100.0 * part / of + 0.5)) if of else "-"


def check_record(check: Check, programs: Programs, row: dict[str, Any], name: str) -> None:
    """One record against bxb (matrix and line format) and epicmp (both formats)."""
    rate_hz = wfdb.rdheader(str(programs.folder / row["record"])).fs
    arguments, where = ("-r", row["record"], "-a", "atr", name), f"{row['record']}.{name}"
    printed = programs.run("bxb", *arguments, "-S", "-")
    cells = [int(cell) for line in re.findall(r"^ [NSVFQOX] \|(.*)$", printed, re.M) for cell in line.split()]
    ours = [row["matrix"][i][j] for i in range(7) for j in range(7) if (LABELS[i] not in "OX" or LABELS[j] not in "OX")]
    check("bxb matrix", where, ours, cells)
    shares = re.findall(r"(?:sensitivity|predictivity): +([\d.]+|-)", printed)
    check("bxb Se, +P", where, [text(row[score]) for score in SCORES], shares)
    error = "-" if row["rr_error_ms"] is None else f"{row['rr_error_ms']:.2f}"
    check("bxb RR error", where, [error], re.findall(r"RR interval error: +([\d.]+|-)", printed))
    check("bxb shutdown", where, [str(row["shutdown_s"])], re.findall(r"shutdown time: +(-?\d+) seconds", printed))
    line, shutdown = f"line-{name}.txt", f"shut-{name}.txt"
    programs.run("bxb", *arguments, "-L", line, shutdown)
    last = (programs.folder / line).read_text().splitlines()[-1].split()
    if sum(map(len, last[:20])) + 19 < 100:  # its columns touch where numbers are large
        check("bxb line", where, [*line_cells(row["matrix"]), *(text(row[score]) for score in SCORES), error], last[1:])
    for kind, option in (("AF", "-A"), ("VF", "-V")):
        block = row[kind]
        printed = programs.run("epicmp", *arguments, option, "-")
        pairs = re.findall(r"\((\S+)/(\S+)\)", printed)
        counts = [block["num_found"], block["num_reference"], block["num_confirmed"], block["num_predicted"]]
        check("epicmp episodes", where, counts, [int(value) for pair in pairs[:2] for value in pair])
        times = [block["both_s"], block["reference_s"], block["both_s"], block["predicted_s"]]
        theirs = [milliseconds(value) for pair in pairs[2:] for value in pair]
        check("epicmp durations", where, [int(1000 * time + 0.5) for time in times], theirs)
        programs.run("epicmp", *arguments, "-L", option, f"{kind}-{name}.txt")
        last = (programs.folder / f"{kind}-{name}.txt").read_text().splitlines()[-1].split()
        ticks = [round(time * rate_hz) for time in times]
        ours = [whole(*counts[:2]), whole(*counts[2:]), whole(*ticks[:2]), whole(*ticks[2:])]
        check("epicmp Se, +P", where, ours, last[5:9])


def check_sums(check: Check, programs: Programs, found: dict[str, Any], name: str, where: str) -> None:
    """All records against sumstats.

    sumstats leaves F beats called S out of the +P of S, since the line format has F and Q as one; bxb counts them.
    Its shares of time come from rounded percentages, so that the episodes alone are compared.
    """
    gross, average = found["gross"], found["average"]
    lines = programs.run("sumstats", f"line-{name}.txt").splitlines()
    picked = {line.split()[0]: line.split()[1:] for line in lines if line.startswith(("Sum", "Gross", "Average"))}
    check("sumstats of bxb", where, line_cells(gross["matrix"]), picked["Sum"])
    for title, values in (("Gross", [gross[score]["value"] for score in SCORES]), ("Average", list(average.values()))):
        check("sumstats of bxb", where, [text(value) for value in values[:5]], picked[title][:5])
    for kind in ("AF", "VF"):
        lines = programs.run("sumstats", f"{kind}-{name}.txt").splitlines()
        picked = {line.split()[0]: line.split()[1:] for line in lines if line.startswith(("Sum", "Gross", "Average"))}
        block = gross[kind]
        counts = [block["num_found"], block["num_reference"], block["num_confirmed"], block["num_predicted"]]
        ours = [counts[0], counts[1] - counts[0], counts[2], counts[3] - counts[2]]
        check("sumstats of epicmp", where, [str(value) for value in ours], picked["Sum"][:4])
        for title, scores in (("Gross", block), ("Average", average[kind])):
            values = [
                scores[score]["value"] if title == "Gross" else scores[score] for score in ("episode_se", "episode_ppv")
            ]
            ours = ["-" if value is None else f"{100 * value:.0f}" for value in values]
            check("sumstats of epicmp", where, ours, picked[title][:2])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--predicted", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    rows, failed = [], False
    for database in ("mitdb", "cudb", "afdb"):
        if not (options.data / database).is_dir():
            continue
        with TemporaryDirectory() as temporary:
            folder = Path(temporary) / database
            predicted = options.predicted if database == "mitdb" else None
            for name in prepare(options.data / database, folder, options.seeds, predicted):
                out, check = Path(temporary) / "found.json", Check()
                heartlm(["compare", str(folder), "--annotators", f"atr,{name}", "--out", str(out)])
                found = json.loads(out.read_text())
                programs = Programs(options.programs, folder)
                for row in found["records"]:
                    check_record(check, programs, row, name)
                check_sums(check, programs, found, name, f"{database}.{name}")
                print("\n".join(check.different[:20]), file=sys.stderr)
                rows.append((database, name, len(found["records"]), dict(check.equal), len(check.different)))
                failed |= bool(check.different)
    kinds = list(dict.fromkeys(kind for row in rows for kind in row[3]))
    lines = ["| database | test | records | " + " | ".join(kinds) + " | different |", "|---" * (len(kinds) + 4) + "|"]
    for database, name, count, equal, different in rows:
        cells = " | ".join(f"{equal.get(kind, 0):,}" for kind in kinds)
        lines.append(f"| {database} | {name} | {count} | {cells} | {different} |")
    about = "Numbers of `heartlm compare` that are equal to those of the WFDB programs (`python benchmarks/ec57.py`)."
    table = "\n".join([about, "", *lines, ""])
    (RESULTS / "ec57.md").write_text(table)
    print(table)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
