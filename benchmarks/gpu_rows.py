"""What `benchmarks/gpu.py` measures in a process of its own: trainings with heartlm, and what bounds them.

    heartlm pretrain ─► warm-up ─► timed steps ─► profiled steps      the loop of heartlm, from the command line
    corpus on the GPU ─► windows ─► [ forward, backward, clip, AdamW ] ─► replayed      one CUDA graph: the bound
    memory map ─► pinned batch ─► forward, backward, clip, AdamW                        a plain loop

The models of the bound do heartlm's arithmetic or are nanoGPT's GPT. On a CPU there is no graph and nothing is
compiled: all of them are plain loops, to rehearse.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import heartlm
from benchmarks.training import CLIP, MASK_SHARE, OursPlainly, PlainGPT, Shape, optimizer_of, plain_batches, trainer
from heartlm.cli.main import main
from heartlm.corpus.corpus import Corpus, open_corpus
from heartlm.databases.database import open_database
from heartlm.instrumentation.measured import MeasuredSteps
from heartlm.instrumentation.utilization import peak_flops
from heartlm.storage.reading import read_json


@dataclass(frozen=True)
class Times:
    """How long and where a row is measured.

    Attributes:
        device: cuda or cpu.
        warm_up: steps before the timed ones; compilation and capture are among them.
        seconds: timed.
        profiled: steps that are profiled after the timed ones.
    """

    device: str
    warm_up: int
    seconds: float
    profiled: int


class Enough(Exception):  # noqa: N818
    """Ends a training once it has been timed."""


def settle(device: str) -> None:
    """Wait until the device has done everything."""
    if device == "cuda":
        torch.cuda.synchronize()


def peak_memory(device: str) -> int | None:
    """Return the peak memory of the GPU in bytes that torch has allocated in this process; None on a CPU."""
    return torch.cuda.max_memory_allocated() if device == "cuda" else None


# --- heartlm ----------------------------------------------------------------------------------------------------------


class Watched:
    """Times and profiles the steps of a training of heartlm, and ends it.

    The device is settled before and after the timed steps, so the rate holds with steps in flight as well.

    Args:
        times: of the row.

    Attributes:
        steps: entries of `MeasuredSteps`.
        timed: of these, the index of the first timed step and of the first step after them.
        ends_s: seconds since the start of this training at the end of the first step, of the warm-up and of the timed
            steps.
    """

    def __init__(self, times: Times) -> None:
        self.times = times
        self.begin_s = time.perf_counter()
        self.steps: list[dict[str, Any]] = []
        self.timed = (times.warm_up, 0)
        self.ends_s: list[float] = []
        kind = "CUDA" if times.device == "cuda" else "CPU"
        self.profiler: Any = torch.profiler.profile(activities=[getattr(torch.profiler.ProfilerActivity, kind)])

    def train(self, words: list[str]) -> None:
        """Call heartlm in this process.

        Raises:
            RuntimeError: the command ended before enough steps were seen.
        """
        add = MeasuredSteps.add

        def added(measured: MeasuredSteps, *arguments: Any) -> None:
            add(measured, *arguments)
            self.stepped(measured.steps)

        try:
            with mock.patch.object(MeasuredSteps, "add", added):
                status = main(words)
        except Enough:
            return
        raise RuntimeError(f"heartlm {words[0]} ended with status {status} after {len(self.steps)} steps")

    def stepped(self, steps: list[dict[str, Any]]) -> None:
        """Look at the training after a step."""
        self.steps, times, num = steps, self.times, len(steps)
        if num == 1 or num == times.warm_up:
            settle(times.device)
            self.ends_s.append(time.perf_counter() - self.begin_s)
        elif len(self.ends_s) == 2 and time.perf_counter() - self.begin_s - self.ends_s[1] >= times.seconds:
            settle(times.device)
            self.ends_s.append(time.perf_counter() - self.begin_s)
            self.timed = times.warm_up, num
            if not times.profiled:
                raise Enough
            self.profiler.start()
        elif len(self.ends_s) == 3 and num == self.timed[1] + times.profiled:
            settle(times.device)
            self.profiler.stop()
            raise Enough


def heartlm_row(words: list[str], out: Path, times: Times) -> dict[str, Any]:
    """Train with a command of heartlm, and return rate, times and use of the GPU."""
    shutil.rmtree(out, ignore_errors=True)
    watched = Watched(times)
    watched.train([*words, "--steps", "1000000", "--measure", "--out", str(out), *_on(times.device)])
    first, stop = watched.timed
    steps = watched.steps[first:stop]
    seconds = watched.ends_s[2] - watched.ends_s[1]
    rate = sum(step["num_tokens"] for step in steps) / seconds
    row: dict[str, Any] = {
        "tokens_per_s": rate,
        "steps": len(steps),
        "first_s": watched.ends_s[0],
        "warm_s": watched.ends_s[1],
        "waiting": sum(step["data_s"] for step in steps) / sum(step["step_s"] for step in steps),
        "peak_memory": peak_memory(times.device),
    }
    if times.device == "cuda":
        peak = peak_flops(torch.cuda.get_device_name(), "bf16")
        flops = read_json(out / "measured" / "rank-0.json")["flops_per_token"]
        row["of_peak"] = None if peak is None or flops is None else rate * flops / peak
    if times.profiled:
        trace = out / "trace.json"
        watched.profiler.export_chrome_trace(str(trace))
        kernels, busy = gpu_use(json.loads(trace.read_text(encoding="utf-8"))["traceEvents"])
        row |= {"kernels": kernels / times.profiled, "busy": busy}
        trace.unlink()
    return row


def gpu_use(events: list[Mapping[str, Any]]) -> tuple[int, float | None]:
    """Return the number of kernels of a trace, and the share of the time from the first to the last that the GPU works.

    Copies and fills count as work. Work of several streams at a time counts once.
    """
    work = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in work)
    busy, end = 0.0, -math.inf
    for begin, stop in spans:
        busy += max(0.0, stop - max(begin, end))
        end = max(end, stop)
    return sum(event["cat"] == "kernel" for event in work), busy / (end - spans[0][0]) if spans else None


def _on(device: str) -> list[str]:
    return ["--device", "cpu"] if device == "cpu" else []


# --- what bounds it ---------------------------------------------------------------------------------------------------


class FacetBlock(nn.Module):
    """A block of heartlm's size: RMSNorm, rotary attention, SwiGLU; the feed-forward part of some tokens if asked."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, feed = heads, -(-8 * width // (3 * 32)) * 32
        self.norm_1, self.norm_2 = nn.RMSNorm(width, 1e-5), nn.RMSNorm(width, 1e-5)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 2 * feed, bias=False), nn.Linear(feed, width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, masked: Tensor | None) -> Tensor:
        """Return `[B, T, D]`, or `[N, D]` of the masked tokens."""
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = (
            (y * cosine + torch.cat([-y.chunk(2, -1)[1], y.chunk(2, -1)[0]], -1) * sine).to(v.dtype) for y in (q, k)
        )
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        if masked is not None:
            x, y = (each.flatten(0, 1).index_select(0, masked) for each in (x, y))
        x = x + self.out(y)
        gate, up = self.up(self.norm_2(x)).chunk(2, dim=-1)
        out: Tensor = x + self.down(F.silu(gate) * up)
        return out


class FacetModel(nn.Module):
    """The arithmetic of heartlm's masked model in few kernels: facets as one gather and batched products.

    Facets of up to 64 codes and larger ones are two groups, each padded to its largest; the padding has no probability.
    Embeddings are free vectors: heartlm adds projected coordinates of the codes. With the same embeddings and weights
    the loss is that of heartlm.

    Args:
        sizes: codes of every facet.
        depth: number of blocks.
        width: width of the model.
        window: tokens per window.
    """

    offset: Tensor
    mask_codes: Tensor
    cosine: Tensor
    sine: Tensor

    def __init__(self, sizes: tuple[int, ...], depth: int, width: int, window: int) -> None:
        super().__init__()
        heads = max(1, width // 32)
        self.table = nn.Embedding(sum(sizes) + len(sizes), width)
        self.blocks = nn.ModuleList(FacetBlock(width, heads) for _ in range(depth))
        self.norm = nn.RMSNorm(width, 1e-5)
        groups = [[f for f, size in enumerate(sizes) if (size <= 64) == small] for small in (True, False)]
        self.groups = [group for group in groups if group]
        most = [max(sizes[facet] for facet in group) for group in self.groups]
        pairs = list(zip(self.groups, most, strict=True))
        self.heads = nn.ParameterList(torch.randn(len(group), width, size) * 0.02 for group, size in pairs)
        for number, (group, size) in enumerate(pairs):
            padding = torch.arange(size) >= torch.tensor([sizes[facet] for facet in group])[:, None]
            self.register_buffer(
                f"padding_{number}", torch.zeros(padding.shape).masked_fill(padding, -math.inf)[:, None]
            )
            self.register_buffer(f"facets_{number}", torch.tensor(group))
        starts = np.cumsum([0, *(size + 1 for size in sizes[:-1])])
        self.register_buffer("offset", torch.from_numpy(starts))
        self.register_buffer("mask_codes", torch.tensor(sizes))
        half = width // heads // 2
        angle = torch.arange(window)[:, None] * 10000.0 ** (-torch.arange(half) / half)
        self.register_buffer("cosine", torch.cat([angle.cos()] * 2, -1))
        self.register_buffer("sine", torch.cat([angle.sin()] * 2, -1))
        nn.init.normal_(self.table.weight, std=0.02)

    def forward(self, codes: Tensor, masked: Tensor) -> Tensor:
        """Mean loss over the facets of the masked tokens: codes int64 `[B, T, F]`, masked int64 `[N]` in `[B × T]`."""
        flat = codes.flatten(0, 1)
        target = flat[masked]  # [N, F]
        shown = flat.index_copy(0, masked, self.mask_codes.expand_as(target)).view_as(codes)
        x = self.table(shown + self.offset).sum(dim=2)
        for number, block in enumerate(self.blocks, 1):
            x = block(x, self.cosine, self.sine, masked if number == len(self.blocks) else None)
        of_facets = self.table(target + self.offset)  # [N, F, D]
        inputs = self.norm(x)[:, None] + of_facets.cumsum(dim=1) - of_facets  # the facets before each
        losses = []
        for number, head in enumerate(self.heads):
            facets = getattr(self, f"facets_{number}")
            logits = torch.bmm(inputs[:, facets].transpose(0, 1), head).float() + getattr(self, f"padding_{number}")
            losses.append(F.cross_entropy(logits.flatten(0, 1), target[:, facets].T.flatten(), reduction="sum"))
        return torch.stack(losses).sum() / target.numel()


def facets_of(corpus: Corpus) -> tuple[int, ...]:
    """Return the number of codes of every facet."""
    return tuple(int(facet["size"]) for facet in corpus.manifest["tokenizer"]["facets"])


def bound_row(model: str, way: str, corpus: Path, shape: Shape, times: Times) -> dict[str, Any]:
    """Train a model in a plain loop or a captured step, and return its rate.

    Args:
        model: `nanogpt`, `heartlm` (the model, causal, without the loop) or `facets` (heartlm's masked arithmetic).
        way: eager, compiled or graph; on a CPU all are eager.
        corpus: to train on.
        shape: sizes.
        times: of the row.
    """
    torch.manual_seed(0)
    device, opened = times.device, open_corpus(corpus)
    sizes = facets_of(opened)
    plain: dict[str, Callable[[], nn.Module]] = {
        "nanogpt": lambda: PlainGPT(shape),
        "heartlm": lambda: OursPlainly(shape, opened),
        "facets": lambda: FacetModel(sizes, shape.depth, shape.width, shape.window),
    }
    module = plain[model]().to(device)
    captured = way == "graph" and device == "cuda"
    optimizer = optimizer_of(module, captured)
    forward = torch.compile(module, dynamic=False) if way != "eager" and device == "cuda" else module

    def step(*inputs: Tensor) -> None:
        optimizer.zero_grad(set_to_none=not captured)
        with torch.autocast(device, torch.bfloat16, enabled=shape.bf16):
            loss = forward(*inputs)
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), CLIP)
        optimizer.step()

    draw = _resident(opened, shape, device, masked=model == "facets")
    if way != "graph":
        batches = _pinned(opened, shape) if device == "cuda" else plain_batches(opened.codes[:, 0], shape)
        draw = partial(next, batches)
    run: Callable[[], None] = _captured(step, draw) if captured else lambda: step(*draw())
    for _ in range(times.warm_up):
        run()
    settle(device)
    num, begin_s = 0, time.perf_counter()
    while (elapsed_s := time.perf_counter() - begin_s) < times.seconds or not num:
        for _ in range(20 if device == "cuda" else 1):
            run()
            num += 1
        settle(device)
        elapsed_s = time.perf_counter() - begin_s
    rate = num * shape.batch * shape.window / elapsed_s
    return {"tokens_per_s": rate, "steps": num, "peak_memory": peak_memory(device)}


def _captured(step: Callable[..., None], draw: Callable[[], tuple[Tensor, ...]]) -> Callable[[], None]:
    """Warm the step up on a stream of its own, capture it, and return what draws and replays."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(4):
            step(*draw())
    torch.cuda.current_stream().wait_stream(side)
    settle("cuda")
    graph, inputs = torch.cuda.CUDAGraph(), draw()
    with torch.cuda.graph(graph):
        step(*inputs)

    def replay() -> None:
        draw()
        graph.replay()

    return replay


def _resident(corpus: Corpus, shape: Shape, device: str, masked: bool) -> Callable[[], tuple[Tensor, ...]]:
    """Return what draws windows from the codes on the device into the same tensors every time.

    Masked: codes `[B, T, F]` and the masked places `[N]`. Causal: tokens `[B, T]` and their successors.
    """
    codes = torch.from_numpy(np.array(corpus.codes, np.int32)).to(device)
    batch, window, num_facets = shape.batch, shape.window, codes.shape[1]
    place = torch.arange(window + (not masked), device=device)
    ids = torch.zeros(batch, len(place), num_facets, dtype=torch.long, device=device)
    hidden = torch.arange(max(1, int(MASK_SHARE * batch * window)), device=device)

    def draw() -> tuple[Tensor, ...]:
        start = torch.randint(len(codes) - len(place), (batch, 1), device=device)
        ids.copy_(codes[start + place])
        if not masked:
            return ids[:, :-1, 0], ids[:, 1:, 0]
        hidden.copy_(torch.randperm(batch * window, device=device)[: len(hidden)])
        return ids, hidden

    return draw


def _pinned(corpus: Corpus, shape: Shape) -> Any:
    """Batches of nanoGPT's get_batch on a GPU: from pinned memory, without waiting."""
    for ids, target in plain_batches(corpus.codes[:, 0], Shape(**{**vars(shape), "device": "cpu"})):
        yield tuple(each.pin_memory().to(shape.device, non_blocking=True) for each in (ids, target))


def trainer_row(objective: str, corpus: Path, shape: Shape, work: Path) -> dict[str, Any]:
    """Train with Hugging Face Trainer."""
    return {"tokens_per_s": trainer(shape, open_corpus(corpus), objective, work)}


# --- the rest ---------------------------------------------------------------------------------------------------------


def setup(work: Path, patients: int, minutes: int, device: str) -> dict[str, Any]:
    """Simulate and tokenise what `work` lacks; return what the machine is and how long Python imports heartlm."""
    database = work / "data"
    steps: dict[Path, tuple[object, ...]] = {
        database: ("data", "simulate", database, "--patients", patients, "--minutes", minutes, "--seed", 1),
        work / "beat": ("tokenize", database, "--tokenizer-from", "foundation", "--out", work / "beat"),
        work / "beats": ("tokenize", database, "--tokenizer-from", "beats", "--out", work / "beats"),  # another one
        work / "sample": ("tokenize", database, "--tokenizer", "sample", "--out", work / "sample"),
    }
    for folder, words in steps.items():
        if not folder.is_dir() and main([str(word) for word in words]):
            raise RuntimeError(f"heartlm {words[0]} failed")
    begin_s = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import heartlm.tasks.finetune"], check=True)
    imports_s = time.perf_counter() - begin_s
    beats, samples = (open_corpus(work / kind) for kind in ("beat", "sample"))
    return {
        "card": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "imports_s": imports_s,
        "facets": len(facets_of(beats)),
        "beats": len(beats.codes),
        "samples": len(samples.codes),
    }


def foundation(corpus: Path, out: Path, depth: int, device: str) -> dict[str, Any]:
    """Make a model to fine-tune."""
    shutil.rmtree(out, ignore_errors=True)
    words = ["pretrain", "--corpus", str(corpus), "--depth", str(depth), "--steps", "1", "--out", str(out)]
    status = main([*words, "--no-compile", *_on(device)])
    if status:
        raise RuntimeError(f"heartlm pretrain ended with status {status}")
    return {}


def whole_row(words: list[str], out: Path, device: str) -> dict[str, Any]:
    """Time a whole command in a process of its own, with start and end."""
    shutil.rmtree(out, ignore_errors=True)
    begin_s = time.perf_counter()
    subprocess.run([sys.executable, "-m", "heartlm", *words, "--measure", "--out", str(out), *_on(device)], check=True)
    return {"seconds": time.perf_counter() - begin_s}


def inference_row(work: Path, device: Literal["cpu", "cuda"]) -> dict[str, Any]:
    """Return beats per second of embed, evaluate and predict on the device."""
    corpus = open_corpus(work / "beat")
    beats = open_corpus(work / "beats")
    model = heartlm.load_model(device=device)
    row: dict[str, Any] = {}

    def timed(name: str, call: Callable[[], Any], count: Callable[[Any], int]) -> None:
        call()
        settle(device)
        begin_s = time.perf_counter()
        found = call()
        settle(device)
        row[name] = count(found) / (time.perf_counter() - begin_s)

    timed("embed", lambda: model.embed(corpus), lambda found: len(found.vectors))
    config = heartlm.EvaluationConfig(split="all", baselines=False, bootstrap=2, device=device)
    os.chdir(work)  # the scores of a shipped model are written to the current folder
    timed("evaluate", lambda: heartlm.evaluate("beats", beats, config), lambda _: len(beats.codes))
    paths = [work / "data" / name for name in open_database(work / "data").record_ids[:5]]
    timed(
        "predict",
        lambda: [heartlm.annotate("beats", path, device=device).found for path in paths],
        lambda found: sum(len(each.sample) for each in found),
    )
    return row


def run_row(function: str, arguments: Mapping[str, Any], result: Path, log: Path) -> None:
    """Run a function of this module in this process and write what it returns; the end of a forked process."""
    os.setsid()  # so that it can be killed with its children
    with log.open("w") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    row = globals()[function](**arguments)
    result.write_text(json.dumps(row), encoding="utf-8")
