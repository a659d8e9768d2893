"""Models of a consortium of clinics, as a package that every owner can read before installing it."""

from __future__ import annotations

import torch
from torch import nn

from tacit.models import torch_model
from tacit.objectives import Model


def chest_net(features: tuple[int, ...], outputs: int, width: int = 32) -> Model:
    """A perceptron with layer normalisation; ``width`` is an option of the study."""
    torch.manual_seed(0)
    return torch_model(
        nn.Sequential(nn.Linear(features[0], width), nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, outputs))
    )
