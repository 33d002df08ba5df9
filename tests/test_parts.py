"""Parts of a conversion or verification, at the same time and killed, give the results of one command."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import redirect_stdout
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import pytest

import heartlm
from heartlm.cli.main import main
from heartlm.databases.convert import Conversion, _Key, _Work
from heartlm.databases.verify import _Check, _record_findings, verify_database
from heartlm.errors import HeartlmError
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.write import simulate_database
from heartlm.storage.atomic import sha256_of
from tests.conftest import Refused

FORK = multiprocessing.get_context("fork")


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six recordings of five patients, and one that cannot be read."""
    folder = tmp_path_factory.mktemp("parts") / "ward"
    simulate_database(folder, SimulationConfig(patients=5, minutes=0.25, seed=8, name="ward"))
    (folder / "RECORDS").unlink()
    (folder / "torn.edf").write_bytes(b"0       ")
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def convert(ward: Path, out: Path, *words: str) -> int:
    return main(["data", "convert", str(ward), str(out), "--processes", "1", *words])


def in_process(run: Callable[[], Any]) -> ForkProcess:
    """Start `run` in a process of its own; its exit status is the result."""

    def child() -> None:
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
            os._exit(run())

    process = FORK.Process(target=child)
    process.start()
    return process


def killed_at(number: int, of: type, name: str, run: Callable[[], Any]) -> None:
    """Run a command in a process that is killed when it calls a method for the time `number`, from 1."""

    def dying() -> int:
        calls, method = list[int](), getattr(of, name)

        def call(*arguments: Any) -> Any:
            calls.append(1)
            if len(calls) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return method(*arguments)

        setattr(of, name, call)
        return int(run())

    process = in_process(dying)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


def keep_key(ward: Path, out: Path) -> None:
    """Keep the key that the commands to a folder will use."""
    key = _Key(Conversion(source=ward, folder=out)).path
    key.parent.mkdir(parents=True, exist_ok=True)
    key.write_bytes(bytes(range(32)))


@pytest.mark.parametrize("words", [("--to", "wfdb"), ("--to", "edf", "--anonymize")])
def test_parts_at_the_same_time_and_a_killed_one_convert_to_the_same_bytes(
    ward: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    for out in (tmp_path / "one", tmp_path / "parts") if "--anonymize" in words else ():
        keep_key(ward, out)
    assert convert(ward, tmp_path / "one", *words) == 1
    out, parts = tmp_path / "parts", [(*words, "--part", f"{part}/3") for part in (1, 2, 3)]
    killed_at(2, _Work, "_write", lambda: convert(ward, out, *parts[0]))
    (journal,) = out.glob(".convert-part-*.jsonl")
    assert len(journal.read_text().splitlines()) == 2 and list(out.glob(".convert-part-000001-000003-*"))
    running = [in_process(lambda part=part: convert(ward, out, *part)) for part in parts]
    for process in running:
        process.join(60)
    assert sorted(process.exitcode or 0 for process in running) == [0, 0, 1]  # the one with the torn file
    assert len(list(out.glob(".convert-part-*"))) == 3 and not (out / "convert.json").exists()
    written = {path.name: path.stat().st_mtime_ns for path in out.glob("[!.]*")}
    assert convert(ward, out, *words) == 1
    assert content(out) == content(tmp_path / "one")
    assert written.items() <= {path.name: path.stat().st_mtime_ns for path in out.iterdir()}.items()
    assert not list((tmp_path / "cache").rglob("*.key"))
    assert convert(ward, out, *parts[1]) == 0  # nothing is left to do
    assert {name for name in content(out) if name.startswith(".")} == {".convert.lock"}


def test_a_command_without_parts_joins_what_there_is(ward: Path, tmp_path: Path) -> None:
    assert convert(ward, tmp_path / "one") == 1
    out = tmp_path / "parts"
    killed_at(2, _Work, "_write", lambda: convert(ward, out, "--part", "1/2"))
    killed_at(4, _Work, "_write", lambda: convert(ward, out))  # has joined the part, and is killed too
    assert [path.name for path in out.glob(".convert*.jsonl")] == [".convert.jsonl"]
    assert convert(ward, out, "--part", "2/2") == 0
    assert convert(ward, out) == 1
    assert content(out) == content(tmp_path / "one")


def test_parts_are_added_to_what_other_sources_left_and_replace_what_has_changed(ward: Path, tmp_path: Path) -> None:
    other, one, parts = Path(shutil.copytree(ward, tmp_path / "other")), tmp_path / "one", tmp_path / "parts"
    for source, out in ((ward, one), (ward, parts), (other, one)):
        assert convert(source, out) == 1
    for part in ("2/2", "1/2"):
        assert convert(other, parts, "--part", part) in (0, 1)
    assert convert(other, parts) == 1
    assert content(parts) == content(one) and "s0001_2.hea" in content(one)
    shutil.copy(ward / "s0001.dat", other / "s0003.dat")
    (other / "s0002.dat").unlink()
    for part in ("1/2", "2/2"):
        assert convert(other, parts, "--damaged", "warn", "--part", part) in (0, 1)
    assert convert(other, parts, "--damaged", "warn") == convert(other, one, "--damaged", "warn") == 1
    assert content(parts) == content(one)


def test_parts_without_recordings_or_without_one_that_can_be_read(
    ward: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert convert(ward, out, "--part", "9/9") == 0
    assert capsys.readouterr().out.splitlines() == [f"{out}: part 9/9", "0 recordings converted, 0 left out"]
    assert convert(ward, out, "--part", "7/9") == 2
    assert "none of 1 recordings could be converted" in capsys.readouterr().err
    assert list(content(out)) == [".convert.lock"]
    one, two = (heartlm.convert(ward / "s0001", out, part=part) for part in ("1/2", "2/2"))
    assert (len(one.records), len(two.records), one.report) == (1, 0, out)
    assert len(heartlm.convert(ward / "s0001", out).records) == 1
    with pytest.raises(HeartlmError, match="part: 'half' found"):
        heartlm.convert(ward, tmp_path / "none", part="half")


def test_what_parts_refuse(ward: Path, tmp_path: Path, refused: Refused) -> None:
    out, words = tmp_path / "out", ("data", "convert", ward, tmp_path / "out")
    assert convert(ward, out, "--part", "1/3") == 1
    assert "another number of parts: join them" in refused(*words, "--part", "1/2")
    assert "another number of parts: join them" in refused("data", "convert", ward / "s0001", out, "--part", "1/3")
    assert "holds a conversion with other settings" in refused(*words, "--part", "2/3", "--to", "edf")
    assert "holds a conversion with other settings" in refused(*words, "--to", "edf")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x.txt").write_text("mine")
    assert "holds other files, for example x.txt" in refused("data", "convert", ward, tmp_path / "full", "--part=1/2")


def test_a_part_and_the_whole_do_not_run_at_the_same_time(ward: Path, tmp_path: Path, refused: Refused) -> None:
    out, words = tmp_path / "out", ("data", "convert", ward, tmp_path / "out", "--processes=1")

    def while_it_runs(*options: str, check: Callable[[], None]) -> None:
        at_work, proceed = FORK.Event(), FORK.Event()

        def waiting() -> int:
            write = _Work._write

            def call(*arguments: Any) -> Any:
                at_work.set()
                assert proceed.wait(60)
                return write(*arguments)

            _Work._write = call  # type: ignore[method-assign]
            return convert(ward, out, *options)

        process = in_process(waiting)
        assert at_work.wait(60)
        try:
            check()
        finally:
            proceed.set()
            process.join(60)
        assert process.exitcode in (0, 1)

    def while_a_part_runs() -> None:
        for _ in range(2):  # the refused command leaves the lock
            assert "another command, or a part of one, writes to it; wait for its end" in refused(*words)
        assert "another command does part 1/2; wait for its end" in refused(*words, "--part", "1/2")
        assert convert(ward, out, "--part", "2/2") in (0, 1)

    def while_the_whole_runs() -> None:
        assert "a command without --part writes to it; wait for its end" in refused(*words, "--part", "1/2")
        assert "another command, or a part of one, writes to it" in refused(*words)

    while_it_runs("--part", "1/2", check=while_a_part_runs)
    os.utime(ward / "s0001.hea", (1, 1))
    while_it_runs(check=while_the_whole_runs)
    assert convert(ward, tmp_path / "one") == 1 and content(out) == content(tmp_path / "one")


def test_jobs_with_keys_of_their_own_do_not_mix(
    ward: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    out, words = tmp_path / "out", ("data", "convert", ward, tmp_path / "out", "--anonymize")
    assert convert(ward, out, "--anonymize", "--part", "1/2") == 1
    before = content(out)
    del before[".convert.lock"]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    assert "need one cache folder (XDG_CACHE_HOME)" in refused(*words, "--part", "2/2")
    assert "need one cache folder (XDG_CACHE_HOME)" in refused(*words)
    keep_key(ward, out)
    assert "another secret key: its commands need one cache folder" in refused(*words)
    assert content(out) == before and len(list((tmp_path / "cache").rglob("*.key"))) == 1
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert convert(ward, out, "--anonymize") == 1
    assert json.loads((out / "convert.json").read_text())["num_records"] == 6


def test_of_keys_that_are_made_at_the_same_time_one_is_used(ward: Path, tmp_path: Path) -> None:
    task, barrier = Conversion(source=ward, folder=tmp_path / "out", anonymize=True), FORK.Barrier(8)
    results = FORK.SimpleQueue()

    def make() -> int:
        key = _Key(task)
        barrier.wait(60)
        results.put((key.read(), key.is_new))
        return 0

    processes = [in_process(make) for _ in range(8)]
    found = [results.get() for _ in processes]
    for process in processes:
        process.join(60)
    assert len({key for key, _ in found}) == 1 and sum(is_new for _, is_new in found) == 1
    (own,) = (tmp_path / "cache" / "heartlm" / "convert").iterdir()
    assert own.read_bytes() == found[0][0] and own.stat().st_mode & 0o777 == 0o600
    own.with_name(f"{own.stem}-copy").write_bytes(found[0][0])  # of a process that was killed while it made the key
    _Key(task).delete()
    assert not list(own.parent.iterdir())


@pytest.fixture
def spoilt(ward: Path, tmp_path: Path) -> Path:
    """A database whose sums differ for two files, with a signal that is cut and one that two patients have."""
    folder = Path(shutil.copytree(ward, tmp_path / "spoilt"))
    os.truncate(folder / "s0002.dat", 100)
    shutil.copy(folder / "s0001.dat", folder / "s0004.dat")
    return folder


def test_parts_at_the_same_time_and_a_killed_one_find_the_same_faults(
    spoilt: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["data", "verify", str(spoilt), "--processes", "1"]
    assert main(words) == 1
    expected = capsys.readouterr().out
    assert expected.count("differs from its SHA-256") == 2 and expected.count("holds the samples of") == 1
    assert main([*words, "--out", str(tmp_path / "one")]) == 1
    assert capsys.readouterr().out == expected
    parts = [[*words, "--out", str(tmp_path / "checks"), "--part", f"{part}/3"] for part in (1, 2, 3)]
    killed_at(4, _Check, "__call__", lambda: main(parts[0]))
    (journal,) = (tmp_path / "checks").glob(".checks-part-*.jsonl")
    assert len(journal.read_text().splitlines()) == 4
    running = [in_process(lambda part=part: main(part)) for part in parts]
    for process in running:
        process.join(60)
    assert {process.exitcode for process in running} <= {0, 1}
    checks = len(list((tmp_path / "checks").glob(".checks-part-*.jsonl")))
    assert checks == 3 and not (tmp_path / "checks" / "checks.jsonl").exists()
    assert main([*words, "--out", str(tmp_path / "checks")]) == 1
    assert capsys.readouterr().out == expected
    assert content(tmp_path / "checks") == content(tmp_path / "one")
    assert list(content(tmp_path / "one")) == ["checks.jsonl"]


def test_what_has_not_changed_is_not_read_again(spoilt: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, read = tmp_path / "checks", list[str]()

    def found(database: Any, record_id: str, samples: Any) -> Any:
        read.append(record_id)
        return _record_findings(database, record_id, samples)

    monkeypatch.setattr("heartlm.databases.verify._record_findings", found)
    monkeypatch.setattr("heartlm.databases.verify.sha256_of", lambda path: read.append(path.name) or sha256_of(path))
    first = verify_database(spoilt, out=out)
    assert len(read) > 20 and first == verify_database(spoilt)
    read.clear()
    assert verify_database(spoilt, out=out) == first and read == []
    os.utime(spoilt / "s0003.dat", (1, 1))
    assert verify_database(spoilt, out=out) == first and read == ["s0003.dat", "s0003"]
    line = next(line for line in (out / "checks.jsonl").read_text().splitlines() if '"of": "s0001"' in line)
    text = (out / "checks.jsonl").read_text()
    damaged = json.loads(line)["samples"] | {"digest": "none"}
    for field in ({"findings": "none"}, {"samples": damaged}):
        (out / "checks.jsonl").write_text(text.replace(line, json.dumps(json.loads(line) | field)))
        read.clear()
        assert verify_database(spoilt, out=out) == first and read == ["s0001"]
    (out / "checks.jsonl").write_text(text.replace(f'"heartlm": "{heartlm.__version__}"', '"heartlm": "0.1"'))
    read.clear()
    assert verify_database(spoilt, out=out) == first and len(read) > 20


def test_what_a_verification_refuses(spoilt: Path, ward: Path, tmp_path: Path, refused: Refused) -> None:
    words = ("data", "verify", spoilt)
    assert "part: 1/2 found without --out" in refused(*words, "--part", "1/2")
    assert "lies in the database" in refused(*words, "--out", spoilt / "checks")
    verify_database(ward, out=tmp_path / "checks")
    assert f"holds no checks of {spoilt}; choose another folder" in refused(*words, "--out", tmp_path / "checks")
    (tmp_path / "checks" / "checks.jsonl").write_text("mine")
    assert "holds no checks of" in refused("data", "verify", ward, "--out", tmp_path / "checks")
    assert (tmp_path / "checks" / "checks.jsonl").read_text() == "mine"
