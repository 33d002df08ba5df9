"""Input and output of `heartlm plan`: a campaign with machines and times, and the campaign with its planned GPUs.

    campaign: CAMPAIGN.yaml           # a file, or the campaign itself, as heartlm campaign --help describes it
    nodes: 4
    gpus_per_node: 4
    goal: soonest                     # or cheapest: least node-hours
    hours: {1: 2.5, 2: 1.6, 4: 1.3}   # of an experiment, by number of GPUs
    of:                               # hours of experiments by name or stage; the last match applies
      "pretrain-*": {1: 3.0, 2: 1.9}
      evaluate: {1: 0.1}

`heartlm scale predict --tokens` prints hours. For trainings on one GPU, rates measured on it give the hours, except
where an entry under `of` matches:

    rates: results/gpu-CARD.json      # written by benchmarks/gpu.py; relative to the plan file
    tokenizer: beat                   # that of the corpora
    tokens: {"*": 3129212}            # of one pass of an experiment, by name or stage; the last match applies
    passes: 1
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from heartlm.errors import HeartlmError
from heartlm.extensions.cluster.campaign.campaign import Campaign, Experiment, campaign_of, load_campaign
from heartlm.extensions.scaling.rates import MeasuredRate, load_rates, seconds_of, training_of
from heartlm.extensions.scaling.schedule import Cluster, PlannedJob, Schedule
from heartlm.storage.atomic import write_text
from heartlm.storage.reading import read_yaml
from heartlm.storage.typed import typed
from heartlm.system.progress import hours_minutes_seconds

Entry = TypeVar("Entry")


@dataclass(frozen=True)
class PlanSettings:
    """Fields of a plan file."""

    campaign: Any
    nodes: int
    gpus_per_node: int
    goal: Literal["soonest", "cheapest"] = "soonest"
    hours: dict[int, float] = field(default_factory=dict)
    of: dict[str, dict[int, float]] = field(default_factory=dict)
    rates: str | None = None
    tokenizer: str = "beat"
    tokens: dict[str, float] = field(default_factory=dict)
    passes: float = 1


def load_plan(path: Path, passes: float | None = None) -> tuple[PlanSettings, Campaign, list[PlannedJob]]:
    """Read a plan file: its settings, its campaign, and the experiments with their times on GPUs that the nodes have.

    Args:
        path: plan file.
        passes: number of passes over the tokens, instead of that of the file.

    Raises:
        HeartlmError: the file cannot be read or has an invalid value; the text names the file and the field.
    """
    content = read_yaml(path, "a plan's YAML file")
    try:
        settings = typed(PlanSettings, content)
        _check_positive(asdict(replace(settings, campaign=None)), "")
        if passes is not None:
            settings = replace(settings, passes=passes)
        folder = path.resolve().parent
        rates = None if settings.rates is None else load_rates(path.parent / settings.rates)
        if isinstance(settings.campaign, str):
            campaign = load_campaign(folder / settings.campaign)
        else:
            campaign = campaign_of(settings.campaign, default_name=path.stem, folder=folder)
        cluster, jobs = Cluster(settings.nodes, settings.gpus_per_node), list[PlannedJob]()
        for experiment in campaign.experiments:
            known = _hours(experiment, campaign, settings, rates)
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


def _hours(
    experiment: Experiment, campaign: Campaign, settings: PlanSettings, rates: Sequence[MeasuredRate] | None
) -> dict[int, float]:
    """Return the hours by number of GPUs: of the last matching entry, of the rates, or the general ones."""
    own_hours = _last_match(experiment, settings.of)
    if own_hours is None and rates is not None and experiment.run.is_training:
        tokens, run = _last_match(experiment, settings.tokens), experiment.run
        if tokens is None:
            raise HeartlmError(f"tokens: no entry matches {experiment.name}, the tokens of one pass expected")
        try:
            shape = run.fields
            if run.command == "finetune":  # it has the size of the model that it starts from
                sources = [campaign[need].run for need in experiment.needs]
                models = [source.fields for source in sources if source.command == "pretrain"]
                if not models:
                    raise HeartlmError("run: no pretraining of this campaign found, one expected for its depth")
                shape = {**shape, "depth": models[0].get("depth"), "width": models[0].get("width")}
            training = training_of(run.command, shape, settings.tokenizer)
            return {1: seconds_of(training, tokens * settings.passes, rates) / 3600}
        except HeartlmError as error:
            raise HeartlmError(f"{experiment.name}: {error}") from error
    hours = own_hours or settings.hours
    if not hours:
        raise HeartlmError(f"{experiment.name}: nothing says how long it takes: give hours by number of GPUs")
    return dict(sorted(hours.items()))


def _last_match(experiment: Experiment, entries: Mapping[str, Entry]) -> Entry | None:
    """Return the last of `entries` whose pattern is the stage of the experiment or matches its name."""
    matching = [
        entry
        for pattern, entry in entries.items()
        if fnmatch.fnmatchcase(experiment.name, pattern) or experiment.stage == pattern
    ]
    return matching[-1] if matching else None


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
    for placed in sorted(schedule.placed, key=lambda each: each.start):
        experiment = campaign[placed.name]
        run = experiment.run
        plain = {name: str(value) if isinstance(value, Path) else value for name, value in run.fields.items()}
        entry = {"name": experiment.name, "stage": experiment.stage, "run": {"command": run.command, **plain}}
        entry |= {"needs": list(experiment.needs)} if experiment.needs else {}
        # One rank per GPU, or CPU ranks if the experiment has no GPU; the number of CPUs per rank is unchanged.
        topology, nodes = experiment.topology, max(1, len(placed.gpus) // gpus_per_node)
        ranks = len(placed.gpus) // nodes
        entry["topology"] = {
            "nodes": nodes,
            "gpus_per_node": ranks if topology.gpus_per_node else 0,
            "ranks_per_node": ranks,
            "cpus_per_task": max(1, topology.cpus_per_task // topology.ranks_per_node) * ranks,
            "time": hours_minutes_seconds(topology.time_s),
        }
        entries.append(entry)
    content = {"name": campaign.name, "experiments": entries}
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=120)
    write_text(path, f"# Made by heartlm plan: GPUs and order of every experiment.\n{text}")
