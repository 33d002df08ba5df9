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
from heartlm.errors import HeartlmError
from heartlm.extensions.cluster.image.image import CHECKOUT, INSTALLED_FROM, definition, script

pytestmark = pytest.mark.slow

SECTIONS = ["files", "post", "environment", "test", "runscript", "labels", "help"]


def sections(text: str) -> tuple[dict[str, str], dict[str, str]]:
    """The header's fields and the sections of a definition, as Apptainer reads them."""
    head, *parts = re.split(r"^%", text, flags=re.MULTILINE)
    fields = dict(line.split(": ", 1) for line in head.splitlines() if line and not line.startswith("#"))
    named = {part.split(maxsplit=1)[0]: part.partition("\n")[2] for part in parts}
    return fields, named


def test_the_definition_holds_the_scripts_and_the_pins():
    text = definition(base="ubuntu:24.04")
    fields, named = sections(text)
    assert fields == {"Bootstrap": "docker", "From": "ubuntu:24.04"}
    assert list(named) == SECTIONS
    assert script("post.sh").strip() in named["post"]
    assert script("check.sh").strip() in named["test"]
    copied = dict(map(str.split, named["files"].strip().splitlines()))
    assert copied == {str(CHECKOUT / name): f"/opt/heartlm/source/{name}" for name in INSTALLED_FROM}
    assert all(map(os.path.exists, copied))
    assert f"version {__version__}" in named["labels"]
    assert "{" not in named["labels"] + named["help"] + named["files"]
    (torch,) = re.findall(r"^# heartlm \S+, (torch==.*)\.$", text, re.MULTILINE)
    assert torch in (CHECKOUT / "constraints.txt").read_text().splitlines()


@pytest.mark.parametrize("section", ["post", "test", "runscript", "environment"])
def test_every_section_that_is_a_script_parses(section: str, tmp_path: Path):
    _, named = sections(definition())
    path = tmp_path / "section.sh"
    path.write_text(named[section])
    done = subprocess.run(["bash", "-n", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="no shellcheck here: apt-get install shellcheck")
@pytest.mark.parametrize("name", ["post.sh", "check.sh"])
def test_shellcheck_finds_nothing(name: str):
    done = subprocess.run(["shellcheck", "--shell=bash", "-"], input=script(name), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_command_prints_the_definition(capsys: pytest.CaptureFixture[str]):
    assert main(["image", "--base", "debian:12"]) == 0
    assert capsys.readouterr().out == definition(base="debian:12")


def test_a_source_that_is_none_is_named(tmp_path: Path):
    with pytest.raises(HeartlmError, match="has no src"):
        definition(tmp_path)
    for name in INSTALLED_FROM:
        (tmp_path / name).touch()
    with pytest.raises(HeartlmError, match="no line torch==VERSION"):
        definition(tmp_path)
