"""The shipped models: trained, calibrated and written to src/heartlm/models/pretrained.

    python -m recipes.models --data ../shared/data --work FOLDER

Every step is a `heartlm` command that is not repeated when it is done, so a killed run is continued by the same
command. Two chains of steps run side by side, one thread each. The models learn from every patient except those of the
declared test sets: DS2 of mitdb for beats and VF, all of mitdb for AF. Models of patient-wise folds give the scores and
the reliability in each card, and the temperature by which the weights of the class head are divided.

What is shipped holds no time, path or environment, so the same commands on one machine give the same bytes.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from hashlib import sha256
from io import StringIO
from pathlib import Path
from typing import Any

import jinja2
import matplotlib.pyplot as plt
import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from heartlm.corpus.corpus import Corpus, open_corpus
from heartlm.ecg.recording import ARTEFACT
from heartlm.evaluation.bootstrap import Resampling, ratio, sum_by
from heartlm.evaluation.config import EvaluationConfig
from heartlm.evaluation.rhythm import RhythmWindows, window_labels
from heartlm.evaluation.scored import leads_of_corpus
from heartlm.inference.predictions import token_probabilities, window_probabilities
from heartlm.inference.waveform import class_probabilities, predicted_classes
from heartlm.labels.tokens import beat_labels
from heartlm.labels.waveform import VF
from heartlm.models.pretrained import FOLDER
from heartlm.models.store import load_model, save_tensors, whole_tensors
from heartlm.runs.run_folder import RunFolder
from heartlm.storage.atomic import atomic_folder, write_json
from heartlm.tasks.load import load_finetuned
from heartlm.tasks.waveform import WaveformWindows
from lab.intervals import shown
from lab.measure import header, row
from lab.places import options, unpacked
from lab.steps import Steps
from recipes import af, beats, vf

PHYSIONET = "Open Data Commons Attribution License 1.0, PhysioNet"
AF_WEIGHTS = "{afdb: 2, ltafdb: 3, nsrdb: 1, simdb: 1}"
AF_WIDTH, AF_THRESHOLD, AF_FOLDS = 128, 0.83, 3
VF_THRESHOLD, VF_FOLDS = 0.25, 5
NUM_BINS, MIN_IN_BIN = 15, 20
LOGITS = {"beats": {ARTEFACT: 0.5, "S": -0.5}, "beats-causal": {ARTEFACT: 1.0}}
"""Added to the logits of classes, chosen on held-out patients and normal recordings of cinc2017
(docs/log/artefacts.md)."""

BEFORE_DRAWN = 0.25
"""Share of the weights before the drawn rhythms in those of the foundation model: these rhythms teach S beats and cost
some of what the vectors tell of waveforms (docs/log/artefacts.md)."""

CARDS = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "cards"),
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    keep_trailing_newline=True,
    autoescape=False,
)

Array = NDArray[Any]


Chain = Callable[[], None]


class Maker:
    """Trains into a work folder.

    Attributes:
        data: folder of databases and archives.
        noise, weak: recorded noise, and recordings without ectopic beats with noise added, see `beats.py`.
        work: folder of corpora, runs and notes.
        steps: runs commands, each once.
        settings: numbers of steps and folds.
    """

    def __init__(self, settings: argparse.Namespace) -> None:
        self.data, self.work, self.settings = settings.data, settings.work, settings
        self.steps = Steps(settings.work)
        self.noise, self.weak = beats.noise_and_weak(self.data, self.work, self.steps)

    def train_beats(self, part: str, splits: dict[str, str], causal: bool) -> None:
        """Corpora, foundation model and beats model of one split, as `beats.py` trains them."""
        kind = "beats-causal" if causal else "beats"
        folder, name = self.work / kind / part, f"{kind}-{part}"
        databases, tuned = beats.linked(self.data, folder, splits), folder / "tuned"
        size = (4, self.settings.pretrain_steps)
        tune = beats.prepared(self.steps, name, folder, databases, splits, self.noise, self.weak, causal, *size)
        tune += ("--steps", self.settings.steps, "--seed", 0)
        self.steps.run(f"tuned-{name}", tuned / "models/last", *tune, "--out", tuned)

    def foundation(self) -> None:
        """Hidden tokens of every open recording, also on drawn rhythms and with noise; then beats on drawn rhythms.

        The rhythms are drawn without labels, so the classes of their beats follow from the drawing. The tokenizer
        learns from recordings as they are: of noise the levels would be those of it.
        """
        folder = self.work / "foundation"
        clean, drawn = beats.unlabelled(self.data, self.work / "unpacked", folder), list[Path]()
        for name in beats.REAL:
            drawn.append(folder / f"{name}-drawn")
            given = (folder / name, drawn[-1], "--no-labels")
            self.steps.run(f"drawn-{name}", drawn[-1], *given, module="recipes.retime")
        corpus, wide, of_drawn, masked = (folder / name for name in ("corpus", "wide", "corpus-drawn", "masked"))
        common = ("--training-leads", "all", "--processes", 1)
        self.steps.run("tokenize-foundation", corpus, "tokenize", *clean, *common, "--out", corpus)
        for name, out, databases in (("wide", wide, (*clean, *drawn, *self.weak)), ("drawn", of_drawn, drawn)):
            words = ("tokenize", *databases, *common, "--tokenizer-from", corpus, "--out", out)
            self.steps.run(f"tokenize-{name}", out, *words)
        weights = beats.weights_of(set(beats.UNLABELLED), beats.UNLABELLED)
        words = ("pretrain", "--corpus", wide, "--depth", 4, "--window", 64, "--batch-size", 32, "--weights", weights)
        words = (*words, "--steps", self.settings.foundation_steps, "--threads", 1, "--out", masked)
        self.steps.run("pretrain-foundation", masked / "models/last", *words)
        tuned = folder / "tuned"
        words = ("finetune", masked, "--task", "beats", "--corpus", of_drawn, "--threads", 1)
        words = (*words, "--steps", self.settings.second_steps, "--out", tuned)
        self.steps.run("tuned-foundation", tuned / "models/last", *words)

    def af(self, fold: int | None) -> None:
        """Corpus, foundation model and AF model; the patients of `fold` are left out."""
        folder = self.work / "af" / ("final" if fold is None else f"fold-{fold}")
        sources = {name: self.data / name for name in ("afdb", "nsrdb")}
        sources["ltafdb"] = unpacked(self.data / "ltafdb.tar.xz", self.work / "unpacked/ltafdb")
        databases = [self.work / "simdb", *af.linked(sources, folder, AF_FOLDS, fold)]
        name, tuned = f"af-{folder.name}", folder / "tuned"
        tune = af.prepared(self.steps, name, folder, databases, AF_WEIGHTS, 2, 80)
        tune += ("--steps", self.settings.af_steps, "--seed", 0, "--threshold", AF_THRESHOLD)
        self.steps.run(f"tuned-{name}", tuned / "models/last", *tune, "--out", tuned)

    def waveform(self, fold: int | None) -> None:
        """Corpus and network of the task waveform; the patients of `fold` are left out."""
        folders = {name: self.data / name for name in ("cudb", "mitdb", "svdb")}
        folders["nstdb"] = unpacked(self.data / "nstdb.tar.xz", self.work / "unpacked/nstdb")
        folders["cinc2017"] = unpacked(self.data / "cinc2017-train.tar.xz", self.work / "unpacked/cinc2017")
        records = vf.patients_of(self.data, folders["cinc2017"])
        folder = self.work / "waveform" / ("final" if fold is None else f"fold-{fold}")
        tuned, name = folder / "tuned", f"waveform-{folder.name}"
        tune = vf.prepared(self.steps, name, folder, vf.linked(folders, folder, records, VF_FOLDS, fold))
        tune += ("--steps", self.settings.waveform_steps, "--seed", 0, "--threshold", VF_THRESHOLD)
        self.steps.run(f"tuned-{name}", tuned / "models/last", *tune, "--out", tuned)

    def chains(self) -> list[Chain]:
        """What can run side by side; the longest first."""
        final = beats.parts_of(self.data, "ds2", 0)["ds2"]
        folds = beats.parts_of(self.data, "folds", 5)
        chosen = [(f"fold-{fold}", folds[f"fold-{fold}"]) for fold in range(self.settings.folds)]
        simulated = self.work / "simdb"
        words = ("data", "simulate", simulated, "--patients", 200, "--minutes", 30, "--leads", "[MLII]", "--seed", 7)

        def small() -> None:
            self.steps.run("simulate", simulated, *words)
            for fold in (None, *range(min(self.settings.folds, AF_FOLDS))):
                self.af(fold)
            for fold in (None, *range(min(self.settings.folds, VF_FOLDS))):
                self.waveform(fold)

        def of_beats(part: str, splits: dict[str, str], causal: bool) -> Chain:
            return lambda: self.train_beats(part, splits, causal)

        parts = [("final", final), *chosen]
        return [
            *([self.foundation] if "foundation" in self.settings.only else []),
            *([small] if {"af", "waveform"} & set(self.settings.only) else []),
            *(
                of_beats(*part, causal)
                for causal, name in ((False, "beats"), (True, "beats-causal"))
                for part in parts
                if name in self.settings.only
            ),
        ]


@dataclass(frozen=True)
class HeldOut:
    """What models say of patients they have not seen.

    Attributes:
        label: class of each token or window, int64 `[N]`; `NOT_VF` where no more than that is known.
        patient: whose it is, `[N]`.
        probability: of each class, float64 `[N, num_classes]`.
    """

    label: Array
    patient: Array
    probability: Array

    @classmethod
    def of(cls, run: Path, corpus: Corpus) -> HeldOut:
        """What the model of `run` says of the test split of `corpus`."""
        tuned = load_finetuned(run, "last")
        leads = leads_of_corpus(corpus, EvaluationConfig()).leads
        if tuned.info.task == "rhythm":
            leads = [lead for lead in leads if lead.tokens.num_tokens >= AF_WIDTH]
        label: Array
        said: Array
        if tuned.info.task == "beats":
            labels = [beat_labels(lead.tokens.beat_class) for lead in leads]
            codes = [np.asarray(lead.tokens.codes) for lead in leads]
            label, whose = np.concatenate(labels), np.repeat(np.arange(len(leads)), list(map(len, labels)))
            said = np.concatenate([token_probabilities(tuned.model, each, tuned.info.window) for each in codes])
        elif tuned.info.task == "rhythm":
            rhythms = RhythmWindows.of(leads, AF_WIDTH)
            label, whose = window_labels(rhythms.rhythm, length=rhythms.length).astype(np.int64), rhythms.lead
            said = window_probabilities(tuned.model, rhythms.codes, AF_WIDTH)
        else:
            windows = WaveformWindows.of(leads)
            label, whose = windows.labels, windows.lead
            said = class_probabilities(tuned.model, windows.codes, windows.lead)
        patient = np.array([lead.patient_id for lead in leads])[whose]
        return cls(label[label >= 0], patient[label >= 0], np.asarray(said, np.float64)[label >= 0])

    def shifted(self, index: int, log_odds: float) -> HeldOut:
        """The same with the logit of a class raised."""
        odds = self.probability * np.where(np.arange(self.probability.shape[1]) == index, np.exp(log_odds), 1)
        return replace(self, probability=odds / odds.sum(axis=1, keepdims=True))

    def heated(self, temperature: float) -> HeldOut:
        """The same at another temperature."""
        powers = np.maximum(self.probability, 1e-9) ** (1 / temperature)
        return replace(self, probability=powers / powers.sum(axis=1, keepdims=True))

    def temperature(self) -> float:
        """The temperature with the least cross-entropy."""
        unsure = self.label >= self.probability.shape[1]
        known = np.where(unsure, VF, self.label)

        def loss(log: float) -> float:
            probability = self.heated(float(np.exp(log))).probability
            right = np.abs(unsure - probability[np.arange(len(known)), known])
            return float(-np.log(np.maximum(right, 1e-12)).mean())

        return round(float(np.exp(minimize_scalar(loss, bounds=(-1.5, 1.5), method="bounded").x)), 3)

    def reliability(self, index: int) -> Array:
        """Sums over `NUM_BINS` bins of equal width of the probability of a class: labels, probability, those of it.

        Returns:
            float64 `[3, NUM_BINS]`.
        """
        known = (self.label < self.probability.shape[1]) | (index == VF)
        said, right = self.probability[known, index], self.label[known] == index
        bins = np.minimum((said * NUM_BINS).astype(int), NUM_BINS - 1)
        return np.stack([np.bincount(bins, weights, NUM_BINS) for weights in (np.ones(len(said)), said, right)])

    def error(self, index: int) -> float:
        """Expected calibration error of the probability of a class."""
        num, said, right = self.reliability(index)
        return float(np.abs(said - right).sum() / num.sum())

    def f1(self, index: int, called: Array) -> str:
        """F1 of a class with its interval by patients."""
        known = (self.label < self.probability.shape[1]) | (index == VF)
        truth, said = self.label[known] == index, called[known] == index
        cells = np.stack([truth & said, truth, said], axis=1).astype(np.int64)
        who, counts = sum_by(self.patient[known].tolist(), cells)
        resampling = Resampling(1000)
        values = [
            ratio(2 * total[..., 0], total[..., 1] + total[..., 2])
            for total in (counts.sum(axis=0), resampling.resample(counts))
        ]
        return shown(float(values[0]), values[1], len(who))


def decided(held_out: HeldOut, threshold: float, task: str) -> Array:
    """The class that the commands give."""
    if task == "rhythm":
        return (held_out.probability[:, 1] >= threshold).astype(np.int64)
    if task == "waveform":
        return predicted_classes(held_out.probability, threshold)
    return np.asarray(held_out.probability.argmax(axis=1))


def card(name: str, run: RunFolder, patients: list[str], held_out: HeldOut | None, temperature: float) -> str:
    """The model card, from its template in `cards/`."""
    databases = sorted({patient.split("/")[0] for patient in patients})
    count = ", ".join(f"{sum(each.startswith(f'{of}/') for each in patients)} of {of}" for of in databases)
    values: dict[str, object] = {"name": name, "patients": count, "physionet": PHYSIONET, "scores": ""}
    if held_out is not None:
        _, info = load_model(run.model("last"))
        after, called = held_out.heated(temperature), decided(held_out, info.threshold, str(info.task))
        lines = header("class", "labels", "F1", "calibration error before", "after")
        for index, of in enumerate(info.classes):
            if labels := int((held_out.label == index).sum()):
                errors = f"{held_out.error(index):.4f}", f"{after.error(index):.4f}"
                lines.append(row(of, f"{labels:,}", held_out.f1(index, called), *errors))
        lost = []
        if ARTEFACT in info.classes:
            left_out = called == info.classes.index(ARTEFACT)
            lost = [f"{left_out[held_out.label == index].mean():.2%} of {info.classes[index]}" for index in range(3)]
        values |= {
            "num_patients": len(np.unique(held_out.patient)),
            "scores": "\n".join(lines),
            "lost": ", ".join(lost),
        }
        values |= {"num_bins": NUM_BINS, "least_in_bin": MIN_IN_BIN, "temperature": f"{temperature:g}"}
    return CARDS.get_template(f"{name}.md").render(values)


def reliability_figure(held_out: HeldOut, temperature: float, classes: Sequence[str]) -> str:
    """An SVG with a panel for each class: how often the class is right at each probability, before and after."""
    shown = [index for index in range(len(classes)) if (held_out.label == index).any()]
    with plt.rc_context({"svg.hashsalt": "heartlm", "svg.fonttype": "none", "font.size": 8}):
        figure, axes = plt.subplots(1, len(shown), figsize=(2.4 * len(shown), 2.6), squeeze=False, layout="constrained")
        for axis, index in zip(axes[0], shown, strict=True):
            axis.plot([0, 1], [0, 1], color="0.8", linewidth=1)
            for of, label, look in (
                (held_out, "before", {"color": "0.6", "linestyle": ":"}),
                (held_out.heated(temperature), "after", {"color": "tab:blue", "marker": "."}),
            ):
                sums = of.reliability(index)
                num, said, right = sums[:, sums[0] >= MIN_IN_BIN]
                axis.plot(said / num, right / num, label=label, **look)
            axis.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", title=classes[index], xlabel="probability")
        axes[0][0].set_ylabel("frequency")
        axes[0][0].legend(frameon=False, loc="upper left")
        text = StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
        plt.close(figure)
    return text.getvalue()


def ship(name: str, path: Path, out: Path, held_out: HeldOut | None) -> None:
    """Write the shipped form of a run: weights in half precision, and neither paths nor times."""
    run = RunFolder(path)
    model, info = load_model(run.model("last"))
    tensors = {each: value for each, value in whole_tensors(model).items() if not each.startswith("facet_heads")}
    if name == "foundation" and (parent := run.about.get("parent")):
        before = whole_tensors(load_model(RunFolder(Path(parent)).model("last"))[0])
        tensors |= {
            each: torch.lerp(tensors[each], before[each], BEFORE_DRAWN) for each in tensors.keys() & before.keys()
        }
    if held_out is not None:
        for each, added in LOGITS.get(name, {}).items():
            tensors["class_head.bias"][info.classes.index(each)] += added
            held_out = held_out.shifted(info.classes.index(each), added)
    temperature = 1.0 if held_out is None else held_out.temperature()
    if held_out is not None:
        for each in ("class_head.weight", "class_head.bias"):
            tensors[each] = tensors[each] / temperature
        if info.task != "beats":  # as many windows are called at the other temperature
            sought = VF if info.task == "waveform" else 1
            below = float((held_out.probability[:, sought] < info.threshold).mean())
            moved = np.quantile(held_out.heated(temperature).probability[:, sought], below)
            info = replace(info, threshold=round(float(moved), 3))
    tensors = {each: value.half() if value.ndim > 1 else value for each, value in tensors.items()}
    kept = ("num_tokens", "tokenizer", "databases")
    manifest = {key: value for key, value in run.trained_on[0]["manifest"].items() if key in kept}
    patients = trained_patients(run)
    trained = [{"path": None, "manifest": {**manifest, "checksums": {}}, "patients": patients}]
    about = {**run.about, "name": name, "parent": None, "finished": "shipped", "created": "", "command": ""}
    about["manifest_hash"] = sha256(json.dumps(trained, sort_keys=True).encode()).hexdigest()
    settings = run.settings | dict.fromkeys(("corpus", "out", "resume"))
    settings |= {"run": None} if "run" in settings else {}
    with atomic_folder(out / name) as folder:
        save_tensors(folder / "models/last", tensors, info)
        shutil.copytree(run.tokenizer, folder / "tokenizer")
        write_json(folder / "run.json", about)
        write_json(folder / "data.json", trained)
        (folder / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
        (folder / "card.md").write_text(card(name, run, patients, held_out, temperature))
        if held_out is not None:
            (folder / "reliability.svg").write_text(reliability_figure(held_out, temperature, info.classes))


def trained_patients(run: RunFolder) -> list[str]:
    """All that a run and those before it learnt from; copies and noisy pieces count as the patients they are of."""
    records, parent = run.corpus().records, run.about.get("parent")
    own = {
        re.sub("-(retimed|drawn|noisy)/", "/", each) for each in records.patient_id[records.select("train")].tolist()
    }
    return sorted(own.union(trained_patients(RunFolder(Path(parent))) if parent else ()))


def held_out_of(work: Path, name: str) -> HeldOut:
    """What the models of all folds of `name` say of their own held-out patients; kept in the work folder."""
    parts = []
    for folder in sorted((work / name).glob("fold-*")):
        kept = work / f"held-out-{name}-{folder.name}.npz"
        if not kept.exists():
            np.savez(kept, **vars(HeldOut.of(folder / "tuned", open_corpus(folder / "corpus"))))
        parts.append(HeldOut(**np.load(kept)))
    return HeldOut(*(np.concatenate([getattr(part, each) for part in parts]) for each in vars(parts[0])))


def main() -> None:
    numbers = {"folds": 2, "pretrain_steps": 1000, "steps": beats.STEPS}
    numbers |= {
        "foundation_steps": 2000,
        "second_steps": 400,
        "af_steps": 300,
        "waveform_steps": 5000,
        "side_by_side": 2,
    }
    parser = options(__doc__, "work", data="databases and archives", **numbers)
    parser.add_argument("--out", type=Path, default=FOLDER, help="where the shipped models go")
    trained = ("beats", "beats-causal", "foundation", "af", "waveform")
    parser.add_argument("--only", nargs="+", choices=trained, default=trained, help="models to make and ship")
    settings = parser.parse_args()
    settings.data, settings.work = settings.data.resolve(), settings.work.resolve()
    torch.set_num_threads(1)
    maker = Maker(settings)
    with ThreadPoolExecutor(settings.side_by_side) as pool:
        for done in [pool.submit(chain) for chain in maker.chains()]:
            done.result()
    for name in settings.only:
        part, held_out = ("tuned", None) if name == "foundation" else ("final/tuned", held_out_of(settings.work, name))
        ship(name, settings.work / name / part, settings.out, held_out)
    size = sum(path.stat().st_size for path in settings.out.rglob("*") if path.is_file())
    print(
        f"{settings.out}: {size / 1e6:.1f} MB; trained in {sum(maker.steps.seconds.values()) / 60:.0f} min of one core"
    )


if __name__ == "__main__":
    main()
