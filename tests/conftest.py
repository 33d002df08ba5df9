"""What all tests share: where the optional real recordings are."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from heartlm.analysis.analyze import Analyst
    from heartlm.monitor.models import LiveModels

# A process for each core runs the tests: further threads of OpenMP would spin while they wait for one another. torch
# and NumPy read this once, when they are loaded. Programs that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Modules and tests are a million objects that stay: to look for garbage among them again and again takes a sixth of the
# time of an import.
gc.set_threshold(50_000, 20, 20)

settings.register_profile("the same every time", derandomize=True, deadline=None)
settings.load_profile("the same every time")

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("HEARTLM_TEST_DATA", ROOT.parent / "shared" / "data"))

Refused = Callable[..., str]
"""Of the fixture `refused`."""


def shared_data(name: str) -> Path:
    """The folder or file `name` of the real recordings; the test is skipped, with a reason, where it is absent."""
    path = DATA / name
    if not path.exists():
        pytest.skip(f"real recordings {name!r} not found: set HEARTLM_TEST_DATA to the folder that holds them")
    return path


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Notes about checked corpora go to a folder of the tests, not to the user's."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


def refused_line(capture: pytest.CaptureFixture[str], *words: object) -> str:
    """Run a command that must end with status 2 and write nothing but one line on standard error; return it."""
    from heartlm.cli.main import main

    capture.readouterr()
    assert main([str(word) for word in words]) == 2
    said = capture.readouterr()
    (line,) = said.err.splitlines()
    assert said.out == "" and line.startswith("heartlm")
    return line


@pytest.fixture
def refused(capfd: pytest.CaptureFixture[str]) -> Refused:
    """`refused_line` of what the process writes."""
    return partial(refused_line, capfd)


def edit_json(path: Path, **fields: object) -> None:
    """Replace fields of the object in a file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@contextlib.contextmanager
def mounted_disk(folder: Path, kilobytes: int) -> Iterator[Path]:
    """Gives a new folder that is a disk of this size; the test is skipped where that cannot be."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture(scope="session")
def tiny_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated database of a few patients in every split; read it only."""
    from heartlm.simulate.config import SimulationConfig
    from heartlm.simulate.write import simulate_database

    folder = tmp_path_factory.mktemp("tiny") / "tinydb"
    simulate_database(folder, SimulationConfig(patients=16, minutes=2.0, seed=3, name="tinydb"))
    return folder


@pytest.fixture(scope="session")
def unspoilt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A simulated database of half a minute a patient; record s0001 is in its training split. Read it only."""
    from heartlm.simulate.config import SimulationConfig
    from heartlm.simulate.write import simulate_database

    folder = tmp_path_factory.mktemp("unspoilt") / "tinydb"
    simulate_database(folder, SimulationConfig(patients=5, minutes=0.5, seed=3, name="tinydb"))
    return folder


@pytest.fixture
def database(unspoilt: Path, tmp_path: Path) -> Path:
    """A copy of `unspoilt`, to spoil."""
    return Path(shutil.copytree(unspoilt, tmp_path / "tinydb"))


@pytest.fixture(scope="session")
def tiny_corpus(tiny_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Beat tokens of `tiny_database`; read it only."""
    from heartlm.corpus.build import build_corpus
    from heartlm.tokenizers.beat import BeatTokenizer

    folder = tmp_path_factory.mktemp("tiny") / "corpus"
    build_corpus([tiny_database], BeatTokenizer(num_levels=2, num_deviation_levels=1, num_codes=16), folder)
    return folder


@pytest.fixture(scope="session")
def tiny_pretrained(tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a foundation model of one block, hardly trained; read it only."""
    from heartlm.training.config import PretrainConfig
    from heartlm.training.pretrain import pretrain

    out = tmp_path_factory.mktemp("tiny") / "foundation"
    return pretrain(PretrainConfig(corpus=tiny_corpus, out=out, depth=1, window=32, steps=3, threads=1, device="cpu"))


@pytest.fixture(scope="session")
def tiny_finetuned(tiny_corpus: Path, tiny_pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that fine-tuned `tiny_pretrained` on beats for some steps; copy it before adding files to it."""
    from heartlm.tasks.finetune import finetune
    from heartlm.tasks.task import FinetuneConfig

    out = tmp_path_factory.mktemp("tiny") / "beats"
    settings = {"run": tiny_pretrained, "corpus": tiny_corpus, "out": out}
    return finetune(FinetuneConfig(**settings, window=32, steps=30, threads=1, device="cpu", learning_rate=5e-3))


@pytest.fixture(scope="session")
def analyst() -> Analyst:
    """The shipped models of `heartlm analyze`."""
    from heartlm.analysis.analyze import Analyst

    return Analyst.load(Path("beats"), Path("af"), Path("waveform"))


@pytest.fixture(scope="session")
def models() -> LiveModels:
    """The shipped models of `heartlm monitor`."""
    import torch

    from heartlm.monitor.models import LiveModels

    torch.set_num_threads(1)
    return LiveModels()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put files of few slow tests first: these take longest, and at the end one process would wait for the other."""
    if config.getoption("markexpr") == "slow":
        num_tests = Counter(item.path for item in items)
        items.sort(key=lambda item: num_tests[item.path])
