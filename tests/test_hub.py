"""Models saved in the layout of the Hugging Face hub, and fetched from its cache or from a server like it."""

from __future__ import annotations

import hashlib
import http.server
import importlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import heartlm
from heartlm import HeartlmError
from heartlm.cli.main import main
from heartlm.models import hub
from heartlm.models.pretrained import FOLDER
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.write import simulate_database

REVISION = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub") / "clinic"
    simulate_database(folder, SimulationConfig(patients=3, minutes=1, seed=6))
    return folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest of the shipped models that reads beats."""
    return heartlm.load_model("af").save_pretrained(tmp_path_factory.mktemp("saved") / "af")


@pytest.fixture
def cache(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the hub that holds `saved` as clinic/af, for use without a network."""
    pytest.importorskip("huggingface_hub", reason="the extra hub is not installed")
    # Not its attribute: a test that hides the package leaves one without attributes for what is imported already.
    constants = importlib.import_module("huggingface_hub.constants")
    repository = tmp_path / "cache/models--clinic--af"
    for path in saved.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            blob = repository / "blobs" / hashlib.sha256(content).hexdigest()
            link = repository / "snapshots" / REVISION / path.relative_to(saved)
            for each in (blob, link):
                each.parent.mkdir(parents=True, exist_ok=True)
            blob.write_bytes(content)
            link.symlink_to(os.path.relpath(blob, link.parent))
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(REVISION)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return repository.parent


def test_a_saved_model_is_the_model_and_holds_no_path_or_patient(database: Path, tmp_path: Path):
    corpus = heartlm.tokenize(database, tmp_path / "corpus", heartlm.TokenizeConfig(processes=1))
    settings: dict[str, Any] = {"steps": 2, "batch_size": 2, "window": 16, "threads": 1}
    run = heartlm.pretrain(corpus, tmp_path / "foundation", heartlm.PretrainConfig(depth=1, **settings))
    tuned = heartlm.finetune(run, corpus, tmp_path / "beats", heartlm.FinetuneConfig(task="beats", **settings))
    heartlm.evaluate(tuned, database, heartlm.EvaluationConfig(split="all", bootstrap=20, baselines=False))
    model = heartlm.load_model(tuned)
    folder = model.save_pretrained(tmp_path / "out", license="mit")
    again = heartlm.load_model(folder)
    record = database / "s0001"
    assert np.array_equal(model.embed(record).vectors, again.embed(record).vectors)
    assert model.analyze(record).to_frame().equals(again.analyze(record).to_frame())
    words = [str(tmp_path).encode(), b"s0001", b"p0001"]
    assert not [path for path in folder.rglob("*") if path.is_file() and any(w in path.read_bytes() for w in words)]
    text = (folder / "README.md").read_text()
    assert text.startswith("---\nlicense: mit\n") and "- simdb: " in text and "| macro_f1 | 0." in text
    again.save_pretrained(folder)  # replaces it, and keeps its card
    assert (folder / "README.md").read_text() == text
    assert main(["predict", str(folder), str(record), "--out", str(tmp_path / "predicted")]) == 0


def test_the_card_of_a_run_scored_on_one_patient_has_scores_without_an_interval(tmp_path: Path):
    shutil.copytree(FOLDER / "af", tmp_path / "run")
    (tmp_path / "run/card.md").unlink()
    scores = {"se": {"value": 0.9, "ci": [None, None]}, "sp": {"value": 0.8, "ci": [0.7, 0.9]}}
    (tmp_path / "run/scores/one").mkdir(parents=True)
    (tmp_path / "run/scores/one/scores.json").write_text(json.dumps({"on": "x", "split": "test", "scores": scores}))
    card = (heartlm.load_model(tmp_path / "run").save_pretrained(tmp_path / "out") / "README.md").read_text()
    assert "| se | 0.900 | none |" in card
    assert "| sp | 0.800 | 0.700 to 0.900 |" in card


def test_the_hub_reads_the_fields_of_a_card(saved: Path):
    card = pytest.importorskip("huggingface_hub", reason="the extra hub is not installed").ModelCard.load(
        saved / "README.md"
    )
    assert (card.data.license, card.data.library_name) == ("apache-2.0", "heartlm")
    assert card.data.metrics == ["f1"] and {"ecg", "rhythm"} <= set(card.data.tags)
    assert {"afdb", "ltafdb"} <= set(card.data.datasets)
    assert "# af: " in card.text and "not a medical device" in card.text


def test_a_model_of_the_cache_is_used_by_name(
    cache: Path, saved: Path, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    before = sorted(cache.rglob("*"))
    model = heartlm.load_model("hf:clinic/af")
    assert model.folder == cache / "models--clinic--af/snapshots" / REVISION
    record = database / "s0001"
    expected = heartlm.load_model(saved).embed(record, level="window").vectors
    assert np.array_equal(model.embed(record, level="window").vectors, expected)
    assert heartlm.load_model(f"hf:clinic/af@{REVISION}").folder == model.folder
    assert main(["evaluate", "hf:clinic/af", "--on", str(database), "--no-baselines", "--split", "all"]) == 0
    assert (tmp_path / "scores/clinic--af").is_dir() and sorted(cache.rglob("*")) == before


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hf:clinic/none", "cannot be reached"),
        ("hf:clinic/af@v2", "cannot be reached"),
        ("hf:clinic", "hf:OWNER/NAME"),
        ("hf:../../af", "hf:OWNER/NAME"),
        ("hf:clinic/..", "no such model"),
    ],
)
def test_a_name_that_gives_no_model_is_one_line(cache: Path, name: str, expected: str):
    with pytest.raises(HeartlmError, match=expected) as error:
        heartlm.load_model(name)
    assert "\n" not in str(error.value) and str(error.value).startswith(name)


def test_another_model_of_the_hub_is_refused(cache: Path):
    (cache / "models--clinic--af/snapshots" / REVISION / "run.json").unlink()
    with pytest.raises(HeartlmError, match="so no model that"):
        heartlm.load_model("hf:clinic/af")


def test_the_extra_is_named_and_nothing_of_it_is_imported_before(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(HeartlmError, match=r"pip install 'heartlm\[hub\]'"):
        heartlm.load_model("hf:clinic/af")
    assert heartlm.load_model("af").info.task == "rhythm"


def test_other_files_are_never_replaced(saved: Path, tmp_path: Path):
    model = heartlm.load_model(saved)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(HeartlmError, match="no saved model: choose another folder"):
        model.save_pretrained(tmp_path)
    copy = tmp_path / "copy"
    shutil.copytree(saved, copy)
    (copy / ".git").mkdir()
    with pytest.raises(HeartlmError, match=r"other files \(\.git\)"):
        model.save_pretrained(copy)
    (copy / ".git").rmdir()
    (copy / "README.md").write_text("---\n- no fields\n---\n")
    with pytest.raises(HeartlmError, match="fields in YAML expected"):
        heartlm.load_model(copy).save_pretrained(tmp_path / "new")
    assert {each.name for each in tmp_path.iterdir()} == {"notes.txt", "copy"}


def test_a_copy_of_the_foundation_model_names_no_beats_either(database: Path, tmp_path: Path):
    copy = heartlm.load_model("foundation").save_pretrained(tmp_path / "copy")
    with pytest.raises(HeartlmError, match="foundation names no beats"):
        heartlm.load_model(copy).analyze(database / "s0001")


@pytest.fixture
def server(saved: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a server that has `saved` as clinic/af, and a pickle next to it."""
    root = tmp_path / "repository"
    shutil.copytree(saved, root)
    (root / "model.pkl").write_bytes(b"a pickle")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            path, headers, status = self.path.partition("?")[0], {}, 200
            files = [each.relative_to(root).as_posix() for each in root.rglob("*") if each.is_file()]
            if path.startswith("/api/models/clinic/af/tree/"):
                tree = [{"type": "file", "path": each, "size": 1, "oid": each} for each in files]
                content = json.dumps(tree).encode()
            elif path.startswith("/api/models/clinic/af/"):
                siblings = [{"rfilename": each} for each in files]
                content = json.dumps({"id": "clinic/af", "sha": REVISION, "siblings": siblings}).encode()
            elif path.startswith(start := f"/clinic/af/resolve/{REVISION}/"):
                content = (root / path.removeprefix(start)).read_bytes()
                headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": REVISION}
            else:
                content, headers, status = b"{}", {"X-Error-Code": "RepoNotFound"}, 404
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_GET = do_HEAD  # noqa: N815

        def log_message(self, *arguments: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()


def test_a_model_is_downloaded_without_other_files_and_then_used_offline(server: str, tmp_path: Path):
    pytest.importorskip("huggingface_hub", reason="the extra hub is not installed")
    code = """
import sys
from heartlm import HeartlmError
from heartlm.models.pretrained import find_run
assert "huggingface_hub" not in sys.modules
try:
    print(find_run(sys.argv[1]))
except HeartlmError as error:
    print(error)
"""
    env = os.environ | {"HF_ENDPOINT": server, "HF_HOME": str(tmp_path / "home"), "NO_PROXY": "127.0.0.1"}
    env.pop("HF_HUB_CACHE", None)

    def find(name: str, **more: str) -> str:
        command = [sys.executable, "-c", code, name]
        return subprocess.run(command, env=env | more, capture_output=True, text=True, check=True).stdout.strip()

    folder = Path(find("hf:clinic/af"))
    assert {each.name for each in folder.iterdir()} <= {*hub.FILES, "config.json", "data.json", "run.json", "tokenizer"}
    assert not list(folder.rglob("*.pkl"))
    assert heartlm.load_model(folder).info.task == "rhythm"
    assert find("hf:clinic/af", HF_HUB_OFFLINE="1") == str(folder)
    assert "hf:clinic/none: no such model" in find("hf:clinic/none")
