"""Tables of many recordings, where worker processes end."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from heartlm.databases.database import Database
from heartlm.databases.part_files import Rows, TablesTask, write_tables
from heartlm.ecg.recording import Recording
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.write import simulate_database
from heartlm.system.engine import PartOptions
from heartlm.system.processes import is_worker

done_here = 0


@dataclass(frozen=True)
class Fragile(TablesTask):
    """Ends a worker process at the recording that the file `trouble` names, or at the third one in a process."""

    verb, done = "count", "counted"

    @property
    def made(self) -> dict[str, Any]:
        return {}

    @property
    def endings(self) -> tuple[str, ...]:
        return ()

    def write(self, recording: Recording, path: Path, watch: Any) -> Any:
        raise NotImplementedError

    @property
    def schemas(self) -> Mapping[str, Mapping[str, str]]:
        return {"summaries": {"samples": "int64"}}

    def rows(self, recording: Recording, path: Path, source: str) -> dict[str, Rows]:
        global done_here
        done_here += 1
        trouble = (self.out.parent / "trouble").read_text()
        if is_worker() and (trouble == recording.record_id or (trouble == "third" and done_here == 3)):
            os.kill(os.getpid(), signal.SIGKILL)
        return {"summaries": [{"samples": recording.num_samples}]}

    def totals(self, summary: Mapping[str, Any]) -> Mapping[str, float]:
        return {"samples": summary["samples"]}


def test_the_files_of_each_recording_are_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ward, looked_at = tmp_path / "ward", list[str]()
    simulate_database(ward, SimulationConfig(patients=5, minutes=0.25, seed=3))
    (tmp_path / "trouble").write_text("none")
    source = Database.source
    monkeypatch.setattr(Database, "source", lambda self, name: (looked_at.append(name), source(self, name))[1])
    for _ in range(2):  # the second time results are kept
        assert write_tables(Fragile((ward,), tmp_path / "out"), PartOptions(processes=1), 1).num_recordings == 5
        assert looked_at == [f"s000{number}" for number in range(1, 6)]
        looked_at.clear()


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["s0002", "third"])
def test_what_ends_workers_is_left_out_and_tried_again_by_a_repeated_command(trouble: str, tmp_path: Path) -> None:
    ward, trouble_file = tmp_path / "ward", tmp_path / "trouble"
    simulate_database(ward, SimulationConfig(patients=5, minutes=0.25, seed=3))
    trouble_file.write_text(trouble)
    options, task = PartOptions(processes=2), Fragile((ward,), tmp_path / "out")
    tables = write_tables(task, options, 2)
    # Four recordings are the first group: each alone is done, all in one process are not.
    lost = ["s0002"] if trouble == "s0002" else ["s0001", "s0002", "s0003", "s0004"]
    assert [line.partition(":")[0] for line in tables.left_out] == lost
    assert tables.num_recordings == 5 - len(lost)
    trouble_file.write_text("none")
    tables = write_tables(task, options, 2)
    assert (tables.num_recordings, tables.left_out) == (5, [])
