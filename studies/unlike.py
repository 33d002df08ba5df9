"""Recordings that `heartlm analyze` reports as unlike the training data of its models.

    python -m studies.unlike --data ../shared/data --cinc2017 DIR --ptb-xl DIR --ludb DIR --nstdb DIR

Limits are chosen on selection data: DS1 of mitdb and svdb in five patient-wise folds, each measured with a tokenizer
fitted on the other patients, beats detected, all leads. The usual range of a measure reaches to about the 99th
percentile over these whole recordings, that of amplitude farther: tokens hold no amplitude, only units count. Then the
same recordings are altered as headers and sensors alter them, and other databases are measured with the shipped
tokenizer: 5 minutes of the first lead, all of it where shorter. DS2 of mitdb is not looked at.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heartlm.analysis.analyze import Analyst
from heartlm.analysis.unlike import USUAL, measures_of_beats, medians, unlike
from heartlm.databases.database import Database, open_database
from heartlm.ecg.detect import detect_beats
from heartlm.ecg.recording import Annotations
from heartlm.tokenizers.base import Lead, Tokenizer
from heartlm.tokenizers.beat import BeatTokenizer
from lab.measure import Table
from lab.output import write_results
from lab.places import annotations_of, options
from recipes.beats import parts_of

FOLDS, PIECES, PIECE_S, LONGEST_S, NUM_DRAWN = 5, 10, 10.0, 300.0, 200
PACED = ("102", "104", "107", "217")
Signal = NDArray[np.float32]


def measured(tokenizer: Tokenizer, signal: Signal, rate_hz: float) -> NDArray[np.float64]:
    """As `Analyst` measures the lead that it chose."""
    beats = detect_beats(signal, rate_hz)
    known = Annotations(rate_hz, beats, np.full(len(beats), "Q", "<U1"), beats_labelled=False)
    if len(beats) < 2 or np.nanmin(signal) >= np.nanmax(signal):
        return np.empty((0, len(USUAL)))
    lead = Lead(known, signal)
    return measures_of_beats(tokenizer, lead, tokenizer.encode(lead))


def altered(signal: Signal, rate_hz: float, rng: np.random.Generator) -> Iterator[tuple[str, Signal, float]]:
    """A lead as wrong headers, saturation and other sensors give it: what was done, samples, samples a second."""
    for factor in (4.0, 2.0, 1.4, 0.7, 0.5):
        yield f"header with {factor:g} times the rate", signal, factor * rate_hz
    yield "µV read as mV", 1000 * signal, rate_hz
    yield "V read as mV", np.divide(signal, 1000, dtype=np.float32), rate_hz
    yield "inverted", -signal, rate_hz
    clipped = np.clip(signal, *np.nanpercentile(signal, [20, 92])).astype(np.float32)
    yield "clipped at the 20th and 92nd percentile", clipped, rate_hz
    yield "white noise alone", rng.normal(0, 0.3, len(signal)).astype(np.float32), rate_hz
    yield "random walk alone", np.cumsum(rng.normal(0, 0.02, len(signal))).astype(np.float32), rate_hz
    phase = np.arange(round(0.6 * rate_hz)) / round(0.6 * rate_hz)
    wave = np.where(phase < 0.6, np.sin(np.pi * phase) ** 2, 0) + 0.4 * np.exp(-(((phase - 0.6) / 0.12) ** 2))
    beats = np.zeros(len(signal))
    beats[detect_beats(signal, rate_hz)] = 1
    pulses = np.convolve(beats, wave)[: len(signal)] + rng.normal(0, 0.01, len(signal))
    yield "pulse waves at its beats", pulses.astype(np.float32), rate_hz


def first_lead(database: Database, record_id: str) -> tuple[Signal, float]:
    recording = database.recording(record_id)
    ecg = [lead for lead, unit in enumerate(recording.units) if unit == "mV"] or [0]
    stop = min(recording.num_samples, round(LONGEST_S * recording.rate_hz))
    return recording.signal(0, stop, ecg[:1])[0], recording.rate_hz


def main() -> None:
    settings = options(__doc__, "cinc2017", "ptb-xl", "ludb", "nstdb", data="mitdb, svdb and cudb").parse_args()
    databases = {name: open_database(settings.data / name) for name in ("mitdb", "svdb", "cudb")}
    rng = np.random.default_rng(0)
    of_kind: dict[tuple[str, str], list[NDArray[np.float64]]] = defaultdict(list)
    for splits in parts_of(settings.data, "folds", FOLDS).values():
        places = {of: [name.split("/") for name in splits if splits[name] == of] for of in ("train", "test")}

        def leads(chosen: list[list[str]]) -> Iterator[Lead]:
            for name, record_id in chosen:
                recording = databases[name].recording(record_id)
                for lead in range(len(recording.lead_names)):
                    yield Lead(annotations_of(recording), recording.signal(leads=[lead])[0], lead)

        tokenizer = BeatTokenizer()
        tokenizer.fit(leads(places["train"]))
        for lead in leads(places["test"]):
            signal, rate_hz = lead.signal_mv, lead.rate_hz
            if not np.nanmin(signal) < np.nanmax(signal):
                continue
            of_kind["held-out patients", "whole"].append(measured(tokenizer, signal, rate_hz))
            length = round(PIECE_S * rate_hz)
            for start in rng.integers(0, len(signal) - length, PIECES).tolist():
                piece = measured(tokenizer, signal[start : start + length], rate_hz)
                of_kind["held-out patients", "10 s"].append(piece)
            if lead.index == 0:
                for kind, other, other_hz in altered(signal[: round(LONGEST_S * rate_hz)], rate_hz, rng):
                    of_kind[kind, "5 min"].append(measured(tokenizer, other, other_hz))
    shipped = Analyst.load(Path("beats"), Path("af"), Path("waveform")).beats.tokenizer
    draw = np.random.default_rng(0)
    others: dict[str, tuple[Database, Sequence[str]]] = {"paced (mitdb)": (databases["mitdb"], PACED)}
    others["cudb (VF)"] = databases["cudb"], ()
    nstdb = open_database(settings.nstdb)
    others["noise of electrodes, muscles (nstdb)"] = nstdb, ("bw", "ma")
    others["118 with noise (nstdb)"] = nstdb, tuple(name for name in nstdb.record_ids if name.startswith("118"))
    for name, folder in (("ludb", settings.ludb), ("ptb-xl", settings.ptb_xl), ("cinc2017", settings.cinc2017)):
        others[name] = open_database(folder), ()
    for kind, (database, chosen) in others.items():
        ids = chosen or sorted(database.record_ids)
        if len(ids) > NUM_DRAWN:
            ids = sorted(draw.choice(ids, NUM_DRAWN, replace=False).tolist())
        for record_id in ids:
            of_kind[kind, "to 5 min"].append(measured(shipped, *first_lead(database, record_id)))
    ranges = Table("Measures", ("measure", "least usual", "largest usual", "1 to 99 %, whole", "1 to 99 %, 10 s"))
    for name, usual in USUAL.items():
        cells = []
        for span in ("whole", "10 s"):
            values = [found[name] for each in of_kind["held-out patients", span] if name in (found := medians(each))]
            cells.append("{:.3g} to {:.3g}".format(*np.percentile(values, [1, 99])))
        ranges.add(name, usual.low, usual.high, *cells)
    flagged = Table("Called unlike", ("recordings", "length", "number", "called unlike", *USUAL))
    for (kind, span), items in of_kind.items():
        parts = [[name for name in USUAL if _outside(each, name)] for each in items]
        by_measure = [f"{np.mean([name in part for part in parts]):.2f}" for name in USUAL]
        share = np.mean([bool(unlike(each)) for each in items])
        flagged.add(kind, span, len(items), f"{share:.3f}", *by_measure)
    write_results("unlike", "Recordings unlike those that the shipped models learned from", [ranges, flagged])


def _outside(measures: NDArray[np.float64], name: str) -> bool:
    found = medians(measures).get(name)
    return found is not None and not USUAL[name].low <= found <= USUAL[name].high


if __name__ == "__main__":
    main()
