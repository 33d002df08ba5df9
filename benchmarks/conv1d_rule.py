"""Which shapes torch convolves faster: measures the passes one by one and derives `kernels/convolution_rule.py`.

    python benchmarks/conv1d_rule.py --threads 1

Layers of ECG networks and strided, dilated and grouped ones are measured in every pass with the kernel and with torch,
in turns; of each the fastest round counts, since whatever else runs only adds. Times are kept in
`results/conv1d_rule.json`; the rule fitted to them is printed as it stands in the package. For older processors, hold
both sides to what they had: HEARTLM_KERNELS=avx2 ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 in front, or
portable, SSE41 and default.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace

import numpy as np
import torch
from steps import RESULTS

from heartlm.bench.convolutions import Case, case_of, ecg_grid
from heartlm.bench.measure import pin, seconds
from heartlm.kernels.conv1d import ConvShape
from heartlm.kernels.convolution_function import conv1d
from heartlm.kernels.convolution_passes import gradients, plan
from heartlm.kernels.convolution_rule import PASSES, Choice, imposed
from heartlm.memory import keep_memory

TURN_S, ROUNDS = 4e-4, 9
KERNEL, TORCH = Choice(True, True, True), Choice(False, False, False)


def shapes(num: int, most_flops: float) -> list[ConvShape]:
    """Plain layers, and as many again with strides, dilation and groups."""
    plain = ecg_grid(num, most_flops, seed=1)
    draws = np.random.default_rng(2)
    varied = []
    for shape in ecg_grid(num, most_flops, seed=3)[num // 2 :]:
        groups = int(draws.choice([1, 1, 2, shape.in_channels]))
        fits = shape.in_channels % groups == 0 and shape.out_channels % groups == 0
        stride, dilation = int(draws.choice([1, 2, 4])), int(draws.choice([1, 2, 4]))
        padding = dilation * (shape.kernel_size // 2)
        varied.append(replace(shape, stride=stride, dilation=dilation, padding=padding, groups=groups if fits else 1))
    return [*plain, *varied]


def turns(case: Case) -> dict[str, Callable[[], object]]:
    """Each pass over a case as autograd calls it; whose it is decides the rule in force."""
    shape, x, dy = case.shape, case.x, case.dy
    weight, bias = case.layer.weight.detach(), case.layer.bias
    assert bias is not None
    bias = bias.detach()
    rest = shape.stride, shape.padding, shape.dilation, shape.groups
    work = plan(x.shape, weight.shape, bias.shape, *rest)
    assert work is not None
    return {
        "forward": lambda: conv1d(x, weight, bias, *rest),
        "input_gradient": lambda: gradients(work, x, weight, dy, (True, False, False)),
        "weight_gradient": lambda: gradients(work, x, weight, dy, (False, True, True)),
    }


def fastest(case: Case) -> dict[str, tuple[float, float]]:
    """Seconds of the kernel and of torch in each pass."""
    found: dict[str, list[list[float]]] = {name: [[], []] for name in PASSES}
    for number in range(ROUNDS + 1):
        for who, choice in enumerate((KERNEL, TORCH)):
            with imposed(choice):
                for name, turn in turns(case).items():
                    once = min(seconds(turn), seconds(turn))
                    repeats = max(1, round(TURN_S / once))
                    taken = seconds(lambda turn=turn, repeats=repeats: [turn() for _ in range(repeats)]) / repeats
                    if number:
                        found[name][who].append(taken)
    return {name: (min(kernel), min(theirs)) for name, (kernel, theirs) in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--shapes", type=int, default=160)
    parser.add_argument("--most-gflops", type=float, default=0.1)
    chosen = parser.parse_args()
    pin(*range(chosen.core, chosen.core + chosen.threads))
    torch.set_num_threads(chosen.threads)
    keep_memory()
    variant = os.environ.get("HEARTLM_KERNELS", "best")
    entries = []
    for shape in shapes(chosen.shapes, 1e9 * chosen.most_gflops):
        times = fastest(case_of(shape))
        entries.append({"shape": asdict(shape), **times})
        ratios = "  ".join(f"{name} {theirs / kernel:5.2f}" for name, (kernel, theirs) in times.items())
        print(f"{ratios}  {shape}", flush=True)
    path = RESULTS / "conv1d_rule.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    kept[f"{variant}, {chosen.threads}"] = entries
    path.write_text(json.dumps(kept) + "\n")


if __name__ == "__main__":
    main()
