"""The public interface of heartlm, which `import heartlm` exports and the command line calls.

    open_recording ─► detect_beats, convert
                  ├─► delineate ─► Intervals
                  ├─► annotate, analyze (files and pages, of folders too), find_alarms
                  └─► load_model ─► Model.analyze ─► Findings
                                ├─► Model.embed   ─► Embeddings
                                └─► Model.save_pretrained (a folder as on the Hugging Face hub)
    tokenize ─► pretrain ─► finetune ─► evaluate ─► Scores
            └─► WindowDataset, for a training loop of your own

Errors that the user can correct raise `HeartlmError`. The functions print nothing outside of `show_progress()`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from heartlm.analysis.embeddings import Embeddings
from heartlm.analysis.findings import Findings
from heartlm.analysis.model import Model
from heartlm.corpus.build import build_configured
from heartlm.corpus.config import TokenizeConfig
from heartlm.corpus.corpus import Corpus, open_corpus
from heartlm.databases.database import locate, opened
from heartlm.ecg.derived_leads import derive_leads
from heartlm.ecg.recording import Annotations, Recording
from heartlm.errors import HeartlmError, needs
from heartlm.evaluation.config import EvaluationConfig
from heartlm.evaluation.results import Scores
from heartlm.formats.stated import Stated
from heartlm.models.pretrained import find_run
from heartlm.runs.run_folder import RunFolder
from heartlm.sources.address import local_output, output_path, source_path
from heartlm.storage.typed import typed
from heartlm.system.engine import LIMIT_S, PartOptions
from heartlm.system.progress import show_progress
from heartlm.system.public import public, show_plain_types
from heartlm.tasks.task import FinetuneConfig
from heartlm.training.config import PretrainConfig

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from heartlm.analysis.limits import Limits
    from heartlm.analysis.recordings import Analyses
    from heartlm.databases.convert import Converted
    from heartlm.delineation.intervals import Intervals
    from heartlm.monitor.alarms import Alarm, AlarmRules
    from heartlm.monitor.config import MonitorConfig
    from heartlm.tasks.annotate import Annotated
    from heartlm.training.dataset import WindowDataset

AnyPath = str | Path
Config = TypeVar("Config")


def __getattr__(name: str) -> Any:
    if name != "WindowDataset":  # a subclass of one of torch, which is slow to import
        raise AttributeError(f"module 'heartlm.api' has no attribute {name!r}")
    with needs("train", "torch"):
        from heartlm.training.dataset import WindowDataset
    show_plain_types(WindowDataset)
    return WindowDataset


def open_recording(
    path: AnyPath,
    *,
    strict: bool = False,
    rate_hz: float | None = None,
    units: str | Sequence[str] | None = None,
    leads: str | Sequence[str] | None = None,
) -> Recording:
    """Open a recording; samples and annotations are read on first access.

    Args:
        path: path of the record, DATABASE/RECORD as in WFDB programs, or of a file in any format that `heartlm data
            formats` lists; or its address, such as `"s3://bucket/mitdb/100"`.
        strict: whether to refuse a file that must be repaired to be read, see `Recording.repairs`.
        rate_hz: samples per second, of a table or array that does not state it.
        units: unit of all leads, or of each, likewise: `"mV"`, `"uV"`, `"V"`, or steps of a converter per mV,
            `"200/mV"`, with the step of 0 mV `"200(1024)/mV"`.
        leads: leads to read by their names, or names for all leads of a file that does not name them.

    Returns:
        Recording with `.leads`, `.rate_hz`, `.num_samples`, `.start`, `.patient`, `.annotations` and `.signal(start,
        stop, leads)`, or in seconds `.signal(start_s=60, stop_s=70)`. The signal is float32 `[num_leads, num_samples]`
        in millivolts, NaN where invalid.

    Raises:
        HeartlmError: the recording does not exist, its header cannot be read, what it states contradicts `rate_hz` or
            `leads`, or it must be repaired and `strict` is true.

    Examples:
        >>> import heartlm
        >>> recording = heartlm.open_recording("data/mitdb/100")
        >>> recording.signal(0, 3600, leads=["MLII"]).shape
        (1, 3600)
    """
    stated = Stated.of(rate_hz, units, leads)
    if not isinstance(path, str | Path):
        raise HeartlmError(f"path: {path!r} found, a path expected; samples in memory: Recording.from_array")
    database, record_id = locate(source_path(path), repaired="refuse" if strict else "warn", stated=stated)
    return database.recording(record_id)


def convert(
    source: AnyPath,
    folder: AnyPath,
    *,
    to: Literal["wfdb", "edf", "ishne", "parquet"] = "wfdb",
    flac: bool = False,
    anonymize: bool = False,
    damaged: Literal["refuse", "warn"] = "refuse",
    strict: bool = False,
    processes: int = 1,
    engine: Literal["processes", "dask", "mpi"] = "processes",
    scheduler: str | None = None,
    limit_s: float = LIMIT_S,
    part: str | None = None,
) -> Converted:
    """Write recordings of any format as WFDB records, EDF+, ISHNE or Parquet files, as `heartlm data convert`.

    Args:
        source: recording, or folder of recordings.
        folder: output folder: new, empty, or of an interrupted conversion with the same settings, which continues.
        to: format.
        flac: whether WFDB signals are compressed.
        anonymize: whether names, IDs and free text are dropped and dates shifted.
        damaged: treatment of recordings that show damage.
        strict: whether to leave out recordings whose files must be repaired to be read.
        processes: number of recordings to convert in parallel.
        engine, scheduler, limit_s, part: where recordings are converted, see `heartlm.system.engine.PartOptions`.

    Returns:
        `.records` has the entry of each recording in the report, `convert.json`; `.left_out` one line per recording
        that was not converted. After a part the report is not there yet: the same call without `part` writes it.

    Raises:
        HeartlmError: there is no recording, none can be converted, or the folder holds other files or cannot be
            written.

    Examples:
        >>> import heartlm
        >>> done = heartlm.convert("data/mitdb/100", "shared", to="edf", anonymize=True)
    """
    from heartlm.databases.convert import Conversion, convert_recordings

    task = Conversion(
        source=source_path(source),
        folder=source_path(folder),
        to=to,
        flac=flac,
        anonymize=anonymize,
        damaged=damaged,
        repaired="refuse" if strict else "warn",
    )
    options = PartOptions(engine=engine, scheduler=scheduler, processes=processes, limit_s=limit_s, part=part)
    return convert_recordings(task, options)


def detect_beats(recording: Recording | AnyPath, lead: int | str | None = None) -> NDArray[np.int64]:
    """Detect the heartbeats in one lead.

    Args:
        recording: recording or its path.
        lead: index or name of the lead. The default is MLII or II if present, else the first lead in millivolts.

    Returns:
        Sample positions of the beats, ascending.

    Raises:
        HeartlmError: the recording has no ECG lead, or its sampling rate is too low for the detector.
    """
    from heartlm.corpus.encode import beats_for
    from heartlm.ecg.leads import ecg_lead

    found = opened(recording)
    return beats_for(found, None, "detected", ecg_lead(found, lead)).sample


def detect_pacing(recording: Recording | AnyPath, beats: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
    """Find the spikes of a ventricular pacemaker, in all ECG leads of 300 Hz or more.

    Args:
        recording: recording or its path. It is read as a whole.
        beats: sample positions of the beats, ascending; by default those of `detect_beats`.

    Returns:
        Sample positions of the spikes, ascending: one for each paced beat, of stretches in which many beats have one.

    Raises:
        HeartlmError: the recording has no ECG lead, or its sampling rate is too low.
    """
    import numpy as np

    from heartlm.analysis.pacing import LOWEST_RATE_HZ, pacing_spikes
    from heartlm.ecg.leads import ecg_leads

    found = opened(recording)
    if found.rate_hz < LOWEST_RATE_HZ:
        raise HeartlmError(
            f"{found.path}: {found.rate_hz:g} Hz found, pacing is detected from {LOWEST_RATE_HZ:g} Hz on"
        )
    sample = detect_beats(found) if beats is None else np.asarray(beats, np.int64)
    spikes = pacing_spikes(sample, found.signal(leads=ecg_leads(found)), found.rate_hz)
    return spikes[spikes >= 0]


def without_hum(recording: Recording | AnyPath) -> Recording:
    """Return a recording without mains hum where it dominates a lead, as `analyze` reads it.

    Args:
        recording: recording or its path; samples are filtered when they are read.
    """
    from heartlm.ecg.mains import HumFree

    return HumFree(opened(recording)).recording()


def delineate(
    recording: Recording | AnyPath | Any,
    beats: NDArray[np.int64] | None = None,
    leads: Sequence[int | str] | None = None,
    *,
    rate_hz: float | None = None,
) -> Intervals:
    """Find onset, peak and offset of P, QRS and T of every beat in every lead, and measure them.

    Args:
        recording: recording of 100 Hz or more, its path, an array `[num_leads, num_samples]` in mV, a frame, a
            `wfdb.Record` or an `mne.io.Raw`.
        beats: sample positions of the beats, ascending. By default the QRS complexes that the leads show together.
        leads: indices or names of the leads; by default all ECG leads.
        rate_hz: samples per second of an array.

    Returns:
        `.delineation` has the positions, -1 where a wave is absent, with a confidence: `.waves` int64 `[num_beats,
        num_leads, 3, 3]` and `.all_leads` `[num_beats, 3, 3]`. `.intervals` are PR, QRS, QT and others in ms,
        `.amplitudes` those of the waves and ST levels in mV; `.beat_rows()`, `.to_frame()` and `.summary()` tabulate.

    Raises:
        HeartlmError: there is no signal or lead, the rate is below 100 Hz, or `beats` are not ascending positions.

    Examples:
        >>> import heartlm
        >>> waves = heartlm.delineate("data/ludb/data/1")
        >>> qt_ms = waves.summary()["intervals"]["qt_ms"]["median"]
    """
    from heartlm.delineation.delineate import delineate
    from heartlm.delineation.intervals import measure

    return measure(delineate(opened(recording, rate_hz), beats, leads))


@public
def tokenize(
    databases: AnyPath | Sequence[AnyPath],
    out: AnyPath,
    config: TokenizeConfig | None = None,
    *,
    command: str = "",
    **settings: Any,
) -> Corpus:
    """Convert recordings to a corpus of tokens. The tokenizer is fitted on the training split only.

    Args:
        databases: folders of recordings, their addresses, or indices of `heartlm data index`; one per database.
        out: folder of the corpus, or its address in a bucket. An existing corpus is replaced when the new one is
            complete. To resume an interrupted call, repeat it.
        config: settings.
        command: command line to record in the manifest.
        **settings: deprecated: fields of `config`.

    Raises:
        HeartlmError: a setting is invalid, there is no recording to fit on, a recording cannot be read, or the folder
            cannot be written.

    Examples:
        >>> import heartlm
        >>> corpus = heartlm.tokenize("data/mitdb", "corpora/mitdb", heartlm.TokenizeConfig(training_leads="all"))
    """
    config = _config(TokenizeConfig, config, settings)
    folders = [databases] if isinstance(databases, str | Path) else databases
    tokenizer = None if config.tokenizer_from is None else find_run(config.tokenizer_from) / "tokenizer"
    return build_configured([source_path(folder) for folder in folders], source_path(out), config, tokenizer, command)


@public
def pretrain(
    corpus: Corpus | AnyPath | None = None,
    out: AnyPath | None = None,
    config: PretrainConfig | None = None,
    **settings: Any,
) -> RunFolder:
    """Train a foundation model on the training split of a corpus.

    Args:
        corpus: corpus or its folder; by default that of `config`.
        out: the run folder to write; by default that of `config`.
        config: settings.
        **settings: deprecated: fields of `config`.

    Returns:
        Folder of the finished run; `.path` is its path.

    Raises:
        HeartlmError: a setting is invalid, the corpus cannot be used, or the folder cannot be written.

    Examples:
        >>> import heartlm
        >>> run = heartlm.pretrain("corpora/mitdb", "runs/foundation", heartlm.PretrainConfig(depth=2, steps=100))
    """
    from heartlm.training.pretrain import pretrain as train

    return RunFolder(train(_config(PretrainConfig, config, settings, corpus=_folder_of(corpus), out=out)))


@public
def finetune(
    run: RunFolder | AnyPath | None = None,
    corpus: Corpus | AnyPath | None = None,
    out: AnyPath | None = None,
    config: FinetuneConfig | None = None,
    **settings: Any,
) -> RunFolder:
    """Add a head to a pretrained model and train it on the labels of a corpus.

    Args:
        run: run, its folder, or the name of a shipped model such as `"foundation"`. None for the waveform task.
        corpus: corpus or its folder. It must be tokenized with the model's tokenizer: see
            `TokenizeConfig.tokenizer_from`.
        out: the run folder to write; by default that of `config`.
        config: settings.
        **settings: deprecated: fields of `config`.

    Returns:
        The folder of the finished run; with `folds`, the folder of a run for each fold, `fold-1` and so on, whose
        `score_sets` are those of all folds together.

    Raises:
        HeartlmError: an impossible setting, a corpus of another tokenizer or without labels, or a folder that cannot be
            written.

    Examples:
        >>> import heartlm
        >>> config = heartlm.FinetuneConfig(task="beats", steps=100)
        >>> run = heartlm.finetune("runs/foundation", "corpora/mitdb", "runs/beats", config)
    """
    from heartlm.tasks.finetune import finetune as train
    from heartlm.tasks.folds import cross_validate

    parent = None if run is None else find_run(run)
    config = _config(FinetuneConfig, config, settings, run=parent, corpus=_folder_of(corpus), out=out)
    return RunFolder(cross_validate(config) if config.folds and not config.fold else train(config))


@public
def evaluate(
    run: RunFolder | AnyPath,
    on: Corpus | AnyPath,
    config: EvaluationConfig | None = None,
    *,
    command: str = "",
    **settings: Any,
) -> Scores:
    """Score a fine-tuned model and baselines, with confidence intervals over patients. Results are saved in the run.

    Args:
        run: run, its folder, or the name of a shipped model.
        on: corpus tokenized with the model's tokenizer, or a folder of recordings.
        config: settings.
        command: command line to record in the results.
        **settings: deprecated: fields of `config`.

    Raises:
        HeartlmError: a setting is invalid, the run cannot be scored, there is nothing to score, or the folder cannot be
            written.

    Examples:
        >>> import heartlm
        >>> scores = heartlm.evaluate("runs/beats", "data/mitdb", heartlm.EvaluationConfig(bootstrap=200))
    """
    from heartlm.tasks.evaluate import evaluate as score

    config = _config(EvaluationConfig, config, settings)
    folder, content = score(find_run(run), source_path(_folder_of(on) or ""), config, command)
    return Scores(content, folder)


@public
def analyze(
    path: AnyPath | Sequence[AnyPath],
    out: AnyPath = "analysis",
    *,
    beats: AnyPath = "beats",
    af: AnyPath = "af",
    waveform: AnyPath = "waveform",
    statements: AnyPath = "statements",
    page: bool = True,
    pages: Literal["none", "findings", "all"] | None = None,
    tables: Literal["csv", "parquet"] = "csv",
    anonymous: bool = False,
    strict: bool = False,
    limits: Limits | None = None,
    device: Literal["auto", "cpu", "cuda"] = "cpu",
    processes: int | None = None,
    engine: Literal["processes", "dask", "mpi"] = "processes",
    scheduler: str | None = None,
    limit_s: float = LIMIT_S,
    part: str | None = None,
) -> Analyses:
    """Analyse recordings, and write findings, tables and pages.

    Args:
        path: path of a record, DATABASE/RECORD as in WFDB programs, a folder of recordings, a pattern such as
            `"ward/*.edf"`, or several of these.
        out: folder of the results, of Parquet tables also its address in a bucket. Recordings with complete results
            from the same models are not analysed again.
        beats, af, waveform, statements: models: names of shipped models, or run folders.
        page: whether to write an HTML page for each recording, and one with a row for each recording of a folder.
        pages: recordings with a page: none, those with findings, or all; by default all, and none with Parquet tables.
        tables: `"parquet"` writes summaries, events, beats and waves of all recordings as Parquet datasets, and a page
            of totals; recordings without a page have no files of their own.
        anonymous: whether to leave the patient data of the header and all dates out of the results; times of day stay.
            Files have the names of the recordings.
        strict: whether to refuse recordings whose files must be repaired to be read.
        limits: limits of the rules: `heartlm.analysis.limits.Limits`, with the names of those of the monitor.
        device: device of the models; auto uses a GPU if there is one. Beats and waves are found on the CPU.
        processes: number of recordings of a folder to analyse in parallel; by default one per core.
        engine, scheduler, limit_s, part: where recordings of a folder are analysed, see
            `heartlm.system.engine.PartOptions`.

    Returns:
        `.summaries` has one mapping per recording; `.left_out` one line per recording that could not be analysed;
        `.unwritten` one line per file of the whole folder that could not be written; `.tables` the totals of
        Parquet tables.

    Raises:
        HeartlmError: no recording could be analysed, a model or file cannot be read, a file cannot be written, or there
            is no GPU.

    Examples:
        >>> import heartlm
        >>> found = heartlm.analyze("data/mitdb", out="mitdb-analysis")
        >>> ventricular = [each["beats"]["V"] for each in found.summaries]
    """
    from heartlm.analysis.events import USUAL_LIMITS
    from heartlm.analysis.recordings import AnalysisTask, analyze_recordings, analyze_tables
    from heartlm.report.holter import holter_page
    from heartlm.report.holter_index import index_page, totals_page

    paths = (path,) if isinstance(path, str | Path) else tuple(path) if isinstance(path, list | tuple) else ()
    if not paths or not all(isinstance(each, str | Path) for each in paths):
        raise HeartlmError(f"path: {type(path).__name__} found, paths expected; for samples: load_model().analyze(...)")
    task = AnalysisTask(
        tuple(map(source_path, paths)),
        output_path(out) if tables == "parquet" else local_output(out),
        models=(Path(beats), Path(af), Path(waveform), Path(statements)),
        page=holter_page if page else None,
        index=index_page if page else None,
        totals_page=totals_page if page else None,
        pages=pages or ("all" if tables == "csv" else "none"),
        anonymous=anonymous,
        limits=limits or USUAL_LIMITS,
        device=device,
        repaired="refuse" if strict else "warn",
    )
    options = PartOptions(engine=engine, scheduler=scheduler, processes=processes, limit_s=limit_s, part=part)
    return (analyze_tables if tables == "parquet" else analyze_recordings)(task, options)


@public
def find_alarms(
    recording: Recording | AnyPath,
    rules: AlarmRules | None = None,
    *,
    beats: AnyPath = "beats-causal",
    af: AnyPath = "af",
    waveform: AnyPath = "waveform",
) -> list[Alarm]:
    """Return the alarms that `heartlm monitor` raises when it streams the recording, as `heartlm alarms`.

    Args:
        recording: recording with a signal, or its path.
        rules: alarm conditions: `heartlm.monitor.alarms.AlarmRules`, or `SECOND_OPINION` of that module.
        beats, af, waveform: models: names of shipped models, or run folders. The beats model must be causal.

    Returns:
        Alarms in the order in which they are raised. Each has a `kind` and a `severity`. `start`, `raised` and `stop`
        (None if the alarm lasts to the end) are sample positions; `to_json()` gives seconds.

    Raises:
        HeartlmError: the recording has no ECG lead, its sampling rate is too low, a file cannot be read, or a model is
            not causal.

    Examples:
        >>> import heartlm
        >>> lethal = [each for each in heartlm.find_alarms("data/mitdb/207") if each.severity == "lethal"]
    """
    from heartlm.monitor.models import live_models
    from heartlm.monitor.stream import alarms_of

    return alarms_of(opened(recording), live_models(Path(beats), Path(af), Path(waveform)), rules)


@public
def watch(config: MonitorConfig, on_alarm: Callable[[dict[str, Any]], None] | None = None) -> None:
    """Watch live streams, as `heartlm monitor`, until a signal, or until the input ends with `lines=True`.

    Args:
        config: sources, rules, page and where alarms go: `heartlm.monitor.config.MonitorConfig`.
        on_alarm: is called with each change of an alarm: the fields of the alarm log.

    Raises:
        HeartlmError: settings contradict each other, or a source, a broker or the page cannot be used.

    Examples:
        >>> import heartlm
        >>> from heartlm.monitor.config import MonitorConfig
        >>> heartlm.watch(MonitorConfig(replay=Path("data/mitdb"), streams=20), print)  # doctest: +SKIP
    """
    from heartlm.monitor.service import watch as serve

    serve(config, [] if on_alarm is None else [on_alarm])


@public
def annotate(
    run: RunFolder | AnyPath,
    recording: AnyPath,
    *,
    beats: Literal["auto", "annotated", "detected"] = "auto",
    lead: str | None = None,
    checkpoint: Literal["best", "last"] = "best",
    device: Literal["auto", "cpu", "cuda"] = "auto",
) -> Annotated:
    """Annotate a recording with one fine-tuned model, as `heartlm predict`.

    Args:
        run: run, its folder, or the name of a shipped model.
        recording: path of the record, DATABASE/RECORD as in WFDB programs.
        beats: source of the beat positions; auto detects them if none are annotated.
        lead: lead to analyse; by default the one that tokenizing selects.
        checkpoint: model with the lowest validation loss, or the last.
        device: device of the model; auto uses a GPU if there is one.

    Returns:
        Result with `.found`, an `Annotations`: beats with predicted codes, or spans of predicted rhythms.

    Raises:
        HeartlmError: the run or recording does not exist, or the model cannot process the recording.

    Examples:
        >>> import heartlm
        >>> rhythms = heartlm.annotate("af", "data/afdb/04015").found.rhythms
    """
    from heartlm.tasks.annotate import annotate as find

    where = locate(source_path(recording))
    return find(find_run(run), *where, beats=beats, lead=lead, checkpoint=checkpoint, device=device)


@public
def load_model(
    model: RunFolder | AnyPath | None = None,
    *,
    af: AnyPath = "af",
    waveform: AnyPath = "waveform",
    statements: AnyPath = "statements",
    device: Literal["auto", "cpu", "cuda"] = "cpu",
) -> Model:
    """Load a model that analyses and embeds recordings.

    Args:
        model: run or its folder, name of a shipped model, `"hf:OWNER/NAME"` or `"hf:OWNER/NAME@REVISION"` of the
            Hugging Face hub, or folder with `model.safetensors`, `config.json` and `tokenizer/`, as
            `Model.save_pretrained` writes. By default the shipped models: `beats` for `analyze`, `foundation` for
            `embed`.
        af, waveform, statements: models for `analyze`. `af` detects atrial fibrillation; `waveform` detects ventricular
            fibrillation, asystole and noise; `statements` judges short recordings of eight leads or more.
        device: device on which the models of `embed` and `analyze` compute; auto uses a GPU if there is one.

    Raises:
        HeartlmError: the model does not exist, its files cannot be read, the hub cannot be reached, or there is no GPU.

    Examples:
        >>> import heartlm
        >>> model = heartlm.load_model()
        >>> findings = model.analyze("data/mitdb/203")
        >>> findings.write("203.hlm")
    """
    from heartlm.analysis.model import loaded

    path = None if model is None else find_run(model)
    return loaded(path, Path(af), Path(waveform), Path(statements), device)


def _config(kind: type[Config], config: Config | None, old: dict[str, Any], **inputs: AnyPath | None) -> Config:
    """Return `config`, or its defaults, with the `inputs` that are given, and with the keyword arguments of 0.1."""
    if old:
        text = f"keyword arguments such as {next(iter(old))}= are deprecated since 0.2, pass config=heartlm."
        # from here over the function and its wrapper `public` to the caller
        warnings.warn(f"{text}{kind.__name__}(...)", DeprecationWarning, stacklevel=4)
    given = old | {name: value for name, value in inputs.items() if value is not None}
    made = typed(kind, {**vars(config or kind()), **given}) if given else config or kind()
    if "out" in inputs and vars(made)["out"] is not None:  # of a run
        local_output(vars(made)["out"])
    return made


def _folder_of(corpus: Corpus | AnyPath | None) -> AnyPath | None:
    return corpus.folder if isinstance(corpus, Corpus) else corpus


__all__ = [
    "Annotations",
    "Corpus",
    "Embeddings",
    "EvaluationConfig",
    "Findings",
    "FinetuneConfig",
    "HeartlmError",
    "Model",
    "PretrainConfig",
    "Recording",
    "RunFolder",
    "Scores",
    "TokenizeConfig",
    "WindowDataset",
    "analyze",
    "annotate",
    "convert",
    "delineate",
    "derive_leads",
    "detect_beats",
    "detect_pacing",
    "evaluate",
    "find_alarms",
    "finetune",
    "load_model",
    "open_corpus",
    "open_recording",
    "pretrain",
    "show_progress",
    "tokenize",
    "watch",
    "without_hum",
]

for _name in __all__:
    if _name in globals():
        show_plain_types(globals()[_name])
