"""Catalogue of the published ECG databases that heartlm supports.

The facts are in `catalogue.json`, taken from the PhysioNet page of each database or counted from its files. A fact that
could not be confirmed is None in the file and shown as "not recorded". Every licence requires citing the database and
PhysioNet.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heartlm.errors import HeartlmError
from heartlm.storage.reading import read_json
from heartlm.storage.typed import typed

PHYSIONET_CITATION = (
    "Goldberger AL, Amaral LAN, Glass L, Hausdorff JM, Ivanov PCh, Mark RG, Mietus JE, Moody GB, Peng C-K, Stanley HE. "
    "PhysioBank, PhysioToolkit, and PhysioNet: components of a new research resource for complex physiologic signals. "
    "Circulation 101(23):e215-e220 (2000)"
)
"""Citation of PhysioNet, required with every database of the catalogue."""


@dataclass(frozen=True)
class DatabaseInfo:
    """One published database; a field is None if the fact is not recorded.

    Attributes:
        name: PhysioNet's short name, for example `"mitdb"`; also the database's name throughout heartlm.
        title: full name of the database.
        version: published version that the facts describe.
        num_recordings: number of recordings that can be downloaded.
        num_patients: number of patients.
        hours: total duration of the recordings in hours.
        size_mb: size of signals and annotations in 10^6 bytes.
        rates_hz: sampling rates in Hz; the first is the most common.
        leads: number of leads, as text because it may be a range.
        signal: whether there are signals; false for annotation-only databases.
        labels: types of annotation: beats, rhythms, waves (onsets and ends), ST-T episodes, diagnoses.
        annotators: content of each annotation file by its extension.
        licence: licence of the files.
        citation: publication to cite; None if PhysioNet requires only `PHYSIONET_CITATION`.
        doi: DOI of this version of the database.
    """

    name: str
    title: str
    version: str
    num_recordings: int
    num_patients: int | None
    hours: float | None
    size_mb: float | None
    rates_hz: tuple[int, ...]
    leads: str | None
    signal: bool
    labels: tuple[str, ...]
    annotators: dict[str, str]
    licence: str
    citation: str | None
    doi: str

    @property
    def physionet_path(self) -> str:
        """Path of the files below PhysioNet's `files/`, for example `"mitdb/1.0.0"`."""
        return f"{self.name}/{self.version}"

    @property
    def citations(self) -> tuple[str, ...]:
        """All citations that users of the database must give."""
        dataset = f"{self.title} (version {self.version}). PhysioNet. https://doi.org/{self.doi}"
        publication = () if self.citation is None else (self.citation,)
        return (*publication, dataset, PHYSIONET_CITATION)


CATALOGUE: dict[str, DatabaseInfo] = {
    name: typed(DatabaseInfo, {"name": name, **facts})
    for name, facts in read_json(Path(__file__).with_name("catalogue.json"), dict[str, dict[str, Any]]).items()
}
"""All databases of the catalogue by name."""


def find(name: str) -> DatabaseInfo:
    """Return the database called `name`, ignoring case.

    Raises:
        HeartlmError: there is no such database. The message suggests similar names.
    """
    if name.lower() in CATALOGUE:
        return CATALOGUE[name.lower()]
    near = difflib.get_close_matches(name.lower(), CATALOGUE, n=3, cutoff=0.5)
    offer = f"did you mean {' or '.join(near)}?" if near else f"it knows {', '.join(CATALOGUE)}"
    raise HeartlmError(f"no database {name!r} in the catalogue: {offer}  (heartlm data list shows all)")
