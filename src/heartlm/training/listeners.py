"""Additional outputs of the metrics of a run: TensorBoard and Weights & Biases.

    step, split, numbers ─► metrics.jsonl, always and first
                        └─► listeners, on the first rank

They are optional: one that fails or is not installed is reported once, then disabled. A resumed run continues the same
series.
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
"""Maximum time in seconds to wait for the server at the end of a run; data not sent stays on the disk."""


class TensorBoard:
    """Writes event files for TensorBoard; removes points of an earlier session from `first_step` on.

    Args:
        folder: folder of the event files.
        first_step: first step to be written.

    Raises:
        HeartlmError: TensorBoard is not installed.
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

    The id of the W&B run is derived from creation time, name and corpus of this run, so a resumed run continues it.

    Args:
        run: the run folder.
        mode: online or offline.

    Raises:
        HeartlmError: Weights & Biases is not installed.
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
        """Log one row of numbers."""
        self._run.log({"step": step, **{f"{split}/{name}": value for name, value in numbers.items()}})

    def close(self) -> None:
        """Finish the W&B run."""
        self._run.finish()


Listener = TensorBoard | WeightsAndBiases


class Listeners:
    """The listeners enabled in the settings, started with the first metrics.

    Args:
        config: settings of the run.
        run: run folder.
        say: function that prints a message to the user.
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
        """Whether the next line of metrics starts listeners, which is slow."""
        return bool(self._awaited)

    def hear(self, step: int, split: str, numbers: Mapping[str, float]) -> None:
        """Pass the numbers to all listeners; disable one that fails."""
        awaited, self._awaited = self._awaited, {}
        for name, begin in awaited.items():
            with self._dropping(name):
                self._heard[name] = begin(step)
        for name, listener in list(self._heard.items()):
            with self._dropping(name):
                listener.hear(step, split, numbers)

    def close(self) -> None:
        """Flush and close all listeners."""
        for name, listener in list(self._heard.items()):
            with self._dropping(name):
                listener.close()
        self._heard = {}

    @contextmanager
    def _dropping(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # training continues after any failure of a listener
            self._heard.pop(name, None)
            reason = " ".join(str(error).split()) or type(error).__name__
            self._say(f"{name} is dropped, the training continues: {reason}")
