"""TinyECG on real heartbeats with torch's and heartlm's convolution: scores and training time.

    python benchmarks/tiny_ecg.py FOLDER_OF_MITDB

TinyECG is trained on the labelled beats of DS1 and scored on DS2 after EC57 (de Chazal's split of patients). Both
trainings have the same initial weights and batches. Their epochs take turns on one core, so the ratio of the times
depends only on the convolution. Each seed is a separate training.
"""

from __future__ import annotations

import argparse
import copy
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench.measure import Table, pin, seconds
from bench.output import write_results
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from heartlm.ecg.recording import BEAT_CLASSES
from heartlm.evaluation.beats import score_beats
from heartlm.evaluation.bootstrap import Resampling
from heartlm.extensions.conv1d import replace_conv1d
from heartlm.extensions.federated.waveforms import WINDOW, BeatSet, beat_set, labelled_records
from heartlm.models.tiny_ecg import TinyECG
from heartlm.system.memory import keep_memory
from heartlm.tokenizers.waveform import BeatWindow

BATCH, LEARNING_RATE, SPLITS = 256, 3e-3, ("train", "test")
STUDY_WINDOW = BeatWindow(before_s=250 / 360, after_s=249 / 360, rate_hz=360.0)
"""500 samples at mitdb's rate, as the CrossScale study cut them."""


class Training:
    """One network being trained, and what its epochs took; rare classes weigh more, by the root of their rarity."""

    def __init__(self, model: nn.Module, beats: BeatSet, seed: int, num_epochs: int) -> None:
        self.model, self.seed = model, seed
        counts = np.bincount(beats.label, minlength=len(BEAT_CLASSES)).clip(min=1)
        self.weight = torch.from_numpy((counts.max() / counts) ** 0.5).float()
        self.x, self.label = torch.from_numpy(beats.waveform), torch.from_numpy(beats.label).long()
        self.optimizer = torch.optim.Adam(model.parameters(), LEARNING_RATE)
        num_steps = num_epochs * (-(-len(beats.label) // BATCH))
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, LEARNING_RATE, num_steps)
        self.epochs_s: list[float] = []

    def epoch(self) -> None:
        """See every beat once, in an order that the seed and the epoch decide."""
        self.epochs_s.append(seconds(self._epoch))

    def _epoch(self) -> None:
        self.model.train()
        for x, label in self._batches():
            loss = F.cross_entropy(self.model(x), label, self.weight)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            self.schedule.step()

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.from_numpy(np.random.default_rng((self.seed, len(self.epochs_s))).permutation(len(self.x)))
        for chosen in order.split(BATCH):
            yield self.x[chosen], self.label[chosen]


def scores_of(model: nn.Module, beats: BeatSet) -> dict[str, Any]:
    """EC57 scores on `beats`, with nothing to match: every annotated beat was looked at."""
    model.eval()
    with torch.inference_mode():
        parts = [model(x).argmax(dim=1) for x in torch.from_numpy(beats.waveform).split(4096)]
    found = torch.cat(parts).numpy().astype(np.int8)
    return score_beats(beats.label, found, beats.patient, resampling=Resampling(1))


def run(seed: int, train: BeatSet, num_epochs: int) -> dict[str, Training]:
    """Train both, epoch by epoch in turns, which of them first changing each time."""
    torch.manual_seed(seed)
    theirs = TinyECG(len(BEAT_CLASSES))
    mine = copy.deepcopy(theirs)
    assert replace_conv1d(mine, fuse_relu=True) == 2
    both = {"heartlm": Training(mine, train, seed, num_epochs), "torch": Training(theirs, train, seed, num_epochs)}
    for epoch in range(num_epochs):
        for training in list(both.values())[:: 1 if epoch % 2 else -1]:
            training.epoch()
    return both


def compare(title: str, train: BeatSet, test: BeatSet, seeds: int, num_epochs: int) -> Table:
    """A table of trainings, two rows a seed, and what they have in common."""
    columns = "seed", "convolution", "V F1", "S F1", "N F1", "accuracy", "s an epoch", "torch's time over ours"
    table = Table(
        f"{title}: {len(train.label)} beats of DS1, {len(test.label)} of DS2, {train.waveform.shape[2]} samples",
        columns,
    )
    ratios: list[float] = []
    scores: dict[str, list[dict[str, Any]]] = {"heartlm": [], "torch": []}
    for seed in range(seeds):
        both = run(seed, train, num_epochs)
        pairs = zip(both["torch"].epochs_s, both["heartlm"].epochs_s, strict=True)
        ratios.append(statistics.median(theirs / ours for theirs, ours in pairs))
        for name, training in both.items():
            found = scores_of(training.model, test)
            scores[name].append(found)
            f1 = [f"{found['per_class'][beat_class]['f1']['value']:.3f}" for beat_class in "VSN"]
            epoch_s = f"{statistics.median(training.epochs_s):.3f}"
            ratio = f"{ratios[-1]:.2f}" if name == "heartlm" else "1"
            table.add(seed, name, *f1, f"{found['accuracy']['value']:.3f}", epoch_s, ratio)
    for beat_class in "VS":
        means = {
            name: statistics.fmean(each["per_class"][beat_class]["f1"]["value"] for each in found)
            for name, found in scores.items()
        }
        ours, theirs = means.values()
        table.notes.append(f"Mean {beat_class} F1 over {seeds} seeds: {ours:.3f} with ours, {theirs:.3f} with torch's.")
    table.notes.append(f"An epoch with ours is {statistics.median(ratios):.2f} times as fast (median over seeds).")
    table.close()
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mitdb", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--core", type=int, default=0)
    chosen = parser.parse_args()
    pin(chosen.core)
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    keep_memory()
    records, _ = labelled_records([chosen.mitdb])
    tables = []
    for title, window, seeds, epochs in (
        ("Around the beat, 60 Hz", WINDOW, chosen.seeds, chosen.epochs),
        ("As long as the study's window, 360 Hz", STUDY_WINDOW, 2, max(1, chosen.epochs // 4)),
    ):
        train, test = (beat_set((each for each in records if each.split == split), window) for split in SPLITS)
        tables.append(compare(title, train, test, seeds, epochs))
    about = {"torch": torch.__version__, "batch": BATCH, "learning rate": LEARNING_RATE, "epochs": chosen.epochs}
    write_results("tiny_ecg", "TinyECG on real beats, with either convolution", tables, about)


if __name__ == "__main__":
    main()
