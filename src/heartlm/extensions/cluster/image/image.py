"""The image definition."""

from __future__ import annotations

import hashlib
import re
from base64 import urlsafe_b64encode
from importlib.metadata import distribution
from importlib.resources import files
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

from heartlm import __version__
from heartlm.errors import HeartlmError
from heartlm.extensions.cluster.script import one_line
from heartlm.storage.atomic import atomic_file, cache_folder

BASE = "nvidia/cuda:13.0.2-runtime-ubuntu24.04"
"""Base image, by its name in the default registry."""

INSTALLED_FROM = ("src", "pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE", "constraints.txt")
"""Files and folders of a source tree that an installation needs."""

CHECKOUT = Path(__file__).resolve().parents[5]
"""Source tree of this heartlm, unless it was installed from a wheel."""


_FOLDER = files("heartlm.extensions.cluster.image")


def script(name: str) -> str:
    """Return the text of post.sh, check.sh or heartlm.def."""
    return (_FOLDER / name).read_text(encoding="utf-8")


def definition(source: Path | None = None, base: str = BASE) -> str:
    """Return the Apptainer definition of an image with the heartlm of a source tree.

    Args:
        source: source tree; by default that of this heartlm, or if it was installed from a wheel, what is installed.
        base: base image.

    Raises:
        HeartlmError: `source` is no source tree, its constraints do not pin torch, or what is installed cannot be read.
    """
    if source is None and not all((CHECKOUT / name).exists() for name in INSTALLED_FROM):
        wheel, constraints = installed_wheel(cache_folder() / "image"), Path(str(_FOLDER / "constraints.txt"))
        copied = {wheel: wheel.name, constraints: constraints.name}
    else:
        source = CHECKOUT if source is None else source
        for name in INSTALLED_FROM:
            if not (source / name).exists():
                raise HeartlmError(
                    f"source: {source} has no {name}, a checkout of heartlm expected: give --source FOLDER"
                )
        constraints, copied = source / "constraints.txt", {source / name: name for name in INSTALLED_FROM}
    torch = re.search(r"^torch==\S+$", constraints.read_text(encoding="utf-8"), re.MULTILINE)
    if torch is None:
        raise HeartlmError(f"{constraints}: no line torch==VERSION, which the image is made with")
    filled = {
        "base": one_line(base),
        "version": __version__,
        "torch": torch[0],
        "files": "\n".join(one_line(f"    {path} /opt/heartlm/source/{name}") for path, name in copied.items()),
        "post": script("post.sh").rstrip(),
        "check": script("check.sh").rstrip(),
    }
    return re.sub(r"\{(\w+)\}", lambda match: filled[match[1]], script("heartlm.def"))


def installed_wheel(folder: Path) -> Path:
    """Write the installed heartlm as a wheel again, in `folder`, and return its path.

    Raises:
        HeartlmError: a file is missing, or the folder cannot be written.
    """
    installed = distribution("heartlm")
    # Programs lie outside of the packages, and pip makes them again; the table of files is written again, too.
    inside = [file for file in installed.files or () if ".." not in file.parts and file.suffix != ".pyc"]
    about = next((file.parent for file in inside if file.name == "WHEEL"), None)
    if about is None:
        raise HeartlmError("source: this heartlm was not installed from a wheel: give --source FOLDER, a checkout")
    kept = [file for file in inside if file.parent != about or file.name in ("METADATA", "WHEEL", "entry_points.txt")]
    kept += [file for file in inside if file.parts[:2] == (*about.parts, "licenses")]
    tag = re.search(r"^Tag: (\S+)$", installed.read_text("WHEEL") or "", re.MULTILINE)
    path = folder / f"heartlm-{installed.version}-{tag[1] if tag else 'py3-none-any'}.whl"
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_file(path, "wb") as stream, ZipFile(stream, "w", ZIP_DEFLATED) as archive:
        rows = []
        for file in dict.fromkeys(kept):
            try:
                content = Path(str(file.locate())).read_bytes()
            except OSError as error:
                raise HeartlmError(f"{file.locate()}: {error.strerror}: install heartlm again") from error
            digest = urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            archive.writestr(str(file), content)
            rows.append(f"{file},sha256={digest},{len(content)}")
        archive.writestr(f"{about}/RECORD", "\n".join([*rows, f"{about}/RECORD,,", ""]))
    return path
