"""Records and annotation files have the bytes that the package `wfdb` writes, and are read back as they were."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heartlm.errors import HeartlmError
from heartlm.formats.annotation_file import SYMBOL_OF_CODE, read_annotation_file
from heartlm.formats.wfdb import read_wfdb
from heartlm.formats.write_wfdb import BITS, annotation_bytes, write_signals

SYMBOLS = sorted(set(SYMBOL_OF_CODE.tolist()) - {"", " "})
RATES_HZ = [250.0, 360, 257.5, 1000.0]

annotation = st.tuples(
    st.one_of(st.integers(0, 2000), st.integers(0, 1 << 30)),  # samples since the last one: both sides of a skip
    st.sampled_from(SYMBOLS),
    st.one_of(st.just(""), st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=255)),
)


@settings(max_examples=60)
@given(st.lists(annotation, min_size=1, max_size=30), st.sampled_from(RATES_HZ))
def test_annotation_files_have_the_bytes_of_the_reference_and_are_read_back(
    annotations: list[tuple[int, str, str]], rate_hz: float
):
    wfdb = pytest.importorskip("wfdb", reason="the package wfdb writes the reference")
    steps, symbol, aux_note = zip(*annotations, strict=True)
    sample = np.cumsum(np.array(steps, np.int64))
    content = annotation_bytes(sample, symbol, aux_note, rate_hz)
    with TemporaryDirectory() as folder:
        wfdb.wrann("r", "atr", sample, list(symbol), aux_note=list(aux_note), fs=rate_hz, write_dir=folder)
        path = Path(folder) / "r.atr"
        assert content == path.read_bytes()
        file = read_annotation_file(path)
    kept = [place for place, each in enumerate(annotations) if not (sample[place] == 0 and each[1] == '"')]
    assert file.sample.tolist() == sample[kept].tolist()
    assert file.symbol.tolist() == [symbol[place] for place in kept]
    assert file.aux == {row: aux_note[place] for row, place in enumerate(kept) if aux_note[place]}
    assert file.ticks_hz == rate_hz and not file.faults


@pytest.mark.parametrize("signal_format", ["16", "212"])
@pytest.mark.parametrize("num_leads", [1, 2, 3])
@pytest.mark.parametrize("num_samples", [1, 2, 501])
def test_signals_have_the_bytes_of_the_reference(tmp_path: Path, signal_format: str, num_leads: int, num_samples: int):
    wfdb = pytest.importorskip("wfdb", reason="the package wfdb writes the reference")
    highest = 1 << BITS[signal_format] - 1
    adu = np.random.default_rng(num_samples).integers(-highest, highest, (num_leads, num_samples))
    leads, comments = ["MLII", "V1", "lead with blanks"][:num_leads], ["<age>: 57", "second line"]
    for folder in ("ours", "reference"):
        (tmp_path / folder).mkdir()
    how = {"rate_hz": 257.5, "leads": leads, "gain": 200, "baseline": -7, "comments": comments}
    write_signals(tmp_path / "ours", "r", adu, signal_format=signal_format, **how)
    wfdb.wrsamp(
        "r",
        fs=257.5,
        units=["mV"] * num_leads,
        sig_name=leads,
        d_signal=adu.T,
        fmt=[signal_format] * num_leads,
        adc_gain=[200.0] * num_leads,
        baseline=[-7] * num_leads,
        comments=comments,
        write_dir=str(tmp_path / "reference"),
    )
    for name in ("r.hea", "r.dat"):
        assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / "reference" / name).read_bytes()
    recording = read_wfdb(tmp_path / "ours/r.hea")
    expected = np.where(adu == -highest, np.nan, (adu + 7) / 200)
    np.testing.assert_allclose(recording.signal(), expected, rtol=1e-6)
    assert recording.rate_hz == 257.5 and recording.lead_names == tuple(leads) and not recording.faults


def test_a_symbol_that_has_no_code_is_refused():
    with pytest.raises(HeartlmError, match="'VT' is no WFDB annotation code"):
        annotation_bytes(np.array([1, 2]), ["N", "VT"], ["", ""], 250)


@pytest.mark.parametrize("adu", [2048, -2049])
def test_a_sample_outside_the_format_is_not_wrapped(tmp_path: Path, adu: int):
    with pytest.raises(AssertionError, match="outside the format"):
        write_signals(tmp_path, "r", np.array([[adu]]), signal_format="212", rate_hz=250, leads=["I"], gain=200)
