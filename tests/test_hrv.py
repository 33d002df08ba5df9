"""Heart rate variability: values that follow from the intervals by hand, and those of NeuroKit2 on real recordings."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from heartlm.analysis.findings import Event, Findings
from heartlm.analysis.hrv import MEASURES, PIECE_S, band_powers, variability
from heartlm.databases.database import open_database
from heartlm.ecg.recording import Recording
from tests.conftest import shared_data

RATE_HZ = 1000.0


def findings_of(times_s: NDArray[np.float64], events: tuple[Event, ...] = ()) -> Findings:
    """Normal beats at these times, in a recording without a signal."""
    num_samples = math.ceil(times_s[-1] * RATE_HZ) + 1
    recording = Recording(
        rate_hz=RATE_HZ, num_samples=num_samples, lead_names=("I",), units=("mV",), path=Path("r.hea")
    )
    sample = np.round(times_s * RATE_HZ).astype(np.int64)
    sure = np.ones(len(sample), np.float32)
    readable = np.ones(math.ceil(num_samples / RATE_HZ))
    return Findings(recording, (0,), sample, np.full(len(sample), "N"), sure, events, readable)


def modulated(mean_s: list[float], waves: dict[float, float], seconds_each: float = 900.0) -> NDArray[np.float64]:
    """Times of beats whose intervals have each mean for a while, and waves: amplitudes in s by frequency in Hz."""
    times = [0.0]
    while times[-1] < seconds_each * len(mean_s):
        now = times[-1]
        wave = sum(size * math.sin(2 * math.pi * hz * now) for hz, size in waves.items())
        times.append(now + mean_s[int(now // seconds_each)] + wave)
    return np.array(times)[:-1]


def test_the_power_of_a_wave_is_half_its_amplitude_squared():
    values = variability(findings_of(modulated([0.8], {0.1: 0.03, 0.25: 0.02})))
    assert values["num_pieces"] == values["num_spectra"] == 3
    assert values["lf_ms2"] == pytest.approx(30**2 / 2, rel=0.03)
    assert values["hf_ms2"] == pytest.approx(20**2 / 2, rel=0.06)  # splines lower what is fast
    assert values["lf_hf"] == pytest.approx(values["lf_ms2"] / values["hf_ms2"], rel=0.03)
    assert values["sdnn_ms"] == pytest.approx(math.sqrt((30**2 + 20**2) / 2), rel=0.02)
    steps = [2 * size * math.sin(math.pi * hz * 0.8) for hz, size in ((0.1, 30), (0.25, 20))]
    assert values["rmssd_ms"] == pytest.approx(math.sqrt(sum(step**2 / 2 for step in steps)), rel=0.02)


def test_a_wave_counts_in_its_own_band_alone():
    slow, fast = (variability(findings_of(modulated([0.8], {hz: 0.03}))) for hz in (0.1, 0.3))
    assert slow["hf_ms2"] < 0.01 * slow["lf_ms2"] and fast["lf_ms2"] < 0.01 * fast["hf_ms2"]


def test_measures_of_pieces():
    """800 ms in a quarter of an hour and 1,000 ms in the next, each with 40 ms up and down every 4 s."""
    values = variability(findings_of(modulated([0.8, 1.0], {0.25: 0.04})))
    assert values["num_pieces"] == values["num_spectra"] == 6
    assert values["sdann_ms"] == pytest.approx(np.std([800, 800, 800, 1000, 1000, 1000], ddof=1), rel=0.02)
    assert values["sdnn_index_ms"] == pytest.approx(40 / math.sqrt(2), rel=0.05)


def test_intervals_without_variation_have_no_ratio():
    values = variability(findings_of(np.arange(800) * 0.75))
    assert [values[name] for name in ("lf_ms2", "hf_ms2", "rmssd_ms")] == pytest.approx([0, 0, 0], abs=1e-9)
    assert values["lf_hf"] is None


def test_ectopic_beats_lower_what_pieces_have_and_that_is_said():
    found = findings_of(modulated([0.8, 1.0], {0.1: 0.03, 0.25: 0.03}))
    clean, symbol = variability(found), found.symbol.copy()
    symbol[3::6] = "V"  # every sixth, 17 %, so 2 of 6 intervals are left out
    values = variability(replace(found, symbol=symbol))
    assert clean["covered"] > 0.98 and clean["notes"] == []
    assert values["covered"] == pytest.approx(2 / 3, abs=0.02) and values["num_spectra"] == 6
    for name, margin in {"sdann_ms": 0.02, "sdnn_index_ms": 0.1, "lf_ms2": 0.5, "hf_ms2": 0.5}.items():
        assert values[name] == pytest.approx(clean[name], rel=margin)
    assert [note.partition(":")[0] for note in values["notes"]] == ["normal intervals cover 67 % of the pieces"]
    symbol[2::6] = symbol[4::6] = "V"
    values = variability(replace(found, symbol=symbol))
    assert values["sdann_ms"] is values["lf_ms2"] is None and values["sdnn_ms"] is not None
    assert values["notes"][0].startswith("SDANN, SDNN index, LF and HF are missing: 0 pieces")


def test_intervals_in_atrial_fibrillation_are_left_out():
    times_s = modulated([0.8], {0.25: 0.04})
    fibrillation = Event("AF", 0, int(times_s[-1] * RATE_HZ), 0.9, 1000, 75.0)
    values = variability(findings_of(times_s, (fibrillation,)))
    assert {values[name] for name in MEASURES} == {None}
    assert values["notes"] == ["not computed: 0 normal intervals outside of AF, 200 needed"]


@pytest.mark.parametrize("record", ["mitdb/100", "mitdb/208", "nsrdb/16265"])
def test_values_are_those_of_neurokit2(record: str):
    neurokit2 = pytest.importorskip("neurokit2", reason="NeuroKit2 computes the reference")
    path = shared_data(record.partition("/")[0])
    recording = open_database(path).recording(record.partition("/")[2])
    beats = recording.annotations
    assert beats is not None
    ends_s, nn_ms = beats.sample[1:] / recording.rate_hz, 1000 * np.diff(beats.sample) / recording.rate_hz
    normal = (beats.symbol[1:] == "N") & (beats.symbol[:-1] == "N") & (nn_ms > 300) & (nn_ms < 2000)
    ends_s, nn_ms = ends_s[normal], nn_ms[normal]
    for piece in range(4):
        inside = ends_s // PIECE_S == piece
        intervals = {"RRI": nn_ms[inside], "RRI_Time": ends_s[inside]}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about bands that need longer pieces
            theirs = neurokit2.hrv_frequency(intervals, normalize=False, interpolation_rate=4, silent=True).iloc[0]
        ours = band_powers(nn_ms[inside], ends_s[inside])
        assert [ours["lf_ms2"], ours["hf_ms2"]] == pytest.approx([theirs["HRV_LF"], theirs["HRV_HF"]], rel=1e-9)


def test_measures_of_time_are_those_of_neurokit2():
    neurokit2 = pytest.importorskip("neurokit2", reason="NeuroKit2 computes the reference")
    found = findings_of(modulated([0.8, 1.0], {0.25: 0.04}))
    values = variability(found)
    theirs = neurokit2.hrv_time({"RRI": np.diff(found.sample), "RRI_Time": found.sample[1:] / RATE_HZ}).iloc[0]
    # Findings round to 0.001 ms.
    assert [values["sdnn_ms"], values["rmssd_ms"]] == pytest.approx([theirs["HRV_SDNN"], theirs["HRV_RMSSD"]], abs=6e-4)
    assert values["pnn50_pct"] == pytest.approx(theirs["HRV_pNN50"], rel=2e-3)
