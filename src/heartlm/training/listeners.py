"""Others who hear the metrics of a run: TensorBoard and Weights & Biases.

    step, split, numbers ─► metrics.jsonl, always and first
                        └─► listeners, on the first rank

A run never needs them: one that fails, or is not installed, is logged once, then disabled. A resumed run continues in
the same series.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from heartlm.errors import needs
from heartlm.runs.run_folder import RunFolder
from heartlm.training.config import TrainingConfig

FINISH_LIMIT_S = 60.0
"""How long the end of a run waits for a server that does not answer; what it did not take stays on the disk."""


class TensorBoard:
    """Writes event files for TensorBoard; what an earlier session wrote after `first_step` is taken back.

    Args:
        folder: for event files.
        first_step: that will be heard of.

    Raises:
        HeartlmError: it is not installed.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        with needs("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter
        self._writer: Any = SummaryWriter(str(folder), purge_step=first_step)

    def hear(self, step: int, split: str, numbers: Mapping[str, float]) -> None:
        """Add a point to each series, `train/loss` and so on."""
        for name, value in numbers.items():
            self._writer.add_scalar(f"{split}/{name}", value, step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


class WeightsAndBiases:
    """Sends numbers to Weights & Biases, or keeps them in the run folder for `wandb sync`.

    The run there is named by when and where this one began, so that a resumed run is the same one there, too.

    Args:
        run: the run folder.
        mode: online or offline.

    Raises:
        HeartlmError: it is not installed.
    """

    def __init__(self, run: RunFolder, mode: Literal["online", "offline"]) -> None:
        with needs("wandb"):
            import wandb
        about = run.about
        identity = f"{about['created']} {about['name']} {about['manifest_hash']}"
        settings = wandb.Settings(
            silent=True,
            console="off",
            disable_code=True,
            login_timeout=FINISH_LIMIT_S,
            finish_timeout=FINISH_LIMIT_S,
        )
        self._run: Any = wandb.init(
            project="heartlm",
            name=str(about["name"]),
            id=hashlib.sha256(identity.encode()).hexdigest()[:16],
            resume="allow" if mode == "online" else None,
            mode=mode,
            dir=str(run.path),
            config=run.settings,
            settings=settings,
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def hear(self, step: int, split: str, numbers: Mapping[str, float]) -> None:
        """Add a row."""
        self._run.log({"step": step, **{f"{split}/{name}": value for name, value in numbers.items()}})

    def close(self) -> None:
        """End the run there."""
        self._run.finish()


Listener = TensorBoard | WeightsAndBiases


class Listeners:
    """Those that the settings ask for; they are started when there is something to hear.

    Args:
        config: of the run.
        run: its folder.
        say: tells the user.
    """

    def __init__(self, config: TrainingConfig, run: RunFolder, say: Callable[[str], None]) -> None:
        self._say = say
        self._awaited: dict[str, Callable[[int], Listener]] = {}
        self._heard: dict[str, Listener] = {}
        if config.tensorboard:
            self._awaited["TensorBoard"] = lambda step: TensorBoard(run.path / "tensorboard", step)
        if config.wandb != "none":
            mode = config.wandb
            self._awaited["Weights & Biases"] = lambda _: WeightsAndBiases(run, mode)

    @property
    def are_awaited(self) -> bool:
        """Whether the next line begins some, which takes a while."""
        return bool(self._awaited)

    def hear(self, step: int, split: str, numbers: Mapping[str, float]) -> None:
        """Tell all of them; one that fails is dropped."""
        awaited, self._awaited = self._awaited, {}
        for name, begin in awaited.items():
            with self._dropping(name):
                self._heard[name] = begin(step)
        for name, listener in list(self._heard.items()):
            with self._dropping(name):
                listener.hear(step, split, numbers)

    def close(self) -> None:
        """Let all of them write what they buffered."""
        for name, listener in list(self._heard.items()):
            with self._dropping(name):
                listener.close()
        self._heard = {}

    @contextmanager
    def _dropping(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # whatever fails in there, the training continues
            self._heard.pop(name, None)
            reason = " ".join(str(error).split()) or type(error).__name__
            self._say(f"{name} is dropped, the training continues: {reason}")
