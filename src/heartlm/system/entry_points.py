"""Entry points of the installed distributions, which is how other packages add to this one.

`importlib.metadata` gives the same and takes half as long to import as `heartlm --help` takes. What is read here is
what the packaging standard defines: `NAME.dist-info/entry_points.txt` of each folder of `sys.path`. Distributions in
zip files are not seen.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any, NamedTuple


class EntryPoint(NamedTuple):
    """An object that a distribution offers.

    Attributes:
        name: name of the object.
        reference: where it is, `module:attribute`.
        distribution: folder of the distribution's metadata.
    """

    name: str
    reference: str
    distribution: str

    def load(self) -> Any:
        """Import the object."""
        module, _, attribute = self.reference.partition(":")
        return getattr(import_module(module.strip()), attribute.strip())


def entry_points(group: str) -> list[EntryPoint]:
    """Return the entry points of `group`, in the order of `sys.path`, of folders and of files."""
    points, seen, heading = list[EntryPoint](), set[str](), f"[{group}]"
    for folder in sys.path:
        try:
            names = sorted(os.listdir(folder or "."))  # noqa: PTH208
        except OSError:  # absent, or a zip file
            continue
        for name in names:
            if not name.endswith((".dist-info", ".egg-info")):
                continue
            distribution = name.rpartition(".")[0].partition("-")[0].lower().replace("_", "-").replace(".", "-")
            if distribution in seen:  # Python imports the first of two installations
                continue
            seen.add(distribution)
            file = os.path.join(folder, name, "entry_points.txt")  # noqa: PTH118  pathlib takes longer for 200 of them
            try:
                with open(file, encoding="utf-8") as text:  # noqa: PTH123
                    lines = text.read().splitlines()
            except (OSError, ValueError):  # it has none, or text in another encoding
                continue
            section = ""
            for line in map(str.strip, lines):
                if line.startswith("["):
                    section = line
                elif section == heading and "=" in line and not line.startswith(("#", ";")):
                    key, _, reference = line.partition("=")
                    points.append(EntryPoint(key.strip(), reference.strip(), name))
    return points
