"""Folds of a cross-validation: a corpus with the splits of one fold, a view of the same tokens.

    patients ─► fold, by a hash of seed and patient ─► own fold: test │ next fold: validation │ other folds: train

Excluded recordings stay excluded. Simulated rhythms of a patient are in its fold, for training only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from heartlm.corpus.corpus import Corpus
from heartlm.corpus.rows import RecordTable
from heartlm.databases.splits import Split, fold_of, real_patient
from heartlm.ecg.recording import BEAT_CLASSES, RHYTHMS
from heartlm.errors import HeartlmError


class Fold(TypedDict):
    """A fold: its number, 1 to `of`, and the seed by which patients are divided."""

    number: int
    of: int
    seed: int


def fold_by_patient(corpus: Corpus, num_folds: int, seed: int) -> dict[str, int]:
    """Return the fold of each patient of `corpus`, 1 to `num_folds`, sorted by patient.

    Raises:
        HeartlmError: a fold has no patient.
    """
    records = corpus.records
    used = np.unique(records.patient_id[(records.split != "excluded") & (records.num_tokens > 0)])
    patients = sorted({real_patient(patient) for patient in used.tolist()})
    folds = {patient: fold_of(patient, num_folds, seed) for patient in patients}
    if empty := sorted({*range(1, num_folds + 1)} - {*folds.values()}):
        raise HeartlmError(
            f"folds: {num_folds} found, but fold {empty[0]} has none of the {len(patients)} patients of "
            f"{corpus.folder}: choose fewer folds or another seed"
        )
    return folds


def in_fold(corpus: Corpus, fold: Fold | None) -> Corpus:
    """Return `corpus` with the splits of `fold`, and with these and the counts of labels in its manifest.

    The manifest hash is another one, so that runs of different folds are not taken for runs of the same data.

    Raises:
        HeartlmError: a fold has no patient.
    """
    if fold is None:
        return corpus
    folds = fold_by_patient(corpus, fold["of"], fold["seed"])
    following = fold["number"] % fold["of"] + 1

    def split_of(patient_id: str, split: str) -> Split:
        patient = real_patient(patient_id)
        if split == "excluded" or patient not in folds:
            return "excluded"
        if folds[patient] not in (fold["number"], following):
            return "train"
        if patient != patient_id:
            return "excluded"
        return "test" if folds[patient] == fold["number"] else "validation"

    records = corpus.records
    splits = [*map(split_of, records.patient_id, records.split)]
    records = records.with_splits(np.array(splits, records.split.dtype))
    counts = _counts(corpus, records)
    databases = [{**each, "splits": counts[each["name"]]} for each in corpus.manifest["databases"]]
    return replace(corpus, records=records, manifest={**corpus.manifest, "databases": databases, "fold": dict(fold)})


def _counts(corpus: Corpus, records: RecordTable) -> dict[str, dict[str, Any]]:
    """Return the entries of the splits of each database, as in the manifest: labels are those of the first lead."""
    by_split = defaultdict[tuple[str, str], list[int]](list)
    for index, key in enumerate(zip(records.database, records.split, strict=True)):
        by_split[key].append(index)
    counts = defaultdict[str, dict[str, Any]](dict)
    for (database, split), own in sorted(by_split.items()):
        first_lead = {records.record_id[index]: index for index in reversed(own)}
        counts[database][split] = {
            "records": len(first_lead),
            "patients": len({*records.patient_id[own]}),
            "leads": len(own),
            "tokens": int(records.num_tokens[own].sum()),
            "beats_per_class": _named(corpus, corpus.beat_class, first_lead.values(), BEAT_CLASSES),
            "rhythms": _named(corpus, corpus.rhythm, first_lead.values(), RHYTHMS),
        }
    return counts


def _named(corpus: Corpus, labels: NDArray[np.int8], rows: Iterable[int], names: Sequence[str]) -> dict[str, int]:
    indices = np.concatenate([labels[corpus.tokens_of(row)] for row in rows])
    numbers = np.bincount(indices + 1, minlength=len(names) + 1).tolist()  # −1 is unlabelled
    return {name: number for name, number in zip(("unlabelled", *names), numbers, strict=True) if number}
