"""Steps that are queued for a GPU, on a CPU: what they compute, when they are read, and what they dispatch.

The forms for GPUs are computed with operations of torch instead of the kernels for CPUs. Fake tensors hold no numbers,
so whatever depends on one raises an error.
"""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from heartlm.corpus.windows import Windows
from heartlm.errors import HeartlmError
from heartlm.kernels.draws import Stream, hide_spans
from heartlm.labels.waveform import WINDOW
from heartlm.models import fused, transformer
from heartlm.models.config import ModelConfig
from heartlm.models.heart import HeartModel
from heartlm.models.store import build_model
from heartlm.tokenizers.millivolts import MillivoltTokenizer
from heartlm.training import batches, learner, loop
from heartlm.training.bad_steps import BadSteps, DeviceCheck
from heartlm.training.batches import BatchPosition, HostBatch, LabelBatches, MakeBatch, MaskedBatches, most_hidden
from heartlm.training.checkpoint import Checkpoints
from heartlm.training.config import TrainingConfig
from heartlm.training.device_keys import DeviceKeys
from heartlm.training.feed import StepBatches
from heartlm.training.layout import BatchLayout
from heartlm.training.learner import Learner, dropout_keys
from heartlm.training.loop import train
from heartlm.training.objectives import FacetLoss, LabelLoss, LossSum
from heartlm.training.queued import QueuedSteps, _Shape
from heartlm.training.resident import ResidentCodes
from heartlm.training.waveform import WaveformLoss
from heartlm.training.waveform_batches import WaveformBatches
from tests.synthetic_corpus import SIZES, every_window, job, small_model, synthetic_corpus
from tests.test_training_curves import CLOSE, CORPUS, GOLDEN, MAKERS, MASK, curve


@pytest.fixture
def as_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queue steps, with static shapes, batched facets and no kernels of CPUs."""
    monkeypatch.setattr(learner, "QUEUED_DEVICES", {"cpu"})
    monkeypatch.setattr(fused, "_by_kernel", lambda x: False)


@pytest.mark.parametrize("objective", sorted(MAKERS))
@pytest.mark.parametrize(
    "how",
    [pytest.param({}, id="whole"), pytest.param({"accumulation": 4, "resident": True}, id="split")],
)
@pytest.mark.slow  # below, captured, in the quick tests
def test_the_losses_are_those_of_a_cpu(as_on_gpu: None, tmp_path: Path, objective: str, how: dict[str, Any]) -> None:
    found = curve(objective, tmp_path / "run", **how)
    assert found == pytest.approx(json.loads(GOLDEN.read_text())[objective], abs=CLOSE)


@pytest.mark.parametrize("is_queued", [False, True])
def test_a_line_of_metrics_counts_the_step_that_it_is_written_after(
    as_on_gpu: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_queued: bool
) -> None:
    """Two steps are the warm-up, so the third gives the first rate."""
    monkeypatch.setattr(learner, "QUEUED_DEVICES", {"cpu"} if is_queued else set())
    curve("masked", tmp_path / "run", steps=3, log_every=3)
    lines = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert [("tokens_per_s" in line, line["step"]) for line in lines] == [(True, 3)]


def test_a_run_validates_once_in_each_period_after_the_same_steps_as_on_a_cpu(
    as_on_gpu: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The last step that is done, while later ones are in flight, may be one that was validated before."""
    found = []
    for is_queued in (False, True):
        monkeypatch.setattr(learner, "QUEUED_DEVICES", {"cpu"} if is_queued else set())
        config = TrainingConfig(window=16, batch_size=4, steps=20, validate_every=6, checkpoint_every=5, device="cpu")
        config = replace(config, learning_rate=1e-2, warmup_steps=0)
        folder, loss = tmp_path / str(is_queued), FacetLoss(("count", "half"))
        work = job(CORPUS, small_model(), folder, config, make_batch=MAKERS["masked"], loss=loss)
        train(replace(work, validation=every_window(CORPUS, 16)), resume=False)
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        found.append([(line["step"], line["loss"]) for line in lines if line["split"] == "validation"])
    assert [step for step, _ in found[0]] == [6, 12, 18, 20]
    assert np.array(found[1]) == pytest.approx(np.array(found[0]), abs=CLOSE)


@pytest.mark.slow
def test_whole_runs_are_those_of_a_cpu_also_stopped_and_on_two_ranks() -> None:
    """The tests for GPUs that train, on CPUs: without the ones that compile."""
    words = [
        "-m",
        "pytest",
        "-q",
        str(Path(__file__).with_name("test_gpu.py")),
        "-k",
        "computes_what or mixed_widths or False or lost_rank",
    ]
    environment = os.environ | {"HEARTLM_GPU_REHEARSAL": "1"}
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_a_measured_run_reads_the_steps_that_were_in_flight_at_its_end(as_on_gpu: None, tmp_path: Path) -> None:
    curve("causal", tmp_path / "run", steps=12, measure=True)
    steps = json.loads((tmp_path / "run" / "measured" / "rank-0.json").read_text())["steps"]
    assert [step["loss"] for step in steps] == pytest.approx(json.loads(GOLDEN.read_text())["causal"][:12], abs=1)


# --- capture ----------------------------------------------------------------------------------------------------------


class Graph(TorchDispatchMode):
    """A CUDA graph on a CPU: repeats the operations of a step on the memory that they had; no Python runs again."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, ...]] = []
        self.is_replayed = False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert function is not torch.ops.aten._local_scalar_dense.default, "a number is read on the host"
        out = function(*args, **(kwargs or {}))
        self.operations.append((function, args, kwargs or {}, out))
        return out

    @torch.no_grad()
    def replay(self) -> None:
        is_first, self.is_replayed = not self.is_replayed, True
        for function, args, kwargs, out in () if is_first else self.operations:  # CUDA computes nothing in a capture
            for old, new in zip(tree_leaves(out), tree_leaves(function(*args, **kwargs)), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class CapturedSteps(QueuedSteps):
    """Steps captured as a `Graph`."""

    draws_keys = True

    def __init__(
        self, learner: Learner, make: MakeBatch, check: BadSteps, resident: Any, captures: bool = True
    ) -> None:
        super().__init__(learner, make, check, resident, captures=True)
        num_sites, layout = learner.model.num_dropout_sites, learner.layout
        if num_sites and self.draws_keys:
            self._device_keys = DeviceKeys(learner.config.seed, num_sites, layout.num_windows, learner.device, False)
        CapturedSteps.last = self

    def _captured(self, shape: Any) -> Graph:
        with Graph() as graph:
            self._compute(shape)
        return graph


@pytest.fixture
def as_captured(as_on_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Capture steps, and draw dropout keys in them."""
    monkeypatch.setattr(loop, "QueuedSteps", CapturedSteps)


@pytest.mark.parametrize(
    ("objective", "how"),
    [("labels", {}), *((objective, {"accumulation": 2, "resident": True}) for objective in sorted(MAKERS))],
)
def test_the_losses_of_captured_steps_are_those_of_a_cpu(
    as_captured: None, tmp_path: Path, objective: str, how: dict[str, Any]
) -> None:
    found = curve(objective, tmp_path / "run", **how)
    assert found == pytest.approx(json.loads(GOLDEN.read_text())[objective], abs=CLOSE)
    shapes = CapturedSteps.last._shapes.values()
    assert sum(shape.graph is not None for shape in shapes) >= 1
    assert sum(shape.num_runs for shape in shapes if shape.graph is not None) >= 180


def test_windows_of_mixed_widths_are_captured_once_for_each_width(
    as_captured: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make = replace(MAKERS["labels"], shortest=4)  # type: ignore[type-var]
    monkeypatch.setattr(CapturedSteps, "draws_keys", False)
    found = curve("labels", tmp_path / "captured", make_batch=make, steps=80)
    shapes = CapturedSteps.last._shapes
    widths = {shape.parts[0].labels.shape[1] for shape in shapes.values() if shape.graph is not None}
    assert widths == {4, 8, 16} and len(shapes) <= 2 * len(widths)
    monkeypatch.undo()
    assert found == pytest.approx(curve("labels", tmp_path / "cpu", make_batch=make, steps=80), abs=CLOSE)


@pytest.mark.parametrize(("num_sites", "num_windows"), [(1, 1), (3, 7), (13, 64)])
def test_the_device_draws_the_dropout_keys_of_the_host(num_sites: int, num_windows: int) -> None:
    for seed in (0, 1, 2**63 - 1, 0x123456789ABCDEF):
        draw = DeviceKeys(seed, num_sites, num_windows, torch.device("cpu"), compiles=False)
        for step in (0, 1, 2**33 + 5, 2**62):
            expected = dropout_keys(seed, step, num_sites, 0, num_windows)
            assert torch.equal(draw(torch.tensor(step)), expected)


# --- facets -----------------------------------------------------------------------------------------------------------


def random_model(sizes: tuple[int, ...], depth: int = 2) -> HeartModel:
    torch.manual_seed(1)
    config = ModelConfig(sizes, depth, 32, 2, 64).resolve()
    model = build_model(config, [torch.randn(size, 2 + size % 3) for size in sizes])
    torch.nn.init.normal_(model.embedding.free)
    return model


@pytest.mark.parametrize("sizes", [(5,), (8, 8), (11, 3, 7, 20)])
def test_both_forms_give_the_same_losses_and_gradients(sizes: tuple[int, ...]) -> None:
    torch.manual_seed(2)
    target = torch.stack([torch.randint(size, (40,)) for size in sizes], dim=1)
    target[-3:] = -1
    codes = target.clamp(min=0).view(4, 10, -1)
    results = []
    for is_batched in (False, True):
        model = random_model(sizes)
        if is_batched:
            model.batch_facets()
        hidden, table = model.hidden(codes)
        losses = model.facet_losses(hidden.flatten(0, 1), target, table)
        losses.sum().backward()
        results.append([table, losses, *(parameter.grad for parameter in model.parameters())])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


class Operations(TorchDispatchMode):
    """Counts operations that compute or copy; views, metadata and markers of the profiler launch nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.num = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        launches_nothing = function.is_view or function.namespace in ("prim", "profiler")
        self.num += not (launches_nothing or function is torch.ops.aten._unsafe_view.default)
        return function(*args, **(kwargs or {}))


class OneKernelNorm(torch.autograd.Function):
    """RMSNorm as on a GPU, a kernel forward and one backward; torch decomposes it for other devices."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:  # type: ignore[override]
        x, _ = ctx.saved_tensors
        return dy * x, dy.flatten(0, -2).sum(dim=0)


def operations_of_a_step(model: HeartModel, loss: LossSum, make: MakeBatch, part: HostBatch) -> int:
    """Operations of a queued step, its input copied; the first step, which makes the moments, is not counted."""
    model.batch_facets()
    model.batch_facets = lambda: None  # type: ignore[method-assign]  # the shapes of its tensors depend on numbers
    with FakeTensorMode(allow_non_fake_inputs=True) as fake, pytest.MonkeyPatch.context() as patch:
        for module in model.modules():
            for tensors in (module._parameters, module._buffers):
                tensors |= {name: None if x is None else fake.from_tensor(x) for name, x in tensors.items()}
        patch.setattr(learner, "gradient_norm", partial(torch.nn.utils.get_total_norm, foreach=True))  # as on a GPU
        patch.setattr(transformer, "rms_norm", OneKernelNorm.apply)
        patch.setattr(torch.nn.Module, "to", lambda self, device: self)  # swaps parameters, which fake ones refuse
        size = len(part.num_valid)
        how = {"device": torch.device("cpu"), "precision": torch.float32, "layout": BatchLayout(size)}
        queued = QueuedSteps(Learner(model, loss, TrainingConfig(batch_size=size), **how), make, BadSteps())
        inputs = replace(
            part, **{name: fake.from_tensor(x) for name, x in vars(part).items() if isinstance(x, torch.Tensor)}
        )
        step, factors = (fake.from_tensor(x) for x in (torch.tensor([0]), torch.tensor([1e-3, 8.0])))
        shape = _Shape(step, step, factors, [inputs])
        queued._compute(shape)
        with Operations() as operations:
            queued._compute(shape)
    batches._on_device.cache_clear()  # it has a fake tensor
    return operations.num


def num_operations(num_facets: int, depth: int, is_padded: bool = False) -> int:
    sizes = tuple([16] * num_facets)
    corpus = synthetic_corpus((400, 300, 7))
    codes = np.repeat(corpus.codes[:, :1], num_facets, axis=1)
    make = MaskedBatches(replace(corpus, codes=codes), np.array(sizes), 0.3, 4, seed=0)
    windows = every_window(corpus, 16)
    windows = windows[-6:] if is_padded else windows[:6]
    part = make.choose(make.draft(windows, BatchPosition(0, 0, 6)), is_static=True)
    loss = FacetLoss(tuple(map(str, range(num_facets))))
    return operations_of_a_step(random_model(sizes, depth), loss, make, part)


def test_a_step_takes_the_same_operations_for_all_facets_and_reads_no_number(as_on_gpu: None) -> None:
    """At depth 4 a step of version 0.1.0 dispatched 2,380 kernels with 32 facets (2026-11-26, H200)."""
    few, many = num_operations(8, depth=4), num_operations(32, depth=4)
    print(f"{many} operations")
    assert few == many <= 300
    assert num_operations(8, depth=4, is_padded=True) <= 320


@pytest.mark.parametrize("is_padded", [False, True])
def test_a_step_of_a_window_head_with_statistics_reads_no_number(as_on_gpu: None, is_padded: bool) -> None:
    config = ModelConfig(SIZES, depth=1, width=32, dropout=0.1).resolve()
    seconds = torch.linspace(0, 1, SIZES[0] + 1)
    model = HeartModel(config, [torch.randn(size, 2) for size in SIZES], 2, pooled=True, seconds=seconds)
    assert model.facet_heads is not None
    model.facet_heads.requires_grad_(False)
    labels = (CORPUS.beat_class > 1).astype(np.int64)
    make = LabelBatches(CORPUS, labels, MASK, True, 0.1, seed=3, num_kept=1)
    windows = every_window(CORPUS, 16)
    windows = windows[-6:] if is_padded else windows[:6]
    part = make.choose(make.draft(windows, BatchPosition(0, 0, 6)), is_static=True)
    part = replace(part, keys=dropout_keys(0, 0, model.num_dropout_sites, 0, 6))
    assert operations_of_a_step(model, LabelLoss(torch.ones(1, 2)), make, part) > 300


def test_a_step_takes_the_same_operations_for_windows_of_all_widths(as_on_gpu: None) -> None:
    labels, counts = (CORPUS.beat_class > 1).astype(np.int64), {}
    make = LabelBatches(CORPUS, labels, MASK, False, 0.1, seed=3, shortest=4)
    for step in range(12):
        model = small_model(num_classes=2, dropout=0.1, depth=4)
        model.facet_heads.requires_grad_(False)
        part = make.choose(make.draft(every_window(CORPUS, 16)[:6], BatchPosition(step, 0, 6)), is_static=True)
        assert part.labels is not None
        num_rows, width = part.labels.shape
        part = replace(part, keys=dropout_keys(0, step, model.num_dropout_sites, 0, num_rows))
        if width not in counts:
            counts[width] = operations_of_a_step(model, LabelLoss(torch.ones(1, 2)), make, part)
    assert set(counts) == {4, 8, 16} and len(set(counts.values())) == 1
    assert max(counts.values()) <= 700, "275 without dropout, which has 13 layers"


def test_long_windows_with_dropout_take_few_operations_on_a_gpu() -> None:
    """The model of 64 windows of 1,024 tokens; with slices for caches of a CPU a block took 11,397, compiled or not."""
    with torch.device("meta"), Operations() as operations:
        block = transformer.Block(ModelConfig(SIZES, depth=1, width=256, heads=8, dropout=0.1).resolve())
        x, mask = torch.empty(64, 1024, 256, requires_grad=True), torch.ones(64, 1, 1, 1024, dtype=torch.bool)
        angles, keys = transformer.rotary_angles(1024, 32, x.device), torch.zeros(3, 64, dtype=torch.int32)
        block(x, angles, mask, keys).sum().backward()
    assert operations.num <= 900


# --- the waveform task ------------------------------------------------------------------------------------------------

VOLTAGES = torch.from_numpy(MillivoltTokenizer().geometry()[0])
WAVEFORM_MAKE = WaveformBatches(CORPUS, np.empty(0, np.int64), np.empty(0, np.int64), seed=0)


def waveform_network() -> HeartModel:
    torch.manual_seed(0)
    return build_model(ModelConfig((len(VOLTAGES),), 4, 48, dropout=0.1, network="waveform").resolve(), [VOLTAGES], 5)


def waveform_part(step: int) -> HostBatch:
    torch.manual_seed(step)
    codes, one = torch.randint(400, (6, WINDOW, 1)), np.ones(6, np.int64)
    return HostBatch(codes, torch.ones(6, WINDOW, dtype=torch.bool), one * WINDOW, one, labels=torch.randint(6, (6,)))


def test_a_step_of_the_waveform_task_reads_no_number(as_on_gpu: None) -> None:
    part = replace(waveform_part(0), keys=dropout_keys(0, 0, 2, 0, 6))
    assert 100 < operations_of_a_step(waveform_network(), WaveformLoss(), WAVEFORM_MAKE, part) <= 300


def test_captured_steps_of_the_waveform_task_are_those_that_are_not(as_on_gpu: None) -> None:
    numbers = []
    for steps in (QueuedSteps, CapturedSteps):
        config = TrainingConfig(batch_size=6)
        how = {"device": torch.device("cpu"), "precision": torch.float32, "layout": BatchLayout(6)}
        queued = steps(Learner(waveform_network(), WaveformLoss(), config, **how), WAVEFORM_MAKE, BadSteps(), None)
        for step in range(10):
            part = waveform_part(step)
            part = replace(part, keys=queued.draw_keys(step, 0, 6))
            queued.take(StepBatches(step, [part], 6, 6 * WINDOW), 1e-3 * (step + 1), lambda: 6.0)
            groups = queued.learner.optimizer.param_groups
            assert not any(group["capturable"] or isinstance(group["lr"], torch.Tensor) for group in groups), "saved"
        numbers.append([number.losses["loss"] for number in queued.read()])
    assert numbers[0] == pytest.approx(numbers[1], abs=1e-6) and numbers[0][-1] != numbers[0][-2]


# --- the update -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("clip", "taken"), [(0.5, [True, True, True]), (1e9, [True] * 3), (0.5, [True, False, True])])
def test_an_update_that_reads_no_number_is_the_one_that_reads_them(clip: float, taken: list[bool]) -> None:
    """A CPU multiplies the gradients that it clips and leaves a bad step out; a queued step asks AdamW for both."""
    updated = []
    for is_queued in (False, True):
        how = {"device": torch.device("cpu"), "precision": torch.float32, "layout": BatchLayout(4)}
        one = Learner(small_model(), FacetLoss(("0",)), TrainingConfig(batch_size=4, clip=clip), **how)
        one.is_queued = is_queued
        torch.manual_seed(0)
        weights = [[each.detach().clone() for each in one.trainable]]
        for is_taken in taken:
            for each in one.trainable:
                each.grad = torch.randn_like(each) * (1.0 if is_taken else math.nan)
            one.update(2.0**-10, one.gradient_norm(), torch.tensor(is_taken))
            assert all(each.grad is None for each in one.trainable)
            weights.append([each.detach().clone() for each in one.trainable])
        changes = [not all(map(torch.equal, before, after)) for before, after in pairwise(weights)]
        assert changes == taken
        updated.append([*weights[-1], *(state["step"] for state in one.optimizer.state.values())])
    for read, unread in zip(*updated, strict=True):
        torch.testing.assert_close(read, unread, rtol=1e-6, atol=1e-7 if clip < 1 else 0)


# --- static shapes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("share", "longest", "width"), [(0.3, 4, 128), (0.3, 1, 128), (0.1, 8, 64), (0.7, 4, 512)])
def test_the_bound_of_hidden_tokens_is_kept_and_close(share: float, longest: int, width: int) -> None:
    num_windows, length = 64, np.full(64, width)
    counts = [hide_spans(share, longest, Stream(7, step, 1), length, width)[1].sum() for step in range(200)]
    bound = most_hidden(share, longest, num_windows, width)
    assert max(counts) <= bound < 1.5 * np.mean(counts)


@pytest.mark.parametrize(("step", "is_rare"), [*((step, False) for step in range(2014, 2024)), (2024, True)])
def test_the_choice_is_static_unless_more_than_the_bound_is_hidden(step: int, is_rare: bool) -> None:
    make = MaskedBatches(CORPUS, MASK, 0.3, 4, seed=0)
    draft = make.draft(Windows(np.zeros(16, np.int64), np.full(16, 128), 128), BatchPosition(step, 0, 16))
    part, bound = make.choose(draft, is_static=True), most_hidden(0.3, 4, 16, 128)
    assert part.chosen is not None and draft.hidden is not None
    assert torch.equal(part.chosen[part.chosen >= 0], draft.hidden.flatten().nonzero().squeeze(1))
    assert part.is_rare == make.finish(part.with_codes(None)).is_rare == is_rare
    assert len(part.chosen) > bound if is_rare else len(part.chosen) == bound


# --- the check --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["stop", "skip"])
@pytest.mark.parametrize("factor", [0.0, 2.0])
def test_the_device_decides_as_the_host(policy: Any, factor: float) -> None:
    drawn = random.Random(0)
    decided = set()
    for resumed in (0, 3, 20, 0, 3, 20):
        host = BadSteps(policy, factor, window=5)
        for step in range(resumed):
            host.judge(step, 1 + drawn.random(), 1.0)
        device, actions = DeviceCheck(host, torch.device("cpu")), []
        for step in range(400):
            loss = drawn.choice([1.0, 1.5, 2.2, 1.1, math.nan if drawn.random() < 0.6 else 1.0])
            norm = drawn.choice([1.0, 1.3, 2.5])
            taken = device(torch.tensor(loss, dtype=torch.float64), torch.tensor(norm, dtype=torch.float64))
            actions.append(host.judge(step, loss, norm)[0])
            assert bool(taken) == (actions[-1] == "take")
            if actions[-1] == "stop":
                break
        decided |= set(actions)
        if actions[-1] == "stop":
            assert not device(torch.tensor(1.0, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64))
    assert {"take", policy} <= decided


class Breaks(FacetLoss):
    """Is not a number in steps 9 and 10, counted from 1."""

    num_calls = 0

    def __call__(self, *arguments: Any) -> Any:
        loss, parts = super().__call__(*arguments)
        Breaks.num_calls += 1
        return loss * (math.nan if Breaks.num_calls in (9, 10) else 1), parts


def broken_run(folder: Path, policy: str) -> None:
    Breaks.num_calls = 0
    config = TrainingConfig(window=16, batch_size=4, steps=24, log_every=1, checkpoint_every=24, device="cpu")
    config = replace(config, learning_rate=1e-3, warmup_steps=0, bad_steps=policy)
    work = job(CORPUS, small_model(), folder, config, make_batch=MAKERS["masked"], loss=Breaks(("count", "half")))
    train(work, resume=False)


def test_a_bad_step_stops_the_run_before_it_though_later_steps_were_queued(as_on_gpu: None, tmp_path: Path) -> None:
    with pytest.raises(HeartlmError, match=r"^step 9: loss nan"):
        broken_run(tmp_path / "run", "stop")
    assert Breaks.num_calls > 9, "steps were queued after the bad one"
    (saved,) = Checkpoints(tmp_path / "run" / "checkpoints").complete()
    assert saved.name == "step-000000008"


def test_the_checkpoint_before_a_bad_step_is_that_of_a_cpu(
    as_on_gpu: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    weights = []
    for name, is_queued in (("queued", True), ("at once", False)):
        monkeypatch.setattr(learner, "QUEUED_DEVICES", {"cpu"} if is_queued else set())
        with pytest.raises(HeartlmError):
            broken_run(tmp_path / name, "stop")
        model = small_model(seed=5)
        optimizer = torch.optim.AdamW(
            [{"params": [p for p in model.parameters() if p.ndim >= 2]}, {"params": [model.trunk.norm.weight]}]
        )
        optimizer.param_groups[1]["params"] = [p for p in model.parameters() if p.ndim < 2]
        assert Checkpoints(tmp_path / name / "checkpoints").restore(model, optimizer).step == 8
        weights.append([*model.parameters(), *(state["exp_avg"] for state in optimizer.state.values())])
    for one, other in zip(*weights, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_skipped_steps_are_reported_and_the_run_continues(
    as_on_gpu: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken_run(tmp_path / "run", "skip")
    said = capsys.readouterr().err
    assert "step 9: loss nan" in said and "step 10: loss nan" in said
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [step for step in range(1, 25) if step not in (9, 10)]


@pytest.mark.parametrize("has_ranks", [False, True])
def test_numbers_are_read_while_later_steps_are_queued(monkeypatch: pytest.MonkeyPatch, has_ranks: bool) -> None:
    """Not with several ranks, whose devices are not equally far: each would save at another step after a bad one."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: has_ranks)
    of_steps = Learner(
        small_model(),
        FacetLoss(("count", "half")),
        TrainingConfig(batch_size=4),
        device=torch.device("cpu"),
        precision=torch.float32,
        layout=BatchLayout(4),
    )
    queued = QueuedSteps(of_steps, MAKERS["masked"], BadSteps())
    for step, event in enumerate([Event(True), Event(False), Event(False), Event(True)]):
        queued._pending.append((step, 0.1, torch.tensor([1.0, step, 1.0]), event))
    queued._names = ("loss",)
    assert [each.step for each in queued.read(queued.MAX_PENDING)] == [0] * (not has_ranks)
    assert [each.step for each in queued.read(2)] == [0, 1][not has_ranks :]
    assert [each.norm for each in queued.read()] == [2.0, 3.0]


class Event:
    """An event of CUDA, done or not."""

    def __init__(self, is_done: bool) -> None:
        self.is_done = is_done

    def query(self) -> bool:
        return self.is_done

    def synchronize(self) -> None:
        self.is_done = True


# --- resident codes ---------------------------------------------------------------------------------------------------


def test_resident_codes_are_those_of_the_corpus() -> None:
    large = replace(CORPUS, codes=(CORPUS.codes + np.uint16(65000)))
    windows = every_window(large, 16)
    resident = ResidentCodes(large, 16, torch.device("cpu"))
    codes = resident.gather(torch.from_numpy(np.stack([windows.first, windows.length], axis=1)))
    assert np.array_equal(codes.numpy(), large.codes[windows.index])
