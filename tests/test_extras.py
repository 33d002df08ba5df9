"""What is imported is declared, what is declared is pinned, and each extra has what its commands need."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from heartlm.analysis.embeddings import Embeddings
from heartlm.analysis.findings import Findings
from heartlm.api import Scores
from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError
from heartlm.formats.wfdb import read_wfdb
from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PACKAGE_OF_MODULE = {
    "yaml": "pyyaml",
    "sklearn": "scikit-learn",
    "nats": "nats-py",
    "paho": "paho-mqtt",
    "mlflow": "mlflow-skinny",
}
"""Packages whose names differ from those of their modules."""


def names_of(requirements: list[str]) -> set[str]:
    """Names of packages, those of other extras of heartlm included."""
    names = set[str]()
    for requirement in requirements:
        match = re.match(r"([\w.-]+)(?:\[([\w,]+)\])?", requirement)
        assert match, requirement
        if match[1] == "heartlm":
            for extra in match[2].split(","):
                names |= names_of(PROJECT["optional-dependencies"][extra])
        else:
            names.add(match[1].lower().replace("_", "-"))
    return names


EXTRAS = {name: names_of(requirements) for name, requirements in PROJECT["optional-dependencies"].items()}


def imports_of(path: Path) -> set[str]:
    """First names of the modules that a file imports anywhere in it."""
    modules = set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module.partition(".")[0])
    return modules - sys.stdlib_module_names - {"heartlm"}


def test_every_imported_package_is_declared():
    declared = names_of(PROJECT["dependencies"]).union(*(EXTRAS[name] for name in EXTRAS.keys() - {"test", "dev"}))
    undeclared = {
        f"{path.relative_to(ROOT)}: {module}"
        for path in (ROOT / "src/heartlm").rglob("*.py")
        for module in imports_of(path)
        if PACKAGE_OF_MODULE.get(module, module.replace("_", "-")) not in declared
    }
    assert undeclared == set()


def test_every_declared_package_is_pinned():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in lines if "==" in line}
    assert names_of(PROJECT["dependencies"]).union(*EXTRAS.values()) - pinned == set()


@pytest.mark.parametrize(
    "extra",
    [
        "train",
        "onnx",
        "executorch",
        "tensorboard",
        "mlflow",
        "wandb",
        "mpi",
        "flower",
        "privacy",
        "all",
    ],
)
def test_extras_whose_commands_compute_with_torch_have_it(extra: str):
    assert "torch" in EXTRAS[extra]


def test_what_reads_and_scores_does_not_bring_torch():
    core = names_of(PROJECT["dependencies"])
    assert {"jinja2", "resvg-py", "starlette"} <= core
    assert not any("torch" in each for each in (core, EXTRAS["score"], EXTRAS["monitor"], EXTRAS["formats"]))


def test_a_record_in_segments_names_the_extra_that_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "wfdb", None)
    (tmp_path / "a.dat").write_bytes(bytes(400))
    (tmp_path / "a.hea").write_text("a 1 250 200\na.dat 16 200 16 0 0 0 0 II\n")
    (tmp_path / "r.hea").write_text("r/2 1 250 400\na 200\na 200\n")
    assert read_wfdb(tmp_path / "a.hea").signal().shape == (1, 200)
    with pytest.raises(HeartlmError, match=r"r\.hea: has segments .* pip install 'heartlm\[wfdb\]'"):
        read_wfdb(tmp_path / "r.hea").signal()


def of_findings() -> object:
    recording = Recording(rate_hz=250.0, num_samples=1, lead_names=("I",), units=("mV",), path=Path("r.hea"))
    none = np.empty(0)
    sample, symbol, sure = none.astype(np.int64), none.astype("<U1"), none.astype(np.float32)
    return Findings(recording, (0,), sample, symbol, sure, (), none).to_frame()


def of_embeddings() -> object:
    text, number = np.empty(0, "<U1"), np.empty(0, np.int64)
    return Embeddings(
        np.empty((0, 4), np.float32), text, text, text, text, number, number.astype(float), text, text
    ).to_frame()


@pytest.mark.parametrize(
    "frame", [of_findings, of_embeddings, lambda: Scores({"scores": {}, "baselines": {}}, Path()).to_frame()]
)
def test_frames_name_the_extra_pandas(frame: Callable[[], object], monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("pandas", reason="pandas is not installed")
    frame()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(HeartlmError, match=r"'pandas'.*heartlm\[pandas\]"):
        frame()
