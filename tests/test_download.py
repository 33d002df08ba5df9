"""Downloads from a real HTTP server on this machine, one that misbehaves as real ones do."""

from __future__ import annotations

import hashlib
import re
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from heartlm.databases import download
from heartlm.databases.download import DownloadSummary, download_database
from heartlm.errors import HeartlmError
from heartlm.system import progress

FILES = {
    "RECORDS": b"100\n101\n",
    "ANNOTATORS": b"atr\treference beats\n",
    "100.hea": b"100 1 360 1000\n",
    "100.dat": bytes(range(256)) * 2048,
    "100.atr": b"\x12\x34",
    "101.hea": b"101 1 360 1000\n",
    "101.dat": b"\x07" * 300_000,
    "docs/about it.html": b"<p>a name with a space</p>",
    "empty.txt": b"",
}
ATTEMPTS = 3


@dataclass
class Publisher:
    """What the server holds and how it misbehaves; counts are used up by requests for the file."""

    files: dict[str, bytes] = field(default_factory=lambda: dict(FILES))
    cuts: Counter[str] = field(default_factory=Counter)
    corruptions: Counter[str] = field(default_factory=Counter)
    statuses: dict[str, list[int]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    url: str = ""

    def __post_init__(self) -> None:
        lines = [f"{hashlib.sha256(content).hexdigest()} {name}\n" for name, content in self.files.items()]
        self.files["SHA256SUMS.txt"] = "".join(lines).encode()

    def use_up(self, counts: Counter[str], name: str) -> bool:
        with self.lock:
            left = counts[name]
            counts[name] -= left > 0
            return left > 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    publisher: Publisher

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        publisher = self.publisher
        name = self.path.removeprefix("/files/mitdb/1.0.0/").replace("%20", " ")
        with publisher.lock:
            publisher.requests.append(name)
            status = publisher.statuses[name].pop(0) if publisher.statuses.get(name) else 200
        if status != 200 or name not in publisher.files:
            self._answer(status if status != 200 else 404, b"")
            return
        content = publisher.files[name]
        if publisher.use_up(publisher.corruptions, name):
            content = b"?" + content[1:]
        self._answer(200, content, cut=publisher.use_up(publisher.cuts, name))

    def _answer(self, status: int, body: bytes, *, cut: bool = False) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection = cut


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(download, "TIMEOUT_S", 5.0)
    monkeypatch.setattr(download, "ATTEMPTS", ATTEMPTS)


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    publisher = Publisher()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("BoundHandler", (Handler,), {"publisher": publisher}))
    server.daemon_threads = True
    publisher.url = f"http://127.0.0.1:{server.server_port}/files/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield publisher
    server.shutdown()
    thread.join()
    server.server_close()


def fetch(publisher: Publisher, folder: Path, **options: object) -> DownloadSummary:
    return download_database("mitdb", folder, base_url=publisher.url, **options)


def assert_complete(folder: Path, publisher: Publisher) -> None:
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert found == publisher.files


def test_fetches_every_file(publisher: Publisher, tmp_path: Path):
    summary = fetch(publisher, tmp_path / "mitdb")
    assert_complete(tmp_path / "mitdb", publisher)
    assert (summary.num_fetched, summary.num_skipped) == (len(FILES), 0)
    assert summary.num_bytes == sum(map(len, FILES.values()))


def test_a_second_time_only_the_lists_are_fetched(publisher: Publisher, tmp_path: Path):
    fetch(publisher, tmp_path)
    publisher.requests.clear()
    summary = fetch(publisher, tmp_path)
    assert (summary.num_fetched, summary.num_skipped, summary.num_bytes) == (0, len(FILES), 0)
    assert set(publisher.requests) == {"SHA256SUMS.txt", "RECORDS"}


def test_a_damaged_file_is_fetched_again(publisher: Publisher, tmp_path: Path):
    fetch(publisher, tmp_path)
    (tmp_path / "101.dat").write_bytes(b"damaged")
    assert fetch(publisher, tmp_path).num_fetched == 1
    assert_complete(tmp_path, publisher)


def test_a_file_whose_connection_was_cut_is_fetched_again(publisher: Publisher, tmp_path: Path):
    publisher.cuts["100.dat"] = ATTEMPTS - 1
    summary = fetch(publisher, tmp_path)
    assert_complete(tmp_path, publisher)
    assert summary.num_bytes == sum(map(len, FILES.values()))


def test_a_server_that_always_cuts_is_given_up(publisher: Publisher, tmp_path: Path):
    publisher.cuts["100.dat"] = 1000
    with pytest.raises(HeartlmError, match=r"100\.dat: .*cut.*, in 3 tries"):
        fetch(publisher, tmp_path)
    assert publisher.requests.count("100.dat") == ATTEMPTS
    assert not list(tmp_path.glob("*100.dat*"))


def test_wrong_bytes_are_fetched_again(publisher: Publisher, tmp_path: Path):
    publisher.corruptions["101.dat"] = 1
    fetch(publisher, tmp_path)
    assert_complete(tmp_path, publisher)
    assert publisher.requests.count("101.dat") == 2


def test_server_errors_pass(publisher: Publisher, tmp_path: Path):
    publisher.statuses = {"100.hea": [500, 503], "SHA256SUMS.txt": [502], "101.hea": [429]}
    fetch(publisher, tmp_path)
    assert_complete(tmp_path, publisher)


def test_files_that_never_verify_are_named_and_the_others_kept(publisher: Publisher, tmp_path: Path):
    publisher.corruptions["101.dat"] = 1000
    publisher.statuses["100.atr"] = [404]
    with pytest.raises(HeartlmError) as caught:
        fetch(publisher, tmp_path)
    assert str(caught.value).startswith(f"2 of {len(FILES)} files could not be had (100.atr: the server answers 404")
    assert "; 101.dat: wrong bytes" in str(caught.value) and "\n" not in str(caught.value)
    kept = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert kept == set(publisher.files) - {"100.atr", "101.dat"}
    assert publisher.requests.count("100.atr") == 1, "a file that is not there is asked for once"
    assert publisher.requests.count("101.dat") == ATTEMPTS


def test_the_next_run_fetches_only_what_failed(publisher: Publisher, tmp_path: Path):
    publisher.statuses["100.atr"] = [404]
    with pytest.raises(HeartlmError):
        fetch(publisher, tmp_path)
    summary = fetch(publisher, tmp_path)
    assert (summary.num_fetched, summary.num_skipped) == (1, len(FILES) - 1)
    assert_complete(tmp_path, publisher)


def test_chosen_recordings_come_with_the_documents_and_lists_of_their_own(publisher: Publisher, tmp_path: Path):
    fetch(publisher, tmp_path, records=["101"])
    assert {path.name for path in tmp_path.iterdir()} == {
        *("101.hea", "101.dat", "ANNOTATORS", "empty.txt", "RECORDS", "SHA256SUMS.txt")
    }
    assert (tmp_path / "RECORDS").read_text() == "101\n"
    listed = [line.split()[1] for line in (tmp_path / "SHA256SUMS.txt").read_text().splitlines()]
    assert sorted(listed) == ["101.dat", "101.hea", "ANNOTATORS", "empty.txt"]


def test_recordings_in_folders_are_chosen_by_bare_name(publisher: Publisher, tmp_path: Path):
    files = {"training/A1.hea": b"A1", "training/A1.mat": b"1", "training/A2.hea": b"A2", "all.zip": b"zip"}
    publisher.files.clear()
    publisher.files.update(Publisher(files).files)
    fetch(publisher, tmp_path, records=["A1"])
    assert sorted(path.name for path in (tmp_path / "training").iterdir()) == ["A1.hea", "A1.mat"]
    assert not (tmp_path / "all.zip").exists()


def test_an_unknown_recording_is_answered_with_the_nearest(publisher: Publisher, tmp_path: Path):
    with pytest.raises(HeartlmError, match=r"no recording '1001'.*101"):
        fetch(publisher, tmp_path, records=["1001"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("0" * 64 + " ../../etc/passwd", "outside of the database"),
        ("0" * 64 + " /etc/passwd", "outside of the database"),
        ("not a checksum", "expected a SHA-256"),
        ("", "lists no files"),
    ],
)
def test_a_dangerous_or_broken_list_of_files_is_refused(
    publisher: Publisher, tmp_path: Path, line: str, complaint: str
):
    publisher.files["SHA256SUMS.txt"] = line.encode()
    with pytest.raises(HeartlmError, match=complaint):
        fetch(publisher, tmp_path)
    assert not list(tmp_path.iterdir())


def test_no_list_of_files_is_one_clear_error(publisher: Publisher, tmp_path: Path):
    publisher.statuses["SHA256SUMS.txt"] = [404]
    with pytest.raises(HeartlmError, match=r"SHA256SUMS\.txt: the server answers 404"):
        fetch(publisher, tmp_path)


def test_no_server_is_one_clear_error(tmp_path: Path):
    with pytest.raises(HeartlmError, match="no connection to the server, in 3 tries"):
        download_database("mitdb", tmp_path, base_url="http://127.0.0.1:1/")


def test_an_unwritable_folder_is_one_clear_error(publisher: Publisher, tmp_path: Path):
    (tmp_path / "mitdb").write_text("a file stands where the folder should be")
    with pytest.raises(HeartlmError, match=r"cannot write .*mitdb"):
        fetch(publisher, tmp_path / "mitdb")


def test_progress_counts_files_and_megabytes(
    publisher: Publisher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(progress, "LOG_EVERY_S", -1.0)
    publisher.statuses["100.atr"] = [403]
    with pytest.raises(HeartlmError) as caught:
        fetch(publisher, tmp_path)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("download: ")]
    state = rf"download: {len(FILES)} of {len(FILES)}, [\d.,]+ MB/s, 0 s left"
    assert len(lines) == len(FILES) and re.match(state, lines[-1])
    assert "(100.atr: the server answers 403" in str(caught.value)


def test_no_header_is_fetched_where_the_samples_of_a_record_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = list[str]()

    def full(url: str, path: Path, *_: object) -> int:
        fetched.append(path.name)
        if path.suffix == ".dat":
            raise HeartlmError(f"cannot write {path}: No space left on device")
        return 1

    monkeypatch.setattr(download, "_fetch", full)
    files = dict.fromkeys(["a.atr", "a.hea", "a.dat", "b.hea", "b.dat"], "0" * 64)
    with pytest.raises(HeartlmError, match="No space left"):
        download._fetch_all("http://x", tmp_path, files, 2)
    assert not [name for name in fetched if name.endswith(".hea")]
