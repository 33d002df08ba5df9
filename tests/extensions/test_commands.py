"""The commands of the extensions: listed, quick to answer, and refused in one line like those of the core."""

from __future__ import annotations

from pathlib import Path

import pytest

from heartlm.cli.main import COMMANDS, main
from heartlm.cli.registry import registered
from tests.conftest import Refused
from tests.test_bad_input import ALIAS_BOMB, DEEP, elsewhere
from tests.test_cli_startup import IMPORTED_BY_COMMANDS, WITHOUT_TORCH, modules, run

__all__ = ["elsewhere"]  # pytest finds it here

COMMANDS_OF_EXTENSIONS = registered(COMMANDS).commands


def test_all_commands_are_found() -> None:
    assert list(COMMANDS_OF_EXTENSIONS)[:7] == ["campaign", "image", "doctor", "watch", "launch", "scale", "federate"]


def test_answering_imports_nothing_heavy() -> None:
    answers = [f"{command} --help" for command in COMMANDS_OF_EXTENSIONS]
    lines = run(IMPORTED_BY_COMMANDS, *answers).splitlines()
    assert [line for line in lines if line.startswith("answered: ")] == [f"answered: {words}" for words in answers]


def test_a_list_of_commands_imports_tables_only() -> None:
    code = """
import sys
from heartlm.cli.main import main
main(["--help"])
print([name for name in sys.modules if name.startswith("heartlm.extensions")])
"""
    names = ["heartlm.extensions", *(f"heartlm.extensions.{name}" for name in ("cluster", "scaling", "federated"))]
    assert run(code).splitlines()[-1] == str(names)


def test_clusters_need_no_torch() -> None:
    names = [name for name, _ in modules() if name.startswith("heartlm.extensions.cluster")]
    assert len(names) > 20
    run(WITHOUT_TORCH + "for name in sys.argv[1:]: importlib.import_module(name)", *names)


def test_a_name_that_is_nearly_one_of_theirs(refused: Refused) -> None:
    assert "no command 'Doctor'; did you mean doctor?" in refused("Doctor")


@pytest.mark.parametrize("name", [name for name in COMMANDS_OF_EXTENSIONS if name not in ("campaign", "scale")])
def test_an_unknown_option(refused: Refused, name: str) -> None:
    said = refused(name, "--no-such-option", "3")
    assert "--no-such-option" in said or "required" in said


def test_an_impossible_argument(refused: Refused) -> None:
    said = refused("scale", "hardware", "x.json", "--ranks", "0")
    assert "ranks: 0 found, at least 2 expected" in said


@pytest.mark.parametrize("text", [ALIAS_BOMB, DEEP], ids=["aliases", "depth"])
@pytest.mark.parametrize("words", [["launch"], ["federate"], ["campaign", "status"], ["scale", "run"]], ids=" ".join)
def test_a_settings_file_that_would_hang_is_one_line(
    tmp_path: Path, refused: Refused, words: list[str], text: str
) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    said = refused(*words, path)
    assert "settings.yaml: not valid YAML (" in said
    assert "more than 1000000 values" in said or "nested more than 64 deep" in said


@pytest.mark.parametrize("value", ["{a: " + "[" * 500 + "]" * 500 + "}", "{" + ALIAS_BOMB.replace("\n", ", ") + "}"])
def test_an_option_that_would_hang_is_one_line(refused: Refused, value: str) -> None:
    for given in ([f"--training={value}"], ["--training", value]):
        said = refused("federate", "--corpus", "x", *given)
        assert '"training": Expected a mapping' in said


def test_a_federation_states_what_its_recordings_do_not(capfd: pytest.CaptureFixture[str]) -> None:
    """As each command that opens recordings."""
    with pytest.raises(SystemExit):
        main(["federate", "--help"])
    text = capfd.readouterr().out
    assert all(f"--{name} " in text for name in ("rate", "units", "leads"))
