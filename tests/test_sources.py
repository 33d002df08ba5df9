"""Recordings at addresses: the same as from a local folder, from a server that works and from one that fails."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import heartlm
from heartlm.cli.main import main
from heartlm.corpus.corpus import open_corpus
from heartlm.databases import part_files
from heartlm.databases.database import open_database
from heartlm.errors import HeartlmError
from heartlm.sources import cache, store
from heartlm.sources.address import SourcePath, output_path, source_path
from heartlm.storage.atomic import write_text
from lab.bucket import ENVIRONMENT, Answer, Bucket, served_bucket

pytest.importorskip("s3fs", reason="the extra cloud is not installed")
pytest.importorskip("moto", reason="moto, an S3 server, is not installed")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    with served_bucket() as bucket:
        yield bucket
    gc.collect()  # sessions end now, and not in a later test at the limit of recursion


@pytest.fixture
def bucket(served: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """The bucket without faults, and an empty cache; this process knows nothing of it."""
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "cache"))
    monkeypatch.setattr(store, "FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(cache, "_own", None)
    store._known.entries.clear()
    store._known.complete.clear()
    served.fault = served.refuse = None
    served.requests.clear()
    return served


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three recordings of ten seconds."""
    from heartlm.simulate.config import SimulationConfig
    from heartlm.simulate.write import simulate_database

    folder = tmp_path_factory.mktemp("short") / "tinydb"
    simulate_database(folder, SimulationConfig(patients=3, minutes=0.5, seed=3, name="tinydb"))
    return folder


def test_the_text_of_an_address_is_its_own_however_it_is_written():
    for text in ("s3://ward/mitdb/100", Path("s3://ward/mitdb/100"), "s3:/ward/mitdb/100"):
        path = source_path(text)
        assert str(path) == "s3://ward/mitdb/100"
        assert str(path.parent / "101.hea") == "s3://ward/mitdb/101.hea"
        assert path.absolute() == path.resolve() == SourcePath("s3:/ward/mitdb/100")
    assert type(source_path("data/mitdb")) is type(Path())


@pytest.mark.parametrize("text", ["https://me:word@host/100.hea", "https://host/100.edf?X-Amz-Signature=0a1b"])
def test_an_address_with_a_secret_is_refused_without_repeating_it(text: str):
    with pytest.raises(HeartlmError, match="password or a query") as caught:
        source_path(text)
    assert "word@" not in str(caught.value) and "0a1b" not in str(caught.value)


def test_local_paths_need_no_fsspec(short: Path):
    code = (
        "import sys; sys.modules['fsspec'] = None; import heartlm; "
        f"print(heartlm.open_recording({str(short / 's0001')!r}).signal().shape[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_what_is_missing_to_read_an_address_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(HeartlmError, match=r"gs://: reading it needs the package 'gcsfs'.*heartlm\[cloud\]"):
        heartlm.open_recording("gs://ward/100")


def test_a_folder_is_the_same_database(bucket: Bucket, short: Path):
    remote, local = open_database(bucket.put_folder(short, "tinydb")), open_database(short)
    assert remote.record_ids == local.record_ids
    for record_id in local.record_ids:
        here, there = local.recording(record_id), remote.recording(record_id)
        assert np.array_equal(here.signal(), there.signal(), equal_nan=True)
        assert np.array_equal(here.annotations.sample, there.annotations.sample)
        assert (here.patient_id, here.lead_names, here.start) == (there.patient_id, there.lead_names, there.start)
        assert local.split_of(record_id) == remote.split_of(record_id)


def test_one_recording_of_a_large_folder_is_opened_without_listing_it(bucket: Bucket, short: Path):
    address = bucket.put_folder(short, "tinydb")
    bucket.requests.clear()
    assert heartlm.open_recording(f"{address}/s0002").num_samples > 0
    assert not [each for each in bucket.requests if "prefix=tinydb%2F&" in each and "max-keys" not in each]
    with pytest.raises(HeartlmError, match=r"tinydb/s0009: no such recording; there are 3, for example s000"):
        heartlm.open_recording(f"{address}/s0009")


def test_what_does_not_exist_is_one_line(bucket: Bucket):
    for address in ("s3://no-such-bucket/100", f"{bucket.address}/no-such-folder/100"):
        with pytest.raises(HeartlmError, match="no such") as caught:
            heartlm.open_recording(address)
        assert str(caught.value).startswith(address.removesuffix("/100"))


def test_the_second_reading_comes_from_the_cache(bucket: Bucket, short: Path):
    address = bucket.put_folder(short, "tinydb")
    first = heartlm.open_recording(f"{address}/s0001").signal()
    cache.start_again()
    bucket.requests.clear()
    assert np.array_equal(heartlm.open_recording(f"{address}/s0001").signal(), first)
    assert not [each for each in bucket.requests if each.endswith((".hea", ".dat")) and each.startswith("GET")]


def test_threads_that_start_together_make_one_client(bucket: Bucket):
    paths = [source_path(f"{bucket.address}/together/{number}") for number in range(8)]
    for path in paths:
        bucket.put(f"together/{path.name}", path.name.encode())
    assert len(list((source_path(bucket.address) / "together").files_below())) == len(paths)
    store._systems.clear()
    bucket.requests.clear()
    with ThreadPoolExecutor(len(paths)) as threads:
        assert list(threads.map(SourcePath.read_bytes, paths)) == [path.name.encode() for path in paths]
    # s3fs asks for the region of the bucket before it makes its client
    assert bucket.requests.count(f"HEAD /{bucket.name}") == 1


def test_a_damaged_block_is_fetched_again(bucket: Bucket, short: Path):
    address = bucket.put_folder(short, "tinydb")
    first = heartlm.open_recording(f"{address}/s0001").signal()
    for file in cache.cache_folder().rglob("*.0"):
        file.write_bytes(file.read_bytes()[:-6] + b"damage")
    cache.start_again()
    assert np.array_equal(heartlm.open_recording(f"{address}/s0001").signal(), first)


def test_the_cache_stays_below_its_size(bucket: Bucket, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cache, "cache_bytes", lambda: 1 << 24)
    content = os.urandom(3 << 20)
    own = cache.cache_folder() / "ab" / "recording.0"
    own.parent.mkdir(parents=True)
    own.write_bytes(b"of the user")
    os.utime(own, (0, 0))
    for number in range(8):
        bucket.put(f"large/{number}.bin", content)
        assert source_path(f"{bucket.address}/large/{number}.bin").read_bytes() == content
    kept = list(cache.cache_folder().rglob("*.*"))
    assert own.read_bytes() == b"of the user" and kept.remove(own) is None
    assert sum(file.stat().st_size for file in kept) <= 1.06 * (1 << 24)
    newest = {file.name.partition(".")[0] for file in kept}
    last = source_path(f"{bucket.address}/large/7.bin")
    assert cache._file_of(str(last), store.existing(last), 0).is_file()
    assert len(newest) < 8
    monkeypatch.undo()
    monkeypatch.setenv(cache.SIZE_GB, "much")
    with pytest.raises(HeartlmError, match="HEARTLM_CACHE_GB: 'much' found"):
        cache.cache_bytes()


def test_ranges_of_a_long_file_are_those_of_its_content(bucket: Bucket):
    content = os.urandom((1 << 23) + 4321)
    bucket.put("long.bin", content)
    with source_path(f"{bucket.address}/long.bin").open("rb") as stream:
        for start, size in [(0, 10), ((1 << 18) - 3, 6), ((1 << 22) - 3, 1 << 22), (len(content) - 5, 50), (5, 0)]:
            stream.seek(start)
            assert stream.read(size) == content[start : start + size]
        stream.seek(-4, 2)
        assert stream.read() == content[-4:]
    bucket.put("empty.bin", b"")
    assert source_path(f"{bucket.address}/empty.bin").read_bytes() == b""


def failing(times: int, answer: Answer | None, ending: str = ".dat"):
    """A fault in the first answers to requests of files with an ending."""
    left = [times]
    lock = threading.Lock()

    def fault(path: str, _: object, usual: Answer) -> Answer | None:
        with lock:
            if path.endswith(ending) and left[0]:
                left[0] -= 1
                return answer
        return usual

    return fault


BUSY: Answer = (503, {"Content-Length": "0"}, b"")


@pytest.mark.parametrize("answer", [BUSY, None], ids=["busy", "cut"])
def test_an_answer_that_fails_is_asked_for_again(bucket: Bucket, short: Path, answer: Answer | None):
    address = bucket.put_folder(short, "tinydb")
    bucket.fault = failing(2, answer)
    there, here = heartlm.open_recording(f"{address}/s0001"), heartlm.open_recording(short / "s0001")
    assert np.array_equal(here.signal(), there.signal(), equal_nan=True)


@pytest.mark.parametrize(("answer", "words"), [(BUSY, "cannot be read"), (None, "cannot be read")], ids=["busy", "cut"])
def test_attempts_have_a_limit(bucket: Bucket, short: Path, answer: Answer | None, words: str):
    address = bucket.put_folder(short, "tinydb")
    recording = heartlm.open_recording(f"{address}/s0002")
    bucket.fault = failing(1000, answer)
    bucket.requests.clear()
    with pytest.raises(HeartlmError, match=rf"tinydb/s0002\.dat: {words} \(.*\), 5 attempts; try again later"):
        recording.signal()
    assert len([each for each in bucket.requests if each.endswith("s0002.dat")]) == store.ATTEMPTS


def test_an_answer_of_another_length_is_an_error(bucket: Bucket, short: Path):
    address = bucket.put_folder(short, "tinydb")
    recording = heartlm.open_recording(f"{address}/s0003")
    size = (short / "s0003.dat").stat().st_size
    bucket.fault = failing(1000, (206, {"Content-Length": "7", "Content-Range": f"bytes 0-6/{size}"}, b"1234567"))
    with pytest.raises(HeartlmError, match=rf"is not what was listed \(7 of {size} bytes received\)"):
        recording.signal()


def test_a_file_that_changes_while_it_is_read_is_an_error(bucket: Bucket, short: Path):
    address = bucket.put_folder(short, "tinydb")
    recording = heartlm.open_recording(f"{address}/s0001")
    content = (short / "s0001.dat").read_bytes()
    bucket.put("tinydb/s0001.dat", content[::-1])
    with pytest.raises(HeartlmError, match=r"s0001\.dat: changed since it was listed; run the command again"):
        recording.signal()


def test_a_slow_server_is_given_up(bucket: Bucket, short: Path, monkeypatch: pytest.MonkeyPatch):
    address = bucket.put_folder(short, "tinydb")
    store._systems.clear()
    monkeypatch.setattr(store, "TIMEOUT_S", 0.1)
    monkeypatch.setattr(store, "ATTEMPTS", 2)
    recording = heartlm.open_recording(f"{address}/s0001")
    until = threading.Event()

    def slow(path: str, _: object, usual: Answer) -> Answer:
        if path.endswith(".dat"):
            until.wait(5)
        return usual

    bucket.fault = slow
    with pytest.raises(HeartlmError, match=r"s0001\.dat: cannot be read \(.*\), 2 attempts"):
        recording.signal()
    until.set()
    store._systems.clear()


def test_without_credentials_a_public_bucket_is_read_and_another_is_one_line(
    bucket: Bucket, short: Path, monkeypatch: pytest.MonkeyPatch
):
    address = bucket.put_folder(short, "public", ACL="public-read")
    bucket.client.put_bucket_acl(Bucket=bucket.name, ACL="public-read")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(store, "_systems", {})
    monkeypatch.setattr(store, "_anonymous", set())
    assert heartlm.open_recording(f"{address}/s0001").num_samples > 0
    assert store._anonymous == {"s3"}
    denied = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
    bucket.fault = lambda path, headers, usual: (
        usual if "Authorization" in headers else (403, {"Content-Length": str(len(denied))}, denied)
    )
    with pytest.raises(HeartlmError, match="no credentials were found; set the credentials of the store"):
        heartlm.open_recording(f"{bucket.address}/tinydb/s0002").signal()


def test_credentials_stand_in_no_error(bucket: Bucket, short: Path):
    address = bucket.put_folder(short, "tinydb")
    denied = b"<Error><Code>InvalidAccessKeyId</Code><Message>secret-of-the-ward AKIAWARDWARDWARD</Message></Error>"
    bucket.fault = lambda *_: (403, {"Content-Length": str(len(denied))}, denied)
    with pytest.raises(HeartlmError, match="access is denied; set the credentials") as caught:
        heartlm.open_recording(f"{address}/s0002")
    assert not any(ENVIRONMENT[name] in str(caught.value) for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"))


def test_addresses_of_sources_are_read_only(bucket: Bucket):
    with pytest.raises(HeartlmError, match="addresses are read only"):
        write_text(source_path(f"{bucket.address}/tinydb/s0001.json"), "-")


def files_of(folder: Path) -> dict[str, object]:
    """Content of the files of a folder, without what names the source, and without reports that have times."""
    files: dict[str, object] = {}
    for path in sorted(folder.rglob("*")):
        content: object = path.read_bytes() if path.is_file() else None
        if path.name in ("convert.json", "manifest.json"):
            content = None
        elif path.suffix == ".json":
            content = json.loads(path.read_bytes()) | {"source": None}
        elif path.name == "records.parquet":
            content = pq.read_table(path).drop(["source"])
        files[path.relative_to(folder).as_posix()] = content
    return files


@pytest.mark.parametrize(
    "command",
    [
        pytest.param("analyze IN --out OUT --processes 1", marks=pytest.mark.slow),
        pytest.param("delineate IN --out OUT", marks=pytest.mark.slow),
        "delineate IN --out OUT --processes 1",
        "data convert IN OUT --to edf --processes 1",
        "data convert IN OUT --to parquet --processes 1",
        "tokenize IN --out OUT --processes 1 --tokenizer beat",
        "tokenize IN --out OUT --processes 2 --tokenizer beat",
    ],
)
def test_results_are_those_of_the_local_folder(bucket: Bucket, short: Path, tmp_path: Path, command: str):
    address = bucket.put_folder(short, "tinydb")
    for source, out in ((str(short), "local"), (address, "remote")):
        words = command.replace("IN", source).replace("OUT", str(tmp_path / out)).split()
        assert main(words) == 0
    local, remote = files_of(tmp_path / "local"), files_of(tmp_path / "remote")
    assert local.keys() == remote.keys()
    assert [name for name in local if local[name] != remote[name]] == []


def test_an_index_of_a_bucket_needs_no_listing_and_gives_the_same(
    bucket: Bucket, short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    address = bucket.put_folder(short, "tinydb")
    assert main(["data", "index", address, "--out", str(tmp_path / "index.parquet")]) == 0
    store._known.entries.clear()
    store._known.complete.clear()
    cache.start_again()
    bucket.requests.clear()
    words = ["tokenize", "--processes", "1", "--out"]
    assert main([*words, str(tmp_path / "remote"), str(tmp_path / "index.parquet")]) == 0
    assert not [each for each in bucket.requests if "list-type" in each and "max-keys" not in each]
    assert main([*words, str(tmp_path / "local"), str(short)]) == 0
    assert (tmp_path / "remote/codes.bin").read_bytes() == (tmp_path / "local/codes.bin").read_bytes()
    bucket.put("tinydb/s0002.dat", (short / "s0002.dat").read_bytes()[::-1])
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "other cache"))
    cache.start_again()
    with pytest.raises(HeartlmError, match=r"s0002\.dat: changed since it was listed"):
        open_database(tmp_path / "index.parquet").recording("s0002").signal()


def test_folders_are_listed_one_after_another_in_any_order_of_names(bucket: Bucket):
    keys = ["a/1.hea", "a/b/2.hea", "a/b/c/3.hea", "a/b-d/4.hea", "a/z.hea", "b.hea", "a/.hidden/5.hea", "a/.x"]
    for key in keys:
        bucket.put(f"nested/{key}", b"-")
    groups = [sorted(text[len(bucket.address) + 8 :] for text in group) for group in
              store.folders_below(source_path(f"{bucket.address}/nested"))]  # fmt: skip
    assert sorted(groups) == [["a/1.hea", "a/z.hea"], ["a/b-d/4.hea"], ["a/b/2.hea"], ["a/b/c/3.hea"], ["b.hea"]]


def test_a_large_bucket_is_a_stream_as_its_folder(
    bucket: Bucket, short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The tables are the same, and workers ask for no file again that was listed."""
    from heartlm.databases import discovery
    from heartlm.databases.each_recording import stream_recordings

    wards = tmp_path / "wards"
    for place in ("b/s0001", "b-2/s0002", "s0003"):
        (wards / place).parent.mkdir(parents=True, exist_ok=True)
        for ending in ("hea", "dat"):
            shutil.copy(short / f"{place[-5:]}.{ending}", wards / f"{place}.{ending}")
    address = source_path(bucket.put_folder(wards, "wards"))
    for held in (100, 2):
        monkeypatch.setattr(discovery, "HELD", held)
        _, in_folder, _ = stream_recordings([wards], "warn")
        (remote,), in_bucket, _ = stream_recordings([address], "warn")
        here, there = list(in_folder), list(in_bucket)
        assert [place for place, _ in here] == [place for place, _ in there]
        for (_, record_id), files in there:
            store.forget(address)
            bucket.requests.clear()
            assert remote.with_files({record_id: files}).recording(record_id).num_samples > 0
            assert {each.rpartition("/")[2] for each in bucket.requests} <= {f"{files.stem.name}.hea"}
    words = ["--tables", "parquet", "--processes", "1"]
    assert main(["delineate", str(wards), "--out", str(tmp_path / "local"), *words]) == 0
    assert main(["delineate", str(address), "--out", str(tmp_path / "remote"), *words]) == 0
    tables = [pq.read_table(tmp_path / each / "beats").to_pylist() for each in ("local", "remote")]
    assert tables[0] == tables[1] and len(tables[0]) > 10
    words = ["--tokenizer", "rhythm", "--processes", "1"]
    assert main(["tokenize", str(wards), "--out", str(tmp_path / "here"), *words]) == 0
    store.forget(address)
    bucket.requests.clear()
    assert main(["tokenize", str(address), "--out", str(tmp_path / "there"), *words]) == 0
    codes = [(tmp_path / each / "codes.bin").read_bytes() for each in ("here", "there")]
    assert codes[0] == codes[1] and len(codes[0]) > 10


def test_a_pattern_chooses_files_of_a_bucket(
    bucket: Bucket, short: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    address = bucket.put_folder(short, "tinydb")
    words = ["delineate", f"{address}/s000[13].hea", "--out", str(tmp_path), "--processes", "1"]
    assert main(words) == 0
    assert sorted(path.stem for path in tmp_path.glob("*.json")) == ["s0001", "s0003"]
    assert main(["delineate", f"{address}/*.edf", "--out", str(tmp_path)]) == 2
    assert "no file has such a name" in capsys.readouterr().err


@pytest.mark.parametrize(("to", "ending"), [("edf", "edf"), ("ishne", "ecg"), ("parquet", "parquet"), ("wfdb", "dat")])
def test_a_slice_of_a_long_recording_needs_no_whole_file(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str, ending: str
):
    monkeypatch.setattr(cache, "BLOCK_BYTES", 1 << 19)
    num_samples = 1_250_000
    steps = np.random.default_rng(1).integers(-3, 4, (3, num_samples)).cumsum(axis=1)
    signal = (np.abs(steps % 4001 - 2000) / 1000).astype(np.float32)
    (tmp_path / "array").mkdir()
    np.save(tmp_path / "array" / "long.npy", signal)
    (tmp_path / "array" / "long.json").write_text(
        json.dumps({"rate_hz": 250, "units": "mV", "lead_names": ["II", "V1", "V5"]})
    )
    heartlm.convert(tmp_path / "array", tmp_path / to, to=to)  # type: ignore[arg-type]
    bucket.put_folder(tmp_path / to, f"long-{to}")
    local = next(heartlm.open_recording(tmp_path / to / f"long.{each}") for each in ("hea", ending)
                 if (tmp_path / to / f"long.{each}").exists())  # fmt: skip
    remote = heartlm.open_recording(f"{bucket.address}/long-{to}/{local.path.name}")
    bucket.requests.clear()
    for start in (0, num_samples // 2, num_samples - 1000):
        here, there = local.signal(start, start + 1000), remote.signal(start, start + 1000)
        assert np.array_equal(here, there, equal_nan=True)
    fetched = sum(path.stat().st_size for path in cache.cache_folder().rglob("*.*"))
    size = (tmp_path / to / f"long.{ending}").stat().st_size
    if to != "parquet":  # whose columns are read as a whole
        assert size > 12 * cache.BLOCK_BYTES and fetched < size
    assert np.array_equal(local.signal(), remote.signal(), equal_nan=True)


@pytest.mark.slow
def test_ten_thousand_objects_are_listed_as_a_stream(bucket: Bucket, monkeypatch: pytest.MonkeyPatch):
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.s3.models import s3_backends

    backend, num_folders = s3_backends[DEFAULT_ACCOUNT_ID]["aws"], 50
    monkeypatch.setattr(store, "_RECENT", 1_000)
    for folder in range(num_folders):
        for number in range(100):
            for ending in ("dat", "hea"):
                backend.put_object(bucket.name, f"many/{folder:03d}/r{number:02d}.{ending}", b"-")
    bucket.requests.clear()
    sizes, num_requests = list[int](), list[int]()
    for group in store.folders_below(source_path(f"{bucket.address}/many")):
        sizes.append(len(group))
        num_requests.append(len([each for each in bucket.requests if "list-type" in each]))
    assert sizes == [200] * num_folders
    assert num_requests[0] == 1 and num_requests[-1] == 10
    of_bucket = [each for each in store._known.entries if each.startswith(f"{bucket.address}/many/")]
    assert len(of_bucket) <= 1_200  # those of the last folders


def test_recordings_of_a_web_page_of_links(short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A server that gives no ranges, as that of Python."""
    from functools import partial
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "cache"))
    monkeypatch.setattr(store, "FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=short.parent)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}/tinydb"
        remote, local = open_database(address), open_database(short)  # type: ignore[arg-type]
        assert remote.record_ids == local.record_ids
        for record_id in local.record_ids:
            here, there = local.recording(record_id), remote.recording(record_id)
            assert np.array_equal(here.signal(), there.signal(), equal_nan=True)
            assert np.array_equal(here.annotations.sample, there.annotations.sample)
        one = heartlm.open_recording(f"{address}/s0002")
        assert np.array_equal(one.signal(), local.recording("s0002").signal(), equal_nan=True)
        with pytest.raises(HeartlmError, match="no such"):
            heartlm.open_recording(f"{address}/s0009")
        server.shutdown()


def test_a_folder_with_the_name_of_a_recording_is_another_place(bucket: Bucket, short: Path):
    for ending in ("hea", "dat"):
        content = (short / f"s0001.{ending}").read_bytes()
        bucket.put(f"ward/7.{ending}", content.replace(b"s0001", b"7"))
        bucket.put(f"ward/7/s0001.{ending}", content)
    assert heartlm.open_recording(f"{bucket.address}/ward/7").num_samples > 0
    assert heartlm.open_recording(f"{bucket.address}/ward/7/s0001").num_samples > 0
    assert source_path(f"{bucket.address}/ward/7").is_dir()


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_arrays_of_any_order_are_read_by_ranges(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str, is_transposed: bool
):
    monkeypatch.setattr(cache, "BLOCK_BYTES", 1 << 18)
    signal = np.random.default_rng(2).normal(0, 0.4, (3, 200_000)).astype(np.float32)
    np.save(tmp_path / "long.npy", np.asarray(signal.T if is_transposed else signal, order=order))  # type: ignore[call-overload]
    (tmp_path / "long.json").write_text(json.dumps({"rate_hz": 250, "lead_names": ["II", "V1", "V5"]}))
    for name in ("long.npy", "long.json"):
        bucket.put(f"array/{name}", (tmp_path / name).read_bytes())
    local, remote = (heartlm.open_recording(f"{each}/long.npy") for each in (tmp_path, f"{bucket.address}/array"))
    assert remote.repairs == local.repairs and bool(local.repairs) is is_transposed
    for start, stop, leads in ((0, 10, None), (150_000, 150_100, ["V5", "II"]), (199_000, 200_000, ["V1"])):
        assert np.array_equal(remote.signal(start, stop, leads), local.signal(start, stop, leads))
    one = heartlm.open_recording(f"{bucket.address}/array/long.npy", leads="V1")
    assert np.array_equal(one.signal(), local.signal(leads=["V1"]))
    bucket.put("array/cut.npy", (tmp_path / "long.npy").read_bytes()[:-4])
    bucket.put("array/cut.json", (tmp_path / "long.json").read_bytes())
    with pytest.raises(HeartlmError, match="before the end of its array"):
        heartlm.open_recording(f"{bucket.address}/array/cut.npy")


# --- results in a bucket ----------------------------------------------------------------------------------------------


def stored(bucket: Bucket, prefix: str) -> dict[str, bytes]:
    """Objects below a prefix."""
    paginator = bucket.client.get_paginator("list_objects_v2")
    keys = [each["Key"] for page in paginator.paginate(Bucket=bucket.name, Prefix=f"{prefix}/")
            for each in page.get("Contents", ())]  # fmt: skip
    found = {key: bucket.client.get_object(Bucket=bucket.name, Key=key)["Body"].read() for key in keys}
    return {key.removeprefix(f"{prefix}/"): content for key, content in found.items()}


def below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("command", ["analyze", "delineate", "embed foundation"])
def test_tables_in_a_bucket_are_those_of_a_folder(bucket: Bucket, short: Path, tmp_path: Path, command: str):
    words = [*command.split(), bucket.put_folder(short, "tinydb"), "--tables", "parquet", "--processes", "1", "--out"]
    assert main([*words, str(tmp_path / "out")]) == 0
    prefix = command.replace(" ", "-")
    assert main([*words, f"{bucket.address}/{prefix}"]) == 0
    assert stored(bucket, prefix) == below(tmp_path / "out")
    # a repeated command writes the totals alone; one with fewer recordings leaves no rows of others behind
    bucket.put(f"{prefix}/summaries/part-000007.parquet", b"of an earlier command")
    bucket.requests.clear()
    assert main([*words, f"{bucket.address}/{prefix}"]) == 0
    assert not [each for each in bucket.requests if each.startswith(("PUT", "POST")) and ".parquet" in each]
    assert stored(bucket, prefix) == below(tmp_path / "out")


def test_a_part_file_that_cannot_be_written_is_absent_and_the_repeated_command_continues(
    bucket: Bucket, short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(part_files, "FIRST_GROUP", 1)
    words = ["delineate", str(short), "--tables", "parquet", "--processes", "1", "--out", f"{bucket.address}/resumed"]
    bucket.refuse = lambda method, path: method == "PUT" and "waves/part-000001" in path
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "part-000001.parquet: cannot be written" in error and ENVIRONMENT["AWS_SECRET_ACCESS_KEY"] not in error
    first = stored(bucket, "resumed")
    assert {"summaries/part-000000.parquet", "beats/part-000001.parquet"} <= first.keys()
    assert "summaries/part-000001.parquet" not in first and "totals.json" not in first
    bucket.refuse = None
    bucket.requests.clear()
    assert main(words) == 0
    assert not [each for each in bucket.requests if each.startswith("PUT") and "part-000000" in each]
    assert main([*words[:-1], str(tmp_path / "out")]) == 0
    assert stored(bucket, "resumed") == below(tmp_path / "out")


def test_a_corpus_in_a_bucket_is_that_of_a_folder_and_there_when_it_is_complete(
    bucket: Bucket, short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("heartlm.corpus.build.WORTH_KEEPING_S", 0)
    address = f"{bucket.address}/corpus"
    words = ["tokenize", str(short), "--tokenizer", "rhythm", "--processes", "1", "--out"]
    bucket.refuse = lambda method, path: method == "PUT" and "corpus/sample.bin" in path
    assert main([*words, address]) == 2
    assert "sample.bin: cannot be written" in capsys.readouterr().err
    assert "manifest.json" not in stored(bucket, "corpus")
    bucket.refuse = None
    assert main([*words, address]) == 0
    assert "continues after 3 of 3 recordings" in capsys.readouterr().err
    assert main([*words, str(tmp_path / "out")]) == 0
    expected = below(tmp_path / "out")
    del expected["manifest.json"]  # with the command
    of_bucket = stored(bucket, "corpus")
    del of_bucket["manifest.json"]
    assert of_bucket == expected
    # shards by parts, in place of it; opened by a machine that has no copy
    shards = ["--shards", "2"]
    assert [main([*words, address, "--part", part]) for part in ("1/2", "2/2")] == [0, 0]
    assert len([*(tmp_path / "home/heartlm/corpora").glob(".corpus-*.shards/000?")]) == 2
    assert main([*words, address, *shards]) == main([*words, str(tmp_path / "shards"), *shards]) == 0
    assert stored(bucket, "corpus").keys() == below(tmp_path / "shards").keys()
    local = open_corpus(tmp_path / "shards")
    for home in ("home", "another home", "another home"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / home))
        remote = open_corpus(address)  # type: ignore[arg-type]
        assert remote.manifest_hash == local.manifest_hash and np.array_equal(remote.codes, local.codes)
    assert remote.tokenizer().content_hash() == local.tokenizer().content_hash()
    bucket.put("corpus/letter.txt", b"-")
    assert main([*words, address]) == 2
    assert "s3://ward/corpus has other files, as letter.txt" in capsys.readouterr().err
    assert main([*words, "hf://datasets/a/b"]) == 2
    assert "hf:// is read only" in capsys.readouterr().err


@pytest.mark.slow
def test_several_processes_write_tables_to_a_bucket(
    bucket: Bucket, short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(part_files, "FIRST_GROUP", 1)
    words = ["delineate", str(short), "--tables", "parquet", "--out"]
    assert main([*words, str(tmp_path / "out"), "--processes", "1"]) == 0
    assert main([*words, f"{bucket.address}/several", "--processes", "2"]) == 0
    assert stored(bucket, "several") == below(tmp_path / "out")


@pytest.mark.slow
def test_a_large_file_is_uploaded_in_parts_and_is_complete_or_absent(bucket: Bucket, tmp_path: Path):
    content = bytes(range(256)) * (110 << 12)  # more than two parts of s3fs
    (tmp_path / "large").write_bytes(content)
    path = output_path(f"{bucket.address}/large")
    bucket.refuse = lambda method, path: method == "PUT" and "partNumber=2" in path
    with pytest.raises(HeartlmError, match="large: cannot be written"):
        path.put(tmp_path / "large")  # type: ignore[attr-defined]
    assert not path.is_file()
    assert not bucket.client.list_multipart_uploads(Bucket=bucket.name).get("Uploads")
    bucket.refuse = None
    path.put(tmp_path / "large")  # type: ignore[attr-defined]
    assert bucket.client.get_object(Bucket=bucket.name, Key="large")["Body"].read() == content


@pytest.mark.parametrize("write", [heartlm.analyze, heartlm.pretrain, heartlm.finetune])
def test_python_refuses_a_bucket_for_other_outputs_before_it_reads(bucket: Bucket, write: Any):
    with pytest.raises(HeartlmError, match=r"^out: s3://ward/x: a local or shared folder expected; [^\n]*$"):
        write("beats", out="s3://ward/x")
    assert not bucket.requests


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["delineate", "{short}", "--out", "s3://ward/x"], "out: s3://ward/x: a local or shared folder expected"),
        (["embed", "foundation", "{short}", "--out", "s3://ward/x.npz"], "out: s3://ward/x.npz: a local or shared"),
        (["pretrain", "--corpus", "c", "--out", "s3://ward/x"], "out: s3://ward/x: a local or shared folder expected"),
        (["data", "convert", "{short}", "s3://ward/x"], "s3://ward/x: "),
        (["delineate", "{short}", "--tables", "parquet", "--out", "https://ward/x"], "https:// is read only"),
        (["analyze", "{short}", "--tables", "parquet", "--pages", "all", "--out", "s3://ward/x"], "pages: all found"),
        (["delineate", "{short}", "--tables", "parquet", "--processes", "1", "--out", "s3://none/x"], "s3://none/x"),
    ],
)
def test_other_outputs_in_a_bucket_are_refused_in_one_line(
    bucket: Bucket, short: Path, words: list[str], error: str, capsys: pytest.CaptureFixture[str]
):
    assert main([word.format(short=short) for word in words]) == 2
    told = capsys.readouterr().err.splitlines()
    assert error in told[-1]
