"""The definition of the image, and the part of a checkout that it is made from. Pure but for the files it copies."""

from __future__ import annotations

import re
import shutil
from importlib.resources import files
from pathlib import Path

from heartlm import __version__
from heartlm.cluster.script import one_line
from heartlm.errors import HeartlmError

BASE = "nvidia/cuda:13.0.2-runtime-ubuntu24.04"
"""The image it begins with, by its name in the usual registry."""

INSTALLED_FROM = ("src", "pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE", "constraints.txt")
"""What of a checkout an installation needs."""

_HERE = files("heartlm.cluster.image")


def script(name: str) -> str:
    """The text of post.sh or check.sh."""
    return (_HERE / name).read_text(encoding="utf-8")


def checkout(source: Path | None) -> Path:
    """The checkout to make the image from: `source`, or where this heartlm lies.

    Raises:
        HeartlmError: there is none.
    """
    folder = Path(__file__).resolve().parents[4] if source is None else source
    missing = [name for name in INSTALLED_FROM if not (folder / name).exists()]
    if missing and source is None:
        raise HeartlmError("source: nothing found, a checkout of heartlm expected: give --source FOLDER")
    if missing:
        raise HeartlmError(f"source: {folder} has no {missing[0]}; a checkout of heartlm expected")
    return folder


def copy_source(checkout: Path, to: Path) -> None:
    """Copy what an installation needs from a checkout to the new folder `to`."""
    to.mkdir(parents=True)
    for name in INSTALLED_FROM:
        if (checkout / name).is_dir():
            shutil.copytree(checkout / name, to / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(checkout / name, to / name)


def pinned_torch(checkout: Path) -> str:
    """The version of torch that the constraints pin, for example `torch==2.13.0`.

    Raises:
        HeartlmError: they pin none.
    """
    match = re.search(r"^torch==\S+$", (checkout / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    if match is None:
        raise HeartlmError(f"{checkout / 'constraints.txt'}: no line torch==VERSION, which the image is made with")
    return match[0]


def definition(source: Path, torch: str, base: str = BASE) -> str:
    """The Apptainer definition.

    Args:
        source: the folder with the installation's files, as `copy_source` leaves it.
        torch: the version it is made with.
        base: the image it begins with.
    """
    filled = {
        "base": one_line(base),
        "version": __version__,
        "torch": torch,
        "source": one_line(str(source)),
        "post": script("post.sh").rstrip(),
        "check": script("check.sh").rstrip(),
    }
    return re.sub(r"\{(\w+)\}", lambda match: filled[match[1]], script("heartlm.def"))
