"""Whatever a name, path, option or field of a profile holds: a script runs no command of it, or it is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import unicodedata
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from heartlm.errors import HeartlmError
from heartlm.extensions.cluster.campaign.campaign import Campaign, campaign_of
from heartlm.extensions.cluster.campaign.slurm import jobs_of, script_of
from heartlm.extensions.cluster.image.image import definition
from heartlm.extensions.cluster.profile import SiteProfile, load_profile, profile_of
from heartlm.extensions.cluster.run_file import RunFile
from heartlm.extensions.cluster.script import header, render
from heartlm.extensions.cluster.topology import Topology
from tests.conftest import Refused

PIECES = [*"ab é'\"`;&|<>#\\*?!{}()[]$~=:-%", "$(", "${", "touch x", "\n", "\r", "\t", "\0", "\x1b", "\u2028", "\udc80"]
texts = st.lists(st.sampled_from(PIECES) | st.characters(), min_size=1, max_size=8).map("".join)
"""Texts of what means something to shells."""

FIELDS = ("name", "logs", "corpus", "out", "site", "account", "partition", "qos", "module", "image", "bind", "value")
TWO_NODES = Topology(2, 1, 1, 4, 3600)

SRUN = """#!/bin/bash
printf '%s\\0' "$CHECKED" "$@" >"$CALLED"
"""
SCONTROL = """#!/bin/bash
[[ $1 == show ]] && echo node1 || echo "NodeName=node1 NodeAddr=10.0.0.1 Port=1"
"""
FUNCTIONS = {"command_not_found_handle": 'echo "$1" >>"$TRIPPED"', "module": ":"}


def has_control(text: str) -> bool:
    return any(unicodedata.category(each) in ("Cc", "Cs", "Zl", "Zp") for each in text)


def called(script: str) -> list[str]:
    """Run a batch script where no command can be found but those it needs; the words that srun was given.

    The first is the variable CHECKED. A command that cannot be found, and a file that appears, are failures.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        programs, here, words, tripped = (folder / each for each in ("programs", "here", "words", "tripped"))
        programs.mkdir()
        here.mkdir()
        for program, text in (("srun", SRUN), ("scontrol", SCONTROL)):
            (programs / program).write_text(text)
            (programs / program).chmod(0o755)
        (programs / "grep").symlink_to(str(shutil.which("grep")))
        environment = {f"BASH_FUNC_{each}%%": f"() {{ {body}; }}" for each, body in FUNCTIONS.items()}
        slurm = {"SLURM_CPUS_PER_TASK": "4", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "n", "SLURM_JOB_ID": "7"}
        done = subprocess.run(
            ["/bin/bash", "-c", script],
            env={**environment, **slurm, "PATH": str(programs), "CALLED": str(words), "TRIPPED": str(tripped)},
            cwd=here,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert not tripped.exists(), f"it looked for the command {tripped.read_text()}"
        assert list(here.iterdir()) == []
        assert done.returncode == 0, done.stderr
        return words.read_text().split("\0")[:-1]


def site(values: Mapping[str, str]) -> SiteProfile:
    content = {name: values[name] for name in ("account", "partition", "qos", "image")}
    lists = {"modules": [values["module"]], "binds": [values["bind"]], "environment": {"CHECKED": values["value"]}}
    return profile_of({**content, **lists, "container": "apptainer"}, values["site"])


@settings(deadline=None, max_examples=60)
@given(st.fixed_dictionaries(dict.fromkeys(FIELDS, texts)))
@example({name: f"$(touch {name})'\"; touch {name} #" for name in FIELDS})
def test_no_command_of_a_value_is_run(values: dict[str, str]) -> None:
    run = RunFile("pretrain", {"corpus": values["corpus"], "out": values["out"]})
    how = {"name": values["name"], "logs": Path(values["logs"])}
    try:
        script = render(run, TWO_NODES, site(values), **how)
    except HeartlmError as error:
        assert any(map(has_control, values.values()))
        assert "\n" not in str(error)
        return
    assert not any(map(has_control, values.values()))
    checked, *words = called(script)
    assert checked == values["value"]
    assert {values["bind"], values["image"]} <= set(words)
    assert words[-3:] == run.argv()
    done = subprocess.run(["/bin/bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("field", FIELDS)
def test_each_value_with_a_line_end_is_refused(field: str) -> None:
    values = dict.fromkeys(FIELDS, "plain") | {field: "a\ntouch x #"}
    run = RunFile("pretrain", {"corpus": values["corpus"], "out": values["out"]})
    with pytest.raises(HeartlmError, match=r"^[^\n]*touch x[^\n]*no control character expected[^\n]*$"):
        render(run, TWO_NODES, site(values), name=values["name"], logs=Path(values["logs"]))


@pytest.mark.parametrize(
    "text", ["a b", "it's", 'say "so"', "a#b", "back\\slash", "a\\", "--wrap=x --qos=high", "$(x)"]
)
def test_sbatch_reads_each_option_as_one_word(text: str, tmp_path: Path) -> None:
    """SLURM's own parser lists what it found, before it looks for the cluster that is not there."""
    if shutil.which("sbatch") is None:
        pytest.skip("sbatch not found: apt-get install slurm-client")
    (tmp_path / "slurm.conf").write_text(
        "ClusterName=none\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort=1\nAuthType=auth/none\n"
        "NodeName=n\nPartitionName=main Nodes=n Default=YES\n"
    )
    profile = profile_of({"account": text, "partition": text, "qos": text}, "x")
    lines = header(Topology(), profile, name=text, logs=Path(text))
    script = tmp_path / "job.sh"
    script.write_text("\n".join(["#!/bin/bash", *lines, "true", ""]))
    found = []
    environment = os.environ | {"SLURM_CONF": str(tmp_path / "slurm.conf")}
    with subprocess.Popen(["sbatch", "-vvv", script], stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "Found in script, argument " in line:
                found.append(line.partition("argument ")[2].strip()[1:-1])
            if "end of defined options" in line:
                break
        process.kill()
    expected = {f"--{option}={text}" for option in ("job-name", "account", "partition", "qos")}
    expected.add(f"--output={Path(text) / f'{text}-%j.out'}")
    assert expected <= set(found)
    assert len(found) == len(lines)


# --- as its user meets it ---------------------------------------------------------------------------------------------

REFUSED = {
    "name": ["--name", "a\ntouch x #"],
    "account": ["--account", "a\ntouch x #"],
    "partition": ["--partition", "a\ntouch x #"],
    "qos": ["--qos", "a\rtouch x #"],
    "logs": ["--logs", "a\ntouch x #"],
    "image": ["--image", "a\ntouch x #", "--profile", "container.yaml"],
    "profile": ["--profile", "a\ntouch x #.yaml"],
    "environment": ["--profile", "environment.yaml"],
    "gpu_option": ["--profile", "gpu_option.yaml", "--gpus-per-node", "1"],
}
PROFILES = {
    "a\ntouch x #.yaml": {"partition": "main"},
    "container.yaml": {"container": "apptainer"},
    "environment.yaml": {"environment": {"A=1; touch x #": "1"}},
    "gpu_option.yaml": {"gpu_option": "--gres={x}"},
}


@pytest.mark.parametrize("case", [*REFUSED, "run file"])
def test_launch_refuses_in_one_line(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.chdir(tmp_path)
    run = Path("b\ntouch x #.yaml" if case == "run file" else "run.yaml")
    run.write_text(yaml.safe_dump({"corpus": "corpora/many"}))
    for name, content in PROFILES.items():
        Path(name).write_text(yaml.safe_dump(content))
    line = refused("launch", run, *REFUSED.get(case, []))
    assert "expected" in line or "may stand in braces" in line
    assert not Path("x").exists()


def test_a_file_name_moves_no_cursor(refused: Refused) -> None:
    line = refused("launch", "no\nsuch\x1b[31m\x9b.yaml")
    assert line.startswith("heartlm launch: ")
    assert r"no\nsuch\x1b[31m\x9b.yaml: " in line


def test_gpu_option_without_a_place_for_the_number_is_taken_as_it_is() -> None:
    profile = profile_of({"gpu_option": "--gres=gpu:a100:{gpus} --exclusive"}, "x")
    profile.check()
    assert "#SBATCH --gres=gpu:a100:1 --exclusive" in header(TWO_NODES, profile, name="x", logs=Path("x"))


# --- campaigns and images ---------------------------------------------------------------------------------------------


def campaign(out: str, folder: str = "/w") -> Campaign:
    run = {"command": "pretrain", "corpus": "corpora/all", "out": out}
    return campaign_of({"experiments": [{"name": "one", "run": run}]}, default_name="c", folder=Path(folder))


@settings(deadline=None, max_examples=60)
@given(texts)
@example("runs/x $(touch x)")
@example("runs/$(touch x)`touch x`';touch x #")
def test_the_words_of_an_experiment_are_read_as_they_are(out: str) -> None:
    made = campaign(out)
    (job,) = jobs_of(made.experiments, load_profile("generic"))
    try:
        lines = script_of(job, made, load_profile("generic")).splitlines()
    except HeartlmError:
        assert has_control(out)
        return
    assert not has_control(out)
    start = lines.index("command=(")
    script = "\n".join([*lines[start : lines.index(")", start) + 1], 'printf "%s\\0" "${command[@]}"'])
    with tempfile.TemporaryDirectory() as here:
        done = subprocess.run(["/bin/bash", "-c", script], cwd=here, env={}, capture_output=True, text=True, check=True)
        assert list(Path(here).iterdir()) == []
    assert f"--out={out}" in done.stdout.split("\0")


def test_a_campaign_in_a_folder_with_a_line_end_is_refused() -> None:
    made = campaign("runs/a", folder="/a\ntouch x #")
    (job,) = jobs_of(made.experiments, load_profile("generic"))
    with pytest.raises(HeartlmError, match="no control character expected"):
        script_of(job, made, load_profile("generic"))


def test_an_image_is_not_made_from_a_base_with_a_line_end() -> None:
    with pytest.raises(HeartlmError, match="no control character expected"):
        definition(base="ubuntu\n%post\ntouch x")
