"""Input and output of `heartlm plan`: a campaign with machines and times, and the campaign with its planned GPUs.

    campaign: CAMPAIGN.yaml           # a file, or the campaign itself, as heartlm campaign --help describes it
    nodes: 4
    gpus_per_node: 4
    goal: soonest                     # or cheapest: least node-hours
    times:                            # of all experiments …
      speedup: {2: 1.6, 4: 1.9}       # over one GPU
      hours_on_one_gpu: 2.5
    of:                               # experiments by name or stage; the last match applies
      "pretrain-*": {hours: {1: 3.0, 2: 1.9}}
      finetune: {predicted: predicted.json, tokens: 2.0e8}
      evaluate: {hours: {1: 0.1}}

Give times as `hours` by number of GPUs; as `hours_on_one_gpu` with `speedup`; or as `predicted`, a file of
`heartlm scale predict --out`, or `measured`, a study folder, with the number of `tokens` of the whole training.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from heartlm.cluster.campaign.campaign import Campaign, Experiment, campaign_of, load_campaign
from heartlm.cluster.topology import time_limit
from heartlm.errors import HeartlmError
from heartlm.files import atomic_file, read_json, read_yaml
from heartlm.scaling.schedule import Cluster, PlannedJob, Schedule
from heartlm.typed import typed

SOURCES = {"hours", "hours_on_one_gpu", "predicted", "measured"}
"""Fields that each define the duration of an experiment; the others are details."""


@dataclass(frozen=True)
class _Times:
    hours: dict[int, float] | None = None
    hours_on_one_gpu: float | None = None
    speedup: dict[int, float] | None = None
    predicted: str | None = None
    measured: str | None = None
    tokens: float | None = None

    def given(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class PlanSettings:
    """Fields of a plan file."""

    campaign: Any
    nodes: int
    gpus_per_node: int
    goal: Literal["soonest", "cheapest"] = "soonest"
    times: _Times = field(default_factory=_Times)
    of: dict[str, _Times] = field(default_factory=dict)


def load_plan(path: Path) -> tuple[PlanSettings, Campaign, list[PlannedJob]]:
    """Read a plan file: its settings, its campaign, and the experiments with their times on GPUs that the nodes have.

    Raises:
        HeartlmError: the file cannot be read or has an invalid value; the text names the file and the field.
    """
    content = read_yaml(path, "a plan's YAML file")
    try:
        settings = typed(PlanSettings, content)
        times = {name: own.given() for name, own in {"times": settings.times, **settings.of}.items()}
        _check_positive({**vars(settings), "campaign": None, **times}, "")
        folder = path.resolve().parent
        if isinstance(settings.campaign, str):
            campaign = load_campaign(folder / settings.campaign)
        else:
            campaign = campaign_of(settings.campaign, default_name=path.stem, folder=folder)
        cluster, jobs = Cluster(settings.nodes, settings.gpus_per_node), list[PlannedJob]()
        for experiment in campaign.experiments:
            known = _times(experiment, settings, folder)
            fitting = {gpus: hours for gpus, hours in known.items() if cluster.fits(gpus)}
            if not fitting:
                gpus = ", ".join(map(str, known))
                raise HeartlmError(f"{experiment.name}: times for {gpus} GPUs found, for what the nodes have expected")
            jobs.append(PlannedJob(experiment.name, fitting, experiment.needs))
    except HeartlmError as error:
        raise HeartlmError(f"{path}: {error}") from error
    return settings, campaign, jobs


def _check_positive(value: Any, path: str) -> None:
    """Raise a HeartlmError that names the first value or GPU count within `value` that is not positive."""
    if isinstance(value, dict):
        for key, entry in value.items():
            _check_positive(key, path)
            _check_positive(entry, f"{path}.{key}".lstrip("."))
    elif isinstance(value, int | float) and not value > 0:
        raise HeartlmError(f"{path}: {value} found, more than 0 expected")


def _times(experiment: Experiment, content: PlanSettings, folder: Path) -> dict[int, float]:
    """Return the hours by number of GPUs, from the most specific source and its details."""
    settings = content.times.given()
    for pattern, times in content.of.items():
        if fnmatch.fnmatchcase(experiment.name, pattern) or experiment.stage == pattern:
            own = times.given()
            if SOURCES & own.keys():
                settings = {name: value for name, value in settings.items() if name not in SOURCES}
            settings |= own
    if "hours" in settings:
        return dict(sorted(settings["hours"].items()))
    if "hours_on_one_gpu" in settings:
        speedups = {1: 1.0} | settings.get("speedup", {})
        return {gpus: settings["hours_on_one_gpu"] / speedup for gpus, speedup in sorted(speedups.items())}
    if not SOURCES & settings.keys():
        raise HeartlmError(f"{experiment.name}: nothing says how long it takes: give it {', '.join(sorted(SOURCES))}")
    if "tokens" not in settings:
        raise HeartlmError(f"{experiment.name}: tokens: nothing found, those of the whole training expected")
    rates = _rates(experiment, settings, folder)
    return {ranks: settings["tokens"] / rate / 3600 for ranks, rate in rates.items()}


def _rates(experiment: Experiment, settings: Mapping[str, Any], folder: Path) -> dict[int, float]:
    """Return the tokens per second by number of GPUs, from cells of the experiment's stage and width."""
    from heartlm.scaling.cell import load_measurements
    from heartlm.scaling.one_rank import steady
    from heartlm.scaling.simulate import typical_s

    where = settings.get("predicted") or settings["measured"]
    if "predicted" in settings:
        path = folder / where
        try:
            known = [(each["cell"], float(each["tokens_per_s"])) for each in read_json(path)["predictions"]]
        except (KeyError, TypeError, ValueError) as error:
            raise HeartlmError(f"{path}: no predictions; a file of  heartlm scale predict --out  expected") from error
    else:
        found = [each for each in steady(load_measurements(folder / where)) if each.cell.copies == 1]
        known = [(vars(each.cell), each.cell.tokens_per_step / typical_s(each.step_s)) for each in found]
    command, window = experiment.run.command, experiment.run.fields.get("window")
    fitting = [(cell, rate) for cell, rate in known if cell["stage"] == command and window in (None, cell["window"])]
    if len({cell["database"] for cell, _ in fitting}) > 1:
        own = Path(str(experiment.run.fields.get("corpus", ""))).name
        fitting = [(cell, rate) for cell, rate in fitting if cell["database"] == own]
    if not fitting:
        raise HeartlmError(f"{experiment.name}: {where} knows nothing of {command} at width {window}")
    rates: dict[int, float] = {}
    for cell, rate in sorted(fitting, key=lambda each: each[0]["ranks"]):
        rates[cell["ranks"]] = max(rate, rates.get(cell["ranks"], 0.0))
    return rates


def write_campaign(path: Path, campaign: Campaign, schedule: Schedule, gpus_per_node: int) -> None:
    """Write the campaign with the topologies of a plan; experiments are in starting order.

    Args:
        path: output file; it must be in the campaign's folder, because paths are relative to it.
        campaign: planned campaign.
        schedule: schedule of the plan.
        gpus_per_node: number of GPUs per node.

    Raises:
        HeartlmError: `path` is in another folder or cannot be written.
    """
    if Path(path).resolve().parent != campaign.folder:
        raise HeartlmError(
            f"--out {path}: the paths of a campaign are relative to its folder: write to {campaign.folder}"
        )
    entries = list[dict[str, Any]]()
    for own in sorted(schedule.placed, key=lambda each: each.start):
        experiment = campaign[own.name]
        run = experiment.run
        plain = {name: str(value) if isinstance(value, Path) else value for name, value in run.fields.items()}
        entry = {"name": experiment.name, "stage": experiment.stage, "run": {"command": run.command, **plain}}
        entry |= {"needs": list(experiment.needs)} if experiment.needs else {}
        # One rank per GPU, or CPU ranks if the experiment has no GPU; the number of CPUs per rank is unchanged.
        topology, nodes = experiment.topology, max(1, len(own.gpus) // gpus_per_node)
        ranks = len(own.gpus) // nodes
        entry["topology"] = {
            "nodes": nodes,
            "gpus_per_node": ranks if topology.gpus_per_node else 0,
            "ranks_per_node": ranks,
            "cpus_per_task": max(1, topology.cpus_per_task // topology.ranks_per_node) * ranks,
            "time": time_limit(topology.time_s),
        }
        entries.append(entry)
    content = {"name": campaign.name, "experiments": entries}
    with atomic_file(path) as stream:
        stream.write("# Made by heartlm plan: GPUs and order of every experiment.\n")
        yaml.safe_dump(content, stream, sort_keys=False, allow_unicode=True, width=120)
