"""The network that tells P, QRS and T in a lead, and the compiled loops around it.

    lead in mV ─► 250 Hz, without wander, divided by its range ─► U-Net ─► 4 classes every 8 ms ─► waves
                                                                   └─ agreement of the leads ─┘

The weights are those of `network.safetensors`, which `recipes/train_delineator.py` makes: convolutions with the
batch normalisation folded in, in the order in which c/delineate_network.c applies them.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heartlm.errors import HeartlmError
from heartlm.kernels.library import kernel, struct_fields
from heartlm.storage.reading import parse_json, refuse_irregular

Floats = NDArray[np.float32]
Layer = tuple[Floats, Floats, int]
"""Weight `[outer, inner, kernel]`, bias `[outer]` and dilation of a convolution."""

NETWORK_HZ, CELL_S = 250.0, 0.008
"""Samples per second that the network reads, and the time of each of its answers, two samples."""
CLASSES = ("none", "P", "QRS", "T")
MULTIPLE = 16
"""The network takes a number of samples that is a multiple of this: it halves the rate four times."""

NETWORK_FILE, DELINEATOR = Path(__file__).with_name("network.safetensors"), "delineator"
"""The shipped network, and its name in commands."""

_GROUP, _PHASES, _FLAT_S = 8, 256, 0.5
AGREEMENT = 0.6
"""Weight of what all leads show together against what a lead shows, chosen on the training folds."""
EDGE_AGREEMENT = 0.3
"""The same for the edges of a wave, less the share of two leads: two decide together on which waves there are, but each
has edges of its own; chosen on fold 0."""

# Cells on either side, five seconds, in which the certainty of a lead decides its weight in the mean.
_CERTAIN_CELLS = 625

# Cells of 8 ms without a wave that do not divide a wave.
_BRIDGE = 5
# Beats on either side that decide whether P waves are expected, how much that counts, and the longest time in seconds
# between a P wave and its QRS complex; chosen on one fold, and on CinC 2017 and mitdb, which have no annotated waves.
_P_BEATS, _P_STRENGTH, _P_REACH_S = 8, 2.0, 0.25

# Least sum of the probabilities of a wave's cells, and least greatest probability, of each class.
_LEAST_SUM = np.array([0, 3, 2.5, 4], np.float32)
_LEAST_TOP = np.array([0, 0.6, 0.5, 0.5], np.float32)


class _Struct(ctypes.Structure):
    """`struct delineator` of c/delineate_network.c."""

    _fields_ = struct_fields("delineator")


@dataclass(frozen=True)
class Waves:
    """Waves of one lead, in order of time.

    Attributes:
        kind: index into `CLASSES`, int64 `[num_waves]`.
        onset, peak, offset: samples of the signal, int64 `[num_waves]`.
        confidence: mean probability of the class from onset to offset, float32 `[num_waves]`.
    """

    kind: NDArray[np.int64]
    onset: NDArray[np.int64]
    peak: NDArray[np.int64]
    offset: NDArray[np.int64]
    confidence: Floats

    def __getitem__(self, chosen: NDArray[np.bool_] | NDArray[np.int64]) -> Waves:
        return Waves(*(each[chosen] for each in vars(self).values()))

    def shifted(self, by: int) -> Waves:
        """Return the waves of a signal that starts `by` samples later."""
        return Waves(self.kind, self.onset + by, self.peak + by, self.offset + by, self.confidence)

    @staticmethod
    def joined(parts: list[Waves]) -> Waves:
        """Return the waves of consecutive pieces of a signal."""
        return Waves(*(np.concatenate(each) for each in zip(*(vars(part).values() for part in parts), strict=True)))


class Network:
    """A network with the layers of c/delineate_network.c.

    Args:
        layers: convolutions in the order of the picture.
    """

    def __init__(self, layers: list[Layer]) -> None:
        self._struct, packed = _Struct(), list[Floats]()
        self._struct.num_residual = len(layers) - 11  # without the 4 layers on the way down and the 7 after them
        for number, (weight, bias, dilation) in enumerate(layers):
            outer, inner, width = weight.shape
            padded = np.zeros((-(-outer // _GROUP) * _GROUP, width * inner + 1), np.float32)
            # A group of outputs is a vector of the loop in C: [num_groups, width * inner, _GROUP], then the biases.
            padded[:outer, :-1], padded[:outer, -1] = weight.transpose(0, 2, 1).reshape(outer, -1), bias
            packed += [padded[:, :-1].reshape(-1, _GROUP, inner * width).transpose(0, 2, 1).ravel(), padded[:, -1]]
            sizes = {"inner": inner, "outer": outer, "kernel": width, "dilation": dilation}
            for name, size in sizes.items():
                getattr(self._struct, name)[number] = size
        self._weights = np.concatenate(packed)
        self._struct.weights = self._weights.ctypes.data
        self._address = ctypes.addressof(self._struct)

    def __call__(self, prepared: Floats, out: Floats | None = None) -> Floats:
        """Return the logarithms of how probable the classes are relative to the most probable one.

        Args:
            prepared: what `prepare` returns, float32 `[num_samples]`.
            out: array for the result.

        Returns:
            float32 `[4, num_samples / 2]`.
        """
        out = np.empty((len(CLASSES), len(prepared) // 2), np.float32) if out is None else out
        scratch = np.empty(kernel("delineate_network_scratch")(self._address), np.float32)
        kernel("delineate_network")(self._address, prepared, len(prepared), scratch, out)
        return out

    def answers(self, signals_mv: Floats, rate_hz: float) -> Floats:
        """Return the answers for leads in mV, `[num_leads, num_samples]`, as float32 `[num_leads, 4, num_cells]`."""
        out = np.empty((len(signals_mv), len(CLASSES), num_cells(signals_mv.shape[1], rate_hz)), np.float32)
        for signal, answer in zip(signals_mv, out, strict=True):
            self(prepare(signal, rate_hz), answer)
        return out


def read_layers(path: Path) -> list[Layer]:
    """Read the layers of a network that `recipes/train_delineator.py` wrote.

    Raises:
        HeartlmError: the file is missing, or holds no such network.
    """
    from safetensors import SafetensorError, safe_open

    refuse_irregular(path)
    try:
        with safe_open(path, "numpy") as file:
            dilations = parse_json((file.metadata() or {})["dilations"])
            numbers = range(len(dilations))
            layers = [(file.get_tensor(f"{n}.weight"), file.get_tensor(f"{n}.bias"), dilations[n]) for n in numbers]
        outer, inner, _ = zip(*(weight.shape for weight, _, _ in layers), strict=True)
        risen = outer[-7::2]  # the layers on the way up have the channels of those down, and the last one the classes
        is_chain = inner == (1, *outer[:-1]) and outer == tuple(len(bias) for _, bias, _ in layers)
        if not 11 <= len(layers) <= 16 or not is_chain or risen != (*outer[2::-1], len(CLASSES)):
            raise ValueError(f"{len(layers)} layers of {', '.join(map(str, outer))} channels")
    except (KeyError, OSError, SafetensorError, TypeError, ValueError) as error:
        raise HeartlmError(f"{path}: no network of recipes/train_delineator.py ({error}): train again") from error
    return layers


def load_network(path: Path) -> Network:
    """Read a network that `recipes/train_delineator.py` wrote; see `read_layers`."""
    return Network(read_layers(path))


@cache
def shipped_network() -> Network:
    """Return the network that comes with heartlm."""
    return load_network(NETWORK_FILE)


@lru_cache(maxsize=64)
def resampling_taps(rate_hz: float) -> Floats:
    """Return filters that move a signal to 250 Hz: for each fraction of a sample a windowed sinc.

    Args:
        rate_hz: sampling rate of the signal in Hz.

    Returns:
        float32 `[num_fractions, num_taps]`, an odd number of taps; each filter sums to one.
    """
    pass_hz = 0.45 * min(rate_hz, NETWORK_HZ)
    reach_s = 2 / pass_hz
    half = int(np.ceil(reach_s * rate_hz))
    time_s = (np.arange(-half, half + 1) - np.arange(_PHASES)[:, None] / _PHASES) / rate_hz
    window = np.where(np.abs(time_s) < reach_s, np.cos(np.pi * time_s / (2 * reach_s)) ** 2, 0)
    taps = np.sinc(2 * pass_hz * time_s) * window
    return np.asarray(taps / taps.sum(axis=1, keepdims=True), np.float32)


def num_cells(num_samples: int, rate_hz: float) -> int:
    """Return the number of cells of a signal, including those that fill a multiple of 16 samples."""
    num = int((num_samples - 1) * NETWORK_HZ / rate_hz) + 1
    return -(-num // MULTIPLE) * MULTIPLE // 2


def prepare(signal_mv: Floats, rate_hz: float) -> Floats:
    """Return a lead as the network reads it, followed by zeros up to a multiple of 16 samples.

    Args:
        signal_mv: float32 `[num_samples]`, at least one sample, NaN where invalid: lines bridge these samples.
        rate_hz: its sampling rate in Hz.

    Returns:
        float32 at 250 Hz, without baseline wander, divided by the usual range of about 20 s.
    """
    step, num = rate_hz / NETWORK_HZ, int((len(signal_mv) - 1) * NETWORK_HZ / rate_hz) + 1
    out = np.zeros(2 * num_cells(len(signal_mv), rate_hz), np.float32)
    taps, scratch = resampling_taps(rate_hz), np.empty(len(signal_mv) + 2 * num + 2, np.float32)
    signal_mv = np.ascontiguousarray(signal_mv, np.float32)
    kernel("delineate_prepare")(signal_mv, len(signal_mv), step, taps, taps.shape[1], len(taps), scratch, num, out)
    return out


def find_waves(signals_mv: Floats, rate_hz: float, network: Network | None = None) -> tuple[list[Waves], Waves]:
    """Find the waves of simultaneous leads.

    Args:
        signals_mv: float32 `[num_leads, num_samples]`, NaN where invalid.
        rate_hz: sampling rate in Hz.
        network: network to use; by default the shipped one.

    Returns:
        The waves of each lead; and those that the leads show together, with peaks in the first lead.
    """
    network, step = network or shipped_network(), rate_hz / NETWORK_HZ
    signals_mv = np.ascontiguousarray(signals_mv, np.float32)
    answers = network.answers(signals_mv, rate_hz)
    num_leads, _, cells = answers.shape
    mean, scratch = np.empty((len(CLASSES), cells), np.float32), np.empty(cells, np.float32)
    weights = np.empty((num_leads, cells), np.float32)
    for signal, answer, weight in zip(signals_mv, answers, weights, strict=True):
        kernel("delineate_usable")(signal, len(signal), step, round(_FLAT_S * rate_hz), cells, weight)
        kernel("delineate_weights")(answer, cells, _CERTAIN_CELLS, scratch, weight)
    edges, of_edges = np.empty_like(answers), EDGE_AGREEMENT * max(0.0, 1 - 2 / max(num_leads, 1))
    kernel("delineate_agree")(answers, weights, num_leads, cells, AGREEMENT, of_edges, edges, mean)
    waves_by_lead = [_waves(*each, step) for each in zip(answers, edges, signals_mv, strict=True)]
    if num_leads == 1:
        return waves_by_lead, waves_by_lead[0]
    return waves_by_lead, _waves(mean, mean.copy(), signals_mv[0], step, flat=True)


def _waves(probability: Floats, plain: Floats, signal_mv: Floats, step: float, flat: bool = False) -> Waves:
    """Find the waves of a lead twice: the second time with P waves where the beats nearby have them.

    Both times edges are those of `plain`, as an expected P wave is not wider. `probability` is changed.
    """
    cells = probability.shape[1]
    points, confidence = np.empty((cells // 2 + 1, 4), np.int64), np.empty(cells // 2 + 1, np.float32)
    reach, scratch = round(_P_REACH_S * NETWORK_HZ * step), np.empty(cells + 2, np.float32)
    for again in (False, True):
        num = kernel("delineate_waves")(
            *(probability, plain, cells, signal_mv, len(signal_mv), step, _BRIDGE, _LEAST_SUM, _LEAST_TOP),
            *(flat or not again, len(confidence), scratch, points, confidence),
        )
        if not again:
            kernel("delineate_expect")(probability, cells, points, num, step, reach, _P_BEATS, _P_STRENGTH, scratch)
    kind, onset, peak, offset = points[:num].T.copy()
    return Waves(kind, onset, peak, offset, confidence[:num].copy())
