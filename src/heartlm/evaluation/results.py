"""What an evaluation leaves behind: one folder a score set, written whole or not at all.

scores.json           scores, confidence intervals, baselines, how they were made
predictions.parquet   one row a beat or a window: reference, prediction, probabilities
strips.json           example strips with right and wrong beats (beats task)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from heartlm.errors import HeartlmError
from heartlm.files import atomic_folder, write_json

SCHEMA_VERSION = 1


Answers = TypeVar("Answers")


def attempt(name: str, answer: Callable[[], Answers], notes: list[str]) -> Answers | None:
    """Let the baseline `name` answer; where it cannot, return None and add the reason to `notes`."""
    try:
        return answer()
    except HeartlmError as error:
        notes.append(f"{name} not computed: {error}")
        return None


@dataclass(frozen=True)
class ScoreSet:
    """One set of scores with what belongs to it.

    Attributes:
        name: of its folder.
        about: what was scored and how, as fields of `scores.json`.
        scores: of the model.
        columns: the predictions table, column by column.
        classes: names of the columns of `probabilities`.
        baselines: scores of the others, by name; None where one could not be had.
        notes: for the reader: patients trained on, why a baseline or a strip is missing.
        without: scores again without one record, by record.
        strips: example strips; None for a task without.
    """

    name: str
    about: Mapping[str, Any]
    scores: Mapping[str, Any]
    columns: Mapping[str, Any]
    classes: Sequence[str]
    baselines: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    without: Mapping[str, Any] = field(default_factory=dict)
    strips: Sequence[Mapping[str, Any]] | None = None

    def to_json(self) -> dict[str, Any]:
        """Content of `scores.json`, but for what all sets of one evaluation share."""
        return {
            "schema": SCHEMA_VERSION,
            "name": self.name,
            **self.about,
            "scores": dict(self.scores),
            "without": dict(self.without),
            "baselines": dict(self.baselines),
            "notes": list(self.notes),
        }


def write_score_set(folder: Path, score_set: ScoreSet, shared: Mapping[str, Any]) -> dict[str, Any]:
    """Write `score_set` to `folder`, replacing earlier scores there; return the content of `scores.json`.

    Args:
        folder: of the set.
        score_set: what to write.
        shared: fields of `scores.json` that all sets of one evaluation share.

    Raises:
        HeartlmError: it cannot be written; earlier scores are untouched.
    """
    scores = {**score_set.to_json(), **shared}
    with atomic_folder(folder) as temporary:
        write_json(temporary / "scores.json", scores)
        _write_predictions(temporary / "predictions.parquet", score_set)
        if score_set.strips is not None:
            write_json(temporary / "strips.json", list(score_set.strips))
    return scores


def _write_predictions(path: Path, score_set: ScoreSet) -> None:
    import pyarrow
    import pyarrow.parquet

    columns = {name: column for name, column in score_set.columns.items() if name != "probabilities"}
    table = pyarrow.table(columns)
    probabilities = pyarrow.FixedSizeListArray.from_arrays(
        pyarrow.array(score_set.columns["probabilities"].ravel()), len(score_set.classes)
    )
    table = table.append_column("probabilities", probabilities)
    table = table.replace_schema_metadata({"classes": ",".join(score_set.classes)})
    pyarrow.parquet.write_table(table, path)
