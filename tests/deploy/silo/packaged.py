"""A package with a torch model, as an owner installs it: a folder with its source and its metadata."""

from __future__ import annotations

import sys
from pathlib import Path

PACKAGE = "clinic_models"
SOURCE = '''"""Models of a clinic."""

import torch
from torch import nn

from tacit.models import backbone, torch_model

torch.set_num_threads(1)


def chest_net(features, outputs, width=4):
    torch.manual_seed(0)
    return torch_model(nn.Sequential(nn.Linear(features[0], width), nn.Tanh(), nn.Linear(width, outputs)))


def small_body(weights, digest):
    return backbone(nn.Sequential(nn.Linear(5, 3), nn.Tanh()), weights, digest=digest)


def mixing_body(weights, digest):
    return lambda x: x - x.mean(0)


class Reading(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(40, outputs))

    def forward(self, x):
        return self.table[x[:, 0].long()]


def reading(features, outputs):
    return torch_model(Reading(outputs))


def normed(features, outputs):
    return torch_model(nn.Sequential(nn.Linear(features[0], 4), nn.BatchNorm1d(4), nn.Linear(4, outputs)))
'''


def install(place: Path) -> Path:
    """Put the package into a folder that stands for site-packages; the file of its source."""
    source = place / PACKAGE / "__init__.py"
    source.parent.mkdir(parents=True)
    source.write_text(SOURCE, encoding="utf-8")
    info = place / f"{PACKAGE}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.2\n", encoding="utf-8")
    entries = (
        f"[tacit.models]\nchest-net = {PACKAGE}:chest_net\nnormed = {PACKAGE}:normed\nreading = {PACKAGE}:reading\n"
    )
    entries += f"[tacit.backbones]\nsmall-body = {PACKAGE}:small_body\nmixing-body = {PACKAGE}:mixing_body\n"
    (info / "entry_points.txt").write_text(entries, encoding="utf-8")
    return source


def forget() -> None:
    """As if this process had never imported it."""
    from tacit.objectives import installed

    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]
    sys.meta_path[:] = [found for found in sys.meta_path if not isinstance(found, installed.DigestedFinder)]
    installed._LOADED.pop(PACKAGE, None)
