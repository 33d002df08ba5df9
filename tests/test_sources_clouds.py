"""Google Cloud Storage and Azure Blob Storage, by emulators on this machine: results are those of a local folder."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

AZURITE = Path(__file__).parents[1] / "build" / "azurite" / "node_modules" / ".bin" / "azurite-blob"
"""The emulator of Azure, if it is not in PATH; .ci/run installs it there."""

# The account and key that Azurite documents for everyone.
AZURE = (
    "DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;"
    "AccountKey=Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==;"
    "BlobEndpoint=http://127.0.0.1:{port}/devstoreaccount1;"
)


class Cloud:
    """A bucket of an emulator, and the variables by which commands find it."""

    def __init__(self, kind: str, system: Any, variables: dict[str, str]) -> None:
        self.kind, self.system, self.variables = kind, system, variables

    def put_folder(self, folder: Path, name: str) -> str:
        for path in folder.iterdir():
            self.system.put_file(str(path), f"ward/{name}/{path.name}")
        return f"{self.kind}://ward/{name}"

    def heartlm(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "heartlm", *map(str, words)]
        return subprocess.run(
            command, env=os.environ | self.variables, capture_output=True, text=True, timeout=200, check=False
        )

    def ran(self, *words: str | Path) -> None:
        done = self.heartlm(*words)
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module", params=["gs", "az"])
def cloud(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    kind, folder = request.param, tmp_path_factory.mktemp(request.param)
    if find_spec(package := {"gs": "gcsfs", "az": "adlfs"}[kind]) is None:  # gcsfs reads variables when it is imported
        pytest.skip(f"{package} is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    if kind == "gs":
        own = Path(sys.executable).parent
        server = shutil.which("gcp-storage-emulator", path=f"{own}{os.pathsep}{os.environ['PATH']}")
        words = ["start", "--host", "127.0.0.1", "--port", port, "--in-memory"]
        # by default gcsfs asks for the kind of bucket by gRPC, which the emulator has not
        variables = {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}", "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}
        options: dict[str, Any] = {"token": "anon", "project": "test"}
    else:
        server = shutil.which("azurite-blob") or (str(AZURITE) if AZURITE.exists() else None)
        words = ["--blobHost", "127.0.0.1", "--blobPort", port, "--inMemoryPersistence", "--skipApiVersionCheck"]
        variables = {"AZURE_STORAGE_CONNECTION_STRING": AZURE.format(port=port)}
        options = {"connection_string": variables["AZURE_STORAGE_CONNECTION_STRING"]}
    if server is None:
        pytest.skip(f"no emulator of {kind}:// is installed")
    variables |= {"HEARTLM_CACHE": str(folder / "cache"), "XDG_CACHE_HOME": str(folder / "home")}
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in variables.items():
            patch.setenv(name, value)
        process = subprocess.Popen([server, *words], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        stack.callback(process.wait)
        stack.callback(process.kill)
        while True:
            assert process.poll() is None, "the emulator ended"
            try:
                socket.create_connection(("127.0.0.1", int(port)), 1).close()
                break
            except OSError:
                time.sleep(0.1)
        import fsspec

        system = fsspec.filesystem(kind, skip_instance_cache=True, use_listings_cache=False, **options)
        system.mkdir("ward")
        yield Cloud(kind, system, variables)


@pytest.fixture(scope="module")
def recordings(tiny_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("few") / "few"
    folder.mkdir()
    for path in (path for name in ("s0001", "s0002", "s0003") for path in tiny_database.glob(f"{name}.*")):
        shutil.copy(path, folder)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("part-*.parquet")}


def test_tables_are_those_of_the_folder_also_in_the_bucket(cloud: Cloud, recordings: Path, tmp_path: Path) -> None:
    address = cloud.put_folder(recordings, "few")
    words = ["--tables", "parquet", "--processes", "1"]
    cloud.ran("delineate", recordings, "--out", tmp_path / "local", *words)
    cloud.ran("delineate", address, "--out", tmp_path / "remote", *words)
    cloud.ran("data", "index", address, "--out", tmp_path / "few.parquet")
    found = f"{cloud.kind}://ward/found"
    cloud.ran("delineate", tmp_path / "few.parquet", "--out", found, *words)
    cloud.system.get(f"{found}/beats/part-000000.parquet", str(tmp_path / "beats.parquet"))
    local, remote = content(tmp_path / "local"), content(tmp_path / "remote")
    assert local["beats/part-000000.parquet"] == remote["beats/part-000000.parquet"]
    assert local["waves/part-000000.parquet"] == remote["waves/part-000000.parquet"]
    assert (tmp_path / "beats.parquet").read_bytes() == local["beats/part-000000.parquet"]


def test_a_corpus_is_written_replaced_and_opened(cloud: Cloud, recordings: Path, tmp_path: Path) -> None:
    address, out = cloud.put_folder(recordings, "few"), f"{cloud.kind}://ward/corpora/few"
    words = ["--tokenizer", "rhythm", "--processes", "1"]
    cloud.ran("tokenize", recordings, "--out", tmp_path / "local", *words)
    cloud.ran("tokenize", address, "--out", out, "--shards", "2", *words)
    cloud.ran("tokenize", address, "--out", out, *words)
    assert not cloud.system.exists(f"{out}/shards"), "files of the corpus before"
    script = "import sys; from heartlm.corpus.corpus import open_corpus; print(open_corpus(sys.argv[1]).folder)"
    words = [sys.executable, "-c", script, out]
    opened = subprocess.run(words, env=os.environ | cloud.variables, capture_output=True, text=True, check=True)
    copy = Path(opened.stdout.strip())
    assert (copy / "codes.bin").read_bytes() == (tmp_path / "local" / "codes.bin").read_bytes() != b""


def test_what_is_not_there_or_changed_is_one_line(cloud: Cloud, recordings: Path, tmp_path: Path) -> None:
    address = cloud.put_folder(recordings, "few")
    cloud.ran("data", "index", address, "--out", tmp_path / "few.parquet")
    options = {"overwrite": True} if cloud.kind == "az" else {}
    cloud.system.put_file(str(recordings / "s0002.hea"), "ward/few/s0001.hea", **options)
    words = ["--processes", "1", "--cache", tmp_path / "empty"]  # what was read before is in the other
    changed = cloud.heartlm("delineate", tmp_path / "few.parquet", "--out", tmp_path / "out", *words)
    assert f"{address}/s0001.hea: changed since it was listed" in changed.stdout + changed.stderr, changed
    for command in (
        ["delineate", f"{cloud.kind}://nobucket/few", "--out", tmp_path / "no"],
        ["tokenize", recordings, "--out", f"{cloud.kind}://nobucket/few", "--tokenizer", "rhythm"],
    ):
        missing = cloud.heartlm(*command)
        assert missing.returncode == 2 and "no such file or bucket; check its address" in missing.stderr
        assert missing.stderr.count("\n") == 1
