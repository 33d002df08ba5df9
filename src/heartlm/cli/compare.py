"""`heartlm compare`: compare two annotation files of a recording, or two folders of them, by ANSI/AAMI EC57."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heartlm.cli.options import check_out, parse
from heartlm.errors import HeartlmError

if TYPE_CHECKING:
    from heartlm.databases.database import Database


SCORES = {"qrs_se": "Q Se", "qrs_ppv": "Q +P", "v_se": "V Se", "v_ppv": "V +P", "s_se": "S Se", "s_ppv": "S +P"}
EPISODE_SCORES = {"episode_se": "ESe", "episode_ppv": "E+P", "se": "DSe", "ppv": "D+P"}
COUNTS = "Nn Sn Vn Fn On Ns Ss Vs Fs Os Nv Sv Vv Fv Ov No So Vo Fo"
"""Cells of the line format. F and Q share a row, as do O and X; n, f and q share a column, as do o and x."""


@dataclass(frozen=True)
class CompareOptions:
    """Options of `heartlm compare`.

    Attributes:
        reference: an annotation file, a recording (DATABASE/RECORD), or a folder of recordings.
        test: the file, recording or folder to compare with the reference; by default the same as the reference.
        annotators: file endings of the reference and the test, used if a recording or a folder is given.
        learning: length in seconds of the learning period at the start of each recording, which is not scored.
        window: largest distance in seconds between matching beats.
        recordings: folder of the recordings, if `reference` is a folder of their annotation files, as of reviews.
            Recordings without a reference are not compared.
        exclude_vf: exclude beats during ventricular fibrillation; by default VF marks are ignored.
        agreement: print Cohen's kappa of the two, of all classes and of each.
        out: JSON file for all results.
    """

    reference: Path
    test: Path | None = None
    annotators: str = "atr,hlm"
    learning: float = 300.0
    window: float = 0.15
    recordings: Path | None = None
    exclude_vf: bool = True
    agreement: bool = False
    out: Path | None = None


def run(arguments: Sequence[str]) -> int:
    """Compare the beats and episodes of two annotation files by ANSI/AAMI EC57.

    The results are equal to those of the WFDB programs bxb and epicmp. The exit status is 1 if recordings of a folder
    were left out; the last line counts them.

    Examples:
        heartlm compare mitdb/100.atr annotated/100.hlm
        heartlm compare mitdb annotated
        heartlm compare mitdb/100 --annotators atr,qrs
        heartlm compare cudb annotated --annotators atr,vf --out cudb.json
        heartlm compare reviews annotated --annotators reviewed.hlm,hlm --recordings mitdb --learning 0
        heartlm compare reviews-a reviews-b --annotators reviewed.hlm,reviewed.hlm --recordings mitdb --agreement
    """
    options = parse(CompareOptions, arguments, "compare", run, positionals=["reference", "test"])
    folder = options.reference if options.reference.is_dir() else options.reference.parent / "database.json"
    check_out(options.out, options.reference, options.test, folder, ending=".json")
    for name, value in (("learning", options.learning), ("window", options.window)):
        if not 0 <= value < 1e6:
            raise HeartlmError(f"{name}: {value:g} found, seconds expected, for example 0.15")
    from heartlm.evaluation.ec57 import LABELS, compare_record, summarize
    from heartlm.formats.annotation_file import read_annotation_file
    from heartlm.storage.atomic import write_json

    how: dict[str, Any] = {"learning_s": options.learning, "window_s": options.window, "exclude_vf": options.exclude_vf}
    records, left_out = [], list[dict[str, str]]()
    for database, record_id, reference, test in _pairs(options):
        try:
            files = read_annotation_file(reference), read_annotation_file(test)
            records.append(compare_record(database.recording(record_id), *files, **how))
        except HeartlmError as error:
            if not options.reference.is_dir():
                raise
            left_out.append({"record": record_id, "reason": str(error)})
    if not records:
        why = left_out[0]["reason"] if left_out else f"no files {options.annotators.split(',')[0]} of its recordings"
        raise HeartlmError(f"{options.reference}: no record compared: {why}")
    rows, summary = [each.to_json() for each in records], summarize(records)
    print("\n".join(_report(rows, summary)))
    if options.agreement:
        print("\n".join(_agreement(rows, summary)))
    for each in left_out:
        print(f"left out: {each['record']}: {each['reason']}")
    if options.out is not None:
        write_json(options.out, how | {"labels": LABELS, "records": rows, "left_out": left_out} | summary)
        print(options.out)
    if options.reference.is_dir():
        print(f"{len(rows):,} recordings compared, {len(left_out):,} left out")
    return 1 if left_out else 0


def _pairs(options: CompareOptions) -> Iterator[tuple[Database, str, Path, Path]]:
    """Yield each recording with its reference file and its test file."""
    from heartlm.databases.database import locate, open_database

    endings = options.annotators.split(",")
    if len(endings) != 2 or not all(each.replace(".", "").isalnum() for each in endings):
        raise HeartlmError(f"annotators: {options.annotators!r} found, two endings expected, for example atr,hlm")
    if options.test is None and options.reference.is_file():
        raise HeartlmError(f"test: no file to compare {options.reference} with; give it as the second word")
    other = options.test or options.reference
    if options.reference.is_dir():
        if not other.is_dir():
            raise HeartlmError(f"{other}: a folder expected, since {options.reference} is one")
        database = open_database(options.recordings or options.reference)
        for record_id in database.record_ids:
            stem = database.files(record_id).stem
            below = stem.relative_to(database.folder)

            def file_of(folder: Path, ending: str, below: Path = below) -> Path:
                """In the subfolder of the recording if there is such a file, otherwise in the folder itself."""
                files = [Path(f"{folder / base}.{ending}") for base in (below, below.name)]
                return files[not files[0].exists()]

            reference = Path(f"{stem}.{endings[0]}")
            if options.recordings is not None and not (reference := file_of(options.reference, endings[0])).exists():
                continue
            yield database, record_id, reference, file_of(other, endings[1])
        return
    database, record_id = locate(options.reference)
    if other.is_dir():
        other /= database.files(record_id).stem.name
    files = [
        path if path.is_file() else Path(f"{path}.{ending}")
        for path, ending in zip((options.reference, other), endings, strict=True)
    ]
    yield database, record_id, files[0], files[1]


def _report(rows: list[dict[str, Any]], summary: dict[str, Any]) -> Iterator[str]:
    """Yield one table of beats in the line format, and one of each kind of episode."""
    from heartlm.cli.score_table import aligned
    from heartlm.evaluation.ec57 import EPISODES

    gross, average = summary["gross"], summary["average"]
    table = [["beats", *COUNTS.split(), *SCORES.values(), "RR err", "Shutdown"]]
    for row in rows:
        error = "-" if row["rr_error_ms"] is None else f"{row['rr_error_ms']:.2f}"
        cells = [*_percent(row, SCORES), error, f"{row['shutdown_s']} s"]
        table.append([row["record"], *line_cells(row["matrix"]), *cells])
    if len(rows) > 1:
        table.append(["Gross", *line_cells(gross["matrix"]), *_percent(gross, SCORES)])
        table.append(["Average", *[""] * len(COUNTS.split()), *_percent(average, SCORES)])
    yield from aligned(table)
    for kind in EPISODES:
        if not gross[kind]["num_reference"] + gross[kind]["num_predicted"]:
            yield f"no {kind} in either"
            continue
        table = [[kind, "TPs", "FN", "TPp", "FP", "Reference", "Test", *EPISODE_SCORES.values()]]
        several = [("Gross", gross[kind])] if len(rows) > 1 else []
        for name, each in [*((row["record"], row[kind]) for row in rows), *several]:
            found, confirmed = each["num_found"], each["num_confirmed"]
            counts = (found, each["num_reference"] - found, confirmed, each["num_predicted"] - confirmed)
            spans = [f"{each[side]:.3f} s" for side in ("reference_s", "predicted_s")]
            table.append([name, *map(str, counts), *spans, *_percent(each, EPISODE_SCORES)])
        if several:
            table.append(["Average", *[""] * 6, *_percent(average[kind], EPISODE_SCORES)])
        yield from aligned(table)


def _agreement(rows: list[dict[str, Any]], summary: dict[str, Any]) -> Iterator[str]:
    """Yield the table of Cohen's kappa."""
    from heartlm.cli.score_table import aligned
    from heartlm.evaluation.agreement import agreement

    named = [(row["record"], row["matrix"]) for row in rows]
    named += [("Gross", summary["gross"]["matrix"])] if len(rows) > 1 else []
    table = [["agreement", "beats", "kappa", *"NSVF"]]
    for name, matrix in named:
        found = agreement(matrix)
        values = [found["kappa"], *map(found["by_class"].get, "NSVF")]
        table.append([name, f"{found['num_beats']:,}", *("-" if each is None else f"{each:.3f}" for each in values)])
    yield from aligned(table)


def line_cells(matrix: list[list[int]]) -> list[str]:
    """Return the cells of the line format, in the order of `COUNTS`."""
    # Indices into `ec57.LABELS`, N S V F Q O X.
    rows = {"N": [0], "S": [1], "V": [2], "F": [3, 4], "O": [5, 6]}
    columns = {"n": [0, 3, 4], "s": [1], "v": [2], "o": [5, 6]}
    return [str(sum(matrix[i][j] for i in rows[cell[0]] for j in columns[cell[1]])) for cell in COUNTS.split()]


def _percent(block: dict[str, Any], scores: Iterable[str]) -> list[str]:
    """Return scores in percent; the intervals of gross scores are only in the JSON file."""
    values = [score["value"] if isinstance(score, dict) else score for score in map(block.get, scores)]
    return ["-" if value is None else f"{100 * value:.2f}" for value in values]
