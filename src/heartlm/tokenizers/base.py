"""Base class of all tokenizers: fit on recordings, encode to facets of codes, decode, save and load.

A saved tokenizer is a folder with `tokenizer.json` (settings, facets, databases it was fitted on) and, if it has
arrays, `tensors.safetensors`. Its content hash identifies it. Corpora and models store the hash, and a model refuses
tokens of another tokenizer.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Self, get_args

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.recording import Annotations
from heartlm.errors import HeartlmError
from heartlm.storage.atomic import atomic_folder
from heartlm.storage.reading import read_json, refuse_irregular
from heartlm.storage.typed import Checked
from heartlm.tokenizers.registry import TokenizerName

SCHEMA_VERSION = 1

KINDS: tuple[str, ...] = get_args(TokenizerName)


@dataclass(frozen=True)
class Facet:
    """One of the codes (facets) of a token.

    Attributes:
        name: name of the facet, for example `"shape_0"` or `"rr"`.
        size: number of codes; a code is 0 … `size` − 1.
        causal: whether the code depends only on the signal up to the end of the beat's window.
    """

    name: str
    size: int
    causal: bool = True


@dataclass(frozen=True)
class Tokens:
    """Tokens of one lead of one recording, in time order.

    Attributes:
        codes: codes of each token, uint16 `[num_tokens, num_facets]`.
        sample: position in the recording, int64 `[num_tokens]`.
        beat_class: AAMI class index, −1 if unlabelled, int8 `[num_tokens]`.
        rhythm: rhythm index, −1 if unlabelled, int8 `[num_tokens]`.
        scale_mv: millivolts per unit of the decoded waveform, float32 `[num_tokens]`; NaN without a waveform.
    """

    codes: NDArray[np.uint16]
    sample: NDArray[np.int64]
    beat_class: NDArray[np.int8]
    rhythm: NDArray[np.int8]
    scale_mv: NDArray[np.float32]

    @property
    def num_tokens(self) -> int:
        """Number of tokens."""
        return len(self.codes)


@dataclass(frozen=True)
class Lead:
    """One lead of a recording with its heartbeats, the input of a tokenizer.

    Attributes:
        annotations: heartbeats and rhythms, in samples of this lead.
        signal_mv: all samples, float32 `[num_samples]`, NaN where invalid; empty if there is no signal.
        index: index of the lead in the recording.
    """

    annotations: Annotations
    signal_mv: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    index: int = 0

    @property
    def rate_hz(self) -> float:
        """Sampling rate in Hz."""
        return self.annotations.rate_hz


@dataclass(frozen=True)
class TokenizerSettings(Checked):
    """What a new tokenizer can be given, as documented fields; a tokenizer without settings uses this class."""


@dataclass
class Tokenizer(ABC):
    """Base class of all tokenizers.

    Attributes:
        takes: class of the settings.
        fitted_on: training data of the tokenizer: database names, record count, split; empty before `fit`.
    """

    kind: ClassVar[TokenizerName]
    takes: ClassVar[type[TokenizerSettings]] = TokenizerSettings
    needs_signal: ClassVar[bool] = True
    needs_beats: ClassVar[bool] = True
    needs_fitting: ClassVar[bool] = True

    fitted_on: dict[str, Any] = field(default_factory=dict, kw_only=True)

    @classmethod
    def of(cls, settings: TokenizerSettings) -> Self:
        """Return a new tokenizer with `settings`, an instance of `takes`."""
        return cls(**vars(settings))

    @property
    def reads_signal(self) -> bool:
        """Whether the tokenizer uses the signal if there is one; `needs_signal` states whether it requires one."""
        return self.needs_signal

    @property
    @abstractmethod
    def facets(self) -> tuple[Facet, ...]:
        """Facets of a token, in order."""

    def fit(self, leads: Iterable[Lead], seed: int = 0) -> None:  # noqa: B027 - fixed levels have nothing to fit
        """Fit the tokenizer on `leads` of the training split; do nothing if the levels are fixed."""

    @abstractmethod
    def encode(self, lead: Lead) -> Tokens:
        """Encode one lead as tokens."""

    @abstractmethod
    def geometry(self) -> list[NDArray[np.float32]]:
        """Return the coordinates of the codes of each facet, float32 `[size, num_coordinates]` per facet.

        Codes with similar meaning have similar coordinates; the model initialises its embeddings from them.
        """

    def settings(self) -> dict[str, Any]:
        """Return the JSON settings that, with the arrays, rebuild this tokenizer; the schema defines fixed levels."""
        return {}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the fitted arrays by name; empty for tokenizers without arrays."""
        return {}

    @classmethod
    def restore(cls, settings: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Self:
        """Rebuild a tokenizer from `settings` and `arrays`."""
        return cls(**settings)

    @property
    def causal(self) -> bool:
        """Whether every facet is causal, so that live streams can be tokenised."""
        return all(facet.causal for facet in self.facets)

    def describe(self) -> dict[str, Any]:
        """Return the JSON form: kind, settings, facets, training data."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": self.kind,
            "causal": self.causal,
            "facets": [vars(facet) for facet in self.facets],
            "settings": self.settings(),
            "fitted_on": self.fitted_on,
        }

    def content_hash(self) -> str:
        """Return the SHA-256 of the JSON form and all arrays, as 64 hexadecimal digits."""
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
        HeartlmError: there is no such tokenizer.
    """
    if kind not in KINDS:
        raise HeartlmError(f"tokenizer: {kind!r} found, one of {', '.join(KINDS)} expected")
    cls: type[Tokenizer] = import_module(f"heartlm.tokenizers.{kind}").TOKENIZER
    return cls


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load the tokenizer saved in `folder`.

    Raises:
        HeartlmError: there is no tokenizer, its schema version or kind is unknown, or its content does not match its
            hash.
    """
    from safetensors.numpy import load_file

    path = Path(folder) / "tokenizer.json"
    saved = read_json(path, dict[str, Any])
    version = saved.get("schema_version")
    if version != SCHEMA_VERSION:
        raise HeartlmError(f"{path}: schema version {version} found, {SCHEMA_VERSION} expected: tokenize again")
    tensors = Path(folder) / "tensors.safetensors"
    refuse_irregular(tensors)
    try:
        arrays = load_file(tensors) if tensors.exists() else {}
        tokenizer = tokenizer_class(saved["kind"]).restore(saved["settings"], arrays)
        tokenizer.fitted_on, expected = saved["fitted_on"], saved["content_hash"]
        actual = tokenizer.content_hash()
    except HeartlmError:
        raise
    except Exception as error:
        raise HeartlmError(f"{folder}: the tokenizer cannot be read ({error!r}): tokenize again") from error
    if actual != expected:
        raise HeartlmError(f"{folder}: the tokenizer does not match its content hash: it was changed, tokenize again")
    return tokenizer
