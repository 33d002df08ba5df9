"""Training speed of one process: heartlm compared with Hugging Face Trainer and a plain loop after nanoGPT.

    python -m benchmarks.training --work FOLDER

All train on the same tokens (one facet of 128 amplitude levels, simulated patients), with the same width, depth, heads,
window, batch and precision, without padding and dropout, on the same core (or the GPU with --device cuda). A round
trains each of them for --steps steps. Tokens per second are measured over the same steps, from the one after --warm-up
to the last, so set-up and compilation do not count. On a CPU every process keeps freed memory and flushes denormal
numbers to zero, and every optimiser is fused AdamW, as in heartlm.
Causal: heartlm's model, GPT-2 under Trainer (GELU with tanh in one call, not composed), and nanoGPT's GPT and heartlm's
model under a plain loop. Masked: heartlm's model and RoBERTa under Trainer. The table lists packages that are not
installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from heartlm.corpus.corpus import Corpus, open_corpus
from heartlm.models.heart import HeartModel
from heartlm.storage.reading import read_json
from heartlm.system.memory import keep_memory
from heartlm.training.config import PretrainConfig
from heartlm.training.pretrain import pretrain
from lab.measure import Spread, Table, pin
from lab.output import write_results
from lab.places import options
from lab.steps import Steps

VOCABULARY, MASK, MASK_SHARE = 129, 128, 0.3
LEARNING_RATE, BETAS, WEIGHT_DECAY, CLIP = 1e-3, (0.9, 0.95), 0.05, 1.0


@dataclass(frozen=True)
class Shape:
    depth: int
    width: int
    heads: int
    window: int
    batch: int
    steps: int
    warm_up: int
    device: str
    bf16: bool
    compile: bool

    @property
    def timed_tokens(self) -> int:
        return (self.steps - self.warm_up) * self.window * self.batch


class Stopwatch:
    """Tokens a second after the warm-up."""

    def __init__(self, shape: Shape) -> None:
        self.shape, self.steps, self.begin = shape, 0, 0.0

    def step(self) -> None:
        self.steps += 1
        if self.steps in (self.shape.warm_up, self.shape.steps):
            if self.shape.device == "cuda":
                torch.cuda.synchronize()
            if self.steps == self.shape.warm_up:
                self.begin = time.perf_counter()
            else:
                self.end = time.perf_counter()

    def rate(self) -> float:
        return self.shape.timed_tokens / (self.end - self.begin)


def heartlm(shape: Shape, corpus: Corpus, objective: str, work: Path) -> float:
    """Our loop as a user runs it; it notes how long every step took."""
    out = work / "run"
    shutil.rmtree(out, ignore_errors=True)
    pretrain(
        PretrainConfig(
            corpus=corpus.folder,
            out=out,
            objective=objective,  # type: ignore[arg-type]
            depth=shape.depth,
            width=shape.width,
            heads=shape.heads,
            window=shape.window + (objective == "causal"),
            batch_size=shape.batch,
            steps=shape.steps,
            learning_rate=LEARNING_RATE,
            mask_share=MASK_SHARE,
            mask_span=1,
            log_every=shape.steps,
            measure=True,
            validate_every=10**6,
            checkpoint_every=10**6,
            device=shape.device,  # type: ignore[arg-type]
            precision="bf16" if shape.bf16 else "fp32",
            compile=shape.compile,
        )
    )
    taken = read_json(out / "measured" / "rank-0.json")["steps"]
    return rate_after(taken, shape)


def rate_after(taken: list[dict[str, Any]], shape: Shape) -> float:
    """Tokens a second after the warm-up, from what our loop noted of every step: the stretch that `Stopwatch` times."""
    assert len(taken) == shape.steps, f"{len(taken)} steps found, {shape.steps} expected"
    counted = taken[shape.warm_up :]
    return float(sum(step["num_tokens"] for step in counted) / sum(step["step_s"] for step in counted))


class Windows(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Windows as Trainer takes them: one item each, from random places of the memory map."""

    def __init__(self, codes: np.ndarray, shape: Shape) -> None:
        self.codes, self.width = codes, shape.window
        starts = np.random.default_rng(0).integers(0, len(codes) - shape.window, shape.batch * shape.steps)
        self.starts = starts.tolist()

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        start = self.starts[index]
        ids = torch.from_numpy(self.codes[start : start + self.width].astype(np.int64))
        return {"input_ids": ids, "labels": ids}


def masked(items: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Hide tokens of a batch behind the mask, as the collator for masked language models does."""
    ids = torch.stack([item["input_ids"] for item in items])
    hidden = torch.rand(ids.shape) < MASK_SHARE
    return {"input_ids": ids.masked_fill(hidden, MASK), "labels": ids.masked_fill(~hidden, -100)}


def trainer(shape: Shape, corpus: Corpus, objective: str, work: Path) -> float:
    """Hugging Face Trainer with GPT-2 (causal) or RoBERTa (masked) of the same shape."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    watch = Stopwatch(shape)

    on_step_end = {"on_step_end": lambda *_, **__: watch.step()}
    arguments = transformers.TrainingArguments(
        output_dir=str(work / "trainer"),
        per_device_train_batch_size=shape.batch,
        max_steps=shape.steps,
        learning_rate=LEARNING_RATE,
        weight_decay=WEIGHT_DECAY,
        max_grad_norm=CLIP,
        lr_scheduler_type="cosine",
        optim="adamw_torch_fused",
        logging_steps=shape.steps,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=shape.device == "cpu",
        bf16=shape.bf16,
        torch_compile=shape.compile,
        dataloader_num_workers=0,
    )
    model = gpt2(shape) if objective == "causal" else roberta(shape)
    transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=Windows(corpus.codes[:, 0], shape),
        data_collator=masked if objective == "masked" else None,
        callbacks=[type("Watch", (transformers.TrainerCallback,), on_step_end)()],
    ).train()
    return watch.rate()


def gpt2(shape: Shape) -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=shape.window,
        n_embd=shape.width,
        n_layer=shape.depth,
        n_head=shape.heads,
        activation_function="gelu_pytorch_tanh",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    model: nn.Module = GPT2LMHeadModel(config)
    return model


def roberta(shape: Shape) -> nn.Module:
    from transformers import RobertaConfig, RobertaForMaskedLM

    config = RobertaConfig(
        vocab_size=VOCABULARY + 1,
        pad_token_id=VOCABULARY,
        max_position_embeddings=shape.window + VOCABULARY + 1,
        hidden_size=shape.width,
        num_hidden_layers=shape.depth,
        num_attention_heads=shape.heads,
        intermediate_size=4 * shape.width,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model: nn.Module = RobertaForMaskedLM(config)
    return model


class PlainBlock(nn.Module):
    """GPT-2's block as nanoGPT writes it, without biases."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape
        q, k, v = (
            part.view(*size[:2], self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm_1(x)).split(size[2], 2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(size))
        out: Tensor = x + self.down(F.gelu(self.up(self.norm_2(x))))
        return out


class PlainGPT(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, shape.width)
        self.place = nn.Embedding(shape.window, shape.width)
        self.blocks = nn.Sequential(*(PlainBlock(shape) for _ in range(shape.depth)))
        self.norm = nn.LayerNorm(shape.width, bias=False)
        self.head = nn.Linear(shape.width, VOCABULARY, bias=False)
        self.head.weight = self.token.weight
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids: Tensor, target: Tensor) -> Tensor:
        x = self.token(ids) + self.place(torch.arange(ids.shape[1], device=ids.device))
        return F.cross_entropy(self.head(self.norm(self.blocks(x))).flatten(0, 1), target.flatten())


class OursPlainly(nn.Module):
    """Our model, asked as the plain loop asks."""

    def __init__(self, shape: Shape, corpus: Corpus) -> None:
        super().__init__()
        from heartlm.models.config import ModelConfig
        from heartlm.models.store import build_model

        config = ModelConfig((128,), shape.depth, shape.width, shape.heads, causal=True).resolve()
        self.model: HeartModel = build_model(config, [torch.from_numpy(g) for g in corpus.tokenizer().geometry()])

    def forward(self, ids: Tensor, target: Tensor) -> Tensor:
        hidden, table = self.model.hidden(ids[..., None])
        (logits,) = self.model.facet_logits(hidden.flatten(0, 1), target.flatten()[:, None], table)
        return F.cross_entropy(logits, target.flatten())


def plain_batches(codes: np.ndarray, shape: Shape) -> Iterator[tuple[Tensor, Tensor]]:
    """nanoGPT's get_batch: random places of the memory map, stacked."""
    while True:
        starts = torch.randint(len(codes) - shape.window - 1, (shape.batch,)).tolist()
        window = shape.window
        x = torch.stack([torch.from_numpy(codes[s : s + window].astype(np.int64)) for s in starts])
        y = torch.stack([torch.from_numpy(codes[s + 1 : s + 1 + window].astype(np.int64)) for s in starts])
        yield x.to(shape.device), y.to(shape.device)


def optimizer_of(model: nn.Module, captured: bool = False) -> torch.optim.Optimizer:
    settings: dict[str, Any] = {"weight_decay": WEIGHT_DECAY, "fused": True, "capturable": captured}
    return torch.optim.AdamW(model.parameters(), LEARNING_RATE, BETAS, **settings)


def plain_loop(shape: Shape, corpus: Corpus, model: nn.Module) -> float:
    """Draw, forward, backward, clip, step: nothing else."""
    model = model.to(shape.device)
    optimizer = optimizer_of(model)
    forward = torch.compile(model) if shape.compile else model
    batches, watch = plain_batches(corpus.codes[:, 0], shape), Stopwatch(shape)
    for _ in range(shape.steps):
        x, y = next(batches)
        with torch.autocast(shape.device, torch.bfloat16, enabled=shape.bf16):
            loss = forward(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        watch.step()
    return watch.rate()


def rate_of(rival: str, shape: Shape, corpus: Corpus, work: Path) -> float:
    """Tokens a second of one rival, in this process."""
    torch.manual_seed(0)
    if rival.startswith("heartlm"):
        return heartlm(shape, corpus, rival.split()[1], work)
    if rival.startswith("trainer"):
        return trainer(shape, corpus, rival.split()[1], work)
    return plain_loop(shape, corpus, OursPlainly(shape, corpus) if rival.endswith("heartlm") else PlainGPT(shape))


RIVALS: dict[str, dict[str, str]] = {
    "causal": {
        "heartlm": "heartlm causal",
        "Hugging Face Trainer, GPT-2": "trainer causal",
        "plain loop, nanoGPT's GPT": "plain gpt",
        "plain loop, heartlm's model": "plain heartlm",
    },
    "masked": {"heartlm": "heartlm masked", "Hugging Face Trainer, RoBERTa": "trainer masked"},
}


def arguments() -> argparse.Namespace:
    shape = {"depth": 4, "width": 128, "heads": 4, "window": 128, "batch": 16}
    parser = options(__doc__, "work", data="", **shape, steps=40, warm_up=10, rounds=5, core=0)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--rival", help=argparse.SUPPRESS)
    return parser.parse_args()


def in_a_process(rival: str) -> float:
    """Tokens a second of one rival, in a process of its own, so that no rival inherits another's memory or settings."""
    command = [sys.executable, "-m", "benchmarks.training"]
    done = subprocess.run([*command, *sys.argv[1:], "--rival", rival], stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def compare(title: str, rivals: dict[str, str], rounds: int) -> Table:
    """A table of rivals, each run `rounds` times, in turns."""
    table = Table(title, ("rival", "tokens/s", "heartlm is faster by", "least of the rounds", "most"))
    rates: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(rounds):
        for name, rival in rivals.items():
            rates[name].append(in_a_process(rival))
    for name, found in rates.items():
        ratios = [ours / theirs for ours, theirs in zip(rates["heartlm"], found, strict=True)]
        table.add(name, Spread.of(found), Spread.of(ratios), min(ratios), max(ratios))
    return table.close()


def main() -> None:
    chosen = arguments()
    if chosen.device == "cpu":
        pin(chosen.core)
        torch.set_num_threads(1)
        torch.set_flush_denormal(True)
        keep_memory()
    folder = chosen.work / "corpus"
    if chosen.rival is None:
        Steps(chosen.work).corpus("sample")
    sizes = (chosen.depth, chosen.width, chosen.heads, chosen.window, chosen.batch, chosen.steps, chosen.warm_up)
    shape = Shape(*sizes, chosen.device, chosen.bf16, chosen.compile)
    if chosen.rival is not None:
        print(rate_of(chosen.rival, shape, open_corpus(folder), chosen.work))
        return
    installed = importlib.util.find_spec("transformers") is not None
    tables = []
    for objective, rivals in RIVALS.items():
        present = {name: rival for name, rival in rivals.items() if installed or not rival.startswith("trainer")}
        tables.append(compare(f"{objective}: training, tokens/s", present, chosen.rounds))
        for name in rivals.keys() - present.keys():
            tables[-1].add(name, "not installed", None, None, None)
    tables[-1].notes.append(
        f"heartlm's masked model skips work: in its last block, the feed-forward part, and the heads, are computed for "
        f"hidden tokens alone ({100 * MASK_SHARE:.0f} %). RoBERTa computes them for all tokens."
    )
    packages = {name: metadata.version(name) for name in ("transformers", "accelerate") if installed}
    name = "training" if chosen.device == "cpu" else f"training-{torch.cuda.get_device_name().replace(' ', '-')}"
    write_results(name, "Training speed of one process", tables, packages | vars(shape))


if __name__ == "__main__":
    main()
