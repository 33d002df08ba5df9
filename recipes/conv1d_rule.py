"""Find the shapes that torch convolves faster: measure every pass and derive `conv1d/rule.yaml`.

    python -m recipes.conv1d_rule --threads 1

Layers of ECG networks and strided, dilated and grouped ones are measured in every pass with the kernel and with torch,
in turns; of each the fastest round counts, since whatever else runs only adds. Times are kept in
`results/conv1d_rule.json`; the rule fitted to them is printed as it stands in the package. For older processors, hold
both sides to what they had: HEARTLM_KERNELS=avx2 ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 in front, or
portable, SSE41 and default.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.convolutions import case_of, ecg_grid, fastest
from heartlm.extensions.conv1d.kernel import ConvShape
from heartlm.extensions.conv1d.rule import PASSES, Box, inside, sizes
from heartlm.kernels.library import chosen_variant
from heartlm.system.memory import keep_memory
from lab.measure import geometric_mean, pin
from lab.places import options

LEAST_GAIN, LARGEST_GAIN, MOST_BOXES = 0.8, 0.25, 4
SLOWER_WEIGHS, SIMPLICITY = 3.0, 0.02
PATH = Path(__file__).parent / "results/conv1d_rule.json"


def shapes(num: int, most_flops: float) -> list[ConvShape]:
    """Plain layers; others with strides, dilation and groups; and single recordings, where calls cost the most."""
    plain = ecg_grid(num, most_flops, seed=1)
    draws = np.random.default_rng(2)
    varied = []
    for shape in ecg_grid(num, most_flops, seed=3)[num // 2 :]:
        groups = int(draws.choice([1, 1, 2, shape.in_channels]))
        fits = shape.in_channels % groups == 0 and shape.out_channels % groups == 0
        stride, dilation = int(draws.choice([1, 2, 4])), int(draws.choice([1, 2, 4]))
        padding = dilation * (shape.kernel_size // 2)
        varied.append(replace(shape, stride=stride, dilation=dilation, padding=padding, groups=groups if fits else 1))
    single = dict.fromkeys(replace(shape, batch=1) for shape in plain[num // 2 :])
    return [*plain, *varied, *(shape for shape in single if shape not in plain)]


Entry = dict[str, Any]
"""A shape, and seconds of the kernel and of torch in each pass."""


def fitted(entries: list[Entry]) -> dict[str, list[Box]]:
    """For each pass, and for training as a whole, the boxes in which torch is faster."""
    found = [sizes(ConvShape(**entry["shape"])) for entry in entries]
    gains = {name: np.array([np.log(entry[name][0] / entry[name][1]) for entry in entries]) for name in PASSES}
    slipped = np.array([disturbed(entry) for entry in entries])
    gains["training"] = np.where(slipped, np.minimum(gains["training"], 0), gains["training"])
    return {name: boxes_around(found, gain) for name, gain in gains.items()}


def disturbed(entry: Entry) -> bool:
    """Whether a step took far longer than its passes, of either: then something else ran in every round."""
    sums = np.sum([entry[name] for name in PASSES if name != "training"], axis=0)
    return bool(np.any(np.array(entry["training"]) > 1.5 * sums + 1e-4))


def boxes_around(found: list[dict[str, float]], gain: np.ndarray) -> list[Box]:
    """Boxes that hold the most of what torch gains (the logarithm of its ratio) and the least of what it loses.

    Greedy: the best box of at most three bounds on as many sizes, until the next would gain little. What a
    shape gains weighs thrice, since nothing should be slower than it was, but is capped, so that a slip of the clock
    makes no box: it takes two shapes.
    """
    bounds, within = bounds_of(found)
    names = [name for name, _, _ in bounds]
    pairs = [(i, j) for i in range(len(bounds)) for j in range(i + 1) if not names[i] or names[i] != names[j]]
    both = np.stack([within[i] & within[j] for i, j in pairs])
    # A third bound on a size that the pair bounds already is out of the question; the empty bound is not.
    barred = np.array([[name != "" and name in (names[i], names[j]) for name in names] for i, j in pairs])
    num_bounds = np.array([[sum(names[k] != "" for k in pair) for pair in pairs]]).T + (np.array(names) != "")
    gain, boxes = np.where(gain > 0, SLOWER_WEIGHS * np.minimum(gain, LARGEST_GAIN), gain), list[Box]()
    while len(boxes) < MOST_BOXES:
        scores = np.where(barred, -math.inf, (both * gain) @ within.T.astype(float) - SIMPLICITY * num_bounds)
        pair, third = np.unravel_index(np.argmax(scores), scores.shape)
        if scores[pair, third] < LEAST_GAIN:
            break
        chosen = (*pairs[pair], int(third))
        boxes.append({name: (low, high) for name, low, high in (bounds[k] for k in chosen) if name})
        gain = np.where(both[pair] & within[third], 0, gain)
    return boxes


def bounds_of(found: list[dict[str, float]]) -> tuple[list[tuple[str, float, float]], np.ndarray]:
    """Bounds to choose from, the first of them none at all, and which shapes lie within each."""
    bounds, within = [("", 0.0, math.inf)], [np.ones(len(found), bool)]
    for name in found[0]:
        values = np.array([each[name] for each in found])
        for edge in np.unique(np.quantile(values, np.linspace(0, 1, 21), method="nearest")).tolist():
            bounds += [(name, 0.0, edge), (name, edge, math.inf)]
            within += [values <= edge, values >= edge]
    return bounds, np.stack(within)


def told(entries: list[Entry], boxes: dict[str, list[Box]]) -> None:
    """Print the boxes as they stand in the package, and what they leave."""
    found = [sizes(ConvShape(**entry["shape"])) for entry in entries]
    for name, group in boxes.items():
        print(f"  {name}:")
        for box in group:
            limits = (
                f"{size}: [{low:g}, {'.inf' if high == math.inf else f'{high:g}'}]" for size, (low, high) in box.items()
            )
            print(f"    - {{{', '.join(limits)}}}")
    for name, group in boxes.items():
        by_torch = [any(inside(each, box) for box in group) for each in found]
        ratios = [entry[name][1] / entry[name][0] for entry in entries]
        ruled = [1.0 if torch_does else ratio for torch_does, ratio in zip(by_torch, ratios, strict=True)]
        print(
            f"{name}: {geometric_mean(ratios):.2f} times torch by the kernel, {geometric_mean(ruled):.2f} by the rule; "
            f"{sum(by_torch)} of {len(ratios)} shapes are torch's; below 0.95 {sum(each < 0.95 for each in ratios)} "
            f"without the rule, {sum(each < 0.95 for each in ruled)} with it, least {min(ruled):.2f}"
        )


def main() -> None:
    parser = options(__doc__, threads=1, core=0, shapes=160, most_gflops=0.1)
    parser.add_argument("--fit-only", action="store_true", help="fit again to the times that are there")
    chosen = parser.parse_args()
    pin(*range(chosen.core, chosen.core + chosen.threads))
    torch.set_num_threads(chosen.threads)
    keep_memory()
    if chosen.fit_only:
        for title, entries in json.loads(PATH.read_text()).items():
            print(title)
            told(entries, fitted(entries))
        return
    entries = []
    for shape in shapes(chosen.shapes, 1e9 * chosen.most_gflops):
        times = fastest(case_of(shape))
        entries.append({"shape": asdict(shape), **times})
        ratios = "  ".join(f"{name} {theirs / kernel:5.2f}" for name, (kernel, theirs) in times.items())
        print(f"{ratios}  {shape}", flush=True)
    kept = json.loads(PATH.read_text()) if PATH.exists() else {}
    kept[f"{chosen_variant()}, {chosen.threads}"] = entries
    PATH.write_text(json.dumps(kept) + "\n")
    told(entries, fitted(entries))


if __name__ == "__main__":
    main()
