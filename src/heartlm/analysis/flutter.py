"""Detection of atrial flutter by the atrial wave between the QRS complexes.

RR intervals do not distinguish flutter with a regular ventricular rate from sinus rhythm. In flutter the atria beat
regularly, 231 to 351 times a minute. A wave of one frequency and its first harmonic therefore explains most of the
signal between the QRS complexes. In sinus rhythm it explains as much only if harmonics of P and T waves are at such a
frequency. These harmonics vary with the RR intervals, so an irregular ventricular rhythm excludes them. A regular
rhythm counts only if its rate is that of flutter with 2:1 conduction. Regular flutter with 3:1 or 4:1 conduction is not
detected.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from heartlm.ecg.filters import filtered_both_ways, resampled
from heartlm.ecg.recording import Recording

Floats = NDArray[np.float64]

RATE_HZ = 125
WINDOW_S, HOP_S = 10, 5
# A Butterworth filter from 1 to 15 Hz: scipy.signal.butter(2, (1, 15), "bandpass", fs=125, output="sos") without its
# column of ones, and scipy.signal.sosfilt_zi of it.
_BAND_PASS = np.array(
    [
        [0.08149274485180637, 0.16298548970361273, 0.08149274485180637, -1.0563033674068458, 0.39907301875705026],
        [1.0, -2.0, 1.0, -1.9298635755572144, 0.9326043650482159],
    ]
)
_AT_REST = np.array([[0.8694986224503826, -0.29802225090937295], [-0.9509913673021555, 0.9509913673021577]])
_QRS_S = 0.08, 0.10
"""Time in seconds excluded before and after each beat position."""
# Number of spectrum bins per hertz.
_BIN = 2 * WINDOW_S
# Bins of flutter frequencies: 3.85 to 5.85 Hz.
_WAVE = np.arange(77, 118)
# Terms of the signal model: a constant, the wave and its first harmonic, as complex exponentials.
_ORDER = np.arange(-2, 3)

# Leads in which flutter waves are most visible.
_ATRIAL_LEADS = "ii", "iii", "avf", "v1"

FEWEST_BEATS = 4
IRREGULAR = 0.05
"""Minimum coefficient of variation of RR intervals in an irregular rhythm."""
SHARE, REGULAR_SHARE = 0.5, 0.65
"""Minimum fraction of the signal explained by the wave, in an irregular and in a regular rhythm.

Chosen on ptb-xl (folds 1 to 8), ludb and DS1: docs/analyze.md."""
HIGHEST_MV = 0.75
"""Greatest height of an atrial wave in a lead. Flutter has at most 0.5 mV in PTB-XL (folds 1 to 8) and ludb. In a fast
rhythm the wave fits T waves too, which are higher: 1.4 mV and more in the tachycardia of record 865 of svdb."""
LONGEST_RR_S, RATIO_REACH = 0.505, 0.06
"""Maximum RR interval in seconds of a regular rhythm, and its tolerance around two periods of the wave, in periods."""


def atrial_leads(recording: Recording, leads: tuple[int, ...]) -> tuple[int, ...]:
    """Return indices of the leads for flutter detection: II, III, aVF and V1 if more than two exist, else `leads`."""
    names = [name.lower() for name in recording.lead_names]
    named = tuple(names.index(name) for name in _ATRIAL_LEADS if name in names)
    return named if len(named) > 2 else leads


def flutter(signals_mv: NDArray[np.float32], sample: NDArray[np.int64], rate_hz: float) -> tuple[Floats, Floats]:
    """Detect flutter in each second.

    Args:
        signals_mv: leads of one stretch, float32 `[num_leads, num_samples]`, NaN where invalid.
        sample: positions of the beats, int64 `[num_beats]`, ascending.
        rate_hz: sampling rate in Hz.

    Returns:
        Fraction of the signal explained by the atrial wave, in the best window of `WINDOW_S` with flutter that
        contains the second, 0 if there is none; and in the best window in which it was fitted, those with an irregular
        or a fast rhythm. Both float64 `[num_seconds]`.
    """
    num_seconds = -int(-signals_mv.shape[1] // rate_hz)
    probability, wave = np.zeros(num_seconds), np.zeros(num_seconds)
    ratio = Fraction(RATE_HZ / rate_hz).limit_denominator(1000)
    # a recording of ten seconds may lack its last sample
    longer = np.pad(resampled(np.nan_to_num(signals_mv), ratio), ((0, 0), (0, RATE_HZ)))
    even = filtered_both_ways(longer, _BAND_PASS, _AT_REST)
    beats = np.round(sample * (RATE_HZ / rate_hz)).astype(np.int64)
    between = np.ones(even.shape[1], np.bool_)
    for beat in beats.tolist():
        between[max(0, beat - round(_QRS_S[0] * RATE_HZ)) : beat + round(_QRS_S[1] * RATE_HZ)] = False
    for second in range(0, num_seconds - WINDOW_S + 1, HOP_S):
        window = slice(second * RATE_HZ, (second + WINDOW_S) * RATE_HZ)
        rr_s = np.diff(beats[(beats >= window.start) & (beats < window.stop)]) / RATE_HZ
        if len(rr_s) + 1 < FEWEST_BEATS:
            continue
        typical_s, regular = float(np.median(rr_s)), rr_s.std() < IRREGULAR * rr_s.mean()
        if regular and typical_s > LONGEST_RR_S:
            continue
        explained = wave_share(even[:, window], between[window])
        best = int(explained.argmax())
        share, is_half = explained[best], abs(typical_s * _WAVE[best] / _BIN - 2) <= RATIO_REACH
        seconds = slice(second, second + WINDOW_S)
        wave[seconds] = np.maximum(wave[seconds], share)
        if share >= (REGULAR_SHARE if regular else SHARE) and (is_half or not regular):
            probability[seconds] = np.maximum(probability[seconds], share)
    return probability, wave


def wave_share(signals: Floats, between: NDArray[np.bool_]) -> Floats:
    """Return the fraction of the signal between QRS complexes explained by a wave of each frequency.

    This is a least-squares fit of the terms `_ORDER` at the samples `between`, for all frequencies at once. The
    products of the terms are bins of the spectrum of `between`.

    Args:
        signals: leads at `RATE_HZ`, at most `WINDOW_S` long, float64 `[num_leads, num_samples]`.
        between: mask of the samples to fit, bool `[num_samples]`.

    Returns:
        Explained fraction of variance, the mean of the two best leads, float64 `[len(_WAVE)]`. A lead in which the wave
        would be higher than `HIGHEST_MV` explains nothing by it.
    """
    num_bins = _BIN * RATE_HZ
    weight = np.fft.fft(between, num_bins)
    spectra = np.fft.fft(np.where(between, signals, 0), num_bins)
    parts = _ORDER[:, None] - _ORDER
    gram = weight[_WAVE[:, None, None] * parts % num_bins]
    right = spectra[:, _WAVE[:, None] * _ORDER % num_bins]
    fitted = np.linalg.solve(gram, right[..., None])[..., 0]
    mean = np.abs(spectra[:, 0]) ** 2 / max(1, between.sum())
    explained = (fitted.conj() * right).sum(axis=-1).real - mean[:, None]
    total = (np.where(between, signals, 0) ** 2).sum(axis=1) - mean
    shares = explained / np.maximum(total, 1e-12)[:, None]
    # From crest to trough a sum of complex exponentials has at most twice the sum of their sizes.
    shares[2 * np.abs(fitted[..., _ORDER != 0]).sum(axis=-1) > HIGHEST_MV] = 0
    return np.asarray(np.sort(shares, axis=0)[-2:].mean(axis=0))
