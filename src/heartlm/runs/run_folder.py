"""A run is a folder; everything about it lives there.

run.json            what it is: kind, command, parent, when it began and ended
config.yaml         resolved settings
environment.json    machine, versions, git revision
data.json           manifests of the corpora it was trained on
metrics.jsonl       one line of numbers now and then
spans/              where the time of each step went, one file a rank, where that was asked for
profile/            a close look at a few steps, where that was asked for
tensorboard/, wandb/  the metrics again, for those who listen, where that was asked for
measured/           what each step took on each rank, of a run that a study measures
checkpoints/        for resuming exactly
models/best, last   for using
tokenizer/          the artefact whose codes the model reads
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np
import torch
import yaml

from heartlm import __version__
from heartlm.corpus.corpus import Corpus, open_corpus
from heartlm.corpus.schema import Manifest
from heartlm.distributed.ranks import Ranks
from heartlm.errors import HeartlmError
from heartlm.files import atomic_file, keep_lines, read_json, read_yaml, write_json
from heartlm.models.pretrained import is_shipped
from heartlm.runs.schema import RunAbout
from heartlm.typed import typed

SCHEMA_VERSION = 1


class TrainedOn(TypedDict):
    """A corpus in `data.json`; of a shipped model no path, but the patients that were trained on."""

    path: str | None
    manifest: Manifest
    patients: NotRequired[list[str]]


class RunFolder:
    """The files of one run.

    Attributes:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)

    @property
    def config(self) -> Path:
        """Resolved settings."""
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        """JSON lines."""
        return self.path / "metrics.jsonl"

    def spans(self, rank: int) -> Path:
        """Where the time of each step of a rank went, JSON lines."""
        return self.path / "spans" / f"rank-{rank}.jsonl"

    def measured(self, rank: int) -> Path:
        """What each step of a rank took, of a run that a study measures."""
        return self.path / "measured" / f"rank-{rank}.json"

    @property
    def profile(self) -> Path:
        """Folder of the close look at a few steps."""
        return self.path / "profile"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def tokenizer(self) -> Path:
        """Folder of the tokenizer."""
        return self.path / "tokenizer"

    def model(self, which: str = "best") -> Path:
        """Folder of the model, `best` by validation loss or `last`; a shipped model is both."""
        return self.path / "models" / ("last" if is_shipped(self.path) else which)

    @property
    def scores(self) -> Path:
        """Folder of the score sets; of a shipped model it is in the current directory."""
        return Path("scores") / self.path.name if is_shipped(self.path) else self.path / "scores"

    def corpus(self) -> Corpus:
        """Open the corpus it was trained on.

        Raises:
            HeartlmError: it is gone, or it was never here, since the model is a shipped one.
        """
        path = self.trained_on[0]["path"]
        if path is None:
            raise HeartlmError(f"{self.path.name}: a shipped model comes without its training corpus")
        return open_corpus(Path(path))

    @property
    def about(self) -> dict[str, Any]:
        """Content of `run.json`.

        Raises:
            HeartlmError: this is no run folder, or one of another schema version.
        """
        if not (self.path / "run.json").is_file():
            raise HeartlmError(f"{self.path}: no run.json, so not a run folder: make one with  heartlm pretrain")
        about = dict[str, Any](read_json(self.path / "run.json", RunAbout))
        if about.get("schema") != SCHEMA_VERSION:
            raise HeartlmError(f"{self.path}: run of schema {about.get('schema')}, this heartlm reads {SCHEMA_VERSION}")
        for name in ("name", "kind", "from_scratch", "manifest_hash", "finished"):
            if name not in about:
                raise HeartlmError(f"{self.path}/run.json: {name}: nothing found: it was changed, train again")
        return about

    @property
    def settings(self) -> dict[str, Any]:
        """Content of `config.yaml`.

        Raises:
            HeartlmError: it cannot be read.
        """
        return typed(dict[str, Any], read_yaml(self.config, "the settings of a run"), self.config)

    @property
    def trained_on(self) -> list[TrainedOn]:
        """Content of `data.json`: at least one corpus.

        Raises:
            HeartlmError: it cannot be read.
        """
        path = self.path / "data.json"
        corpora = read_json(path, list[TrainedOn])
        if not corpora:
            raise HeartlmError(f"{path}: nothing found, the corpus of the run expected")
        return corpora

    def start(self, settings: Mapping[str, Any], about: Mapping[str, Any], corpus: Corpus) -> None:
        """Write what is known before the first step: all settings, what `about` the run goes to `run.json`, the corpus.

        Raises:
            HeartlmError: the folder holds a run or something else already, or cannot be written.
        """
        self._claim(settings, "run")
        write_json(self.path / "data.json", [{"path": str(corpus.folder.resolve()), "manifest": corpus.manifest}])
        corpus.tokenizer().save(self.tokenizer)
        self._describe({"name": self.path.name, "manifest_hash": corpus.manifest_hash, **about})

    def _claim(self, settings: Mapping[str, Any], what: str) -> None:
        """Write the settings and the environment of a run, or of `what` else, where there is no other."""
        if (self.path / "run.json").exists():
            finished = read_json(self.path / "run.json", RunAbout).get("finished")
            hint = "choose another --out" if finished else f"continue it with --resume {self.path}, or remove it"
            raise HeartlmError(f"{self.path} holds a {what} already: {hint}")
        if self.path.exists() and not self.config.exists() and (self.path.is_file() or any(self.path.iterdir())):
            raise HeartlmError(f"{self.path} exists and is no {what}: choose another --out")
        with atomic_file(self.config) as stream:
            yaml.safe_dump(_plain(settings), stream, sort_keys=False)
        write_json(self.path / "environment.json", environment(settings["device"]))

    def _describe(self, about: Mapping[str, Any]) -> None:
        """Write `run.json`, which makes the folder one of a run."""
        started = {"schema": SCHEMA_VERSION, "created": now(), "finished": None}
        write_json(self.path / "run.json", {**started, "command": shlex.join(["heartlm", *sys.argv[1:]]), **about})

    def check_resumable(self, corpus: Corpus) -> None:
        """See that there is something left to do, with the tokens it was started with.

        Raises:
            HeartlmError: the run is finished, or its corpus was made again meanwhile.
        """
        about = self.about
        if about["finished"]:
            raise HeartlmError(f"{self.path}: finished on {about['finished']}, nothing to resume: start another run")
        if about["manifest_hash"] != corpus.manifest_hash:
            raise HeartlmError(
                f"{corpus.folder}: manifest {corpus.manifest_hash[:12]}, but {self.path} was started on "
                f"{about['manifest_hash'][:12]}: bring that corpus back, or start another run"
            )

    def finish(self) -> None:
        """Note that the last step was done."""
        write_json(self.path / "run.json", {**self.about, "finished": now()})

    def truncate_metrics(self, step: int) -> None:
        """Drop the lines after `step`, and a torn last line: the steps after a checkpoint are done again."""
        keep_lines(self.metrics, "step", step)


def environment(device: str) -> dict[str, Any]:
    """The machine and the versions of a run on `device`: auto, cpu or cuda."""
    return {
        "heartlm": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "num_cores": len(os.sched_getaffinity(0)),
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
    try:
        result = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except OSError:
        return None
    return result.stdout.strip() or None


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    return str(value.resolve()) if isinstance(value, Path) else value


def now() -> str:
    """The time in UTC, as files state it."""
    return datetime.now(UTC).isoformat(timespec="seconds")
