"""The benchmarks and studies that `make benchmarks` measures, and whether their results are those of their sources."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lab.places import FOLDERS, ROOT


@dataclass(frozen=True)
class Benchmark:
    """A script of benchmarks/ or studies/ and how it is called.

    Attributes:
        name: of the result file, and of the script unless `script` names another.
        arguments: words with {data} (the recordings), {work} (a folder of its own), {work:NAME} (that of another, or
            one that is shared and kept) and {NAME} for the unpacked archive NAME.tar.xz of {data}.
        packages: of heartlm whose speed it measures: their sources decide whether a result is out of date.
        minutes: about how long it takes on two cores.
        long: belongs to `make benchmarks-long`.
        script: without `.py`.
    """

    name: str
    arguments: str
    packages: tuple[str, ...]
    minutes: float
    long: bool = False
    script: str = ""

    @property
    def path(self) -> Path:
        """Of the script."""
        paths = (folder / f"{self.script or self.name}.py" for folder in FOLDERS)
        return next((path for path in paths if path.is_file()), FOLDERS[0] / f"{self.script or self.name}.py")


TRAINING = ("training", "models", "corpus", "kernels", "distributed", "instrumentation")
QUALITY = ("evaluation", "ecg", "tokenizers", *TRAINING)
FEDERATED = ("extensions/federated", "training", "models", "kernels")
MITDB = "--data {data}/mitdb --work {work}"
BENCHMARKS = (
    Benchmark("reading", "--data {data} --work {work:recordings}", ("ecg", "kernels"), 2),
    Benchmark("feeding", "--work {work}", ("training", "corpus", "kernels"), 4),
    Benchmark("tokenizing", "--data {data} --work {work:recordings}", ("ecg", "tokenizers", "corpus", "kernels"), 4),
    Benchmark("federated_rounds", MITDB, FEDERATED, 6),
    Benchmark("conv1d", "", ("extensions/conv1d", "kernels"), 5),
    Benchmark("sharding", "times", TRAINING, 10),
    Benchmark("sharding_memory", "memory", TRAINING, 12, script="sharding"),
    Benchmark("training", "--work {work}", TRAINING, 6),
    Benchmark("detect", "{data} --ludb {ludb}/ludb", ("ecg", "kernels"), 5),
    Benchmark("prediction", "--work {work} --windows 128 1024", ("extensions/scaling", *TRAINING), 16),
    Benchmark(
        "scaling", "--work {work} --windows 128 --study {work:prediction}/study", ("extensions/scaling", *TRAINING), 4
    ),
    Benchmark("federated", MITDB, FEDERATED, 20, long=True),
    Benchmark("statements", "--data {data} --work {work}", QUALITY, 25, long=True),
    Benchmark("pretraining", "--data {data} --work {work:statements}", QUALITY, 20, long=True),
    Benchmark("federated_ways", f"{MITDB} --privacy", FEDERATED, 15, long=True, script="federated"),
    Benchmark("quality", "--data {data} --work {work}", QUALITY, 150, long=True),
    Benchmark(
        "quality-shipped",
        "--study shipped --detected --data {data} --work {work}",
        (*QUALITY, "inference"),
        5,
        long=True,
        script="quality",
    ),
    Benchmark(
        "delineate",
        "--ludb {ludb}/ludb --qtdb {qtdb}/qtdb --networks {work}",
        ("delineation", "ecg", "kernels"),
        15,
        long=True,
    ),
    Benchmark(
        "delineate_export",
        "--ludb {ludb}/ludb --qtdb {qtdb}/qtdb --networks {work:delineate} --work {work}",
        ("delineation", "monitor", "kernels"),
        3,
        long=True,
    ),
    Benchmark("two_leads", "--quality {work:quality} --work {work}", (*QUALITY, "inference", "analysis"), 6, long=True),
    Benchmark("labels", "--quality {work:quality} --work {work}", QUALITY, 40, long=True),
    Benchmark(
        "waveform",
        "--data {data} --cinc2017 {cinc2017-train}/cinc2017 --nstdb {nstdb}/nstdb --work {work}",
        QUALITY,
        25,
        long=True,
    ),
    Benchmark(
        "af_rhythm",
        "--data {data} --ltafdb {ltafdb}/ltafdb --vitaldb {vitaldb-arrhythmia}/vitaldb-arrhythmia --work {work}",
        QUALITY,
        40,
        long=True,
    ),
    Benchmark("af_recordings", "--cinc2017 {cinc2017-train}/cinc2017 --work {work}", QUALITY, 40, long=True),
)


def sources_of(name: str) -> str | None:
    """A digest of the script, of the modules of these folders that it imports, and of the packages it measures.

    None for a benchmark that is not in the list.
    """
    listed = [each for each in BENCHMARKS if each.name == name]
    return digest_of(listed[0]) if listed else None


def digest_of(benchmark: Benchmark) -> str:
    """The digest of a benchmark's sources."""
    digest = hashlib.sha256()
    for path in _files(benchmark):
        digest.update(f"{path.relative_to(ROOT)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _files(benchmark: Benchmark) -> Iterator[Path]:
    scripts, waiting = set[Path](), [benchmark.path]
    while waiting:
        path = waiting.pop()
        if path.is_file() and path not in scripts:
            scripts.add(path)
            imported = re.findall(
                r"^\s*from ((?:lab|benchmarks|recipes|studies)[.\w]*) import (\w+)", path.read_text(), re.MULTILINE
            )
            waiting += [
                ROOT / f"{module.replace('.', '/')}{end}.py" for module, name in imported for end in ("", f"/{name}")
            ]
    yield from sorted(scripts)
    for package in sorted(set(benchmark.packages)):
        files = (ROOT / "src/heartlm" / package).rglob("*")
        yield from sorted(path for path in files if path.suffix in (".py", ".c", ".h"))
