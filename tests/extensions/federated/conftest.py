"""What tests of federated studies share: the model of `studies/tiny_ecg`, installed."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterator

import pytest

from tests.conftest import ROOT

STUDY = ROOT / "studies/tiny_ecg"


@pytest.fixture(scope="package", autouse=True)
def tiny_ecg_is_installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """For this process and those that it starts: its modules and what pip would write about them are on the path."""
    project = tomllib.loads((STUDY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    site = tmp_path_factory.mktemp("site")
    metadata = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir()
    sections = [
        f"[{group}]\n" + "".join(f"{name} = {reference}\n" for name, reference in points.items())
        for group, points in project["entry-points"].items()
    ]
    (metadata / "entry_points.txt").write_text("\n".join(sections))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(site), *sys.path])
        patch.setenv("PYTHONPATH", os.pathsep.join([str(site), str(STUDY), os.environ.get("PYTHONPATH", "")]))
        yield
