"""What works on one process does so without the calls and files of Linux: as on macOS, as far as Linux can show it."""

import subprocess
import sys
from pathlib import Path

# Removed before heartlm is imported: affinity, /proc, /sys and /dev/shm, and what C libraries of other systems lack.
WITHOUT_LINUX = """
import ctypes, os, platform, sys

for name in ("sched_getaffinity", "sched_setaffinity", "memfd_create", "posix_fadvise", "eventfd", "pidfd_open"):
    vars(os).pop(name, None)

def check(path):
    if isinstance(path, (str, bytes, os.PathLike)) and os.fsdecode(path).startswith(("/proc", "/sys", "/dev/shm")):
        raise FileNotFoundError(2, "not on this system", path)

def stat(path, *given, see=os.stat, **named):
    check(path)
    return see(path, *given, **named)

os.stat = stat
sys.addaudithook(lambda event, given: check(given[0]) if event in ("open", "os.listdir", "os.scandir") else None)
platform.libc_ver = lambda *given: ("", "")

class CLibrary(ctypes.CDLL):
    def __getattr__(self, name):
        if name in ("prctl", "renameat2", "mallopt"):
            raise AttributeError(name)
        return super().__getattr__(name)

ctypes.CDLL = CLibrary
"""


def run_without_linux(code: str, *arguments: str | Path) -> str:
    command = [sys.executable, "-c", WITHOUT_LINUX + code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_what_is_removed_is_missed():
    assert run_without_linux(
        """
try:
    open("/proc/self/status")
except FileNotFoundError:
    print(hasattr(os, "sched_getaffinity"), hasattr(ctypes.CDLL(None), "prctl"), hasattr(ctypes.CDLL(None), "printf"))
"""
    ).split() == ["False", "False", "True"]


def test_analyse_embed_tokenise_and_train_without_linux(unspoilt: Path, tmp_path: Path):
    printed = run_without_linux(
        """
import heartlm
from heartlm.system.cores import usable_cpus

data, work = sys.argv[1:]
assert usable_cpus() == list(range(os.cpu_count()))
heartlm.analyze(data + "/s0001", out=work + "/analysis")
vectors = heartlm.load_model("foundation").embed(data + "/s0001").vectors
for _ in range(2):  # the second replaces a folder
    corpus = heartlm.tokenize(data, work + "/corpus", heartlm.TokenizeConfig(processes=2))
run = heartlm.pretrain(corpus, work + "/run", heartlm.PretrainConfig(steps=3, depth=1))
print(len(vectors), run.is_finished)
""",
        unspoilt,
        tmp_path,
    )
    num_vectors, is_finished = printed.split()[-2:]
    assert int(num_vectors) > 20 and is_finished == "True"
    assert (tmp_path / "analysis/s0001.html").is_file()
