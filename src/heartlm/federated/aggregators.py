"""Which way to the mean a study takes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from torch import Tensor

from heartlm.distributed.communicator import Communicator
from heartlm.federated.aggregate import Aggregator, ExactMean
from heartlm.federated.compressed_mean import CompressedMean
from heartlm.federated.errands import errands
from heartlm.federated.masked_mean import MaskedMean
from heartlm.federated.meter import CommunicationMeter
from heartlm.federated.partition import Member
from heartlm.federated.privacy import Ledger, privacy_of
from heartlm.federated.private_mean import PrivateMean
from heartlm.federated.study_file import StudyConfig
from heartlm.files import write_json


def aggregator_of(
    study: StudyConfig, num_clients: int, communicator: Communicator, num_parameters: int, meter: CommunicationMeter
) -> Aggregator:
    """The aggregator that `study` asks for.

    Raises:
        HeartlmError: what is promised of privacy cannot be kept with so many clients.
    """
    inner: Aggregator
    if study.secure_sum:
        inner = MaskedMean(communicator, num_parameters, meter)
    elif study.compression != "none":
        inner = CompressedMean(communicator, num_parameters, meter, study)
    else:
        inner = ExactMean(communicator, num_parameters, round(study.bucket_mib * 2**20), meter)
    privacy = privacy_of(study)
    return inner if privacy is None else PrivateMean(inner, communicator, Ledger(privacy, num_clients))


def owed_by(aggregator: Aggregator, client: int) -> dict[str, Tensor]:
    """What `client` keeps from round to round for the sake of the mean."""
    inner = aggregator.inner if isinstance(aggregator, PrivateMean) else aggregator
    return inner.kept(client) if isinstance(inner, CompressedMean) else {}


def take_up(aggregator: Aggregator, client: int, kept: dict[str, Tensor]) -> dict[str, Tensor]:
    """Give the aggregator what `owed_by` said; what is left is the client's own."""
    own = {name: value for name, value in kept.items() if name != "owed"}
    inner = aggregator.inner if isinstance(aggregator, PrivateMean) else aggregator
    if isinstance(inner, CompressedMean) and len(own) < len(kept):
        inner.load_kept(client, kept)
    return own


def catch_up(aggregator: Aggregator, study: StudyConfig, members: Sequence[Member], num_rounds: int) -> None:
    """Count the rounds before a study was resumed: all who were asked are taken to have taken part."""
    if isinstance(aggregator, PrivateMean):
        for round_index in range(num_rounds):
            aggregator.ledger.took_part(errands(study, members, round_index))


def write_promise(aggregator: Aggregator, folder: Path) -> None:
    """Write `privacy.json` into the folder of a study, and tell of it; nothing where nothing was promised.

    Raises:
        HeartlmError: Opacus is not installed, or the file cannot be written.
    """
    ledger = getattr(aggregator, "ledger", None)
    if not isinstance(ledger, Ledger) or (statement := ledger.statement()) is None:
        return
    write_json(folder / "privacy.json", {**asdict(ledger.privacy), **asdict(statement)})
    print(f"privacy: {statement.words}", file=sys.stderr, flush=True)
