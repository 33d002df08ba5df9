"""The package builds with its kernels."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
COMPILED = "heartlm/kernels/lib/libheartlm_kernels.so"


def wheel(out: Path, **environment: str) -> list[str]:
    """Names of the files in a wheel of a copy of this checkout."""
    source = out / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    done = subprocess.run(
        [*build, "--wheel-dir", str(out), str(source)], env=os.environ | environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (built,) = out.glob("*.whl")
    return zipfile.ZipFile(built).namelist()


@pytest.mark.skipif(not (shutil.which("cc") and shutil.which("cmake")), reason="no C compiler and CMake here")
def test_a_wheel_holds_the_kernels_and_not_their_source(tmp_path: Path):
    names = wheel(tmp_path)
    assert COMPILED in names
    assert "heartlm/kernels/library.py" in names and "heartlm/py.typed" in names
    # All else is there: templates, profiles, and the prototypes, which are read when a kernel is called first.
    inside = [path.relative_to(ROOT / "src") for path in (ROOT / "src").rglob("*") if path.is_file()]
    expected = {
        str(path) for path in inside if "__pycache__" not in path.parts and path.parent.name not in ("c", "lib")
    }
    assert set(names) >= expected and "heartlm/kernels/kernels.h" in expected
    assert {Path(name).name for name in names if name.endswith((".c", ".h"))} == {"kernels.h"}
