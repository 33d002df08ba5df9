"""Results of others, drawn next to those of a study: `marks.yaml` in its folder.

source: "published: Mileski et al., MIPRO 2025, A100"
speedup: {1: 1.0, 2: 1.6, 4: 1.9}      # by number of ranks
efficiency: {2: 0.75, 4: 0.5}          # if it is not the speedup over the number of ranks
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from heartlm.storage.reading import read_yaml
from heartlm.storage.typed import typed

FILE = "marks.yaml"


@dataclass(frozen=True)
class Marks:
    """Results of others.

    Attributes:
        source: what they are, for the page.
        speedup: speedup by number of ranks.
        efficiency: efficiency by number of ranks, where it is stated.
    """

    source: str = ""
    speedup: dict[int, float] = field(default_factory=dict)
    efficiency: dict[int, float] = field(default_factory=dict)


def load_marks(study: Path) -> Marks:
    """Return the marks of a study; without the file there are none.

    Raises:
        HeartlmError: the file has a field that is unknown or of another type.
    """
    path = study / FILE
    return typed(Marks, read_yaml(path, "results of others"), path) if path.exists() else Marks()
