"""TinyECG: the small convolutional network of the published federated study ("CrossScale-ECG").

waveform [B, 1, L] ─► Conv1d 1→16, K 7 ─► ReLU ─► Conv1d 16→16, K 5 ─► ReLU ─► mean over L ─► Linear ─► logits
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class TinyECG(nn.Module):
    """Classifies one lead around one heartbeat.

    The receptive field is 11 samples, and the mean over the window discards positions. So the sampling rate determines
    the time span of the features.

    Args:
        num_classes: number of classes; by default the five AAMI classes.
    """

    def __init__(self, num_classes: int = 5) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(1, 16, kernel_size=7, padding=3),
            nn.ReLU(),
            nn.Conv1d(16, 16, kernel_size=5, padding=2),
            nn.ReLU(),
        )
        self.classifier = nn.Linear(16, num_classes)

    def forward(self, waveform: Tensor) -> Tensor:
        """Return logits `[batch, num_classes]` of float32 waveforms `[batch, 1, length]`."""
        logits: Tensor = self.classifier(torch.mean(self.features(waveform), dim=2))
        return logits
