"""A model as one vector: what learns lies side by side in memory, so that it is sent, saved and moved as one piece."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FlatModel:
    """A model whose learning parameters are views of one vector.

    Parameters that do not learn are left where they are: they never change, so they are not sent. Buffers
    stay too; none of the models here has buffers that training changes (no batch norms).

    Args:
        module: the model, on its device; its learning parameters, float32, are moved into the vector.

    Attributes:
        module: the model.
        parameters: those that learn, in the order of the vector.
        vector: all of them, float32 `[P]`; writing to it changes the model.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        device = self.parameters[0].device
        self.vector = torch.empty(sum(each.numel() for each in self.parameters), dtype=torch.float32, device=device)
        with torch.no_grad():
            for parameter, view in zip(self.parameters, self.views(self.vector), strict=True):
                view.copy_(parameter)
                parameter.data = view

    def __len__(self) -> int:
        return len(self.vector)

    def views(self, vector: Tensor) -> list[Tensor]:
        """A vector like this model's, `[P]`, as tensors of the shapes of `parameters`; nothing is copied."""
        sizes = [parameter.numel() for parameter in self.parameters]
        parts = vector.split(sizes)  # type: ignore[no-untyped-call]
        return [part.view(each.shape) for part, each in zip(parts, self.parameters, strict=True)]

    def on_host(self) -> Tensor:
        """A copy of the weights in main memory, float32 `[P]`."""
        return self.vector.detach().to("cpu", copy=True)
