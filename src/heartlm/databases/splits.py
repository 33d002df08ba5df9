"""Assignment of patients to the training, validation and test splits.

The MIT-BIH Arrhythmia Database uses the split of de Chazal et al. (IEEE Trans. Biomed. Eng. 51(7):1196-1206, 2004),
which published beat scores use. Its records 201 and 202 come from one patient but are in different splits, the only
documented exception to the rule that a known patient is in one split. Recordings that other databases republish from
mitdb (qtdb, nstdb) keep their mitdb split. All other patients are split by a hash of the patient's name only. The rule
is limited to known patients: a patient that no file or record name identifies, or that is in two other databases (parts
of qtdb are also in edb, svdb, nsrdb or ltdb), may be in two splits.
"""

from __future__ import annotations

import hashlib
from typing import Literal

Split = Literal["train", "validation", "test", "excluded"]

DS1: tuple[str, ...] = (
    "101", "106", "108", "109", "112", "114", "115", "116", "118", "119", "122",
    "124", "201", "203", "205", "207", "208", "209", "215", "220", "223", "230",
)  # fmt: skip
"""Training records of mitdb (de Chazal 2004)."""

DS2: tuple[str, ...] = (
    "100", "103", "105", "111", "113", "117", "121", "123", "200", "202", "210",
    "212", "213", "214", "219", "221", "222", "228", "231", "232", "233", "234",
)  # fmt: skip
"""Test records of mitdb (de Chazal 2004); 202 has the same patient as 201 in DS1."""

PACED: tuple[str, ...] = ("102", "104", "107", "217")
"""Records of mitdb with paced beats, excluded as ANSI/AAMI EC57 recommends."""

_DE_CHAZAL: dict[str, Split] = {
    **dict.fromkeys(DS1, "train"),
    **dict.fromkeys(DS2, "test"),
    **dict.fromkeys(PACED, "excluded"),
}


def de_chazal_split(record_id: str) -> Split | None:
    """Return the published split of a mitdb record; None if mitdb has no such record."""
    return _DE_CHAZAL.get(record_id)


def hash_split(patient_id: str) -> Split:
    """Return the split of a patient by the SHA-256 of the id: 80 % train, 10 % validation, 10 % test on average."""
    place = _hash(patient_id) / 2**64
    return "train" if place < 0.8 else "validation" if place < 0.9 else "test"


def fold_of(patient_id: str, num_folds: int, seed: int) -> int:
    """Return the fold of a patient, 1 to `num_folds`, by the SHA-256 of the seed and the id."""
    return _hash(f"{seed}/{patient_id}") % num_folds + 1


def real_patient(patient_id: str) -> str:
    """Return the patient whose beats a simulated rhythm has, `mitdb/101` of `mitdb-retimed/101`; else `patient_id`."""
    return patient_id.replace("-retimed/", "/")


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
