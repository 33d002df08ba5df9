"""Pretraining without heartlm, as the comparison: torch's own modules, a plain loop, DDP.

    get_batch ─► embeddings summed ─► nn.TransformerEncoder ─► one linear head for all facets ─► AdamW

The blocks are of heartlm's size: as many weights in attention, and 8 D² in the feed-forward part of width D.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel

from bench.peers import nanogpt
from heartlm.corpus.corpus import open_corpus
from heartlm.distributed.device import device_and_precision
from heartlm.distributed.ranks import Ranks
from heartlm.storage.atomic import write_json
from heartlm.system.cores import cpus_of, pin, share_of_cores, usable_cores
from heartlm.system.memory import keep_memory

LEARNING_RATE, BETAS, WEIGHT_DECAY, CLIP = 1e-3, (0.9, 0.95), 0.05, 1.0
MASK_SHARE = 0.3


@dataclass(frozen=True)
class Shape:
    """Of a plain model.

    Attributes:
        sizes: codes of every facet.
        depth: blocks.
        width: of the residual stream.
        heads: of attention.
        window: tokens it sees.
        causal: each token sees those before it alone; otherwise some are hidden and predicted from the rest.
    """

    sizes: tuple[int, ...]
    depth: int
    width: int
    heads: int
    window: int
    causal: bool

    @property
    def flops_per_token(self) -> float:
        """6 N + 12 L T D of training on one token, as in `training.utilization`; hidden tokens alone have heads."""
        asked = 1.0 if self.causal else MASK_SHARE
        weights = 12 * self.depth * self.width**2 + asked * self.width * sum(self.sizes)
        return 6 * weights + 12 * self.depth * self.window * self.width


class PlainModel(nn.Module):
    """A transformer of torch's own modules that predicts every facet of a token by itself."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.tokens = nn.ModuleList(nn.Embedding(size + 1, shape.width) for size in shape.sizes)
        self.places = nn.Embedding(shape.window, shape.width)
        block = nn.TransformerEncoderLayer(
            shape.width, shape.heads, 4 * shape.width, 0.0, F.gelu, batch_first=True, norm_first=True, bias=False
        )
        self.blocks = nn.TransformerEncoder(block, shape.depth, nn.LayerNorm(shape.width), enable_nested_tensor=False)
        self.head = nn.Linear(shape.width, sum(shape.sizes), bias=False)
        mask = nn.Transformer.generate_square_subsequent_mask(shape.window) if shape.causal else None
        self.register_buffer("mask", mask, persistent=False)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, codes: Tensor, target: Tensor) -> Tensor:
        """Mean loss of int64 codes and targets `[B, T, F]`."""
        asked = target[..., 0] >= 0
        if not self.shape.causal:
            asked = torch.rand(codes.shape[:2], device=codes.device) < MASK_SHARE
            sizes = torch.tensor(self.shape.sizes, device=codes.device)
            codes, target = torch.where(asked[..., None], sizes, codes), codes
        x = self.places.weight + sum(embed(codes[..., facet]) for facet, embed in enumerate(self.tokens))
        hidden = self.blocks(x, mask=self.mask, is_causal=self.shape.causal)
        logits, wanted = self.head(hidden[asked]).split(self.shape.sizes, -1), target[asked]
        losses = [F.cross_entropy(each, wanted[:, facet]) for facet, each in enumerate(logits)]
        return torch.stack(losses).mean()


def train_plainly(
    *,
    corpus: Path,
    out: Path,
    depth: int,
    width: int,
    heads: int,
    window: int,
    causal: bool,
    batch_size: int,
    steps: int,
    device: str,
    precision: str,
    threads: int,
) -> None:
    """Train on this rank, and write what every step took to `out`, `rank-N.json`.

    Args:
        corpus: folder of the tokens.
        out: output folder.
        depth: number of blocks.
        width: width of the residual stream.
        heads: number of attention heads.
        window: tokens per window.
        causal: whether to predict the next token; otherwise hidden tokens.
        batch_size: windows of this rank per step.
        steps: number of steps.
        device: cpu, cuda or auto.
        precision: fp32 or bf16 (autocast).
        threads: threads of torch on a CPU.

    Raises:
        HeartlmError: the corpus or the device does not exist.
    """
    ranks = Ranks.from_environment()
    pin(cpus_of(share_of_cores(usable_cores(), ranks.local_rank, ranks.local_world_size)))
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    keep_memory()
    where, _ = device_and_precision(device, precision, ranks.local_rank)
    opened = open_corpus(corpus)
    sizes = tuple(int(facet["size"]) for facet in opened.manifest["tokenizer"]["facets"])
    shape = Shape(sizes, depth, width, heads, window, causal)
    torch.manual_seed(0)
    model = PlainModel(shape).to(where)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    wrapped: nn.Module = model
    if ranks.world_size > 1:
        dist.init_process_group("nccl" if where.type == "cuda" else "gloo")
        wrapped = DistributedDataParallel(model, device_ids=[where.index] if where.type == "cuda" else None)
    torch.manual_seed(ranks.rank)
    taken = _steps(wrapped, opened.folder / "codes.bin", shape, batch_size, steps, where, precision == "bf16")
    about = {"num_parameters": num_parameters, "flops_per_token": shape.flops_per_token}
    write_json(out / f"rank-{ranks.rank}.json", {**about, "steps": taken})
    if ranks.world_size > 1:
        dist.destroy_process_group()


def _steps(
    model: nn.Module, codes: Path, shape: Shape, batch_size: int, steps: int, device: torch.device, bf16: bool
) -> list[dict[str, Any]]:
    """Draw, forward, backward, clip, step: nothing else. Seconds of a step's parts, its tokens and its loss."""
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, BETAS, weight_decay=WEIGHT_DECAY, fused=True)
    batches = nanogpt(codes, shape.window, batch_size, len(shape.sizes))
    settled: Callable[[], object] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    taken: list[dict[str, Any]] = []
    for _ in range(steps):
        marks_s = [time.perf_counter()]
        given, target = (each.to(device) for each in next(batches))
        marks_s.append(time.perf_counter())
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            loss = model(given, target)
        loss.backward()
        marks_s.append(time.perf_counter())
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        settled()
        marks_s.append(time.perf_counter())
        data_s, compute_s, optimizer_s = (later - earlier for earlier, later in pairwise(marks_s))
        parts = {"data_s": data_s, "compute_s": compute_s, "optimizer_s": optimizer_s}
        about = {"step_s": marks_s[-1] - marks_s[0], "num_tokens": batch_size * shape.window, "loss": float(loss)}
        taken.append(about | parts)
    return taken
