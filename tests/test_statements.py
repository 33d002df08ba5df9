"""Statements about recordings: where they are read, tokens of all leads, the networks, and the commands."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import wfdb

from heartlm.cli.main import main
from heartlm.corpus.corpus import Corpus, open_corpus
from heartlm.databases.database import open_database
from heartlm.databases.statements import statements_of
from heartlm.ecg.recording import Annotations
from heartlm.ecg.statements import STATEMENTS, SUPERCLASSES, with_superclasses
from heartlm.errors import HeartlmError
from heartlm.evaluation.bootstrap import Resampling
from heartlm.evaluation.statements import best_thresholds, calibration_error, score_statements
from heartlm.inference.beat_summary import beat_summary
from heartlm.inference.leads import ScoredLead, scored_lead
from heartlm.inference.trees import fitted_trees
from heartlm.labels.statements import learnable, stated_labels, stated_of
from heartlm.models.config import ModelConfig
from heartlm.models.leads import LeadsNetwork
from heartlm.models.sizes import directions
from heartlm.models.store import build_model
from heartlm.tokenizers.base import Lead
from heartlm.tokenizers.leads import PLACES, LeadsTokenizer, places_of
from heartlm.tokenizers.millivolts import NO_SIGNAL, dequantize
from heartlm.training.batches import BatchPosition
from heartlm.training.statements import StatementBatches, StatementLoss, augmented
from tests.conftest import Refused, shared_data
from tests.scored_again import check_scored_again
from tests.synthetic_leads import beat_times_s, ecg_mv

RATE_HZ, SECONDS = 250, 8
NAMES = ("I", "II", "V1", "V2", "V3", "V4", "V5", "V6")
GAINS = (0.7, 1.0, -0.4, -0.2, 0.3, 0.8, 0.8, 0.6)


def record(folder: Path, name: str, seed: int, inverted: bool, comments: tuple[str, ...] = ()) -> None:
    """Write a recording of eight leads, in some upside down."""
    time = np.arange(SECONDS * RATE_HZ) / RATE_HZ
    mv = ecg_mv(time, beat_times_s(SECONDS + 2, seed)) * (-1 if inverted else 1)
    random = np.random.default_rng(seed)
    leads = mv[:, None] * np.array(GAINS) + random.normal(0, 0.01, (len(time), len(NAMES)))
    wfdb.wrsamp(
        name,
        fs=RATE_HZ,
        units=["mV"] * len(NAMES),
        sig_name=list(NAMES),
        p_signal=leads,
        fmt=["16"] * len(NAMES),
        write_dir=str(folder),
        comments=list(comments),
    )


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty patients; half are inverted, which a table states, but not about one of them."""
    folder = tmp_path_factory.mktemp("statements") / "leads"
    folder.mkdir()
    rows, splits = [["record", "INVERTED", "LATE"]], {}
    for patient in range(20):
        name, inverted = f"r{patient:02d}", patient % 2 == 1
        record(folder, name, patient, inverted)
        rows.append([name, "" if patient == 4 else str(int(inverted)), str(int(patient >= 19))])
        splits[name] = "train" if patient < 12 else "validation" if patient < 16 else "test"
    (folder / "database.json").write_text(json.dumps({"splits": splits}))
    with (folder.parent / "labels.csv").open("w") as stream:
        csv.writer(stream).writerows(rows)
    return folder


@pytest.fixture(scope="module")
def corpus(database: Path) -> Corpus:
    labels, out = database.parent / "labels.csv", database.parent / "corpus"
    words = ["tokenize", database, "--tokenizer", "leads", "--labels", labels, "--out", out, "--processes", "1"]
    assert main([str(word) for word in words]) == 0
    return open_corpus(out)


# --- where statements are read ----------------------------------------------------------------------------------------


def test_a_table_states_what_it_says_and_an_empty_cell_nothing(database: Path) -> None:
    stated = statements_of(open_database(database), database.parent / "labels.csv")
    assert stated["r01"] == {"INVERTED": True, "LATE": False}
    assert stated["r04"] == {"LATE": False}
    assert stated["r19"] == {"INVERTED": True, "LATE": True}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("record,AFIB\nr00,maybe\n", r"row 2, AFIB: 'maybe' found; 1, 0 or empty"),
        ("record,AFIB\nr00\n", "row 2 has 1 cells, 2 expected"),
        ("record,AFIB\nothers,1\n", "no row is of a recording of"),
        ("", "first row of names"),
    ],
)
def test_a_table_that_says_nothing_clear_is_refused(database: Path, tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(HeartlmError, match=expected):
        statements_of(open_database(database), tmp_path / "t.csv")


def test_codes_of_snomed_are_known_where_the_folder_uses_them(tmp_path: Path) -> None:
    """RBBB has two codes that the challenge scores as one; what no recording of a folder has is not known."""
    for number, codes in enumerate(("164889003,59118001", "426783006", "713427006,99999999")):
        record(tmp_path, f"a{number}", number, False, (f"Dx: {codes}",))
    record(tmp_path, "a3", 3, False)
    stated = statements_of(open_database(tmp_path))
    assert set(stated) == {"a0", "a1", "a2"}
    assert stated["a0"] == {"SR": False, "AFIB": True, "CRBBB": True}
    assert stated["a2"] == {"SR": False, "AFIB": False, "CRBBB": True}


def test_codes_of_ptb_xl_decide_the_superclasses(tmp_path: Path) -> None:
    (tmp_path / "ptb-xl").mkdir()
    rows = ["patient_id,filename_lr,filename_hr,scp_codes"]
    for number, codes in enumerate(("{'NORM': 80.0, 'SR': 0.0}", "{'IMI': 15.0, 'CLBBB': 100.0}", "{'AFIB': 0.0}")):
        record(tmp_path / "ptb-xl", f"0000{number}_hr", number, False)
        rows.append(f'{number},x/0000{number}_lr,x/0000{number}_hr,"{codes}"')
    (tmp_path / "ptb-xl" / "ptbxl_database.csv").write_text("\n".join(rows) + "\n")
    stated = statements_of(open_database(tmp_path / "ptb-xl"))
    present = {name: {each for each, is_it in facts.items() if is_it} for name, facts in stated.items()}
    assert present["00000_hr"] == {"NORM", "SR"}
    assert present["00001_hr"] == {"IMI", "CLBBB", "MI", "CD"}
    assert present["00002_hr"] == {"AFIB"}
    assert stated["00002_hr"]["STTC"] is False


def test_every_code_has_one_name() -> None:
    codes = [code for each in STATEMENTS.values() for code in each.snomed]
    assert len(codes) == len(set(codes))
    assert {each.superclass for each in STATEMENTS.values()} == {*SUPERCLASSES, ""}
    assert with_superclasses({"AFIB": True}) == {"AFIB": True}  # no diagnostic statement is known


# --- tokens of all leads ----------------------------------------------------------------------------------------------


def test_leads_have_places_by_their_names() -> None:
    assert places_of(["V1", "ECG II", "MLII", "patch", "cm5"]) == {
        0: PLACES.index("V1"),
        1: PLACES.index("II"),
        2: PLACES.index("other 1"),  # the place of II is taken
        3: PLACES.index("other 2"),
        4: PLACES.index("V5"),
    }
    assert len(places_of([f"x{number}" for number in range(9)])) == 3


def test_voltages_survive_in_any_order_of_leads() -> None:
    time = np.arange(4 * RATE_HZ) / RATE_HZ
    mv = ecg_mv(time, beat_times_s(6, 1)).astype(np.float32)
    signals = np.stack([mv, -0.5 * mv])
    signals[1, 300:400] = np.nan
    beats = Annotations(RATE_HZ, np.array([100, 350]), np.array(["N", "N"]))
    tokenizer = LeadsTokenizer()
    tokens = tokenizer.encode(Lead(beats, signals, 0, ("II", "V1")))
    turned = tokenizer.encode(Lead(beats, signals[::-1], 1, ("V1", "II")))
    assert (tokens.codes == turned.codes).all()
    assert tokens.codes.shape == (400, len(PLACES) + 1)
    first, second = (tokens.codes[:, PLACES.index(name)] for name in ("II", "V1"))
    assert np.abs(dequantize(first) + 2 * dequantize(second))[:118].max() < 0.02
    assert (second[122:158] == NO_SIGNAL).all()
    assert not (first == NO_SIGNAL).any()
    assert np.flatnonzero(tokens.codes[:, -1]).tolist() == [40, 140]
    assert (np.delete(tokens.codes[:, :-1], [PLACES.index("II"), PLACES.index("V1")], axis=1) == NO_SIGNAL).all()


def test_a_corpus_holds_all_leads_and_statements(corpus: Corpus) -> None:
    rows = corpus.records.rows
    assert [row.lead for row in rows] == [",".join(NAMES)] * 20
    stated = stated_of(corpus)
    assert stated[1] == {"INVERTED": True, "LATE": False}
    assert learnable(corpus, np.arange(20), fewest=1) == ("INVERTED", "LATE")
    assert learnable(corpus, np.arange(20), fewest=5) == ("INVERTED",)
    labels = stated_labels(stated, ("INVERTED", "LATE"))
    assert labels[4].tolist() == [-1, 0]


# --- networks and training --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["leads", "residual"])
def network(request: pytest.FixtureRequest) -> torch.nn.Module:
    torch.manual_seed(0)
    geometry = [torch.from_numpy(each) for each in LeadsTokenizer().geometry()]
    config = ModelConfig(tuple(map(len, geometry)), 4, 32, network=request.param, members=2).resolve()
    return build_model(config, geometry, 3, pooled=True).eval()


def test_padding_changes_nothing_but_the_mean_over_time(network: torch.nn.Module, corpus: Corpus) -> None:
    codes = torch.from_numpy(corpus.codes[:600].astype(np.int64))[None]
    valid = torch.ones(1, 600, dtype=torch.bool)
    valid[:, 500:] = False
    other = codes.clone()
    other[:, 500:, :-1] = 700  # whatever stands in padding
    with torch.inference_mode():
        assert torch.equal(network.class_logits(codes, valid), network.class_logits(other, valid))
        assert not torch.equal(network.class_logits(codes), network.class_logits(other))


def test_members_are_apart(network: torch.nn.Module, corpus: Corpus) -> None:
    """The gradient of the logits of one member reaches no weight of the other, and the answer is their mean."""
    codes = torch.from_numpy(corpus.codes[:1200].astype(np.int64)).view(2, 600, -1)
    network.zero_grad()
    logits = network.member_logits(codes)
    assert torch.allclose(network.class_logits(codes), logits.mean(dim=1))
    logits[:, 0].sum().backward()
    for block in network.trunk.blocks:
        of_first, of_second = block.second.weight.grad.chunk(2)
        assert of_first.abs().sum() > 0
        assert (of_second == 0).all()
    network.zero_grad()


def test_directions_are_those_of_the_standard() -> None:
    sides = torch.from_numpy(directions())
    assert sides.shape == (len(PLACES), 6)
    assert ((sides[:15, :3].norm(dim=1) - 1).abs() < 0.01).all()
    place = {name: sides[PLACES.index(name), :3] for name in PLACES}
    assert torch.allclose(place["II"], place["I"] + place["III"], atol=1e-6)  # Einthoven
    assert torch.allclose(place["aVR"] + place["aVL"] + place["aVF"], torch.zeros(3), atol=1e-6)
    assert float(place["V1"] @ place["V6"]) < 0
    assert (sides[15:, :5] == 0).all()


def test_leads_of_the_same_signal_are_not_louder_than_one() -> None:
    from heartlm.models.leads import DirectedStem

    torch.manual_seed(0)
    stem = DirectedStem(len(PLACES), 8)
    stem.norm = torch.nn.Identity()
    with torch.no_grad():
        for layer in (stem.mix[0], stem.mix[2]):
            layer.weight.zero_()  # every lead gets the same weights, whatever its direction
    mv, present = torch.zeros(2, len(PLACES), 100), torch.zeros(2, len(PLACES), dtype=torch.bool)
    present[0, :4], present[1, 1] = True, True
    mv[present] = torch.sin(torch.arange(100.0))
    four, one = stem(mv, present).detach()
    assert torch.allclose(four, 2 * one, atol=1e-5)  # as much power a lead: the sum of four over the root of four


def test_batches_do_not_depend_on_how_they_are_split_and_validation_is_undisturbed(corpus: Corpus) -> None:
    from heartlm.corpus.windows import Windows

    batches = StatementBatches(corpus, stated_labels(stated_of(corpus), ("INVERTED", "LATE")), seed=1)
    windows = Windows(corpus.records.first_token[:6], np.full(6, 600), 600)
    whole = batches(windows, 3)
    halves = [batches(windows[part], 3, part.start, 6) for part in (slice(0, 3), slice(3, 6))]
    assert torch.equal(whole.codes, torch.cat([each.codes for each in halves]))
    assert whole.target[:5].tolist() == [[0, 0], [1, 0], [0, 0], [1, 0], [-1, 0]]
    assert not torch.equal(whole.codes, batches(windows, 4).codes)
    assert torch.equal(batches(windows, None).codes[0], torch.from_numpy(corpus.codes[:600].astype(np.int64)))


def test_augmented_windows_keep_a_lead_and_move_none_to_another_side(corpus: Corpus) -> None:
    window = corpus.codes[:600].astype(np.int64)
    places, counts = [PLACES.index(name) for name in NAMES], set()
    for seed in range(200):
        changed = augmented(window, np.random.default_rng(seed))
        shown = np.flatnonzero((changed[:, :-1] != NO_SIGNAL).any(axis=0)).tolist()
        assert shown
        assert set(shown) <= set(places) or min(shown) >= PLACES.index("other 1")
        assert (changed[:, -1] == window[:, -1]).all()
        counts.add(len(shown))
    assert counts == set(range(1, 9))


def test_unknown_statements_have_no_gradient(corpus: Corpus) -> None:
    class Given(LeadsNetwork):
        def __init__(self) -> None:
            torch.nn.Module.__init__(self)
            self.logits = torch.nn.Parameter(torch.zeros(6, 1, 2))

        def member_logits(self, codes: torch.Tensor, valid: object = None, keys: object = None) -> torch.Tensor:
            return self.logits

    from heartlm.corpus.windows import Windows

    labels = stated_labels(stated_of(corpus), ("INVERTED", "LATE"))
    windows = Windows(corpus.records.first_token[:6], np.full(6, 600), 600)
    draft = StatementBatches(corpus, labels, seed=1).draft(windows, BatchPosition(None, 0, 6))
    given = Given()
    loss, _ = StatementLoss(torch.tensor([1.0, 4.0]))(given, StatementBatches(corpus, labels, 1).finish(draft))
    loss.backward()
    assert given.logits.grad is not None
    gradient = given.logits.grad[:, 0]
    assert gradient[4, 0] == 0  # not known
    assert gradient[4, 1] > 0  # absent
    assert gradient[1, 0] < 0  # present


# --- scores -----------------------------------------------------------------------------------------------------------


def test_scores_are_those_of_a_hand_calculation() -> None:
    probabilities = np.array([[0.9, 0.1], [0.8, 0.7], [0.3, 0.6], [0.2, 0.5], [0.5, 0.4]])
    labels = np.array([[1, 0], [0, 1], [1, 0], [0, 0], [-1, 1]])
    patients = np.array(["a", "b", "c", "d", "e"])
    scores = score_statements(probabilities, labels, ("NORM", "X"), (0.5, 0.65), patients, Resampling(50))
    norm, other = scores["per_class"]["NORM"], scores["per_class"]["X"]
    assert norm["auroc"]["value"] == 0.75
    assert norm["support"] == 2
    assert (norm["se"]["value"], norm["ppv"]["value"]) == (0.5, 0.5)
    assert other["auroc"]["value"] == pytest.approx(4 / 6)
    assert other["average_precision"]["value"] == pytest.approx((1 / 1 + 2 / 4) / 2)
    assert scores["macro_auroc"]["value"] == pytest.approx((0.75 + 4 / 6) / 2)
    assert scores["superclass_auroc"]["value"] == 0.75
    assert norm["brier"]["value"] == pytest.approx((0.1**2 + 0.8**2 + 0.7**2 + 0.2**2) / 4)
    assert scores["macro_calibration_error"]["value"] == pytest.approx(((0.1 + 0.8 + 0.7 + 0.2) / 4 + 2.1 / 5) / 2)
    assert best_thresholds(probabilities, labels) == pytest.approx((0.25, 0.65))


def test_the_metric_of_the_challenge_is_that_of_a_hand_calculation() -> None:
    """Credits of weights.csv: AF for flutter 0.5, sinus rhythm for AF 0.25, for first degree AV block 0.45."""
    names, patients = ("NORM", "AFIB", "AFLT", "1AVB"), np.array(["a", "b", "c"])
    labels = np.array([[0, 1, 0, 0], [1, 0, 1, 1], [1, 0, 0, 0]])
    called = np.array([[0, 1, 0, 0], [0, 1, 0, 1], [1, 0, 0, 0]])
    scores = score_statements(called.astype(float), labels, names, (0.5,) * 4, patients, Resampling(20))
    # 1: right, 1. 2: of AFLT and 1AVB stated and AFIB and 1AVB called, three in all: (0.5 + 0.3 + 0.3 + 1) / 3.
    observed, right = 1 + (0.5 + 0.3 + 0.3 + 1) / 3, 1 + (1 + 1 + 2 * 0.3) / 2
    sinus = 0.25 / 2 + (0.25 + 0.45) / 3
    assert scores["challenge_2021"]["value"] == pytest.approx((observed - sinus) / (right - sinus))
    assert "challenge_2021" not in score_statements(
        called[:, :1].astype(float), labels[:, :1], names[:1], (0.5,), patients, Resampling(20)
    )


def test_probabilities_that_are_frequencies_are_calibrated() -> None:
    probability = np.repeat([0.1, 0.9], 50)
    is_present = np.concatenate([np.arange(50) % 10 == 0, np.arange(50) % 10 != 0])
    assert calibration_error(is_present, probability) == pytest.approx(0)
    assert calibration_error(is_present, np.repeat([0.3, 0.9], 50)) == pytest.approx(0.1)  # half are 0.2 too high


def test_a_summary_has_the_mean_beat_and_the_intervals(corpus: Corpus) -> None:
    upright, inverted = (beat_summary(corpus.codes[corpus.tokens_of(row)]) for row in (0, 1))
    assert upright is not None
    assert inverted is not None
    assert np.isfinite(upright).all()
    waves = upright[:480].reshape(40, 12)
    assert waves[:, 1].max() > 0.5
    assert np.allclose(waves[:, 2], waves[:, 1] - waves[:, 0], atol=0.01)  # III, which was not recorded
    assert inverted[:480].reshape(40, 12)[:, 1].min() < -0.5
    assert 0.5 < upright[480] < 1.2  # median interval in s
    assert beat_summary(np.where(np.arange(19) == PLACES.index("V3"), 0, corpus.codes[:800])) is None


def test_a_premature_beat_of_another_shape_is_told(corpus: Corpus) -> None:
    codes = np.array(corpus.codes[corpus.tokens_of(0)])
    regular = beat_summary(codes)
    peaks = np.flatnonzero(codes[:, -1])
    early, at = peaks[4] - 25, peaks[4]
    turned = codes.copy()
    turned[early - 20 : early + 25, :-1] = np.where(
        codes[at - 20 : at + 25, :-1] == NO_SIGNAL, NO_SIGNAL, 1024 - codes[at - 20 : at + 25, :-1].astype(np.int64)
    )
    turned[at, -1], turned[early, -1] = 0, 1
    ectopic = beat_summary(turned)
    assert regular is not None
    assert ectopic is not None
    of_likeness, before_it = 480 + 20, 480 + 20 + 4
    assert ectopic[of_likeness] < 0 < regular[of_likeness]
    assert ectopic[before_it] < 0.85


def test_trees_answer_as_scikit_learn() -> None:
    from sklearn.ensemble import HistGradientBoostingClassifier

    random = np.random.default_rng(0)
    features = random.normal(0, 1, (300, 6)).astype(np.float32)
    labels = np.stack([features[:, 0] + features[:, 1] * features[:, 2] > 0, features[:, 3] > 0.5], 1).astype(np.int64)
    labels[:50, 1] = -1
    trees = fitted_trees(features, labels, seed=3)
    for place, known in enumerate((slice(None), slice(50, None))):
        model = HistGradientBoostingClassifier(
            max_iter=100, max_leaf_nodes=15, max_features=0.3, early_stopping=False, random_state=3
        ).fit(features[known], labels[known, place])
        expected = model.decision_function(features)
        assert np.allclose(trees(features)[:, place], expected, atol=1e-4)


# --- commands ---------------------------------------------------------------------------------------------------------


def test_finetune_evaluate_predict(
    database: Path, corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    run = tmp_path / "run"
    words = ["finetune", "--task", "statements", "--corpus", corpus.folder, "--out", run, "--steps", "30"]
    words += ["--statements", "INVERTED", "--batch-size", "8", "--threads", "1"]
    assert main([str(word) for word in words]) == 0
    capsys.readouterr()
    labels = ["--labels", database.parent / "labels.csv"]
    evaluated = ["evaluate", run, "--on", database, *labels, "--bootstrap", "20"]
    assert main([str(word) for word in evaluated]) == 0
    printed = capsys.readouterr().out
    assert "INVERTED" in printed
    scores = json.loads(next((run / "scores").glob("*/scores.json")).read_text())
    assert scores["scores"]["per_class"]["INVERTED"]["auroc"]["value"] == 1.0
    assert scores["scores"]["num_recordings"] == 4
    check_scored_again(next((run / "scores").iterdir()))
    assert set(scores["baselines"]) == {"logistic regression on beats", "gradient boosting on beats"}
    info = json.loads((run / "models/last/config.json").read_text())
    assert len(info["thresholds"]) == 1
    for name, is_present in (("r16", False), ("r17", True)):
        assert main(["predict", str(run), str(database / name), "--out", str(tmp_path)]) == 0
        assert ("INVERTED" in capsys.readouterr().out.replace("INVERTED,", "")) == is_present
    rows = list(csv.DictReader((tmp_path / "r17.statements.csv").open()))
    assert [row["statement"] for row in rows] == ["INVERTED"]
    assert float(rows[0]["probability"]) > float(rows[0]["threshold"])


def test_recordings_without_annotations_are_scored_by_detected_beats(database: Path, corpus: Corpus) -> None:
    """`evaluate` asks for annotated beats unless it is told to detect them; the trees need beats."""
    recording = open_database(database).recording("r00")
    lead = scored_lead(recording, LeadsTokenizer(), "annotated")
    assert isinstance(lead, ScoredLead)
    assert (lead.tokens.codes == corpus.codes[corpus.tokens_of(0)]).all()
    assert lead.tokens.codes[:, -1].sum() > 5


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        (["--statements", "LATE"], "LATE is not both present and absent in training recordings"),
        (["--window", "300"], "600 expected by the task statements"),
        (["--patients", "leads/r99"], "has no labels of that patient for training"),
        ([], "no statement has enough training recordings"),
    ],
)
def test_what_the_task_cannot_do_is_refused(
    corpus: Corpus, tmp_path: Path, refused: Refused, extra: list[str], expected: str
) -> None:
    words = ["finetune", "--task", "statements", "--corpus", str(corpus.folder), "--out", str(tmp_path / "run")]
    assert expected in refused(*words, "--steps", "2", *extra)
    assert not (tmp_path / "run").exists()


def test_statements_of_real_recordings_of_ptb_xl_are_read() -> None:
    folder = shared_data("ptb-xl")
    stated = statements_of(open_database(folder))
    assert sum(each["AFIB"] for each in stated.values()) == 161
    assert sum(each["NORM"] for each in stated.values()) == 596
