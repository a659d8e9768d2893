"""Per-record gradients by ``torch.func.vmap(grad)``, clipped and averaged, all silos' batches in one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from benchmarks.peers.torch_common import Gradients, layers_of, loss_of, model_of, rounds_of
from benchmarks.peers.works import Prepared, Work, parameters

FLOATS = 2**26


def clipped_mean(each: Callable[[Tensor, Tensor], Any], bound: float, floats: int, x: Tensor, y: Tensor) -> Gradients:
    """The mean of clipped gradients ``each(x, y)``, in parts of so many records that memory stays bounded."""
    size = max(1, FLOATS // floats)
    total: Gradients | None = None
    for own_x, own_y in zip(x.split(size), y.split(size), strict=True):
        found = each(own_x, own_y)
        squares = sum(leaf.reshape(len(own_y), -1).square().sum(1) for leaf in found)
        factor = (bound / squares.sqrt().clamp_min(1e-30)).clamp_max(1.0)
        summed = [torch.tensordot(factor, leaf, 1) for leaf in found]
        total = summed if total is None else [a + b for a, b in zip(total, summed, strict=True)]
    assert total is not None
    return [leaf / len(y) for leaf in total]


def prepare(work: Work) -> Prepared:
    """Rounds of clipped means."""
    model, cost = model_of(work), loss_of(work, "mean")
    names = [name for name, _ in model.named_parameters()]
    width = parameters(work)

    def loss(params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return cost(functional_call(model, params, (x[None],)), y[None])

    per_record = vmap(grad(loss), in_dims=(None, 0, 0))

    def at(params: Gradients, x: Tensor, y: Tensor) -> Gradients:
        return list(per_record(dict(zip(names, params, strict=True)), x, y).values())

    def now() -> Gradients:
        return [w.detach() for m in layers_of(model) for w in (m.weight, m.bias)]

    def gradient(x: Tensor, y: Tensor) -> Gradients:
        return clipped_mean(lambda a, b: at(now(), a, b), work.clip, width, x, y)

    def change(old: Gradients, x: Tensor, y: Tensor) -> Gradients:
        def each(a: Tensor, b: Tensor) -> Gradients:
            return [new - gone for new, gone in zip(at(now(), a, b), at(old, a, b), strict=True)]

        return clipped_mean(each, 2.0 * work.clip, 2 * width, x, y)

    return rounds_of(work, model, gradient, change)
