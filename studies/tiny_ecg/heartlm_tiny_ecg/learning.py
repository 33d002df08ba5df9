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

from heartlm.distributed.device import device_and_precision
from heartlm.errors import HeartlmError
from heartlm.evaluation.beats import SCORED_CLASSES
from heartlm.extensions.federated.communicator import local_rank
from heartlm.extensions.federated.flat import FlatModel
from heartlm.extensions.federated.partition import Member, PatientCounts
from heartlm.extensions.federated.study_file import FederatedConfig
from heartlm.kernels.draws import Stream, Use, draws, uniform
from heartlm.storage.atomic import atomic_folder, write_json
from heartlm.training.objectives import label_weights
from heartlm_tiny_ecg.network import TinyECG
from heartlm_tiny_ecg.waveforms import NUM_CLASSES, WINDOW, BeatSet, Labelled, beat_set, labelled_records

EVALUATION_BATCH = 1024


class TinyPatients:
    """The patients of the databases of a study, known by their annotations.

    Args:
        study: settings.

    Raises:
        HeartlmError: a database is unusable, or there is no patient to train or to test.

    Attributes:
        left_out: recordings that are not used, one line each.
        records_by_split: recordings of each split.
        class_counts: training beats of each class, over all training patients.
    """

    def __init__(self, study: FederatedConfig) -> None:
        self.study = study
        records, self.left_out = labelled_records(study.databases)
        self.records_by_split: dict[str, list[Labelled]] = {"train": [], "test": [], "validation": []}
        for each in records:
            self.records_by_split[each.split].append(each)
        self.left_out += [
            f"{each.database.name}/{each.record_id}: validation" for each in self.records_by_split["validation"]
        ]
        for split in ("train", "test"):
            if not self.records_by_split[split]:
                raise HeartlmError(f"databases: {study.databases} found, none has a patient to {split} on: add one")
        self.class_counts: list[int] = np.sum([each.counts for each in self.records_by_split["train"]], axis=0).tolist()

    def patients(self) -> list[PatientCounts]:
        """Return the training patients, by name."""
        by_patient: dict[str, list[Labelled]] = {}
        for each in self.records_by_split["train"]:
            by_patient.setdefault(each.patient_id, []).append(each)
        return [
            PatientCounts(name, records[0].database.name, int(counts.sum()), counts.tolist())
            for name, records in sorted(by_patient.items())
            for counts in [np.sum([each.counts for each in records], axis=0)]
        ]

    def use_on_node(self, class_counts: list[int]) -> None:
        """Weight beats as all nodes together do, and read no test beats: the server scores."""
        self.class_counts, self.records_by_split["test"] = class_counts, []

    def learning(self, members: Sequence[Member], mine: Sequence[int], part: int, of: int) -> TinyLearning:
        """Return training data of the clients `mine` of this rank, and part `part` of `of` of the test recordings."""
        client_of = {patient: number for number in mine for patient in members[number].patients}
        records: dict[int, list[Labelled]] = {number: [] for number in mine}
        for each in self.records_by_split["train"]:
            if each.patient_id in client_of:
                records[client_of[each.patient_id]].append(each)
        samples = {number: beat_set(records[number]) for number in mine}
        labels = np.repeat(np.arange(NUM_CLASSES), self.class_counts)
        weight = label_weights(labels, np.zeros_like(labels), NUM_CLASSES, self.study.class_balance)[0]
        return TinyLearning(self.study, samples, beat_set(self.records_by_split["test"][part::of]), weight)


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
            self.optimizer = torch.optim.SGD(self.flat.parameters, rate, weight_decay=decay)
        else:
            self.optimizer = torch.optim.AdamW(self.flat.parameters, rate, weight_decay=decay)
        self._class_weight = class_weight.to(self.device)
        self._samples = {
            client: [torch.from_numpy(values).to(self.device) for values in (beats.waveform, beats.label)]
            for client, beats in samples.items()
        }

    def batch(self, client: int, step: int) -> NDArray[np.int64]:
        """Return the indices of the beats of `client` in local step `step`, sampled with replacement; int64 `[B]`."""
        size, num = self.study.batch_size, len(self._samples[client][1])
        drawn = uniform(draws(Stream(self.study.seed, step, Use.CLIENT_BATCH), client * size, size))
        return (drawn * num).astype(np.int64)

    def gradients(self, client: int, step: int) -> Tensor:
        """Compute the gradients of a local step."""
        self.flat.module.train()
        waveform, label = self._samples[client]
        chosen = torch.from_numpy(self.batch(client, step)).to(self.device)
        with torch.autocast(self.device.type, self.precision, enabled=self.precision != torch.float32):
            logits = self.flat.module(waveform[chosen])
        # Over the samples, not over their weights: a client without rare beats would weigh its common ones more.
        loss = F.cross_entropy(logits.float(), label[chosen].long(), self._class_weight, reduction="sum") / len(chosen)
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
        self.flat.module.eval()
        batches = torch.from_numpy(self.test.waveform).to(self.device).split(EVALUATION_BATCH)  # type: ignore[no-untyped-call]
        predicted = [self.flat.module(batch).argmax(dim=1).to("cpu", torch.int8).numpy() for batch in batches]
        return np.concatenate(predicted), self.test.label, self.test.patient

    def save(self, folder: Path) -> None:
        """Write `model.safetensors` and `config.json`."""
        with atomic_folder(folder) as temporary:
            window = {"before_s": WINDOW.before_s, "after_s": WINDOW.after_s, "rate_hz": WINDOW.rate_hz}
            tensors = {name: value.detach().cpu().contiguous() for name, value in self.flat.module.state_dict().items()}
            save_file(tensors, temporary / "model.safetensors")
            write_json(temporary / "config.json", {"model": "tiny_ecg", "classes": SCORED_CLASSES, **window})
