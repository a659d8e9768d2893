"""Tacit with a torch module: the program that ``simulate`` compiles, with gradients by callbacks into torch."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from benchmarks.peers.tacit_rounds import prepared
from benchmarks.peers.torch_common import exported, model_of
from benchmarks.peers.works import Prepared, Work
from tacit.models import from_torch, to_torch
from tacit.objectives import Problem, logistic, softmax


class _Turned(nn.Module):
    """Images have channels last in Tacit's data, and first in torch."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.permute(0, 3, 1, 2))


def prepare(work: Work) -> Prepared:
    """The module of the other peers in torch."""
    plain = model_of(work)
    module = plain if work.sizes else _Turned(plain)
    problem = Problem(from_torch(module, logistic() if work.outputs == 1 else softmax()))

    def layers(params: Any) -> Any:
        made = to_torch(module, params)
        return exported(work, made if work.sizes else made.inner)

    return prepared(work, problem, problem.objective.init(None), layers)
