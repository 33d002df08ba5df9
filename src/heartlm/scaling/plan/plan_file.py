"""What `heartlm plan` reads: a campaign, the machines for it, and how long its experiments take on 1, 2, 4, … GPUs.

    campaign: CAMPAIGN.yaml           # a file, or the campaign itself, as launch.campaign describes it
    nodes: 4
    gpus_per_node: 4
    goal: soonest                     # or cheapest: least node-hours
    node_hours: 400                   # a budget; optional
    deadline_h: 48                    # optional
    beside: {4: 1.05}                 # by experiments sharing a node: how many times as long each takes; by default 1
    times:                            # of all experiments …
      speedup: {2: 1.6, 4: 1.9}       # over one GPU
      work: 1                         # on one GPU, in a unit of its own; or hours_on_one_gpu: 2.5
    of:                               # … and of those whose name, or stage, fits, the last one that does
      "pretrain-*": {hours: {1: 3.0, 2: 1.9}}
      finetune: {predicted: predicted.json, tokens: 2.0e8}
      evaluate: {hours: {1: 0.1}}

Times are given as `hours` by number of GPUs; as `hours_on_one_gpu`, or `work`, with `speedup`; or as `predicted`, a
file that `heartlm scale predict --out` wrote, or `measured`, a study's folder, with the `tokens` of the whole training.
Where one experiment is given in hours all must be: times are never made up.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heartlm.cluster.campaign.campaign import Campaign, Experiment, campaign_of, load_campaign
from heartlm.errors import HeartlmError
from heartlm.files import read_json, read_yaml
from heartlm.scaling.plan.schedule import Cluster, Job

FIELDS = ("campaign", "nodes", "gpus_per_node", "goal", "node_hours", "deadline_h", "beside", "times", "of")
TIME_FIELDS = ("hours", "hours_on_one_gpu", "work", "speedup", "predicted", "measured", "tokens")
GOALS = ("soonest", "cheapest")


@dataclass(frozen=True)
class PlanFile:
    """What is to be planned.

    Attributes:
        campaign: its experiments.
        jobs: the same, with their times.
        cluster: the machines.
        beside: how many times as long an experiment takes, by how many share a node; empty where nothing is known.
        in_hours: whether times are hours; otherwise they are units of work.
        cheapest: rather than soonest.
        node_hours: budget; None for any.
        deadline_h: None for any.
    """

    campaign: Campaign
    jobs: list[Job]
    cluster: Cluster
    beside: dict[int, float]
    in_hours: bool
    cheapest: bool = False
    node_hours: float | None = None
    deadline_h: float | None = None


def load_plan(path: Path) -> PlanFile:
    """Read a plan's file.

    Raises:
        HeartlmError: it cannot be read, or says something impossible; the text names the file and the field.
    """
    content = read_yaml(path, "a plan's YAML file")
    try:
        return _plan_of(content, path)
    except HeartlmError as error:
        raise HeartlmError(f"{path}: {error}") from error


def _plan_of(content: Any, path: Path) -> PlanFile:
    content = _mapping(content, "a plan", FIELDS)
    campaign = _campaign(content.get("campaign"), path)
    cluster = Cluster(_whole(content, "nodes"), _whole(content, "gpus_per_node"))
    goal = content.get("goal", "soonest")
    if goal not in GOALS:
        raise HeartlmError(f"goal: {goal!r} found, one of {', '.join(GOALS)} expected")
    times = [_times(each, _settings_of(each, content), path.resolve().parent, cluster) for each in campaign.experiments]
    kinds = {in_hours for _, in_hours in times}
    if len(kinds) > 1:
        raise HeartlmError("times: some experiments are given in hours, others as work: give all of them the same way")
    beside = _by_gpus(content.get("beside", {}), "beside")
    jobs = [
        Job(each.name, _shared(own, beside, cluster), each.needs)
        for each, (own, _) in zip(campaign.experiments, times, strict=True)
    ]
    in_hours = kinds.pop()
    budget, deadline = _positive(content, "node_hours"), _positive(content, "deadline_h")
    if not in_hours and (budget or deadline):
        raise HeartlmError("node_hours, deadline_h: they need times in hours: give hours, or hours_on_one_gpu")
    return PlanFile(campaign, jobs, cluster, beside, in_hours, goal == "cheapest", budget, deadline)


def _shared(times: Mapping[int, float], beside: Mapping[int, float], cluster: Cluster) -> dict[int, float]:
    """Times on nodes that are full of experiments of the same width."""

    def factor(gpus: int) -> float:
        known = [number for number in beside if number <= cluster.gpus_per_node // gpus]
        return beside[max(known)] if known else 1.0

    return {gpus: time * factor(gpus) for gpus, time in times.items()}


def _campaign(value: Any, path: Path) -> Campaign:
    folder = path.resolve().parent
    if isinstance(value, str):
        return load_campaign(folder / value)
    if value is None:
        raise HeartlmError("campaign: nothing found; a campaign's file, or the campaign itself, expected")
    try:
        return campaign_of(value, default_name=path.stem, folder=folder)
    except HeartlmError as error:
        raise HeartlmError(f"campaign: {error}") from error


def _settings_of(experiment: Experiment, content: Mapping[str, Any]) -> dict[str, Any]:
    """What the file says of the times of an experiment: one source of them, the most special, and its details."""
    found = dict(_mapping(content.get("times", {}), "times", TIME_FIELDS))
    for pattern, own in _mapping(content.get("of", {}), "of").items():
        own = _mapping(own, f"of.{pattern}", TIME_FIELDS)
        if fnmatch.fnmatchcase(experiment.name, pattern) or experiment.stage == pattern:
            sources = {"hours", "hours_on_one_gpu", "work", "predicted", "measured"}
            if sources & own.keys():
                found = {name: value for name, value in found.items() if name not in sources}
            found |= own
    return found


def _times(
    experiment: Experiment, settings: Mapping[str, Any], folder: Path, cluster: Cluster
) -> tuple[dict[int, float], bool]:
    """Times by number of GPUs, and whether they are hours."""
    name = experiment.name
    if "hours" in settings:
        times, in_hours = _by_gpus(settings["hours"], f"{name}: hours"), True
    elif "predicted" in settings or "measured" in settings:
        tokens = _positive(settings, "tokens")
        if tokens is None:
            raise HeartlmError(f"{name}: tokens: nothing found, those of the whole training expected")
        rates = _rates(experiment, settings, folder)
        times, in_hours = {ranks: tokens / rate / 3600 for ranks, rate in rates.items()}, True
    elif "work" in settings or "hours_on_one_gpu" in settings:
        in_hours = "hours_on_one_gpu" in settings
        work = _positive(settings, "hours_on_one_gpu" if in_hours else "work") or 0.0
        speedups = {1: 1.0} | _by_gpus(settings.get("speedup", {}), f"{name}: speedup")
        times = {gpus: work / speedup for gpus, speedup in speedups.items()}
    else:
        raise HeartlmError(f"{name}: nothing says how long it takes: give it hours, work, predicted or measured")
    if not any(map(cluster.fits, times)):
        raise HeartlmError(
            f"{name}: times for {', '.join(map(str, times))} GPUs found, for what the nodes have expected"
        )
    return times, in_hours


def _rates(experiment: Experiment, settings: Mapping[str, Any], folder: Path) -> dict[int, float]:
    """Tokens a second by number of GPUs, of cells of the experiment's stage and width."""
    window = experiment.run.fields.get("window")
    known = _predicted(folder / settings["predicted"]) if "predicted" in settings else _measured(folder, settings)
    fitting = [
        (cell, rate)
        for cell, rate in known
        if cell["stage"] == experiment.run.command and (window is None or cell["window"] == window)
    ]
    databases = {cell["database"] for cell, _ in fitting}
    if len(databases) > 1:
        own = Path(str(experiment.run.fields.get("corpus", ""))).name
        fitting = [(cell, rate) for cell, rate in fitting if cell["database"] == own]
    if not fitting:
        where = settings.get("predicted") or settings["measured"]
        raise HeartlmError(f"{experiment.name}: {where} knows nothing of {experiment.run.command} at width {window}")
    rates: dict[int, list[float]] = {}
    for cell, rate in fitting:
        rates.setdefault(cell["ranks"], []).append(rate)
    return {ranks: max(each) for ranks, each in sorted(rates.items())}


def _predicted(path: Path) -> list[tuple[dict[str, Any], float]]:
    try:
        return [(each["cell"], float(each["tokens_per_s"])) for each in read_json(path)["predictions"]]
    except (KeyError, TypeError, ValueError) as error:
        raise HeartlmError(f"{path}: no predictions; a file of  heartlm scale predict --out  expected") from error


def _measured(folder: Path, settings: Mapping[str, Any]) -> list[tuple[dict[str, Any], float]]:
    from heartlm.scaling.cell import load_measurements
    from heartlm.scaling.one_rank import steady
    from heartlm.scaling.simulate import typical_s

    found = steady(load_measurements(folder / settings["measured"]))
    return [
        (vars(each.cell), each.cell.tokens_per_step / typical_s(each.step_s)) for each in found if each.cell.copies == 1
    ]


def _mapping(value: Any, what: str, known: Iterable[str] | None = None) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise HeartlmError(f"{what}: {value!r} found, fields with their values expected")
    for key in value:
        if known is not None and key not in known:
            raise HeartlmError(f"{what}: {key} found, one of {', '.join(known)} expected")
    return {str(key): entry for key, entry in value.items()}


def _by_gpus(value: Any, what: str) -> dict[int, float]:
    """Numbers above 0 by number of GPUs."""
    if not isinstance(value, dict):
        raise HeartlmError(f"{what}: {value!r} found, a number for each number of GPUs expected, as in {{1: 3.0}}")
    for gpus, number in value.items():
        if not isinstance(gpus, int) or gpus < 1 or isinstance(number, bool) or not isinstance(number, int | float):
            raise HeartlmError(f"{what}: {gpus!r}: {number!r} found, a number for a number of GPUs expected")
        if not number > 0:
            raise HeartlmError(f"{what}: {gpus}: {number} found, more than 0 expected")
    return {gpus: float(number) for gpus, number in sorted(value.items())}


def _whole(content: Mapping[str, Any], name: str) -> int:
    value = content.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise HeartlmError(f"{name}: {value!r} found, a whole number of at least 1 expected")
    return value


def _positive(content: Mapping[str, Any], name: str) -> float | None:
    value = content.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise HeartlmError(f"{name}: {value!r} found, a number above 0 expected")
    return float(value)
