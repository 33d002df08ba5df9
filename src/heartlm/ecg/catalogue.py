"""The catalogue: the published ECG databases that heartlm knows, with what a user must know before downloading one.

The facts stand in `catalogue.json`, as published on PhysioNet's page of each database, or counted from its files. What
could not be confirmed is None there and "not recorded" on the screen. Every licence asks for the citation of the
database and of PhysioNet itself.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heartlm.errors import HeartlmError
from heartlm.files import read_json
from heartlm.typed import typed

PHYSIONET_CITATION = (
    "Goldberger AL, Amaral LAN, Glass L, Hausdorff JM, Ivanov PCh, Mark RG, Mietus JE, Moody GB, Peng C-K, Stanley HE. "
    "PhysioBank, PhysioToolkit, and PhysioNet: components of a new research resource for complex physiologic signals. "
    "Circulation 101(23):e215-e220 (2000)"
)
"""To be cited with every database of the catalogue."""


@dataclass(frozen=True)
class DatabaseInfo:
    """One published database; a field is None where the fact is not recorded.

    Attributes:
        name: PhysioNet's short name, for example `"mitdb"`; also the database's name throughout heartlm.
        title: its full name.
        version: the published version these facts are of.
        num_recordings: how many recordings can be downloaded.
        num_patients: how many people they come from.
        hours: their total length.
        size_mb: size of signals and annotations, 10^6 bytes.
        rates_hz: sampling rates; the first is the usual one.
        leads: number of leads, as text since it may be a range.
        signal: whether there is any signal; without, the annotations are all.
        labels: what was annotated: beats, rhythms, waves (onsets and ends), ST-T episodes, diagnoses.
        annotators: extension of each annotation file → what it holds.
        licence: under which the files are published.
        citation: the publication to cite; None where PhysioNet asks for `PHYSIONET_CITATION` alone.
        doi: of the database at this version.
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
        """Where its files lie below PhysioNet's `files/`, for example `"mitdb/1.0.0"`."""
        return f"{self.name}/{self.version}"

    @property
    def citations(self) -> tuple[str, ...]:
        """Everything that a user of the database is asked to cite."""
        dataset = f"{self.title} (version {self.version}). PhysioNet. https://doi.org/{self.doi}"
        publication = () if self.citation is None else (self.citation,)
        return (*publication, dataset, PHYSIONET_CITATION)


CATALOGUE: dict[str, DatabaseInfo] = {
    name: typed(DatabaseInfo, {"name": name, **facts})
    for name, facts in read_json(Path(__file__).with_name("catalogue.json"), dict[str, dict[str, Any]]).items()
}
"""Every known database by name."""


def find(name: str) -> DatabaseInfo:
    """Return the database called `name` (case is ignored).

    Raises:
        HeartlmError: there is none; the text offers the nearest names.
    """
    if name.lower() in CATALOGUE:
        return CATALOGUE[name.lower()]
    near = difflib.get_close_matches(name.lower(), CATALOGUE, n=3, cutoff=0.5)
    offer = f"did you mean {' or '.join(near)}?" if near else f"it knows {', '.join(CATALOGUE)}"
    raise HeartlmError(f"no database {name!r} in the catalogue: {offer}  (heartlm data list shows all)")
