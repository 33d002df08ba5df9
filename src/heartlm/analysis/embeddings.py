"""`Embeddings`: vectors of beats, windows or recordings with their metadata, as frames and files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.errors import HeartlmError
from heartlm.storage.atomic import atomic_file
from heartlm.system.frames import pandas

Vectors = NDArray[np.float32]

# Metadata columns in the order of files, with their types.
_TYPES: dict[str, type] = dict.fromkeys(("database", "record", "patient", "lead"), np.str_)
_TYPES |= {"sample": np.int64, "time_s": np.float64, "beat_class": np.str_, "rhythm": np.str_}


def checked_name(path: Path) -> Path:
    """Return the path of a file of embeddings.

    Raises:
        HeartlmError: it does not end in .parquet or .npz.
    """
    if path.suffix not in (".parquet", ".npz"):
        raise HeartlmError(f"{path}: ends in {path.suffix or 'nothing'}; .parquet or .npz expected")
    return path


@dataclass(frozen=True)
class Embeddings:
    """Vectors and their metadata; arrays have one entry per vector.

    Attributes:
        vectors: embedding vectors, float32 `[num_vectors, width]`.
        database: name of the database, `<U`.
        record: name of the recording in the database, `<U`.
        patient: patient ID, `<U`.
        lead: name of the lead, `<U`; empty if the recording has no leads; of a recording, the names joined by `+`.
        sample: position in samples of the beat, or of the first beat of the window or recording, int64.
        time_s: position in seconds, float64.
        beat_class: AAMI class of the beat, or the most frequent one of the window; empty if unlabelled, `<U`.
        rhythm: annotated rhythm of the beat or window; empty if unlabelled, `<U`.
        left_out: recordings without a vector, with the reason.
    """

    vectors: Vectors
    database: NDArray[np.str_]
    record: NDArray[np.str_]
    patient: NDArray[np.str_]
    lead: NDArray[np.str_]
    sample: NDArray[np.int64]
    time_s: NDArray[np.float64]
    beat_class: NDArray[np.str_]
    rhythm: NDArray[np.str_]
    left_out: tuple[str, ...] = ()

    def __repr__(self) -> str:
        num = len({*zip(self.database.tolist(), self.record.tolist(), strict=True)})
        return f"<Embeddings: {len(self):,} vectors of {self.vectors.shape[1]:,} numbers, {num:,} recordings>"

    def __len__(self) -> int:
        return len(self.vectors)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the metadata columns by name."""
        return {name: getattr(self, name) for name in _TYPES}

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with one row per vector: its metadata, then `v0`, `v1`, … as in a Parquet file."""
        values = pandas().DataFrame(self.vectors, columns=[f"v{index}" for index in range(self.vectors.shape[1])])
        return pandas().concat([pandas().DataFrame(self.columns()), values], axis=1)

    @classmethod
    def from_frame(cls, frame: Any) -> Embeddings:
        """Return the embeddings of a pandas DataFrame: that of `to_frame`, or of a Parquet file that `write` has made.

        Metadata columns that it lacks are empty.

        Raises:
            HeartlmError: there are no vectors, or a value of a column is not of its type.
        """
        names = [f"v{index}" for index in range(len(frame.columns)) if f"v{index}" in frame]
        try:
            vectors = np.stack(frame["vector"]) if "vector" in frame else np.asarray(frame[names])
            columns: dict[str, Any] = {
                name: frame[name].fillna("").to_numpy(kind) if name in frame else np.zeros(len(frame), kind)
                for name, kind in _TYPES.items()
            }
            vectors = vectors.astype(np.float32)
        except (TypeError, ValueError) as error:
            raise HeartlmError(f"frame: values of another type than those of Embeddings ({error})") from error
        if not vectors.size:
            raise HeartlmError("frame: no vectors found; rows with the columns v0, v1, … or vector expected")
        return cls(vectors, **columns)

    def write(self, path: str | Path) -> Path:
        """Write vectors and metadata to a `.parquet` file with the columns of `to_frame`, or to an `.npz` file.

        Raises:
            HeartlmError: the file name has another suffix, or the file cannot be written.
        """
        path = checked_name(Path(path))
        with atomic_file(path, "wb") as stream:
            if path.suffix == ".npz":
                np.savez(stream, allow_pickle=False, vectors=self.vectors, **self.columns())
                return path
            import pyarrow
            import pyarrow.parquet

            numbers = {f"v{index}": column for index, column in enumerate(np.ascontiguousarray(self.vectors.T))}
            texts = [name for name, kind in _TYPES.items() if kind is np.str_]
            pyarrow.parquet.write_table(pyarrow.table(self.columns() | numbers), stream, use_dictionary=texts)
        return path
