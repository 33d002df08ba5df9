"""The rhythm tokenizer: intervals alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from heartlm.tokenizers.base import Lead
from heartlm.tokenizers.rhythm import RHYTHM_SCALES, RhythmTokenizer, filtered_intervals
from tests.synthetic_leads import heart_lead, is_ventricular, rhythm_lead

TOKENIZER = RhythmTokenizer()
intervals = st.lists(st.floats(0.21, 2.45), min_size=1, max_size=50)


@settings(derandomize=True, deadline=None)
@given(rr_s=intervals, rate_hz=st.sampled_from([128.0, 250.0, 1000.0]))
def test_an_interval_decodes_to_within_one_percent(rr_s: list[float], rate_hz: float) -> None:
    lead = rhythm_lead(np.array(rr_s), rate_hz)
    tokens = TOKENIZER.encode(lead)
    decoded = RHYTHM_SCALES["rr"].decode(tokens.codes[:, 0])
    true_s = np.diff(lead.annotations.sample) / rate_hz
    assert np.isnan(decoded[0]) and np.abs(decoded[1:] / true_s - 1).max() <= 0.01
    assert (tokens.codes < [facet.size for facet in TOKENIZER.facets]).all()


@settings(derandomize=True, deadline=None)
@given(rr_s=intervals, later=intervals, data=st.data())
def test_later_beats_change_no_code(rr_s: list[float], later: list[float], data: st.DataObject) -> None:
    beat = data.draw(st.integers(0, len(rr_s)))
    whole = TOKENIZER.encode(rhythm_lead(np.array(rr_s))).codes
    other = TOKENIZER.encode(rhythm_lead(np.array(rr_s[:beat] + later))).codes
    assert np.array_equal(other[: beat + 1], whole[: beat + 1])


def test_intervals_beyond_the_levels_are_clipped() -> None:
    codes = TOKENIZER.encode(rhythm_lead(np.array([0.04, 30.0, 0.8]))).codes
    decoded = RHYTHM_SCALES["rr"].decode(codes[:, 0])
    assert 0.2 <= decoded[1] < 0.21 and 2.45 < decoded[2] <= 2.5


def test_codes_are_the_same_at_every_rate_and_facets_compare_with_the_past() -> None:
    rr_s = np.array([0.8] * 10 + [0.4, 1.2] + [0.8] * 10)
    codes = TOKENIZER.encode(rhythm_lead(rr_s, 250)).codes
    assert np.array_equal(TOKENIZER.encode(rhythm_lead(rr_s, 1000)).codes, codes)
    rr, over_recent, over_previous = (np.append(0, codes[1:, facet].astype(int)) for facet in range(3))
    assert rr[11] < rr[10] < rr[12] and over_recent[11] < over_recent[10] < over_recent[12]
    assert over_previous[12] > over_previous[10] and codes[0].tolist() == [0] * 5


def test_the_filter_takes_early_beats_and_their_pauses_out_and_leaves_fibrillation_alone() -> None:
    usual = np.array([np.nan] + [0.8] * 40)
    ectopic = usual.copy()
    ectopic[10::7], ectopic[11::7] = 0.5, 1.1
    assert np.array_equal(filtered_intervals(ectopic)[1:], usual[1:])
    irregularity = TOKENIZER.encode(rhythm_lead(ectopic[1:])).codes[20:, 4]
    assert (irregularity == 1).all()
    fibrillation = np.random.default_rng(1).uniform(0.5, 1.0, 200)
    kept = filtered_intervals(fibrillation)
    assert kept.std() > 0.6 * fibrillation.std()
    assert (TOKENIZER.encode(rhythm_lead(fibrillation)).codes[20:, 4] > 10).all()


def test_the_signal_is_never_read() -> None:
    class Unread(Lead):
        def __getattribute__(self, name: str) -> object:
            assert name != "signal_mv", "the rhythm tokenizer read the signal"
            return super().__getattribute__(name)

    lead = heart_lead(20)
    tokens = TOKENIZER.encode(Unread(lead.annotations))
    assert tokens.num_tokens == 20 and np.isnan(tokens.scale_mv).all()
    assert np.array_equal(tokens.beat_class, lead.annotations.beat_classes())
    assert not TOKENIZER.needs_signal and TOKENIZER.causal


def test_waveforms_are_compared_on_demand_and_where_there_is_a_signal() -> None:
    lead = heart_lead(40)
    for tokenizer in (RhythmTokenizer(waveforms=True), RhythmTokenizer(waveforms=True, causal_only=True)):
        names = [facet.name for facet in tokenizer.facets]
        codes = tokenizer.encode(lead).codes
        assert np.array_equal(codes[:, :5], TOKENIZER.encode(lead).codes)
        of_qrs, usual = codes[:, names.index("qrs_correlation")], ~is_ventricular(np.arange(40))
        assert of_qrs[20:][usual[20:]].min() > of_qrs[20:][~usual[20:]].max()
        silent = Lead(lead.annotations)
        assert not tokenizer.encode(silent).codes[:, 5:].any()
        assert tokenizer.reads_signal and not tokenizer.needs_signal and tokenizer.causal == tokenizer.causal_only
    causal = RhythmTokenizer(waveforms=True, causal_only=True)
    first = replace(lead.annotations, sample=lead.annotations.sample[:25], symbol=lead.annotations.symbol[:25])
    whole = causal.encode(lead).codes
    assert np.array_equal(causal.encode(Lead(first, lead.signal_mv)).codes, whole[:25])


def test_one_beat_and_no_beat() -> None:
    lead = rhythm_lead(np.empty(0))
    assert TOKENIZER.encode(lead).codes.tolist() == [[0] * 5]
    no_beats = replace(lead.annotations, sample=np.empty(0, np.int64), symbol=np.empty(0, "<U1"))
    assert TOKENIZER.encode(Lead(no_beats)).codes.shape == (0, 5)
