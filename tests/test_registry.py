"""Commands that other distributions add by entry points, and how entry points are found."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from heartlm.cli.main import COMMANDS, main
from heartlm.cli.registry import GROUP, registered
from heartlm.system.entry_points import entry_points
from tests.conftest import ROOT


def install(folder: Path, distribution: str, points: str, **modules: str) -> None:
    """Write what an installation leaves in `folder`: its entry points and its modules."""
    metadata = folder / f"{distribution}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(points)
    for name, code in modules.items():
        (folder / f"{name}.py").write_text(code)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed distributions; what is imported from it is forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    known = set(sys.modules)
    yield tmp_path  # type: ignore[misc]
    for name in set(sys.modules) - known:
        if name.startswith("plugged"):
            del sys.modules[name]


@pytest.mark.parametrize("group", ["console_scripts", "pytest11", GROUP, "none such"])
def test_entry_points_are_those_of_importlib(group: str) -> None:
    """Those of this environment: of 60 distributions and more."""
    expected = {(each.name, each.value) for each in importlib.metadata.entry_points(group=group)}
    assert {(each.name, each.reference) for each in entry_points(group)} == expected
    assert bool(expected) == (group != "none such")


def test_the_first_of_two_installations_counts_and_comments_do_not(
    site: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path_factory.mktemp("other")
    install(site, "Plugged.One", "# a = x:y\n[group]\n; b = x:y\n a = new:point \n\n[else]\nc = x:y\n")
    install(other, "plugged_one", "[group]\na = old:point\n")
    (other / "broken-1.dist-info").mkdir()
    (other / "broken-1.dist-info" / "entry_points.txt").write_bytes(b"[group]\n\xff = x:y\n")
    monkeypatch.setattr("sys.path", [*sys.path, str(other), str(other / "absent")])
    assert [(each.name, each.reference) for each in entry_points("group")] == [("a", "new:point")]


TABLE = """
COMMANDS = {"ward": ("plugged_command:run", "count the beds"), "analyze": ("plugged_command:run", "never")}
"""
COMMAND = """
def run(arguments):
    print("beds:", *arguments)
    return 3
"""


def test_a_command_of_another_distribution_is_listed_and_runs(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    points = f"[{GROUP}]\nward = plugged:COMMANDS\n"
    install(site, "ward", points, plugged=TABLE, plugged_command=COMMAND)
    assert main(["--help"]) == 0
    assert "plugged" in sys.modules and "plugged_command" not in sys.modules, "a list needs no command"
    assert re.search(r"^  ward +count the beds$", capsys.readouterr().out, re.MULTILINE)
    assert main(["ward", "12"]) == 3
    assert capsys.readouterr().out == "beds: 12\n"
    assert main(["wadr"]) == 2
    assert "did you mean ward?" in capsys.readouterr().err


def test_a_command_of_the_core_is_not_replaced(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(site, "ward", f"[{GROUP}]\nward = plugged:COMMANDS\n", plugged=TABLE, plugged_command=COMMAND)
    found = registered(COMMANDS)
    assert "analyze" not in found.commands
    assert found.faults == ["extension ward (ward-1.0.dist-info): there is a command analyze already"]


@pytest.mark.parametrize(
    ("reference", "code", "reason"),
    [
        ("plugged:COMMANDS", "import nonsuch_at_all", "No module named 'nonsuch_at_all'"),
        ("plugged:TABLE", "COMMANDS = {}", "has no attribute 'TABLE'"),
        ("plugged:COMMANDS", "COMMANDS = {'ward': 'plugged:run'}", "too many values to unpack"),
        ("plugged:COMMANDS", "COMMANDS = None", "'NoneType' object has no attribute 'items'"),
    ],
)
def test_a_broken_extension_is_told_and_nothing_else_breaks(
    site: Path, reference: str, code: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = registered(COMMANDS)
    assert not before.faults
    install(site, "ward", f"[{GROUP}]\nward = {reference}\n", plugged=code)
    after = registered(COMMANDS)
    assert after.commands == before.commands
    assert len(after.faults) == 1 and after.faults[0].startswith("extension ward (ward-1.0.dist-info) is left out: ")
    assert reason in after.faults[0]
    assert main(["ward"]) == 2
    assert after.faults[0] in capsys.readouterr().err


def test_commands_of_the_core_ask_no_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(group: str) -> None:
        raise AssertionError(group)

    monkeypatch.setattr("heartlm.cli.registry.entry_points", refuse)
    assert main(["data", "list"]) == 0


def test_the_example_of_an_extension_is_installed_and_runs(tmp_path: Path, unspoilt: Path) -> None:
    """What CONTRIBUTING says about extensions, by pip."""
    pytest.importorskip("scikit_build_core", reason="pip builds the example with it: heartlm[dev]")
    source = shutil.copytree(ROOT / "examples/extension", tmp_path / "source")
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    target = tmp_path / "site"
    done = subprocess.run([*install, "--target", str(target), str(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    def heartlm(*words: str | Path) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTHONPATH": str(target)}
        command = [sys.executable, "-m", "heartlm", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)

    assert "  mean heart rate of each minute of a recording\n" in heartlm("--help").stdout
    done = heartlm("rates", unspoilt / "s0001", "--most", "1")
    assert done.returncode == 0 and re.fullmatch(r"   0 min  \d+/min\n", done.stdout), done.stderr
    done = heartlm("rates", unspoilt / "s0001", "--most", "0")
    assert (done.returncode, done.stderr) == (2, "heartlm rates: most: 0 found, at least 1 expected\n")
