"""Every variant of the decoders, and the way without any, gives what a plain encoder of each format took in."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from heartlm.formats.annotation_file import decode_annotations
from heartlm.formats.wfdb_header import DECODED, MAX_WIDTH, adu_type, decode, num_bytes
from tests.kernel_references import decode_annotations_reference, decode_reference, each_variant

NUM_BITS = {"212": 12, "16": 16, "61": 16, "80": 8, "24": 24, "32": 32}

formats = st.sampled_from(sorted(DECODED))
seeds = st.integers(0, 2**32 - 1)


def encode(samples: list[int], fmt: str) -> bytes:
    """Samples as the format stores them, one at a time as signal(5) describes it."""
    if fmt == "212":
        content = b""
        for low, high in zip(samples[::2], [*samples[1::2], 0], strict=False):
            content += bytes([low & 255, (low >> 8 & 15) | (high >> 8 & 15) << 4, high & 255])
        return content if len(samples) % 2 == 0 else content[:-1]
    if fmt == "80":
        return bytes(sample + 128 for sample in samples)
    order = "big" if fmt == "61" else "little"
    return b"".join(sample.to_bytes(NUM_BITS[fmt] // 8, order, signed=True) for sample in samples)


def random_samples(seed: int, fmt: str, count: int) -> NDArray[np.int64]:
    """Any value of the format, its ends often."""
    half = 1 << NUM_BITS[fmt] - 1
    random = np.random.default_rng(seed)
    samples = random.integers(-half, half, count)
    return np.where(random.random(count) < 0.1, random.choice([-half, half - 1, 0, -1], count), samples)


@given(seeds, formats, st.integers(1, 5), st.integers(0, 90), st.integers(0, 1))
def test_adu_are_what_was_encoded(seed: int, fmt: str, width: int, num_frames: int, skip: int) -> None:
    skip = skip if fmt == "212" else 0
    samples = random_samples(seed, fmt, skip + num_frames * width)
    content = np.frombuffer(encode(samples.tolist(), fmt), np.uint8)
    assert len(content) == num_bytes(DECODED[fmt], len(samples))
    columns = np.random.default_rng(seed).integers(0, width, 3).tolist()
    expected = samples[skip:].reshape(num_frames, width).T[columns]
    for variant in chain([None], each_variant()):
        adu, sums = np.empty((3, num_frames), adu_type(fmt)), np.array([7, 0, 65535], np.uint16)
        if variant is None:
            decode_reference(content, fmt, width, columns, adu, skip, sums=sums)
        else:
            decode(content, fmt, width, columns, adu, skip, sums=sums)
        assert np.array_equal(adu, expected), variant
        assert sums.tolist() == ((expected.sum(axis=1) + np.array([7, 0, 65535])) % 65536).tolist()


@given(seeds, formats, st.integers(1, 13), st.floats(0.001, 1e5), st.floats(-1e4, 1e4), st.sampled_from([1.0, 1e-3]))
def test_physical_values_are_the_same_in_every_variant(
    seed: int, fmt: str, width: int, gain: float, baseline: float, factor: float
) -> None:
    num_frames = 333
    samples = random_samples(seed, fmt, num_frames * width)
    content = np.frombuffer(encode(samples.tolist(), fmt), np.uint8)
    columns = [width - 1, 0]
    calibration = np.array([[baseline, gain, factor], [0, -200, 1]], np.float64)
    adu = samples.reshape(num_frames, width).T[columns]
    expected = ((adu - calibration[:, :1]) / calibration[:, 1:2] * calibration[:, 2:]).astype(np.float32)
    expected[adu == -(1 << NUM_BITS[fmt] - 1)] = np.nan
    for variant in chain([None], each_variant()):
        wider = np.full((2, num_frames + 5), 9, np.float32)
        out = wider[:, 2:-3]
        if variant is None:
            decode_reference(content, fmt, width, columns, out, calibration=calibration)
        else:
            decode(content, fmt, width, columns, out, calibration=calibration)
        assert np.array_equal(out, expected, equal_nan=True), variant
        assert (wider[:, :2] == 9).all() and (wider[:, -3:] == 9).all()


@pytest.mark.parametrize("fmt", ["16", "61"])
@pytest.mark.parametrize(
    "calibration",
    [(0, 200, 1), (1024, -1000, 1), (-32768, 3, 1), (4194303, 409.5, 1), (0.5, 200, 1), (7, 204.8, 1), (7, 3, 1e-3)],
)
def test_every_16_bit_sample_is_rounded_once(fmt: str, calibration: tuple[float, float, float]) -> None:
    """In single precision, too, where the kernel divides in that."""
    adu = np.arange(-32767, 32768)
    content = np.frombuffer(encode(adu.tolist(), fmt), np.uint8)
    baseline, gain, factor = calibration
    expected = ((adu - baseline) / gain * factor).astype(np.float32)
    for variant in each_variant():
        out = np.empty((1, len(adu)), np.float32)
        decode(content, fmt, 1, [0], out, calibration=np.array([calibration], np.float64))
        assert np.array_equal(out[0], expected), variant


@pytest.mark.parametrize("fmt", sorted(DECODED))
@pytest.mark.parametrize("width", [1, 2, 12, MAX_WIDTH])
def test_many_blocks(fmt: str, width: int) -> None:
    num_frames = 20_001 // width
    samples = random_samples(5, fmt, num_frames * width)
    content = np.frombuffer(encode(samples.tolist(), fmt), np.uint8)
    for _ in each_variant():
        adu = np.empty((1, num_frames), adu_type(fmt))
        decode(content, fmt, width, [width - 1], adu)
        assert np.array_equal(adu[0], samples[width - 1 :: width])


words = st.one_of(
    st.integers(1, 65535),
    st.integers(1, 50).map(lambda code: code << 10 | 300),
    st.sampled_from([59 << 10, 60 << 10 | 3, 61 << 10, 61 << 10 | 255, 62 << 10 | 1, 63 << 10 | 5, 63 << 10, 0]),
)


@given(st.lists(words, max_size=60), st.booleans(), st.booleans())
def test_annotations_are_the_same_in_every_variant(words: list[int], ended: bool, odd: bool) -> None:
    content = np.array(words + [0] * ended, "<u2").tobytes() + b"\x01" * odd
    expected = decode_annotations_reference(content)
    for _ in each_variant():
        found = decode_annotations(content)
        if expected is None:
            assert found is None
            continue
        assert found is not None
        for name, values in expected._asdict().items():
            assert getattr(found, name).tolist() == values.tolist(), name
            assert getattr(found, name).dtype == values.dtype
