"""`heartlm predict`: annotate a recording and write a WFDB annotation file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from heartlm.cli.options import parse

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from heartlm.ecg.recording import Annotations


@dataclass(frozen=True)
class PredictOptions:
    """Options of `heartlm predict`.

    Attributes:
        run: run folder of a fine-tuned model, or name of a shipped model: af, beats, beats-causal, statements or
            waveform.
        record: a WFDB recording, DATABASE/RECORD; a file ending is ignored.
        out: folder for the annotation file; by default the current folder.
        annotator: ending of the annotation file; an existing file is replaced only if it ends in .hlm.
        beats: source of beat positions; auto uses annotated positions if there are any, and detects beats otherwise.
        lead: lead to annotate; by default MLII, II or the first ECG lead.
        checkpoint: the checkpoint with the lowest validation loss, or the last one.
        device: device of the model; auto uses a GPU if there is one.
    """

    run: Path
    record: Path
    out: Path = Path()
    annotator: str = "hlm"
    beats: Literal["auto", "annotated", "detected"] = "auto"
    lead: str | None = None
    checkpoint: Literal["best", "last"] = "best"
    device: Literal["auto", "cpu", "cuda"] = "auto"


def run(arguments: Sequence[str]) -> int:
    """Annotate a recording with a fine-tuned model and write a WFDB annotation file, which any WFDB viewer opens.

    A model of the statements task writes a table of probabilities instead; of a recording of more than a minute, a
    second one with a row for each ten seconds.

    Examples:
        heartlm predict beats mitdb/100
        heartlm predict runs/beats mitdb/100
        heartlm predict runs/beats mitdb/100 --beats detected --lead V5 --out annotated
        heartlm predict runs/af afdb/04015
        heartlm predict runs/vf cudb/cu01
    """
    options = parse(PredictOptions, arguments, "predict", run, positionals=["run", "record"])
    from heartlm import api
    from heartlm.formats.write_annotations import write_annotations
    from heartlm.labels.waveform import CLASSES
    from heartlm.storage.atomic import write_csv

    how = {name: getattr(options, name) for name in ("beats", "lead", "checkpoint", "device")}
    result = api.annotate(options.run, options.record, **how)
    if result.statements:
        print(f"{result.database}/{result.record}, leads {result.lead_name}")
        path = options.out / f"{Path(result.record).name}.statements.csv"
        if result.pieces is not None and result.piece_s is not None:
            return _print_pieces(result.statements, result.pieces, result.piece_s, path)
        return _print_statements(result.statements, path)
    path = write_annotations(options.out, Path(result.record).name, result.found, options.annotator)
    lead = f", lead {result.lead_name}" if result.lead_name else ""
    print(f"{result.database}/{result.record}{lead}: {result.known.num_beats:,} beats ({result.known.source})")
    for fault in result.faults:
        print(f"  damaged: {fault}")
    for reason, count in result.known.ignored.items():
        print(f"  left out: {count} annotations {reason}")
    if not result.found.rhythms and (num := result.known.num_beats - result.found.num_beats):
        print(f"  left out: {num:,} detections that are artefacts, not heartbeats")
    beats = Counter(result.found.symbol.tolist()).most_common()
    print("  " + ("  ".join(f"{name} {count:,}" for name, count in beats) or rhythm_shares(result.found)))
    print(path)
    if result.seconds is not None:
        rows = enumerate(result.seconds.tolist())
        table = [{"time_s": second} | dict(zip(CLASSES, row, strict=True)) for second, row in rows]
        print(write_csv(table, path.with_name(path.name + ".csv"), ["time_s", *CLASSES], digits=4))
    return 0


def _print_statements(statements: Mapping[str, tuple[float, float]], path: Path) -> int:
    """Print the statements above their thresholds and write all with their probabilities."""
    from heartlm.ecg.statements import words_of
    from heartlm.storage.atomic import write_csv

    facts = zip(statements, words_of(statements), statements.values(), strict=True)
    ordered = sorted(facts, key=lambda fact: -fact[2][0])
    for name, words, (probability, threshold) in ordered:
        if probability >= threshold:
            print(f"  {name}: {words} ({probability:.2f})")
    columns = ["statement", "words", "probability", "threshold"]
    rows = [dict(zip(columns, (*each[:2], *each[2]), strict=True)) for each in ordered]
    print(write_csv(rows, path, columns, digits=4))
    return 0


def _print_pieces(
    statements: Mapping[str, tuple[float, float]],
    pieces: NDArray[np.float64],
    piece_s: NDArray[np.float64],
    path: Path,
) -> int:
    """Print the statements that any piece makes, and write how many make each, and the probabilities of each piece."""
    from heartlm.ecg.statements import words_of
    from heartlm.storage.atomic import write_csv

    rows = list[dict[str, str | float]]()
    for name, words, by_piece in zip(statements, words_of(statements), pieces.T, strict=True):
        probability, threshold = statements[name]
        present = by_piece >= threshold
        first_s = float(piece_s[present.argmax(), 0]) if present.any() else ""
        row: dict[str, str | float] = {"statement": name, "words": words}
        row |= {"probability": probability, "threshold": threshold}
        rows.append(row | {"share": float(present.mean()), "first_s": first_s})
    rows.sort(key=lambda row: -float(row["share"]))
    for row in rows:
        if row["first_s"] != "":
            when = f"{float(row['share']):.1%} of the time, first at {float(row['first_s']):g} s"
            print(f"  {row['statement']}: {row['words']} ({when})")
    print(write_csv(rows, path, list(rows[0]), digits=4))
    columns = ["start_s", "stop_s", *statements]
    lines = [[*span, *line] for span, line in zip(piece_s.tolist(), pieces.tolist(), strict=True)]
    table = [dict(zip(columns, line, strict=True)) for line in lines]
    print(write_csv(table, path.with_suffix(".pieces.csv"), columns, digits=4))
    return 0


def rhythm_shares(predicted: Annotations) -> str:
    """Return the duration and number of spans of each rhythm as text."""
    total = sum(span.stop - span.start for span in predicted.rhythms)
    samples, spans = Counter[str](), Counter[str]()
    for span in predicted.rhythms:
        samples[span.name] += span.stop - span.start
        spans[span.name] += 1
    return "  ".join(
        f"{name} {samples[name] / predicted.rate_hz / 60:.1f} min ({100 * samples[name] / total:.1f} %) in {num} spans"
        for name, num in spans.most_common()
    )
