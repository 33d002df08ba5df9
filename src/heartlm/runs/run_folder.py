"""Run folders: all files of a training run. Imports no torch.

run.json            kind, command, parent, start and end time
config.yaml         resolved settings
environment.json    machine, versions, git revision
data.json           manifests of the corpora it was trained on
metrics.jsonl       one line of numbers every few steps
spans/              timeline of each step, one file per rank, with --spans
profile/            profile of a few steps, with --profile
tensorboard/        copy of the metrics, with --tensorboard
wandb/              copy of the metrics, with --wandb
measured/           durations of the steps on each rank, with --measure
checkpoints/        state for resuming
models/best, last   models for inference
tokenizer/          tokenizer of the model
scores/NAME/        scores of an evaluation

A `ResultFolder` has the first three files and metrics.jsonl.
"""

from __future__ import annotations

import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NotRequired, TypedDict

import numpy as np
import yaml

from heartlm import __version__
from heartlm.corpus.corpus import Corpus, open_corpus
from heartlm.corpus.folds import Fold, in_fold
from heartlm.corpus.schema import Manifest
from heartlm.distributed.ranks import Ranks
from heartlm.errors import HeartlmError
from heartlm.models.pretrained import is_saved, is_shipped, shipped_name
from heartlm.storage.atomic import append_line, atomic_file, write_json
from heartlm.storage.reading import read_json, read_json_lines, read_yaml
from heartlm.storage.typed import is_number, typed
from heartlm.system.cores import usable_cpus

SCHEMA_VERSION = 1
"""The version of `run.json` and `scores.json`."""

MAX_ANCESTORS = 8
"""Maximum number of parent runs to follow, in case of a cycle."""


class RunAbout(TypedDict, total=False):
    """Entries of `run.json` that heartlm reads; the file has further entries for information."""

    schema: int
    name: str
    kind: str
    objective: str | None
    task: str | None
    parent: str | None
    from_scratch: bool
    steps: int
    manifest_hash: str
    finished: str | None


class TrainedOn(TypedDict):
    """A corpus in `data.json`; a shipped model has no path, but lists its training patients."""

    path: str | None
    manifest: Manifest
    patients: NotRequired[list[str]]


class ResultFolder:
    """Folder of settings and metrics: base class of those of training runs, and of extensions.

    Files are read on first access and cached; create another object to read them again.

    Attributes:
        path: the folder.
        config_file: path of the resolved settings.
        metrics_file: path of the metrics, JSON lines.
    """

    kind_of_folder: ClassVar[str] = "run"
    made_by: ClassVar[str] = "pretrain"

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.config_file, self.metrics_file = self.path / "config.yaml", self.path / "metrics.jsonl"

    def __fspath__(self) -> str:
        """The path, so that a folder stands where functions take one."""
        return str(self.path)

    # --- read -------------------------------------------------------------------------------------------------------

    @cached_property
    def run_json(self) -> dict[str, Any]:
        """Content of `run.json`; older versions of heartlm wrote fewer entries.

        Raises:
            HeartlmError: the file is missing or has another schema version.
        """
        file = self.path / "run.json"
        if not file.is_file():
            kind, command = self.kind_of_folder, self.made_by
            raise HeartlmError(f"{self.path}: no run.json, so not a {kind} folder: make one with  heartlm {command}")
        about = dict[str, Any](read_json(file, RunAbout))
        _check_schema(file, about)
        return about

    @property
    def is_finished(self) -> bool:
        """Whether the run is complete; false if there is no run yet."""
        return (self.path / "run.json").is_file() and bool(self.run_json.get("finished"))

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Content of `config.yaml`.

        Raises:
            HeartlmError: the file cannot be read.
        """
        return typed(dict[str, Any], read_yaml(self.config_file, "the settings of a run"), self.config_file)

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Content of `environment.json`; empty if the file is missing."""
        file = self.path / "environment.json"
        return read_json(file, dict[str, Any]) if file.is_file() else {}

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`, in order."""
        return self._lines[0]

    @property
    def num_torn_lines(self) -> int:
        """Number of unreadable lines of `metrics.jsonl`, for example after the process was killed."""
        return self._lines[1]

    @cached_property
    def _lines(self) -> tuple[list[dict[str, Any]], int]:
        return read_json_lines(self.metrics_file)

    def check_unfinished(self) -> None:
        """Raise a HeartlmError if the run is complete."""
        if finished := self.run_json.get("finished"):
            raise HeartlmError(
                f"{self.path}: finished on {finished}, nothing to resume: start another {self.kind_of_folder}"
            )

    # --- write ------------------------------------------------------------------------------------------------------

    def write_settings(self, settings: Mapping[str, Any]) -> None:
        """Write settings and environment of a new run.

        Raises:
            HeartlmError: the folder is not empty, or cannot be written.
        """
        kind = self.kind_of_folder
        if (self.path / "run.json").exists():
            resume = f"continue it with --resume {self.path}, or remove it"
            hint = "choose another --out" if self.is_finished else resume
            raise HeartlmError(f"{self.path} holds a {kind} already: {hint}")
        if self.path.exists() and not self.config_file.exists() and (self.path.is_file() or any(self.path.iterdir())):
            raise HeartlmError(f"{self.path} exists and is no {kind}: choose another --out")
        with atomic_file(self.config_file) as stream:
            # `safe_dump` takes plain types alone: JSON makes lists of tuples, and texts of paths.
            plain = json.loads(json.dumps(settings, default=lambda path: str(path.resolve())))
            yaml.safe_dump(plain, stream, sort_keys=False)
        write_json(self.path / "environment.json", environment(settings["device"]))

    def write_about(self, about: Mapping[str, Any]) -> None:
        """Write `run.json`, as the last file before the first step; the run can then be resumed."""
        command = shlex.join(["heartlm", *sys.argv[1:]])
        known = {"schema": SCHEMA_VERSION, "name": self.path.name, "created": _now(), "finished": None}
        write_json(self.path / "run.json", {**known, "command": command, **about})

    def finish(self) -> None:
        """Mark the run as complete."""
        write_json(self.path / "run.json", {**self.run_json, "finished": _now()})
        del self.run_json  # cached: read again on the next use

    def add_metrics(self, line: Mapping[str, Any]) -> None:
        """Append a line of metrics, with numbers rounded to seven digits."""
        rounded = {key: float(f"{value:.7g}") if isinstance(value, float) else value for key, value in line.items()}
        append_line(self.metrics_file, json.dumps(rounded))

    def truncate_metrics(self, last: int, name: str = "step") -> None:
        """Remove lines with `name` above `last`, and an incomplete last line, before resuming from a checkpoint."""
        if self.metrics_file.exists():
            kept = [line for line in self.metrics if isinstance(line.get(name), int) and line[name] <= last]
            with atomic_file(self.metrics_file) as stream:
                stream.writelines(json.dumps(line) + "\n" for line in kept)
            del self._lines


class RunFolder(ResultFolder):
    """The files of one training run.

    Attributes:
        profile: folder of the profile of a few steps.
        checkpoints: folder of the checkpoints.
        tokenizer: folder of the tokenizer.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.profile, self.checkpoints = self.path / "profile", self.path / "checkpoints"
        self.tokenizer = self.path / "tokenizer"

    def __repr__(self) -> str:
        try:
            about = self.about
        except HeartlmError as error:
            return f"<RunFolder {error}>"
        state = "finished" if about["finished"] else "not finished"
        return f"<RunFolder {self.path}: {about['kind']}, {about.get('task') or about.get('objective')}, {state}>"

    def spans(self, rank: int) -> Path:
        """Return the path of the timeline of a rank, JSON lines."""
        return self.path / "spans" / f"rank-{rank}.jsonl"

    def measured(self, rank: int) -> Path:
        """Return the path of the step durations of a rank."""
        return self.path / "measured" / f"rank-{rank}.json"

    def model(self, which: str = "best") -> Path:
        """Return the folder of the model, `best` by validation loss or `last`; a shipped run has one model for both."""
        if is_saved(self.path):
            return self.path
        return self.path / "models" / ("last" if is_shipped(self.path) else which)

    @property
    def scores(self) -> Path:
        """Folder of the score sets; for a shipped model, in the current directory."""
        return Path("scores") / shipped_name(self.path) if is_shipped(self.path) else self.path / "scores"

    # --- read -------------------------------------------------------------------------------------------------------

    @property
    def about(self) -> dict[str, Any]:
        """Content of `run.json`, checked for required entries.

        Raises:
            HeartlmError: this is not a run folder, it has another schema version, or an entry is missing.
        """
        for name in ("schema", "name", "kind", "from_scratch", "manifest_hash", "finished"):
            if name not in self.run_json:
                raise HeartlmError(f"{self.path}/run.json: {name}: nothing found: it was changed, train again")
        return self.run_json

    @property
    def num_steps(self) -> int:
        """Number of steps in the settings."""
        return typed(int, self.settings.get("steps"), f"{self.config_file}: steps")

    @property
    def last_step(self) -> int:
        """Largest step in the metrics; 0 without one."""
        return max((line["step"] for line in self.metrics if isinstance(line.get("step"), int)), default=0)

    @cached_property
    def trained_on(self) -> list[TrainedOn]:
        """Content of `data.json`: at least one corpus.

        Raises:
            HeartlmError: the file cannot be read.
        """
        path = self.path / "data.json"
        corpora = read_json(path, list[TrainedOn])
        if not corpora:
            raise HeartlmError(f"{path}: nothing found, the corpus of the run expected")
        return corpora

    def corpus(self) -> Corpus:
        """Open the training corpus, with the splits of the run's fold if it was trained for one.

        Raises:
            HeartlmError: the corpus is missing, as for a shipped model.
        """
        path = self.trained_on[0]["path"]
        if path is None:
            raise HeartlmError(f"{self.path.name}: a shipped model comes without its training corpus")
        return in_fold(open_corpus(Path(path)), self.fold)

    @property
    def fold(self) -> Fold | None:
        """The fold of a cross-validation that the run was trained for; None for other runs."""
        manifest = (self.corpora[0].get("manifest") or {}) if self.corpora else {}
        return typed(Fold, manifest["fold"], f"{self.path}/data.json") if "fold" in manifest else None

    @cached_property
    def corpora(self) -> list[dict[str, Any]]:
        """Unchecked content of `data.json`; empty if the file is missing."""
        file = self.path / "data.json"
        return read_json(file, list[dict[str, Any]]) if file.is_file() else []

    @cached_property
    def score_sets(self) -> list[dict[str, Any]]:
        """Content of the `scores.json` of each folder in `scores/`, the newest first."""
        sets = []
        for file in sorted(self.scores.glob("*/scores.json")):
            scores = read_json(file, dict[str, Any])
            _check_schema(file, scores)
            sets.append(scores)
        return sorted(sets, key=lambda each: str(each.get("created", "")), reverse=True)

    @cached_property
    def parent(self) -> RunFolder | None:
        """Parent run of fine-tuning: at the path in `run.json`, or next to this run if both were moved."""
        parent = self.run_json.get("parent")
        if not parent:
            return None
        candidates = (Path(parent), self.path / parent, self.path.resolve().parent / Path(parent).name)
        return next((RunFolder(candidate) for candidate in candidates if (candidate / "run.json").is_file()), None)

    def lineage(self) -> list[RunFolder]:
        """Return this run and its ancestors, oldest first."""
        runs = [self]
        while len(runs) <= MAX_ANCESTORS and (parent := runs[0].parent) is not None:
            runs.insert(0, parent)
        return runs

    def curve(self, split: str, key: str) -> tuple[list[float], list[float]]:
        """Return steps and finite values of `key` in the metrics of `split`, both `[num_points]`."""
        points = [
            (float(line["step"]), float(line[key]))
            for line in self.metrics
            if line.get("split") == split and is_number(line.get("step")) and is_number(line.get(key))
        ]
        return [step for step, _ in points], [value for _, value in points]

    # --- write ------------------------------------------------------------------------------------------------------

    def start(self, settings: Mapping[str, Any], about: Mapping[str, Any], corpus: Corpus) -> None:
        """Write the files of a new run: settings, corpus manifest, tokenizer, and `about` in `run.json`.

        Raises:
            HeartlmError: the folder is not empty, or cannot be written.
        """
        self.write_settings(settings)
        write_json(self.path / "data.json", [{"path": str(corpus.folder.resolve()), "manifest": corpus.manifest}])
        corpus.tokenizer().save(self.tokenizer)
        self.write_about({"manifest_hash": corpus.manifest_hash, **about})

    def check_resumable(self, corpus: Corpus) -> None:
        """Check that the run is incomplete and that its corpus has not changed.

        Raises:
            HeartlmError: the run is complete, or its corpus was created again.
        """
        trained_hash = self.about["manifest_hash"]
        self.check_unfinished()
        if trained_hash != corpus.manifest_hash:
            raise HeartlmError(
                f"{corpus.folder}: manifest {corpus.manifest_hash[:12]}, but {self.path} was started on "
                f"{trained_hash[:12]}: bring that corpus back, or start another run"
            )


def environment(device: str) -> dict[str, Any]:
    """Return machine and versions for a run on `device`: auto, cpu or cuda."""
    import torch

    return {
        "heartlm": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "num_cores": len(usable_cpus()),
        "num_threads": torch.get_num_threads(),
        "num_ranks": Ranks.from_environment().world_size,
        "device": torch.cuda.get_device_name() if device != "cpu" and torch.cuda.is_available() else "cpu",
        "git_revision": _git_revision(),
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _git_revision() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip() or None
    except (OSError, subprocess.TimeoutExpired):  # no git, or a file system that hangs: a run starts without it
        return None


def _check_schema(file: Path, value: Mapping[str, Any]) -> None:
    if value.get("schema", SCHEMA_VERSION) != SCHEMA_VERSION:
        raise HeartlmError(
            f"{file}: schema is {value['schema']!r}, this heartlm reads {SCHEMA_VERSION}: use the version that wrote it"
        )


def _now() -> str:
    """Return the UTC time in ISO 8601 format."""
    return datetime.now(UTC).isoformat(timespec="seconds")
