"""What both tasks make of tokens: pairs of beats, windows, time; on leads made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from heartlm.ecg.recording import BEAT_CLASSES, RHYTHM_INDEX, UNLABELLED, Annotations
from heartlm.errors import HeartlmError
from heartlm.evaluation.beats import NO_BEAT
from heartlm.evaluation.rhythm import RhythmWindows
from heartlm.inference.leads import ScoredLead
from heartlm.tasks import beats
from heartlm.tasks.beats import PairedLead, columns_of
from heartlm.tokenizers.base import Tokens
from heartlm.tokenizers.beat import BeatTokenizer

RATE_HZ = 100.0


def a_lead(
    sample: Sequence[int],
    *,
    beats: str | None = None,
    rhythms: Sequence[str] = (),
    annotations: Annotations | None = None,
    patient: str = "p",
) -> ScoredLead:
    """A lead whose code is the place of the token; `beats` are class letters, a blank being unlabelled."""
    num_tokens = len(sample)
    classes = [BEAT_CLASSES.index(name) if name != " " else UNLABELLED for name in beats or " " * num_tokens]
    named = [RHYTHM_INDEX[name] for name in rhythms] or [UNLABELLED] * num_tokens
    tokens = Tokens(
        np.arange(num_tokens, dtype=np.uint16)[:, None],
        np.array(sample, np.int64),
        np.array(classes, np.int8),
        np.array(named, np.int8),
        np.ones(num_tokens, np.float32),
    )
    return ScoredLead("db", patient, f"db/{patient}", "MLII", RATE_HZ, tokens, annotations)


def classes_of(letters: str) -> np.ndarray:
    return np.array([BEAT_CLASSES.index(letter) for letter in letters], np.int8)


def test_annotated_beats_are_paired_by_index():
    answers = PairedLead.of(a_lead([10, 110, 210], beats="NV ")).answers(classes_of("NNS"))
    assert answers.reference.tolist() == [0, 2, UNLABELLED]
    assert answers.predicted.tolist() == [0, 0, 1]


def test_detected_beats_stand_in_order_of_time_between_missed_and_extra_ones():
    annotations = Annotations(RATE_HZ, np.array([100, 200, 300]), np.array(["N", "V", "N"]))
    lead = a_lead([50, 103, 310], annotations=annotations)
    probabilities = np.eye(4, dtype=np.float32)[:3]
    answers = PairedLead.of(lead).answers(classes_of("VNN"), probabilities)
    assert answers.sample.tolist() == [50, 100, 200, 300]
    assert answers.reference.tolist() == [NO_BEAT, 0, 2, 0]
    assert answers.predicted.tolist() == [2, 0, NO_BEAT, 0]
    assert np.isnan(answers.probabilities[2]).all()
    assert answers.probabilities[[0, 1, 3]].tolist() == probabilities.tolist()
    columns = columns_of([answers])
    assert columns["reference"] == ["none", "N", "V", "N"]
    assert columns["predicted"] == ["V", "N", "none", "N"]


def test_an_artefact_that_boosting_predicts_is_no_error_on_an_extra_detection(monkeypatch: pytest.MonkeyPatch):
    """Features are the class of the beat, and the boosted trees know it by heart."""
    training = a_lead(range(9), beats="NNNVV||Q ")
    annotations = Annotations(RATE_HZ, np.array([100]), np.array(["V"]))
    lead = a_lead([100, 200, 300], beats="V|N", annotations=annotations)
    learnt = list[int]()

    def boosting(features: np.ndarray, classes: np.ndarray, seed: int) -> Any:
        learnt.extend(classes.tolist())
        by_feature = dict(zip(features[:, 0].tolist(), classes.tolist(), strict=True))
        return SimpleNamespace(predict=lambda asked: np.array([by_feature[each] for each in asked[:, 0].tolist()]))

    corpus = SimpleNamespace(records=SimpleNamespace(select=lambda split: [0]))
    monkeypatch.setattr(beats, "boosting", boosting)
    monkeypatch.setattr(beats, "lead_of_row", lambda corpus, row: training)
    monkeypatch.setattr(beats, "features_of", lambda lead, tokenizer: lead.tokens.beat_class[:, None] * 1.0)
    tuned: Any = SimpleNamespace(tokenizer=BeatTokenizer(), training_corpus=lambda: corpus)
    (answers,) = beats.boosted_answers([PairedLead.of(lead)], tuned, 0)
    assert answers.reference.tolist() == [2, NO_BEAT, NO_BEAT]
    assert answers.predicted.tolist() == [2, NO_BEAT, 0]
    assert [each == UNLABELLED for each in learnt] == [False] * 7 + [True] * 2


def test_detections_in_fibrillation_are_not_scored():
    annotations = Annotations(RATE_HZ, np.array([100]), np.array(["N"]))
    lead = a_lead([100, 200, 300], rhythms=["N", "VFIB", "N"], annotations=annotations)
    answers = PairedLead.of(lead).answers(classes_of("NVV"))
    assert answers.reference.tolist() == [0, UNLABELLED, NO_BEAT]


def test_of_tokens_that_are_no_beats_only_labelled_ones_are_scored():
    paired = PairedLead.of(a_lead([0, 1, 2, 3], beats=" N V"), tokens_are_beats=False)
    answers = paired.answers(classes_of("NNSV"))
    assert answers.sample.tolist() == [1, 3]
    assert answers.predicted.tolist() == [0, 2]


def test_windows_lie_side_by_side_and_never_cross_recordings():
    leads = [a_lead([0, 100, 150, 250, 300]), a_lead([7]), a_lead([0, 80, 160, 240])]
    windows = RhythmWindows.of(leads, 2)
    assert windows.codes[:, :, 0].tolist() == [[0, 1], [2, 3], [0, 0], [0, 1], [2, 3]]
    assert windows.lead.tolist() == [0, 0, 1, 2, 2]
    assert windows.sample.tolist() == [0, 150, 7, 0, 160]
    assert windows.length.tolist() == [2, 2, 1, 2, 2]
    assert windows.num_left_over == 1
    assert windows.rr_s.tolist() == [[1, 1], [0.5, 1], [0, 0], [0.8, 0.8], [0.8, 0.8]]


def test_a_recording_shorter_than_a_window_gives_a_short_one():
    leads = [a_lead([0, 100, 250]), a_lead([0, 80, 160, 240, 320]), a_lead([])]
    windows = RhythmWindows.of(leads, 4)
    assert windows.lead.tolist() == [0, 1]
    assert windows.length.tolist() == [3, 4]
    assert windows.num_left_over == 1
    assert windows.rr_s.tolist() == [[1, 1, 1.5, 0], [0.8, 0.8, 0.8, 0.8]]
    assert windows.judged(windows.rr_s, lambda rr_s: rr_s.sum(axis=1)).tolist() == pytest.approx([3.5, 3.2])
    assert windows.judged(windows.codes, lambda codes: np.full(len(codes), codes.shape[1])).tolist() == [3, 4]


def test_windows_can_be_chosen():
    windows = RhythmWindows.of([a_lead([0, 100, 250]), a_lead([0, 80, 160, 240, 320])], 2)
    some = windows.chosen(np.array([0, 2]))
    assert some.lead.tolist() == [0, 1] and some.rr_s.tolist() == windows.rr_s[[0, 2]].tolist() and len(some) == 2


def test_recordings_without_a_beat_give_no_windows():
    with pytest.raises(HeartlmError, match="no recording has a beat"):
        RhythmWindows.of([a_lead([])], 4)
