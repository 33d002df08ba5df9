"""No small file fills the memory, and no file makes heartlm read another one."""

from __future__ import annotations

import base64
import gzip
import io
import json
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heartlm.errors import HeartlmError
from heartlm.formats.read import read_recording
from heartlm.storage import limits
from heartlm.storage.limits import MAX_SAMPLES, SAMPLES_PER_BYTE, SMALL_SAMPLES, check_samples, most_samples
from tests.clinical_files import WRITERS, write_ishne
from tests.edf_files import Lead, edf_bytes
from tests.fuzz.campaign import run_forked

RATE_HZ = 250
Build = Callable[[Path, int], Path]
"""`build(folder, samples)` writes a file of that number of samples, all of them 0, and returns its path."""


def test_two_weeks_of_twelve_leads_are_less_than_the_bound_and_real_signals_take_a_byte() -> None:
    assert MAX_SAMPLES >= 14 * 86400 * 1000 * 12
    assert SMALL_SAMPLES >= 86400 * 250 * 3
    assert most_samples(0) == SMALL_SAMPLES
    assert most_samples(SMALL_SAMPLES) == SAMPLES_PER_BYTE * SMALL_SAMPLES
    check_samples("a", MAX_SAMPLES)
    with pytest.raises(HeartlmError, match=r"^a: has or states \d+ samples, at most"):
        check_samples("a", MAX_SAMPLES + 1)


def test_what_does_not_fit_into_half_of_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MEMORY_BYTES", 1000)
    check_samples("a", 50, 10, held_bytes=10)
    with pytest.raises(HeartlmError, match=r"do not fit into memory; .* EDF or WFDB"):
        check_samples("a", 51, 10, held_bytes=10)


def _settings(path: Path) -> None:
    path.with_suffix("").with_suffix(".json").write_text(json.dumps({"rate_hz": RATE_HZ, "units": "mV"}))


def _zeros(num_bytes: int) -> Iterator[bytes]:
    for first in range(0, num_bytes, 1 << 24):
        yield bytes(min(1 << 24, num_bytes - first))


def _gzip(path: Path, begin: bytes, num_bytes: int, text: bytes = b"") -> None:
    with gzip.open(path, "wb", 6) as stream:
        stream.write(begin)
        for piece in _zeros(num_bytes):
            stream.write(text * (len(piece) // len(text)) if text else piece)


def npy_gz(folder: Path, samples: int) -> Path:
    begin = io.BytesIO()
    np.lib.format.write_array_header_1_0(begin, {"descr": "<f8", "fortran_order": False, "shape": (1, samples)})
    path = folder / "a.npy.gz"
    _gzip(path, begin.getvalue(), 8 * samples)
    _settings(path)
    return path


def csv_gz(folder: Path, samples: int) -> Path:
    path = folder / "a.csv.gz"
    _gzip(path, b"ecg [mV]\n" + b"0\n1\n" * 5000, 2 * samples - 20000, b"0\n")
    _settings(path)
    return path


def _element(kind: int, content: bytes) -> bytes:
    return struct.pack("<II", kind, len(content)) + content + b"\0" * (-len(content) % 8)


def _matrix_head(name: bytes, samples: int, kind: int = 6) -> bytes:
    return _element(6, struct.pack("<II", kind, 0)) + _element(5, struct.pack("<ii", 1, samples)) + _element(1, name)


def _deflated(begin: bytes, num_bytes: int, **options: Any) -> bytes:
    packer = zlib.compressobj(**options)
    return b"".join([packer.compress(begin), *(packer.compress(piece) for piece in _zeros(num_bytes)), packer.flush()])


def matlab_5(folder: Path, samples: int) -> Path:
    head = _matrix_head(b"val", samples) + struct.pack("<II", 9, 8 * samples)
    packed = _deflated(struct.pack("<II", 14, len(head) + 8 * samples) + head, 8 * samples)
    rate = _element(14, _matrix_head(b"fs", 1) + _element(9, struct.pack("<d", RATE_HZ)))
    variables = rate + struct.pack("<II", 15, len(packed)) + packed
    (folder / "a.mat").write_bytes(b"MATLAB 5.0".ljust(124) + b"\0\1IM" + variables)
    return folder / "a.mat"


def matlab_5_struct(folder: Path, samples: int) -> Path:
    """As field of a structure, whose own sizes are one."""
    inner = _matrix_head(b"", samples) + struct.pack("<II", 9, 8 * samples)
    names = _element(5, struct.pack("<i", 4)) + _element(1, b"val\0")
    head = _matrix_head(b"s", 1, 2) + names + struct.pack("<II", 14, len(inner) + 8 * samples) + inner
    packed = _deflated(struct.pack("<II", 14, len(head) + 8 * samples) + head, 8 * samples)
    rate = _element(14, _matrix_head(b"fs", 1) + _element(9, struct.pack("<d", RATE_HZ)))
    variables = rate + struct.pack("<II", 15, len(packed)) + packed
    (folder / "a.mat").write_bytes(b"MATLAB 5.0".ljust(124) + b"\0\1IM" + variables)
    return folder / "a.mat"


def _hdf5(folder: Path, samples: int, **options: Any) -> Path:
    import h5py

    with h5py.File(folder / "a.mat", "w", userblock_size=512) as file:
        file["fs"] = float(RATE_HZ)
        file.create_dataset("val", (samples, 1), "f8", **options)
    return folder / "a.mat"


def matlab_73(folder: Path, samples: int) -> Path:
    """Without chunks: none is written before there is a value."""
    return _hdf5(folder, samples, chunks=(min(samples, 1 << 20), 1), compression="gzip")


def matlab_73_chunk(folder: Path, samples: int) -> Path:
    """A small array whose chunk states many samples."""
    import h5py

    _hdf5(folder, 1000, chunks=(1000, 1), maxshape=(None, 1), compression="gzip")
    with h5py.File(folder / "a.mat", "r+") as file:
        file.create_dataset("x", (1000, 1), "f8", chunks=(samples, 1), maxshape=(None, 1), compression="gzip")
    return folder / "a.mat"


def matlab_73_stream(folder: Path, samples: int) -> Path:
    """A small array whose chunk unpacks to more than its size."""
    import h5py

    path = _hdf5(folder, 1000, chunks=(1000, 1), compression="gzip")
    with h5py.File(path, "r+") as file:
        file["val"].id.write_direct_chunk((0, 0), _deflated(b"", 8 * samples))
    return path


def parquet(folder: Path, samples: int) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    about = {"heartlm": json.dumps({"rate_hz": RATE_HZ})}
    block = min(samples, 1 << 22)
    table = pa.table({"ecg [mV]": np.zeros(block)}).replace_schema_metadata(about)
    with pq.ParquetWriter(folder / "a.parquet", table.schema, compression="zstd") as writer:
        for _ in range(samples // block):
            writer.write_table(table, row_group_size=block)
    return folder / "a.parquet"


def dicom_deflated(folder: Path, samples: int) -> Path:
    import pydicom

    path = folder / "a.dcm"
    WRITERS["dicom.dcm"](path, np.zeros((1, 100), np.int16), RATE_HZ, ("I",))
    data = pydicom.dcmread(path)
    data.file_meta.TransferSyntaxUID = pydicom.uid.DeflatedExplicitVRLittleEndian
    data.WaveformSequence[0].NumberOfWaveformSamples = samples
    data.WaveformSequence[0].WaveformData = bytes(2 * samples)
    data.save_as(path, enforce_file_format=True)
    return path


def scp(folder: Path, samples: int) -> Path:
    """Leads that state samples which the file does not have."""
    path = folder / "a.scp"
    WRITERS["scp.scp"](path, np.zeros((1, 1000), np.int16), RATE_HZ, ("I",))
    content = path.read_bytes()
    place = content.index(struct.pack("<IIB", 1, 1000, 1))
    path.write_bytes(content[: place + 4] + struct.pack("<I", samples) + content[place + 8 :])
    return path


def mfer(folder: Path, samples: int) -> Path:
    """Frames that state blocks of 500,000 samples and have none."""
    block = min(samples // 4, 500_000)
    head = b"\x40\x20" + b"MFR ".ljust(32, b"\0") + b"\1\1\0\5\1\1\x0b\4\1\xfd\0\4\x0a\1\0\x04\4"
    path = folder / "a.mwf"
    path.write_bytes(head + block.to_bytes(4, "big") + b"\x1e\1\0" * (samples // block + 1))
    return path


def sierra(folder: Path, samples: int) -> Path:
    """Leads of a Philips ECG in LZW: the longest string of the table, again and again."""
    codes = [0, *range(256, 1022), *[1021] * (samples // 383)]
    bits = (np.array(codes)[:, np.newaxis] >> np.arange(9, -1, -1)) & 1
    packed = np.packbits(bits.astype(np.uint8)).tobytes()
    path = folder / "a.xml"
    WRITERS["sierra.xml"](path, np.zeros((1, 1000), np.int16), RATE_HZ, ("I",))
    text = path.read_text(encoding="utf-16")
    begin = text.index(">", text.index("<parsedwaveforms")) + 1
    data = base64.b64encode(struct.pack("<IHh", len(packed), 0, 0) + packed).decode()
    tag = text[:begin].replace("<parsedwaveforms", '<parsedwaveforms compressflag="True" compressmethod="XLI"')
    path.write_text(tag + data + text[text.index("</parsedwaveforms") :], encoding="utf-16")
    return path


def flac(folder: Path, samples: int) -> Path:
    import soundfile

    with soundfile.SoundFile(folder / "a.dat", "w", RATE_HZ, 1, "PCM_16", format="FLAC") as file:
        for first in range(0, samples, 1 << 22):
            file.write(np.zeros(min(1 << 22, samples - first), np.int16))
    (folder / "a.hea").write_text(f"a 1 {RATE_HZ} {samples}\na.dat 516 200/mV 16 0 0 0 0 I\n")
    return folder / "a.hea"


def gaps(folder: Path, samples: int) -> Path:
    """A table whose times leap by almost a week, several times."""
    day_s = samples / RATE_HZ / 4
    lines = [f"{leap * day_s + place / RATE_HZ:.3f},{place % 50}" for leap in range(5) for place in range(1000)]
    (folder / "a.csv").write_text("time_s,ecg [uV]\n" + "\n".join(lines) + "\n")
    return folder / "a.csv"


BOMBS: tuple[Build, ...] = (
    npy_gz, csv_gz, matlab_5, matlab_5_struct, matlab_73, matlab_73_chunk, matlab_73_stream, parquet, dicom_deflated,
    scp, mfer, sierra, flac, gaps,
)  # fmt: skip
REFUSED = r"has or states \d+ samples|unpacks? to"


@pytest.mark.parametrize("build", BOMBS)
def test_a_file_that_unpacks_to_more_than_its_size_allows_is_refused(
    tmp_path: Path, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples = 400_000
    path = build(tmp_path, samples)
    for name in ("SMALL_SAMPLES", "GAP_SAMPLES"):
        monkeypatch.setattr(limits, name, 20_000)
    monkeypatch.setattr(limits, "SAMPLES_PER_BYTE", 1)
    monkeypatch.setattr("heartlm.formats.sample_table.GAP_SAMPLES", 20_000)
    monkeypatch.setattr("heartlm.formats.clinical._XLI_SAMPLES", 20_000)
    with pytest.raises(HeartlmError, match=REFUSED) as refused:
        read_recording(path).signal(0, 1)
    assert str(refused.value).startswith(str(tmp_path)) and "\n" not in str(refused.value)


@pytest.mark.parametrize("build", [build for build in BOMBS if build not in (matlab_73_stream, scp, mfer, sierra)])
def test_the_same_file_is_read_where_its_size_allows_it(tmp_path: Path, build: Build) -> None:
    recording = read_recording(build(tmp_path, 400_000))
    expected = 1000 if build is matlab_73_chunk else 401_000 if build is gaps else 400_000
    assert recording.signal().shape[1] == pytest.approx(expected, abs=1000)


@pytest.mark.slow
@pytest.mark.parametrize("build", BOMBS)
def test_a_real_bomb_takes_little_memory(tmp_path: Path, build: Build) -> None:
    """A file of at most a megabyte that would take 800 MB or more (400 MB as float32)."""
    path = build(tmp_path, 4 * limits.GAP_SAMPLES if build is gaps else 100_000_000)

    def read() -> int:
        try:
            read_recording(path).signal(0, 1)
        except HeartlmError as error:
            print(error)
            return 2
        return 0

    outcome = run_forked(read, tmp_path)
    assert outcome.status == 2, outcome
    assert outcome.peak_bytes < 300 << 20, f"{outcome.peak_bytes >> 20} MiB; {outcome.stdout}"


def test_files_that_are_read_in_slices_may_be_long(tmp_path: Path) -> None:
    """Two weeks of twelve leads at 1000 Hz, in files whose zeros take no space on the disk."""
    seconds, leads, rate_hz = 14 * 86400, 12, 1000
    path = tmp_path / "a.npy"
    with path.open("wb") as stream:
        stated = {"descr": "<i2", "fortran_order": False, "shape": (leads, seconds * rate_hz)}
        np.lib.format.write_array_header_1_0(stream, stated)
        stream.truncate(stream.tell() + 2 * leads * seconds * rate_hz)
    path.with_suffix(".json").write_text(json.dumps({"rate_hz": rate_hz, "units": "uV"}))
    (tmp_path / "b.dat").touch()
    os.truncate(tmp_path / "b.dat", 2 * leads * seconds * rate_hz)
    lines = [f"b {leads} {rate_hz} {seconds * rate_hz}", *[f"b.dat 16 200/mV 16 0 0 0 0 L{n}" for n in range(leads)]]
    (tmp_path / "b.hea").write_text("\n".join(lines) + "\n")
    write_ishne(tmp_path / "c.ecg", np.zeros((leads, 10), np.int16), rate_hz, ["I"] * leads, stated=seconds * rate_hz)
    os.truncate(tmp_path / "c.ecg", 522 + 2 * leads * seconds * rate_hz)
    for file in (path, tmp_path / "b.hea", tmp_path / "c.ecg"):
        recording = read_recording(file, repaired="accept")
        assert (recording.num_leads, recording.duration_s) == (leads, pytest.approx(seconds, abs=1))
        middle = recording.signal(10**9, 10**9 + 5)
        assert middle.shape == (leads, 5) and not middle.any()


def _hdf5_with(path: Path, add: Callable[[Any], object]) -> Path:
    import h5py

    with h5py.File(path, "w", userblock_size=512) as file:
        file["fs"] = float(RATE_HZ)
        add(file)
    return path


def test_hdf5_that_refers_to_other_files_is_refused(tmp_path: Path) -> None:
    import h5py

    secret = tmp_path / "secret"
    secret.write_bytes(b"root:x:0:0:" * 400)
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["val"] = np.sin(np.arange(1000) / 9)[np.newaxis]

    def external(file: Any) -> None:
        file.create_dataset("val", (1, 4000), "u1", external=[(str(secret), 0, 4000)])

    def virtual(file: Any) -> None:
        layout = h5py.VirtualLayout((1, 1000), "f8")
        layout[:] = h5py.VirtualSource(tmp_path / "other.h5", "val", (1, 1000))
        file.create_virtual_dataset("val", layout)

    def link(file: Any) -> None:
        file["val"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "val")

    def referred(file: Any) -> None:
        file.create_dataset("#refs#/a", (1, 4000), "u1", external=[(str(secret), 0, 4000)])
        file.create_dataset("leads", (1,), h5py.ref_dtype)[0] = file["#refs#/a"].ref

    def named(file: Any) -> None:  # a text is no reference
        file["#refs#/a"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "/")
        file.create_dataset("leads", (1,), h5py.string_dtype())[0] = "#refs#/a/val"
        file["val"] = h5py.SoftLink("/#refs#/a/val")

    for place, (add, reason) in enumerate(
        ((external, "lie in another file"), (virtual, "lie in another file"), (link, "link to another file"),
         (referred, "lie in another file"), (named, "has no array of numbers"))
    ):  # fmt: skip
        with pytest.raises(HeartlmError, match=reason):
            read_recording(_hdf5_with(tmp_path / f"{place}.mat", add))


def test_references_to_regions_and_long_attributes_of_hdf5_are_left_out(tmp_path: Path) -> None:
    import h5py

    ecg = np.sin(np.arange(1000) / 9)[np.newaxis]
    with h5py.File(tmp_path / "a.mat", "w", userblock_size=512, libver="latest") as file:
        file["fs"], file["val"] = float(RATE_HZ), ecg
        file["val"].attrs["MATLAB_class"] = np.zeros(1_000_000)
        file.create_dataset("leads", (1,), h5py.regionref_dtype)[0] = file["val"].regionref[:, :10]
    recording = read_recording(tmp_path / "a.mat")
    assert np.allclose(recording.signal(), ecg) and recording.lead_names == ("lead 1",)


def test_each_object_of_hdf5_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def add(file: Any) -> None:
        file["val"] = np.sin(np.arange(5000) / 9)[np.newaxis]
        for place in range(300):
            file[f"a{place}"], file[f"b{place}"] = file["/"], file["val"]

    monkeypatch.setattr(limits, "SMALL_SAMPLES", 6000)
    monkeypatch.setattr(limits, "SAMPLES_PER_BYTE", 0)
    recording = read_recording(_hdf5_with(tmp_path / "a.mat", add))
    assert (recording.num_leads, recording.num_samples) == (1, 5000)


def test_hdf5_with_filters_that_have_no_limit_is_refused(tmp_path: Path) -> None:
    import h5py

    def twice(file: Any) -> None:
        settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        settings.set_chunk((1, 5000))
        settings.set_deflate(9)
        settings.set_deflate(9)
        space = h5py.h5s.create_simple((1, 5000))
        values = h5py.h5d.create(file.id, b"val", h5py.h5t.NATIVE_DOUBLE, space, settings)
        values.write(h5py.h5s.ALL, h5py.h5s.ALL, np.ones((1, 5000)))

    with pytest.raises(HeartlmError, match="compressed by the filters"):
        read_recording(_hdf5_with(tmp_path / "a.mat", twice))
    for options in ({"compression": "lzf"}, {"compression": "gzip", "shuffle": True, "fletcher32": True}):

        def add(file: Any, options: dict[str, Any] = options) -> None:
            file.create_dataset("val", data=np.sin(np.arange(5000) / 9)[np.newaxis], chunks=(1, 500), **options)

        assert read_recording(_hdf5_with(tmp_path / "b.mat", add)).num_samples == 5000


@pytest.mark.parametrize("is_dictionary", [False, True])
def test_a_long_text_in_all_rows_of_a_parquet_file_is_not_repeated(tmp_path: Path, is_dictionary: bool) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = 200_000
    text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array(["12:00:00" + "x" * 100_000]))
    table = pa.table({"time": text, "ecg [mV]": np.sin(np.arange(rows) / 9)})
    pq.write_table(table, tmp_path / "a.parquet", store_schema=is_dictionary)
    _settings(tmp_path / "a.parquet")
    outcome = run_forked(lambda: read_recording(tmp_path / "a.parquet").num_samples != rows, tmp_path)
    assert outcome.status == 0, outcome.stderr
    assert outcome.peak_bytes < 500 << 20


def test_annotations_of_edf_without_an_end_are_searched_once(tmp_path: Path) -> None:
    """The time of a search that begins again at each annotation grows with the square of their number."""
    num_bytes = 1 << 20
    marks = b"+0\x14\x14\0" + b"+0\x14" * (num_bytes // 3) + b"x\0"
    leads = [Lead("ECG", np.zeros(200, np.int64)), Lead("EDF Annotations", texts=[marks], size=num_bytes // 2 + 10)]
    (tmp_path / "a.edf").write_bytes(edf_bytes(leads, 1, reserved="EDF+C"))
    outcome = run_forked(lambda: read_recording(tmp_path / "a.edf").annotations is not None, tmp_path, cpu_limit_s=10)
    assert outcome.fault((0,)) is None


def test_segments_that_are_named_often_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from heartlm.formats import wfdb_header

    (tmp_path / "s.hea").write_text("s 1 250 10\ns.dat 16 200/mV 16 0 0 0 0 I\n")
    (tmp_path / "a.hea").write_text("a/1000 1 250 10000\n" + "s 10\n" * 1000)
    calls = list[Path]()
    read = wfdb_header.read_header
    monkeypatch.setattr(wfdb_header, "read_header", lambda path: calls.append(path) or read(path))
    header = read(tmp_path / "a.hea")
    assert len(header.segments) == 1000 and len(calls) == 1


def test_markup_of_many_elements_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heartlm.formats.clinical._MOST_MARKS", 1000)
    for name in ("aecg.xml", "muse.xml", "kardia.json"):
        WRITERS[name](tmp_path / name, np.zeros((2, 500), np.int16), RATE_HZ, ("I", "II"))
        assert read_recording(tmp_path / name).num_samples == 500
        content = (tmp_path / name).read_bytes()
        end = content.rindex(b"}" if name.endswith("json") else b"</")
        more = b',"x":[' + b"[]," * 1000 + b"[]]" if name.endswith("json") else b"<x/>" * 1001
        (tmp_path / name).write_bytes(content[:end] + more + content[end:])
        with pytest.raises(HeartlmError, match="elements, attributes or lists"):
            read_recording(tmp_path / name)


def test_json_of_many_lists_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from heartlm.storage import reading

    monkeypatch.setattr(reading, "MAX_CONTAINERS", 100)
    assert len(reading.parse_json("[" + "[]," * 98 + "[]]")) == 99
    with pytest.raises(ValueError, match="more than 100 lists"):
        reading.parse_json("[" + "[]," * 99 + "[]]")
