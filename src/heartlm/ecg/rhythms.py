"""Rhythm names and their indices.

The names are those of the WFDB AUX strings without the opening bracket. New names are only appended to the table, so
that an index stored in a corpus keeps its meaning.
"""

from __future__ import annotations

RHYTHMS: tuple[str, ...] = (
    "N",
    "AFIB",
    "AFL",
    "SVTA",
    "AB",
    "B",
    "BII",
    "IVR",
    "NOD",
    "P",
    "PREX",
    "SBR",
    "T",
    "VFL",
    "VT",
    "J",
    "VFIB",
    "ASYS",
    "OTHER",
    "NOISE",
)
"""Rhythm names. The position of a rhythm is its index in corpora and scores.

N sinus, AFIB atrial fibrillation, AFL atrial flutter, SVTA supraventricular tachyarrhythmia, AB atrial bigeminy,
B ventricular bigeminy, BII second-degree block, IVR idioventricular, NOD nodal, P paced, PREX pre-excitation,
SBR sinus bradycardia, T ventricular trigeminy, VFL ventricular flutter, VT ventricular tachycardia, J junctional,
VFIB ventricular fibrillation, ASYS asystole or long pause,
OTHER any other (CinC 2017 "O"), NOISE too noisy to tell (CinC 2017 "~").
"""

RHYTHM_INDEX: dict[str, int] = {name: index for index, name in enumerate(RHYTHMS)}

_ALIASES = {
    "VF": "VFIB",
    "NSR": "N",
    "SR": "N",
    "AF": "AFIB",
    "A": "AFIB",
    "O": "OTHER",
    "~": "NOISE",
    "PM": "P",
    "VER": "IVR",
    "AFIB/AFL": "AFIB",
    "Noise": "NOISE",
}


def rhythm_index(name: str) -> int:
    """Return the index of a rhythm name, ignoring a bracket or NUL around it; an unknown name is `OTHER`."""
    bare = name.strip("\x00 \t\n(")
    return RHYTHM_INDEX.get(_ALIASES.get(bare, bare), RHYTHM_INDEX["OTHER"])
