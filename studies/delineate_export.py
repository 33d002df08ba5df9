"""What the delineator loses as a file for other runtimes, in single precision and with 8-bit integers.

    python -m studies.delineate_export --ludb DIR --qtdb DIR --networks DIR --work DIR

The patients of fold 0 of LUDB and qtdb, by the network that was trained without them. They are selection data: settings
of the delineator were chosen by them. What the file answers for ten seconds replaces the network in heartlm.delineate;
longer recordings are cut into pieces of ten seconds of which the middle six are used. Scored as by `studies.delineate`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from heartlm.delineation.network import CELL_S, CLASSES, Network, load_network, num_cells, read_layers
from heartlm.monitor.export import export_delineator
from heartlm.monitor.sampled_statements import SECONDS
from lab.delineation_data import NAMES, Annotated, annotated_recordings
from lab.measure import Table, pin
from lab.output import write_results
from lab.places import options
from studies.delineate import COLUMNS, Counts, add_lead, by_heartlm

Floats = NDArray[np.float32]

FOLD = 0
MARGIN_S = 2
"""Seconds at either end of a piece that another piece answers for; the network reads 1.1 s to either side."""
LEAST = -13.8
"""Least logarithm that the kernel gives."""


class Exported(Network):
    """A file of `heartlm export` in place of the network; only `answers` differs."""

    def __init__(self, network: Path, path: Path, int8: bool) -> None:
        super().__init__(read_layers(network))
        self.network, self.path, self.int8 = network, path, int8
        self.sessions = dict[int, Any]()

    def answers(self, signals_mv: Floats, rate_hz: float) -> Floats:
        """Return the logarithms of probabilities relative to the most probable class."""
        out = np.empty((len(signals_mv), len(CLASSES), num_cells(signals_mv.shape[1], rate_hz)), np.float32)
        length, step = round(SECONDS * rate_hz), round((SECONDS - 2 * MARGIN_S) * rate_hz)
        last = max(0, signals_mv.shape[1] - length)
        for start in range(0, last + step, step):
            piece = signals_mv[:, start : start + length]
            short = ((0, 0), (0, length - piece.shape[1]))
            probability = self._probability(np.pad(piece, short, constant_values=np.nan), round(rate_hz))
            logarithm = np.log(probability / probability.max(axis=1, keepdims=True)).clip(LEAST)
            skipped = round(MARGIN_S / CELL_S) if start else 0
            first = round(start / rate_hz / CELL_S) + skipped
            num = min(out.shape[2] - first, logarithm.shape[2] - skipped)
            out[:, :, first : first + num] = logarithm[:, :, skipped : skipped + num]
        return out

    def _probability(self, leads_mv: Floats, rate_hz: int) -> Floats:
        if rate_hz not in self.sessions:
            export_delineator(self.network, self.path, 1, self.int8, rate_hz)
            self.sessions[rate_hz] = onnxruntime.InferenceSession(str(self.path), providers=["CPUExecutionProvider"])
        return np.concatenate([self.sessions[rate_hz].run(None, {"samples_mv": lead[None]})[0] for lead in leads_mv])


def scored(title: str, records: list[Annotated], networks: dict[str, Network]) -> Table:
    """Score each network on all leads of the records."""
    table = Table(title, ("method", *COLUMNS))
    counts = {name: {kind: Counts() for kind in range(len(NAMES))} for name in networks}
    for record in records:
        references = [np.where(waves < 0, np.nan, waves.astype(np.float64)) for waves in record.waves]
        for name, network in networks.items():
            found = by_heartlm(network)(record.signals(), record.rate_hz)
            for reference, waves in zip(references, found, strict=True):
                add_lead(counts[name], record, reference, waves)
    for kind, wave in enumerate(NAMES):
        for name, of_kinds in counts.items():
            table.add(name, wave, *of_kinds[kind].cells(has_extra=True))
    return table


def main() -> None:
    """Export, score, write."""
    settings = options(__doc__, "ludb", "qtdb", "networks", "work").parse_args()
    settings.work.mkdir(parents=True, exist_ok=True)
    pin(0)
    path = settings.networks / f"{FOLD}.safetensors"
    fp32, int8 = (Exported(path, settings.work / f"{name}.onnx", name == "int8") for name in ("fp32", "int8"))
    networks = {"heartlm": load_network(path), "file, fp32": fp32, "file, int8": int8}
    records = [each for each in annotated_recordings(settings.ludb, settings.qtdb) if each.fold == FOLD]
    tables, sizes = list[Table](), Table("Sizes, one lead", ("file", "Hz", "MB"))
    for database, title in (("ludb", "LUDB, 12 leads"), ("qtdb", "qtdb, each lead")):
        own = [each for each in records if each.database == database]
        for each in (fp32, int8):
            each.sessions.clear()
        tables.append(scored(f"{title}, {len(own)} recordings of fold {FOLD}", own, networks))
        for name, each in (("fp32", fp32), ("int8", int8)):
            (rate_hz,) = each.sessions
            sizes.add(name, rate_hz, f"{each.path.stat().st_size / 1e6:.3f}")
    versions = {"onnxruntime": onnxruntime.__version__}
    write_results("delineate_export", "The delineator as a file for other runtimes", [*tables, sizes], versions)


if __name__ == "__main__":
    main()
