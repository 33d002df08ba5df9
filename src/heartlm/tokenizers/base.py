"""What every tokenizer is: fit on recordings, encode to facets of codes, decode back, save and load.

An artefact is a folder with `tokenizer.json` (settings, facets, what it was fitted on) and, where there are arrays,
`tensors.safetensors`. Its content hash names it: corpora and models carry the hash, and a model refuses tokens of
another tokenizer.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.recording import Annotations, Recording
from heartlm.errors import HeartlmError
from heartlm.files import atomic_folder, read_json

SCHEMA_VERSION = 1

_CLASSES = {
    "beat": "BeatTokenizer",
    "rhythm": "RhythmTokenizer",
    "sample": "SampleTokenizer",
    "bpe": "BPETokenizer",
    "millivolts": "MillivoltTokenizer",
}
"""Of each kind, which is also the name of its module."""

KINDS: tuple[str, ...] = tuple(_CLASSES)


@dataclass(frozen=True)
class Facet:
    """One of the codes of a token.

    Attributes:
        name: for example `"shape_0"` or `"rr"`.
        size: number of codes; a code is 0 … `size` − 1.
        causal: whether it follows from the signal up to the end of the beat's own window.
    """

    name: str
    size: int
    causal: bool = True


@dataclass(frozen=True)
class Tokens:
    """The tokens of one lead of one recording, in order of time.

    Attributes:
        codes: uint16 `[num_tokens, num_facets]`.
        sample: position in the recording, int64 `[num_tokens]`.
        beat_class: AAMI class index, −1 unlabelled, int8 `[num_tokens]`.
        rhythm: rhythm index, −1 unlabelled, int8 `[num_tokens]`.
        scale_mv: what one unit of the decoded waveform is worth, float32 `[num_tokens]`; NaN without a waveform.
    """

    codes: NDArray[np.uint16]
    sample: NDArray[np.int64]
    beat_class: NDArray[np.int8]
    rhythm: NDArray[np.int8]
    scale_mv: NDArray[np.float32]

    @property
    def num_tokens(self) -> int:
        """How many tokens there are."""
        return len(self.codes)


@dataclass(frozen=True)
class Lead:
    """One lead of a recording with its heartbeats: what a tokenizer reads.

    Attributes:
        annotations: heartbeats and rhythms, in samples of this lead.
        signal_mv: all samples, float32 `[num_samples]`, NaN where invalid; empty where there is no signal.
        index: place among the leads of the recording.
    """

    annotations: Annotations
    signal_mv: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    index: int = 0

    @classmethod
    def read(cls, recording: Recording, annotations: Annotations, index: int = 0) -> Lead:
        """Read the whole lead `index` of `recording`.

        Raises:
            HeartlmError: there is no signal, or it cannot be read.
        """
        return cls(annotations, recording.signal(leads=[index])[0], index)

    @property
    def rate_hz(self) -> float:
        """Samples a second."""
        return self.annotations.rate_hz


@dataclass
class Tokenizer(ABC):
    """Base of all tokenizers.

    Attributes:
        fitted_on: what the artefact learnt from: database names, record count, split; empty before `fit`.
    """

    kind: ClassVar[str]
    needs_signal: ClassVar[bool] = True
    needs_beats: ClassVar[bool] = True
    needs_fitting: ClassVar[bool] = True

    fitted_on: dict[str, Any] = field(default_factory=dict, kw_only=True)

    @property
    def reads_signal(self) -> bool:
        """Whether the signal is read where there is one; `needs_signal` says whether there has to be one."""
        return self.needs_signal

    @property
    @abstractmethod
    def facets(self) -> tuple[Facet, ...]:
        """The codes a token has, in order."""

    def fit(self, leads: Iterable[Lead], seed: int = 0) -> None:  # noqa: B027 - fixed levels have nothing to fit
        """Learn from `leads`, which come from the training split alone; nothing, where levels are fixed."""

    @abstractmethod
    def encode(self, lead: Lead) -> Tokens:
        """Turn one lead into tokens."""

    @abstractmethod
    def geometry(self) -> list[NDArray[np.float32]]:
        """Where the codes of each facet lie: float32 `[size, num_coordinates]` a facet.

        Codes that mean nearly the same have nearly the same coordinates; the model's embeddings start from them.
        """

    def settings(self) -> dict[str, Any]:
        """Everything JSON can hold that rebuilds this tokenizer, the arrays apart; fixed levels are the schema's."""
        return {}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The fitted arrays, by name; none for tokenizers that have none."""
        return {}

    @classmethod
    def restore(cls, settings: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Self:
        """Rebuild a tokenizer from `settings` and `arrays`."""
        return cls(**settings)

    @property
    def causal(self) -> bool:
        """Whether every facet is causal, so that a stream can be tokenised."""
        return all(facet.causal for facet in self.facets)

    def describe(self) -> dict[str, Any]:
        """The JSON form: kind, settings, facets, origin."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": self.kind,
            "causal": self.causal,
            "facets": [vars(facet) for facet in self.facets],
            "settings": self.settings(),
            "fitted_on": self.fitted_on,
        }

    def content_hash(self) -> str:
        """SHA-256 over the JSON form and every array, 64 hexadecimal digits."""
        digest = hashlib.sha256(json.dumps(self.describe(), sort_keys=True).encode())
        for name, array in sorted(self.arrays().items()):
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def save(self, folder: Path) -> None:
        """Write `tokenizer.json` and `tensors.safetensors` to `folder`, atomically."""
        from safetensors.numpy import save

        with atomic_folder(folder) as temporary:
            text = json.dumps({**self.describe(), "content_hash": self.content_hash()}, indent=2)
            (temporary / "tokenizer.json").write_text(text + "\n", encoding="utf-8")
            if arrays := self.arrays():
                (temporary / "tensors.safetensors").write_bytes(save(arrays))


def tokenizer_class(kind: str) -> type[Tokenizer]:
    """Return the class of the tokenizer called `kind`.

    Raises:
        HeartlmError: there is none of that name.
    """
    if kind not in _CLASSES:
        raise HeartlmError(f"tokenizer: {kind!r} found, one of {', '.join(KINDS)} expected")
    found: type[Tokenizer] = getattr(import_module(f"heartlm.tokenizers.{kind}"), _CLASSES[kind])
    return found


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load the tokenizer saved in `folder`.

    Raises:
        HeartlmError: nothing is there, it is of another schema version or kind, or its content does not match its hash.
    """
    from safetensors.numpy import load_file

    path = Path(folder) / "tokenizer.json"
    saved = read_json(path, dict[str, Any])
    version = saved.get("schema_version")
    if version != SCHEMA_VERSION:
        raise HeartlmError(f"{path}: schema version {version} found, {SCHEMA_VERSION} expected: tokenize again")
    tensors = Path(folder) / "tensors.safetensors"
    try:
        arrays = load_file(tensors) if tensors.exists() else {}
        tokenizer = tokenizer_class(saved["kind"]).restore(saved["settings"], arrays)
        tokenizer.fitted_on, expected = saved["fitted_on"], saved["content_hash"]
        found = tokenizer.content_hash()
    except HeartlmError:
        raise
    except Exception as error:
        raise HeartlmError(f"{folder}: the tokenizer cannot be read ({error!r}): tokenize again") from error
    if found != expected:
        raise HeartlmError(f"{folder}: the tokenizer does not match its content hash: it was changed, tokenize again")
    return tokenizer
