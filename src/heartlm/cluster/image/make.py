"""Building the image with Apptainer, and doing the same without it to see that it would work."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from heartlm.cluster.image.recipe import BASE, copy_source, definition, pinned_torch, script
from heartlm.errors import HeartlmError

OWN_CERTIFICATES = Path("/usr/local/share/ca-certificates")


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


def test_in_chroot(checkout: Path, root: Path, suite: str = "stable") -> None:
    """Do what the image does, then what checks it, in a bare Debian below `root`; one is made there if there is none.

    Raises:
        HeartlmError: this is not root, there is no debootstrap, or a step failed; it has said why.
    """
    if os.geteuid() != 0:
        raise HeartlmError("chroot: only root may do that: leave --chroot out for a virtual environment")
    if not (root / "bin" / "bash").exists():
        if shutil.which("debootstrap") is None:
            raise HeartlmError("debootstrap: no such command: apt-get install debootstrap, or leave --chroot out")
        _run(["debootstrap", "--variant=minbase", suite, str(root)], {}, "debootstrap")
    inside = root / "opt" / "heartlm"
    if inside.exists():
        raise HeartlmError(f"{inside} exists: remove it, for a clean installation")
    copy_source(checkout, inside / "source")
    for name in ("/etc/resolv.conf", "/etc/pip.conf"):
        if Path(name).is_file():
            shutil.copy(name, root / name.lstrip("/"))
    if OWN_CERTIFICATES.is_dir():  # what this machine trusts beside the usual, its own mirror of packages perhaps
        shutil.copytree(OWN_CERTIFICATES, root / OWN_CERTIFICATES.relative_to("/"), dirs_exist_ok=True)
    variables = {
        "HEARTLM_PREFIX": "/opt/heartlm/python",
        "HEARTLM_SOURCE": "/opt/heartlm/source",
        "HEARTLM_PYTHON": "python3",
        "HEARTLM_SYSTEM": "yes",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    }
    for step in ("post.sh", "check.sh"):
        _run(["chroot", str(root), "/bin/bash", "-c", script(step)], variables, step)


def _run(words: Sequence[str], variables: Mapping[str, str], what: str) -> None:
    """Run a program, what it says going where ours goes.

    Raises:
        HeartlmError: it failed.
    """
    settled = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(words, env=settled | dict(variables), check=False)
    if done.returncode != 0:
        raise HeartlmError(f"{what}: ended with status {done.returncode}; what it said stands above")
