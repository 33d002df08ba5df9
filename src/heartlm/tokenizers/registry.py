"""All tokenizers, by name. Imports nothing, so that settings and `--help` know the names at once."""

from __future__ import annotations

from typing import Literal

TokenizerName = Literal["beat", "rhythm", "sample", "millivolts"]
"""Each is a file of this room with a `TOKENIZER`; see `heartlm.tokenizers.base.tokenizer_class`."""
