"""Opacus: at each silo its sampler, its hooks, its optimiser's clip and noise; the server steps along the mean.

These are the parts that ``PrivacyEngine.make_private`` puts together for one holder of all records. The noise is given,
and batches are cut from a tensor at once where its loader collects them record by record.
"""

from __future__ import annotations

import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch import optim

from benchmarks.peers.errors.clock import Clock, Trained
from benchmarks.peers.errors.recipes import Recipe
from benchmarks.peers.errors.tasks import Task
from benchmarks.peers.errors.torch_trainer import model_at_start, play, tensors, weights_of
from benchmarks.peers.torch_common import Gradients, loss_of


def train(task: Task, recipe: Recipe, seed: int) -> Trained:
    """One run."""
    torch.manual_seed(seed)
    clock = Clock()
    records, model, cost = tensors(task), model_at_start(task, seed), loss_of(task.work, "mean")
    hooked, weights = GradSampleModule(model, loss_reduction="mean"), weights_of(model)
    optimisers, batches = [], []
    for silo, (_, y) in enumerate(records):
        optimisers.append(
            DPOptimizer(
                optim.SGD(weights, lr=recipe.step),
                # Its deviation is multiplier x clip on the sum.
                noise_multiplier=2.0 * recipe.noise[silo],
                max_grad_norm=recipe.clip,
                expected_batch_size=recipe.batch[silo],
            )
        )
        rate = recipe.batch[silo] / len(y)
        batches.append(iter(UniformWithReplacementSampler(num_samples=len(y), sample_rate=rate, steps=recipe.rounds)))

    def answer(silo: int) -> Gradients:
        (x, y), rows = records[silo], next(batches[silo])
        optimisers[silo].zero_grad()
        cost(hooked(x[rows]), y[rows]).backward()
        optimisers[silo].pre_step()
        return [weight.grad.clone() for weight in weights]

    return play(task, recipe, clock, model, answer)
