"""The image definition."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

from heartlm import __version__
from heartlm.errors import HeartlmError
from heartlm.extensions.cluster.script import one_line

BASE = "nvidia/cuda:13.0.2-runtime-ubuntu24.04"
"""Base image, by its name in the default registry."""

INSTALLED_FROM = ("src", "pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE", "constraints.txt")
"""Files and folders of a source tree that an installation needs."""

CHECKOUT = Path(__file__).resolve().parents[5]
"""Source tree of this heartlm, unless it was installed from a wheel."""


def script(name: str) -> str:
    """Return the text of post.sh, check.sh or heartlm.def."""
    return (files("heartlm.extensions.cluster.image") / name).read_text(encoding="utf-8")


def definition(source: Path = CHECKOUT, base: str = BASE) -> str:
    """Return the Apptainer definition of an image with the heartlm of a source tree.

    Raises:
        HeartlmError: `source` is no source tree, or its constraints do not pin torch.
    """
    for name in INSTALLED_FROM:
        if not (source / name).exists():
            raise HeartlmError(f"source: {source} has no {name}, a checkout of heartlm expected: give --source FOLDER")
    constraints = source / "constraints.txt"
    torch = re.search(r"^torch==\S+$", constraints.read_text(encoding="utf-8"), re.MULTILINE)
    if torch is None:
        raise HeartlmError(f"{constraints}: no line torch==VERSION, which the image is made with")
    filled = {
        "base": one_line(base),
        "version": __version__,
        "torch": torch[0],
        "files": "\n".join(one_line(f"    {source}/{name} /opt/heartlm/source/{name}") for name in INSTALLED_FROM),
        "post": script("post.sh").rstrip(),
        "check": script("check.sh").rstrip(),
    }
    return re.sub(r"\{(\w+)\}", lambda match: filled[match[1]], script("heartlm.def"))
