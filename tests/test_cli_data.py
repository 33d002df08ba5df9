"""`heartlm data` as its user meets it: what is printed, which files appear, which status comes back."""

from __future__ import annotations

import hashlib
import resource
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from xml.etree import ElementTree

import pytest

from heartlm.cli.data import SUBCOMMANDS
from heartlm.cli.data_tables import print_findings
from heartlm.cli.main import main
from heartlm.databases.catalogue import CATALOGUE, PHYSIONET_CITATION
from heartlm.databases.database import locate
from heartlm.databases.verify import Finding
from heartlm.ecg.recording import BEAT_CLASSES
from heartlm.errors import HeartlmError
from heartlm.report.render import Markup
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.write import simulate_database
from tests.conftest import Refused, refused_line, shared_data


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "simdb"
    simulate_database(folder, SimulationConfig(patients=2, minutes=0.5, seed=5))
    return folder


def test_help_lists_the_subcommands(capsys: pytest.CaptureFixture[str]):
    assert main(["data", "--help"]) == 0
    printed = capsys.readouterr().out
    assert all(f"\n  {name} " in printed for name in ("list", "simulate", "download", "verify", "show"))


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_subcommand_explains_itself_with_examples(name: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as left:
        main(["data", name, "--help"])
    printed = capsys.readouterr().out
    assert left.value.code == 0
    assert f"examples:\n  heartlm data {name}" in printed


def test_an_unknown_subcommand_is_status_2(refused: Refused):
    commands = "list, formats, convert, index, simulate, download, verify, show"
    assert f"it is one of {commands}" in refused("data", "fetch")


def test_list_prints_a_plain_line_a_database_into_a_pipe(capsys: pytest.CaptureFixture[str]):
    assert main(["data", "list"]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split()[:3] == ["name", "recordings", "hours"]
    assert [line.split()[0] for line in lines] == list(CATALOGUE)
    assert "beats, rhythms" in lines[0] and "ODC-By 1.0" in lines[0] and "360" in lines[0]


def test_list_of_one_database_says_what_to_cite(capsys: pytest.CaptureFixture[str]):
    assert main(["data", "list", "afdb"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "A new method for detecting atrial fibrillation using R-R intervals" in printed
    assert PHYSIONET_CITATION in printed
    assert "size not recorded" in printed


def test_simulate_writes_what_was_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    options = ["--patients", "1", "--minutes", "0.5", "--seed", "3", "--leads", "[II, V5]"]
    assert main(["data", "simulate", str(tmp_path / "sim"), *options]) == 0
    database, record_id = locate(tmp_path / "sim" / "s0001")
    recording = database.recording(record_id)
    assert (recording.lead_names, recording.duration_s) == (("II", "V5"), 30.0)
    assert "1 simulated patients" in capsys.readouterr().out


def test_simulate_loses_nothing(simulated: Path, tmp_path: Path, refused: Refused):
    (tmp_path / "thesis.txt").write_text("years of work")
    assert "is no simulated database" in refused("data", "simulate", tmp_path, "--replace")
    assert "give --replace" in refused("data", "simulate", simulated)
    assert (tmp_path / "thesis.txt").exists()


def test_simulate_replaces_when_told_to(tmp_path: Path):
    options = ["--minutes", "0.5", "--patients"]
    assert main(["data", "simulate", str(tmp_path / "sim"), *options, "2"]) == 0
    assert main(["data", "simulate", str(tmp_path / "sim"), *options, "1", "--replace"]) == 0
    assert not (tmp_path / "sim" / "s0002.hea").exists()


def test_simulate_on_a_full_disk_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    ignored, limits = signal.signal(signal.SIGXFSZ, signal.SIG_IGN), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        line = refused_line(capsys, "data", "simulate", tmp_path / "out", "--patients", "1", "--minutes", "1")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert line.startswith(f"heartlm data: cannot write {tmp_path / 'out'}: ")
    assert list(tmp_path.iterdir()) == []


def test_simulate_names_the_impossible_field(tmp_path: Path, refused: Refused):
    assert "patients is 0" in refused("data", "simulate", tmp_path / "sim", "--patients", "0")


def test_verify_of_a_clean_database_is_status_0(simulated: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["data", "verify", str(simulated)]) == 0
    assert capsys.readouterr().out == f"{simulated}: nothing is wrong\n"


def test_verify_names_the_damaged_file_with_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    simulate_database(tmp_path / "sim", SimulationConfig(patients=1, minutes=0.5))
    damaged = tmp_path / "sim" / "s0001.dat"
    content = bytearray(damaged.read_bytes())
    content[1000] ^= 0x55
    damaged.write_bytes(content)
    assert main(["data", "verify", str(tmp_path / "sim")]) == 1
    assert f"error: {damaged}: differs from its SHA-256" in capsys.readouterr().out


def test_verify_of_no_folder_is_status_2(tmp_path: Path, refused: Refused):
    refused("data", "verify", tmp_path / "none")


def test_findings_are_summed_up(capsys: pytest.CaptureFixture[str]):
    print_findings(Path("db"), [Finding(Path("a"), "error", "x"), *(2 * [Finding(Path("b"), "warning", "y")])])
    assert capsys.readouterr().out.splitlines() == ["error: a: x", *(2 * ["warning: b: y"]), "db: 1 error, 2 warnings"]


@pytest.mark.parametrize("ending", ["", ".hea", ".dat"])
@pytest.mark.parametrize(("suffix", "magic"), [(".svg", b"<svg"), (".png", b"\x89PNG")])
def test_show_draws_a_recording_named_in_any_way(
    simulated: Path, tmp_path: Path, ending: str, suffix: str, magic: bytes
):
    out = tmp_path / f"strip{suffix}"
    assert main(["data", "show", f"{simulated}/s0001{ending}", "--start", "5", "--stop", "8", "--out", str(out)]) == 0
    assert out.read_bytes().startswith(magic)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Counter[str]]:
    """How often each text stands on each picture that is saved."""
    pictures: list[Counter[str]] = []

    def look(drawings: Sequence[tuple[str, Markup]], path: Path) -> Path:
        texts = [each.text or "" for _, drawn in drawings for each in ElementTree.fromstring(drawn).iter("text")]
        pictures.append(Counter([*texts, *(caption for caption, _ in drawings)]))
        return path

    monkeypatch.setattr("heartlm.report.figures.save_drawings", look)
    return pictures


def test_show_draws_the_named_leads_beats_and_rhythms(simulated: Path, drawn: list[Counter[str]]):
    assert main(["data", "show", f"{simulated}/s0001", "--leads", "V1", "--start", "0:00:02", "--stop", "12"]) == 0
    database, record_id = locate(simulated / "s0001")
    annotations = database.annotations(record_id)
    assert annotations is not None
    shown = (annotations.sample >= 2 * 250) & (annotations.sample < 12 * 250)
    (texts,) = drawn
    assert texts["V1"] == texts["simdb s0001"] == 1 and texts["MLII"] == 0
    assert sum(texts[name] for name in BEAT_CLASSES) >= shown.sum() > 0


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--start", "-1"], "start is -1 s"),
        (["--start", "1000"], "lasts from 0 to 30 s"),
        (["--start", "5", "--stop", "5"], "stop is 5 s"),
        (["--stop", "31"], "at most 30 s"),
        (["--leads", "V9"], "no lead 'V9'; it has MLII, V1"),
        (["--out", "strip.bmp"], "must end in .svg or .png"),
        (["--start", "soon"], "start is 'soon'; expected seconds, m:ss or h:mm:ss"),
    ],
)
def test_show_refuses_in_one_line(simulated: Path, options: list[str], complaint: str, refused: Refused):
    assert complaint in refused("data", "show", f"{simulated}/s0001", *options)


def test_an_unknown_recording_is_answered_with_the_nearest(simulated: Path):
    with pytest.raises(HeartlmError, match=r"no such recording; there are .* s0001"):
        locate(simulated / "s001")


def test_a_recording_in_a_folder_below_is_found_by_its_name(simulated: Path, tmp_path: Path):
    below = tmp_path / "db" / "records" / "00000"
    below.mkdir(parents=True)
    for path in simulated.glob("s0001.*"):
        (below / path.name).symlink_to(path)
    database, record_id = locate(tmp_path / "db" / "s0001")
    assert (database.folder, record_id) == (tmp_path / "db", "s0001")
    assert locate(below / "s0001")[1] == "s0001"


def test_a_recording_in_no_folder(tmp_path: Path):
    with pytest.raises(HeartlmError, match="no such folder"):
        locate(tmp_path / "nowhere" / "100")


def test_a_recording_in_a_subfolder_belongs_to_the_database_above(simulated: Path, tmp_path: Path):
    (tmp_path / "data").mkdir()
    for file in simulated.glob("s0001.*"):
        (tmp_path / "data" / file.name).write_bytes(file.read_bytes())
    (tmp_path / "RECORDS").write_text("data/s0001\n")
    database, record_id = locate(tmp_path / "data" / "s0001.dat")
    assert (database.folder, record_id) == (tmp_path, "s0001")


def test_show_of_a_real_recording(drawn: list[Counter[str]]):
    assert main(["data", "show", str(shared_data("mitdb") / "208"), "--start", "60", "--stop", "70"]) == 0
    (texts,) = drawn
    assert {name: texts[name] for name in BEAT_CLASSES[:5]} == {"N": 10, "S": 0, "V": 6, "F": 2, "Q": 0}, (
        "one N is a rhythm"
    )
    assert texts["T"] == 1, "ventricular trigeminy begins"


def test_verify_of_a_real_database(capsys: pytest.CaptureFixture[str]):
    folder = shared_data("cudb")
    assert main(["data", "verify", str(folder)]) == 1
    *findings, summary = capsys.readouterr().out.splitlines()
    assert summary == f"{folder}: 28 warnings"
    assert f"warning: {folder}/cu33.hea: lead ECG: 234 of 127232 samples are invalid" in findings


def test_annotations_alone_cannot_be_drawn(refused: Refused):
    assert "annotations only, no signal to draw" in refused("data", "show", shared_data("afdb") / "04015")


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A server of a small `mitdb`, and the folder behind it."""
    root = tmp_path / "mirror"
    database = root / "mitdb" / "1.0.0"
    database.mkdir(parents=True)
    for name, content in (("RECORDS", b"100\n"), ("100.hea", b"100 1 360 3\n"), ("100.dat", b"beats")):
        (database / name).write_bytes(content)
    sums = (f"{hashlib.sha256(file.read_bytes()).hexdigest()} {file.name}\n" for file in sorted(database.iterdir()))
    (database / "SHA256SUMS.txt").write_text("".join(sums))
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(root)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/", database
    server.shutdown()
    thread.join()
    server.server_close()


def test_download_fetches_and_says_what_it_did(
    mirror: tuple[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    url, _ = mirror
    command = ["data", "download", "mitdb", str(tmp_path / "mitdb"), "--base-url", url]
    assert main(command) == 0
    assert "3 files fetched" in capsys.readouterr().out
    assert main(command) == 0
    assert "0 files fetched (0.0 MB), 3 were there already" in capsys.readouterr().out


def test_download_with_a_file_that_never_verifies_is_status_2(
    mirror: tuple[str, Path], tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("heartlm.databases.download.ATTEMPTS", 1)
    url, database = mirror
    (database / "100.dat").write_bytes(b"other")
    target = tmp_path / "mitdb"
    assert "1 of 3 files could not be had (100.dat: wrong bytes" in refused(
        "data", "download", "mitdb", target, "--base-url", url
    )
    assert (target / "100.hea").exists() and not (target / "100.dat").exists()


def test_download_writes_through_no_symbolic_link(mirror: tuple[str, Path], tmp_path: Path, refused: Refused):
    (url, _), name = mirror, "100.dat"
    target = tmp_path / "mitdb"
    target.mkdir()
    (tmp_path / "thesis.txt").write_text("ten years")
    (target / name).symlink_to(tmp_path / "thesis.txt")
    assert f"{name} is a symbolic link" in refused("data", "download", "mitdb", target, "--base-url", url)
    assert (tmp_path / "thesis.txt").read_text() == "ten years"


def test_download_writes_into_no_linked_folder(mirror: tuple[str, Path], tmp_path: Path, refused: Refused):
    url, database = mirror
    (database / "sub").mkdir()
    (database / "sub" / "x").write_bytes(b"x")
    with (database / "SHA256SUMS.txt").open("a") as stream:
        stream.write(f"{hashlib.sha256(b'x').hexdigest()} sub/x\n")
    target = tmp_path / "mitdb"
    target.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (target / "sub").symlink_to(tmp_path / "elsewhere")
    assert "sub is a symbolic link" in refused("data", "download", "mitdb", target, "--base-url", url)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_download_without_a_worker_is_refused(tmp_path: Path, refused: Refused):
    assert "data: workers: 0 found, at least 1 expected" in refused(
        "data", "download", "mitdb", tmp_path / "mitdb", "--workers", "0"
    )
    assert not (tmp_path / "mitdb").exists()
