"""What all leads together state about a short recording decides over rules for a lead and for intervals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from heartlm.analysis.analyze import Analyst
from heartlm.analysis.findings import Event
from heartlm.analysis.stages import Classes
from heartlm.analysis.statements import LONGEST_S, StatementProbabilities, beats_by, blocks_by, rhythms_by, stated
from heartlm.ecg.leads import ecg_leads
from heartlm.ecg.recording import Recording
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.synthesis import simulate_recording

TWELVE = ("I", "II", "III", "aVR", "aVL", "aVF", "V1", "V2", "V3", "V4", "V5", "V6")
SAMPLE = np.arange(10) * 200 + 50
CLASSES = np.array(["N", "S", "V", "F"])
UNPACED = np.zeros(10, np.bool_)


def facts(**probability: float) -> StatementProbabilities:
    """What is stated, each at the threshold 0.5."""
    return StatementProbabilities(probability, dict.fromkeys(probability, 0.5))


def event(kind: str, interval_ms: float = float("nan")) -> Event:
    return Event(kind, 50, 1851, 0.7, num_beats=10, rate_bpm=75.0, interval_ms=interval_ms)


def classes(symbols: str) -> Classes:
    return Classes(np.array(list(symbols)), np.full(len(symbols), 0.9, np.float32), [])


def simulated(leads: tuple[str, ...], seconds: float = 15.0) -> Recording:
    config = SimulationConfig(patients=1, minutes=0.25, leads=leads, seed=3)
    signal, _ = simulate_recording(config, 0, 0)
    signal = np.tile(signal, (1, -(-int(seconds) // 15)))[:, : round(seconds * config.rate_hz)]
    return Recording.from_array(signal.astype(np.float32), rate_hz=config.rate_hz, leads=leads, units="mV")


def test_af_that_all_leads_deny_is_none_and_af_that_only_they_see_is_one() -> None:
    found, notes = rhythms_by(facts(AFIB=0.05, AFLT=0.2), SAMPLE, [event("AF")])
    assert found == []
    assert notes == ["AF by intervals or wave; all leads together deny it"]
    found, notes = rhythms_by(facts(AFIB=0.8, AFLT=0.2), SAMPLE, [])
    assert [(each.kind, each.start, each.stop, each.confidence) for each in found] == [("AF", 50, 1851, 0.8)]
    assert len(notes) == 1
    found, _ = rhythms_by(facts(AFIB=0.6, AFLT=0.9), SAMPLE, [])
    assert [each.kind for each in found] == ["flutter"]
    assert rhythms_by(facts(AFIB=0.3), SAMPLE, [event("AF")]) == ([event("AF")], [])  # in doubt the rules decide
    assert rhythms_by(facts(AFIB=0.8), SAMPLE, [event("flutter")]) == ([event("flutter")], [])
    assert rhythms_by(StatementProbabilities({}, {}), SAMPLE, [event("AF")]) == ([event("AF")], [])


def test_ectopic_beats_that_all_leads_deny_are_normal_but_runs_stay() -> None:
    probability = np.tile(np.array([0.1, 0.05, 0.8, 0.05], np.float32), (10, 1))
    changed = beats_by(facts(PVC=0.1), classes("NVNNVVVNVV"), probability, UNPACED, CLASSES, 3)
    assert "".join(changed.symbol) == "NNNNVVVNNN"
    assert changed.certainty[1] == pytest.approx(0.1)
    assert changed.notes == ["3 beats would be V by the model of beats; all leads together deny it"]
    in_doubt = beats_by(facts(PVC=0.4, PAC=0.4), classes("NVNNNSNNNN"), probability, UNPACED, CLASSES, 3)
    assert "".join(in_doubt.symbol) == "NNNNNSNNNN"
    kept = beats_by(facts(PVC=0.9), classes("NVNNNNNNNN"), probability, UNPACED, CLASSES, 3)
    assert "".join(kept.symbol) == "NVNNNNNNNN"


def test_a_statement_names_the_likeliest_beat_if_one_is_possible() -> None:
    probability = np.tile(np.array([0.98, 0.01, 0.01, 0.0], np.float32), (10, 1))
    probability[6, :3] = 0.6, 0.3, 0.1
    named = beats_by(facts(PAC=0.9), classes("N" * 10), probability, UNPACED, CLASSES, 3)
    assert "".join(named.symbol) == "NNNNNNSNNN"
    assert named.certainty[6] == pytest.approx(0.3)
    paced = np.arange(10) == 6
    assert "".join(beats_by(facts(PAC=0.9), classes("N" * 10), probability, paced, CLASSES, 3).symbol) == "N" * 10
    probability[6, :3] = 0.92, 0.08, 0.0
    assert "".join(beats_by(facts(PAC=0.9), classes("N" * 10), probability, UNPACED, CLASSES, 3).symbol) == "N" * 10


def test_the_side_of_a_wide_qrs_is_what_all_leads_state() -> None:
    wide, pr = event("wide QRS", 134.0), event("AV block I", 220.0)
    block = blocks_by(facts(CLBBB=0.9, CRBBB=0.1), [wide, pr], SAMPLE)
    assert [(each.kind, each.interval_ms) for each in block] == [("AV block I", 220.0), ("LBBB", 134.0)]
    assert block[1].confidence == 0.9
    denied = blocks_by(facts(CLBBB=0.2, CRBBB=0.05), [event("RBBB", 134.0)], SAMPLE)
    assert denied == [replace(event("RBBB", 134.0), kind="wide QRS")]
    assert blocks_by(facts(CLBBB=0.05, CRBBB=0.2), [event("RBBB", 134.0)], SAMPLE) == [event("RBBB", 134.0)]
    only_stated = blocks_by(facts(CLBBB=0.1, CRBBB=0.7), [], SAMPLE)
    assert [(each.kind, each.start, each.stop) for each in only_stated] == [("RBBB", 50, 1851)]


def test_a_long_pr_interval_is_a_block_where_all_leads_state_one() -> None:
    pr = event("AV block I", 220.0)
    assert blocks_by(StatementProbabilities({"1AVB": 0.009}, {"1AVB": 0.2}), [pr], SAMPLE) == []
    assert blocks_by(StatementProbabilities({"1AVB": 0.02}, {"1AVB": 0.2}), [pr], SAMPLE) == [pr]
    assert blocks_by(StatementProbabilities({"1AVB": 0.1}, {"1AVB": 0.2}), [event("AV block I", 203.0)], SAMPLE) == []
    assert blocks_by(StatementProbabilities({"1AVB": 0.3}, {"1AVB": 0.2}), [pr], SAMPLE) == [pr]
    found = blocks_by(StatementProbabilities({"1AVB": 0.3}, {"1AVB": 0.2}), [], SAMPLE)
    assert [(each.kind, each.num_beats, each.confidence) for each in found] == [("AV block I", 10, 0.3)]
    assert blocks_by(facts(AFIB=0.1), [pr], SAMPLE) == [pr]


def test_a_stated_av_block_yields_to_a_usual_pr_interval_and_to_rhythms_without_one() -> None:
    stated_block = StatementProbabilities({"1AVB": 0.3}, {"1AVB": 0.2})
    usual, unknown = np.full(len(SAMPLE), 200.0), np.full(len(SAMPLE), np.nan)
    assert blocks_by(stated_block, [], SAMPLE, (), usual) == []
    assert len(blocks_by(stated_block, [], SAMPLE, (), unknown)) == 1
    assert len(blocks_by(stated_block, [], SAMPLE, (), np.append(usual[:4], unknown[4:]))) == 1  # too few are known
    assert blocks_by(stated_block, [], SAMPLE, (), unknown[:2]) == []  # the other beats are paced
    assert blocks_by(stated_block, [], SAMPLE, [event("AF")], unknown) == []
    assert len(blocks_by(stated_block, [event("AV block I", 220.0)], SAMPLE, [event("AF")], usual)) == 1


def test_short_recordings_of_many_leads_are_judged_and_no_others(analyst: Analyst) -> None:
    recording = simulated(TWELVE)
    sample = np.arange(10) * 250 + 100
    found = stated(recording, ecg_leads(recording), sample, analyst.statements)
    assert set(found.probability) == set(analyst.statements.info.classes)
    assert all(0 <= each <= 1 for each in found.probability.values())
    assert list(found.present) == sorted(found.present, key=lambda name: -found.probability[name])
    for other in (simulated(TWELVE[:7]), simulated(TWELVE, LONGEST_S + 15)):
        assert stated(other, ecg_leads(other), sample, analyst.statements).probability == {}


def test_findings_and_summary_tell_what_is_stated(analyst: Analyst) -> None:
    findings = analyst.analyze(simulated(TWELVE))
    assert findings.stated
    assert findings.summary()["stated"].count(";") == len(findings.stated) - 1
    assert analyst.analyze(simulated(("MLII", "V1"))).summary()["stated"] == ""
