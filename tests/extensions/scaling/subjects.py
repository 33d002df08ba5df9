"""Studies that the mutation campaign damages."""

from __future__ import annotations

import shutil
from pathlib import Path

from heartlm.extensions.scaling.cell import StudyCell
from tests.conftest import ROOT
from tests.extensions.scaling.test_report import made_up
from tests.fuzz.subjects import Subject


def _study(folder: Path) -> None:
    for ranks in (1, 2):
        for repeat in (0, 1):
            cell = StudyCell("pretrain", "mitdb", 128, ranks, 1, 1, copies=1, global_batch=32)
            made_up(cell, repeat, 0.2 / ranks * (1 + 0.01 * repeat)).save(folder)
    (folder / "skipped.json").write_text('[["pretrain-mitdb-w128-r2-n1-c2", "2 ranks of 2 CPUs on a node of 2"]]')
    shutil.copy(ROOT / "studies/hlm_on_hpc.yaml", folder / "marks.yaml")


SUBJECTS = (Subject("study", _study, ("**/*.json", "marks.yaml"), (("scale", "report", "{folder}"),)),)
