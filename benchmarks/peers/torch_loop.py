"""Research code in torch: a loop over silos and, inside, over records, one backward pass each.

In float64 it is the reference that every peer must agree with.
"""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.peers.torch_common import (
    checked_and_timed,
    layers_of,
    loss_of,
    model_of,
    reset,
    tensors,
)
from benchmarks.peers.works import Layers, Prepared, Work

Gradients = list[Tensor]


def prepare(work: Work) -> Prepared:
    """Rounds in float32."""
    return _prepare(work, torch.float32, work.clip)


def reference(work: Work, clip: float) -> Layers:
    """Where the checked rounds move the model, in float64; an infinite clip is none."""
    return _prepare(work, torch.float64, clip).moved()


def _prepare(work: Work, dtype: torch.dtype, clip: float) -> Prepared:
    model, cost = model_of(work, dtype), loss_of(work, "mean")
    other = model_of(work, dtype)
    x, y = tensors(work, dtype)
    weights, before = ([w for m in layers_of(own) for w in (m.weight, m.bias)] for own in (model, other))
    initial = [weight.detach().clone() for weight in weights]

    def one(record: Tensor, target: Tensor, differ: bool) -> Gradients:
        found = list(torch.autograd.grad(cost(model(record[None]), target[None]), weights))
        if differ:
            last = torch.autograd.grad(cost(other(record[None]), target[None]), before)
            found = [new - gone for new, gone in zip(found, last, strict=True)]
        bound = 2.0 * clip if differ else clip
        norm = torch.sqrt(sum((leaf**2).sum() for leaf in found))
        return [leaf * min(1.0, bound / max(float(norm), 1e-30)) for leaf in found]

    def silo(place: int, differ: bool, noise: bool, full: bool) -> Gradients:
        rows = torch.arange(work.batch) if full else torch.randperm(work.records)[: work.batch]
        total = [torch.zeros_like(weight) for weight in weights]
        for row in rows:
            for leaf, own in zip(total, one(x[place, row], y[place, row], differ), strict=True):
                leaf += own
        sigma = work.noise_multiplier * 2.0 * work.clip / work.batch if noise else 0.0
        return [leaf / work.batch + sigma * torch.randn_like(leaf) for leaf in total]

    def play(count: int, step: float, noise: bool, full: bool) -> None:
        estimate: Gradients = []
        for number in range(count):
            differ = work.algorithm == "spider" and number % 2 == 1
            messages = [silo(place, differ, noise, full) for place in range(work.silos)]
            mean = [sum(parts) / work.silos for parts in zip(*messages, strict=True)]
            estimate = [e + m for e, m in zip(estimate, mean, strict=True)] if differ else mean
            reset(before, [weight.detach() for weight in weights])
            with torch.no_grad():
                for weight, leaf in zip(weights, estimate, strict=True):
                    weight -= step * leaf

    return checked_and_timed(work, model, lambda: reset(weights, initial), play)
