"""A campaign: many experiments that feed one another, described in one YAML file.

    CAMPAIGN.yaml ─► experiments (run, needs, topology) ─┬─► local cores, some at a time      campaign.local
                                                         └─► SLURM job arrays                 campaign.arrays
                                                                     │
    results and CAMPAIGN.campaign/ (attempts, logs) ─► state of each ┴─► table                campaign.state

An experiment is one run file: the fields of one command, as they stand in a RUN.yaml. A campaign lists experiments one
by one, or makes them from a grid:

    name: widths                            # by default the name of the file
    topology: {gpus_per_node: 1, cpus_per_task: 8, time: "02:00:00"}      # where none is given below
    grid:                                   # every list is an axis
      database: [mitdb, svdb]
      window: [128, 256, 512]
    stages:
      pretrain:                             # this one mentions {window} alone: three experiments
        run: {command: pretrain, corpus: corpora/all, window: "{window}", out: "runs/w{window}"}
      finetune:                             # one for each window and database: six
        run: {command: finetune, run: "{pretrain.out}", task: beats, corpus: "corpora/{database}",
              window: "{window}", out: "runs/{database}-w{window}"}
        topology: {gpus_per_node: 1, cpus_per_task: 8, time: "00:30:00"}
      evaluate:
        run: {command: evaluate, run: "{finetune.out}", on: "corpora/{database}", name: test}
    experiments:                            # with stages, or instead of them
      - name: deep
        stage: pretrain                     # by default the command
        run: {command: pretrain, corpus: corpora/all, depth: 12, out: runs/deep}
        needs: []                           # names of other experiments
        topology: {nodes: 2, gpus_per_node: 4, time: "06:00:00"}              # the rest as above

A stage is done once for every combination of the axes that its text mentions; `{pretrain.out}` is a field of the
experiment of an earlier stage that agrees on all axes, and mentions that stage's axes too. A text that is nothing but
`{window}` becomes the value itself, a number for example. Names are made of the stage and the values, or follow from a
`name` of the stage, such as `"{database}-{window}"`.

An experiment needs those it names in `needs` (of a stage: `needs: [pretrain]`, those that agree on the common axes) and
every one whose result it reads. An evaluation without a `name` gets that of the experiment. Paths are relative to the
folder of the campaign's file, where all commands run. A topology has the fields of `cluster.topology.Topology`, `time`
for `time_s` as SLURM writes it, and by default a rank for each GPU; fields not given are those of the campaign's own,
of which an evaluation takes one node, GPU and rank. With  runs_per_gpu: 4  four runs of one GPU each share one.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from heartlm.cluster.campaign.grid import Axes, CampaignStage, ExperimentDraft, drafts_of_stages, texts_in
from heartlm.cluster.run_file import RunFile
from heartlm.cluster.topology import Topology, seconds_of
from heartlm.errors import HeartlmError
from heartlm.files import read_yaml
from heartlm.typed import typed

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+-]*")


@dataclass(frozen=True)
class Experiment:
    """One run of a campaign.

    Attributes:
        name: of its own in the campaign; names files.
        stage: what it is called together with its like.
        run: the command and its fields.
        topology: where it runs.
        needs: names of the experiments that have to be done before.
    """

    name: str
    stage: str
    run: RunFile
    topology: Topology
    needs: tuple[str, ...] = ()

    @property
    def result(self) -> Path:
        """The folder that is its result."""
        assert self.run.out is not None
        is_evaluation = self.run.command == "evaluate"
        return self.run.out / "scores" / str(self.run.fields["name"]) if is_evaluation else self.run.out


@dataclass(frozen=True)
class Campaign:
    """Experiments, each after those that it needs.

    Attributes:
        name: of the campaign.
        folder: that paths are relative to.
        experiments: in the order in which they should begin.
        path: of the file, if it was read from one.
    """

    name: str
    folder: Path
    experiments: tuple[Experiment, ...]
    path: Path | None = None

    @property
    def state_folder(self) -> Path:
        """Where attempts, logs and scripts are kept."""
        return self.folder / f"{self.name}.campaign"

    def __getitem__(self, name: str) -> Experiment:
        for experiment in self.experiments:
            if experiment.name == name:
                return experiment
        raise HeartlmError(f"{name!r} found, one of {', '.join(each.name for each in self.experiments)} expected")


def load_campaign(path: Path) -> Campaign:
    """Read a campaign's file.

    Raises:
        HeartlmError: it cannot be read, or says something impossible; the text names the file and the field.
    """
    content = read_yaml(path, "a campaign's YAML file")
    try:
        campaign = campaign_of(content, default_name=Path(path).stem, folder=Path(path).resolve().parent)
    except HeartlmError as error:
        raise HeartlmError(f"{path}: {error}") from error
    return replace(campaign, path=Path(path).resolve())


@dataclass(frozen=True)
class CampaignSettings:
    """The fields of a campaign's file."""

    name: str | None = None
    topology: dict[str, Any] = field(default_factory=dict)
    grid: Axes = field(default_factory=dict)
    stages: dict[str, CampaignStage] = field(default_factory=dict)
    experiments: list[ExperimentDraft] = field(default_factory=list)


def campaign_of(content: Any, *, default_name: str, folder: Path) -> Campaign:
    """The campaign that `content`, read from YAML, describes.

    Raises:
        HeartlmError: it says something impossible; the text names the field.
    """
    settings = typed(CampaignSettings, content)
    drafts = [*drafts_of_stages(settings.grid, settings.stages), *settings.experiments]
    if not drafts:
        raise HeartlmError("no experiments: give stages, or experiments")
    experiments = [_experiment(draft, settings.topology) for draft in drafts]
    for name, count in Counter(experiment.name for experiment in experiments).items():
        if count > 1:
            raise HeartlmError(f"{name}: {count} experiments of this name, each needs one of its own")
    known = {experiment.name for experiment in experiments}
    writer: dict[str, str] = {}
    for experiment in experiments:
        if unknown := [need for need in experiment.needs if need not in known]:
            raise HeartlmError(f"{experiment.name}: needs {unknown[0]!r}, which is no experiment of this campaign")
        place = os.path.normpath(experiment.result)
        if place in writer:
            raise HeartlmError(
                f"{writer[place]} and {experiment.name} both write {place}: give each a place of its own"
            )
        writer[place] = experiment.name
    return Campaign(
        named(settings.name or default_name, "name"),
        folder,
        in_order([_with_needs_of_paths(experiment, writer) for experiment in experiments]),
    )


def named(value: str, what: str) -> str:
    """`value`, which should do as the name of a file.

    Raises:
        HeartlmError: it does not.
    """
    if not _NAME.fullmatch(value):
        raise HeartlmError(f"{what}: {value!r} found; letters, digits and . _ = + - expected")
    return value


def _experiment(draft: ExperimentDraft, general: dict[str, Any]) -> Experiment:
    run = RunFile.of(draft.run, draft.name)
    name = named(draft.name, f"name of an experiment of {draft.stage or run.command}")
    if run.command == "evaluate" and run.fields.get("name") is None:
        run = run.having(name=name)
    if run.out is None:
        raise HeartlmError(
            f"{name}: no {'run' if run.command == 'evaluate' else 'out'}, which {run.command} needs here"
        )
    fields = {**general, **draft.topology}
    if not run.is_training:
        one = {"nodes": 1, "ranks_per_node": 1, "gpus_per_node": 1 if general.get("gpus_per_node") else 0}
        fields = {**general, **one, **draft.topology}
    try:
        if "time" in fields:
            time = fields.pop("time")  # YAML reads 12:00:00 as seconds
            fields["time_s"] = seconds_of(time) if isinstance(time, str) else time
        topology = typed(Topology, {"ranks_per_node": fields.get("gpus_per_node") or 1, **fields})
    except HeartlmError as error:
        raise HeartlmError(f"{name}: topology: {error}") from error
    if topology.max_nodes or (not run.is_training and topology.world_size > 1):
        expected = "a fixed number of nodes" if topology.max_nodes else f"one process, as heartlm {run.command} is,"
        raise HeartlmError(f"{name}: topology: {topology.words} found, {expected} expected")
    stage = named(draft.stage or run.command, f"{name}: stage")
    return Experiment(name, stage, run, topology, tuple(draft.needs))


def _with_needs_of_paths(experiment: Experiment, writer: dict[str, str]) -> Experiment:
    """The experiment, needing also those whose result it reads; `writer` has who writes each place."""
    read = texts_in({name: value for name, value in experiment.run.fields.items() if name != "out"})
    writers = [writer.get(os.path.normpath(text)) for text in read if text]
    others = [name for name in writers if name is not None and name != experiment.name]
    return replace(experiment, needs=tuple(dict.fromkeys((*experiment.needs, *others))))


def in_order(experiments: Sequence[Experiment]) -> tuple[Experiment, ...]:
    """The experiments as they were listed, but none before one that it needs.

    Raises:
        HeartlmError: some need one another in a circle.
    """
    waiting = list(experiments)
    done: dict[str, Experiment] = {}
    while waiting:
        ready = next((each for each in waiting if all(need in done for need in each.needs)), None)
        if ready is None:
            raise HeartlmError(f"{', '.join(each.name for each in waiting)}: need one another in a circle")
        waiting.remove(ready)
        done[ready.name] = ready
    return tuple(done.values())
