"""Opacus with ghost clipping: norms first, then a second backward pass; all silos' batches in one.

It has no differences of gradients at two points, so no SPIDER.
"""

from __future__ import annotations

from opacus.grad_sample import GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import optim

from benchmarks.peers.torch_common import (
    batch,
    checked_and_timed,
    first,
    layers_of,
    loss_of,
    model_of,
    reset,
    tensors,
)
from benchmarks.peers.works import Prepared, Work


def prepare(work: Work) -> Prepared:
    """MB-SGD through the ghost optimiser and loss."""
    model = model_of(work)
    hooked = GradSampleModuleFastGradientClipping(model, max_grad_norm=work.clip, use_ghost_clipping=True)
    weights = [w for m in layers_of(model) for w in (m.weight, m.bias)]
    initial = [weight.detach().clone() for weight in weights]
    x, y = tensors(work)

    def play(count: int, step: float, noise: bool, full: bool) -> None:
        optimizer = DPOptimizerFastGradientClipping(
            optim.SGD(weights, lr=step),
            noise_multiplier=2.0 * work.noise_multiplier * work.silos**0.5 if noise else 0.0,
            max_grad_norm=work.clip,
            expected_batch_size=work.silos * work.batch,
        )
        cost = DPLossFastGradientClipping(hooked, optimizer, loss_of(work, "mean"))
        for _ in range(count):
            some_x, some_y = first(work, x, y) if full else batch(work, x, y)
            optimizer.zero_grad()
            cost(hooked(some_x), some_y).backward()
            optimizer.step()

    return checked_and_timed(work, model, lambda: reset(weights, initial), play)
