"""lab/, benchmarks/, recipes/ and studies/: every module is imported, imports run one way, no two import each other."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

FOLDERS = ("lab", "benchmarks", "recipes", "studies")
"""In this order: a folder imports itself and those before it."""
PATHS = sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*.py") if path.stem != "__init__")


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def imports_of(path: Path) -> set[str]:
    """Modules of these folders that a module imports, at its head or in a function."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            found |= names & {module_of(other) for other in PATHS}
    return found


GRAPH = {module_of(path): imports_of(path) for path in PATHS}


def folder_of(module: str) -> int:
    return FOLDERS.index(module.rpartition(".")[0].replace(".", "/"))


def test_imports_run_from_studies_to_recipes_to_benchmarks_to_what_they_share():
    assert sum(map(len, GRAPH.values())) > 100
    wrong = [(module, of) for module, imported in GRAPH.items() for of in imported if folder_of(of) > folder_of(module)]
    assert not wrong


def test_no_circle():
    left = dict(GRAPH)
    while free := [module for module, imported in left.items() if not imported & left.keys()]:
        for module in free:
            del left[module]
    assert not left


@pytest.mark.parametrize("module", sorted(GRAPH))
def test_every_module_is_imported(module: str):
    """A script whose imports have moved would be noticed only by the one who measures again."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        name = str(error.name).partition(".")[0]
        if name in ("lab", "benchmarks", "recipes", "studies", "heartlm"):
            raise
        pytest.skip(f"{name} is not installed")


@pytest.mark.parametrize("module", ["lab.runner", "recipes.train_delineator", "studies.conduction"])
def test_scripts_explain_themselves(module: str):
    done = subprocess.run([sys.executable, "-m", module, "--help"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and "usage: " in done.stdout, done.stderr
    assert f"python -m {module}" in done.stdout
