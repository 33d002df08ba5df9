"""Which patients train, which validate and which test.

The MIT-BIH Arrhythmia Database has the split of de Chazal et al. (IEEE Trans. Biomed. Eng. 51(7):1196-1206, 2004),
on which the field's beat scores are published. Its records 201 and 202 come from one patient but stand on different
sides, the one documented exception to the rule that known patients never straddle a split. What other databases give
out again of mitdb (qtdb, nstdb) has the split it has there. Everything else is split by a hash of the patient, so that
the answer depends on nothing but the patient's name. The rule reaches no further than what is known: a patient whom
no file and no record's name tells, or one who is in two other databases (parts of qtdb are edb, svdb, nsrdb or ltdb
too), may stand on two sides.
"""

from __future__ import annotations

import hashlib
from typing import Literal

Split = Literal["train", "validation", "test", "excluded"]

DS1: tuple[str, ...] = (
    "101", "106", "108", "109", "112", "114", "115", "116", "118", "119", "122",
    "124", "201", "203", "205", "207", "208", "209", "215", "220", "223", "230",
)  # fmt: skip
"""mitdb records to train on (de Chazal 2004)."""

DS2: tuple[str, ...] = (
    "100", "103", "105", "111", "113", "117", "121", "123", "200", "202", "210",
    "212", "213", "214", "219", "221", "222", "228", "231", "232", "233", "234",
)  # fmt: skip
"""mitdb records to test on (de Chazal 2004); 202 is the patient of 201 in DS1."""

PACED: tuple[str, ...] = ("102", "104", "107", "217")
"""mitdb records with paced beats, left out as ANSI/AAMI EC57 recommends."""

_DE_CHAZAL: dict[str, Split] = {
    **dict.fromkeys(DS1, "train"),
    **dict.fromkeys(DS2, "test"),
    **dict.fromkeys(PACED, "excluded"),
}


def de_chazal_split(record_id: str) -> Split | None:
    """The published split of a mitdb record; None for a record that mitdb does not have."""
    return _DE_CHAZAL.get(record_id)


def hash_split(patient_id: str) -> Split:
    """Assign a patient by the SHA-256 of the id: on average 80 % to train, 10 % to validation, the rest to test."""
    place = int.from_bytes(hashlib.sha256(patient_id.encode()).digest()[:8], "big") / 2**64
    return "train" if place < 0.8 else "validation" if place < 0.9 else "test"
