"""Non-private minibatch SGD in torch, all silos' batches in one."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.peers.torch_common import Gradients, layers_of, loss_of, model_of, rounds_of
from benchmarks.peers.works import Prepared, Work


def prepare(work: Work) -> Prepared:
    """Rounds without clip and noise."""
    model, cost, other = model_of(work), loss_of(work, "mean"), model_of(work)
    weights, before = ([w for m in layers_of(own) for w in (m.weight, m.bias)] for own in (model, other))

    def gradient(x: Tensor, y: Tensor) -> Gradients:
        return list(torch.autograd.grad(cost(model(x), y), weights))

    def change(old: Gradients, x: Tensor, y: Tensor) -> Gradients:
        with torch.no_grad():
            for weight, own in zip(before, old, strict=True):
                weight.copy_(own)
        last = torch.autograd.grad(cost(other(x), y), before)
        return [new - gone for new, gone in zip(gradient(x, y), last, strict=True)]

    return rounds_of(work, model, gradient, change, private=False)
