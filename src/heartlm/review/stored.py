"""The automatic result of a recording with what a review needs, in one file: RECORD.analysis.safetensors.

The header of the file has what is no array. It is written once, atomically, and read in a fraction of a second.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from heartlm.analysis.findings import Event, Findings
from heartlm.analysis.limits import Limits
from heartlm.databases.database import locate
from heartlm.databases.each_recording import source_digest
from heartlm.delineation.delineate import Delineation
from heartlm.delineation.intervals import Intervals
from heartlm.ecg.mains import HumFree
from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError
from heartlm.review.families import families_of
from heartlm.review.shapes import beat_vectors, beat_waves, features_of
from heartlm.storage.atomic import atomic_file, sha256_of

if TYPE_CHECKING:
    from heartlm.inference.finetuned import FineTuned

SCHEMA_VERSION = 1
ENDING = ".analysis.safetensors"
"""What follows the name of the recording in the name of the file."""
_ARRAYS = ("sample", "probability", "quality", "lost", "left_out", "paced", "disputed")
_TEXTS = ("notes", "made_by", "unlike", "kinds", "hum_hz", "short_af", "stated", "warnings", "unexamined")
_WAVES = ("waves", "confidence", "all_leads", "all_confidence")


@dataclass(frozen=True)
class Stored:
    """An analysed recording.

    Attributes:
        findings: the automatic result.
        waves: wave of each beat, float16 `[num_beats, num_leads, num_samples]`.
        features: see `features_of`.
        classes: probability of N, S, V and F by the best lead, float32 `[num_beats, 4]`.
        family: family of each beat, int32 `[num_beats]`.
        identity: digest of the results, which a journal names.
    """

    findings: Findings
    waves: NDArray[np.float16]
    features: NDArray[np.float32]
    classes: NDArray[np.float32]
    family: NDArray[np.int32]
    identity: str


def stored_of(findings: Findings, model: FineTuned) -> Stored:
    """Add waves, vectors and families to findings."""
    recording = HumFree(findings.recording).recording() if findings.hum_hz else findings.recording
    waves = beat_waves(recording, findings.sample, findings.leads)
    vectors, classes = beat_vectors(model, recording, findings.sample, findings.leads[0])
    features = features_of(findings.sample, recording.rate_hz, waves, vectors, classes)
    family = families_of(features, findings.symbol)
    digest = hashlib.sha256()
    for array in (findings.sample, findings.symbol, findings.probability, family):
        digest.update(np.ascontiguousarray(array).tobytes())
    digest.update(repr(findings.events).encode())
    return Stored(findings, waves, features, classes, family, digest.hexdigest()[:16])


def file_digests(recording: Recording) -> dict[str, str]:
    """Return digests that tell whether a recording is the analysed one: `source` of names and times, `content`.

    `content` is of the bytes of its files; of a recording in memory, of its samples.
    """
    try:
        database, record_id = locate(recording.path)
    except HeartlmError:
        digest = hashlib.sha256(repr((recording.rate_hz, recording.lead_names, recording.num_samples)).encode())
        length = round(3600 * recording.rate_hz)
        for start in range(0, recording.num_samples, length):
            digest.update(recording.signal(start, min(start + length, recording.num_samples)).tobytes())
        return {"source": "", "content": digest.hexdigest()[:16]}
    paths = sorted(path for path in database.signal_paths(record_id) if path.is_file())
    content = hashlib.sha256("".join(f"{path.name}{sha256_of(path)}" for path in paths).encode()).hexdigest()[:16]
    return {"source": source_digest(database, record_id), "content": content}


def is_same(known: dict[str, str], recording: Recording) -> bool:
    """Return whether the files of `recording` are those of `known`; they are read only if names or times differ."""
    if known["source"]:
        try:
            if source_digest(*locate(recording.path)) == known["source"]:
                return True
        except HeartlmError:
            return False
    return file_digests(recording)["content"] == known["content"]


def write_stored(path: Path, stored: Stored, digests: dict[str, str]) -> None:
    """Write the file of an analysed recording.

    Raises:
        HeartlmError: it cannot be written.
    """
    from safetensors.numpy import save

    found = stored.findings
    arrays = {name: getattr(found, name) for name in _ARRAYS}
    arrays["symbol"] = np.frombuffer("".join(found.symbol.tolist()).encode(), np.uint8)
    arrays |= {"beat_waves": stored.waves, "features": stored.features}
    arrays |= {"classes": stored.classes, "family": stored.family}
    facts: dict[str, Any] = {name: getattr(found, name) for name in _TEXTS}
    facts |= {"leads": found.leads, "limits": asdict(found.limits), "identity": stored.identity}
    for name in ("events", "by_waveform"):
        facts[name] = [_plain(event) for event in getattr(found, name)]
    if found.waves is not None:
        delineation = found.waves.delineation
        facts["waves"] = {"leads": delineation.leads}
        arrays |= {f"delineation.{name}": getattr(delineation, name) for name in _WAVES}
        arrays |= {f"intervals.{name}": of for name, of in found.waves.intervals.items()}
        arrays |= {f"amplitudes.{name}": of for name, of in found.waves.amplitudes.items()}
    head = {"schema_version": SCHEMA_VERSION, "record": found.recording.record_id, "files": digests, **facts}
    head["path"] = str(Path(found.recording.path).absolute())
    with atomic_file(path, "wb") as stream:
        # The library writes the bytes as they lie: rows of an array that is stored by columns would be mixed up.
        arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        stream.write(save(arrays, {"review": json.dumps(head, default=lambda value: value.item())}))


def recording_of(path: Path) -> Path:
    """Return the path of the recording whose analysis a file holds.

    Raises:
        HeartlmError: it cannot be read, or does not tell.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            return Path(json.loads((file.metadata() or {})["review"])["path"])
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise HeartlmError(
            f"{path}: no analysis that tells its recording ({type(error).__name__}: {error}); name the recording, and "
            "this folder as --out"
        ) from error


def read_stored(path: Path, recording: Recording) -> tuple[Stored, dict[str, Any]]:
    """Read the file of an analysed recording; return it with its head.

    Raises:
        HeartlmError: it cannot be read, or is of another version.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            head = json.loads((file.metadata() or {})["review"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if head["schema_version"] != SCHEMA_VERSION:
            raise HeartlmError(
                f"{path}: schema_version {head['schema_version']} found, {SCHEMA_VERSION} expected: written by another "
                "version of heartlm; move it away with its journal to analyse again"
            )
        events: dict[str, Any] = {
            name: tuple(_event(each) for each in head[name]) for name in ("events", "by_waveform")
        }
        texts: dict[str, Any] = {name: tuple(of) if isinstance(of := head[name], list) else of for name in _TEXTS}
        texts["hum_hz"] = {lead: tuple(hz) for lead, hz in texts["hum_hz"].items()}
        waves = None
        if "waves" in head:
            leads = tuple(head["waves"]["leads"])
            parts = {name: arrays[f"delineation.{name}"] for name in _WAVES}
            delineation = Delineation(recording, leads, arrays["sample"], **parts, other_p=())
            named = [
                {name.partition(".")[2]: of for name, of in arrays.items() if name.startswith(group)}
                for group in ("intervals.", "amplitudes.")
            ]
            waves = Intervals(delineation, *named)
        findings = Findings(
            recording=recording,
            leads=tuple(head["leads"]),
            symbol=arrays["symbol"].view("S1").astype("<U1"),
            waves=waves,
            limits=Limits(**head["limits"]),
            **{name: arrays[name] for name in _ARRAYS},
            **events,
            **texts,
        )
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise HeartlmError(
            f"{path}: no analysis that a review can open ({type(error).__name__}: {error}); "
            "move it away to analyse again"
        ) from error
    stored = Stored(
        findings, arrays["beat_waves"], arrays["features"], arrays["classes"], arrays["family"], head["identity"]
    )
    return stored, head


def _plain(event: Event) -> dict[str, Any]:
    """Return an event as JSON: NaN, which JSON has not, as None."""
    return {name: None if value != value else value for name, value in asdict(event).items()}


def _event(value: dict[str, Any]) -> Event:
    known: dict[str, Any] = {name: float("nan") if each is None else each for name, each in value.items()}
    return Event(**known)
