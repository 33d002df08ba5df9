"""Shipped models: found by name, read without their corpus, the same bytes whenever they are made, small enough."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from heartlm.cli.main import main
from heartlm.databases.database import open_database
from heartlm.databases.splits import DS2
from heartlm.errors import HeartlmError
from heartlm.models import pretrained
from heartlm.models.pretrained import FOLDER, find_run, shipped_models
from heartlm.models.store import load_model, whole_tensors
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.write import simulate_database
from recipes import models
from recipes.beats import for_training

NAMES = ["af", "beats", "beats-causal", "foundation", "waveform"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated database, its corpus, and a foundation and a beats model, each trained twice."""
    folder = tmp_path_factory.mktemp("made")
    simulate_database(folder / "simdb", SimulationConfig(patients=3, minutes=1, seed=4))
    assert main(["tokenize", str(folder / "simdb"), "--out", str(folder / "corpus"), "--processes", "1"]) == 0
    common = ["--corpus", str(folder / "corpus"), "--steps", "2", "--batch-size", "2", "--threads", "1"]
    for of in ("one", "two"):
        foundation, tuned = str(folder / of / "foundation"), str(folder / of / "beats")
        assert main(["pretrain", *common, "--depth", "1", "--out", foundation]) == 0
        assert main(["finetune", foundation, "--task", "beats", *common, "--out", tuned]) == 0
        for name in ("foundation", "beats"):
            models.ship(name, folder / of / name, folder / f"shipped-{of}", None)
    return folder


@pytest.fixture
def shipped(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The models of the first training as those of this installation, and an empty current directory."""
    monkeypatch.setattr(pretrained, "FOLDER", made / "shipped-one")
    monkeypatch.chdir(tmp_path)
    yield made


def test_a_model_made_twice_has_the_same_bytes_and_no_path(made: Path):
    one, two = made / "shipped-one", made / "shipped-two"
    files = sorted(path.relative_to(one) for path in one.rglob("*") if path.is_file())
    assert len(files) == 2 * 7 + 2 and Path("beats/card.md") in files  # with the two tensors of the tokenizer
    for path in files:
        content = (one / path).read_bytes()
        assert content == (two / path).read_bytes(), path
        assert str(made).encode() not in content, path


def test_shipped_models_answer_to_their_names(shipped: Path, capsys: pytest.CaptureFixture[str]):
    record = next((shipped / "simdb").glob("*.hea")).stem
    assert main(["predict", "beats", str(shipped / "simdb" / record)]) == 0
    assert Path(f"{record}.hlm").is_file()
    assert main(["evaluate", "beats", "--on", str(shipped / "simdb"), "--split", "all", "--bootstrap", "20"]) == 0
    scores = json.loads(next(Path("scores/beats").glob("*/scores.json")).read_text())
    notes = " ".join(scores["notes"])
    assert "trained on (simdb/" in notes and "comes without its training corpus" in notes
    words = ["--corpus", str(shipped / "corpus"), "--steps", "1", "--batch-size", "2", "--threads", "1"]
    assert main(["finetune", "foundation", "--task", "beats", *words, "--out", "mine"]) == 0
    capsys.readouterr()
    assert main(["predict", "mine", str(shipped / "simdb" / record), "--out", "of-mine"]) == 0


def test_a_run_folder_of_that_name_comes_first_and_any_other_folder_does_not_count(shipped: Path):
    Path("beats").mkdir()
    assert find_run(Path("beats")) == shipped / "shipped-one/beats"
    Path("beats/run.json").write_text("{}")
    assert find_run(Path("beats")) == Path("beats")
    with pytest.raises(HeartlmError, match=r"beets: no such run folder, nor a shipped model \(beats, foundation\)"):
        find_run(Path("beets"))


def test_probabilities_divided_by_the_temperature_are_as_frequent_as_they_say():
    random = np.random.default_rng(0)
    logits = random.normal(0, 1.5, (20_000, 2))
    true = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    label = (random.random(len(true)) < true[:, 1]).astype(np.int64)
    overconfident = true**2 / (true**2).sum(axis=1, keepdims=True)
    held_out = models.HeldOut(label, np.repeat(np.arange(20).astype(str), 1000), overconfident)
    assert held_out.temperature() == pytest.approx(2, abs=0.1)
    assert held_out.heated(2).error(1) < 0.02 < 0.08 < held_out.error(1)


@pytest.mark.skipif(
    not set(NAMES) <= set(shipped_models()), reason="not all shipped models are in this checkout: make models"
)
@pytest.mark.parametrize("name", NAMES)
def test_shipped_cards_have_the_words_of_their_templates(name: str):
    card = (FOLDER / name / "card.md").read_text()
    patients, scores = (
        re.search(r"`data.json`: (.*?)\. No", card),
        re.search(r"\| class \|.*?(?=\n\n)", card, re.DOTALL),
    )
    lost, at = re.search(r"annotated beats: (.*)\.\n", card), re.search(r"temperature (.*?),", card)
    num = re.search(r"(\d+) patients in patient-wise folds", card)
    assert patients is not None and (scores is None) == (name == "foundation")
    found = {"scores": scores and scores[0], "lost": lost and lost[1], "temperature": at and at[1]}
    found |= {"num_patients": num and num[1], "num_bins": models.NUM_BINS, "least_in_bin": models.MIN_IN_BIN}
    known = {"name": name, "patients": patients[1], "physionet": models.PHYSIONET}
    assert models.CARDS.get_template(f"{name}.md").render(known | found) == card


def test_what_is_shipped_is_small_and_every_card_names_its_licences():
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files if path.suffix == ".safetensors") <= 14e6
    assert sum(path.stat().st_size for path in files) <= 14.5e6
    assert set(shipped_models()) == {*NAMES, "statements"}
    for name in shipped_models():
        card = (FOLDER / name / "card.md").read_text()
        assert "Not for" in card and "not a medical device" in card
        assert ("Open Data Commons Attribution License" in card) == (name != "statements")
        patients = json.loads((FOLDER / name / "data.json").read_text())[0]["patients"]
        assert patients and not any(each.startswith("vitaldb") for each in patients)
        assert not {f"mitdb/{record}" for record in DS2}.intersection(patients)
        of_ptb_xl = any(each.startswith("ptb-xl/") for each in patients)
        assert of_ptb_xl == ("Creative Commons Attribution 4.0" in " ".join(card.split()))


def test_the_foundation_model_keeps_a_share_of_the_weights_before_the_drawn_rhythms(made: Path, tmp_path: Path):
    models.ship("foundation", made / "one/beats", tmp_path, None)
    before, after, shipped = (
        whole_tensors(load_model(folder)[0])
        for folder in (
            made / "one/foundation/models/last",
            made / "one/beats/models/last",
            tmp_path / "foundation/models/last",
        )
    )
    changed = [each for each in before.keys() & shipped.keys() if (before[each] - after[each]).abs().max() > 1e-3]
    assert changed
    for each in changed:
        mixed = 0.75 * after[each] + 0.25 * before[each]
        np.testing.assert_allclose(shipped[each].numpy(), mixed.numpy(), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(shipped["class_head.bias"].numpy(), after["class_head.bias"].numpy())


def test_links_for_training_hold_the_chosen_recordings_alone_and_all_train(made: Path, tmp_path: Path):
    database = open_database(made / "simdb")
    first, second, _ = database.record_ids
    linked = open_database(for_training(made / "simdb", tmp_path / "ludb", [first, second]))
    assert linked.name == "ludb" and linked.record_ids == (first, second)
    stated = json.loads((linked.folder / "database.json").read_text())
    patients = [linked.patient_of(record).split("/")[1] for record in linked.record_ids]
    assert stated == {"splits": dict.fromkeys(sorted(patients), "train")}
