"""A campaign: many experiments that depend on each other, described in one YAML file.

    CAMPAIGN.yaml ─► experiments (run, needs, topology) ─┬─► local cores, in parallel         campaign.local
                                                         └─► SLURM jobs                       campaign.slurm
                                                                     │
    results and CAMPAIGN.campaign/ (attempts, logs) ─► state of each ┴─► table                campaign.state

An experiment is one run file: the fields of one command, as in a RUN.yaml. A campaign lists experiments one by one,
or generates them from a grid:

    name: widths                            # by default the name of the file
    topology: {gpus_per_node: 1, cpus_per_task: 8, time: "02:00:00"}      # default topology
    grid:                                   # every list is an axis
      database: [mitdb, svdb]
      window: [128, 256, 512]
    stages:
      pretrain:                             # it mentions only {window}: three experiments
        run: {command: pretrain, corpus: corpora/all, window: "{window}", out: "runs/w{window}"}
      finetune:                             # one for each window and database: six
        run: {command: finetune, run: "{pretrain.out}", task: beats, corpus: "corpora/{database}",
              window: "{window}", out: "runs/{database}-w{window}"}
        topology: {gpus_per_node: 1, cpus_per_task: 8, time: "00:30:00"}
      evaluate:
        run: {command: evaluate, run: "{finetune.out}", on: "corpora/{database}", name: test}
    experiments:                            # in addition to stages, or instead of them
      - name: deep
        stage: pretrain                     # by default the command
        run: {command: pretrain, corpus: corpora/all, depth: 12, out: runs/deep}
        needs: []                           # names of other experiments
        topology: {nodes: 2, gpus_per_node: 4, time: "06:00:00"}              # other fields: the default topology

A stage has one experiment for each combination of the axes that its text mentions. `{pretrain.out}` is a field of
the experiment of an earlier stage with the same values on the common axes; it also adds the axes of that stage. A text
that consists only of `{window}` becomes the value itself, for example a number. Experiments are named after the stage
and the values, or by a `name` of the stage, such as `"{database}-{window}"`.

An experiment needs the experiments in its `needs` (in a stage, `needs: [pretrain]` selects those with the same
values on the common axes) and every experiment whose result it reads. The default `name` of an evaluation is the name
of the experiment. Paths are relative to the folder of the campaign file, where all commands run. A topology has the
fields of `cluster.topology.Topology`, with `time` in SLURM's format for `time_s`, and by default one rank per GPU.
Missing fields are taken from the campaign's topology; an evaluation uses one node, GPU and rank of it.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from heartlm.errors import HeartlmError
from heartlm.extensions.cluster.campaign.grid import Axes, CampaignStage, ExperimentDraft, drafts_of_stages, texts_in
from heartlm.extensions.cluster.run_file import RunFile
from heartlm.extensions.cluster.topology import Topology, seconds_of
from heartlm.storage.reading import read_yaml
from heartlm.storage.typed import typed

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=+-]*")


@dataclass(frozen=True)
class Experiment:
    """One run of a campaign.

    Attributes:
        name: unique name in the campaign, also used in file names.
        stage: common name of similar experiments.
        run: command and its fields.
        topology: allocation that the run uses.
        needs: names of the experiments that must be done first.
    """

    name: str
    stage: str
    run: RunFile
    topology: Topology
    needs: tuple[str, ...] = ()

    @property
    def result(self) -> Path:
        """Folder of the result."""
        assert self.run.out is not None
        is_evaluation = self.run.command == "evaluate"
        return self.run.out / "scores" / str(self.run.fields["name"]) if is_evaluation else self.run.out


@dataclass(frozen=True)
class Campaign:
    """Experiments, each after those that it needs.

    Attributes:
        name: name of the campaign.
        folder: base folder of relative paths.
        experiments: experiments in starting order.
        path: path of the campaign file, if it was read from one.
    """

    name: str
    folder: Path
    experiments: tuple[Experiment, ...]
    path: Path | None = None

    @property
    def state_folder(self) -> Path:
        """Folder of attempts, logs and scripts."""
        return self.folder / f"{self.name}.campaign"

    def __getitem__(self, name: str) -> Experiment:
        for experiment in self.experiments:
            if experiment.name == name:
                return experiment
        raise HeartlmError(f"{name!r} found, one of {', '.join(each.name for each in self.experiments)} expected")


def load_campaign(path: Path) -> Campaign:
    """Read a campaign file.

    Raises:
        HeartlmError: the file cannot be read or has an invalid value; the text names the file and the field.
    """
    content = read_yaml(path, "a campaign's YAML file")
    try:
        campaign = campaign_of(content, default_name=Path(path).stem, folder=Path(path).resolve().parent)
    except HeartlmError as error:
        raise HeartlmError(f"{path}: {error}") from error
    return replace(campaign, path=Path(path).resolve())


@dataclass(frozen=True)
class CampaignSettings:
    """Fields of a campaign file."""

    name: str | None = None
    topology: dict[str, Any] = field(default_factory=dict)
    grid: Axes = field(default_factory=dict)
    stages: dict[str, CampaignStage] = field(default_factory=dict)
    experiments: list[ExperimentDraft] = field(default_factory=list)


def campaign_of(content: Any, *, default_name: str, folder: Path) -> Campaign:
    """Return the campaign described by `content`, which was read from YAML.

    Raises:
        HeartlmError: a value is invalid; the text names the field.
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
        path = os.path.normpath(experiment.result)
        if path in writer:
            raise HeartlmError(f"{writer[path]} and {experiment.name} both write {path}: give each a place of its own")
        writer[path] = experiment.name
    return Campaign(
        named(settings.name or default_name, "name"),
        folder,
        in_order([_with_needs_of_paths(experiment, writer) for experiment in experiments]),
    )


def named(value: str, what: str) -> str:
    """Return `value` if it is usable as a file name.

    Raises:
        HeartlmError: it is not.
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
            time = fields.pop("time")  # YAML reads 12:00:00 as a number of seconds
            fields["time_s"] = seconds_of(time) if isinstance(time, str) else time
        # Last, so that an error names what the user wrote.
        fields.setdefault("ranks_per_node", fields.get("gpus_per_node") or 1)
        topology = typed(Topology, fields)
    except HeartlmError as error:
        raise HeartlmError(f"{name}: topology: {error}") from error
    stage = named(draft.stage or run.command, f"{name}: stage")
    return Experiment(name, stage, run, topology, tuple(draft.needs))


def _with_needs_of_paths(experiment: Experiment, writer: dict[str, str]) -> Experiment:
    """Add the experiments whose results it reads to the needs; `writer` maps each path to its writer."""
    read = texts_in({name: value for name, value in experiment.run.fields.items() if name != "out"})
    writers = [writer.get(os.path.normpath(text)) for text in read if text]
    others = [name for name in writers if name is not None and name != experiment.name]
    return replace(experiment, needs=tuple(dict.fromkeys((*experiment.needs, *others))))


def in_order(experiments: Sequence[Experiment]) -> tuple[Experiment, ...]:
    """Sort the experiments topologically; keep the listed order where possible.

    Raises:
        HeartlmError: the needs contain a cycle.
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
