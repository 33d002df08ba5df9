"""The definition of the image, building it with Apptainer, and doing the same without to see that it would work."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
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
    """The text of post.sh, check.sh or heartlm.def."""
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


def build(checkout: Path, out: Path, base: str = BASE) -> None:
    """Build the image `out` from a checkout.

    Raises:
        HeartlmError: there is no Apptainer, or it failed; it has said why.
    """
    program = shutil.which("apptainer") or shutil.which("singularity")
    if program is None:
        raise HeartlmError(
            "apptainer: no such command: install it, or load its module, or build on another machine (one with root or "
            "user namespaces) and copy the image; --definition prints what to build, heartlm image test does without"
        )
    out = out.resolve()
    with tempfile.TemporaryDirectory(prefix="heartlm-image-") as name:
        folder = Path(name)
        copy_source(checkout, folder / "source")
        recipe = folder / "heartlm.def"
        recipe.write_text(definition(folder / "source", pinned_torch(checkout), base), encoding="utf-8")
        _run([program, "build", "--force", str(out), str(recipe)], {}, "apptainer build")


def test_in_environment(checkout: Path, folder: Path) -> None:
    """Do what the image does, then what checks it, in a new virtual environment in `folder`.

    Raises:
        HeartlmError: `folder` is there already, or a step failed; it has said why.
    """
    if folder.exists():
        raise HeartlmError(f"{folder} exists: give a folder that does not, for a clean environment")
    with tempfile.TemporaryDirectory(prefix="heartlm-image-") as name:
        source = Path(name) / "source"
        copy_source(checkout, source)
        variables = {
            "HEARTLM_PREFIX": str(folder.resolve()),
            "HEARTLM_SOURCE": str(source),
            "HEARTLM_PYTHON": sys.executable,
        }
        for step in ("post.sh", "check.sh"):
            _run(["bash", "-c", script(step)], variables, step)


def _run(words: Sequence[str], variables: Mapping[str, str], what: str) -> None:
    """Run a program, with its output where ours goes.

    Raises:
        HeartlmError: it failed.
    """
    settled = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(words, env=settled | dict(variables), check=False)
    if done.returncode != 0:
        raise HeartlmError(f"{what}: ended with status {done.returncode}; what it said stands above")
