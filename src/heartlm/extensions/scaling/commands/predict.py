"""`heartlm scale predict`, `validate` and `hardware`: predict training on ranks and nodes that were not measured."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from heartlm.cli.options import check_out, existing, parse
from heartlm.errors import HeartlmError, require
from heartlm.storage.atomic import write_json

if TYPE_CHECKING:
    from heartlm.extensions.scaling.predict import Predictor


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """Options of `heartlm scale validate`.

    Attributes:
        study: folder of a study with measurements of one rank, and, to validate, of several.
        hardware: a machine by name (meluxina, dgx-h100, dgx-h200) or the JSON file of one, with its known links.
        all_reduce: file of an all-reduce fit within a node; by default, without --hardware, that of the study, which is
            measured on this machine if it is missing.
        all_reduce_between: file of an all-reduce fit between nodes, with one rank per node.
        out: JSON file for the result.
    """

    study: Path
    hardware: str | None = None
    all_reduce: Path | None = None
    all_reduce_between: Path | None = None
    out: Path | None = None


@dataclass(frozen=True, kw_only=True)
class StepOptions(StudyOptions):
    """Options of `heartlm scale predict`.

    Attributes:
        ranks: total number of processes on all nodes.
        nodes: number of nodes.
        scaling: strong splits the measured batch among ranks, weak gives each rank a batch of the measured size.
        bucket_mb: size in MiB of the gradient buckets.
        tokens: number of tokens of a whole training, to print its duration in hours.
    """

    ranks: list[int] = field(default_factory=lambda: [1, 2, 4, 8])
    nodes: list[int] = field(default_factory=lambda: [1])
    scaling: Literal["strong", "weak"] = "strong"
    bucket_mb: float = 25.0
    tokens: float | None = None


@dataclass(frozen=True)
class HardwareOptions:
    """Options of `heartlm scale hardware`.

    Attributes:
        out: output JSON file, for --all-reduce.
        ranks: number of processes in the all-reduce measurement; by default one per core or GPU, from 2 to 8.
    """

    out: Path
    ranks: int | None = None


def run_predict(arguments: Sequence[str]) -> int:
    """Predict the step time of DDP on any number of ranks and nodes from one-rank measurements.

    Examples:
        heartlm scale predict studies/laptop --ranks '[1, 2, 4, 8]'
        heartlm scale predict studies/a100 --ranks '[4, 8]' --nodes '[1, 2]' --hardware meluxina --out predicted.json
    """
    options = parse(StepOptions, arguments, "scale predict", run_predict, positionals=["study"])
    from heartlm.extensions.scaling.commands.table import prediction_table
    from heartlm.extensions.scaling.predict import Prediction, scaled

    require(options, lambda value: value > 0, "more than 0", "ranks", "nodes", "bucket_mb", "tokens")
    if not (options.ranks and options.nodes):
        raise HeartlmError("ranks, nodes: nothing found, at least one number expected")
    predictor = _predictor(options, max(options.ranks) > 1)
    kinds, left_out = list[list[Prediction]](), set[str]()
    for one in predictor.kinds.values():
        kinds.append([])
        for ranks, nodes in product(options.ranks, options.nodes):
            cell = scaled(one.largest(options.bucket_mb), ranks, nodes, options.scaling)
            if reason := predictor.unfit(cell):
                left_out.add(reason)
            else:
                kinds[-1].append(predictor.predict(cell))
    if not any(kinds):
        raise HeartlmError(f"nothing left to predict: {min(left_out)}")
    for reason in sorted(left_out):
        print(f"left out: {reason}", file=sys.stderr)
    content = {"predictions": [asdict(each) for kind in kinds for each in kind], "notes": predictor.notes}
    lines = [line for kind in kinds if kind for line in (*prediction_table(kind, options.tokens), "")]
    warnings = dict.fromkeys(text for kind in kinds for each in kind for text in each.warnings)
    _show(options, content, lines + [f"warning: {text}" for text in warnings])
    return 0


def run_validate(arguments: Sequence[str]) -> int:
    """Predict a study's cells of several ranks from its one-rank cells and compare them with the measurements.

    Examples:
        heartlm scale validate studies/laptop
        heartlm scale validate studies/laptop --out validation.json
    """
    options = parse(StudyOptions, arguments, "scale validate", run_validate, positionals=["study"])
    from heartlm.extensions.scaling.cell import load_measurements
    from heartlm.extensions.scaling.commands.table import validation_table
    from heartlm.extensions.scaling.predict import validate

    measurements = load_measurements(options.study)
    validation = validate(measurements, _predictor(options, True))
    _show(options, asdict(validation), validation_table(validation))
    return 0


def run_hardware(arguments: Sequence[str]) -> int:
    """Measure an all-reduce on this machine into a JSON file for --all-reduce.

    Examples:
        heartlm scale hardware this-machine.json --ranks 2
    """
    options = parse(HardwareOptions, arguments, "scale hardware", run_hardware, positionals=["out"])
    require(options, lambda value: value >= 2, "at least 2", "ranks")
    from heartlm.extensions.scaling.allreduce import measure_all_reduce

    fit = measure_all_reduce(options.ranks)
    fit.save(options.out)
    print(f"{fit.world_size} ranks, {fit.backend}: {1e6 * fit.latency_s:.0f} µs + {fit.bytes_per_s / 1e9:.2f} GB/s")
    print(options.out)
    return 0


def _predictor(options: StudyOptions, with_network: bool) -> Predictor:
    """Return a predictor; without a given fit and a machine, the study's fit is used, and measured if missing."""
    from heartlm.extensions.scaling.allreduce import AllReduceFit, measure_all_reduce
    from heartlm.extensions.scaling.cell import load_measurements
    from heartlm.extensions.scaling.hardware import load_hardware, network_of
    from heartlm.extensions.scaling.predict import Predictor

    measurements = load_measurements(existing(options.study, "folder of a study"))
    files = (options.study / name for name in ("study.json", "skipped.json", "measurements", "all_reduce.json"))
    hardware_file = Path(options.hardware) if options.hardware else None
    check_out(options.out, *files, hardware_file, options.all_reduce, options.all_reduce_between)
    hardware = load_hardware(options.hardware) if options.hardware else None
    within = options.all_reduce
    if within is None and hardware is None and with_network:
        within = options.study / "all_reduce.json"
        if not within.exists():
            fit = measure_all_reduce()
            fit.save(within)
            print(f"an all-reduce among {fit.world_size} ranks was measured here: {within}", file=sys.stderr)
    fits = [None if path is None else AllReduceFit.load(path) for path in (within, options.all_reduce_between)]
    network, fit_error, most = network_of(fits[0], fits[1], hardware)
    return Predictor(
        measurements,
        network,
        fit_error=fit_error,
        most_measured=most,
        most_per_node=hardware.get("devices_per_node") if hardware else None,
        notes=hardware.notes(measurements) if hardware else (),
    )


def _show(options: StudyOptions, content: object, lines: Sequence[str]) -> None:
    if options.out is not None:
        write_json(options.out, content)
    print("\n".join(lines))
