"""Settings that the mutation campaign damages."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.subjects import Subject


def _settings(folder: Path) -> None:
    (folder / "run.yaml").write_text("command: pretrain\ncorpus: corpora/many\nout: runs/x\nsteps: 500\nwindow: 128\n")
    (folder / "site.yaml").write_text(
        "description: a site\npartition: gpu\nrequired: [account]\ngpus_per_node: 4\ncpus_per_node: 64\n"
        "gpu_option: --gres=gpu:{gpus}\nheader: [--mem=0]\nmodules: [Apptainer]\n"
        "environment: {NCCL_SOCKET_IFNAME: ib0}\n"
    )
    grid = "grid: {window: [64, 128]}\nstages:\n  train:\n    name: 'w{window}'\n"
    grid += "    run: {command: pretrain, corpus: c, window: '{window}', out: 'runs/w{window}'}\n"
    (folder / "campaign.yaml").write_text("name: widths\ntopology: {gpus_per_node: 1, time: '02:00:00'}\n" + grid)


SUBJECTS = (
    Subject(
        "settings",
        _settings,
        ("*.yaml",),
        (
            ("launch", "{folder}/run.yaml", "--profile", "{folder}/site.yaml", "--account", "p1", "--nodes", "2"),
            ("campaign", "status", "{folder}/campaign.yaml"),
            ("campaign", "run", "{folder}/campaign.yaml"),
        ),
    ),
)
