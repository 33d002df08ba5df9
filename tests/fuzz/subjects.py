"""What is damaged: valid files, the commands that read them, and what must hold when a command still succeeds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.conftest import DATA

Check = Callable[[Path, Path, Path, str], str | None]
"""`check(case, seed, damaged_file, stderr)` → what is silently wrong, or None."""


@dataclass(frozen=True)
class Subject:
    """Valid files and the commands that read them.

    Attributes:
        name: also of its folder of valid files.
        build: writes the valid files into a folder.
        patterns: of the files that are damaged, one a case.
        commands: of which each case runs one; `{folder}` holds the files, `{out}` does not exist yet.
        check: of a command that succeeded.
    """

    name: str
    build: Callable[[Path], None]
    patterns: tuple[str, ...]
    commands: tuple[tuple[str, ...], ...]
    check: Check | None = None

    def victims(self, folder: Path) -> list[Path]:
        """The files that may be damaged, in a fixed order."""
        found = {path for pattern in self.patterns for path in folder.glob(pattern) if path.is_file()}
        assert found, f"{self.name}: no file to damage"
        return sorted(found)


TOKENIZE = ("tokenize", "{folder}", "--processes", "1", "--out", "{out}", "--skip-unreadable")
VERIFY = ("data", "verify", "{folder}")
CPU = ("--threads", "1", "--device", "cpu")


def _simulate(folder: Path, patients: int = 3) -> None:
    from heartlm.ecg.simulator.config import SimulationConfig
    from heartlm.ecg.simulator.write import simulate_database

    simulate_database(folder / "tinydb", SimulationConfig(patients=patients, minutes=0.5, seed=3, name="tinydb"))


def _wfdb(folder: Path) -> None:
    from heartlm.corpus.build import build_corpus
    from heartlm.tokenizers.sample import SampleTokenizer

    _simulate(folder)
    for path in (folder / "tinydb").iterdir():
        shutil.move(path, folder / path.name)
    (folder / "tinydb").rmdir()
    build_corpus([folder], SampleTokenizer(), folder.with_name("wfdb-expected"), processes=1)


def _is_changed(case: Path, seed: Path, damaged: Path) -> bool:
    return damaged.read_bytes() != (seed / damaged.relative_to(case / "in")).read_bytes()


def _tokens_differ_silently(case: Path, seed: Path, damaged: Path, stderr: str) -> str | None:
    """Each signal file has a checksum in its header, so no damage to one may change a token without a word."""
    manifest = case / "out" / "manifest.json"
    if damaged.suffix != ".dat" or not manifest.exists() or damaged.stem in stderr:
        return None
    content = json.loads(manifest.read_text())
    if content["tokenizer"]["kind"] != "sample" or content["dropped"]:
        return None
    expected = (seed.with_name("wfdb-expected") / "codes.bin").read_bytes()
    is_same = (case / "out" / "codes.bin").read_bytes() == expected
    return None if is_same else "a damaged signal file changed tokens without a word"


def _arrays(folder: Path) -> None:
    signal = np.sin(np.arange(3000) / 20)
    lines = [f"{place / 250:.3f},{value:.4f},{-value:.4f}" for place, value in enumerate(signal)]
    (folder / "a.csv").write_text("\n".join(["time,I,II", *lines]) + "\n")
    np.save(folder / "b.npy", np.stack([signal, -signal]))
    (folder / "b.json").write_text(json.dumps({"rate_hz": 250, "units": "mV", "lead_names": ["I", "II"]}))
    (folder / "database.json").write_text(json.dumps({"name": "arrays", "patients": {"a": "p1", "b": "p2"}}))


def _edf(folder: Path) -> None:
    import edfio

    signal = np.sin(np.arange(2560) / 20)
    lead = edfio.EdfSignal(signal, 256, label="ECG II", physical_dimension="mV", physical_range=(-2, 2))
    edfio.Edf([lead]).write(folder / "a.edf")


def _mat(folder: Path) -> None:
    from scipy.io import savemat

    signal = np.round(1000 * np.sin(np.arange(3000) / 20)).astype(np.int16)
    savemat(folder / "a.mat", {"val": signal[np.newaxis]}, format="4")
    checksum = int(signal.astype(np.int64).sum()) & 0xFFFF
    first = int(signal[0])
    header = f"a 1 300 3000\na.mat 16+24 1000/mV 16 0 {first} {checksum} 0 ECG\n"
    (folder / "a.hea").write_text(header)
    (folder / "RECORDS").write_text("a\n")


def _formats(folder: Path) -> None:
    shutil.copytree(DATA / "formats", folder, dirs_exist_ok=True)
    for path in folder.glob("multi-segment/s25047"):
        shutil.rmtree(path)


def _annotations(folder: Path) -> None:
    for name in ("100", "208"):
        for path in (DATA / "mitdb").glob(f"{name}.[ha][et][ar]"):
            shutil.copy(path, folder / path.name)


def _corpus(folder: Path, patients: int = 6) -> Path:
    from heartlm.corpus.build import build_corpus
    from heartlm.tokenizers.beat import BeatTokenizer

    _simulate(folder, patients)
    tokenizer = BeatTokenizer(num_levels=1, num_deviation_levels=1, num_codes=16)
    build_corpus([folder / "tinydb"], tokenizer, folder / "corpus", processes=1)
    return folder / "corpus"


def _trained(folder: Path) -> None:
    import torch

    from heartlm.training.config import FinetuneConfig, PretrainConfig
    from heartlm.training.finetune import finetune
    from heartlm.training.pretrain import pretrain

    torch.set_num_threads(1)
    corpus = _corpus(folder)
    small = {"window": 16, "batch_size": 4, "steps": 3, "threads": 1, "device": "cpu"}
    parent = pretrain(PretrainConfig(corpus=corpus, out=folder / "foundation", depth=1, **small))  # type: ignore[arg-type]
    finetune(FinetuneConfig(run=parent, corpus=corpus, out=folder / "run", **small))  # type: ignore[arg-type]


def _changed_corpus_is_used(case: Path, seed: Path, damaged: Path, stderr: str) -> str | None:
    """Each file of tokens and labels has a checksum in the manifest, so any change must be refused."""
    if damaged.suffix == ".bin" and _is_changed(case, seed, damaged):
        return "a changed corpus file was used without a word"
    return None


def _pages(folder: Path) -> None:
    from tests.synthetic_run import write_runs

    write_runs(folder)


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
    plan = "nodes: 2\ngpus_per_node: 4\ngoal: soonest\nhours: {1: 1.0, 2: 0.6, 4: 0.5}\ncampaign:\n"
    (folder / "plan.yaml").write_text(plan + "".join(f"  {line}\n" for line in ("name: p\n" + grid).splitlines()))


def _study(folder: Path) -> None:
    from heartlm.scaling.cell import StudyCell
    from tests.test_scaling_report import made_up

    for ranks in (1, 2):
        for repeat in (0, 1):
            cell = StudyCell("pretrain", "mitdb", 128, ranks, 1, 1, copies=1, global_batch=32)
            made_up(cell, repeat, 0.2 / ranks * (1 + 0.01 * repeat)).save(folder)
    (folder / "skipped.json").write_text('[["pretrain-mitdb-w128-r2-n1-c2", "2 ranks of 2 CPUs on a node of 2"]]')


LAUNCH = ("launch", "{folder}/run.yaml", "--profile", "{folder}/site.yaml", "--account", "p1", "--nodes", "2")

_ALL: Iterable[Subject] = (
    Subject(
        "wfdb",
        _wfdb,
        ("*.hea", "*.dat", "*.atr", "*.json", "RECORDS"),
        ((*TOKENIZE, "--tokenizer", "sample"), (*TOKENIZE, "--tokenizer", "rhythm"), VERIFY),
        _tokens_differ_silently,
    ),
    Subject("arrays", _arrays, ("*",), ((*TOKENIZE, "--tokenizer", "sample"), VERIFY)),
    Subject("edf", _edf, ("*.edf",), ((*TOKENIZE, "--tokenizer", "sample"), VERIFY)),
    Subject("mat", _mat, ("*",), ((*TOKENIZE, "--tokenizer", "sample"), VERIFY)),
    Subject(
        "corpus",
        _trained,
        ("corpus/**/*",),
        (
            ("evaluate", "{folder}/run", "--on", "{folder}/corpus", "--no-baselines", "--bootstrap", "2", *CPU),
            ("pretrain", "--corpus", "{folder}/corpus", "--out", "{out}", "--steps", "1", "--depth", "1",
             "--window", "16", "--batch-size", "2", *CPU),
        ),
        _changed_corpus_is_used,
    ),
    Subject(
        "run",
        _trained,
        ("run/*.*", "run/models/**/*", "run/tokenizer/*"),
        (
            ("predict", "{folder}/run", "{folder}/tinydb/s0001", "--out", "{out}"),
            ("watch", "{folder}/run", "--once"),
            ("evaluate", "{folder}/run", "--on", "{folder}/corpus", "--no-baselines", "--bootstrap", "2", *CPU),
        ),
    ),
    Subject(
        "checkpoint",
        _trained,
        ("foundation/checkpoints/**/*", "foundation/*.*"),
        (("pretrain", "--resume", "{folder}/foundation"),),
    ),
    Subject("pages", _pages, ("beats/**/*",), (("report", "{folder}/beats", "--out", "{out}"),)),
    Subject(
        "settings",
        _settings,
        ("*.yaml",),
        (
            LAUNCH,
            ("campaign", "status", "{folder}/campaign.yaml"),
            ("campaign", "run", "{folder}/campaign.yaml"),
            ("plan", "{folder}/plan.yaml"),
        ),
    ),
    Subject("study", _study, ("**/*.json",), (("scale", "report", "{folder}"),)),
)  # fmt: skip

SUBJECTS: dict[str, Subject] = {subject.name: subject for subject in _ALL}
if (DATA / "formats").is_dir():
    SUBJECTS["formats"] = Subject(
        "formats", _formats, ("**/*",), ((*TOKENIZE, "--tokenizer", "sample"), VERIFY)
    )  # fmt: skip
if (DATA / "mitdb").is_dir():
    SUBJECTS["annotations"] = Subject(
        "annotations", _annotations, ("*.atr",), ((*TOKENIZE, "--tokenizer", "rhythm"), VERIFY)
    )
