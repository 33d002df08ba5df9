"""The public interface of heartlm, which `import heartlm` exports and the command line calls.

    open_recording ─► detect_beats
                  ├─► delineate ─► Intervals
                  ├─► annotate, analyze (files and pages, of folders too), find_alarms
                  └─► load_model ─► Model.analyze ─► Findings
                                ├─► Model.embed   ─► Embeddings
                                └─► Model.save_pretrained (a folder as on the Hugging Face hub)
    tokenize ─► pretrain ─► finetune ─► evaluate ─► Scores

Errors that the user can correct raise `HeartlmError`. The functions print nothing outside of `show_progress()`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from heartlm.analysis.embeddings import Embeddings
from heartlm.analysis.findings import Findings, definitions
from heartlm.corpus.build import build_corpus
from heartlm.corpus.config import TokenizeConfig
from heartlm.corpus.corpus import Corpus, open_corpus
from heartlm.ecg.database import locate, open_database
from heartlm.ecg.readers.stated import Stated
from heartlm.ecg.recording import Annotations, Recording
from heartlm.errors import HeartlmError, needs
from heartlm.models.pretrained import FOLDER, find_run
from heartlm.runs.run_folder import RunFolder
from heartlm.storage.typed import typed
from heartlm.system.progress import quiet, show_progress
from heartlm.tokenizers.base import Tokenizer, load_tokenizer, tokenizer_class

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from heartlm.analysis.analyze import Analyst, Watch
    from heartlm.analysis.embed import Level
    from heartlm.analysis.limits import Limits
    from heartlm.analysis.recordings import Analyses
    from heartlm.delineation.intervals import Intervals
    from heartlm.ecg.recording import Repaired
    from heartlm.inference.annotate import Annotated
    from heartlm.inference.leads import ScoredLead
    from heartlm.models.heart import HeartModel
    from heartlm.models.store import ModelInfo
    from heartlm.monitor.alarms import Alarm, AlarmRules
    from heartlm.monitor.models import LiveModels

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
AnyPath = str | Path


def _quiet(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Wrap `function`: print only inside of `show_progress()`, and name the package to install if torch is missing."""

    @functools.wraps(function)
    def run(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        with quiet(), needs("train", "torch"):
            return function(*arguments, **named)

    return run


def open_recording(
    path: AnyPath,
    *,
    strict: bool = False,
    rate_hz: float | None = None,
    units: str | Sequence[str] | None = None,
    leads: str | Sequence[str] | None = None,
) -> Recording:
    """Open a recording; samples and annotations are read on first access.

    Parameters
    ----------
    path
        Path of the record, DATABASE/RECORD as in WFDB programs, or of a file in any format that `heartlm data formats`
        lists.
    strict
        Whether to refuse a file that must be repaired to be read, see `Recording.repairs`.
    rate_hz
        Samples per second, of a table or array that does not state it.
    units
        Unit of all leads, or of each, likewise: `"mV"`, `"uV"`, `"V"`, or steps of a converter per mV, `"200/mV"`, with
        the step of 0 mV `"200(1024)/mV"`.
    leads
        Leads to read by their names, or names for all leads of a file that does not name them.

    Returns
    -------
    Recording
        Recording with `.leads`, `.rate_hz`, `.num_samples`, `.start`, `.patient`, `.annotations` and `.signal(start,
        stop, leads)`, or in seconds `.signal(start_s=60, stop_s=70)`. The signal is float32 `[num_leads, num_samples]`
        in millivolts, NaN where invalid.

    Raises
    ------
    HeartlmError
        The recording does not exist, its header cannot be read, what it states contradicts `rate_hz` or `leads`, or it
        must be repaired and `strict` is true.

    Examples
    --------
    >>> import heartlm
    >>> recording = heartlm.open_recording("data/mitdb/100")
    >>> recording.signal(0, 3600, leads=["MLII"]).shape
    (1, 3600)
    """
    stated = Stated.of(rate_hz, units, leads)
    database, record_id = locate(Path(path), repaired="refuse" if strict else "warn", stated=stated)
    return database.recording(record_id)


def detect_beats(recording: Recording | AnyPath, lead: int | str | None = None) -> NDArray[np.int64]:
    """Detect the heartbeats in one lead.

    Parameters
    ----------
    recording
        Recording or its path.
    lead
        Index or name of the lead. The default is MLII or II if present, else the first lead in millivolts.

    Returns
    -------
    int64 array `[num_beats]`
        Sample positions of the beats, ascending.

    Raises
    ------
    HeartlmError
        The recording has no ECG lead, or its sampling rate is too low for the detector.
    """
    from heartlm.corpus.encode import beats_for, ecg_lead

    recording = recording if isinstance(recording, Recording) else open_recording(recording)
    return beats_for(recording, None, "detected", ecg_lead(recording, lead)).sample


def delineate(
    recording: Recording | AnyPath,
    beats: NDArray[np.int64] | None = None,
    leads: Sequence[int | str] | None = None,
) -> Intervals:
    """Find onset, peak and offset of P, QRS and T of every beat in every lead, and measure them.

    Parameters
    ----------
    recording
        Recording of 100 Hz or more, or its path.
    beats
        Sample positions of the beats, ascending. By default the QRS complexes that the leads show together.
    leads
        Indices or names of the leads; by default all ECG leads.

    Returns
    -------
    Intervals
        `.delineation` has the positions, -1 where a wave is absent, with a confidence: `.waves` int64 `[num_beats,
        num_leads, 3, 3]` and `.all_leads` `[num_beats, 3, 3]`. `.intervals` are PR, QRS, QT and others in ms,
        `.amplitudes` those of the waves and ST levels in mV; `.beat_rows()`, `.to_frame()` and `.summary()` tabulate.

    Raises
    ------
    HeartlmError
        There is no signal or lead, the rate is below 100 Hz, or `beats` are not ascending positions.

    Examples
    --------
    >>> import heartlm
    >>> waves = heartlm.delineate("data/ludb/data/1")
    >>> qt_ms = waves.summary()["intervals"]["qt_ms"]["median"]
    """
    from heartlm.delineation.delineate import delineate
    from heartlm.delineation.intervals import measure

    recording = recording if isinstance(recording, Recording) else open_recording(recording)
    return measure(delineate(recording, beats, leads))


@_quiet
def tokenize(databases: AnyPath | Sequence[AnyPath], out: AnyPath, *, command: str = "", **settings: Any) -> Corpus:
    """Convert recordings to a corpus of tokens. The tokenizer is fitted on the training split only.

    Parameters
    ----------
    databases
        Folders of recordings, one per database.
    out
        Folder of the corpus. An existing corpus is replaced when the new one is complete. To resume an interrupted
        call, repeat it.
    command
        Command line to record in the manifest.
    **settings
        Fields of `heartlm.corpus.config.TokenizeConfig`: `tokenizer`, `tokenizer_from`, `causal`, `processes`, …

    Raises
    ------
    HeartlmError
        A setting is invalid, there is no recording to fit on, a recording cannot be read, or the folder cannot be
        written.
    """
    folders = [databases] if isinstance(databases, str | Path) else databases
    given = {"databases": list(folders), "out": out}
    config = typed(TokenizeConfig, settings | given)
    config.check()
    build_corpus(
        config.databases,
        _tokenizer(config),
        config.out,
        training_leads=config.training_leads,
        beats=config.beats,
        fit=config.tokenizer_from is None,
        skip_unreadable=config.skip_unreadable,
        damaged=config.damaged,
        repaired="refuse" if config.strict else "warn",
        processes=config.processes,
        seed=config.seed,
        command=command,
    )
    return open_corpus(config.out)


def _tokenizer(config: TokenizeConfig) -> Tokenizer:
    if config.tokenizer_from is not None:
        return load_tokenizer(find_run(config.tokenizer_from) / "tokenizer")
    kind, settings = config.tokenizer or "beat", dict[str, Any]()
    if kind in ("beat", "rhythm"):
        settings["causal_only"] = config.causal
    if kind == "rhythm":
        settings["waveforms"] = config.waveforms
    return tokenizer_class(kind)(**settings)


@_quiet
def pretrain(corpus: Corpus | AnyPath | None = None, **settings: Any) -> RunFolder:
    """Train a foundation model on the training split of a corpus.

    Parameters
    ----------
    corpus
        Corpus or its folder.
    **settings
        Fields of `heartlm.training.config.PretrainConfig`: `depth`, `steps`, `objective`, `out`, `seed`, …

    Returns
    -------
    RunFolder
        Folder of the finished run; `.path` is its path.

    Raises
    ------
    HeartlmError
        A setting is invalid, the corpus cannot be used, or the folder cannot be written.
    """
    from heartlm.training.config import PretrainConfig
    from heartlm.training.pretrain import pretrain as train

    return RunFolder(train(typed(PretrainConfig, settings | {"corpus": _folder_of(corpus)})))


@_quiet
def finetune(
    run: RunFolder | AnyPath | None = None, corpus: Corpus | AnyPath | None = None, **settings: Any
) -> RunFolder:
    """Add a head to a pretrained model and train it on the labels of a corpus.

    Parameters
    ----------
    run
        Run, its folder, or the name of a shipped model such as `"foundation"`. None for the waveform task.
    corpus
        Corpus or its folder. It must be tokenized with the model's tokenizer: see `tokenize(tokenizer_from=…)`.
    **settings
        Fields of `heartlm.training.config.FinetuneConfig`: `task`, `steps`, `out`, `head`, …

    Returns
    -------
    RunFolder
        The folder of the finished run.

    Raises
    ------
    HeartlmError
        An impossible setting, a corpus of another tokenizer or without labels, or a folder that cannot be written.
    """
    from heartlm.training.config import FinetuneConfig
    from heartlm.training.finetune import finetune as train

    given = {"run": None if run is None else find_run(_path_of(run)), "corpus": _folder_of(corpus)}
    return RunFolder(train(typed(FinetuneConfig, settings | given)))


@dataclass(frozen=True)
class Scores:
    """Result of `evaluate`.

    Attributes
    ----------
    content
        Content of `scores.json`: scores with 95 % confidence intervals over patients, baselines, evaluation settings.
    folder
        Folder with `scores.json` and the predictions, `predictions.parquet`.
    """

    content: dict[str, Any]
    folder: Path

    def to_frame(self) -> Any:
        """Return a pandas DataFrame of all scores with an interval: method, score, value, low, high."""
        with needs("pandas"):
            import pandas

        methods = {"model": self.content["scores"], **self.content["baselines"]}
        rows = [(method, *row) for method, block in methods.items() for row in _flat(block or {}, "")]
        return pandas.DataFrame(rows, columns=["method", "score", "value", "low", "high"])

    @property
    def per_patient(self) -> Any:
        """Pandas DataFrame with one row per patient (beats task)."""
        with needs("pandas"):
            import pandas

        return pandas.json_normalize(self.content["scores"].get("per_patient", []))


def _flat(block: dict[str, Any], prefix: str) -> Iterator[tuple[str, float, float | None, float | None]]:
    for name, part in block.items():
        if isinstance(part, dict) and "value" in part:
            low, high = part.get("ci") or (None, None)
            yield f"{prefix}{name}", part["value"], low, high
        elif isinstance(part, dict):
            yield from _flat(part, f"{prefix}{name} ")


@_quiet
def evaluate(run: RunFolder | AnyPath, on: Corpus | AnyPath, *, command: str = "", **settings: Any) -> Scores:
    """Score a fine-tuned model and baselines, with confidence intervals over patients. Results are saved in the run.

    Parameters
    ----------
    run
        Run, its folder, or the name of a shipped model.
    on
        Corpus tokenized with the model's tokenizer, or a folder of recordings.
    command
        Command line to record in the results.
    **settings
        Fields of `heartlm.evaluation.config.EvaluationConfig`: `split`, `records`, `beats`, `baselines`, …

    Raises
    ------
    HeartlmError
        A setting is invalid, the run cannot be scored, there is nothing to score, or the folder cannot be written.
    """
    from heartlm.evaluation.config import EvaluationConfig
    from heartlm.evaluation.evaluate import evaluate as score

    given = {"run": find_run(_path_of(run)), "on": _folder_of(on)}
    folder, content = score(typed(EvaluationConfig, settings | given), command)
    return Scores(content, folder)


@_quiet
def analyze(
    path: AnyPath,
    out: AnyPath = "analysis",
    *,
    beats: AnyPath = "beats",
    af: AnyPath = "af",
    waveform: AnyPath = "waveform",
    page: bool = True,
    anonymous: bool = False,
    strict: bool = False,
    limits: Limits | None = None,
    processes: int | None = None,
) -> Analyses:
    """Analyse a recording or a folder of recordings, and write findings, tables and pages.

    Parameters
    ----------
    path
        Path of a record, DATABASE/RECORD as in WFDB programs, or a folder of recordings.
    out
        Folder of the results. Recordings with complete results from the same models are not analysed again.
    beats, af, waveform
        Models: names of shipped models, or run folders.
    page
        Whether to write an HTML page for each recording, and one with a row for each recording of a folder.
    anonymous
        Whether to leave the patient data of the header and all dates out of the results; times of day stay. Files
        have the names of the recordings.
    strict
        Whether to refuse recordings whose files must be repaired to be read.
    limits
        Limits of the rules: `heartlm.analysis.limits.Limits`, with the names of those of the monitor.
    processes
        Number of recordings of a folder to analyse in parallel; by default one per core.

    Returns
    -------
    Analyses
        `.summaries` has one mapping per recording; `.left_out` one line per recording that could not be analysed;
        `.unwritten` one line per file of the whole folder that could not be written.

    Raises
    ------
    HeartlmError
        No recording could be analysed, a model or file cannot be read, or a file cannot be written.

    Examples
    --------
    >>> import heartlm
    >>> found = heartlm.analyze("data/mitdb", out="mitdb-analysis")
    >>> ventricular = [each["beats"]["V"] for each in found.summaries]
    """
    from heartlm.analysis.events import USUAL_LIMITS
    from heartlm.analysis.recordings import AnalysisTask, analyze_recordings
    from heartlm.report.holter import holter_page
    from heartlm.report.holter_index import index_page
    from heartlm.system.cores import usable_cores

    if processes is not None and processes < 1:
        raise HeartlmError(f"processes: {processes} found, at least 1 expected")
    models = (Path(beats), Path(af), Path(waveform))
    drawing = holter_page if page else None, index_page if page else None
    repaired: Repaired = "refuse" if strict else "warn"
    task = AnalysisTask(Path(path), Path(out), models, *drawing, anonymous, repaired, limits or USUAL_LIMITS)
    return analyze_recordings(task, processes or len(usable_cores()))


@_quiet
def find_alarms(
    recording: Recording | AnyPath,
    rules: AlarmRules | None = None,
    *,
    beats: AnyPath = "beats-causal",
    af: AnyPath = "af",
    waveform: AnyPath = "waveform",
) -> list[Alarm]:
    """Return the alarms that `heartlm monitor` raises when it streams the recording, as `heartlm analyze --causal`.

    Parameters
    ----------
    recording
        Recording with a signal, or its path.
    rules
        Alarm conditions: `heartlm.monitor.alarms.AlarmRules`, or `SECOND_OPINION` of that module.
    beats, af, waveform
        Models: names of shipped models, or run folders. The beats model must be causal.

    Returns
    -------
    list of Alarm
        Alarms in the order in which they are raised. Each has a `kind` and a `severity`. `start`, `raised` and `stop`
        (None if the alarm lasts to the end) are sample positions; `to_json()` gives seconds.

    Raises
    ------
    HeartlmError
        The recording has no ECG lead, its sampling rate is too low, a file cannot be read, or a model is not causal.

    Examples
    --------
    >>> import heartlm
    >>> lethal = [each for each in heartlm.find_alarms("data/mitdb/207") if each.severity == "lethal"]
    """
    from heartlm.monitor.stream import alarms_of

    recording = recording if isinstance(recording, Recording) else open_recording(recording)
    return alarms_of(recording, _live_models(Path(beats), Path(af), Path(waveform)), rules)


@functools.lru_cache(maxsize=1)
def _live_models(beats: Path, af: Path, waveform: Path) -> LiveModels:
    from heartlm.monitor.models import LiveModels

    return LiveModels(beats, af, waveform)


@_quiet
def annotate(run: RunFolder | AnyPath, recording: AnyPath, **how: Any) -> Annotated:
    """Annotate a recording with one fine-tuned model, as `heartlm predict`.

    Parameters
    ----------
    run
        Run, its folder, or the name of a shipped model.
    recording
        Path of the record, DATABASE/RECORD as in WFDB programs.
    **how
        `beats`, `lead`, `checkpoint` and `device` of `heartlm.inference.annotate.annotate`.

    Returns
    -------
    Annotated
        Result with `.found`, an `Annotations`: beats with predicted codes, or spans of predicted rhythms.

    Raises
    ------
    HeartlmError
        The run or recording does not exist, or the model cannot process the recording.

    Examples
    --------
    >>> import heartlm
    >>> rhythms = heartlm.annotate("af", "data/afdb/04015").found.rhythms
    """
    from heartlm.inference.annotate import annotate as find

    return find(find_run(_path_of(run)), *locate(Path(recording)), **how)


@_quiet
def load_model(
    model: RunFolder | AnyPath | None = None,
    *,
    af: AnyPath = "af",
    waveform: AnyPath = "waveform",
    device: Literal["auto", "cpu", "cuda"] = "cpu",
) -> Model:
    """Load a model that analyses and embeds recordings.

    Parameters
    ----------
    model
        Run or its folder, name of a shipped model, `"hf:OWNER/NAME"` or `"hf:OWNER/NAME@REVISION"` of the Hugging Face
        hub, or folder with `model.safetensors`, `config.json` and `tokenizer/`, as `Model.save_pretrained` writes. By
        default the shipped models are loaded: `beats` for `analyze`, `foundation` for `embed`.
    af, waveform
        Models for `analyze`. `af` detects atrial fibrillation; `waveform` detects ventricular fibrillation, asystole
        and noise.
    device
        Device of `network`, on which `embed` computes; auto uses a GPU if there is one. `analyze` computes on the CPU.

    Raises
    ------
    HeartlmError
        The model does not exist, its files cannot be read, the hub cannot be reached, or there is no GPU.

    Examples
    --------
    >>> import heartlm
    >>> model = heartlm.load_model()
    >>> findings = model.analyze("data/mitdb/203")
    >>> findings.write("203.hlm")
    """
    from heartlm.distributed.device import device_and_precision
    from heartlm.models.store import load_model as load

    path = FOLDER / "foundation" if model is None else find_run(_path_of(model))
    if (path / "model.safetensors").is_file():
        folder = path
        places = [each / "tokenizer" for each in (path, path.resolve().parent.parent)]
        tokenizer = next((each for each in places if each.is_dir()), None)
        if tokenizer is None:
            raise HeartlmError(f"{path}: no folder tokenizer/ with the tokenizer whose codes the model reads")
    else:
        run = RunFolder(path)
        folder, tokenizer = run.model("best"), run.tokenizer
        folder = folder if folder.is_dir() else run.model("last")
    found, info = load(folder, device_and_precision(device, "fp32")[0])
    slots: dict[str, AnyPath] = {"beats": "beats", "rhythm": af, "waveform": waveform}
    if model is not None and info.task is not None:
        slots[info.task] = path
    elif model is not None:
        slots = {}
    return Model(found, info, load_tokenizer(tokenizer), tuple(Path(each) for each in slots.values()), path)


@dataclass(frozen=True)
class Model:
    """Loaded model; see `load_model`.

    Attributes
    ----------
    network
        Torch module in evaluation mode.
    info
        Shape, task, classes, window and tokenizer of the model.
    tokenizer
        Tokenizer of the model's input.
    analysts
        Run folders or names of shipped models that `analyze` uses for beats, AF and waveform. Empty if the model has
        no task.
    folder
        Folder that the model was loaded from.
    """

    network: HeartModel
    info: ModelInfo
    tokenizer: Tokenizer
    analysts: tuple[Path, ...]
    folder: Path

    def save_pretrained(self, folder: AnyPath, *, license: str | None = None) -> Path:
        """Write the model in the layout of the Hugging Face hub: weights, tokenizer and a model card, `README.md`.

        `load_model` and all commands take the folder, which holds neither paths nor patients of your own recordings,
        but the names of their databases. To upload it:  hf upload OWNER/NAME FOLDER

        Parameters
        ----------
        folder
            New or empty folder, or a saved model, which is replaced.
        license
            Licence as the hub names it. By default that of the model's card, `apache-2.0` for a shipped model, else
            `unknown`.

        Returns
        -------
        Path
            The folder.

        Raises
        ------
        HeartlmError
            The folder has other files, or cannot be written.
        """
        from heartlm.runs.saved import save_pretrained

        save_pretrained(Path(folder), self.network, self.info, self.tokenizer.save, self.folder, license)
        return Path(folder)

    @functools.cached_property
    def analyst(self) -> Analyst:
        """Models that `analyze` uses, loaded on first access.

        Raises
        ------
        HeartlmError
            The model is not fine-tuned, or one of the other models cannot be read.
        """
        from heartlm.analysis.analyze import Analyst

        if not self.analysts:
            raise HeartlmError("the model was pretrained only and names no beats: fine-tune it, or use load_model()")
        return Analyst.load(*self.analysts)

    @_quiet
    def analyze(
        self, recording: Recording | AnyPath, watch: Watch | None = None, limits: Limits | None = None
    ) -> Findings:
        """Find beats, rhythms and events in a recording, as `heartlm analyze`.

        Parameters
        ----------
        recording
            Recording with a signal, or its path.
        watch
            Function that wraps the sequence of blocks, given as (start, stop) samples, for example to show progress.
        limits
            Limits of the rules: `heartlm.analysis.limits.Limits`.

        Returns
        -------
        Findings
            Beats with classes and probabilities (`.to_frame()`), events (`.events_frame()`), `.summary()` and
            `.hours()`. `.write("100.hlm")` writes a WFDB annotation file.

        Raises
        ------
        HeartlmError
            The recording has no signal or no ECG lead, its sampling rate is too low, or a file cannot be read.
        """
        from heartlm.analysis.events import USUAL_LIMITS

        recording = recording if isinstance(recording, Recording) else open_recording(recording)
        limits = limits or USUAL_LIMITS
        return replace(self.analyst.analyze(recording, watch or iter, limits), kinds=definitions(limits))

    @_quiet
    def embed(
        self,
        source: Recording | Corpus | AnyPath,
        level: Level = "beat",
        layer: int = -1,
        split: str | None = None,
    ) -> Embeddings:
        """Return hidden states of beats, windows or recordings, each with patient, record, lead, sample and labels.

        Parameters
        ----------
        source
            Recording, corpus tokenized with the model's tokenizer, or the path of a recording, a corpus or a folder
            of recordings of any format and rate. One lead of each recording is embedded; of a corpus, and at the level
            of recordings, all leads.
        level
            `"beat"`: one vector per beat (per token if tokens are not beats). `"window"`: the mean over the tokens of
            each window of the model. `"recording"`: of each lead the mean over its tokens and the logarithm of its
            usual amplitude in mV, one lead after the other, in the order of the first recording; recordings without one
            of its leads are left out.
        layer
            Index of the block that gives the hidden states, 0 for the first; -1 for the model's output.
        split
            Split of a corpus: train, validation or test; by default all.

        Returns
        -------
        Embeddings
            Result with `.vectors`, float32 `[num_vectors, width]` (`[num_recordings, num_leads * (width + 1)]` of
            recordings), `.to_frame()` and `.write("100.parquet")`. Windows
            overlap by half. The vector of a beat is from the window in which the beat is furthest from both ends.

        Raises
        ------
        HeartlmError
            There is nothing to embed, the corpus has another tokenizer, or the model gives no vectors of beats.
        """
        from heartlm.analysis.embed import embed, leads_of_recordings
        from heartlm.inference.leads import lead_of_row

        left_out = list[str]()
        if isinstance(source, str | Path):
            source = Path(source)
            if (source / "manifest.json").is_file():
                source = open_corpus(source)
        if isinstance(source, Corpus):
            if source.tokenizer_hash != self.info.tokenizer_hash:
                raise HeartlmError(
                    f"{source.folder}: tokens of another tokenizer ({source.tokenizer_hash[:12]}) than the model's "
                    f"({self.info.tokenizer_hash[:12]}): tokenize with  --tokenizer-from"
                )
            rows = range(len(source.records)) if split is None else source.records.select(split).tolist()
            leads: Iterable[ScoredLead] = (lead_of_row(source, row) for row in rows)
        else:
            if isinstance(source, Recording):
                recordings: Iterable[Recording] = [source]
            elif source.is_dir():
                database = open_database(source)
                recordings = (database.recording(name) for name in database.record_ids)
            else:
                recordings = [open_recording(source)]
            leads = leads_of_recordings(recordings, self.tokenizer, left_out, level)
        return embed(self.network, self.info.window, leads, level, layer, left_out)


def _path_of(run: RunFolder | AnyPath) -> Path:
    return Path(run) if isinstance(run, str | Path) else run.path


def _folder_of(corpus: Corpus | AnyPath | None) -> AnyPath | None:
    return corpus.folder if isinstance(corpus, Corpus) else corpus


__all__ = [
    "Annotations",
    "Corpus",
    "Embeddings",
    "Findings",
    "HeartlmError",
    "Model",
    "Recording",
    "RunFolder",
    "Scores",
    "analyze",
    "annotate",
    "delineate",
    "detect_beats",
    "evaluate",
    "find_alarms",
    "finetune",
    "load_model",
    "open_corpus",
    "open_recording",
    "pretrain",
    "show_progress",
    "tokenize",
]
