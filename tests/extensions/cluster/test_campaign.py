"""A campaign's file becomes experiments: grids, needs, order, and one-line errors for what cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from heartlm.cli.main import main
from heartlm.errors import HeartlmError
from heartlm.extensions.cluster.campaign.campaign import Campaign, Experiment, campaign_of, in_order, load_campaign
from heartlm.extensions.cluster.campaign.grid import combinations
from heartlm.extensions.cluster.campaign.slurm import jobs_of
from heartlm.extensions.cluster.profile import load_profile
from heartlm.extensions.cluster.run_file import RunFile
from heartlm.extensions.cluster.topology import Topology
from tests.conftest import ROOT, Refused

STAGES = """
name: widths
topology: {gpus_per_node: 4, cpus_per_task: 16, time: "02:00:00"}
grid:
  database: [mitdb, svdb]
  window: [128, 256, 512]
  scratch: [false, true]
stages:
  pretrain:
    run: {command: pretrain, corpus: corpora/all, window: "{window}", out: "runs/w{window}"}
  finetune:
    run: {command: finetune, run: "{pretrain.out}", from_scratch: "{scratch}", corpus: "corpora/{database}",
          window: "{window}", out: "runs/{database}-w{window}-{scratch}"}
    topology: {gpus_per_node: 1, time: "00:30:00"}
  evaluate:
    name: "score-{database}-{window}-{scratch}"
    run: {command: evaluate, run: "{finetune.out}", on: "corpora/{database}"}
"""


def read(text: str) -> Campaign:
    return campaign_of(yaml.safe_load(text), default_name="file", folder=Path("/somewhere"))


def test_stages_are_done_for_the_axes_they_mention_and_no_others():
    campaign = read(STAGES)
    stages = [experiment.stage for experiment in campaign.experiments]
    assert [stages.count(stage) for stage in ("pretrain", "finetune", "evaluate")] == [3, 12, 12]
    finetune = campaign["finetune-svdb-256-true"]
    assert finetune.needs == ("pretrain-256",)
    assert finetune.run.fields["window"] == 256 and finetune.run.fields["from_scratch"] is True
    assert finetune.run.fields["out"] == "runs/svdb-w256-true"
    score = campaign["score-svdb-256-true"]
    assert score.needs == ("finetune-svdb-256-true",)
    assert score.run.fields["on"] == "corpora/svdb"
    assert score.result == Path("runs/svdb-w256-true/scores/score-svdb-256-true")
    assert campaign.state_folder == Path("/somewhere/widths.campaign")


def test_a_topology_takes_what_it_does_not_say_from_the_campaign():
    campaign = read(STAGES)
    assert campaign["pretrain-128"].topology == Topology(1, 4, 4, 16, 7200)
    assert campaign["finetune-mitdb-128-false"].topology == Topology(1, 1, 1, 16, 1800)


def test_time_may_stand_without_quotes():
    text = "topology: {time: 12:00:00}\nexperiments: [{name: a, run: {corpus: c, out: a}}]"
    assert read(text)["a"].topology.time_s == 12 * 3600


def test_what_reads_the_result_of_another_needs_it():
    campaign = read(
        "experiments:\n"
        "- {name: score, run: {command: evaluate, run: runs/beats, on: corpora/a, random_init: ./runs/scratch/}}\n"
        "- {name: scratch, run: {command: finetune, run: runs/w, corpus: corpora/a, out: runs/scratch}}\n"
        "- {name: beats, run: {command: finetune, run: runs/w, corpus: corpora/a, out: runs/beats}}\n"
        "- {name: w, needs: [corpus], run: {corpus: corpora/all, out: runs/w}}\n"
        "- {name: corpus, run: {command: tokenize, databases: [data/a], out: corpora/a}}\n"
    )
    assert [each.name for each in campaign.experiments] == ["corpus", "w", "scratch", "beats", "score"]
    assert set(campaign["score"].needs) == {"beats", "scratch", "corpus"}
    assert set(campaign["beats"].needs) == {"w", "corpus"}


def test_experiments_begin_as_listed_but_never_before_what_they_need():
    runs = [("first", ()), ("follower", ("needed",)), ("needed", ()), ("last", ())]
    experiments = [Experiment(name, "s", RunFile("pretrain", {"out": name}), Topology(), needs) for name, needs in runs]
    assert [each.name for each in in_order(experiments)] == ["first", "needed", "follower", "last"]


@given(st.dictionaries(st.sampled_from("abcd"), st.lists(st.integers(), min_size=1, max_size=4, unique=True)))
def test_combinations_are_all_there_and_each_once(axes: dict[str, list[int]]):
    found = [tuple(at.items()) for at in combinations(axes)]
    size = 1
    for values in axes.values():
        size *= len(values)
    assert len(found) == len(set(found)) == size
    assert all(value in axes[axis] for at in found for axis, value in at)


@given(st.data())
def test_the_order_holds_every_need(data: st.DataObject):
    names = [f"e{number}" for number in range(data.draw(st.integers(1, 8)))]
    experiments = [
        Experiment(
            name,
            "s",
            RunFile("pretrain", {"out": name}),
            Topology(),
            tuple(data.draw(st.lists(st.sampled_from(names[:number]), unique=True)) if number else ()),
        )
        for number, name in enumerate(names)
    ]
    shuffled = data.draw(st.permutations(experiments))
    ordered = [each.name for each in in_order(shuffled)]
    assert sorted(ordered) == names
    assert all(ordered.index(need) < ordered.index(each.name) for each in experiments for need in each.needs)


ONE = "experiments: [{name: a, run: {corpus: c, out: a}}]\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1, 2]", "[1, 2] found, fields with their values"),
        ("{}", "no experiments"),
        ("colour: red", "colour: found, but there is no such field"),
        (ONE + "name: a/b", "name: 'a/b' found"),
        (ONE + "topology: {nodes: 0}", "a: topology: nodes: 0 found"),
        (ONE + "topology: {gpus_per_node: two}", "a: topology: gpus_per_node: 'two' found, a whole number"),
        (ONE + "topology: {nodes: two}", "a: topology: nodes: 'two' found, a whole number"),
        (ONE + "topology: {time: soon}", "a: topology: time: 'soon' found, HH:MM:SS"),
        (ONE + "topology: {hosts: 2}", "a: topology: hosts: found, but there is no such field"),
        ("experiments: [{name: a, run: {corpus: c}}]", "a: no out"),
        ("experiments: [{name: a, run: {command: evaluate, on: c}}]", "a: no run"),
        ("experiments: [{name: a, run: {command: swim, out: c}}]", "command: 'swim' found"),
        ("experiments: [{name: a, run: {out: a}, needs: [b]}]", "a: needs 'b', which is no experiment"),
        ("experiments: [{name: a, run: {out: a}, needs: 3}]", "experiments[0].needs: 3 found, a list of text"),
        ("experiments: [{name: a, run: {out: a}, needs: soon}]", "experiments[0].needs: 'soon' found"),
        ("experiments: [{name: a, run: {out: a}}, {name: a, run: {out: b}}]", "a: 2 experiments of this name"),
        ("experiments: [{name: a, run: {out: r}}, {name: b, run: {out: ./r}}]", "a and b both write r"),
        ("experiments: [{name: a, run: {out: a, corpus: b}}, {name: b, run: {out: b, corpus: a}}]", "circle"),
        ("grid: {w: 3}\nstages: {p: {run: {out: x}}}", "grid.w: 3 found, a list of"),
        ("grid: {w: [1, 1]}\nstages: {p: {run: {out: x}}}", "and each value once"),
        ("grid: {w: [1, 2]}\nstages: {p: {run: {out: x}}}", "grid: w is mentioned by no stage"),
        ("stages: {p: {run: {out: 'x{w}'}}}", "stages.p: {w} found"),
        ("stages: {p: {run: {out: x}}, q: {run: {run: '{p.oat}', out: y}}}", "{p.oat} found, but p has no oat"),
        ("stages: {p: {run: {out: x}, needs: [q]}}", "stages.p.needs: ['q'] found"),
        ("stages: {p: {out: x}}", "stages.p.run: nothing found"),
        ("stages: {p: {}}", "stages.p.run: nothing found"),
        ("grid: {w: [1, 2]}\nstages: {p: {run: {out: x, window: '{w}'}}}", "p-1 and p-2 both write x"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(tmp_path: Path, text: str, said: str):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(HeartlmError) as error:
        load_campaign(path)
    assert str(error.value).startswith(f"{path}: ") and "\n" not in str(error.value)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--local", "--submit"], "local: found together with"),
        (["--submit", "--parallel", "2"], "parallel: found without --local"),
        (["--local", "--parallel", "0"], "parallel: 0 found"),
        (["--local", "--only", "a,b"], "'b' found, one of a expected"),
        (["--local", "--only", ","], "only: ',' found, names of experiments expected"),
        (["--profile", "generic", "--submit", "--only", "a"], "only: found without --local"),
        (["--local", "--wait"], "wait: found without --submit"),
        (["--profile", "meluxina"], "profile: found without --submit"),
    ],
)
def test_where_to_run_has_to_be_said(tmp_path: Path, refused: Refused, words: list[str], said: str):
    path = tmp_path / "c.yaml"
    path.write_text(ONE)
    assert said in refused("campaign", "run", path, *words)


def test_help_explains_the_file(capsys: pytest.CaptureFixture[str]):
    assert main(["campaign", "--help"]) == 0
    text = capsys.readouterr().out
    described = text[text.index("    name: widths") : text.index("A stage has one experiment")]
    campaign: Any = yaml.safe_load(described)
    assert len(campaign_of(campaign, default_name="x", folder=Path()).experiments) == 3 + 6 + 6 + 1


def test_the_example_is_a_campaign(capsys: pytest.CaptureFixture[str]):
    path = ROOT / "examples" / "campaign.yaml"
    assert main(["campaign", "run", str(path)]) == 0
    campaign = load_campaign(path)
    assert capsys.readouterr().out.count("  $ heartlm ") == len(campaign.experiments) == 4 + 16 + 16
    assert len(jobs_of(campaign.experiments, load_profile("meluxina"))) == (4 + 16 + 16) // 4
