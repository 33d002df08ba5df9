"""TinyECG learning to label heartbeats: the patients of a study, and the samples of the clients of this rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from heartlm.distributed.communicator import local_rank
from heartlm.distributed.device import device_and_precision
from heartlm.errors import HeartlmError
from heartlm.evaluation.beats import SCORED_CLASSES, score_beats
from heartlm.evaluation.bootstrap import Resampling
from heartlm.federated.flat import FlatModel
from heartlm.federated.partition import Member, PatientCounts
from heartlm.federated.scores import Scores, summary
from heartlm.federated.study_file import FederatedConfig
from heartlm.federated.waveforms import WINDOW, BeatSet, Labelled, beat_set, labelled_records
from heartlm.files import atomic_folder, write_json
from heartlm.kernels.draws import Stream, draws, uniform
from heartlm.models.tiny_ecg import TinyECG
from heartlm.training.objectives import class_weights

BATCH_STREAM = 15
NUM_CLASSES = len(SCORED_CLASSES)
"""N, S, V and F; paced and unclassifiable beats are neither learnt nor scored, as in de Chazal 2004."""
EVALUATION_BATCH = 1024


class TinyPatients:
    """The patients of the databases of a study, known by their annotations.

    Args:
        study: settings.

    Raises:
        HeartlmError: a database is unusable, or there is no patient to train or to test.

    Attributes:
        left_out: recordings that are not used, one line each.
        train: recordings to train on.
        test: recordings to test on.
        class_counts: training beats of each class, over all training patients.
    """

    def __init__(self, study: FederatedConfig) -> None:
        self.study = study
        found, self.left_out = labelled_records([Path(folder) for folder in study.databases])
        found = [each for each in found if each.counts[:NUM_CLASSES].sum()]
        self.train = [each for each in found if each.split == "train"]
        self.test = [each for each in found if each.split == "test"]
        self.left_out += [
            f"{each.database.name}/{each.record_id}: validation" for each in found if each.split == "validation"
        ]
        for records, what in ((self.train, "train"), (self.test, "test")):
            if not records:
                raise HeartlmError(f"databases: {study.databases} found, none has a patient to {what} on: add one")
        self.class_counts = np.sum([each.counts[:NUM_CLASSES] for each in self.train], axis=0)

    def patients(self) -> list[PatientCounts]:
        """Return the training patients, by name."""
        of: dict[str, list[Labelled]] = {}
        for each in self.train:
            of.setdefault(each.patient_id, []).append(each)
        return [
            PatientCounts(name, records[0].database.name, int(counts.sum()), counts)
            for name, records in sorted(of.items())
            for counts in [np.sum([each.counts[:NUM_CLASSES] for each in records], axis=0)]
        ]

    def learning(self, members: Sequence[Member], mine: Sequence[int], part: int, of: int) -> TinyLearning:
        """Return training data of the clients `mine` of this rank, and part `part` of `of` of the test recordings."""
        samples = {
            number: scored(beat_set([each for each in self.train if each.patient_id in members[number].patients]))
            for number in mine
        }
        labels = np.repeat(np.arange(NUM_CLASSES), self.class_counts)
        weight = class_weights(labels, NUM_CLASSES, self.study.class_balance)
        return TinyLearning(self.study, samples, scored(beat_set(self.test[part::of])), weight)


def scored(beats: BeatSet) -> BeatSet:
    """Return the beats whose class is trained and scored."""
    kept = beats.label < NUM_CLASSES
    return BeatSet(beats.waveform[kept], beats.label[kept], beats.record[kept], beats.records, beats.patients)


class TinyLearning:
    """TinyECG, its optimiser, and the beats of the clients of this rank, on its device.

    Args:
        study: settings.
        samples: beats of each client of this rank, by client number.
        test: part of the test beats for this rank.
        class_weight: class weights of the loss, float32 `[4]`.

    Attributes:
        flat: the model.
        optimizer: optimiser of its parameters.
    """

    def __init__(
        self, study: FederatedConfig, samples: Mapping[int, BeatSet], test: BeatSet, class_weight: Tensor
    ) -> None:
        self.study, self.test = study, test
        self.device, self.precision = device_and_precision(study.device, study.precision, local_rank())
        torch.manual_seed(study.seed)
        self.flat = FlatModel(TinyECG(NUM_CLASSES).to(self.device))
        self.optimizer: torch.optim.Optimizer
        rate, decay = study.learning_rate, study.weight_decay
        if study.optimizer == "sgd":
            self.optimizer = torch.optim.SGD(self.flat.parameters, rate, study.momentum, weight_decay=decay)
        else:
            self.optimizer = torch.optim.AdamW(self.flat.parameters, rate, weight_decay=decay)
        self._class_weight = class_weight.to(self.device)
        self._samples = {
            client: tuple(
                torch.from_numpy(each).to(self.device) for each in (beats.waveform, beats.label.astype(np.int64))
            )
            for client, beats in samples.items()
        }
        self._test = torch.from_numpy(test.waveform).to(self.device)

    def batch(self, client: int, step: int) -> NDArray[np.int64]:
        """Return the indices of the beats of `client` in local step `step`, sampled with replacement; int64 `[B]`."""
        size, num = self.study.batch_size, len(self._samples[client][1])
        drawn = uniform(draws(Stream(self.study.seed, step, BATCH_STREAM), client * size, size))
        return (drawn * num).astype(np.int64)

    def gradients(self, client: int, step: int) -> Tensor:
        """Compute the gradients of a local step."""
        self.flat.module.train()
        waveform, label = self._samples[client]
        chosen = torch.from_numpy(self.batch(client, step)).to(self.device)
        with torch.autocast(self.device.type, self.precision, enabled=self.precision != torch.float32):
            logits = self.flat.module(waveform[chosen])
        # Over the samples, not over their weights: a client without rare beats would weigh its common ones more.
        loss = F.cross_entropy(logits.float(), label[chosen], self._class_weight, reduction="sum") / len(chosen)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def step(self, rate: float) -> None:
        """Take an optimiser step with learning rate `rate`."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def evaluate(self) -> Any:
        """Classes of this rank's test beats, found and annotated (int8 `[num_beats]`), and whose they are."""
        test, found = self.test, [np.zeros(0, np.int8)]
        self.flat.module.eval()
        for begin in range(0, len(test), EVALUATION_BATCH):
            logits = self.flat.module(self._test[begin : begin + EVALUATION_BATCH])
            found.append(logits.argmax(dim=1).to("cpu", torch.int8).numpy())
        return np.concatenate(found), test.label, test.record, test.records, test.patients

    def scores(self, parts: list[Any], final: bool) -> Scores:
        """Beat scores over the parts of all ranks; with confidence intervals where they are `final`."""
        patient = np.array([patients[place] for *_, record, _, patients in parts for place in record], np.str_)
        found, annotated = (np.concatenate([part[place] for part in parts]) for place in (0, 1))
        scores = score_beats(annotated, found, patient, resampling=Resampling(1000 if final else 1))
        return scores if final else summary(scores)

    def save(self, folder: Path) -> None:
        """Write `model.safetensors` and `config.json`."""
        with atomic_folder(folder) as temporary:
            window = {"before_s": WINDOW.before_s, "after_s": WINDOW.after_s, "rate_hz": WINDOW.rate_hz}
            tensors = {name: value.detach().cpu().contiguous() for name, value in self.flat.module.state_dict().items()}
            save_file(tensors, temporary / "model.safetensors")
            write_json(temporary / "config.json", {"model": "tiny_ecg", "classes": SCORED_CLASSES, **window})
