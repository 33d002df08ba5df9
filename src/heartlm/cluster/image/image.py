"""The image definition, and its build with Apptainer."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from importlib.resources import files
from pathlib import Path

from heartlm import __version__
from heartlm.cluster.script import one_line
from heartlm.errors import HeartlmError

BASE = "nvidia/cuda:13.0.2-runtime-ubuntu24.04"
"""Base image, by its name in the default registry."""

INSTALLED_FROM = ("src", "pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE", "constraints.txt")
"""Files and folders of a source tree that an installation needs."""

_HERE = files("heartlm.cluster.image")


def script(name: str) -> str:
    """Return the text of post.sh, check.sh or heartlm.def."""
    return (_HERE / name).read_text(encoding="utf-8")


def checkout(source: Path | None) -> Path:
    """Return the source tree for the image: `source`, or the one of this heartlm.

    Raises:
        HeartlmError: there is no source tree.
    """
    folder = Path(__file__).resolve().parents[4] if source is None else source
    missing = [name for name in INSTALLED_FROM if not (folder / name).exists()]
    if missing and source is None:
        raise HeartlmError("source: nothing found, a checkout of heartlm expected: give --source FOLDER")
    if missing:
        raise HeartlmError(f"source: {folder} has no {missing[0]}; a checkout of heartlm expected")
    return folder


def copy_source(checkout: Path, to: Path) -> None:
    """Copy the installation files of a source tree to the new folder `to`."""
    to.mkdir(parents=True)
    for name in INSTALLED_FROM:
        if (checkout / name).is_dir():
            shutil.copytree(checkout / name, to / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            shutil.copy(checkout / name, to / name)


def pinned_torch(checkout: Path) -> str:
    """Return the torch version in the constraints, for example `torch==2.13.0`.

    Raises:
        HeartlmError: the constraints do not pin torch.
    """
    match = re.search(r"^torch==\S+$", (checkout / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    if match is None:
        raise HeartlmError(f"{checkout / 'constraints.txt'}: no line torch==VERSION, which the image is made with")
    return match[0]


def definition(source: Path, torch: str, base: str = BASE) -> str:
    """Return the Apptainer definition.

    Args:
        source: folder with the installation files, as written by `copy_source`.
        torch: torch requirement of the image.
        base: base image.
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
    """Build the image `out` from a source tree.

    Raises:
        HeartlmError: Apptainer is missing or failed; its output has the reason.
    """
    program = shutil.which("apptainer") or shutil.which("singularity")
    if program is None:
        raise HeartlmError(
            "apptainer: no such command: install it, or load its module, or build on another machine (one with root or "
            "user namespaces) and copy the image; --definition prints what to build"
        )
    out = out.resolve()
    with tempfile.TemporaryDirectory(prefix="heartlm-image-") as name:
        folder = Path(name)
        copy_source(checkout, folder / "source")
        recipe = folder / "heartlm.def"
        recipe.write_text(definition(folder / "source", pinned_torch(checkout), base), encoding="utf-8")
        settled = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        done = subprocess.run([program, "build", "--force", str(out), str(recipe)], env=settled, check=False)
    if done.returncode != 0:
        raise HeartlmError(f"apptainer build: ended with status {done.returncode}; what it said stands above")
