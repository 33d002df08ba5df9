"""Beat annotation codes and their AAMI classes.

The WFDB beat codes map to the five classes of ANSI/AAMI EC57: N (normal and bundle branch block),
S (supraventricular ectopic), V (ventricular ectopic), F (fusion of the two) and Q (paced, or not classifiable).
Codes outside the table are not heartbeats.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

BEAT_CLASSES: tuple[str, ...] = ("N", "S", "V", "F", "Q")
"""AAMI classes. The position of a class is its index in corpora and scores."""

UNLABELLED = -1
"""Index of an unlabelled beat or rhythm."""

AAMI_SYMBOLS: dict[str, str] = {"N": "NLRej", "S": "AaJS", "V": "VE", "F": "F", "Q": "/fQ"}
"""WFDB beat codes by AAMI class (ANSI/AAMI EC57:2012, as used by de Chazal 2004)."""

CLASS_OF_SYMBOL: dict[str, int] = {
    symbol: BEAT_CLASSES.index(name) for name, symbols in AAMI_SYMBOLS.items() for symbol in symbols
}


def is_beat(symbols: Iterable[str]) -> NDArray[np.bool_]:
    """Return for each WFDB code whether it marks a heartbeat; shape `[num_symbols]`."""
    return np.fromiter((symbol in CLASS_OF_SYMBOL for symbol in symbols), dtype=np.bool_)


def aami_classes(symbols: Iterable[str]) -> NDArray[np.int8]:
    """Map WFDB codes to indices into `BEAT_CLASSES`, or `UNLABELLED` if the code is not a beat; `[num_symbols]`."""
    return np.fromiter((CLASS_OF_SYMBOL.get(symbol, UNLABELLED) for symbol in symbols), dtype=np.int8)
