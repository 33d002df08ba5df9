"""The image: a definition with its sections, and scripts that shells read."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from heartlm import __version__
from heartlm.cli.main import main
from heartlm.cluster.image.image import INSTALLED_FROM, checkout, copy_source, definition, pinned_torch, script
from heartlm.errors import HeartlmError

pytestmark = pytest.mark.slow

SECTIONS = ["files", "post", "environment", "test", "runscript", "labels", "help"]


def sections(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """The header's fields and the sections of a definition, as Apptainer reads them."""
    head, *parts = re.split(r"^%", text, flags=re.MULTILINE)
    fields = dict(line.split(": ", 1) for line in head.splitlines() if line and not line.startswith("#"))
    named = {part.split(maxsplit=1)[0]: part.partition("\n")[2] for part in parts}
    return fields, named


def test_the_definition_holds_the_scripts_and_the_pins():
    source = checkout(None)
    fields, named = sections(definition(Path("/some/source"), pinned_torch(source), "ubuntu:24.04"))
    assert fields == {"Bootstrap": "docker", "From": "ubuntu:24.04"}
    assert list(named) == SECTIONS
    assert script("post.sh").strip() in named["post"]
    assert script("check.sh").strip() in named["test"]
    assert named["files"].split() == ["/some/source", "/opt/heartlm/source"]
    assert f"version {__version__}" in named["labels"]
    assert "{" not in named["labels"] + named["help"] + named["files"]
    assert pinned_torch(source) in (source / "constraints.txt").read_text().splitlines()


@pytest.mark.parametrize("section", ["post", "test", "runscript", "environment"])
def test_every_section_that_is_a_script_parses(section: str, tmp_path: Path):
    _, named = sections(definition(Path("/some/source"), "torch==1"))
    path = tmp_path / "section.sh"
    path.write_text(named[section])
    done = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck here: apt-get install shellcheck")
@pytest.mark.parametrize("name", ["post.sh", "check.sh"])
def test_shellcheck_finds_nothing(name: str):
    done = subprocess.run(["shellcheck", "--shell=bash", "-"], input=script(name), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_without_apptainer_one_line_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("PATH", "")
    assert main(["image", "build"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "apptainer: no such command" in said


def test_apptainer_is_given_a_definition_and_what_it_installs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A program of that name that writes down what it was given: whether the files exist when it runs."""
    program = tmp_path / "apptainer"
    program.write_text(
        "#!/bin/bash\n"
        f'echo "$@" > {tmp_path}/said\ncp "$4" {tmp_path}/given.def\n'
        f'source=$(sed -n \'s|^ *\\(/.*\\) /opt/heartlm/source$|\\1|p\' "$4")\nls "$source" > {tmp_path}/source\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert main(["image", "build", "--out", str(tmp_path / "x.sif"), "--base", "debian:12"]) == 0
    assert (tmp_path / "said").read_text().split()[:3] == ["build", "--force", str(tmp_path / "x.sif")]
    assert "From: debian:12" in (tmp_path / "given.def").read_text()
    assert set((tmp_path / "source").read_text().split()) == set(INSTALLED_FROM)


def test_a_source_that_is_none_is_named(tmp_path: Path):
    with pytest.raises(HeartlmError, match="has no src"):
        checkout(tmp_path)


def test_the_copied_source_has_no_leftovers(tmp_path: Path):
    copy_source(checkout(None), tmp_path / "source")
    assert not list((tmp_path / "source").rglob("__pycache__"))
    assert (tmp_path / "source/src/heartlm/cluster/image/heartlm.def").is_file()
