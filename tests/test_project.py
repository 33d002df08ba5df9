"""What a release and contributors rely on: public names, the version, the hooks, files that are named."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import heartlm
from heartlm import api
from heartlm.cli.main import COMMANDS
from heartlm.cli.registry import registered
from tests.conftest import ROOT

PUBLIC = ROOT / "tests/public_api.txt"
"""Public names of the last release; `python -m tests.test_project` prints those of this checkout."""


def public_names() -> list[str]:
    """Names of `import heartlm`, `Class.member` of its classes, parameters of its functions, commands."""
    names = [f"heartlm {command}" for command in (*COMMANDS, *registered(COMMANDS).commands)]
    for name in api.__all__:
        value = getattr(heartlm, name)
        names.append(name)
        if inspect.isclass(value):
            members = {*dir(value), *vars(value).get("__dataclass_fields__", ())} - set(dir(Exception))
            names += [f"{name}.{member}" for member in members if not member.startswith("_")]
        else:
            parameters = inspect.signature(value).parameters.values()
            names += [f"{name}({each.name})" for each in parameters if each.kind is not each.VAR_KEYWORD]
            names += [f"{name}({field})" for field in settings_of(value)]
    return sorted(names)


def settings_of(function: Any) -> list[str]:
    """Names of the fields of the settings that `function` takes, as `config`."""
    config = inspect.signature(function).parameters.get("config")
    kind = None if config is None else getattr(heartlm, str(config.annotation).removesuffix(" | None"), None)
    return [*getattr(kind, "__dataclass_fields__", ())]


def test_what_the_last_release_had_in_public_is_there() -> None:
    missing = set(PUBLIC.read_text(encoding="utf-8").split("\n")[:-1]) - set(public_names())
    assert not missing, f"public in the last release, and gone without a deprecation: {sorted(missing)}"


def test_the_version_is_the_same_wherever_it_is_stated() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## (\d+\.\d+\.\d+) \((\d{4}-\d\d-\d\d)\)$", changelog, re.MULTILINE)
    assert newest and newest[1] == citation["version"] == heartlm.__version__
    assert newest[2] == citation["date-released"]
    assert {"cff-version", "message", "title", "authors", "license"} <= citation.keys()


def test_the_hooks_run_the_linters_of_make() -> None:
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    recipe = re.search(r"^lint:.*\n((?:\t.+\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert recipe
    linters = recipe[1].replace("$(BIN)", ".venv/bin").split("\n")
    assert [hook["entry"] for hook in local["hooks"]] == [line.strip() for line in linters if line]


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=lambda path: path.stem
)
def test_an_issue_template_has_what_the_form_needs(path: Path) -> None:
    form: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert form["name"] and form["description"]
    fields = [each for each in form["body"] if each["type"] != "markdown"]
    assert {each["type"] for each in fields} <= {"input", "textarea"}
    assert len({each["id"] for each in fields}) == len(fields) and all(each["attributes"]["label"] for each in fields)


CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_files_that_contributing_names_exist() -> None:
    named = re.findall(
        r"`((?:src|tests|docs|lab|benchmarks|recipes|studies|examples)/[\w/.]*|\w+\.(?:md|cff|txt))`", CONTRIBUTING
    )
    named += re.findall(r"\]\(([\w/.-]+)\)", CONTRIBUTING)
    assert len(named) > 40
    assert not [name for name in named if "NAME" not in name and not (ROOT / name).exists()]
    kinds = re.findall(r"^\*\*An? ([\w ]+)\*\*.*; (copy|follow) `", CONTRIBUTING, re.MULTILINE)
    assert len(kinds) == 7, "each kind has a living template"


if __name__ == "__main__":
    print("\n".join(public_names()))
