"""Live streams: the same alarms whatever the chunks, the workers and the link, and after a restart."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from heartlm.analysis.analyze import Analyst
from heartlm.analysis.limits import Limits
from heartlm.cli.main import main
from heartlm.databases.database import open_database
from heartlm.ecg.definitions import ALARMS
from heartlm.ecg.recording import ARTEFACT, Recording
from heartlm.errors import HeartlmError
from heartlm.inference.waveform import regular_waves
from heartlm.kernels.library import using, variants
from heartlm.labels.waveform import NOISE
from heartlm.monitor.alarms import Alarm, AlarmRules, read_rules
from heartlm.monitor.engine import Monitor
from heartlm.monitor.link import Frame, FrameLink, read_frame
from heartlm.monitor.models import LiveModels
from heartlm.monitor.rules import LIMITS, JudgedBeat, JudgedSeconds, LeadSecond, Rules
from heartlm.monitor.sources import read_lines
from heartlm.monitor.state import packed, unpacked
from heartlm.monitor.stream import Ward, alarms_of
from heartlm.monitor.trend import NUM_MINUTES, Trend
from heartlm.monitor.webhook import Webhook, observation
from heartlm.simulate.config import SimulationConfig
from heartlm.simulate.synthesis import simulate_recording
from heartlm.simulate.write import write_record
from heartlm.storage.atomic import locked
from heartlm.tokenizers.base import Lead
from heartlm.tokenizers.live import LiveTokenizer
from heartlm.tokenizers.millivolts import quantize
from heartlm.tokenizers.waveform import hann_weights
from tests.brokers import OPEN, Broker
from tests.conftest import Refused, shared_data

Floats = NDArray[np.float32]

RATE_HZ = 250.0
PATIENTS = {"fibrillation": 22, "tachycardia": 51, "sinus": 5}
CONFIG = SimulationConfig(minutes=1.5, seed=5)
"""Simulated patients: VT and VF from second 43 on, VT from second 10 on, and nothing."""


@pytest.fixture(scope="module")
def signals() -> dict[str, Floats]:
    return {name: simulate_recording(CONFIG, index)[0][0][:16_500] for name, index in PATIENTS.items()}


@pytest.fixture(scope="module")
def whole(models: LiveModels, signals: dict[str, Floats]) -> dict[str, list[Alarm]]:
    """The alarms of each signal, watched alone and pushed as a whole."""
    return {name: _alarms(models, {name: [signal]})[name] for name, signal in signals.items()}


@pytest.fixture
def short_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alarms end two seconds after their condition."""
    monkeypatch.setitem(LIMITS, "off_delay_s", (2.0,) * len(ALARMS))


def _alarms(models: LiveModels, pieces: dict[str, list[Floats]]) -> dict[str, list[Alarm]]:
    """All changes of each stream, whose pieces come in turns."""
    ward = Ward(models)
    for name in pieces:
        ward.add(name, RATE_HZ)
    found: dict[str, list[Alarm]] = {name: [] for name in pieces}
    for turn in range(max(map(len, pieces.values()))):
        for name, own in pieces.items():
            if turn < len(own):
                ward.push(name, own[turn])
        for alarm in ward.run():
            found[alarm.stream].append(alarm)
    return found


def test_dangerous_rhythms_are_found_in_time(whole: dict[str, list[Alarm]]) -> None:
    raised = {
        name: {alarm.kind: alarm.seconds(alarm.raised) for alarm in alarms if alarm.stop is None}
        for name, alarms in whole.items()
    }
    assert 45 < raised["fibrillation"]["VF"] <= 55
    assert 10 < raised["tachycardia"]["VT"] <= 20
    assert not {"VF", "VT", "asystole"} & set(raised["sinus"])


def test_beats_that_look_like_movements_are_no_v_beats_but_show_vt(models: LiveModels) -> None:
    """The slower VT of another simulated patient begins at second 14."""
    monitor, named = Monitor(Ward(models)), list[str]()
    for message in _frames("bed", simulate_recording(CONFIG, 25)[0][0][:5000]):
        monitor.receive(message)
        monitor.run()
        named += [symbol for _, symbol in monitor.patients["bed"].stream.beats]
    assert named.count(ARTEFACT) > 4 and "V" not in named
    assert [alarm["kind"] for alarm in monitor.alarms.values()] == ["VT"]
    assert ARTEFACT not in [symbol for _, symbol in monitor.patients["bed"].beats]


@settings(max_examples=2)
@given(st.randoms(use_true_random=False))
def test_chunks_and_company_change_nothing(
    models: LiveModels, signals: dict[str, Floats], whole: dict[str, list[Alarm]], random: random.Random
) -> None:
    pieces = {}
    for name, signal in signals.items():
        cuts = sorted(random.randrange(len(signal)) for _ in range(random.choice([0, 3, 60])))
        pieces[name] = np.split(signal, cuts)
    if random.random() < 0.5:  # a ward of others: other batches
        pieces |= {f"other {place}": [signals["sinus"][place * 250 :][:5000]] for place in range(6)}
    found = _alarms(models, pieces)
    assert {name: found[name] for name in signals} == whole


@settings(max_examples=3, phases=[Phase.generate])
@given(st.randoms(use_true_random=False), st.sampled_from([3, 40, 1000]))
def test_the_size_of_frames_changes_no_beat(
    models: LiveModels, signals: dict[str, Floats], random: random.Random, num_cuts: int
) -> None:
    """Two leads, of which the first is lost for a while, so that the lead in use changes: no beat is lost or double."""
    pair = np.stack([signals["tachycardia"], signals["tachycardia"]])[:, :7000].copy()
    pair[0, 2000:4000] = np.nan
    results = []
    for cuts in ([], sorted(random.randrange(1, 7000) for _ in range(num_cuts))):
        monitor, beats, lead = Monitor(Ward(models), log=lambda _: None), list[tuple[int, str]](), set[int]()
        for start, stop in pairwise(sorted({0, *cuts, 7000})):
            monitor._add_frame(Frame("bed", RATE_HZ, start, None, pair[:, start:stop]))
            while monitor.step():
                beats += monitor.patients["bed"].stream.beats
                lead.add(monitor.patients["bed"].stream.rules.lead_in_use)
        assert lead == {0, 1} and len(beats) > 20 and np.diff([sample for sample, _ in beats]).min() > 0.2 * RATE_HZ
        results.append((beats, monitor.patients["bed"].trend.to_json(), _keys(monitor)))
    assert results[0] == results[1]


def test_of_two_leads_one_with_noise_or_loose_raises_no_alarm_and_hides_none(
    models: LiveModels, signals: dict[str, Floats]
) -> None:
    noise = np.random.default_rng(0)
    bad = {
        "loose": np.full(16_500, 5.0, np.float32),
        "low": noise.normal(0, 0.01, 16_500).astype(np.float32),
        "swaying": np.sin(np.arange(16_500) / RATE_HZ * 2 * np.pi * 4.5).astype(np.float32),
    }
    found: dict[tuple[str, str], set[str]] = {}
    for patient, signal in signals.items():
        for place, (fault, lead) in enumerate(bad.items()):
            pair = np.stack([signal, lead] if place % 2 else [lead, signal])
            pair[:, :2500] = signal[:2500]
            ward = Ward(models)
            ward.add(patient, RATE_HZ, num_leads=2)
            ward.push(patient, pair)
            found[patient, fault] = {alarm.kind for alarm in ward.run()}
    assert not any({"VF", "VT", "asystole", "signal lost"} & found["sinus", fault] for fault in bad)
    assert "VF" in found["fibrillation", "loose"] and "VT" in found["tachycardia", "loose"]


def test_a_file_has_the_alarms_of_its_stream(
    tmp_path: Path, models: LiveModels, signals: dict[str, Floats], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "db").mkdir()
    annotations = simulate_recording(CONFIG, PATIENTS["tachycardia"])[1]
    write_record(tmp_path / "db", "t", signals["tachycardia"][None], ["MLII"], RATE_HZ, annotations, [])
    recording = open_database(tmp_path / "db").recording("t")
    expected = alarms_of(recording, models)
    assert main(["alarms", str(tmp_path / "db" / "t"), "--out", str(tmp_path / "out")]) == 0
    rows = (tmp_path / "out" / "t.alarms.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows[1:]] == [alarm.key for alarm in expected]
    assert any(alarm.kind == "VT" for alarm in expected)
    assert f"leads MLII: {len(expected)} alarms" in capsys.readouterr().out
    streamed = _alarms(models, {"t": [recording.signal(0, recording.num_samples, (0,))[0]]})["t"]
    assert {alarm.key: alarm for alarm in streamed} == {alarm.key: alarm for alarm in expected}


@pytest.mark.parametrize("variant", variants())
def test_live_tokens_are_those_of_the_file(models: LiveModels, variant: str) -> None:
    database = open_database(shared_data("mitdb"))
    recording = database.recording("208")
    from heartlm.tokenizers.waveform import interpolate, smooth

    tokenizer, signal = models.beat_tokenizer, recording.signal(0, 300_000, (0,))[0]
    beats = recording.annotations.sample
    beats = beats[beats < 299_000]
    expected = tokenizer.encode(Lead(recording.annotations, signal)).codes[: len(beats)]
    with using(variant):
        live = LiveTokenizer(tokenizer)
    memory = np.zeros((3, -(-live.num_bytes // 8)), np.int64)
    alone, together, young = memory.ctypes.data + memory.strides[0] * np.arange(3)
    smoothed = smooth(signal, hann_weights(recording.rate_hz, tokenizer.window.rate_hz))
    offsets = tokenizer.window.times_s * recording.rate_hz
    found = np.empty_like(expected)
    for place, beat in enumerate(beats.tolist()):
        wave = interpolate(smoothed, beat + offsets)
        found[place] = live.push(np.array([alone]), np.array([beat]), np.array([recording.rate_hz]), wave[None])[0][0]
        company = np.array([together] if place < 40 else [young, together])
        num, rates_hz = len(company), np.array([250.0, recording.rate_hz])
        waves = np.stack([wave[::-1], wave])
        codes = live.push(company, np.full(num, beat), rates_hz[-num:], waves[-num:])[0]
        assert np.array_equal(codes[-1], found[place])
    assert (found != expected).mean() < 2e-3  # next to a level's edge, because waveforms are kept in 16 bits
    begin = len(tokenizer.facets) - len(tokenizer.comparisons)
    assert np.abs(found[:, begin:].astype(int) - expected[:, begin:]).max() <= 1
    assert len(beats) > 1000


def _frames(name: str, signal: Floats, seconds: float = 1.0) -> list[bytes]:
    length = round(seconds * RATE_HZ)
    return [
        json.dumps(
            {
                "stream": name,
                "rate_hz": RATE_HZ,
                "start": start,
                "mv": [round(float(value), 4) for value in signal[start : start + length]],
            }
        ).encode()
        for start in range(0, len(signal), length)
    ]


def _keys(monitor: Monitor) -> set[tuple[str, float | None]]:
    return {(key, entry["stop_s"]) for key, entry in monitor.alarms.items()}


@pytest.mark.parametrize("saved_after", [None, 30])
def test_a_restart_forgets_nothing(
    tmp_path: Path, models: LiveModels, signals: dict[str, Floats], saved_after: int | None
) -> None:
    turns = list(zip(*(_frames(name, signals[name]) for name in ("fibrillation", "tachycardia")), strict=True))
    unbroken = Monitor(Ward(models))
    for turn in turns:
        for message in turn:
            unbroken.receive(message)
        unbroken.run()
    first = Monitor(Ward(models), tmp_path / "ward")
    for number, turn in enumerate(turns[:48]):
        for message in turn:
            first.receive(message)
        first.run()
        if number == saved_after:
            first.save()
    assert first.journal is not None
    first.journal.flush()  # and then it is killed: nothing is closed
    with (tmp_path / "ward" / "journal" / f"messages-{1 if saved_after else 0:06d}.log").open("ab") as log:
        log.write(b"\x20\x00\x00\x00torn")
    second = Monitor(Ward(models), tmp_path / "ward")
    for turn in turns[47:]:  # the last one twice
        for message in turn:
            second.receive(message)
        second.run()
    assert _keys(second) == _keys(unbroken)
    for name in ("fibrillation", "tachycardia"):
        leads = zip(*(each.patients[name].stream.leads for each in (second, unbroken)), strict=True)
        assert all(np.array_equal(*(lead.memory for lead in both)) for both in leads)
        assert second.patients[name].trend.to_json() == unbroken.patients[name].trend.to_json()
    second.close()
    strips = {entry["key"] for entry in second.alarms.values() if entry["strip"]}
    assert any(key.startswith("fibrillation/VF") for key in strips)
    import wfdb

    entry = next(entry for entry in second.alarms.values() if entry["strip"] and entry["kind"] == "VF")
    record = wfdb.rdrecord(str(tmp_path / "ward" / "strips" / entry["strip"]))
    at = round(entry["raised_s"] * RATE_HZ)
    expected = np.round(signals["fibrillation"][at - 2500 : at + 2500], 4)
    assert np.allclose(record.p_signal[:, 0], expected, atol=3e-4)
    note = wfdb.rdann(str(tmp_path / "ward" / "strips" / entry["strip"]), "alarm")
    assert (note.sample[0], note.aux_note[0].rstrip("\0")) == (2500, "VF")


@given(st.randoms(use_true_random=False), st.booleans())
@settings(max_examples=60)
def test_a_link_gives_every_sample_once_and_in_order(random: random.Random, counted: bool) -> None:
    length, num = 250, 40
    lost = {place for place in range(1, num - 8) if random.random() < 0.1}
    order = [place for place in range(num) if place not in lost]
    if counted:  # a frame comes at most one place late, and some twice
        for place in range(1, len(order) - 1, 2):
            if random.random() < 0.3:
                order[place], order[place + 1] = order[place + 1], order[place]
        order = [place for each in order for place in [each] * random.choice([1, 1, 1, 2])]
    link, clock = FrameLink(RATE_HZ), 1.0 if counted else random.choice([0.99, 1.0, 1.01])
    out = []
    for place in order:
        mv = np.arange(place * length, (place + 1) * length, dtype=np.float32)[None] % 499
        frame = Frame("a", RATE_HZ, place * length if counted else None, None if counted else 7 + place * clock, mv)
        out += link.push(frame)
    found = np.concatenate(out, axis=1)[0]
    expected = np.arange(num * length, dtype=np.float32) % 499
    if clock == 1.0:
        for place in lost:
            expected[place * length : (place + 1) * length] = np.nan
        assert np.array_equal(found, expected[: len(found)], equal_nan=True)
        assert len(found) >= len(expected) - 3 * length
    else:  # 1 % off: nothing is lost or doubled, and gaps are about as long as they were
        known = found[np.isfinite(found)]
        assert np.array_equal(
            known, np.delete(expected, [np.arange(p * 250, p * 250 + 250) for p in lost])[: len(known)]
        )
        assert abs(np.isnan(found).sum() - length * len(lost)) <= 0.03 * length * num


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b"{", "no JSON"),
        (b"[]", "object expected"),
        (b"\xff\xfe", "no JSON"),
        (b'{"rate_hz": 250, "start": 0, "mv": [0]}', "stream"),
        (b'{"stream": "a\\n", "rate_hz": 250, "start": 0, "mv": [0]}', "stream"),
        (b'{"stream": "a", "rate_hz": 2, "start": 0, "mv": [0]}', "rate_hz"),
        (b'{"stream": "a", "rate_hz": true, "start": 0, "mv": [0]}', "rate_hz"),
        (b'{"stream": "a", "rate_hz": 250, "start": 0, "mv": []}', "mv"),
        (b'{"stream": "a", "rate_hz": 250, "start": 0, "mv": ["x"]}', "mv"),
        (b'{"stream": "a", "rate_hz": 250, "start": 0, "mv": [[1], [2, 3]]}', "mv"),
        (b'{"stream": "a", "rate_hz": 250, "start": 0, "mv": [[1], [2], [3], [4]]}', "leads"),
        (b'{"stream": "a", "rate_hz": 250, "start": 0, "mv": [[1], 2]}', "mv"),
        (b'{"stream": "a", "rate_hz": 250, "start": -1, "mv": [0]}', "start"),
        (b'{"stream": "a", "rate_hz": 250, "start": 0.5, "mv": [0]}', "start"),
        (b'{"stream": "a", "rate_hz": 250, "mv": [0]}', "start"),
        (b" " * (1 << 21), "bytes"),
    ],
)
def test_wrong_messages_are_refused_by_name(message: bytes, text: str) -> None:
    with pytest.raises(HeartlmError, match=text):
        read_frame(message)


def test_wrong_voltages_are_no_samples() -> None:
    values = "[0.5, null, 1e30, -600, NaN, Infinity, 1e300]"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        frame = read_frame(f'{{"stream": "a", "rate_hz": 250, "start": 0, "mv": {values}}}')
    assert np.array_equal(frame.mv, np.array([[0.5] + 6 * [np.nan]], np.float32), equal_nan=True)


def test_a_hostile_link_raises_no_false_lethal_alarm(models: LiveModels, signals: dict[str, Floats]) -> None:
    choose = random.Random(3)
    monitor, log = Monitor(Ward(models), log=lambda line: lines.append(line)), list[str]()
    lines = log
    for number in range(6):  # six links, each with its own faults
        for message in _frames(f"bed {number}", signals["sinus"]):
            fault = choose.randrange(12)
            if fault == 0:
                continue
            if fault == 1:
                message = message[: choose.randrange(len(message))]
            if fault == 2:
                monitor.receive(message)
            if fault == 3:
                monitor.receive(b'{"stream": "bed 0", "rate_hz": 250, "start": 99999999999, "mv": [1, 2]}')
            if fault == 4:
                content = json.loads(message)
                content["mv"][50:200] = [None] * 150
                message = json.dumps(content).encode()
            if fault == 5:
                content = json.loads(message)
                content["mv"] = [5.0] * len(content["mv"])
                message = json.dumps(content).encode()
            monitor.receive(message)
        monitor.run()
    lethal = [entry for entry in monitor.alarms.values() if entry["severity"] == "lethal"]
    clean = _alarms(models, {"bed": [signals["sinus"]]})["bed"]
    assert {entry["kind"] for entry in lethal} <= {alarm.kind for alarm in clean}
    assert monitor.faults and any("rejected" in line for line in log)
    assert any(patient.link.counts["gaps"] for patient in monitor.patients.values())


@pytest.mark.usefixtures("short_delay")
def test_a_lost_signal_is_lost_and_no_asystole(models: LiveModels, signals: dict[str, Floats]) -> None:
    signal = signals["sinus"].copy()
    signal[5000:9000] = np.nan
    flat = signals["sinus"].copy()
    flat[5000:9000] = 4.9951
    for own in (signal, flat):
        found = _alarms(models, {"a": [own]})["a"]
        raised = [(alarm.kind, alarm.seconds(alarm.raised)) for alarm in found if alarm.stop is None]
        assert any(kind == "signal lost" and 25 <= at <= 30 for kind, at in raised)
        assert not {"asystole", "VF"} & {kind for kind, _ in raised}
        assert any(alarm.kind == "signal lost" and alarm.stop for alarm in found)


def test_silence_and_a_changed_rate(models: LiveModels, signals: dict[str, Floats], monkeypatch: Any) -> None:
    now = [100.0]
    monkeypatch.setattr("heartlm.monitor.engine.time.monotonic", lambda: now[0])
    log = list[str]()
    monitor = Monitor(Ward(models), log=log.append)
    for message in _frames("a", signals["sinus"][:2500]):
        monitor.receive(message)
    monitor.run()
    now[0] += 6
    monitor.run()
    assert [entry["kind"] for entry in monitor.open_alarms()] == ["signal lost"]
    monitor.receive(b'{"stream": "a", "rate_hz": 300, "start": 0, "mv": [0, 0.1]}')
    monitor.run()
    assert not monitor.open_alarms()
    assert any("from 1 at 250 Hz to 1 at 300" in line for line in log)
    assert monitor.patients["a"].stream.rules.begin_s == 10.0


@pytest.mark.usefixtures("short_delay")
def test_a_lethal_alarm_stays_until_it_is_acknowledged(models: LiveModels, signals: dict[str, Floats]) -> None:
    monitor = Monitor(Ward(models))
    for message in _frames("a", signals["tachycardia"]):
        monitor.receive(message)
    monitor.run()
    vt = [entry for entry in monitor.open_alarms() if entry["kind"] == "VT"]
    assert vt and vt[0]["stop_s"] is not None
    assert monitor.acknowledge(vt[0]["key"], "nurse")
    assert not monitor.acknowledge("nothing", "nurse")
    assert vt[0]["key"] not in {entry["key"] for entry in monitor.open_alarms()}
    assert monitor.alarms[vt[0]["key"]]["acknowledged"]["by"] == "nurse"


def test_rules_of_single_patients(tmp_path: Path, models: LiveModels, signals: dict[str, Floats]) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("pause_s: 3\npatients:\n  calm:\n    'off': [VT, run, VF]\n  slow: {bradycardia_bpm: 30}\n")
    common, of_patients = read_rules(path)
    assert (common.pause_s, of_patients["slow"].bradycardia_bpm, of_patients["slow"].pause_s) == (3, 30, 3)
    ward = Ward(models, common, of_patients)
    for name in ("calm", "other"):
        ward.add(name, RATE_HZ)
        ward.push(name, signals["tachycardia"])
    kinds = {(alarm.stream, alarm.kind) for alarm in ward.run()}
    assert ("other", "VT") in kinds and ("calm", "VT") not in kinds


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("vt_bmp: 3", "vt_bmp"),
        ("vt_beats: 1", "vt_beats"),
        ("vt_beats: 4.5", "vt_beats"),
        ("pause_s: -1", "pause_s"),
        ("vf_probability: 2", "vf_probability"),
        ("'off': [VTT]", "VTT"),
        ("patients: [a]", "patients"),
        ("patients: {a: 3}", "rules"),
        ("- a", "rules"),
    ],
)
def test_wrong_rules_are_refused(tmp_path: Path, text: str, field: str) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(text)
    with pytest.raises(HeartlmError, match=field):
        read_rules(path)


@pytest.mark.parametrize("kind", [AlarmRules, Limits])
@pytest.mark.parametrize("name", ["run_beats", "tachycardia_beats", "bradycardia_beats"])
@pytest.mark.parametrize("value", [3.5, 3.0, float("nan"), "3"])
def test_a_number_of_beats_is_whole(kind: Any, name: str, value: Any) -> None:
    with pytest.raises(HeartlmError, match=f"^{name}: {value} found, a whole number expected$"):
        kind(**{name: value})
    assert getattr(kind(**{name: np.int64(3)}), name) == 3


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "nothing to watch"),
        (["--lines", "--host", "0.0.0.0"], "tls-certificate"),
        (["--lines", "--speed", "0"], "speed"),
        (["--replay", "/nowhere"], "/nowhere"),
        (["--lines", "--fhir"], "webhook"),
        (["--lines", "--webhook", "ftp://a"], "webhook"),
        (["--lines", "--beats", "beats"], "causal"),
        (["--lines", "--port", "65536"], "port: 65536 found, 0 to 65535 expected"),
        (["--lines", "--tls-key", __file__], "tls_key: needs --tls-certificate"),
        (["--lines", "--tls-certificate", "/nowhere"], "tls_certificate: /nowhere: No such file"),
        (["--lines", "--tls-certificate", __file__], "a certificate in PEM format and its key expected"),
        (["--lines", "--token", "/"], "/: Is a directory, a file with one line of text expected"),
    ],
)
def test_wrong_options_end_with_status_2(arguments: list[str], text: str, refused: Refused) -> None:
    assert text in refused("monitor", *arguments)


def test_lines_on_standard_input(signals: dict[str, Floats]) -> None:
    messages = _frames("bed-1", signals["tachycardia"][:6000])
    command = [sys.executable, "-m", "heartlm", "monitor", "--lines", "--no-page", "--print-alarms", "json"]
    given = b"\n".join([*messages[:3], b"nonsense", b"x" * (1 << 21), *messages[3:]]) + b"\n"
    done = subprocess.run(command, input=given, capture_output=True, timeout=120, check=True)
    entries = [json.loads(line) for line in done.stdout.splitlines()]
    assert ("bed-1", "VT") in {(entry["stream"], entry["kind"]) for entry in entries}
    assert b"no JSON" in done.stderr and b"more than" in done.stderr


def test_standard_input_may_be_a_file(tmp_path: Path, models: LiveModels, monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = Monitor(Ward(models), log=lambda _: None)
    frames = _frames("bed", np.zeros(1000, np.float32))
    (tmp_path / "frames.jsonl").write_bytes(b"\n".join([*frames[:2], b"nonsense", *frames[2:]]))
    with (tmp_path / "frames.jsonl").open() as given:
        monkeypatch.setattr(sys, "stdin", given)
        asyncio.run(read_lines(monitor))
    assert monitor.patients["bed"].num_samples == 1000 and monitor.faults == {"standard input": 1}


def test_the_error_of_an_input_that_breaks_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(_: Monitor) -> None:
        raise OSError("broken input")

    monkeypatch.setattr("heartlm.monitor.sources.read_lines", broken)
    with pytest.raises(OSError, match="broken input"):
        main(["monitor", "--lines", "--no-page"])


class _Refusing(BaseHTTPRequestHandler):
    """Fails twice, then takes what comes."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        seen = self.server.seen  # type: ignore[attr-defined]
        seen.append(json.loads(body))
        self.send_response(503 if len(seen) <= 2 else 204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


def test_a_webhook_tries_until_it_is_heard(models: LiveModels) -> None:
    server = HTTPServer(("127.0.0.1", 0), _Refusing)
    server.seen = []  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    entry = Alarm("bed", "VF", 100, 2500, None, 0.9, RATE_HZ).to_json() | {"time": "2026-01-01T00:00:00Z"}

    async def send() -> None:
        monitor = Monitor(Ward(models), log=lambda _: None)
        hook = Webhook(f"http://127.0.0.1:{server.server_port}/", monitor, observation)
        task = asyncio.create_task(hook.run())
        for number in range(2):
            monitor.listeners[0](entry | {"key": f"bed/VF/{number}"})
        while hook.waiting:
            await asyncio.sleep(0.05)
        task.cancel()

    asyncio.run(asyncio.wait_for(send(), 60))
    server.shutdown()
    keys = [each["identifier"][0]["value"] for each in server.seen]  # type: ignore[attr-defined]
    assert keys == ["bed/VF/0"] * 3 + ["bed/VF/1"]
    assert server.seen[0]["resourceType"] == "Observation"  # type: ignore[attr-defined]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[int]:
    with Broker("mosquitto", tmp_path, OPEN) as mosquitto:
        yield mosquitto.port


@pytest.mark.parametrize(
    ("topic", "sent_to", "name"),
    [
        ("heartlm/ecg/#", "heartlm/ecg/bed/7", "bed/7"),
        ("ward/+/ecg/+", "ward/3/ecg/7", "3/7"),
        ("gateway", "gateway", "in the message"),
    ],
)
def test_streams_and_alarms_by_mqtt(
    broker: int, models: LiveModels, signals: dict[str, Floats], topic: str, sent_to: str, name: str
) -> None:
    from paho.mqtt import client, enums

    from heartlm.monitor.connection import Access
    from heartlm.monitor.mqtt import Mqtt

    alarms = list[tuple[str, dict[str, Any]]]()
    ward = client.Client(enums.CallbackAPIVersion.VERSION2)
    ward.on_message = lambda _client, _data, message: alarms.append((message.topic, json.loads(message.payload)))
    ward.connect("127.0.0.1", broker)
    ward.subscribe("alarms/#", qos=1)
    ward.loop_start()

    async def watch() -> None:
        monitor = Monitor(Ward(models), log=lambda _: None)
        mqtt = Mqtt(f"127.0.0.1:{broker}", monitor, Access(), topic, "alarms", "monitor-1")
        await mqtt.connect()
        for message in _frames("in the message", signals["tachycardia"][:6000]):
            ward.publish(sent_to, message, qos=1)
        while not any(alarm["kind"] == "VT" for _, alarm in alarms):
            monitor.run()
            await asyncio.sleep(0.05)
        mqtt.close()

    asyncio.run(asyncio.wait_for(watch(), 60))
    ward.loop_stop()
    assert {alarm["stream"] for _, alarm in alarms} == {name}
    assert {topic for topic, _ in alarms} == {f"alarms/{name.replace('/', '_')}"}


def test_streams_of_the_lab_streaming_layer(models: LiveModels, signals: dict[str, Floats]) -> None:
    pylsl = pytest.importorskip("pylsl", reason="pylsl is not installed, or has no liblsl")
    from heartlm.monitor.sources import read_lsl

    signal, name = signals["tachycardia"][:6000], f"bed-{time.monotonic_ns()}"
    info = pylsl.StreamInfo(name, "ECG", 2, 250.0, "float32", name)
    info.desc().append_child("channels").append_child("channel").append_child_value("unit", "microvolts")
    outlet = pylsl.StreamOutlet(info)
    alarms = list[str]()

    async def watch() -> Monitor:
        monitor = Monitor(Ward(models), log=lambda _: None)
        monitor.listeners.append(lambda entry: alarms.append(entry["kind"]))
        reading = asyncio.create_task(read_lsl(monitor))
        while not outlet.have_consumers():
            assert not reading.done(), reading.result()
            await asyncio.sleep(0.05)
        begin_s = pylsl.local_clock()
        for start in range(0, len(signal), 250):  # a minute's gap after five seconds
            chunk = np.stack([1000 * signal[start : start + 250]] * 2, axis=1).tolist()
            outlet.push_chunk(chunk, begin_s + (start + 249) / 250 + (60 if start >= 1250 else 0))
        while name not in monitor.patients or monitor.patients[name].num_samples < len(signal) + 60 * 250:
            assert not reading.done(), reading.result()
            await asyncio.sleep(0.05)
        monitor.run()
        reading.cancel()
        return monitor

    patient = asyncio.run(asyncio.wait_for(watch(), 60)).patients[name]
    kept = patient.history[:, -len(signal) + 1250 :]
    assert np.allclose(kept, signal[1250:][-kept.shape[1] :], atol=1e-4)
    assert patient.num_samples == pytest.approx(len(signal) + 60 * 250, abs=2)
    assert "VT" in alarms


def test_the_page_is_for_its_own_origin_and_who_knows_the_token(models: LiveModels) -> None:
    testclient = pytest.importorskip("starlette.testclient")
    from starlette.websockets import WebSocketDisconnect

    from heartlm.monitor.server import Page

    monitor = Monitor(Ward(models))
    monitor.receive(b'{"stream": "<b>bed</b>", "rate_hz": 250, "start": 0, "mv": [0, 1]}')
    page = testclient.TestClient(Page(monitor, token="0123456789abcdef", pseudonyms=True).app)
    assert page.get("/").status_code == 403
    answer = page.get("/?token=0123456789abcdef")
    assert answer.status_code == 200 and "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    address = "/live?token=0123456789abcdef"
    for headers in ({}, {"origin": "http://elsewhere.example"}):
        with pytest.raises(WebSocketDisconnect), page.websocket_connect(address, headers=headers) as live:
            live.receive_text()
    own = testclient.TestClient(Page(monitor).app, base_url="http://127.0.0.1:8765")
    assert own.get("/").status_code == 200
    for host in ("trap.example:8765", "localhost.trap.example"):
        assert own.get("/", headers={"host": host}).status_code == 403
    for host in ("localhost", "[::1]"):  # without a port, as for port 80
        assert own.get("/", headers={"host": host}).status_code == 200
    with page.websocket_connect(address, headers={"origin": "http://testserver"}) as live:
        tick = json.loads(live.receive_text())
        assert tick["streams"][0]["name"].startswith("P-") and "bed" not in json.dumps(tick)


def test_the_page_draws_the_strip_of_an_alarm(tmp_path: Path, models: LiveModels, signals: dict[str, Floats]) -> None:
    testclient = pytest.importorskip("starlette.testclient")

    from heartlm.monitor.server import Page

    monitor = Monitor(Ward(models), tmp_path)
    for message in _frames("<b>bed</b>", signals["tachycardia"]):
        monitor.receive(message)
        monitor.run()
    entry = next(each for each in monitor.alarms.values() if each["kind"] == "VT" and each["strip"])
    page = testclient.TestClient(Page(monitor, token="0123456789abcdef", pseudonyms=True).app)
    address = f"/strips/{entry['strip']}.svg"
    assert page.get(address).status_code == 403
    assert page.get("/strips/..%2Falarms.svg?token=0123456789abcdef").status_code == 404
    answer = page.get(f"{address}?token=0123456789abcdef")
    assert answer.status_code == 200 and answer.headers["content-type"] == "image/svg+xml"
    drawing = ElementTree.fromstring(answer.text)
    words = [text for text in drawing.itertext() if text.strip()]
    assert f"VT, raised at {entry['raised_s']:.0f} s" in answer.text and "VT" in words and "bed" not in answer.text
    assert answer.text.count('class="trace"') == 4  # the signal and its calibration pulse, in two rows of ten seconds
    monitor.close()


def test_a_minute_received_at_once_costs_strips_and_no_alarm(
    tmp_path: Path, models: LiveModels, signals: dict[str, Floats]
) -> None:
    alarms = []
    for folder, at_once in ((tmp_path / "a", False), (tmp_path / "b", True)):
        monitor = Monitor(Ward(models), folder)
        for message in _frames("bed", signals["tachycardia"]):
            monitor.receive(message)
            if not at_once:
                monitor.run()
        monitor.run()
        monitor.close()
        alarms.append({key: entry["stop_s"] for key, entry in monitor.alarms.items()})
    assert alarms[0] == alarms[1] and any("VT" in key for key in alarms[0])


def test_the_defaults_are_those_of_the_challenge() -> None:
    rules = AlarmRules()
    assert (rules.asystole_s, rules.bradycardia_bpm, rules.bradycardia_beats) == (4, 40, 5)
    assert (rules.tachycardia_bpm, rules.tachycardia_beats, rules.vt_bpm, rules.vt_beats) == (140, 17, 100, 5)


def test_a_second_opinion_calls_more(models: LiveModels, signals: dict[str, Floats]) -> None:
    """The rules are chosen by name, and limits that are nearly reached count. A whole sampling rate is a number too."""
    rules, _ = read_rules(Path("second-opinion"))
    slow = [JudgedBeat(375 * beat, "N", 0.9, 0.0) for beat in range(1, 12)]  # 41/min at 256 Hz
    kinds = []
    for own in (AlarmRules(), rules):
        stream = Rules("a", own, 256.0)
        for second in range(1, 17):
            beats = [beat for beat in slow if 256 * (second - 1) <= beat.sample < 256 * second]
            stream.update(
                256 * second, [LeadSecond(beats, [0.9, 0.0, 0.0, 0.1, 0.0], 1.0, 1.0 if beats else 0.1)], None
            )
        kinds.append(set(stream.active))
    assert kinds == [set(), {"extreme bradycardia"}]
    ward = Ward(models, rules)
    ward.add("a", int(RATE_HZ))
    ward.push("a", signals["tachycardia"])
    assert "VT" in {alarm.kind for alarm in ward.run()}


def test_a_folder_belongs_to_one_monitor(tmp_path: Path, refused: Refused) -> None:
    with locked(tmp_path / "ward" / "lock", "taken"):
        assert "another monitor" in refused("monitor", "--lines", "--no-page", "--out", tmp_path / "ward")


def test_a_changed_rate_loses_no_strip(tmp_path: Path, models: LiveModels, signals: dict[str, Floats]) -> None:
    monitor = Monitor(Ward(models), tmp_path / "ward", log=lambda _: None)
    for message in _frames("a", signals["tachycardia"][:3750]):  # VT is raised at second 15, the last of these
        monitor.receive(message)
    monitor.receive(b'{"stream": "a", "rate_hz": 300, "start": 0, "mv": [0, 0.1]}')
    (vt,) = (entry for entry in monitor.alarms.values() if entry["kind"] == "VT")
    assert vt["strip"] and vt["stop_s"] == 15.0
    monitor.close()


def test_a_journal_of_another_version_is_refused(
    tmp_path: Path, models: LiveModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    Monitor(Ward(models), tmp_path / "ward", log=lambda _: None).close()
    (snapshot,) = (tmp_path / "ward" / "journal").glob("snapshot-*.state")
    with monkeypatch.context() as other:
        other.setattr("heartlm.monitor.state.SCHEMA", 1)
        snapshot.write_bytes(packed({}))
    with pytest.raises(HeartlmError, match="another version"):
        Monitor(Ward(models), tmp_path / "ward", log=lambda _: None)


def test_the_trend_counts_each_minute_and_keeps_a_shift() -> None:
    trend = Trend()
    assert trend.to_json() == {"first": 0, "bpm": [], "s": [], "v": []}
    for time_s, symbol in ((58.0, "N"), (59.0, "V"), (59.5, "S"), (61.0, "V"), (70.0, "N"), (70.5, "N")):
        trend.add(time_s, symbol)
    # 58 to 59.5 s in two intervals; 59.5 to 61 and 70 to 70.5 s: the nine seconds between them are no interval
    assert trend.to_json() == {"first": 0, "bpm": [80.0, 60.0], "s": [1, 0], "v": [1, 1]}
    again = Trend()
    again.restore(unpacked(packed(trend)))
    for each in (trend, again):
        each.add(60.0 * (NUM_MINUTES + 1), "V")
        each.add(30.0, "V")  # too old
    kept = again.to_json()
    assert kept == trend.to_json()
    assert kept["first"] == 2 and len(kept["bpm"]) == NUM_MINUTES and sum(kept["v"]) == 1
    assert kept["bpm"] == [None] * NUM_MINUTES


def test_the_page_shows_a_stream_in_full(models: LiveModels, signals: dict[str, Floats]) -> None:
    testclient = pytest.importorskip("starlette.testclient")
    from heartlm.monitor.server import Page

    monitor = Monitor(Ward(models), log=lambda _: None)
    both = np.stack([signals["tachycardia"], signals["tachycardia"] / 2])[:, :10_000]
    for start in range(0, both.shape[1], 250):
        mv = both[:, start : start + 250].tolist()
        monitor.receive(json.dumps({"stream": "a", "rate_hz": 250, "start": start, "mv": mv}).encode())
    monitor.run()
    page = testclient.TestClient(Page(monitor, token="0123456789abcdef").app)
    address = "/live?token=0123456789abcdef"
    with page.websocket_connect(address, headers={"origin": "http://testserver"}) as live:
        assert json.loads(live.receive_text())["full"] is None
        live.send_text('{"show": ["a"]}')
        while not (tick := json.loads(live.receive_text()))["signals"]:
            pass
        assert len(tick["signals"]["a"]["mv"]) == 1 and tick["full"] is None
        live.send_text('{"full": "a"}')
        while (full := json.loads(live.receive_text())["full"]) is None:
            pass
        assert json.loads(live.receive_text())["full"] is None  # nothing new
        key = next(each["key"] for each in full["events"] if each["kind"] == "VT")
        live.send_text(json.dumps({"acknowledge": key, "by": "nurse"}))
        ticks = (json.loads(live.receive_text()) for _ in range(20))
        changed = next(tick["full"] for tick in ticks if tick["full"])
        assert [each["key"] for each in changed["events"] if each["acknowledged"]] == [key]
        monitor.receive(b'{"stream": "a", "rate_hz": 300, "start": 0, "mv": [0, 0.1, 0.2, 0.3, 0.4]}')
        signal = next(tick["signals"]["a"] for tick in ticks if tick["signals"])
        assert signal["hz"] == 150  # a new part of the stream is drawn from its first samples on
    assert {each["kind"] for each in full["events"]} >= {"VT"} and {each["stream"] for each in full["events"]} == {"a"}
    assert full["trend"]["v"][0] >= 5 and 60 < full["trend"]["bpm"][0] < 200


def test_af_begins_before_it_is_raised(models: LiveModels) -> None:
    """Record 201 of mitdb begins in atrial fibrillation."""
    recording = open_database(shared_data("mitdb")).recording("201")
    ward = Ward(models)
    ward.add("a", recording.rate_hz)
    ward.push("a", recording.signal(0, 60 * 360, (0,)))
    (af,) = (alarm for alarm in ward.run() if alarm.kind == "AF" and alarm.stop is None)
    assert af.start < af.raised < 15 * 360


def test_af_after_sinus_rhythm_is_raised_before_it_fills_the_long_window(models: LiveModels) -> None:
    """Three minutes of record 100, in sinus rhythm, continue as record 201, which begins in atrial fibrillation.

    The long window, 128 beats, is full of it after 80 s.
    """
    database = open_database(shared_data("mitdb"))
    lengths = {"100": 180 * 360, "201": 60 * 360}
    ward = Ward(models)
    ward.add("a", 360.0)
    for record, length in lengths.items():
        ward.push("a", database.recording(record).signal(0, length, (0,)))
    (af,) = (alarm for alarm in ward.run() if alarm.kind == "AF")
    assert 180 < af.seconds(af.raised) < 210
    assert af.stop is None


def test_beats_of_af_add_up_and_raise_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LIMITS, "off_delay_s", (0.0,) * len(ALARMS))
    rules, found = Rules("a", AlarmRules(), 250.0), dict[int, str]()

    def second(number: int, log_odds: float, valid: float = 1.0, af: tuple[float, int] | None = None) -> None:
        beat = JudgedBeat(250 * number - 125, "N", 0.9, 0.0, False, log_odds)
        for alarm in rules.update(250 * number, [LeadSecond([beat], [1.0, 0.0, 0.0, 0.0, 0.0], valid, 1.0)], af):
            found[number] = f"{alarm.kind} {'raised' if alarm.stop is None else 'ended'}"

    for number in range(1, 5):
        second(number, -2.0)
    for number in range(5, 10):
        second(number, 9.0)  # limited to 3, of which 2 count
    assert found == {8: "AF raised"} and rules.active["AF"].start == 5 * 250 - 125
    second(10, 3.0, af=(0.1, 0))  # the model of long windows ends it, and the same beats do not raise it again
    for number in range(11, 17):
        second(number, 3.0)
    assert found == {8: "AF raised", 10: "AF ended"}
    second(17, 3.0, valid=0.5)  # nothing adds up across a gap
    for number in range(18, 23):
        second(number, 3.0)
    assert found == {8: "AF raised", 10: "AF ended", 21: "AF raised"}
    rules, found = Rules("a", AlarmRules(), 250.0), {}
    for number, log_odds in enumerate((0.0, 0.0, 3.0, 3.0), start=1):  # begins in AF
        second(number, log_odds)
    assert found == {4: "AF raised"} and rules.active["AF"].start == 0


OTHER, STILL = [1.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0, 0.0]


def _beating(rules: Rules, beats_s: list[float], last_s: int, af: float | None = None) -> list[Alarm]:
    """The alarms of a readable lead with normal beats at these times; AF has a probability from the start."""
    changes = list[Alarm]()
    for second in range(1, last_s + 1):
        own = [JudgedBeat(round(250 * at), "N", 0.9, 0.0) for at in beats_s if second - 1 <= at < second]
        is_first = (af, 0) if af and second == 1 else None
        changes += rules.update(250 * second, [LeadSecond(own, OTHER, 1.0, 0.5)], is_first)
    return changes


def test_a_condition_that_comes_and_goes_is_one_alarm_with_a_count() -> None:
    """Pauses of 3 s 20 s apart, and one more after six minutes."""
    beats_s, at = list[float](), 0.5
    while at < 500:
        beats_s.append(at)
        at += 3.0 if len(beats_s) in (20, 40, 60, 420) else 1.0
    changes = _beating(Rules("a", AlarmRules(off=("extreme bradycardia",)), 250.0), beats_s, 500)
    assert [(each.kind, each.count, each.stop is not None) for each in changes] == [
        ("pause", 1, False),
        ("pause", 2, False),
        ("pause", 3, False),
        ("pause", 3, True),
        ("pause", 1, False),
    ]
    first, *repeated, ended, last = changes
    assert {each.key for each in (*repeated, ended)} == {first.key} != {last.key}
    # It ends where the third pause does, though that is told five minutes later.
    third = beats_s[60]
    assert ended.stop is not None and third * 250 < ended.stop < (third + 3) * 250


def test_a_warning_is_not_raised_beside_a_graver_alarm_of_the_same_condition() -> None:
    """Pauses of 2.5 s long before an asystole of 6 s, 10 s after it, and 90 s after it."""
    beats_s, at = list[float](), 0.5
    for num, last_s in ((20, 2.5), (330, 6.0), (10, 2.5), (80, 2.5), (8, 1.0)):
        beats_s += [at + step for step in range(num)]
        at = beats_s[-1] + last_s
    rules = Rules("a", AlarmRules(off=("extreme bradycardia",)), 250.0)
    raised = [(each.kind, each.raised // 250) for each in _beating(rules, beats_s, int(at) - 1) if each.stop is None]
    assert [kind for kind, _ in raised] == ["pause", "asystole", "pause"]
    pauses_s = [first for first, second in pairwise(beats_s) if second - first == 2.5]
    assert len(pauses_s) == 3 and raised[2][1] > pauses_s[2]  # the second one is part of the asystole


def test_a_rate_must_come_back_beyond_the_limit() -> None:
    rules = Rules("a", AlarmRules(), 250.0)
    held = list[bool]()
    beats_s, at = list[float](), 0.1
    for bpm, num in ((145, 40), (135, 40), (120, 40)):
        for _ in range(num):
            beats_s.append(at)
            at += 60 / bpm
    ends = [int(each) for each in (beats_s[39], beats_s[79], beats_s[119])]
    for second in range(1, ends[2]):
        own = [JudgedBeat(round(250 * each), "N", 0.9, 0.0) for each in beats_s if second - 1 <= each < second]
        rules.update(250 * second, [LeadSecond(own, OTHER, 1.0, 1.0)], None)
        held.append(rules.holds("extreme tachycardia"))
    assert held[ends[0] - 2] and held[ends[1] - 2] and not held[-1]
    assert "extreme tachycardia" in rules.active


@pytest.mark.parametrize(
    ("mean_rr_s", "af", "called"), [(1.4, None, True), (1.4, 0.95, False), (1.7, 0.95, True), (2.2, 0.95, True)]
)
def test_a_slow_af_is_judged_over_more_than_five_beats(mean_rr_s: float, af: float | None, called: bool) -> None:
    """Five beats of a mean of 43/min are now and then below 40/min; 35/min is too slow over all of them."""
    changes = [0.25, -0.2, 0.3, 0.15, -0.3, -0.25, 0.2, 0.25, 0.1, -0.5]
    beats_s = (0.5 + np.cumsum([mean_rr_s * (1 + changes[place % 10]) for place in range(40)])).tolist()
    found = {each.kind for each in _beating(Rules("a", AlarmRules(), 250.0), beats_s, int(beats_s[-1]), af)}
    assert ("extreme bradycardia" in found) == called


def test_a_lethal_alarm_that_is_repeated_must_be_acknowledged_again(models: LiveModels) -> None:
    monitor = Monitor(Ward(models))
    monitor._add_frame(Frame("a", 250.0, 0, None, np.zeros((1, 10), np.float32)))
    first = Alarm("a", "VF", 0, 1000, None, 0.9, 250.0)
    for alarm in (first, replace(first, count=2)):
        monitor._update_alarm(alarm)
        assert [entry["count"] for entry in monitor.open_alarms()] == [alarm.count]
        monitor.acknowledge(first.key, "nurse")
        monitor._update_alarm(alarm)  # a restarted monitor judges its last messages again
        (entry,) = monitor.open_alarms()
        assert entry["acknowledged"] is not None and entry["count"] == alarm.count
    monitor._update_alarm(replace(first, count=3))
    assert monitor.alarms[first.key]["acknowledged"] is None
    monitor._update_alarm(replace(first, count=3, stop=2000))
    assert len(monitor.open_alarms()) == len(monitor.alarms) == 1


def test_the_log_odds_of_af_of_a_beat_are_the_mean_over_the_leads_that_have_it() -> None:
    clear, noise = [1.0, 0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0]
    noise[NOISE] = 1.0
    sums = dict[str, float]()
    for what, offset, other, wave in (
        ("same beat", 10, -1.0, clear),
        ("other beat", 90, -1.0, clear),
        ("unknown", 10, 0.0, clear),
        ("noise", 10, -1.0, noise),
    ):
        rules = Rules("a", AlarmRules(), 250.0, num_leads=2)
        for number in range(1, 5):
            beats = JudgedBeat(250 * number - 125, "N", 0.9, 0.0, False, 3.0 if number == 4 else 0.0)
            others = JudgedBeat(250 * number - 125 - offset, "N", 0.9, 0.0, False, other)
            rules.update(
                250 * number, [LeadSecond([beats], clear, 1.0, 1.0), LeadSecond([others], wave, 1.0, 1.0)], None
            )
        sums[what] = rules.leads[0].af_sum
    assert sums == {"same beat": 5.5, "other beat": 7.5, "unknown": 7.5, "noise": 7.5}


def test_a_slow_rhythm_of_two_beats_needs_a_beat() -> None:
    rules = Rules("a", AlarmRules(bradycardia_beats=2), 250.0)
    for second in range(1, 5):  # nothing is found for three seconds, which are no asystole yet
        rules.update(250 * second, [LeadSecond([], None, 1.0, 1.0)], None)
        assert "extreme bradycardia" not in rules.active


@pytest.mark.parametrize(("ventricular", "called"), [((0.9, 0.02), False), ((0.9, 0.3), True)])
def test_vt_of_the_waveform_is_no_bigeminy(ventricular: tuple[float, float], called: bool) -> None:
    rules, beat = Rules("a", AlarmRules(), 250.0), 0
    for second in range(1, 9):  # 120/min, every other beat of class N
        beats = [JudgedBeat(125 * (beat + each), "VN"[each], 0.9, ventricular[each]) for each in (0, 1)]
        beat += 2
        rules.update(250 * second, [LeadSecond(beats, [0.05, 0.95, 0.0, 0.0, 0.0], 1.0, 1.0)], None)
    assert ("VT" in rules.active) == called


@pytest.mark.parametrize(
    ("height", "asystole", "called"), [(np.nan, 0.1, False), (np.nan, 0.9, True), (0.1, 0.1, True)]
)
def test_asystole_before_a_usual_beat_is_known_needs_the_network(height: float, asystole: float, called: bool) -> None:
    rules = Rules("a", AlarmRules(), 250.0)
    for second in range(1, 9):
        rules.update(250 * second, [LeadSecond([], [1 - asystole, 0.0, 0.0, asystole, 0.0], 1.0, height)], None)
    assert ("asystole" in rules.active) == called


@pytest.mark.parametrize(("lowest", "called"), [(0.7, False), (0.1, True)])
def test_standstill_and_bradycardia_need_a_low_second(lowest: float, called: bool) -> None:
    """After an artefact the detector may miss beats of usual height."""
    still, slow = Rules("a", AlarmRules(), 250.0), Rules("a", AlarmRules(), 250.0)
    for second in range(1, 13):
        wave = [0.9, 0.0, 0.0, 0.1, 0.0]
        still.update(250 * second, [LeadSecond([], wave, 1.0, lowest)], None)
        beats = [JudgedBeat(250 * second - 200, "N", 0.9, 0.0)] if second % 2 else []
        slow.update(250 * second, [LeadSecond(beats, wave, 1.0, 1.0 if beats else lowest)], None)
    assert ("asystole" in still.active) == called
    assert ("extreme bradycardia" in slow.active) == called


def test_a_low_second_counts_after_seconds_of_unknown_height() -> None:
    rules = Rules("a", AlarmRules(), 250.0)
    for second in range(1, 9):
        height = np.nan if second < 6 else 0.1
        rules.update(250 * second, [LeadSecond([], [0.9, 0.0, 0.0, 0.1, 0.0], 1.0, height)], None)
    assert "asystole" in rules.active


def test_a_limit_of_the_rate_above_40_needs_no_low_second() -> None:
    rules = Rules("a", AlarmRules(bradycardia_bpm=70), 250.0)
    for second in range(1, 9):
        beat = JudgedBeat(250 * second - 200, "N", 0.9, 0.0)
        rules.update(250 * second, [LeadSecond([beat], [1.0, 0.0, 0.0, 0.0, 0.0], 1.0, 1.0)], None)
    assert "extreme bradycardia" in rules.active


@pytest.mark.parametrize(
    ("probability", "vt", "noise", "called"),
    [(0.65, 0.1, 0.0, False), (0.95, 0.2, 0.0, True), (0.75, 0.5, 0.0, True), (0.95, 0.2, 0.4, False)],
)
def test_vt_needs_sure_beats_or_waveform_and_little_noise(
    probability: float, vt: float, noise: float, called: bool
) -> None:
    rules = Rules("a", AlarmRules(), 250.0)
    for second in range(1, 9):  # 120/min
        beats = [JudgedBeat(250 * second - each, "V", probability, probability) for each in (250, 125)]
        rules.update(250 * second, [LeadSecond(beats, [1 - vt - noise, vt, 0.0, 0.0, noise], 1.0, 1.0)], None)
    assert ("VT" in rules.active) == called


@pytest.mark.parametrize(("probability", "called_after"), [(0.99, 3), (0.7, 4), (0.3, None)])
def test_vt_that_is_less_probable_must_last_two_seconds(probability: float, called_after: int | None) -> None:
    rules, called = Rules("a", AlarmRules(), 250.0), list[int]()
    for second in range(1, 7):  # 120/min
        beats = [JudgedBeat(250 * second - each, "V", probability, probability) for each in (250, 125)]
        rules.update(250 * second, [LeadSecond(beats, [0.7, 0.3, 0.0, 0.0, 0.0], 1.0, 1.0)], None)
        if "VT" in rules.active:
            called.append(second)
    assert called == ([] if called_after is None else list(range(called_after, 7)))


@pytest.mark.parametrize(("range_of_usual", "kind"), [(0.01, "asystole"), (0.5, None)])
def test_a_detection_in_a_silent_signal_is_no_heartbeat(range_of_usual: float, kind: str | None) -> None:
    rules = Rules("a", AlarmRules(), 250.0)
    for second in range(1, 13):
        height = 1.0 if second < 5 else range_of_usual
        beat = JudgedBeat(250 * second - 200, "N", 0.9, 0.0)
        rules.update(250 * second, [LeadSecond([beat], [0.9, 0.0, 0.0, 0.1, 0.0], 1.0, height)], None)
    assert {each for each in rules.active if rules.holds(each)} == ({kind} if kind else set())


@pytest.mark.parametrize(("windows", "height", "called"), [(3, 1.0, True), (3, np.nan, False), (5, np.nan, True)])
def test_vf_before_a_usual_beat_is_known_needs_five_windows(windows: int, height: float, called: bool) -> None:
    rules = Rules("a", AlarmRules(), 250.0)
    for second in range(1, windows + 1):
        rules.update(250 * second, [LeadSecond([], [0.05, 0.0, 0.95, 0.0, 0.0], 1.0, height)], None)
    assert ("VF" in rules.active) == called


@pytest.mark.parametrize(("symbol", "rr", "kind"), [("N", 100, "extreme tachycardia"), ("V", 125, "VT")])
def test_a_flat_lead_denies_no_alarm_of_another(symbol: str, rr: int, kind: str) -> None:
    rules, raised = Rules("a", AlarmRules(), 250.0, num_leads=2), set[str]()
    flat = LeadSecond([], [0.0, 0.0, 0.0, 1.0, 0.0], 1.0, 0.01)
    for second in range(1, 15):
        samples = range(-(-250 * (second - 1) // rr) * rr, 250 * second, rr)
        beats = [JudgedBeat(sample, symbol, 0.95, 0.95 * (symbol == "V")) for sample in samples]
        seconds = [LeadSecond(beats, [0.5, 0.5, 0.0, 0.0, 0.0], 1.0, 1.0), flat]
        raised |= {alarm.kind for alarm in rules.update(250 * second, seconds, None)}
    assert kind in raised and "asystole" not in raised


@pytest.mark.parametrize(
    ("ventricular", "below", "called"), [(0.01, 0.02, False), (0.05, 0.02, True), (0.01, 0.0, True)]
)
def test_vt_is_vetoed_by_a_lead_whose_beats_are_surely_not_ventricular(
    ventricular: float, below: float, called: bool
) -> None:
    rules, raised = Rules("a", AlarmRules(vt_veto_below=below), 250.0, num_leads=2), set[str]()
    for second in range(1, 13):
        samples = [250 * second - 250, 250 * second - 125]
        first = JudgedBeat(0, "V", 0.95, 0.95) if second > 6 else JudgedBeat(0, "N", 0.95, 0.0)
        beats = [first._replace(sample=sample) for sample in samples]
        others = [JudgedBeat(sample, "S", 0.9, ventricular) for sample in samples]
        leads = [LeadSecond(beats, [0.1, 0.9, 0.0, 0.0, 0.0], 1.0, 1.0)]
        leads.append(LeadSecond(others, [1.0, 0.0, 0.0, 0.0, 0.0], 1.0, 1.0))
        raised |= {alarm.kind for alarm in rules.update(250 * second, leads, None)}
    assert ("VT" in raised) == called


@pytest.mark.parametrize(
    ("ventricular", "vt", "called"), [(0.9, 0.9, True), (None, 0.9, True), (0.4, 0.9, False), (0.9, 0.7, False)]
)
def test_vt_whose_beats_are_missed_is_found_in_the_waveform(ventricular: float | None, vt: float, called: bool) -> None:
    rules = Rules("a", AlarmRules(), 250.0)
    for second in range(1, 9):  # a beat every two seconds
        beats = [JudgedBeat(250 * second - 200, "V", 0.9, ventricular)] if ventricular and second % 2 else []
        rules.update(250 * second, [LeadSecond(beats, [1 - vt, vt, 0.0, 0.0, 0.0], 1.0, 1.0)], None)
    assert ("VT" in rules.active) == called


def test_seconds_of_leads_are_joined_and_told_apart() -> None:
    beats = [JudgedBeat(10, "N", 0.75, 0.25, False, -1.5), JudgedBeat(90, "Q", 0.0, 0.0, True)]
    wave = [0.5, 0.25, 0.0, 0.125, 0.125]
    leads = [LeadSecond(beats, wave, 1.0, 0.5), LeadSecond([], None, 0.25, 2.0), LeadSecond(beats[:1], None, 1.0, 1.0)]
    joined = JudgedSeconds.of(leads)
    assert [joined.of_lead(lead) for lead in range(3)] == leads
    assert JudgedSeconds.of(leads[1:2]).of_lead(0) == leads[1]


@pytest.mark.parametrize(("probability", "called_after"), [(0.95, 3), (0.8, 6), (0.7, None)])
def test_vf_that_is_less_probable_must_last_longer(probability: float, called_after: int | None) -> None:
    rules = Rules("a", AlarmRules(), 250.0)
    called = list[int]()
    for second in range(8):
        wave = [1.0, 0.0, 0.0, 0.0, 0.0] if second == 0 else [1 - probability, 0.0, probability, 0.0, 0.0]
        rules.update(250 * second, [LeadSecond([], wave, 1.0, 1.0)], None)
        if "VF" in rules.active:
            called.append(second)
    assert called == ([] if called_after is None else list(range(called_after, 8)))


def _broad_waves(bpm: float, num: int, rate_hz: float = RATE_HZ) -> Floats:
    """Waves without isoelectric line, as of a sick ventricle: two harmonics, each cycle a little longer or shorter."""
    rng = np.random.default_rng(1)
    turns = 2 * np.pi * np.cumsum(bpm / 60 / rate_hz * (1 + 0.01 * rng.standard_normal(num)))
    mv = 0.8 * (np.sin(turns) + 0.35 * np.sin(2 * turns + 1) + 0.1 * np.sin(3 * turns))
    return (mv + 0.01 * rng.standard_normal(num)).astype(np.float32)


def test_waves_at_a_rate_of_vt_are_regular_and_those_of_flutter_and_vf_are_not() -> None:
    rng, hz = np.random.default_rng(2), np.fft.rfftfreq(400, 0.01)
    vf = [np.fft.irfft(np.fft.rfft(rng.standard_normal(400)) * ((hz > 3) & (hz < 6.5)), 400) for _ in range(20)]
    wander = 2 * np.sin(2 * np.pi * 0.3 * np.arange(400) / 100)
    windows = [_broad_waves(bpm, 400, 100.0) for bpm in (120, 150, 180, 220, 280)] + [
        _broad_waves(150, 400, 100.0) + wander
    ]
    codes = quantize(np.stack([*windows, *(each / each.std() for each in vf)]).astype(np.float32))
    assert regular_waves(codes).tolist() == [True, True, True, False, False, True, *[False] * 20]
    drifts = quantize(np.stack([np.linspace(-1, 1, 400), np.arange(400) < 200, np.zeros(400)]).astype(np.float32))
    assert regular_waves(np.concatenate([drifts, np.zeros_like(drifts[:1])])).tolist() == [False] * 4


def test_vt_of_broad_regular_waves_is_no_vf(models: LiveModels, signals: dict[str, Floats]) -> None:
    sinus = signals["sinus"]
    signal = np.concatenate([sinus[:7500], _broad_waves(140, 5000), sinus[7500:10000]])
    raised = {alarm.kind for alarm in _alarms(models, {"a": [signal]})["a"] if alarm.stop is None}
    assert "VT" in raised and "VF" not in raised
    analyst = Analyst.load(Path("beats"), Path("af"), Path("waveform"))
    events = analyst.analyze(Recording.from_array(signal, rate_hz=RATE_HZ)).events
    vt = [event for event in events if event.kind == "VT"]
    assert vt and not any(event.kind == "VF" for event in events)
    assert sum(event.stop - event.start for event in vt) > 2500


@pytest.mark.parametrize(("num_regular", "kind"), [(1, "VF"), (2, "VT")])
def test_two_of_three_regular_windows_turn_vf_into_vt(num_regular: int, kind: str) -> None:
    rules = Rules("a", AlarmRules(), 250.0)
    for second in range(1, 4):
        rules.update(250 * second, [LeadSecond([], [0.05, 0.0, 0.95, 0.0, 0.0], 1.0, 1.0, second <= num_regular)], None)
    assert rules.active.keys() == {kind}


@pytest.mark.parametrize(
    ("ventricular", "per_second", "called_after"), [(0.95, 2, 4), (0.7, 2, 5), (0.95, 1, 5), (0.95, 0, 5)]
)
def test_two_windows_of_vf_are_enough_with_ventricular_beats(
    ventricular: float, per_second: int, called_after: int
) -> None:
    rules = Rules("a", AlarmRules(), 250.0)
    for second in range(called_after + 1):
        assert "VF" not in rules.active
        wave = [1.0, 0.0, 0.0, 0.0, 0.0] if second < 3 else [0.05, 0.0, 0.95, 0.0, 0.0]
        samples = [250 * second - 250 + 250 * each // per_second for each in range(per_second)]
        beats = [JudgedBeat(sample, "V", ventricular, ventricular) for sample in samples]
        rules.update(250 * second, [LeadSecond(beats, wave, 1.0, 1.0)], None)
    assert "VF" in rules.active


@pytest.mark.parametrize(("factor", "told"), [(1.0, False), (1000.0, True)])
def test_values_that_are_no_millivolts_are_told_once(models: LiveModels, factor: float, told: bool) -> None:
    rng, lines = np.random.default_rng(0), list[str]()
    monitor = Monitor(Ward(models), log=lines.append)
    beat = np.exp(-(((np.arange(250) - 60) / 5) ** 2)) + 0.01 * rng.normal(size=250)
    for second in range(12):
        mv = [round(float(value), 3) for value in factor * beat]
        monitor.receive(json.dumps({"stream": "a", "rate_hz": 250, "start": 250 * second, "mv": mv}).encode())
    assert sum("no millivolts" in line for line in lines) == told
