"""Continuation of recordings by a causal model.

    prompt (the last tokens of a recording) ─► sampled tokens ─► decoded: millivolts ─► generation.json

Beats are decoded to waveforms, placed at the R peaks given by their RR intervals, and blended where they overlap. The
signal before the seam is the recording; the signal after it is generated.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heartlm.evaluation.finetuned import RunModel
from heartlm.evaluation.scored import ScoredLead
from heartlm.models.generate import Sampling, generate
from heartlm.tokenizers.beat import BeatTokenizer
from heartlm.tokenizers.bpe import BPETokenizer
from heartlm.tokenizers.sample import GRID_HZ, SampleTokenizer
from heartlm.tokenizers.waveform import BeatWindow

Floats = NDArray[np.float64]

SHOWN_S = 4.0
"""Seconds of the recording before the seam to draw; the model reads all tokens of the prompt."""
SEAM_S = 0.2
"""Fade-out time in seconds of the step at the seam."""
FADE_S = 0.1
"""Shortest transition in seconds between two decoded beats."""


def continue_recording(writer: RunModel, prompt: ScoredLead, num_tokens: int, sampling: Sampling) -> dict[str, Any]:
    """Continue `prompt` by `num_tokens` tokens; return an entry of `generation.json`.

    `prompt_mv` and `generated_mv` are in millivolts at `rate_hz`. `time_s` of `beats` counts from the first sample of
    `prompt_mv`.
    """
    tokenizer, context = writer.tokenizer(), writer.info.window - 1  # the context length in training
    codes = generate(writer.model, prompt.tokens.codes, num_tokens, context=context, sampling=sampling)
    entry = {
        "record": prompt.name,
        "lead": prompt.lead,
        "num_prompt_tokens": prompt.tokens.num_tokens,
        "num_tokens": num_tokens,
        "sampling": vars(sampling),
    }
    if isinstance(tokenizer, BeatTokenizer):
        return entry | _decoded_beats(tokenizer, prompt, codes)
    if isinstance(tokenizer, BPETokenizer):
        levels = tokenizer.single_levels(prompt.tokens, prompt.rate_hz, prompt.open_recording().num_samples)
        decoded = tokenizer.decode_levels(codes)[:, None]
        return entry | _decoded_samples(SampleTokenizer(), replace(prompt, tokens=levels), decoded)
    assert isinstance(tokenizer, SampleTokenizer)
    return entry | _decoded_samples(tokenizer, prompt, codes)


def _decoded_samples(tokenizer: SampleTokenizer, prompt: ScoredLead, codes: NDArray[np.uint16]) -> dict[str, Any]:
    """Decode samples; the baseline is the median of the recording minus the decoded prompt in the last second."""
    tokens, rate_hz = prompt.tokens, prompt.rate_hz
    scale_mv, end = float(tokens.scale_mv[-1]), int(tokens.sample[-1])
    last = tokens.sample[-int(GRID_HZ) :]
    signal = prompt.signal_mv(int(last[0]), end + 1)
    baseline_mv = _median(signal[last - last[0]] - tokenizer.decode(tokens.codes[-len(last) :], scale_mv))
    decoded = tokenizer.decode(np.concatenate([tokens.codes[-1:], codes]), scale_mv) + baseline_mv
    num_samples = round(len(codes) / GRID_HZ * rate_hz)
    generated = np.interp(np.arange(1, num_samples + 1) / rate_hz, np.arange(len(decoded)) / GRID_HZ, decoded)
    return _drawn(prompt, end + 1, generated, np.empty(0, np.int64), np.empty(0))


def _decoded_beats(tokenizer: BeatTokenizer, prompt: ScoredLead, codes: NDArray[np.uint16]) -> dict[str, Any]:
    """Decode beats; the seam is midway from the last recorded to the first generated beat, or at its window's end."""
    tokens, rate_hz, window = prompt.tokens, prompt.rate_hz, tokenizer.window
    end, num_samples = int(tokens.sample[-1]), prompt.open_recording().num_samples
    rr_s = known_intervals(tokenizer.decode_rr_s(codes), tokenizer.decode_rr_s(tokens.codes))
    peak_s = np.concatenate([[0.0], np.cumsum(rr_s)])  # from the last recorded beat
    seam = min(end + round(min(window.after_s, rr_s[0] / 2) * rate_hz), num_samples)
    time_s = np.arange(seam - end, round((peak_s[-1] + window.after_s) * rate_hz)) / rate_hz
    waveforms = tokenizer.decode(np.concatenate([tokens.codes[-1:], codes]), float(tokens.scale_mv[-1]))
    before, after = round(window.before_s * rate_hz), round(window.after_s * rate_hz)
    # the offset that the tokenizer subtracts
    baseline_mv = _median(prompt.signal_mv(max(0, end - before), min(num_samples, end + after + 1)))
    generated = blend(waveforms, peak_s, window, time_s) + baseline_mv
    step_mv = np.nan_to_num(prompt.signal_mv(seam - 1, seam)[0] - generated[0])
    generated += step_mv * np.clip(1 - (time_s - time_s[0]) / SEAM_S, 0, 1)
    return _drawn(prompt, seam, generated, tokens.sample, end / rate_hz + peak_s[1:])


def blend(waveforms: NDArray[np.float32], peak_s: Floats, window: BeatWindow, time_s: Floats) -> Floats:
    """Place waveforms at their R peaks with smooth transitions between them.

    Between two R peaks the waveforms crossfade where their windows overlap, or over the gap between the windows, in
    which the last and first values are held. At an R peak only its own waveform contributes.

    Args:
        waveforms: waveforms on the window's grid, float32 `[num_beats, num_points]`.
        peak_s: times of the R peaks in seconds, ascending, `[num_beats]`.
        window: grid of the waveforms.
        time_s: times to evaluate in seconds, ascending, `[num_times]`.

    Returns:
        Signal at `time_s`, float64 `[num_times]`.
    """
    out: Floats = np.interp(time_s - peak_s[0], window.times_s, waveforms[0])
    for waveform, before, peak in zip(waveforms[1:], peak_s[:-1], peak_s[1:], strict=True):
        middle = (before + window.after_s + peak - window.before_s) / 2
        half = max(abs(middle - before - window.after_s), FADE_S / 2)
        begin, end = np.clip([middle - half, middle + half], before, peak)
        share = 0.5 - 0.5 * np.cos(np.pi * np.clip((time_s - begin) / (end - begin), 0, 1))
        out = (1 - share) * out + share * np.interp(time_s - peak, window.times_s, waveform)
    return out


def known_intervals(rr_s: Floats, before_s: Floats) -> Floats:
    """Replace unknown RR intervals by the median of those in the prompt, or by 1 s if none is known."""
    known = before_s[np.isfinite(before_s)]
    return np.where(np.isnan(rr_s), np.median(known) if len(known) else 1.0, rr_s)


def _drawn(
    prompt: ScoredLead,
    seam: int,
    generated: Floats,
    recorded_peak: NDArray[np.int64],
    generated_peak_s: Floats,
) -> dict[str, Any]:
    """Return the data to draw: the recording up to the sample `seam`, the generated signal, and the R peaks of both."""
    rate_hz = prompt.rate_hz
    start = max(0, seam - round(SHOWN_S * rate_hz))
    shown_s = recorded_peak[recorded_peak >= start] / rate_hz
    return {
        "rate_hz": rate_hz,
        "start_s": start / rate_hz,
        "prompt_mv": _listed(prompt.signal_mv(start, seam)),
        "generated_mv": _listed(generated),
        "beats": [
            {"time_s": round(float(peak_s) - start / rate_hz, 3), "generated": is_written}
            for peaks_s, is_written in ((shown_s, False), (generated_peak_s, True))
            for peak_s in peaks_s
        ],
    }


def _median(values: NDArray[np.floating]) -> float:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else 0.0


def _listed(values: NDArray[np.floating]) -> list[float | None]:
    """Return `values` for JSON: rounded to a thousandth, None if not finite."""
    return [round(float(value), 3) if np.isfinite(value) else None for value in values]
