"""What is damaged: valid files, the commands that read them, and what must hold when a command still succeeds."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.clinical_files import WRITERS, ishne_annotations, write_ishne, write_scp
from tests.conftest import DATA, ROOT
from tests.edf_files import Lead, edf_bytes, times
from tests.fuzz.mutations import EDF_OF_CHANNELS

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
CONVERT = ("data", "convert", "{folder}/ward", "{out}", "--processes", "1")
VERIFY = ("data", "verify", "{folder}", "--processes", "1")
CPU = ("--threads", "1", "--device", "cpu")


def _simulate(folder: Path, patients: int = 3) -> None:
    from heartlm.simulate.config import SimulationConfig
    from heartlm.simulate.write import simulate_database

    simulate_database(folder / "tinydb", SimulationConfig(patients=patients, minutes=0.5, seed=3, name="tinydb"))


def _wfdb(folder: Path) -> None:
    from heartlm.corpus.build import build_corpus
    from heartlm.corpus.config import TokenizeConfig
    from heartlm.tokenizers.sample import SampleTokenizer

    _simulate(folder)
    for path in (folder / "tinydb").iterdir():
        shutil.move(path, folder / path.name)
    (folder / "tinydb").rmdir()
    build_corpus([folder], SampleTokenizer(), folder.with_name("wfdb-expected"), TokenizeConfig(processes=1))


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


def _tables(folder: Path) -> None:
    """Tables as recorders export them: with each kind of clock, separator, decimal mark and header, and binary ones."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from scipy.io import savemat

    time_s = np.arange(2500) / 250
    ecg = np.round(np.sin(time_s * 9) + 0.01 * np.random.default_rng(0).normal(size=2500), 3)
    begin = np.datetime64("2024-05-01T10:00:00.000")
    iso = np.datetime_as_string(begin + np.round(1000 * time_s).astype("timedelta64[ms]"))
    texts: dict[str, tuple[str, list[str]]] = {
        "milliseconds.csv": (
            "time_ms,I,II\n",
            [f"{1000 * t:.1f},{v:.3f},{-v:.3f}" for t, v in zip(time_s, ecg, strict=True)],
        ),
        "polar.txt": (
            "Phone timestamp;sensor timestamp [ns];timestamp [ms];ecg [uV]\n",
            [
                f"{text};{599616000000000000 + round(t * 1e9)};{1000 * t:.3f};{1000 * v:.0f}"
                for text, t, v in zip(iso, time_s, ecg, strict=True)
            ],
        ),
        "comma.csv": ("time;MLII\n", [f"{t:.4f};{v:.3f}".replace(".", ",") for t, v in zip(time_s, ecg, strict=True)]),
        "iso.tsv": ("datetime\tecg [mV]\n", [f"{text}\t{v:.3f}" for text, v in zip(iso, ecg, strict=True)]),
        "packets.csv": (
            "timestamp [ms],sample [uV]\n",
            [
                f"{1000 * t:.0f},{1000 * v:.0f}" if n % 16 == 0 else f",{1000 * v:.0f}"
                for n, (t, v) in enumerate(zip(time_s, ecg, strict=True))
            ],
        ),
        "apple.csv": (
            "Name,Ada\nRecorded Date,2024-05-01 10:00:00 +0200\nSample Rate,250 hertz\n\n\nLead,Lead I\nUnit,µV\n\n",
            [f"{1000 * v:.3f}" for v in ecg],
        ),
        "labchart.txt": (
            "Interval=\t0.004 s\r\nExcelDateTime=\t4.5356354166666E+04\t2024-03-05 08:30:00\r\n"
            "TimeFormat=\tStartOfBlock\r\nDateFormat=\t\r\nChannelTitle=\tECG\tTrigger\r\n"
            "Range=\t10 mV\t10 V\r\nUnitName=\tmV\tV\r\n",
            [f"{v:.4f}\t0.0" + "\t#* moved" * (n == 700) for n, v in enumerate(ecg)],
        ),
        "opensignals.txt": (
            '# OpenSignals Text File Format\n# {"a": {"sensor": ["ECG"], "column": ["nSeq", "DI", "A1"], "time": '
            '"10:0:0.0", "date": "2024-5-1", "device": "bitalino", "label": ["A1"], "sampling rate": 250, '
            '"resolution": [4, 1, 10]}}\n'
            "# EndOfHeader\n",
            [f"{n % 16}\t0\t{512 + 341.33 * v:.0f}\t" for n, v in enumerate(ecg)],
        ),
    }
    for name, (head, lines) in texts.items():
        (folder / name).write_text(head + "\n".join(lines) + "\n")
    pq.write_table(pa.table({"time_s": time_s, "ecg [mV]": ecg.astype(np.float32)}), folder / "q.parquet")
    savemat(folder / "m.mat", {"ECG": ecg, "fs": 250.0, "units": "mV"})
    (folder / "c.csv.gz").write_bytes(gzip.compress((folder / "comma.csv").read_bytes(), mtime=0))


def _ecg(num_samples: int = 2500) -> NDArray[np.float64]:
    """A wave with noise in mV at 250 Hz."""
    wave = np.sin(np.arange(num_samples) * 9 / 250)
    return np.asarray(np.round(wave + 0.01 * np.random.default_rng(0).normal(size=num_samples), 3))


def _atc(folder: Path) -> None:
    ecg = _ecg()
    blocks = {b"info": b"2024-05-01T10:00:00.000".ljust(264, b"\0"), b"fmt ": bytes([1, 250, 0, 244, 1, 2, 0, 0])}
    blocks[b"ecg "] = np.round(2000 * ecg).astype("<i2").tobytes()
    content = b"ALIVE\0\0\0\3\0\0\0"
    for block, data in blocks.items():
        whole = block + len(data).to_bytes(4, "little") + data
        content += whole + (sum(whole) & 0xFFFFFFFF).to_bytes(4, "little")
    (folder / "k.atc").write_bytes(content)


def _movesense(folder: Path) -> None:
    ecg = _ecg()
    packets = [
        {"Samples": np.round(2621.44 * ecg[place : place + 16]).astype(int).tolist(), "Timestamp": 4 * place}
        for place in range(0, 2496, 16)
    ]
    (folder / "movesense.json").write_text(json.dumps({"Meas": {"ECG": packets}}))


def _phones(folder: Path) -> None:
    ecg = _ecg()
    reading = {"startTime": "2024-05-01T10:00:00.000", "waveformSamples": np.round(10922 * ecg).astype(int).tolist(),
               "samplingFrequencyHz": "250", "scalingFactor": 10922}  # fmt: skip
    (folder / "fitbit.json").write_text(json.dumps({"ecgReadings": [reading]}))
    samples = [{"voltage": int(1000 * v), "timeStamp": 767_872_800 * 10**9 + 4_000_000 * n} for n, v in enumerate(ecg)]
    packets = [{"dataType": "ECG", "data": samples[at : at + 50]} for at in range(0, len(samples), 50)]
    (folder / "polar.jsonl").write_text("\n".join(map(json.dumps, packets)))
    log = [reading | {"startTime": "2024-05-02T10:00:00", "waveformSamples": reading["waveformSamples"][:500],
                      "resultClassification": "Normal Sinus Rhythm"}, reading]  # fmt: skip
    (folder / "readings.json").write_text(json.dumps(log))
    (folder / "packets.json").write_text(json.dumps(packets))


def _labchart(folder: Path) -> None:
    """One block with and without times, in another language and compressed; two with times, comments and a gap."""
    ecg = _ecg()

    def block(
        rows: Iterable[str], start: str = "4.5356354166666E+04\t2024-03-05 08:30:00", title: str = "Channel"
    ) -> str:
        head = ("Interval=\t0.004 s", f"ExcelDateTime=\t{start}", "TimeFormat=\tStartOfBlock", "DateFormat=\tM/d/yyyy",
                f"{title}Title=\tECG\tTrigger", "Range=\t10.000 mV\t10 V", "UnitName=\tmV\tV")  # fmt: skip
        return "".join(f"{line}\r\n" for line in (*head, *rows))

    rows = [f"{v:.4f}\t0.0" + "\t#* moved" * (n == 700) for n, v in enumerate(ecg)]
    (folder / "one.txt").write_text(block(rows), newline="")
    timed = [f"{n % 1500 / 250:.3f}\t{row}" + "\t#1 a" * (n % 900 == 5) for n, row in enumerate(rows)]
    own_times = [f"{n / 250:.3f}\t{row}" for n, row in enumerate(rows)]
    (folder / "timed.txt").write_text(block(own_times), newline="")
    blocks = block(timed[:1500]) + block(timed[1500:], "4.5356354513888E+04\t2024-03-05 08:30:30")
    (folder / "blocks.txt").write_text(blocks, newline="")
    comma = block(rows, title="Kanal").replace(".", ",").replace("mV", "µV").replace("Title", "titel")
    (folder / "comma.txt").write_bytes(comma.encode("cp1252"))
    (folder / "one.txt.gz").write_bytes(gzip.compress((folder / "one.txt").read_bytes(), mtime=0))


def _exams(folder: Path) -> None:
    """HDF5 of databases: `ecg` as SPH has it, `tracings` of one recording and of several as CODE-15 % has them."""
    import h5py

    signal = np.zeros((12, 2048), np.float32)
    signal[:, 24:-24] = _ecg(2000) * np.arange(1, 13)[:, np.newaxis] / 12
    packed = {"compression": "gzip", "shuffle": True}
    for name, key, values, options in (
        ("sph.h5", "ecg", signal.astype(np.float16), {}),
        ("packed.h5", "ecg", signal.astype(np.float16), packed | {"chunks": (12, 512)}),
        ("code15.hdf5", "tracings", signal.T[np.newaxis], packed | {"chunks": (1, 1024, 12)}),
        ("part.h5", "tracings", np.stack([signal.T, signal.T]), packed),
    ):
        with h5py.File(folder / name, "w") as file:
            file.create_dataset(key, data=values, **options)
            file["exam_id"] = np.array([7])


def _frames(folder: Path) -> None:
    """WFDB with several samples a frame, and compressed by gzip."""
    ecg = np.round(200 * _ecg(2000)).astype("<i2")
    slow = np.arange(500, dtype="<i2")
    content = np.concatenate([ecg.reshape(500, 4), slow[:, np.newaxis]], axis=1).tobytes()
    (folder / "a.dat").write_bytes(content)
    (folder / "b.dat.gz").write_bytes(gzip.compress(content, mtime=0))
    for name in "ab":
        lines = [f"{name}.dat 16x4 200/mV 16 0 0 0 0 II", f"{name}.dat 16 10/NU 16 0 0 0 0 Resp"]
        (folder / f"{name}.hea").write_text("\n".join([f"{name} 2 62.5 500", *lines]) + "\n")


def _matlab(folder: Path) -> None:
    """Version 5 as it is and compressed, with arrays, texts, structures and cells, and version 4."""
    from scipy.io import savemat

    ecg = _ecg()
    struct = {"ecg": ecg[:500], "fs": 250, "inner": {"leads": np.array(["I", "II"], dtype=object), "x": {}}}
    cells = np.array(["II", 1.5, np.array(["a", "b"], dtype=object)], dtype=object)
    for name, options in (("a", {}), ("b", {"do_compression": True})):
        savemat(folder / f"{name}.mat", {"val": ecg[np.newaxis], "fs": 250.0, "units": "mV"}, **options)
        savemat(folder / f"{name}s.mat", {"s": struct, "leads": cells, "fs": 250.0}, **options)
    savemat(folder / "v4.mat", {"val": (1000 * ecg).astype(np.int16), "fs": 250.0, "units": "uV"}, format="4")


def _hdf5(folder: Path) -> None:
    """Version 7.3 of MATLAB, in chunks with filters, in groups, with references to texts; and the newer file format."""
    import h5py

    ecg = _ecg()
    for name, options in (("a", {"userblock_size": 512}), ("b", {"libver": "latest"})):
        with h5py.File(folder / f"{name}.mat", "w", **options) as file:
            file["fs"] = np.array([[250.0]])
            file.create_dataset("val", data=ecg[:, np.newaxis], chunks=(500, 1), compression="gzip", shuffle=True)
            file["val"].attrs["MATLAB_class"] = np.bytes_("double")
            file.create_dataset("s/more", data=ecg[:, np.newaxis], chunks=(1000, 1), fletcher32=True)
            file["#refs#/a"] = np.array([[73], [73]], np.uint16)
            file.create_dataset("leads", (1, 1), dtype=h5py.ref_dtype)[0, 0] = file["#refs#/a"].ref


def _parquet(folder: Path) -> None:
    """Columns of each kind with each compression, and a file that heartlm writes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    ecg = _ecg()
    time_s = np.arange(len(ecg)) / 250
    texts = pa.array(np.datetime_as_string(np.datetime64("2024-05-01T10:00:00.000") + np.arange(0, 10000, 4)))
    table = pa.table({"time_s": time_s, "ecg [mV]": ecg.astype(np.float32), "II": ecg})
    for compression in ("none", "gzip", "zstd", "snappy"):
        pq.write_table(table, folder / f"{compression}.parquet", compression=compression, row_group_size=1000)
    stamps = pa.table({"time": texts, "ecg [uV]": pa.array((1000 * ecg).astype(np.int16))})
    pq.write_table(stamps, folder / "texts.parquet", version="1.0", data_page_version="2.0")
    about = {"rate_hz": 250.0, "lead_names": ["II"], "units": {"II": "mV"}}
    own = pa.table({"time_s": time_s, "II": ecg.astype(np.float32)}).replace_schema_metadata(
        {"heartlm": json.dumps(about)}
    )
    pq.write_table(own, folder / "own.parquet")


def _dicom(folder: Path) -> None:
    """As it is, and deflated."""
    import pydicom

    samples = np.round(1000 * np.stack([_ecg(2000), -_ecg(2000)])).astype(np.int16)
    WRITERS["dicom.dcm"](folder / "a.dcm", samples, 250, ("I", "II"))
    data = pydicom.dcmread(folder / "a.dcm")
    data.file_meta.TransferSyntaxUID = pydicom.uid.DeflatedExplicitVRLittleEndian
    data.save_as(folder / "b.dcm", enforce_file_format=True)


def _of_writers(*names: str) -> Callable[[Path], None]:
    def build(folder: Path) -> None:
        samples = np.round(1000 * np.stack([_ecg(2000), -_ecg(2000)])).astype(np.int16)
        for name in names:
            WRITERS[name](folder / name, samples, 250, ("I", "II"))

    return build


# No clock in each row, and a header within the rows.
_WITHOUT_CHECK = ("apple.csv", "labchart.txt", "one.txt", "comma.txt", "blocks.txt")
_MOST_CHANGED, _PACKETS = 12, 2 * 16
"""Samples that one mutation can change so that they are still numbers in their places, and rows between two times."""


def _table_values_differ(case: Path, seed: Path, damaged: Path, stderr: str) -> str | None:
    """Samples of a damaged table stand at their times, unless the damage is in its header."""
    from heartlm.errors import HeartlmError
    from heartlm.formats.read import read_recording

    content, original = damaged.read_bytes(), (seed / damaged.name).read_bytes()
    try:
        recording, before = read_recording(damaged, repaired="accept"), read_recording(seed / damaged.name)
        signal = recording.signal()
    except HeartlmError:
        return None
    if damaged.suffix not in (".csv", ".txt", ".tsv") or damaged.name in _WITHOUT_CHECK:
        # The checksum of the format is a sum: it cannot show changes that cancel.
        noticed = recording.faults or sum(content) == sum(original)
        if damaged.suffix == ".atc" and not noticed and not np.array_equal(signal, before.signal()):
            return "samples with another checksum were used without a word"
        return None
    num_header = len(original) - len(original[original.rindex(b"\n", 0, 700) :])
    if content[:num_header] != original[:num_header]:
        return None
    if any("times not used" in repair for repair in recording.repairs):  # the user is told
        return None
    if abs(recording.rate_hz - before.rate_hz) > 2e-3 * before.rate_hz:
        return f"{recording.rate_hz:g} Hz in place of {before.rate_hz:g}"
    if recording.units != before.units or recording.leads != before.leads:
        return f"leads {recording.leads} in {recording.units}"
    length = min(recording.num_samples, before.num_samples)
    with np.errstate(invalid="ignore"):
        changed = np.abs(signal[:, :length] - before.signal()[:, :length]) > 1e-6
    if damaged.name == "opensignals.txt":  # lost rows are known modulo 16
        return None
    if int(changed.any(axis=0).sum()) > _MOST_CHANGED + (_PACKETS if damaged.name == "packets.csv" else 0):
        return f"{int(changed.any(axis=0).sum())} samples changed"
    return None


def _edf(folder: Path) -> None:
    """Files of each kind: EDF, EDF+ with annotations, EDF+D with gaps and several rates, BDF+, all in one record."""
    random = np.random.default_rng(0)

    def lead(label: str, num_samples: int, unit: str = "mV") -> Lead:
        wave = 8000 * np.sin(np.arange(num_samples) / 20) + random.normal(0, 50, num_samples)
        return Lead(label, np.round(wave).astype(np.int64), unit)

    notes = (1, b"+1.5\x141\x14\0"), (2, b"+2.25\x152\x14AFIB\x14\0"), (4, b"+4\x14patient\x14button\x14\0")
    leads, who = [lead("ECG II", 2560), lead("V5", 2560)], "P7 F 02-MAY-1951 Name"
    annotations = Lead("EDF Annotations", None, "", "-1", "1", texts=times(range(10), *notes))
    gaps = Lead("EDF Annotations", None, "", "-1", "1", texts=times([0, 1, 3.5, 4.5, 9, 10, 11, 12, 20, 21], notes[0]))
    bdf = Lead("BDF Annotations", None, "", "-1", "1", texts=times(range(10), *notes))
    files = {
        "a.edf": edf_bytes(leads, 10, recording="ward", day="02.03.24", clock="13.45.06"),
        "b.edf": edf_bytes([*leads, annotations], 10, reserved="EDF+C", patient=who),
        "c.edf": edf_bytes([leads[0], lead("ECG V1", 1280), gaps, lead("SpO2", 10, "%")], 10, reserved="EDF+D"),
        "d.bdf": edf_bytes([bdf, lead("ECG", 2560, "uV"), lead("Status", 2560, "")], 10, width=3, reserved="BDF+C"),
        "e.edf": edf_bytes(leads, 1, duration="10"),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)


def _edf_values_differ(case: Path, seed: Path, damaged: Path, stderr: str) -> str | None:
    """The samples of the damaged file, as read here or by edfio, are those that heartlm returns."""
    from heartlm.errors import HeartlmError
    from heartlm.formats.read import read_recording

    try:
        recording = read_recording(damaged, repaired="accept")
        if 4 * recording.num_leads * recording.num_samples > 1 << 28:
            return None
        signal = recording.signal()
    except HeartlmError:
        return None
    if recording.annotations is not None and not all(
        0 <= note.start <= note.stop <= recording.num_samples for note in recording.annotations.notes
    ):
        return "a note lies outside of the recording"
    content, original = damaged.read_bytes(), (seed / damaged.name).read_bytes()
    data_at = 256 * (1 + int(original[252:256]))
    if content[:data_at] == original[:data_at]:  # only samples and annotations are damaged
        expected = _plain_edf(content, 3 if damaged.suffix == ".bdf" else 2)
    else:
        expected = {} if recording.repairs else _edf_by_edfio(damaged)
    for name, lead in zip(recording.lead_names, signal, strict=True):
        valid = lead[~np.isnan(lead)]
        known = expected.get((name, recording.rate_hz))
        if known is not None and not (len(valid) >= len(known) and np.allclose(valid[: len(known)], known, 1e-5, 1e-5)):
            return f"lead {name}: other samples than in the file"
    return None


def _plain_edf(content: bytes, width: int) -> dict[tuple[str, float], np.ndarray]:
    """Samples in mV by label and rate of an undamaged header, of whole records only."""
    num = int(content[252:256])
    columns, first = [], 256
    for size in EDF_OF_CHANNELS:
        columns.append([content[first + size * n : first + size * (n + 1)].decode().strip() for n in range(num)])
        first += size * num
    names, counts = columns[0], list(map(int, columns[8]))
    records, duration = (len(content) - first) // (width * sum(counts)), float(content[244:252])
    found, offset = dict[tuple[str, float], np.ndarray](), 0
    frames = np.frombuffer(content, np.uint8, records * width * sum(counts), first).reshape(
        records, width * sum(counts)
    )
    for place, (name, count) in enumerate(zip(names, counts, strict=True)):
        own = frames[:, width * offset : width * (offset + count)].reshape(-1, width).astype(np.int64)
        digits = sum(own[:, byte] << (8 * byte) for byte in range(width))
        digits = np.where(own[:, -1] > 127, digits - (1 << 8 * width), digits)
        low, high, first_digit, last_digit = (float(columns[each][place]) for each in (3, 4, 5, 6))
        values = low + (digits - first_digit) * (high - low) / (last_digit - first_digit)
        found[name, count / duration] = values * {"uV": 1e-3}.get(columns[2][place], 1)
        offset += count
    return found


def _edf_by_edfio(path: Path) -> dict[tuple[str, float], np.ndarray]:
    """Samples by label and rate, as edfio reads them if it has no complaint."""
    import warnings

    import edfio

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            read = edfio.read_bdf if path.suffix == ".bdf" else edfio.read_edf
            signals = read(path, header_encoding="latin-1").signals
            factors = {"uV": 1e-3, "µV": 1e-3, "mV": 1.0}
            labels = [signal.label for signal in signals]
            return {
                (signal.label, float(signal.sampling_frequency)): signal.data * factors[signal.physical_dimension]
                for signal in signals
                if labels.count(signal.label) == 1 and signal.physical_dimension in factors
            }
        except Exception:
            return {}


def _ishne(folder: Path) -> None:
    samples = np.random.default_rng(0).integers(-1500, 1500, (3, 3000)).astype(np.int16)
    samples[1, 100:200] = -32768
    write_ishne(folder / "a.ecg", samples, 250, text=b"a note\0")
    write_ishne(folder / "b", samples[:1], 180, leads=("V5",), checksum=0)
    beats = [(b"NVSPX"[place % 5 : place % 5 + 1], 200) for place in range(14)]
    (folder / "a.ann").write_bytes(ishne_annotations(100, beats))


def _ishne_values_differ(case: Path, seed: Path, damaged: Path, stderr: str) -> str | None:
    """The samples that heartlm returns are those that stand in the file, read here without its reader."""
    from heartlm.errors import HeartlmError
    from heartlm.formats.read import read_recording

    if damaged.suffix == ".ann":
        return None

    try:
        recording = read_recording(damaged, repaired="accept")
        signal = recording.signal()
    except HeartlmError:
        return None
    content = damaged.read_bytes()
    num_leads, first = int.from_bytes(content[156:158], "little"), 522 + int.from_bytes(content[10:14], "little")
    nv = np.frombuffer(content, "<i2", num_leads, 206)
    steps = np.frombuffer(content, "<i2", recording.num_samples * num_leads, first).reshape(-1, num_leads).T
    expected = np.where(steps == -32768, np.nan, steps * np.where(nv > 0, nv / 1e6, 1.0)[:, np.newaxis])
    return None if np.allclose(signal, expected, rtol=1e-6, equal_nan=True) else "other samples than the file has"


def _convert(folder: Path) -> None:
    """Recordings of several formats, those that heartlm writes among them, and a conversion that was interrupted."""
    from heartlm.databases.convert import Conversion, convert_recordings
    from heartlm.formats.read import read_recording

    ward, others = folder / "ward", folder / "others"
    ward.mkdir()
    others.mkdir()
    samples = np.random.default_rng(0).integers(-1500, 1500, (2, 2000)).astype(np.int16)
    samples[1, 100:200] = -32768
    write_ishne(others / "a.ecg", samples, 250, leads=("II", "V5"), text=b"a note\0")
    beats = [(b"NVSPX"[place % 5 : place % 5 + 1], 200) for place in range(9)]
    (others / "a.ann").write_bytes(ishne_annotations(100, beats))
    for to, flac in (("wfdb", False), ("wfdb", True), ("edf", False), ("parquet", False)):
        done = convert_recordings(
            Conversion(source=others / "a.ecg", folder=folder / "own", to=to, flac=flac)  # type: ignore[arg-type]
        )
        name = f"{to}{'f' * flac}"
        for path in (folder / "own" / file for file in done.records[0]["files"]):
            content = path.read_bytes()
            if path.suffix == ".hea":
                content = content.replace(b"a.dat", f"{name}.dat".encode())
            (ward / f"{name}{path.suffix}").write_bytes(content)
        shutil.rmtree(folder / "own")
    for path in others.iterdir():
        shutil.move(path, ward / path.name)
    others.rmdir()
    write_scp(ward / "s.scp", samples[:, :1000], 500, ("I", "II"))
    lines = [f"{place / 250:.3f};{value}" for place, value in enumerate(samples[0])]
    (ward / "t.csv").write_text("\n".join(["time;ecg [uV]", *lines]) + "\n")
    convert_recordings(Conversion(source=ward, folder=folder / "done", to="edf"))
    report = json.loads((folder / "done" / "convert.json").read_text())
    for name, records in ((".convert", report["records"][:3]), (".convert-part-000001-000002", report["records"][3:])):
        lines = [json.dumps(each) for each in ({"settings": report["settings"]}, *records)]
        (folder / "done" / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    assert read_recording(folder / "done" / "a.edf").num_samples == 2000


def _converted_values_differ(case: Path, seed: Path, damaged: Path, stderr: str) -> str | None:
    """Converted recordings have the samples of their sources, as nearly as the report says."""
    from heartlm.databases.database import open_database
    from heartlm.errors import HeartlmError
    from heartlm.formats.read import read_recording

    for folder in (case / "out", case / "in" / "done"):
        if not (folder / "convert.json").is_file() or (damaged.parent == folder and stderr == ""):
            continue
        report = json.loads((folder / "convert.json").read_text())
        converted = open_database(folder)
        for entry in report["records"]:
            if "source" not in entry:
                continue
            try:
                before = read_recording(Path(entry["source"]), repaired="accept").signal()
            except HeartlmError:  # with a journal that is damaged, of another file
                continue
            after = converted.recording(entry["record"]).signal()
            if before.shape != after.shape:
                return f"{entry['record']}: {after.shape} samples in place of {before.shape}"
            for lead, old, new in zip(entry["leads"], before, after, strict=True):
                most = 0.0 if lead["exact"] else 1.01 * lead["largest_error"]
                with np.errstate(invalid="ignore"):
                    wrong = ~((np.abs(new - old) <= most + np.spacing(np.abs(old))) | (np.isnan(new) & np.isnan(old)))
                if wrong.any():
                    return f"{entry['record']}: lead {lead['name']}: {int(wrong.sum())} other samples"
    return None


def _clinical(folder: Path) -> None:
    samples = np.random.default_rng(0).integers(-1500, 1500, (3, 2000)).astype(np.int16)
    for name, write in WRITERS.items():
        if name != "ishne.ecg":
            write(folder / name, samples, 250)


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
    from heartlm.corpus.config import TokenizeConfig
    from heartlm.tokenizers.beat import BeatTokenizer

    _simulate(folder, patients)
    tokenizer = BeatTokenizer(num_levels=1, num_deviation_levels=1, num_codes=16)
    build_corpus([folder / "tinydb"], tokenizer, folder / "corpus", TokenizeConfig(processes=1))
    return folder / "corpus"


def _trained(folder: Path) -> None:
    import torch

    from heartlm.tasks.finetune import finetune
    from heartlm.tasks.task import FinetuneConfig
    from heartlm.training.config import PretrainConfig
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


_ALL: Iterable[Subject] = (
    Subject(
        "wfdb",
        _wfdb,
        ("*.hea", "*.dat", "*.atr", "*.json", "RECORDS"),
        ((*TOKENIZE, "--tokenizer", "sample"), (*TOKENIZE, "--tokenizer", "rhythm"), VERIFY),
        _tokens_differ_silently,
    ),
    Subject("arrays", _arrays, ("*",), ((*TOKENIZE, "--tokenizer", "sample"), VERIFY)),
    Subject(
        "tables",
        _tables,
        ("*",),
        (
            (*TOKENIZE, "--tokenizer", "sample", "--training-leads", "all"),
            VERIFY,
            (*VERIFY, "--rate", "250", "--units", "mV"),
            ("data", "show", "{folder}/polar", "--out", "{out}/p.svg"),
        ),
        _table_values_differ,
    ),
    Subject(
        "edf",
        _edf,
        ("*.edf", "*.bdf"),
        (
            (*TOKENIZE, "--tokenizer", "sample", "--training-leads", "all"),
            (*TOKENIZE, "--tokenizer", "rhythm"),
            VERIFY,
            ("data", "show", "{folder}/c", "--out", "{out}/c.svg"),
        ),
        _edf_values_differ,
    ),
    Subject(
        "ishne",
        _ishne,
        ("*",),
        ((*TOKENIZE, "--tokenizer", "sample"), (*TOKENIZE, "--tokenizer", "rhythm"), VERIFY),
        _ishne_values_differ,
    ),
    Subject(
        "convert",
        _convert,
        ("ward/*", "ward/*", "done/*.json", "done/.convert*.jsonl"),
        (
            *((*CONVERT, "--to", to) for to in ("wfdb", "edf", "parquet")),
            (*CONVERT, "--flac", "--damaged", "warn"),
            (*CONVERT, "--anonymize"),
            ("data", "convert", "{folder}/ward", "{folder}/done", "--to", "edf", "--processes", "1"),
        ),
        _converted_values_differ,
    ),
    Subject("clinical", _clinical, ("*",), ((*TOKENIZE, "--tokenizer", "sample"), VERIFY)),
    Subject("mat", _mat, ("*",), ((*TOKENIZE, "--tokenizer", "sample"), VERIFY)),
    *(
        Subject(name, build, ("*",), ((*TOKENIZE, "--tokenizer", "sample", "--training-leads", "all"), VERIFY, VERIFY))
        for name, build in (
            ("exams", _exams),
            ("phones", _phones),
            ("frames", _frames),
            ("matlab", _matlab),
            ("hdf5", _hdf5),
            ("parquet", _parquet),
            ("dicom", _dicom),
            ("scp", _of_writers("scp.scp")),
            ("aecg", _of_writers("aecg.xml")),
            ("carts", _of_writers("muse.xml", "cardiosoft.xml", "sierra.xml", "mortara.xml")),
            ("mfer", _of_writers("mfer.mwf")),
            ("kardia", _of_writers("kardia.json")),
            ("movesense", _movesense),
        )
    ),
    *(
        Subject(name, build, ("*",), ((*TOKENIZE, "--tokenizer", "sample"), VERIFY), _table_values_differ)
        for name, build in (("atc", _atc), ("labchart", _labchart))
    ),
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
)  # fmt: skip

SUBJECTS: dict[str, Subject] = {subject.name: subject for subject in _ALL}
for _path in sorted((ROOT / "tests/extensions").glob("*/subjects.py")):
    _module = import_module(f"tests.extensions.{_path.parent.name}.subjects")
    SUBJECTS |= {subject.name: subject for subject in _module.SUBJECTS}
if (DATA / "formats").is_dir():
    SUBJECTS["formats"] = Subject(
        "formats", _formats, ("**/*",), ((*TOKENIZE, "--tokenizer", "sample"), VERIFY)
    )  # fmt: skip
if (DATA / "mitdb").is_dir():
    SUBJECTS["annotations"] = Subject(
        "annotations", _annotations, ("*.atr",), ((*TOKENIZE, "--tokenizer", "rhythm"), VERIFY)
    )
