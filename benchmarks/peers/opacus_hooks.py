"""Opacus with per-record gradients from hooks, and its own optimiser; all silos' batches in one."""

from __future__ import annotations

from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn, optim

from benchmarks.peers.torch_common import (
    Gradients,
    batch,
    checked_and_timed,
    first,
    layers_of,
    loss_of,
    model_of,
    reset,
    rounds_of,
    tensors,
)
from benchmarks.peers.torch_func import FLOATS, clipped_mean
from benchmarks.peers.works import Prepared, Work, parameters


def prepare(work: Work) -> Prepared:
    """MB-SGD through ``DPOptimizer``; SPIDER's clipped differences are ours, on the gradients of its hooks."""
    return _spider(work) if work.algorithm == "spider" else _mb_sgd(work)


def _mb_sgd(work: Work) -> Prepared:
    model, cost = model_of(work), loss_of(work, "mean")
    hooked = GradSampleModule(model, loss_reduction="mean")
    weights = [w for m in layers_of(model) for w in (m.weight, m.bias)]
    initial = [weight.detach().clone() for weight in weights]
    x, y = tensors(work)
    size = max(1, FLOATS // parameters(work))

    def play(count: int, step: float, noise: bool, full: bool) -> None:
        optimizer = DPOptimizer(
            optim.SGD(weights, lr=step),
            # Its deviation is multiplier x clip on the sum of all silos' records.
            noise_multiplier=2.0 * work.noise_multiplier * work.silos**0.5 if noise else 0.0,
            max_grad_norm=work.clip,
            expected_batch_size=work.silos * work.batch,
        )
        for _ in range(count):
            some_x, some_y = first(work, x, y) if full else batch(work, x, y)
            parts = list(zip(some_x.split(size), some_y.split(size), strict=True))
            for number, (own_x, own_y) in enumerate(parts, 1):
                optimizer.signal_skip_step(do_skip=number < len(parts))
                optimizer.zero_grad()
                cost(hooked(own_x), own_y).backward()
                optimizer.step()
            optimizer.zero_grad()

    return checked_and_timed(work, model, lambda: reset(weights, initial), play)


def _spider(work: Work) -> Prepared:
    model, other, cost = model_of(work), model_of(work), loss_of(work, "mean")
    hooked, before = (GradSampleModule(own, loss_reduction="mean") for own in (model, other))

    def each(module: nn.Module, x: Tensor, y: Tensor) -> Gradients:
        module.zero_grad()
        cost(module(x), y).backward()
        return [w.grad_sample for m in layers_of(module) for w in (m.weight, m.bias)]

    def gradient(x: Tensor, y: Tensor) -> Gradients:
        return clipped_mean(lambda a, b: each(hooked, a, b), work.clip, parameters(work), x, y)

    def change(old: Gradients, x: Tensor, y: Tensor) -> Gradients:
        reset([w for m in layers_of(other) for w in (m.weight, m.bias)], old)

        def differences(a: Tensor, b: Tensor) -> Gradients:
            return [new - gone for new, gone in zip(each(hooked, a, b), each(before, a, b), strict=True)]

        return clipped_mean(differences, 2.0 * work.clip, 2 * parameters(work), x, y)

    return rounds_of(work, model, gradient, change)
