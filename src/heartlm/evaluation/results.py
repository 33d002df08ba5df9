"""Output files of an evaluation: one folder per score set, written atomically.

scores.json           scores, confidence intervals, baselines, settings
predictions.parquet   one row per beat or window: reference, prediction, probabilities
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from heartlm.errors import HeartlmError
from heartlm.inference.leads import ScoredLead
from heartlm.storage.atomic import atomic_folder, write_json
from heartlm.system.attached import attached
from heartlm.system.frames import pandas

SCHEMA_VERSION = 1

Indices = NDArray[np.int64]
Answers = TypeVar("Answers")


def attempt(methods: Mapping[str, Callable[[], Answers]], notes: list[str]) -> dict[str, Answers | None]:
    """Compute baselines by name. If one raises a HeartlmError, its result is None; `notes` gets the reason."""
    answers: dict[str, Answers | None] = {}
    for name, answer in methods.items():
        try:
            answers[name] = answer()
        except HeartlmError as error:
            notes.append(f"{name} not computed: {error}")
            answers[name] = None
    return answers


def prediction_columns(
    leads: Sequence[ScoredLead], lead: Indices, sample: Indices, reference: Any, predicted: Any, probabilities: Any
) -> dict[str, Any]:
    """Return the columns of the prediction table, one row per beat or window.

    Args:
        leads: scored leads.
        lead: index into `leads` of each row.
        sample: position of the beat, or of the first sample of the window.
        reference: name of the true class of each row.
        predicted: name of the predicted class of each row.
        probabilities: probability of each class, float32 `[num_rows, num_classes]`.
    """
    return {
        "database": np.array([each.database for each in leads])[lead],
        "record": np.array([each.record_id for each in leads])[lead],
        "patient": np.array([each.patient_id for each in leads])[lead],
        "sample": sample,
        "time_s": sample / np.array([each.rate_hz for each in leads])[lead],
        "reference": reference,
        "predicted": predicted,
        "probabilities": probabilities,
    }


@dataclass(frozen=True)
class ScoreSet:
    """Results of a task.

    Attributes:
        about: description of the evaluation, as fields of `scores.json`.
        scores: scores of the model.
        columns: columns of the prediction table.
        classes: names of the columns of `probabilities`.
        baselines: scores of the baselines by name; None if a baseline could not be computed.
        notes: reasons for missing baselines.
    """

    about: Mapping[str, Any]
    scores: Mapping[str, Any]
    columns: Mapping[str, Any]
    classes: Sequence[str]
    baselines: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()


def write_scores(folder: Path, scores: Mapping[str, Any], predictions: ScoreSet | Predictions) -> None:
    """Write `scores`, and `predictions`, to `folder`, replacing earlier scores there.

    Raises:
        HeartlmError: the folder cannot be written; earlier scores are untouched.
    """
    import pyarrow
    import pyarrow.parquet

    with atomic_folder(folder) as temporary:
        write_json(temporary / "scores.json", scores)
        probabilities = pyarrow.FixedSizeListArray.from_arrays(
            pyarrow.array(predictions.columns["probabilities"].ravel()), len(predictions.classes)
        )
        table = pyarrow.table({**predictions.columns, "probabilities": probabilities})
        table = table.replace_schema_metadata({"classes": ",".join(predictions.classes)})
        pyarrow.parquet.write_table(table, temporary / "predictions.parquet")


@dataclass(frozen=True)
class Predictions:
    """Table of predictions, as an evaluation wrote it.

    Attributes:
        columns: `database`, `record`, `patient`, `reference`, `predicted` and others, each an array `[num_rows]`, and
            `probabilities`, float32 `[num_rows, num_classes]`.
        classes: names of the columns of `probabilities`.
    """

    columns: Mapping[str, NDArray[Any]]
    classes: tuple[str, ...]

    @classmethod
    def read(cls, folder: Path) -> Predictions:
        """Read the predictions of the scores in `folder`.

        Raises:
            HeartlmError: the file cannot be read, or lacks a column.
        """
        import pyarrow
        import pyarrow.parquet

        path = folder / "predictions.parquet"
        try:
            table = pyarrow.parquet.ParquetFile(path).read()  # read_table would import pandas
            classes = tuple(table.schema.metadata[b"classes"].decode().split(","))
            flat = table["probabilities"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
            texts = ("database", "record", "patient", "reference", "predicted")
            columns = {name: np.array(table[name].to_pylist(), object) for name in texts} | {
                name: table[name].to_numpy() for name in table.column_names if name not in (*texts, "probabilities")
            }
        except (OSError, pyarrow.ArrowException, KeyError, TypeError) as error:
            raise HeartlmError(f"{path} cannot be read ({str(error).splitlines()[0]}): evaluate again") from error
        return cls({**columns, "probabilities": flat.reshape(-1, len(classes))}, classes)

    @classmethod
    def together(cls, parts: Sequence[Predictions]) -> Predictions:
        """Return the rows of all `parts`, with the columns and classes that all have."""
        classes = tuple(name for name in parts[0].classes if all(name in each.classes for each in parts))
        names = [name for name in parts[0].columns if all(name in each.columns for each in parts)]
        parts = [each.of_classes(classes) for each in parts]
        return cls({name: np.concatenate([each.columns[name] for each in parts]) for name in names}, classes)

    @property
    def probabilities(self) -> NDArray[np.float32]:
        """Probability of each class, `[num_rows, num_classes]`."""
        return self.columns["probabilities"]

    @property
    def patients(self) -> NDArray[np.str_]:
        """Patient of each row."""
        return self.columns["patient"].astype(np.str_)

    @property
    def records(self) -> NDArray[np.str_]:
        """Recording of each row, `database/record`."""
        names: NDArray[np.object_] = self.columns["database"] + "/" + self.columns["record"]
        return names.astype(np.str_)

    def of_classes(self, classes: tuple[str, ...]) -> Predictions:
        """Return the predictions with the probabilities of these of their classes."""
        places = list(map(self.classes.index, classes))
        return Predictions({**self.columns, "probabilities": self.probabilities[:, places]}, classes)

    def chosen(self, rows: NDArray[np.bool_]) -> Predictions:
        """Return the predictions of these rows, bool `[num_rows]`."""
        return Predictions({name: values[rows] for name, values in self.columns.items()}, self.classes)

    def indices(self, column: str, names: Mapping[str | None, int]) -> NDArray[np.int8]:
        """Return the numbers that `names` has for the values of a column."""
        return np.array([names[name] for name in self.columns[column].tolist()], np.int8)


@dataclass(frozen=True)
class Scores:
    """Result of `evaluate`.

    Attributes:
        content: content of `scores.json`: scores with 95 % confidence intervals over patients, baselines, evaluation
            settings.
        folder: folder with `scores.json` and the predictions, `predictions.parquet`.
    """

    content: dict[str, Any]
    folder: Path

    def __repr__(self) -> str:
        content = self.content
        shown = [f"{name} {value:.3f}" for name, value, _, _ in _flat(content["scores"], "") if value is not None]
        return f"<Scores {content['task']} on {content['on']}, {content['split']}: {', '.join(shown[:4])}>"

    def _repr_html_(self) -> str:
        methods = {"model": self.content["scores"], **self.content["baselines"]}
        rows = [
            (f"{method}: {name}", f"{value:.3f}" + ("" if low is None or high is None else f" [{low:.3f}, {high:.3f}]"))
            for method, block in methods.items()
            for name, value, low, high in _flat(block or {}, "")
            if value is not None
        ]
        return str(attached("drawings").shown_html(repr(self)[1:-1], rows))

    def plot(self, *, ax: Any = None) -> Any:
        """Draw the scores of the model and of the baselines with their intervals.

        Args:
            ax: axes of matplotlib to draw on.

        Returns:
            A picture that a notebook shows, with `.save("scores.svg")`; or `ax`.
        """
        return attached("drawings").plot_scores(self.content, ax)

    def to_frame(self) -> Any:
        """Return a pandas DataFrame of all scores with an interval: method, score, value, low, high."""
        methods = {"model": self.content["scores"], **self.content["baselines"]}
        rows = [(method, *row) for method, block in methods.items() for row in _flat(block or {}, "")]
        return pandas().DataFrame(rows, columns=["method", "score", "value", "low", "high"])

    @property
    def per_patient(self) -> Any:
        """Pandas DataFrame with one row per patient (beats task)."""
        return pandas().json_normalize(self.content["scores"].get("per_patient", []))


def _flat(block: dict[str, Any], prefix: str) -> Iterator[tuple[str, float, float | None, float | None]]:
    for name, part in block.items():
        if isinstance(part, dict) and "value" in part:
            low, high = part.get("ci") or (None, None)
            yield f"{prefix}{name}", part["value"], low, high
        elif isinstance(part, dict):
            yield from _flat(part, f"{prefix}{name} ")
