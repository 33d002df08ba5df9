"""Writing: whole or not at all, and one line that says why not."""

from __future__ import annotations

import csv
import ctypes
import errno
import json
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from heartlm.errors import HeartlmError
from heartlm.storage import atomic
from heartlm.storage.atomic import (
    append_line,
    atomic_file,
    atomic_folder,
    recover_folder,
    replace_folder,
    sha256_of,
    write_csv,
    write_json,
)
from heartlm.storage.reading import read_json, read_json_lines, read_yaml


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_appears_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.txt"
    with atomic_file(path) as stream:
        stream.write("one")
        assert not path.exists()
    assert path.read_text() == "one"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("error", [RuntimeError("defect"), KeyboardInterrupt(), OSError(errno.ENOSPC, "full")])
def test_a_file_that_fails_leaves_the_earlier_one(tmp_path: Path, error: BaseException) -> None:
    path = tmp_path / "a.txt"
    path.write_text("earlier")
    with pytest.raises(HeartlmError if isinstance(error, OSError) else type(error)), atomic_file(path) as stream:
        stream.write("half")
        raise error
    assert path.read_text() == "earlier"
    assert list(tmp_path.iterdir()) == [path]


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with atomic_file(tmp_path / "a.txt") as stream:
            stream.write("x")
        with atomic_folder(tmp_path / "b"):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o750


def test_a_folder_replaces_the_earlier_one_when_complete(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for name in ("one", "two"):
        with atomic_folder(out) as temporary:
            (temporary / name).write_text(name)
            assert not (out / name).exists()
    assert [path.name for path in out.iterdir()] == ["two"]
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("where", ["writing", "flushing", "renaming"])
def test_a_full_disk_leaves_the_earlier_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    out = tmp_path / "out"
    with atomic_folder(out) as temporary:
        (temporary / "a").write_text("earlier")
    with pytest.raises(HeartlmError) as error, atomic_folder(out) as temporary:
        (temporary / "a").write_text("later")
        if where == "writing":
            full()
        elif where == "flushing":
            monkeypatch.setattr(os, "fsync", full)
        else:
            monkeypatch.setattr(atomic, "_exchange", full)
    assert str(error.value).startswith(f"cannot write {out}: No space left on device")
    assert (out / "a").read_text() == "earlier"
    assert list(tmp_path.iterdir()) == [out]


def test_a_disk_that_fills_between_two_renames_leaves_the_earlier_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = written(tmp_path, "earlier")
    rename = Path.rename
    monkeypatch.setattr(atomic, "_exchange", lambda one, other: False)
    monkeypatch.setattr(Path, "rename", lambda self, to: full() if self.name == "new" else rename(self, to))
    (tmp_path / "new").mkdir()
    with pytest.raises(OSError, match="No space left"):
        replace_folder(tmp_path / "new", out)
    assert (out / "a").read_text() == "earlier"
    assert sorted(tmp_path.iterdir()) == [tmp_path / "new", out]


def written(folder: Path, text: str) -> Path:
    """A complete folder with one file in it."""
    with atomic_folder(folder / "out") as temporary:
        (temporary / "a").write_text(text)
    return folder / "out"


def killed_while_replacing(folder: Path, moment: int) -> int:
    """Replace `out` in a child that dies at the system call of this number; its exit status."""
    child = os.fork()
    if child == 0:
        left = iter(range(moment))

        def die(event: str, arguments: tuple[object, ...]) -> None:
            if event.startswith(("os.", "shutil.", "ctypes.")) and event != "os.kill" and next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(die)
        replace_folder(folder / "new", folder / "out")
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("exchange", [True, False])
def test_a_kill_at_any_moment_of_replacing_leaves_one_of_two_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    if not exchange:
        monkeypatch.setattr(atomic, "_exchange", lambda one, other: False)
    found, missing, status, moment = [], 0, -1, 0
    while status != 0:
        place = tmp_path / str(moment)
        out = written(place, "earlier")
        written(place / "made", "later").rename(place / "new")
        status = killed_while_replacing(place, moment)
        missing += not out.exists()
        recover_folder(out)
        found.append((out / "a").read_text())
        written(place, "latest")
        assert (out / "a").read_text() == "latest"
        assert not (place / ".out.old").exists()
        moment += 1
    assert found == ["earlier"] * found.count("earlier") + ["later"] * found.count("later")
    assert found.count("earlier") > 1
    assert found.count("later") > 1
    assert missing == (0 if exchange else 1)


def test_recovering_touches_nothing_that_is_whole(tmp_path: Path) -> None:
    out = written(tmp_path, "good")
    (tmp_path / ".out.old").mkdir()
    recover_folder(out)
    assert (out / "a").read_text() == "good"
    recover_folder(tmp_path / "never there")
    assert not (tmp_path / "never there").exists()


@pytest.mark.parametrize(("number", "can"), [(errno.EINVAL, False), (errno.ENOSYS, False), (errno.EIO, None)])
def test_a_filesystem_without_exchange_is_told_from_one_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, can: bool | None
) -> None:
    def refuse(*arguments: object) -> int:
        ctypes.set_errno(number)
        return -1

    monkeypatch.setattr(atomic.ctypes, "CDLL", lambda *_, **__: SimpleNamespace(renameat2=refuse))
    if can is None:
        with pytest.raises(OSError, match=os.strerror(number)):
            atomic._exchange(tmp_path / "a", tmp_path / "b")
    else:
        assert atomic._exchange(tmp_path / "a", tmp_path / "b") is can


def test_an_error_deep_in_a_folder_names_the_place_it_was_to_have(tmp_path: Path) -> None:
    with pytest.raises(HeartlmError) as error, atomic_folder(tmp_path / "out") as temporary:
        (temporary / "file").write_text("")
        write_json(temporary / "file" / "a.json", {})
    assert str(error.value).startswith(f"cannot write {tmp_path}/out/file/a.json: ")


def test_a_folder_where_a_file_goes_is_one_line_and_stays(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(HeartlmError, match=r"^cannot write .*/out: Is a directory; [^\n]*$"):
        write_json(tmp_path / "out", {})
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


@pytest.mark.parametrize("write", [lambda path: write_json(path, 1), lambda path: atomic_folder(path).__enter__()])
def test_a_name_that_is_too_long_is_one_line(tmp_path: Path, write: Callable[[Path], object]) -> None:
    with pytest.raises(HeartlmError, match=r": File name too long; [^\n]*$"):
        write(tmp_path / ("n" * 300))


@pytest.mark.parametrize("number", [errno.EBUSY, errno.ENOTEMPTY, errno.EIO])
def test_what_the_machine_refuses_is_one_line(tmp_path: Path, number: int) -> None:
    with pytest.raises(HeartlmError, match=os.strerror(number)), atomic_file(tmp_path / "a"):
        raise OSError(number, os.strerror(number))


def test_defects_are_not_dressed_up_as_mistakes_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Bad file descriptor"), atomic_folder(tmp_path / "out"):
        raise OSError(errno.EBADF, "Bad file descriptor")


@pytest.mark.parametrize("write", [lambda path: write_json(path, 1), lambda path: atomic_folder(path).__enter__()])
@pytest.mark.parametrize("place", ["a_file/below", "/proc/nothing/here"])
def test_an_unwritable_place_is_one_line(tmp_path: Path, write: Callable[[Path], object], place: str) -> None:
    (tmp_path / "a_file").write_text("earlier")
    with pytest.raises(HeartlmError, match=r"^cannot write .*(below|here): [^\n]*$"):
        write(tmp_path / place)
    assert (tmp_path / "a_file").read_text() == "earlier"


def test_appended_lines(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    append_line(path, "a")
    append_line(path, "b")
    assert path.read_text() == "a\nb\n"
    with pytest.raises(HeartlmError, match=r"cannot write .*log\.jsonl/below: Not a directory"):
        append_line(path / "below", "c")


def test_json_round_trip_and_what_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"name": "Schönberg", "values": [1, 2.5, None]})
    assert read_json(path) == {"name": "Schönberg", "values": [1, 2.5, None]}
    assert path.read_text().endswith("}\n")
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, float("nan"))
    assert read_json(path)["name"] == "Schönberg"


def test_json_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with pytest.raises(HeartlmError, match=r"cannot read .*a\.json: No such file"):
        read_json(path)
    path.write_text(json.dumps({"a": 1})[:-2])
    with pytest.raises(HeartlmError, match=r"a\.json is not valid JSON .* truncated"):
        read_json(path)


def test_sha256(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256_of(tmp_path / "a").startswith("ba7816bf8f01cfea")


def test_what_is_written_is_flushed_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[str] = []
    monkeypatch.setattr(
        atomic.os, "fsync", lambda number: flushed.append(Path(f"/proc/self/fd/{number}").readlink().name)
    )
    with atomic_folder(tmp_path / "out") as temporary:
        (temporary / "deep").mkdir()
        (temporary / "deep" / "a").write_text("x")
        (temporary / "b").write_text("x")
    assert sorted(flushed[:-2]) == ["a", "b", "deep"], "files and the names in folders"
    assert flushed[-2].startswith(".out.tmp-") and flushed[-1] == tmp_path.name


def test_text_is_utf8_in_any_locale(tmp_path: Path) -> None:
    code = "import sys; from heartlm.storage.atomic import write_json; write_json(sys.argv[1], 'M\\u00fc \\u5fc3')"
    environment = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    subprocess.run([sys.executable, "-c", code, tmp_path / "a.json"], env=environment, check=True)
    assert read_json(tmp_path / "a.json") == "M\u00fc \u5fc3"


HOSTILE_JSON = {
    "nested": ("[" * 100_000, "nested more than 64 deep"),
    "nested-less": ("[" * 70 + "]" * 70, "nested more than 64 deep"),
    "huge-integer": ("1" + "0" * 400, "more than 64 bits"),
    "integer-of-5000-digits": ("1" * 5000, "4300 digits"),
    "huge-float": ("[1e999]", "1e999 is no finite number"),
    "nan": ('{"a": NaN}', "NaN is no finite number"),
    "infinity": ("-Infinity", "-Infinity is no finite number"),
    "twice": ('{"a": 1, "a": 2}', "'a' found twice"),
    "empty": ("", "Expecting value"),
}


@pytest.mark.parametrize(("text", "reason"), HOSTILE_JSON.values(), ids=list(HOSTILE_JSON))
def test_hostile_json_is_one_line(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(HeartlmError) as error:
        read_json(path)
    assert str(error.value).startswith(f"{path} is not valid JSON") and reason in str(error.value)
    assert "\n" not in str(error.value)


ALIAS_BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)
)

HOSTILE_YAML = {
    "aliases": (ALIAS_BOMB, "more than 1000000 values"),
    "merges": (
        "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 10)),
        "more than 1000000 values",
    ),
    "circle": ("a: &a [*a]", "nested more than 64 deep"),
    "chain": ("".join(f"- &a{n} [{f'*a{n - 1}' if n else 1}]\n" for n in range(100)), "nested more than 64 deep"),
    "nested": ("[" * 50_000, "nested more than 64 deep"),
    "nested-less": ("[" * 70 + "]" * 70, "nested more than 64 deep"),
    "huge-integer": ("a: 1" + "0" * 400, "more than 64 bits"),
    "huge-float": ("a: 1.0e+999", "no finite number"),
    "infinite": ("a: .inf", "no finite number"),
    "twice": ("steps: 1\nsteps: 2", "steps found 2 times"),
    "tag": ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
    "tag-of-another-value": ("a: !!bool maybe", "does not fit its tag: 'maybe'"),
    "tag-of-nothing": ("a: !!int ''", "does not fit its tag"),
    "two-documents": ("a: 1\n---\nb: 2", "expected a single document"),
}


@pytest.mark.parametrize(("text", "reason"), HOSTILE_YAML.values(), ids=list(HOSTILE_YAML))
def test_hostile_yaml_is_one_line(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(HeartlmError) as error:
        read_yaml(path, "settings")
    assert str(error.value).startswith(f"{path}: not valid YAML") and reason in str(error.value)
    assert "\n" not in str(error.value)


def test_yaml_that_settings_need(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a: &a {x: 1e-3, y: 2E5}\nb: {<<: *a, y: 3}\nday: 2024-01-01\ntime: 12:00:00\nnone:\n")
    assert read_yaml(path, "settings") == {
        "a": {"x": 1e-3, "y": 2e5},
        "b": {"x": 1e-3, "y": 3},
        "day": "2024-01-01",
        "time": 43200,
        "none": None,
    }


@pytest.mark.parametrize("read", [read_json, lambda path: read_yaml(path, "settings")], ids=["json", "yaml"])
def test_what_is_no_file_of_text_is_one_line(tmp_path: Path, read: Callable[[Path], object]) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "latin").write_bytes(b"\xe9")
    with (tmp_path / "sparse").open("wb") as stream:
        stream.truncate(1 << 40)
    expected = {
        "pipe": "a regular file expected",
        "latin": "UTF-8 text expected",
        "sparse": "MiB found",
        ".": "",
        "nul\0": "null byte",
        "absent": "No such file",
    }
    for name, reason in {**expected, "/dev/zero": "a regular file expected"}.items():
        with pytest.raises(HeartlmError, match=f"cannot read .*{reason}"):
            read(tmp_path / name)


def test_lines_of_json_with_a_torn_one(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_json_lines(path) == ([], 0)
    path.write_text('{"step": 1}\n\n[1]\n' + "[" * 100_000 + '\n{"step": 2}\n{"st')
    assert read_json_lines(path) == ([{"step": 1}, {"step": 2}], 3)


def test_a_line_separator_in_a_text_ends_no_line(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"a": "x\u2028y"}\r\n{"a": "\u0085"}\n', encoding="utf-8")
    assert read_json_lines(path) == ([{"a": "x\u2028y"}, {"a": "\u0085"}], 0)


def write(path: Path, kind: str, text: str, then: Callable[[], object] = lambda: None) -> None:
    """Write `text` as a file or into a folder, calling `then` in the middle."""
    if kind == "file":
        with atomic_file(path) as stream:
            stream.write(text)
            stream.flush()
            then()
    else:
        with atomic_folder(path) as folder:
            (folder / "a").write_text(text)
            then()


def text_of(path: Path) -> str:
    return (path / "a" if path.is_dir() else path).read_text()


def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def forked(act: Callable[[], object]) -> int:
    """Call `act` in a child; its process number."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            act()
            status = 0
        finally:
            os._exit(status)
    return child


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_a_killed_process_left_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    out = tmp_path / "out"
    write(out, kind, "earlier")
    for _ in range(2):
        child = forked(lambda: write(out, kind, "half", kill_this_process))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert text_of(out) == "earlier"
    assert len(list(tmp_path.iterdir())) > 1
    (tmp_path / ".out.of-another-program").write_text("stays")
    monkeypatch.setattr(atomic, "_swept", set())  # as of a new process
    write(out, kind, "later")
    assert text_of(out) == "later"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.of-another-program", "out"]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_a_living_process_is_writing_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    out, (is_writing, begun), (may_end, end) = tmp_path / "out", os.pipe(), os.pipe()

    def wait() -> None:
        os.write(begun, b".")
        os.read(may_end, 1)

    child = forked(lambda: write(out, kind, "of the child", wait))
    assert os.read(is_writing, 1) == b"."
    monkeypatch.setattr(atomic, "_swept", set())
    write(out, kind, "ours")
    assert text_of(out) == "ours"
    os.write(end, b".")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert text_of(out) == "of the child"
    assert list(tmp_path.iterdir()) == [out]


def test_an_array_of_which_only_a_part_fits_is_one_line(tmp_path: Path) -> None:
    """NumPy's tofile raises an OSError without a number."""
    ignored, limits = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with (
            pytest.raises(HeartlmError, match=r"^cannot write .*/out: only a part fits \(.*\); [^\n]*$"),
            atomic_folder(tmp_path / "out") as folder,
            (folder / "a").open("wb") as stream,
        ):
            np.zeros(10_000).tofile(stream)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert list(tmp_path.iterdir()) == []


def test_no_text_of_a_table_runs_as_a_formula(tmp_path: Path) -> None:
    texts = ['=HYPERLINK("x")', "+1+cmd", "-2+3", "@SUM(A1)", "\tx", "\n=x"]
    values = ["-0.5", "+1e3", "-inf", -0.5, None, "a=b", "a\r=b", ""]
    write_csv([{"=a": value} for value in [*texts, *values]], tmp_path / "t.csv")
    with (tmp_path / "t.csv").open(newline="") as stream:
        cells = [cell for (cell,) in csv.reader(stream)]
    assert cells == ["'=a", *(f"'{text}" for text in texts), "-0.5", "+1e3", "-inf", "-0.5", "", "a=b", "a =b", ""]
