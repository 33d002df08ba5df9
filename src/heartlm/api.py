"""The public interface of heartlm, which `import heartlm` exports and the command line calls.

    open_recording ─► detect_beats
                  ├─► annotate, analyze (files and pages, of folders too), find_alarms
                  └─► load_model ─► Model.analyze ─► Findings
                                └─► Model.embed   ─► Embeddings
    tokenize ─► pretrain ─► finetune ─► evaluate ─► Scores

A mistake that the user can mend raises `HeartlmError`. Nothing is printed, except inside of `show_progress()`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from heartlm.analysis.embeddings import Embeddings
from heartlm.analysis.findings import Findings
from heartlm.corpus.build import build_corpus
from heartlm.corpus.config import TokenizeConfig
from heartlm.corpus.corpus import Corpus, open_corpus
from heartlm.ecg.database import open_database
from heartlm.ecg.locate import locate
from heartlm.ecg.recording import Annotations, Recording
from heartlm.errors import HeartlmError, needs
from heartlm.models.pretrained import FOLDER, find_run
from heartlm.progress import quiet, show_progress
from heartlm.runs.run_folder import RunFolder
from heartlm.tokenizers.base import Tokenizer, load_tokenizer, tokenizer_class

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from heartlm.analysis.analyze import Analyst, Watch
    from heartlm.analysis.embed import Level
    from heartlm.analysis.recordings import Analyses
    from heartlm.evaluation.annotate import Annotated
    from heartlm.evaluation.scored import ScoredLead
    from heartlm.models.heart import HeartModel
    from heartlm.models.store import ModelInfo
    from heartlm.monitor.alarms import Alarm, AlarmRules
    from heartlm.monitor.models import LiveModels

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
AnyPath = str | Path


def _quiet(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Let `function` print nothing outside of `show_progress()`, and say what to install where torch is missing."""

    @functools.wraps(function)
    def run(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        with quiet(), needs("train", "torch"):
            return function(*arguments, **named)

    return run


def open_recording(path: AnyPath) -> Recording:
    """Open a recording; samples and annotations are read when they are asked for.

    Parameters
    ----------
    path
        DATABASE/RECORD as WFDB programs name it, or a file: WFDB, CinC `.mat`, EDF, HL7 aECG, CSV or NumPy.

    Returns
    -------
    Recording
        With `.leads`, `.rate_hz`, `.num_samples`, `.annotations` and `.signal(start, stop, leads)`, float32
        `[num_leads, num_samples]` in millivolts, NaN where invalid.

    Raises
    ------
    HeartlmError
        No such recording, or its header cannot be read.

    Examples
    --------
    >>> import heartlm
    >>> recording = heartlm.open_recording("data/mitdb/100")
    >>> recording.signal(0, 3600, leads=["MLII"]).shape
    (1, 3600)
    """
    database, record_id = locate(Path(path))
    return database.recording(record_id)


def detect_beats(recording: Recording | AnyPath, lead: int | str | None = None) -> NDArray[np.int64]:
    """Find the heartbeats of one lead.

    Parameters
    ----------
    recording
        A recording, or its path.
    lead
        Index or name; by default MLII or II where there is one, else the first that is measured in millivolts.

    Returns
    -------
    int64 array `[num_beats]`
        Positions in samples, ascending.

    Raises
    ------
    HeartlmError
        No ECG lead, or a sampling rate that is too low for the detector.
    """
    from heartlm.corpus.encode import beats_for, ecg_lead

    recording = recording if isinstance(recording, Recording) else open_recording(recording)
    return beats_for(recording, None, "detected", ecg_lead(recording, lead)).sample


@_quiet
def tokenize(databases: AnyPath | Sequence[AnyPath], out: AnyPath, *, command: str = "", **settings: Any) -> Corpus:
    """Turn recordings into a corpus of tokens; the tokenizer is fitted on the training split alone.

    Parameters
    ----------
    databases
        Folders of recordings, one each database.
    out
        Folder of the corpus; an earlier one is replaced when the new one is complete. A killed call is continued by
        the same call.
    command
        Noted in the manifest.
    **settings
        Fields of `heartlm.corpus.config.TokenizeConfig`: `tokenizer`, `tokenizer_from`, `causal`, `processes`, …

    Raises
    ------
    HeartlmError
        An impossible setting, no recording to fit on, an unreadable recording, or a folder that cannot be written.
    """
    folders = [databases] if isinstance(databases, str | Path) else databases
    given = {"databases": [Path(folder) for folder in folders], "out": out}
    config = _config(TokenizeConfig, settings | given)
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
    if config.num_codes is not None:
        settings["num_codes"] = config.num_codes
    return tokenizer_class(kind)(**settings)


@_quiet
def pretrain(corpus: Corpus | AnyPath | None = None, **settings: Any) -> RunFolder:
    """Train a foundation model on the training split of a corpus.

    Parameters
    ----------
    corpus
        The corpus, or its folder.
    **settings
        Fields of `heartlm.training.config.PretrainConfig`: `depth`, `steps`, `objective`, `out`, `seed`, …

    Returns
    -------
    RunFolder
        The folder of the finished run; `.path` is where it lies.

    Raises
    ------
    HeartlmError
        An impossible setting, an unusable corpus, or a folder that cannot be written.
    """
    from heartlm.training.config import PretrainConfig
    from heartlm.training.pretrain import pretrain as train

    return RunFolder(train(_config(PretrainConfig, settings | {"corpus": _folder_of(corpus)})))


@_quiet
def finetune(
    run: RunFolder | AnyPath | None = None, corpus: Corpus | AnyPath | None = None, **settings: Any
) -> RunFolder:
    """Add a head to a pretrained model and train it on the labels of a corpus.

    Parameters
    ----------
    run
        A run, its folder, or the name of a shipped model such as `"foundation"`; none for the task waveform.
    corpus
        The corpus, or its folder. Its tokens must be of the model's tokenizer: see `tokenize(tokenizer_from=…)`.
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
    return RunFolder(train(_config(FinetuneConfig, settings | given)))


@dataclass(frozen=True)
class Scores:
    """What `evaluate` found.

    Attributes
    ----------
    content
        Of `scores.json`: scores with 95 % intervals by patient, baselines, how they were made.
    folder
        Where it was written, with the predictions as `predictions.parquet`.
    """

    content: dict[str, Any]
    folder: Path

    def to_frame(self) -> Any:
        """A pandas frame of all scores that have an interval: method, score, value, low, high."""
        import pandas

        methods = {"model": self.content["scores"], **self.content["baselines"]}
        rows = [(method, *row) for method, block in methods.items() for row in _flat(block or {}, "")]
        return pandas.DataFrame(rows, columns=["method", "score", "value", "low", "high"])

    @property
    def per_patient(self) -> Any:
        """A pandas frame with a row a patient (task beats)."""
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
    """Score a fine-tuned model with intervals over patients and baselines; results are written to the run too.

    Parameters
    ----------
    run
        A run, its folder, or the name of a shipped model.
    on
        A corpus of the model's tokenizer, or a folder of recordings.
    command
        Noted in the results.
    **settings
        Fields of `heartlm.evaluation.config.EvaluationConfig`: `split`, `records`, `beats`, `baselines`, …

    Raises
    ------
    HeartlmError
        An impossible setting, a run that cannot be scored, nothing to score, or a folder that cannot be written.
    """
    from heartlm.evaluation.config import EvaluationConfig
    from heartlm.evaluation.evaluate import evaluate as score

    given = {"run": find_run(_path_of(run)), "on": _folder_of(on)}
    folder, content = score(_config(EvaluationConfig, settings | given), command)
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
    processes: int | None = None,
) -> Analyses:
    """Analyse a recording, or all of a folder, and write findings, tables and pages.

    Parameters
    ----------
    path
        A recording as WFDB programs name it, or a folder of recordings.
    out
        Folder of the results. What is complete there, made by the same models, is not analysed again.
    beats, af, waveform
        The models: shipped ones or run folders.
    page
        Draw the page of each recording too.
    processes
        Recordings of a folder analysed side by side; by default one a core.

    Returns
    -------
    Analyses
        `.summaries`, one mapping a recording; `.left_out`, a line for each that could not be analysed.

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
    from heartlm.analysis.recordings import AnalysisTask, analyze_recordings
    from heartlm.cores import usable_cores
    from heartlm.report.holter import holter_page

    if processes is not None and processes < 1:
        raise HeartlmError(f"processes: {processes} found, at least 1 expected")
    models = (Path(beats), Path(af), Path(waveform))
    task = AnalysisTask(Path(path), Path(out), models, holter_page if page else None)
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
    """Find the alarms that `heartlm monitor` raises of the recording as a stream, as `heartlm analyze --causal` does.

    Parameters
    ----------
    recording
        A recording with a signal, or its path.
    rules
        When alarms are raised: `heartlm.monitor.alarms.AlarmRules`.
    beats, af, waveform
        The models: shipped ones or run folders; that of beats is a causal one.

    Returns
    -------
    list of Alarm
        In the order in which they were raised. Each has a `kind` and a `severity`; `start`, `raised` and `stop` (None
        where it lasts) are samples, `to_json()` has seconds.

    Raises
    ------
    HeartlmError
        No ECG lead, a rate that is too low, an unreadable file, or models that are not causal.

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

    return LiveModels.load(beats, af, waveform)


@_quiet
def annotate(run: RunFolder | AnyPath, recording: AnyPath, **how: Any) -> Annotated:
    """Annotate a recording with one fine-tuned model, as `heartlm predict` does.

    Parameters
    ----------
    run
        A run, its folder, or the name of a shipped model.
    recording
        DATABASE/RECORD as WFDB programs name it.
    **how
        `beats`, `lead` and `checkpoint` of `heartlm.evaluation.annotate.annotate`.

    Returns
    -------
    Annotated
        `.found`, an `Annotations`: beats with the model's codes, or spans of its rhythms.

    Raises
    ------
    HeartlmError
        No such run or recording, or the model cannot read it.

    Examples
    --------
    >>> import heartlm
    >>> rhythms = heartlm.annotate("af", "data/afdb/04015").found.rhythms
    """
    from heartlm.evaluation.annotate import annotate as find

    return find(find_run(_path_of(run)), *locate(Path(recording)), **how)


@_quiet
def load_model(
    model: RunFolder | AnyPath | None = None, *, af: AnyPath = "af", waveform: AnyPath = "waveform"
) -> Model:
    """Load a model to analyse and embed recordings with.

    Parameters
    ----------
    model
        A run or its folder, the name of a shipped model, or a folder with `model.safetensors`, `config.json` and
        `tokenizer/`. By default the shipped models: `beats` analyses, `foundation` embeds.
    af, waveform
        The models that find atrial fibrillation, and ventricular fibrillation, asystole and noise, in `analyze`.

    Raises
    ------
    HeartlmError
        No such model, or its files cannot be read.

    Examples
    --------
    >>> import heartlm
    >>> model = heartlm.load_model()
    >>> findings = model.analyze("data/mitdb/203")
    >>> findings.write("203.hlm")
    """
    from heartlm.models.store import load_model as load

    path = FOLDER / "foundation" if model is None else _path_of(model)
    if (path / "model.safetensors").is_file():
        folder = path
        places = [each / "tokenizer" for each in (path, path.resolve().parent.parent)]
        tokenizer = next((each for each in places if each.is_dir()), None)
        if tokenizer is None:
            raise HeartlmError(f"{path}: no folder tokenizer/ with the tokenizer whose codes the model reads")
    else:
        run = RunFolder(find_run(path))
        folder, tokenizer = run.model("best"), run.tokenizer
        folder = folder if folder.is_dir() else run.model("last")
    found, info = load(folder)
    slots: dict[str, AnyPath] = {"beats": "beats", "rhythm": af, "waveform": waveform}
    if model is not None and info.task is not None:
        slots[info.task] = path
    elif model is not None:
        slots = {}
    return Model(found, info, load_tokenizer(tokenizer), tuple(Path(each) for each in slots.values()))


@dataclass(frozen=True)
class Model:
    """A model ready for use; see `load_model`.

    Attributes
    ----------
    network
        The torch module, in evaluation mode.
    info
        Its shape, task, classes, window and tokenizer.
    tokenizer
        Makes the tokens it reads.
    analysts
        Run folders, or names of shipped models, that `analyze` uses for beats, AF and waveform; empty where the model
        has no task.
    """

    network: HeartModel
    info: ModelInfo
    tokenizer: Tokenizer
    analysts: tuple[Path, ...]

    @functools.cached_property
    def analyst(self) -> Analyst:
        """The models that `analyze` uses, loaded when first needed.

        Raises
        ------
        HeartlmError
            The model was pretrained only, or one of the other models cannot be read.
        """
        from heartlm.analysis.analyze import Analyst

        if not self.analysts:
            raise HeartlmError("the model was pretrained only and names no beats: fine-tune it, or use load_model()")
        return Analyst.load(*self.analysts)

    @_quiet
    def analyze(self, recording: Recording | AnyPath, watch: Watch | None = None) -> Findings:
        """Find beats, rhythms and events in a recording, as `heartlm analyze` does.

        Parameters
        ----------
        recording
            A recording with a signal, or its path.
        watch
            Gets the first and last samples of all blocks and gives them on, one at a time, to show progress.

        Returns
        -------
        Findings
            Beats with classes and probabilities (`.to_frame()`), events (`.events_frame()`), `.summary()`, `.hours()`,
            and `.write("100.hlm")` for a WFDB annotation file.

        Raises
        ------
        HeartlmError
            No signal, no ECG lead, a rate that is too low, or an unreadable file.
        """
        recording = recording if isinstance(recording, Recording) else open_recording(recording)
        return self.analyst.analyze(recording, watch or iter)

    @_quiet
    def embed(
        self,
        source: Recording | Corpus | AnyPath,
        level: Level = "beat",
        layer: int = -1,
        split: str | None = None,
    ) -> Embeddings:
        """Hidden states as vectors of beats or windows, with patient, record, lead, sample and labels of each.

        Parameters
        ----------
        source
            A recording, a corpus of the model's tokenizer, or the path of a recording, a corpus or a folder of
            recordings of any format and rate. One lead of each recording is embedded, of a corpus all that are there.
        level
            `"beat"`: a vector of each beat (of each token, where tokens are no beats). `"window"`: the mean of as many
            tokens as the model looks at together.
        layer
            The block whose output is taken, 0 being the first; -1 is the model's output.
        split
            Of a corpus: train, validation or test; by default all.

        Returns
        -------
        Embeddings
            `.vectors`, float32 `[num_vectors, width]`; `.to_frame()`, `.write("100.parquet")`. Windows overlap by
            half, and a vector comes from the window in which its beat lies furthest from both ends.

        Raises
        ------
        HeartlmError
            Nothing there to embed, a corpus of another tokenizer, or a model without vectors of beats.
        """
        from heartlm.analysis.embed import embed, leads_of_recordings
        from heartlm.evaluation.scored import lead_of_row

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
            leads = leads_of_recordings(recordings, self.tokenizer, left_out)
        return embed(self.network, self.info.window, leads, level, layer, left_out)


def _path_of(run: RunFolder | AnyPath) -> Path:
    return Path(run) if isinstance(run, str | Path) else run.path


def _folder_of(corpus: Corpus | AnyPath | None) -> Path | None:
    return corpus.folder if isinstance(corpus, Corpus) else corpus if corpus is None else Path(corpus)


def _config(kind: Callable[..., Result], settings: dict[str, Any]) -> Result:
    """Settings as their dataclass; paths may be text."""
    names = ("out", "resume", "random_init", "tokenizer_from")
    paths = {name: Path(settings[name]) for name in names if settings.get(name) is not None}
    try:
        return kind(**settings | paths)
    except TypeError as error:
        raise HeartlmError(f"{str(error).rpartition('__() ')[2]}: see the fields of {kind.__name__}") from None


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
