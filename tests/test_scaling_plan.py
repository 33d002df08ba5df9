"""Plans of an allocation: feasible, no worse than the naive one, and the best there is where all can be tried."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import permutations, product
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from heartlm.cli.main import main
from heartlm.extensions.cluster.campaign.campaign import load_campaign
from heartlm.extensions.scaling.plan_file import load_plan
from heartlm.extensions.scaling.rates import training_of
from heartlm.extensions.scaling.schedule import Cluster, PlannedJob, Schedule, least_end, list_schedule, naive, plan
from heartlm.models.config import ModelConfig
from heartlm.training.config import PretrainConfig

PUBLISHED = {1: 1.0, 2: 1 / 1.6, 4: 1 / 1.9}


@st.composite
def campaigns(draw: st.DrawFn, most: int = 8, needs: bool = True) -> tuple[list[PlannedJob], Cluster]:
    cluster = Cluster(draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 4])))
    jobs: list[PlannedJob] = []
    for number in range(draw(st.integers(1, most))):
        work = draw(st.integers(1, 12))
        times = {1: float(work)}
        for gpus in (2, 4, 8):
            if cluster.fits(gpus):
                times[gpus] = times[gpus // 2] / draw(st.floats(0.9, 2.0))
        before = draw(st.lists(st.sampled_from(jobs), max_size=2, unique_by=id)) if needs and jobs else []
        jobs.append(PlannedJob(f"job{number}", times, tuple(job.name for job in before)))
    return jobs, cluster


def check(schedule: Schedule, jobs: Sequence[PlannedJob], cluster: Cluster) -> None:
    """Every job once, after those it needs, for its time, on GPUs that nobody else has then, as nodes allow."""
    placed = {each.name: each for each in schedule.placed}
    assert len(placed) == len(schedule.placed) == len(jobs)
    for job in jobs:
        own = placed[job.name]
        assert own.end - own.start == pytest.approx(job.times[len(own.gpus)])
        assert all(placed[need].end <= own.start + 1e-9 for need in job.needs)
        assert len(set(own.gpus)) == len(own.gpus)
        on_nodes = {node for node, _ in own.gpus}
        assert len(on_nodes) == max(1, len(own.gpus) // cluster.gpus_per_node)
        assert all(0 <= node < cluster.nodes and 0 <= gpu < cluster.gpus_per_node for node, gpu in own.gpus)
        for other in schedule.placed:
            together = other.start < own.end - 1e-9 and own.start < other.end - 1e-9
            assert other.name == own.name or not together or not set(own.gpus) & set(other.gpus)


def brute_force(jobs: Sequence[PlannedJob], cluster: Cluster) -> float:
    """The least end over all orders, widths and nodes, on a clock of single events; nothing shared with the package."""
    per_node, best = cluster.gpus_per_node, float("inf")
    for order in permutations(jobs):
        for widths in product(*(job.times for job in order)):
            sets = [
                [(node,) for node in range(cluster.nodes)] if width <= per_node else list(wide_sets(cluster, width))
                for width in widths
            ]
            for nodes in product(*sets):
                best = min(best, end_of(order, widths, nodes, per_node))
    return best


def wide_sets(cluster: Cluster, width: int) -> list[tuple[int, ...]]:
    num = width // cluster.gpus_per_node
    return [each for each in product(range(cluster.nodes), repeat=num) if list(each) == sorted(set(each))]


def end_of(
    order: Sequence[PlannedJob], widths: Sequence[int], nodes: Sequence[tuple[int, ...]], per_node: int
) -> float:
    held: list[tuple[float, float, int, tuple[int, ...]]] = []
    ends: dict[str, float] = {}
    for job, width, places in zip(order, widths, nodes, strict=True):
        if any(need not in ends for need in job.needs):
            return float("inf")
        time, each = job.times[width], min(width, per_node)
        start = max([0.0, *(ends[need] for need in job.needs)])
        for moment in sorted({start, *(end for _, end, _, _ in held if end >= start)}):
            clashes = [begin for begin, end, _, _ in held if begin < moment + time and end > moment]
            if all(
                sum(gpus for begin, end, gpus, there in held if node in there and begin <= point < end) + each
                <= per_node
                for node in places
                for point in {moment, *(begin for begin in clashes if begin >= moment)}
            ):
                start = moment
                break
        held.append((start, start + time, each, places))
        ends[job.name] = start + time
    return max(ends.values())


@given(campaigns())
def test_plans_can_be_done_and_are_no_worse_than_the_naive_one(campaign: tuple[list[PlannedJob], Cluster]):
    jobs, cluster = campaign
    found, reference = plan(jobs, cluster), naive(jobs, cluster)
    check(found, jobs, cluster)
    check(reference, jobs, cluster)
    assert least_end(jobs, cluster) - 1e-9 <= found.end <= reference.end + 1e-9
    cheap = plan(jobs, cluster, cheapest=True)
    check(cheap, jobs, cluster)
    assert cheap.node_time <= found.node_time + 1e-9


@given(campaigns(most=3, needs=False))
def test_independent_experiments_end_within_twice_the_least(campaign: tuple[list[PlannedJob], Cluster]):
    """On one node, where no experiment is held up by the edges of nodes, two phases keep Ludwig & Tiwari's bound."""
    jobs, cluster = campaign
    one = Cluster(1, cluster.gpus_per_node)
    jobs = [PlannedJob(job.name, {gpus: time for gpus, time in job.times.items() if one.fits(gpus)}) for job in jobs]
    assert plan(jobs, one).end <= 2 * brute_force(jobs, one) + 1e-9


def test_a_chain_may_be_longer_than_the_stack_of_python_is_deep():
    num = 3000
    jobs = [PlannedJob(f"j{n}", {1: 1.0}, (f"j{n - 1}",) if n else ()) for n in range(num)]
    assert least_end(jobs, Cluster(1, 1)) == num


def test_nodes_are_counted_whole_and_only_while_held():
    jobs = [PlannedJob("a", {1: 2.0}), PlannedJob("b", {1: 1.0}), PlannedJob("c", {2: 3.0})]
    widths = {"a": 1, "b": 1, "c": 2}
    one = list_schedule(jobs, widths, Cluster(2, 2))
    assert (one.end, one.node_time, one.gpu_time) == (3.0, 5.0, 9.0)
    first = list_schedule([jobs[2], *jobs[:2]], widths, Cluster(1, 2))
    assert (first.end, first.node_time, first.gpu_time) == (5.0, 5.0, 9.0)


def test_the_published_campaign_on_single_gpus_takes_less_than_half():
    """128 experiments of equal work: 32 rounds of 1/1.9 on whole nodes, 8 rounds of 1 on single GPUs."""
    jobs, cluster = [PlannedJob(f"{number}", PUBLISHED) for number in range(128)], Cluster(4, 4)
    reference, found = naive(jobs, cluster), plan(jobs, cluster)
    assert reference.end == pytest.approx(32 / 1.9) and reference.node_time == pytest.approx(128 / 1.9)
    assert found.end == pytest.approx(8.0) == least_end(jobs, cluster)
    assert found.node_time == pytest.approx(32.0)
    assert {len(each.gpus) for each in found.placed} == {1}


# --- plan files and the command -------------------------------------------------------------------------------------

PLAN = """
nodes: 2
gpus_per_node: 2
campaign:
  name: small
  topology: {gpus_per_node: 1, cpus_per_task: 8, time: "01:00:00"}
  grid: {window: [128, 256, 512]}
  stages:
    pretrain:
      run: {command: pretrain, corpus: corpora/all, window: "{window}", out: "runs/{window}"}
    finetune:
      run: {command: finetune, run: "{pretrain.out}", corpus: corpora/few, task: beats, out: "runs/{window}-beats"}
"""
TIMES = """
hours: {4: 2.1, 1: 4, 2: 2.5}
of:
  finetune: {1: 0.5}
  "*512": {1: 8, 2: 5}
"""


def plan_file(folder: Path, *texts: str) -> Path:
    path = folder / "plan.yaml"
    path.write_text("".join(texts))
    return path


def test_times_come_from_the_most_special_entry(tmp_path: Path):
    _, _, jobs = load_plan(plan_file(tmp_path, PLAN, TIMES))
    times = {job.name: job.times for job in jobs}
    assert times["pretrain-128"] == {1: 4.0, 2: 2.5, 4: 2.1}
    assert times["finetune-128"] == {1: 0.5} and times["pretrain-512"][2] == 5.0
    assert {job.name: job.needs for job in jobs}["finetune-256"] == ("pretrain-256",)


def test_a_plan_is_printed_and_written_as_a_campaign(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = plan_file(tmp_path, PLAN, TIMES)
    out = tmp_path / "planned.yaml"
    assert main(["plan", str(path), "--out", str(out)]) == 0
    told = capsys.readouterr().out
    assert "6 experiments on 2 nodes of 2 GPUs" in told and "naive" in told and "GPUs each" in told
    assert main(["plan", str(path), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)["plan"]
    campaign = load_campaign(out)
    for each in made["experiments"]:
        topology = campaign[each["name"]].topology
        assert topology.nodes * topology.gpus_per_node == len(each["gpus"]) == topology.nodes * topology.ranks_per_node
        assert topology.cpus_per_task == 8 * topology.gpus_per_node
    starts = {each["name"]: each["start"] for each in made["experiments"]}
    in_file = [starts[each["name"]] for each in yaml.safe_load(out.read_text())["experiments"]]
    assert in_file == sorted(in_file)
    assert campaign["finetune-512"].needs == ("pretrain-512",)
    assert campaign["pretrain-256"].run.fields["window"] == 256
    elsewhere = tmp_path / "elsewhere" / "planned.yaml"
    assert main(["plan", str(path), "--out", str(elsewhere)]) == 2 and not elsewhere.exists()


def test_the_published_campaign_is_planned(capsys: pytest.CaptureFixture[str]):
    example = Path(__file__).parent.parent / "examples" / "published_campaign.yaml"
    assert main(["plan", str(example)]) == 0
    told = capsys.readouterr().out
    assert "128 experiments on 4 nodes of 4 GPUs" in told
    naive, planned, saved = (next(line for line in told.splitlines() if word in line) for word in WORDS)
    assert naive.split()[-3:] == ["16.84", "67.37", "269.47"]
    assert planned.split()[-3:] == ["8.00", "32.00", "128.00"]
    assert saved.split() == ["saved", "52.5", "%", "52.5", "%", "52.5", "%"]


WORDS = ("naive:", "  this plan  ", "  saved")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (PLAN, "pretrain-128: nothing says how long it takes"),
        (PLAN + TIMES + "goal: fastest\n", "goal: 'fastest' found, one of soonest, cheapest expected"),
        (PLAN + TIMES + "nodes_: 3\n", "nodes_: found, but there is no such field"),
        (PLAN.replace("nodes: 2", "nodes: many") + TIMES, "nodes: 'many' found, a whole number"),
        (PLAN + "hours: {2: fast}\n", "hours.2: 'fast' found"),
        (PLAN + "hours: {3: 1.0}\n", "times for 3 GPUs found"),
        (PLAN + "hours: {1: 0}\n", "hours.1: 0.0 found, more than 0 expected"),
        (PLAN + "hours: {0: 1.0}\n", "hours: 0 found, more than 0 expected"),
        (PLAN.replace("nodes: 2", "nodes: -1") + TIMES, "nodes: -1 found, more than 0 expected"),
        (PLAN + 'of: {"pretrain-*": {1: 0}}\n', "of.pretrain-*.1: 0.0 found, more than 0 expected"),
        ("nodes: 2\ngpus_per_node: 2\n", "campaign: nothing found"),
        ("nodes: [\n", "not valid YAML"),
    ],
)
def test_mistakes_in_a_plan_are_named(tmp_path: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]):
    assert main(["plan", str(plan_file(tmp_path, text))]) == 2
    error = capsys.readouterr().err
    assert said in error and len(error.splitlines()) == 1


# --- hours from measured rates --------------------------------------------------------------------------------------

OF_GPU = """
rates: gpu.json
tokens: {"*": 7200000000, finetune: 3600000000}
passes: 2
nodes: 1
gpus_per_node: 1
campaign:
  grid: {window: [128, 320, 1024]}
  stages:
    pretrain:
      run: {command: pretrain, corpus: beats, depth: 8, batch_size: 64, window: "{window}", out: "runs/{window}"}
    finetune:
      run: {command: finetune, run: "{pretrain.out}", corpus: few, task: beats, batch_size: 64, window: "{window}",
            out: "runs/{window}-beats"}
"""


def measured_rate(training: str, window: int, tokens_per_s: float, start_s: float) -> dict[str, object]:
    shape = {"tokenizer": "beat", "depth": 8, "width": 256, "window": window, "batch_size": 64}
    return {"training": training, **shape, "tokens_per_s": tokens_per_s, "start_s": start_s}


MEASURED = [
    measured_rate("masked", 1024, 1e6, 72.0),
    measured_rate("masked", 128, 4e6, 36.0),
    measured_rate("masked", 512, 2e6, 36.0),
    measured_rate("finetune", 128, 1e6, 0.0),
    measured_rate("finetune", 1024, 1e6, 0.0),
    measured_rate("causal", 320, 9e6, 0.0),
    {**measured_rate("masked", 320, 9e6, 0.0), "batch_size": 16},
]


def gpu_plan(folder: Path, text: str = OF_GPU, rates: object = MEASURED) -> Path:
    (folder / "gpu.json").write_text(json.dumps({"tables": [], "rates": rates}))
    return plan_file(folder, text)


def test_hours_are_starts_and_tokens_by_rates_between_measured_windows(tmp_path: Path):
    """2 × 7.2 G tokens at 4 M/s take 1 h. At 320, half way from 128 (0.25 µs a token) to 512 (0.5 µs): 1.5 h."""
    hours = {job.name: job.times for job in load_plan(gpu_plan(tmp_path))[2]}
    assert hours["pretrain-128"] == {1: pytest.approx(1.01)}
    assert hours["pretrain-320"] == {1: pytest.approx(1.51)}
    assert hours["pretrain-1024"] == {1: pytest.approx(4.02)}
    assert [hours[f"finetune-{window}"][1] for window in (128, 320, 1024)] == pytest.approx([2.0, 2.0, 2.0])


def test_sizes_that_are_left_open_are_those_of_training():
    config = PretrainConfig(depth=8, batch_size=1)
    asked = training_of("pretrain", {"depth": 8, "batch_size": 1}, "beat")
    assert (asked.training, asked.window) == (config.objective, config.window)
    assert asked.width == ModelConfig((1,), depth=8).resolve().width
    assert training_of("pretrain", {"batch_size": 1}, "beat").depth == PretrainConfig().depth


def test_hours_that_are_given_come_before_rates(tmp_path: Path):
    hours = {job.name: job.times for job in load_plan(gpu_plan(tmp_path, OF_GPU + "of: {finetune: {1: 0.5}}\n"))[2]}
    assert hours["finetune-320"] == {1: 0.5} and hours["pretrain-128"] == {1: pytest.approx(1.01)}


def test_one_pass_and_ten_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Starts take 0.04 h; a pass of pretraining 0.5 + 0.75 + 2 h, one of fine-tuning three times 1 h."""
    assert main(["plan", str(gpu_plan(tmp_path))]) == 0
    assert "GPU-hours at the rates of gpu.json: one pass 6.29, ten passes 62.54" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("gpu.json", "none.json", "none.json not found: measure it on the GPU with  python -m benchmarks.gpu"),
        ("1024]", "2048]", "pretrain-2048: rates: windows 128, 512, 1024 found for masked of beat tokens, depth 8"),
        (
            "depth: 8",
            "depth: 4",
            "pretrain-128: rates: windows none found for masked of beat tokens, depth 4, width 128",
        ),
        ("depth: 8, batch_size: 64", "depth: 8", "pretrain-128: batch_size: nothing found"),
        ('"*": 7200000000, ', "", "tokens: no entry matches pretrain-128"),
        ("{pretrain.out}", "runs/other", "finetune-128: run: no pretraining of this campaign found"),
        ("passes: 2", "passes: 0", "passes: 0.0 found, more than 0 expected"),
    ],
)
def test_a_missing_rate_is_named(tmp_path: Path, old: str, new: str, said: str, capsys: pytest.CaptureFixture[str]):
    assert main(["plan", str(gpu_plan(tmp_path, OF_GPU.replace(old, new)))]) == 2
    error = capsys.readouterr().err
    assert "plan.yaml" in error and said in error and len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("rates", "said"),
    [
        (None, "gpu.json: rates: None found"),
        ([{"training": "masked"}], "gpu.json: rates[0].tokenizer: nothing found"),
        ([measured_rate("masked", 128, 5.0, -1.0)], "gpu.json: rates: start_s: -1 found, at least 0 expected"),
        ([measured_rate("masked", 128, 0.0, 1.0)], "gpu.json: rates: 0 tokens/s found, more than 0 expected"),
    ],
)
def test_mistakes_in_rates_are_named(tmp_path: Path, rates: object, said: str, capsys: pytest.CaptureFixture[str]):
    assert main(["plan", str(gpu_plan(tmp_path, rates=rates))]) == 2
    error = capsys.readouterr().err
    assert said in error and len(error.splitlines()) == 1


def test_the_published_campaign_on_one_gpu_is_planned_from_its_rates(tmp_path: Path):
    """256 trainings; at 1 M tokens/s and with no start, 16 × 3,129,212 beats × 8 widths × 2 take 801.0783 s."""
    example = Path(__file__).parent.parent / "examples" / "published_campaign_one_gpu.yaml"
    content = yaml.safe_load(example.read_text())
    rates = [measured_rate(kind, window, 1e6, 0.0) for kind in ("masked", "finetune") for window in (128, 512, 1024)]
    _, campaign, jobs = load_plan(
        gpu_plan(tmp_path, yaml.safe_dump(content | {"rates": "gpu.json"}, sort_keys=False), rates)
    )
    assert len(campaign.experiments) == 256
    assert sum(job.times[1] for job in jobs) * 3600 == pytest.approx(801.0783, abs=1e-3)
