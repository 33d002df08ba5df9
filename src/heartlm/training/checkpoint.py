"""Checkpoints for resuming exactly: model, optimiser, step and best loss so far.

    state on the device ─► staged in memory ─► .step-000000200/ ─► step-000000200/ ─► older ones removed
        all ranks            all ranks           each its part        rank 0            rank 0

Training waits for the staging only; a thread does the rest. `torch.distributed.checkpoint` writes the parts
(`checkpoint_files`), so a run can be resumed on another number of processes or with another wrapper. A checkpoint is
complete when it has its final name; rank 0 renames it after every rank has flushed its part. `files.json` lists the
hash of each file; if a file was damaged later, the previous checkpoint is used. Data, masks and dropout of a step are
derived from the seed and the step, so no other state is needed.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from heartlm.distributed.agreement import RankConsensus
from heartlm.distributed.device import on_this_device
from heartlm.distributed.parallel import reason_of
from heartlm.errors import HeartlmError
from heartlm.storage.atomic import explained, fsync_folder, replace_folder, sha256_of, write_json
from heartlm.storage.reading import read_json
from heartlm.system.progress import say
from heartlm.training.checkpoint_files import INDEX, StatePlanner, StateReader, StateWriter

_PREFIX = "step-"
_PROGRESS, _FILES = "progress.json", "files.json"
# Tensor in checkpoints from before the weights of all facets were joined to one tensor.
_SEPARATE_FACETS = "model.embedding.project.0.weight"


@dataclass
class Progress:
    """Progress of a run.

    Attributes:
        step: number of completed steps.
        best_loss: lowest validation loss so far; None before the first validation.
        bad_steps: result of `BadSteps.state` after the last step.
    """

    step: int = 0
    best_loss: float | None = None
    bad_steps: dict[str, Any] = field(default_factory=dict)


class Checkpoints:
    """The checkpoints of one run. All ranks create it and call its methods in the same order.

    Args:
        folder: folder that contains one folder per checkpoint.
        keep: number of complete checkpoints to keep.
        timeout_s: seconds after which a rank that does not respond counts as lost; by default half an hour.
    """

    def __init__(self, folder: Path, keep: int = 2, timeout_s: float | None = None) -> None:
        self.folder, self.keep = Path(folder), keep
        self._ranks = RankConsensus(timeout_s, own_group=True)
        self._writing: Future[None] | None = None
        self._damaged: list[Path] = []
        warnings.filterwarnings("ignore", "torch.distributed is disabled", module="torch.distributed.checkpoint")

    def complete(self) -> list[Path]:
        """Return the complete checkpoints, oldest first, including damaged ones."""
        # Numbers of steps have nine digits, so the order of the names is that of the steps.
        return sorted(path for path in self.folder.glob(f"{_PREFIX}*") if (path / _FILES).is_file())

    def save(self, model: nn.Module, optimizer: Optimizer, progress: Progress) -> None:
        """Stage the state and write it in the background, after waiting for the previous checkpoint.

        Raises:
            HeartlmError: the previous checkpoint could not be written.
        """
        self.wait()
        state = tree_map(
            lambda x: x.detach().to("cpu", copy=True) if isinstance(x, Tensor) else x, _state(model, optimizer)
        )
        writer = ThreadPoolExecutor(1, "checkpoint")
        self._writing = writer.submit(on_this_device(self._try_to_write), state, asdict(progress))
        writer.shutdown(wait=False)  # its thread ends with the checkpoint

    def wait(self) -> None:
        """Wait until the checkpoint in progress is written.

        Raises:
            HeartlmError: the checkpoint could not be written; earlier ones are intact.
        """
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def restore(self, model: nn.Module, optimizer: Optimizer) -> Progress:
        """Load the newest intact checkpoint into `model` and `optimizer`, and print which were skipped.

        Raises:
            HeartlmError: there is no intact checkpoint, or it belongs to another model.
        """
        self.wait()
        complete = self._ranks.first(self.complete)
        if not complete:
            raise HeartlmError(f"{self.folder}: no checkpoint to resume from; start the run again")
        for path in reversed(complete):
            damage = next(filter(None, self._ranks.all(partial(self._damage, path))), None)
            if damage is None:
                return self._load(path, model, optimizer)
            self._ranks.first(partial(say, f"{damage}: passed over"))
            self._damaged.append(path)
        raise HeartlmError(f"{self.folder}: none of {len(complete)} checkpoints is undamaged; start the run again")

    def _load(self, path: Path, model: nn.Module, optimizer: Optimizer) -> Progress:
        state, reader = _state(model, optimizer), None
        try:
            reader = StateReader(path / "state")
            with _plain_errors():
                dcp.load(state, storage_reader=reader, planner=StatePlanner(), **self._ranks.for_torch())
            progress = Progress(**read_json(path / _PROGRESS))
        except Exception as error:
            if reader is not None and _SEPARATE_FACETS in reader.read_metadata().state_dict_metadata:
                raise HeartlmError(
                    f"{path}: written by an earlier version of heartlm, with weights of each facet apart, so the run "
                    "cannot be resumed: start it again; the models in its folder models/ can be used as before"
                ) from error
            raise HeartlmError(
                f"{path} does not fit this run ({_last_line(error)}); resume it with the settings it was started with"
            ) from error
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        return progress

    def _damage(self, path: Path) -> str | None:
        """Check this rank's part of the files of `path`; return a description of the damage, or None."""
        try:
            files = sorted(read_json(path / _FILES).items())
            for name, expected in files[self._ranks.rank :: self._ranks.num_ranks]:
                if sha256_of(path / name) != expected:
                    return f"{path / name} is damaged"
        except (OSError, HeartlmError, KeyError, TypeError, AttributeError) as error:
            return f"{path} is damaged ({_last_line(error)})"
        return None

    def _try_to_write(self, state: dict[str, Any], progress: dict[str, Any]) -> None:
        path = self.folder / f"{_PREFIX}{progress['step']:09d}"
        temporary = path.with_name(f".{path.name}")
        try:
            self._write(temporary, path, state, progress)
        except HeartlmError as error:
            raise HeartlmError(str(error).replace(str(temporary), str(path))) from error
        except OSError as error:
            raise explained(path, error) from error
        except RuntimeError as error:  # from gloo or from another rank
            reason = f"{path} was not finished: {reason_of(error)}; the newest complete checkpoint is good"
            raise HeartlmError(reason) from error

    def _write(self, temporary: Path, path: Path, state: dict[str, Any], progress: dict[str, Any]) -> None:
        def begin() -> None:
            self._sweep()
            (temporary / "state").mkdir(parents=True)
            write_json(temporary / _PROGRESS, progress)

        def hashes() -> dict[str, str]:  # of the files that this rank wrote
            mine = [*(temporary / "state").glob(f"__{self._ranks.rank}_*")]
            if self._ranks.rank == 0:
                mine += [temporary / "state" / INDEX, temporary / _PROGRESS]
            return {str(file.relative_to(temporary)): sha256_of(file) for file in mine}

        def commit() -> None:
            write_json(temporary / _FILES, files)
            fsync_folder(temporary / "state")
            replace_folder(temporary, path)
            fsync_folder(self.folder)
            # A damaged checkpoint takes no place of a good one. One of this step has just been written again.
            good = [kept for kept in self.complete() if kept not in self._damaged or kept == path]
            for old in {*self.complete()} - {*good[-self.keep :]}:
                old.rename(old.with_name(f".{old.name}"))
            self._sweep()

        self._ranks.first(begin)
        with _plain_errors():
            dcp.save(state, storage_writer=StateWriter(temporary / "state"), **self._ranks.for_torch())
        files = {name: digest for part in self._ranks.all(hashes) for name, digest in part.items()}
        self._ranks.first(commit)

    def _sweep(self) -> None:
        """Remove checkpoints that an interrupted process left partly written or partly removed."""
        for torn in self.folder.glob(f".{_PREFIX}*"):
            shutil.rmtree(torn, ignore_errors=True)


def _state(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))


def _last_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[-1]


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Raise the cause of a `CheckpointException`, for example OSError for a full disk."""
    try:
        yield
    except CheckpointException as error:
        failed, _ = next(iter(error.failures.values()))
        cause: BaseException | None = failed
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__cause__ or cause.__context__
        raise (cause or failed) from None
