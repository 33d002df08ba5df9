"""A training that cannot fit is told of before it is queued."""

from __future__ import annotations

from pathlib import Path

import pytest

from heartlm.cli.main import main
from heartlm.cluster.doctor.memory import DEPTHS, check_memory
from heartlm.cluster.doctor.section import Context
from heartlm.cluster.memory import _at_most_gb
from heartlm.models.pretrained import FOLDER
from heartlm.tokenizers.base import load_tokenizer
from heartlm.training.config import PretrainConfig
from heartlm.training.dry_run import step_memory


@pytest.mark.parametrize(
    ("more", "gpus", "warned"),
    [
        ("gpu_memory_gb: 0.2", 1, "GB in a step, and a GPU of site has 0.2 GB"),
        ("gpu_memory_gb: 40", 1, None),
        ("memory_gb: 40", 1, None),
        ("memory_gb: 1", 0, "a node of site has 1 GB for 4"),
    ],
)
def test_launch_warns_where_a_rank_has_too_little_memory(
    more: str, gpus: int, warned: str | None, tiny_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    site, run = tmp_path / "site.yaml", tmp_path / "run.yaml"
    site.write_text(f"partition: all\ngpus_per_node: {gpus}\ncpus_per_node: 16\n{more}\n")
    run.write_text(f"corpus: {tiny_corpus}\nwindow: 512\ndepth: 4\nbatch_size: {16 if gpus else 64}\n")
    words = ["launch", str(run), "--profile", str(site), "--dry-run"]
    assert main([*words, *([] if gpus else ["--ranks-per-node", "4"])]) == 0
    said = capsys.readouterr().err
    assert (warned in said) if warned else not said


def test_the_estimate_that_spares_a_dry_run_is_never_too_low():
    tokenizer = load_tokenizer(FOLDER / "foundation" / "tokenizer")
    for window, num_windows, dropout in ((1024, 2, 0.0), (16, 2, 0.0), (128, 16, 0.1)):
        config = PretrainConfig(depth=2, window=window, batch_size=num_windows, dropout=dropout)
        needed = step_memory(config, tokenizer, 1, "ddp").peak
        assert _at_most_gb(config, 1) > needed / 1e9, window


def test_the_doctor_says_which_models_fit(tmp_path: Path):
    facts = {"processors": {"memory_bytes": 4e9, "usable_cores": 2}, "devices": {"gpus": []}}
    section = check_memory(Context(tmp_path, facts=facts))
    needed = section.facts["step_bytes"]
    fitting = [depth for depth in DEPTHS if needed[str(depth)] <= 2e9]
    assert 0 < len(fitting) < len(DEPTHS) and f"is 2.0 GB: up to depth {fitting[-1]} fits" in section.lines[1]
