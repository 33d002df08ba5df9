"""A release has all files and its kernels, installs, and works where there is no compiler."""

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (shutil.which("make") and (ROOT / ".git").exists()), reason="needs make and a git checkout"),
]


def run(*command: str | Path, **options) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel for this processor, made by `make dist` in a copy of the checkout."""
    checkout = tmp_path_factory.mktemp("release") / "checkout"
    for name in run("git", "-C", ROOT, "ls-files", "-coz", "--exclude-standard").split("\0")[:-1]:
        if (ROOT / name).is_file():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, checkout / name)
    run("make", "-C", checkout, "dist", f"PYTHON={sys.executable}", f"PROCESSORS={os.uname().machine}")
    (built,) = (checkout / "dist").glob("*.whl")
    return built


def test_the_wheel_holds_the_kernels_and_not_their_source(wheel: Path):
    names = zipfile.ZipFile(wheel).namelist()
    assert "heartlm/kernels/lib/libheartlm_kernels.so" in names and "heartlm/py.typed" in names
    # All else is there: templates, pages, profiles, and the prototypes, which are read when a kernel is called first.
    inside = run("git", "-C", ROOT, "ls-files", "-co", "--exclude-standard", "src").split()
    paths = [Path(name).relative_to("src") for name in inside if (ROOT / name).is_file()]
    assert set(names) >= {str(path) for path in paths if path.parent.name != "c"}
    assert {Path(name).name for name in names if name.endswith((".c", ".h"))} == {"kernels.h"}


def needed(name: str, extras: set[str], found: dict[str, set[str]]) -> None:
    """Add to `found` the distribution `name` and all that it needs with `extras`, each with the extras asked of it."""
    asked = found.setdefault(canonicalize_name(name), set())
    new = {"", *extras} - asked
    asked |= new
    for text in (distribution(name).requires or []) if new else []:
        other = Requirement(text)
        if other.marker is None or any(other.marker.evaluate({"extra": extra}) for extra in new):
            needed(other.name, other.extras, found)


def link_what_all_needs(site: Path) -> None:
    """Link pip and the packages of `heartlm[all]`, no others, into `site`: pip would unpack gigabytes for a minute."""
    found = dict[str, set[str]]()
    needed("heartlm", {"all"}, found)
    for each in map(distribution, {*found, "pip"} - {"heartlm"}):
        for name in {path.parts[0] for path in each.files or []} - {"..", "__pycache__"}:
            if not (site / name).exists():  # a folder of several packages
                (site / name).symlink_to(each.locate_file(name))


def test_the_wheel_analyses_and_embeds_where_there_is_no_compiler(wheel: Path, tmp_path: Path):
    glibc = re.search(r"-manylinux_2_(\d+)_", wheel.name)
    assert glibc and int(glibc[1]) <= 28, wheel.name
    venv.create(tmp_path / "clean")
    programs = tmp_path / "clean/bin"
    alone = {"cwd": tmp_path, "env": {"PATH": str(programs), "CC": "/nonexistent", "HOME": os.environ["HOME"]}}
    (packages,) = (tmp_path / "clean/lib").glob("python*/site-packages")
    link_what_all_needs(packages)
    run(programs / "python", "-m", "pip", "install", "--quiet", "--no-index", f"{wheel}[all]", **alone)
    run(programs / "heartlm", "data", "simulate", "simulated", "--patients", "1", "--minutes", "3", **alone)
    printed = run(programs / "heartlm", "analyze", "simulated/s0001", **alone)
    assert "beats" in printed and (tmp_path / "analysis/s0001.html").stat().st_size > 10_000
    run(programs / "heartlm", "embed", "foundation", "simulated/s0001", "--out", "beats.parquet", **alone)
    assert pq.read_metadata(tmp_path / "beats.parquet").num_rows > 100
    # Kernels of several threads run on the threads of torch, and give what one thread gives.
    run(programs / "python", "-c", THREADS, **alone)


def test_the_definition_of_the_image_needs_no_checkout(wheel: Path, tmp_path: Path):
    """It copies the installed package as a wheel, which pip installs again with its kernels and its command."""
    venv.create(tmp_path / "clean", with_pip=True)
    (packages,) = (tmp_path / "clean/lib").glob("python*/site-packages")
    (packages / "shared.pth").write_text("\n".join(each for each in sys.path if each.endswith("-packages")))
    programs, cache = tmp_path / "clean/bin", tmp_path / "cache"
    alone = {"cwd": tmp_path, "env": os.environ | {"PATH": f"{programs}:/bin", "XDG_CACHE_HOME": str(cache)}}
    run(programs / "pip", "install", "--quiet", "--no-deps", wheel, **alone)
    text = run(programs / "heartlm", "image", **alone)
    files = re.search(r"%files\n(.+?)\n\n", text, re.DOTALL)
    assert files
    copied = dict(line.split() for line in files[1].splitlines())
    packed, constraints = map(Path, copied)
    assert constraints.read_bytes() == (ROOT / "constraints.txt").read_bytes()
    one, other = zipfile.ZipFile(wheel), zipfile.ZipFile(packed)
    names = [name for name in one.namelist() if not name.endswith("/")]  # auditwheel lists folders too
    assert sorted(names) == sorted(name for name in other.namelist() if not name.endswith("/"))
    assert [name for name in names if one.read(name) != other.read(name)] in (
        [],
        [next(name for name in names if name.endswith("/RECORD"))],  # in another order
    )
    run(programs / "pip", "uninstall", "--quiet", "--yes", "heartlm", **alone)
    run(programs / "pip", "install", "--quiet", "--no-deps", packed, **alone)
    code = "import heartlm; from heartlm.kernels.library import variants; print(heartlm.__file__, *variants())"
    assert str(packages) in run(programs / "python", "-c", code, **alone)
    assert run(programs / "heartlm", "--version", **alone).startswith("heartlm ")


THREADS = """
import os, torch
from heartlm.models.fused import rms_norm
torch.set_num_threads(1)
x, weight = torch.randn(4000, 64), torch.randn(64)
results, tasks = [], []
for threads in 1, 3:
    torch.set_num_threads(threads)
    results.append(rms_norm(x, weight))
    tasks.append(len(os.listdir("/proc/self/task")))
assert torch.equal(*results) and tasks[1] >= tasks[0] + 2, tasks
"""
