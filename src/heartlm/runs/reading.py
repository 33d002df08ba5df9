"""A run folder as its report sees it: whatever result files are there, read once; what is absent stays empty.

Only `run.json` is a must. A run that has not been scored has no scores, one that was stopped early has fewer metrics,
and the page says so; a file that is there but cannot be understood is an error that names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from heartlm.errors import HeartlmError
from heartlm.files import read_json, read_json_lines

SCHEMA = 1
"""The version of `run.json` and `scores.json` that this module reads."""

MAX_ANCESTORS = 8
"""A chain of parent runs longer than this is cut: the folders point at each other in a circle."""


@dataclass(frozen=True)
class WrittenScores:
    """One folder of `scores/`: the scores and, perhaps, strips that show right and wrong beats."""

    name: str
    scores: dict[str, Any]
    strips: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class RunResults:
    """The result files of one run.

    Attributes:
        path: the folder.
        run: `run.json`.
        config: the text of `config.yaml`, empty if there is none.
        environment: `environment.json`.
        corpora: `data.json`; one entry a corpus with its `path` and a copy of its `manifest`.
        metrics: the lines of `metrics.jsonl`, in order.
        num_torn_lines: lines of `metrics.jsonl` that could not be read, as a killed run leaves one.
        score_sets: one entry a folder in `scores/`, the newest first.
        generation: continuations that the model wrote, from `generation.json`.
        parent: the run that this one was fine-tuned from, if its folder can be found.
    """

    path: Path
    run: dict[str, Any]
    config: str = ""
    environment: dict[str, Any] = field(default_factory=dict)
    corpora: list[dict[str, Any]] = field(default_factory=list)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    num_torn_lines: int = 0
    score_sets: list[WrittenScores] = field(default_factory=list)
    generation: list[dict[str, Any]] = field(default_factory=list)
    parent: RunResults | None = None

    def lineage(self) -> Iterator[RunResults]:
        """This run and its parents, the eldest first."""
        if self.parent is not None:
            yield from self.parent.lineage()
        yield self

    def curve(self, split: str, key: str) -> tuple[list[float], list[float]]:
        """Return steps and finite values of `key` in the metrics of `split`, both `[num_points]`."""
        points = [
            (float(line["step"]), float(line[key]))
            for line in self.metrics
            if line.get("split") == split and is_number(line.get("step")) and is_number(line.get(key))
        ]
        return [step for step, _ in points], [value for _, value in points]


def is_number(value: object) -> TypeGuard[float]:
    """Say whether `value` is a finite number: neither None, nor NaN, nor a truth value."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")


def read_run_folder(path: Path) -> RunResults:
    """Read the result files of the run in `path`, and of its parents.

    Raises:
        HeartlmError: `path` is no run folder, or a file in it is not JSON, of another shape or another schema.
    """
    return _read(Path(path), MAX_ANCESTORS)


def _read(path: Path, num_ancestors: int) -> RunResults:
    if not (path / "run.json").is_file():
        raise HeartlmError(f"{path} is not a run folder (it has no run.json): heartlm pretrain and finetune make one")
    run = _mapping(path / "run.json")
    _check_schema(path / "run.json", run)
    metrics, num_torn_lines = read_json_lines(path / "metrics.jsonl")
    config = path / "config.yaml"
    parent = _parent_folder(path, run.get("parent"))
    return RunResults(
        path=path,
        run=run,
        config=config.read_text(encoding="utf-8", errors="replace") if config.is_file() else "",
        environment=_mapping(path / "environment.json"),
        corpora=_mappings(path / "data.json"),
        metrics=metrics,
        num_torn_lines=num_torn_lines,
        score_sets=_score_sets(path / "scores"),
        generation=_mappings(path / "generation.json"),
        parent=_read(parent, num_ancestors - 1) if parent is not None and num_ancestors else None,
    )


def _parent_folder(path: Path, parent: object) -> Path | None:
    """Find the parent where `run.json` says, or next to this run when both were moved together."""
    if not isinstance(parent, str) or not parent:
        return None
    places = (Path(parent), path / parent, path.resolve().parent / Path(parent).name)
    return next((place for place in places if (place / "run.json").is_file()), None)


def _score_sets(folder: Path) -> list[WrittenScores]:
    sets = []
    for file in sorted(folder.glob("*/scores.json")):
        scores = _mapping(file)
        _check_schema(file, scores)
        sets.append(WrittenScores(file.parent.name, scores, _mappings(file.with_name("strips.json"))))
    return sorted(sets, key=lambda each: str(each.scores.get("created", "")), reverse=True)


def _check_schema(file: Path, value: dict[str, Any]) -> None:
    if value.get("schema", SCHEMA) != SCHEMA:
        raise HeartlmError(
            f"{file}: schema is {value['schema']!r}, this heartlm reads {SCHEMA}: report with the version that wrote it"
        )


def _mapping(file: Path) -> dict[str, Any]:
    return read_json(file, dict[str, Any]) if file.is_file() else {}


def _mappings(file: Path) -> list[dict[str, Any]]:
    return read_json(file, list[dict[str, Any]]) if file.is_file() else []
