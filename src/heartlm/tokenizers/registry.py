"""Which tokenizers there are, by the name used on the command line."""

from __future__ import annotations

from heartlm.errors import HeartlmError
from heartlm.tokenizers.base import Tokenizer

KINDS: tuple[str, ...] = ("beat", "rhythm", "sample", "bpe", "millivolts")


def tokenizer_class(kind: str) -> type[Tokenizer]:
    """Return the class of the tokenizer called `kind`.

    Raises:
        HeartlmError: there is none of that name.
    """
    from heartlm.tokenizers.beat import BeatTokenizer
    from heartlm.tokenizers.bpe import BPETokenizer
    from heartlm.tokenizers.millivolts import MillivoltTokenizer
    from heartlm.tokenizers.rhythm import RhythmTokenizer
    from heartlm.tokenizers.sample import SampleTokenizer

    classes: dict[str, type[Tokenizer]] = {
        "beat": BeatTokenizer,
        "rhythm": RhythmTokenizer,
        "sample": SampleTokenizer,
        "bpe": BPETokenizer,
        "millivolts": MillivoltTokenizer,
    }
    if kind not in classes:
        raise HeartlmError(f"tokenizer: {kind!r} found, one of {', '.join(classes)} expected")
    return classes[kind]
