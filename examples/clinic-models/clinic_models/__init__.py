"""Models of a consortium of clinics, as a package that every owner can read before installing it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

from tacit.models import backbone, torch_model
from tacit.objectives import Model


def chest_net(features: tuple[int, ...], outputs: int, width: int = 32) -> Model:
    """A perceptron with layer normalisation; ``width`` is an option of the study."""
    torch.manual_seed(0)
    return torch_model(
        nn.Sequential(nn.Linear(features[0], width), nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, outputs))
    )


SMALL_CONV = "87259d3bcc76a46b6a6d655e9dd7f23aa1c47a732d2ab8699689fd100465645f"
"""The SHA-256 of ``small_conv.safetensors``, which lies beside this file: a public body, trained on CIFAR-10."""


class Body(nn.Module):
    """Two convolutions and two dense layers: 84 features of an image of 32 x 32 x 3 in [-1, 1], channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
        self.wide, self.last = nn.Linear(400, 120), nn.Linear(120, 84)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The activations below the head."""
        x = x.permute(0, 3, 1, 2)
        for layer in (self.first, self.second):
            x = torch.relu(nn.functional.max_pool2d(layer(x), 2))
        return torch.relu(self.last(torch.relu(self.wide(x.flatten(1)))))


def small_conv(weights: str | Path, digest: str) -> Callable[[np.ndarray], np.ndarray]:
    """Features of images by a frozen body, whose weights are the file of this digest."""
    return backbone(Body(), weights, digest=digest)
