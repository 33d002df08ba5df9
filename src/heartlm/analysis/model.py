"""A loaded model that analyses and embeds recordings."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heartlm.analysis.findings import Findings
from heartlm.databases.database import opened
from heartlm.ecg.recording import Recording
from heartlm.errors import HeartlmError
from heartlm.models.pretrained import FOLDER
from heartlm.runs.run_folder import RunFolder
from heartlm.system.public import public
from heartlm.tokenizers.base import Tokenizer

if TYPE_CHECKING:
    from heartlm.analysis.analyze import Analyst
    from heartlm.analysis.embed import Level
    from heartlm.analysis.embeddings import Embeddings
    from heartlm.analysis.limits import Limits
    from heartlm.corpus.corpus import Corpus
    from heartlm.databases.each_recording import Watch
    from heartlm.inference.network import InferenceNetwork
    from heartlm.models.info import ModelInfo

AnyPath = str | Path


@dataclass(frozen=True)
class Model:
    """Loaded model; see `load_model`.

    Attributes:
        network: what answers, without torch on a CPU; `heartlm.models.store.load_model` returns the torch module.
        info: shape, task, classes, window and tokenizer of the model.
        tokenizer: tokenizer of the model's input.
        analysts: run folders or names of shipped models that `analyze` uses for beats, AF, waveform and statements.
            Empty if the model has no task.
        folder: folder that the model was loaded from.
        weights: folder of `model.safetensors`, in a run one of those below.
    """

    network: InferenceNetwork
    info: ModelInfo
    tokenizer: Tokenizer
    analysts: tuple[Path, ...]
    folder: Path
    weights: Path

    def __repr__(self) -> str:
        config, num = self.info.config, self.network.num_weights
        what = f"task {self.info.task}, classes {' '.join(self.info.classes)}" if self.info.task else "pretrained only"
        shape = f"{config.network} of depth {config.depth}, width {config.width}, {num:,} weights"
        window = f"windows of {self.info.window} {self.info.tokenizer_kind} tokens"
        analysts = f"; analyses with {', '.join(map(str, self.analysts))}" if self.analysts else ""
        return f"<Model {self.folder.name}: {what}; {shape}; {window}{analysts}>"

    def save_pretrained(self, folder: AnyPath, *, license: str | None = None) -> Path:
        """Write the model in the layout of the Hugging Face hub: weights, tokenizer and a model card, `README.md`.

        `load_model` and all commands take the folder, which holds neither paths nor patients of your own recordings,
        but the names of their databases. To upload it:  hf upload OWNER/NAME FOLDER

        Args:
            folder: new or empty folder, or a saved model, which is replaced.
            license: licence as the hub names it. By default that of the model's card, `apache-2.0` for a shipped model,
                else `unknown`.

        Returns:
            The folder.

        Raises:
            HeartlmError: the folder has other files, or cannot be written.
        """
        from heartlm.runs.saved import save_pretrained

        save_pretrained(Path(folder), self.weights, self.info, self.tokenizer.save, self.folder, license)
        return Path(folder)

    @functools.cached_property
    def analyst(self) -> Analyst:
        """Models that `analyze` uses, loaded on first access.

        Raises:
            HeartlmError: the model is not fine-tuned, or one of the other models cannot be read.
        """
        from heartlm.analysis.analyze import Analyst

        if not self.analysts:
            raise HeartlmError("the model was pretrained only and names no beats: fine-tune it, or use load_model()")
        beats, af, waveform, statements = self.analysts
        return Analyst.load(beats, af, waveform, statements, self.network.device)

    @public
    def analyze(
        self,
        recording: Recording | AnyPath | Any,
        watch: Watch | None = None,
        limits: Limits | None = None,
        *,
        rate_hz: float | None = None,
    ) -> Findings:
        """Find beats, rhythms and events in a recording, as `heartlm analyze`.

        Args:
            recording: recording with a signal, its path, an array `[num_leads, num_samples]` in mV, a frame, a
                `wfdb.Record` or an `mne.io.Raw`.
            watch: function that wraps the sequence of blocks, given as (start, stop) samples, for example to show
                progress.
            limits: limits of the rules: `heartlm.analysis.limits.Limits`.
            rate_hz: samples per second of an array.

        Returns:
            Beats with classes and probabilities (`.to_frame()`), events (`.events_frame()`), `.summary()` and
            `.hours()`. `.write("100.hlm")` writes a WFDB annotation file.

        Raises:
            HeartlmError: the recording has no signal or no ECG lead, its sampling rate is too low, or a file cannot be
                read.
        """
        from heartlm.analysis.events import USUAL_LIMITS

        return self.analyst.analyze(opened(recording, rate_hz), watch or iter, limits or USUAL_LIMITS)

    @public
    def embed(
        self,
        source: Recording | Corpus | AnyPath | Any,
        level: Level | None = None,
        layer: int = -1,
        split: str | None = None,
        *,
        rate_hz: float | None = None,
    ) -> Embeddings:
        """Return hidden states of beats, windows or recordings, each with patient, record, lead, sample and labels.

        Args:
            source: recording (also in memory as in `analyze`), corpus tokenized with the model's tokenizer, or the path
                of a recording, a corpus or a folder of recordings of any format and rate. One lead of each recording is
                embedded; of a corpus, and at the level of recordings, all leads.
            level: `"beat"`: one vector per beat (per token if tokens are not beats). `"window"`: the mean over the
                tokens of each window of the model. `"recording"`: of each lead the mean over its tokens and the
                logarithm of its usual amplitude in mV, one lead after the other, in the order of the first recording;
                recordings without one of its leads are left out. A model that reads all leads together, as statements,
                gives one vector of all leads that a recording has, for the recording or each window; its length does
                not depend on them. By default `"beat"`, or `"recording"` of such a model.
            layer: index of the block that gives the hidden states, 0 for the first; -1 for the model's output.
            split: split of a corpus or of a folder of recordings: train, validation or test; by default all.
            rate_hz: samples per second of an array.

        Returns:
            Result with `.vectors`, float32 `[num_vectors, width]` (`[num_recordings, num_leads * (width + 1)]` of
            recordings), `.to_frame()` and `.write("100.parquet")`. Windows overlap by half. The vector of a beat is
            from the window in which the beat is furthest from both ends.

        Raises:
            HeartlmError: there is nothing to embed, `level`, `layer` or `split` does not fit, the corpus has another
                tokenizer, or the model gives no vectors of beats.
        """
        from heartlm.analysis.embed import embed, finest_level, leads_of

        level, left_out = level or finest_level(self.tokenizer), list[str]()
        leads = leads_of(source, self.info, self.tokenizer, level, split, left_out, rate_hz)
        return embed(self.network, self.info.window, leads, level, layer, left_out)


def loaded(model: Path | None, af: Path, waveform: Path, statements: Path, device: str) -> Model:
    """Load the model in a run folder or a folder of weights; None for the shipped models. See `heartlm.load_model`."""
    from heartlm.inference.finetuned import tokenizer_of
    from heartlm.inference.load import chosen_device, load_network

    path = FOLDER / "foundation" if model is None else model
    if (path / "model.safetensors").is_file():
        folder = path  # saved, or `models/best` of a run, whose tokenizer is two folders above
        places = [each / "tokenizer" for each in (path, path.resolve().parent.parent)]
        tokenizer = next((each for each in places if each.is_dir()), None)
        if tokenizer is None:
            raise HeartlmError(f"{path}: no folder tokenizer/ with the tokenizer whose codes the model reads")
    else:
        run = RunFolder(path)
        folder, tokenizer = run.model("best"), run.tokenizer
        folder = folder if folder.is_dir() else run.model("last")
    network, info = load_network(folder, chosen_device(device))
    analysts = {"beats": Path("beats"), "rhythm": af, "waveform": waveform, "statements": statements}
    if model is not None:
        # The model takes the place of the shipped one of its task; one that was pretrained only analyses nothing.
        analysts = analysts | {info.task: path} if info.task is not None else {}
    return Model(network, info, tokenizer_of(tokenizer, info), tuple(analysts.values()), path, folder)
