"""Simulated steps obey what any step obeys, and predictions hold what they say."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heartlm.cli.main import main
from heartlm.errors import HeartlmError
from heartlm.extensions.cluster.cells import Resources
from heartlm.extensions.scaling.allreduce import AllReduceFit
from heartlm.extensions.scaling.cell import PARTS, Measurement, StudyCell
from heartlm.extensions.scaling.grid import grid_of
from heartlm.extensions.scaling.hardware import (
    Interconnect,
    Link,
    bucket_bytes,
    known_hardware,
    link_of,
    load_hardware,
    network_of,
)
from heartlm.extensions.scaling.predict import Prediction, Predictor, scaled, validate
from heartlm.extensions.scaling.simulate import RankWork, Surroundings, simulate, typical_s
from heartlm.extensions.scaling.study import ScalingStudyConfig
from tests.conftest import Refused
from tests.test_outputs import check_refused

seconds = st.floats(1e-4, 1.0)
jitters = st.lists(st.floats(0.5, 2.0), min_size=1, max_size=6).map(lambda each: list(np.array(each) / np.mean(each)))


@st.composite
def works(draw: st.DrawFn) -> RankWork:
    sizes = draw(st.lists(st.floats(1e3, 1e7), min_size=1, max_size=6))
    return RankWork(
        forward_s=draw(seconds),
        backward_s=draw(seconds),
        optimizer_s=draw(seconds),
        data_s=draw(seconds),
        other_s=draw(seconds),
        micro_batches=draw(st.integers(1, 3)),
        bucket_bytes=sizes,
    )


@st.composite
def surroundings(draw: st.DrawFn) -> Surroundings:
    nodes = draw(st.integers(1, 3))
    link = st.builds(Link, bytes_per_s=st.floats(1e6, 1e10), latency_s=st.floats(0, 1e-2))
    return Surroundings(
        ranks=nodes * draw(st.integers(1, 3)),
        nodes=nodes,
        network=Interconnect(draw(link), draw(link)),
        slowdown=draw(st.floats(1.0, 1.5)),
        core_share=draw(st.floats(0, 1)),
        jitter=draw(jitters),
    )


@given(works(), surroundings())
def test_parts_add_up_to_the_step(work: RankWork, around: Surroundings):
    one = simulate(work, around)
    assert sum(one.typical_part_s().values()) == pytest.approx(typical_s(one.step_s))
    assert min(map(min, one.parts_s.values())) >= -1e-9


@given(works(), surroundings())
def test_a_step_takes_no_less_than_its_computing(work: RankWork, around: Surroundings):
    one = simulate(work, around)
    assert one.step_s.mean() >= work.alone_s * around.slowdown * np.mean(around.jitter) - 1e-9


@given(works(), jitters)
def test_one_rank_takes_what_was_measured(work: RankWork, jitter: list[float]):
    one = simulate(work, Surroundings(jitter=jitter))
    assert one.step_s.mean() == pytest.approx(work.alone_s)
    assert sorted(one.step_s) == pytest.approx(sorted(work.alone_s * np.array(jitter)))


@given(works(), surroundings(), st.floats(1, 20))
def test_a_slower_network_is_never_better(work: RankWork, around: Surroundings, factor: float):
    slower = replace(around, network=around.network.slowed(factor))
    assert simulate(work, slower).step_s.mean() >= simulate(work, around).step_s.mean() - 1e-9


def test_the_slowest_of_many_ranks_is_slower_than_the_slowest_of_two():
    work, jitter = RankWork(0.1, 0.2, bucket_bytes=[1.0]), list(np.linspace(0.8, 1.2, 33))
    taken = [
        simulate(work, Surroundings(ranks, network=Interconnect(Link(1e12)), jitter=jitter)).step_s.mean()
        for ranks in (1, 2, 16)
    ]
    assert taken[0] == pytest.approx(0.3) and taken[0] < taken[1] < taken[2] <= 0.3 * 1.2 + 1e-9
    assert taken[1] == pytest.approx(0.3 * (1 + 0.4 / 6), rel=0.02)  # mean of the larger of two uniform draws


def test_a_bucket_begins_when_ready_and_when_the_one_before_is_through():
    """Two buckets of half the gradients: ready at 2 and 3 s, 1.5 s each, so the last is through at 5 s."""
    network = Interconnect(Link(1.0, 0.0))
    work = RankWork(1.0, 2.0, optimizer_s=0.5, bucket_bytes=[1.5, 1.5])
    around = Surroundings(2, network=network)
    one = simulate(work, around)
    tail_s = network.all_reduce_s(64, 2)
    assert one.step_s.mean() == pytest.approx(5.0 + tail_s + 0.5)
    assert one.typical_part_s()["exposed_communication"] == pytest.approx(2.0 + tail_s)
    shared = simulate(work, replace(around, core_share=0.5))  # the second bucket is ready at 3.75 s, the first through
    assert shared.step_s.mean() == pytest.approx(5.25 + tail_s + 0.5)


def test_ranks_that_add_up_by_node_cross_the_slow_link_once():
    network = Interconnect(within=Link(1e9), between=Link(1e6))
    flat, by_node = (network.all_reduce_s(1e6, 8, 2, by_node=by_node) for by_node in (False, True))
    assert by_node == pytest.approx(2 * network.all_reduce_s(1e6, 4) + network.all_reduce_s(1e6, 2, 2))
    assert by_node < flat
    assert network.all_reduce_s(1e6, 2, 2, by_node=True) == network.all_reduce_s(1e6, 2, 2)


def test_the_fit_comes_back_and_grows_by_the_formulas():
    fit = AllReduceFit(3e-4, 1e9, 2, "gloo", ((1024, 3e-4), (1 << 20, 1.35e-3)))
    network = Interconnect(link_of(fit), Link(1e9, 1e-3))
    for size in (0, 1e3, 1e7):
        assert network.all_reduce_s(size, 2) == pytest.approx(fit.time_s(size))
    assert network.all_reduce_s(1e9, 4) == pytest.approx(6 * (1.5e-4 + 0.25), rel=1e-9)
    assert network.all_reduce_s(1e9, 4, 2) > network.all_reduce_s(1e9, 4)
    assert network.all_reduce_s(1e9, 1) == 0


@given(st.floats(1, 1e9), st.floats(0.1, 100))
def test_buckets_hold_all_gradients(num_bytes: float, cap_mb: float):
    sizes = bucket_bytes(num_bytes, cap_mb)
    assert sum(sizes) == pytest.approx(num_bytes) and max(sizes) <= cap_mb * 2**20


# --- predictions from measurements ----------------------------------------------------------------------------------


def measurement(cell: StudyCell, compute_s: float, repeat: int = 0, **other: Any) -> Measurement:
    """A training of `cell` whose every step is alike, of 1 M parameters."""
    parts = dict.fromkeys(PARTS, 0.0) | {"compute": compute_s, "optimizer": 0.01} | other.pop("part_s", {})
    step_s = sum(parts.values())
    rate = cell.tokens_per_step / step_s
    known: dict[str, Any] = {"num_parameters": 1_000_000, "step_s": [step_s] * 8, "tokens_per_s": rate}
    return Measurement(cell=cell, repeat=repeat, part_s=parts, **known | other)


ONE = StudyCell("pretrain", "mitdb", 128, global_batch=32)
LINK = Interconnect(Link(1e9, 1e-4))


def test_a_batch_that_was_measured_costs_what_was_measured():
    """Half a batch costs 0.06 s and not 0.05, so two ranks of it take that, the optimiser and the sums."""
    half = replace(ONE, global_batch=16)
    known = [measurement(ONE, 0.1), measurement(half, 0.06)]
    one = Predictor(known, LINK).predict(scaled(ONE, 2, 1, "strong"))
    sums_s = LINK.all_reduce_s(4e6, 2) + LINK.all_reduce_s(64, 2)
    assert one.step_s == pytest.approx(0.06 + 0.01 + sums_s)
    assert sum(one.part_s.values()) == pytest.approx(one.step_s)
    assert one.speedup == pytest.approx(0.11 / one.step_s) and one.efficiency == pytest.approx(one.speedup / 2)
    assert one.bottleneck == "small batches"
    assert not [text for text in one.warnings if "not measured at" in text]
    alone = Predictor(known, LINK).predict(ONE)
    assert (alone.step_s, alone.speedup) == (pytest.approx(0.11), pytest.approx(1.0))


def test_a_batch_that_was_not_measured_widens_the_interval_and_is_told():
    one = Predictor([measurement(ONE, 0.1)], LINK).predict(scaled(ONE, 2, 1, "strong"))
    assert one.part_s["compute"] == pytest.approx(0.05)
    assert one.low_s <= one.step_s < 0.07 and one.high_s >= 0.11
    assert any("taken as proportional" in text for text in one.warnings)


def test_copies_side_by_side_tell_how_much_memory_is_shared():
    half = replace(ONE, global_batch=16)
    known = [measurement(ONE, 0.1), measurement(half, 0.05), measurement(replace(ONE, copies=2), 0.13)]
    one = Predictor(known, LINK).predict(scaled(ONE, 2, 1, "strong"))
    assert one.part_s["compute"] == pytest.approx(0.065) and one.bottleneck == "shared memory"
    assert one.low_s < 0.07 < one.high_s
    alike = [*known, measurement(replace(half, copies=2), 0.055)]
    assert Predictor(alike, LINK).predict(one.cell).part_s["compute"] == pytest.approx(0.055)
    without = Predictor(known[:2], LINK).predict(scaled(ONE, 2, 1, "strong"))
    assert any("side by side were not measured" in text for text in without.warnings)


def test_repeats_that_differ_widen_the_interval():
    def predictor(*factors: float) -> Prediction:
        half = replace(ONE, global_batch=16)
        known = [measurement(cell, 0.1 * factor, i) for cell in (ONE, half) for i, factor in enumerate(factors)]
        return Predictor(known, LINK).predict(scaled(ONE, 2, 1, "weak"))

    alike, apart = predictor(1.0, 1.001, 0.999), predictor(1.0, 1.1, 0.9)
    assert alike.low_s < alike.step_s < alike.high_s
    assert apart.high_s - apart.low_s > 10 * (alike.high_s - alike.low_s) / 2 > 0


def test_a_step_that_the_machine_held_up_does_not_count():
    held = replace(measurement(ONE, 0.1 * 5.77 / 8 / 0.11), step_s=[0.11] * 7 + [5.0])
    one = Predictor([held], LINK).predict(ONE)
    assert one.step_s == pytest.approx(0.11, rel=0.15)
    usual = [measurement(ONE, 0.1, i, environment={"probe_before": 1.0, "probe_after": 0.95}) for i in range(2)]
    slow = measurement(ONE, 0.4, 2, environment={"probe_before": 0.6, "probe_after": 0.6})
    assert Predictor([*usual, slow], LINK).predict(ONE).step_s == pytest.approx(0.11)
    half = measurement(replace(ONE, global_batch=16), 0.06, environment=slow.environment)
    only = Predictor([*usual, half], LINK).predict(half.cell)  # nothing better is known of it
    assert only.step_s == pytest.approx(0.07)


def test_the_bottleneck_is_named_and_far_guesses_are_warned_of():
    known = [measurement(replace(ONE, global_batch=32), 0.1)]
    slow = Predictor(known, Interconnect(Link(1e7), Link(1e7)), most_measured=2)
    assert slow.predict(scaled(ONE, 8, 2, "weak")).bottleneck == "communication"
    far = slow.predict(scaled(ONE, 32, 2, "weak"))
    assert any("more than 8 times the 2" in text for text in far.warnings)
    assert not any("more than 8 times" in text for text in slow.predict(scaled(ONE, 16, 2, "weak")).warnings)
    fast = Interconnect(Link(1e12), Link(1e12))
    assert Predictor(known, fast).predict(scaled(ONE, 8, 1, "weak")).bottleneck == "compute"
    ragged = [replace(known[0], step_s=[0.055, 0.11, 0.11, 0.165] * 4)]
    assert Predictor(ragged, fast).predict(scaled(ONE, 8, 1, "weak")).bottleneck == "stragglers"


def test_what_is_not_known_is_refused():
    known = [measurement(ONE, 0.1)]
    with pytest.raises(HeartlmError, match="nothing is known about the connection between nodes"):
        Predictor(known, LINK).predict(scaled(ONE, 4, 2, "strong"))
    with pytest.raises(HeartlmError, match="32 windows of 128 cannot be shared by 3 ranks"):
        Predictor(known, LINK).predict(scaled(ONE, 3, 1, "strong"))
    with pytest.raises(HeartlmError, match=r"finetune mitdb 128.* one rank was not measured; measured are pretrain"):
        Predictor(known, LINK).predict(replace(ONE, stage="finetune"))
    with pytest.raises(HeartlmError, match="no good measurement of one rank"):
        Predictor([replace(known[0], failed="it did")], LINK)


def test_validation_puts_measured_beside_predicted():
    half, two = replace(ONE, global_batch=16), replace(ONE, ranks=2)
    known = [measurement(ONE, 0.1), measurement(half, 0.05)]
    expected_s = Predictor(known, LINK).predict(two).step_s
    good, bad = measurement(two, expected_s - 0.01), measurement(replace(two, bucket_cap_mb=1.0), 0.2)
    other = measurement(replace(two, window=512), 0.2)
    found = validate([*known, good, bad, other], Predictor(known, LINK))
    assert [each.predicted.cell for each in found.cells] == [two, bad.cell] and found.not_checked == [other.cell.name]
    assert found.cells[0].error == pytest.approx(0) and found.cells[0].outside == pytest.approx(0)
    assert found.cells[1].error == pytest.approx(found.cells[1].predicted.step_s / 0.21 - 1)
    assert found.cells[1].outside == pytest.approx(1 - found.cells[1].predicted.high_s / 0.21)
    assert found.median_error == pytest.approx(np.mean([abs(each.error) for each in found.cells]))
    with pytest.raises(HeartlmError, match="nothing to compare with"):
        validate(known, Predictor(known, LINK))


# --- hardware -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", known_hardware())
def test_every_shipped_fact_has_a_source_and_gives_a_network(name: str):
    hardware = load_hardware(name)
    assert all(fact.source for fact in hardware.facts.values())
    network, _, _ = network_of(None, None, hardware)
    assert network.all_reduce_s(1e9, 8, 2) > network.all_reduce_s(1e9, 4) > 0
    assert any("latency within node and between nodes is not published" in note for note in hardware.notes())


def test_what_is_no_machine_is_named(tmp_path: Path):
    (tmp_path / "here.json").write_text('{"name": "a", "description": "", "facts": {"nodes": {"value": 4}}}')
    with pytest.raises(HeartlmError, match=r"here.json: facts.nodes.source: nothing found"):
        load_hardware(str(tmp_path / "here.json"))
    with pytest.raises(HeartlmError, match="it is one of dgx-h100, dgx-h200, meluxina"):
        load_hardware("cray")


# --- commands -------------------------------------------------------------------------------------------------------


@pytest.fixture
def study(tmp_path: Path) -> Path:
    half, two = replace(ONE, global_batch=16), replace(ONE, ranks=2)
    for each in (
        measurement(ONE, 0.1),
        measurement(half, 0.05),
        measurement(two, 0.052, part_s={"exposed_communication": 0.004}),
    ):
        each.save(tmp_path / "study")
    points = ((1024, 1.1e-4), (1 << 20, 1.2e-3))
    AllReduceFit(1e-4, 1e9, 2, "gloo", points).save(tmp_path / "study" / "all_reduce.json")
    return tmp_path / "study"


def test_predictions_are_printed_and_written(
    study: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], refused: Refused
):
    out = tmp_path / "predicted.json"
    arguments = ["scale", "predict", str(study), "--ranks", "[1, 2, 4, 64]", "--tokens", "1e9", "--out", str(out)]
    assert main(arguments) == 0
    told = capfd.readouterr()
    assert "pretrain mitdb, width 128" in told.out and "node-hours" in told.out
    assert "left out: a global batch of 32 windows of 128 cannot be shared by 64 ranks" in told.err
    written = json.loads(out.read_text())["predictions"]
    assert [each["cell"]["ranks"] for each in written] == [1, 2, 4]
    assert written[0]["tokens_per_s"] == pytest.approx(32 * 128 / 0.11)
    assert "nothing left to predict" in refused("scale", "predict", study, "--ranks", "[3]")
    across = ["--ranks", "[4]", "--nodes", "[2]"]
    assert "nothing is known about the connection between nodes" in refused("scale", "predict", study, *across)
    assert main(["scale", "predict", str(study), *across, "--all-reduce-between", str(study / "all_reduce.json")]) == 0
    assert "pretrain mitdb" in capfd.readouterr().out
    meluxina = ["--scaling", "weak", "--nodes", "[1, 2]", "--hardware", "meluxina"]
    assert main(["scale", "predict", str(study), "--ranks", "[8]", *meluxina]) == 0
    told = capfd.readouterr()
    assert "latency within node and between nodes is not published" in told.out
    assert "as measured on a machine without a name, not as on NVIDIA A100-SXM4-40GB" in told.out
    assert "left out: 8 ranks on a node that has devices for 4" in told.err


def test_validation_is_printed(study: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["scale", "validate", str(study)]) == 0
    told = capsys.readouterr().out
    assert "pretrain-mitdb-w128-r2" in told and "median error" in told
    assert main(["scale", "validate", str(study / "nowhere")]) == 2


def test_a_study_measures_what_prediction_needs():
    config = ScalingStudyConfig(databases={"mitdb": "nowhere"}, ranks=[1, 2], batch_tokens=4096, prediction=True)
    cells = {(cell.ranks, cell.copies, cell.global_batch) for cell in grid_of(config, Resources(num_cores=2)).groups[0]}
    assert cells == {(1, 1, 32), (2, 1, 32), (1, 2, 32), (1, 1, 16), (1, 2, 16)}
    fewer = grid_of(replace(config, prediction=False), Resources(num_cores=2)).groups[0]
    assert {(cell.ranks, cell.copies, cell.global_batch) for cell in fewer} == {(1, 1, 32), (2, 1, 32), (1, 2, 32)}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--ranks [0]", "ranks: [0] found"),
        ("--ranks []", "ranks, nodes: nothing found"),
        ("--ranks [two]", '"ranks": Expected a whole number'),
        ("--nodes [0]", "nodes: [0] found"),
        ("--bucket-mb 0", "bucket_mb: 0.0 found"),
        ("--hardware cray", "--hardware cray: no such machine"),
        ("--all-reduce none.json", "cannot read none.json"),
    ],
)
def test_mistakes_in_a_question_are_named(study: Path, words: str, said: str, refused: Refused):
    assert said in refused("scale", "predict", study, *words.split())


@pytest.mark.parametrize("name", ["all_reduce.json", "measurements"])
def test_an_output_replaces_no_input(study: Path, name: str, refused: Refused) -> None:
    out = study / name
    out = min(out.iterdir()) if out.is_dir() else out
    for command in ("predict", "validate"):
        check_refused(study, refused, "scale", command, study, "--out", out)
    assert main(["scale", "validate", str(study), "--out", str(study / "validation.json")]) == 0
    assert main(["scale", "validate", str(study), "--out", str(study / "validation.json")]) == 0
