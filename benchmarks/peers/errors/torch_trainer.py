"""Per-record gradients by torch.func, at each silo by itself; the server takes a step along the mean."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.func import functional_call, grad, vmap

from benchmarks.peers.errors.clock import Clock, Trained
from benchmarks.peers.errors.recipes import ADAM, MOMENTUM, Recipe
from benchmarks.peers.errors.tasks import Task, initial
from benchmarks.peers.torch_common import Gradients, exported, layers_of, loss_of, model_of
from benchmarks.peers.torch_func import clipped_mean
from benchmarks.peers.works import parameters


def model_at_start(task: Task, seed: int, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """The model with the common initial parameters of a seed."""
    model = model_of(task.work, dtype)
    with torch.no_grad():
        for module, layer in zip(layers_of(model), initial(task, seed).values(), strict=True):
            module.weight.copy_(torch.as_tensor(layer["w"]).T)
            module.bias.copy_(torch.as_tensor(layer["b"]))
    return model


def weights_of(model: nn.Module) -> list[nn.Parameter]:
    """The parameters in order."""
    return [weight for module in layers_of(model) for weight in (module.weight, module.bias)]


def tensors(task: Task, dtype: torch.dtype = torch.float32) -> list[tuple[Tensor, Tensor]]:
    """Each silo's records."""
    return [(torch.as_tensor(x).to(dtype), torch.as_tensor(y)) for x, y in task.train]


def play(task: Task, recipe: Recipe, clock: Clock, model: nn.Module, answer: Callable[[int], Gradients]) -> Trained:
    """Rounds of the mean of all silos' private gradients, ``answer(silo)``, and a step of the server's optimiser."""
    weights = weights_of(model)
    betas: dict[str, Any] = {"betas": (ADAM["b1"], ADAM["b2"]), "eps": ADAM["eps"]}
    adam, momentum = recipe.server == "adam", MOMENTUM if recipe.server == "momentum" else 0.0
    plain = partial(optim.SGD, momentum=momentum)
    server = optim.Adam(weights, lr=recipe.step, **betas) if adam else plain(weights, lr=recipe.step)
    clock.ready()
    for _ in range(recipe.rounds):
        messages = [answer(silo) for silo in range(len(task.train))]
        for weight, *parts in zip(weights, *messages, strict=True):
            weight.grad = torch.stack(parts).mean(dim=0)
        server.step()
        clock.ended([weight.detach().clone() for weight in weights])

    def layers(kept: Gradients) -> Any:
        with torch.no_grad():
            for weight, own in zip(weights, kept, strict=True):
                weight.copy_(own)
        return exported(task.work, model)

    return clock.trained(layers)


def train(task: Task, recipe: Recipe, seed: int, dtype: torch.dtype = torch.float32) -> Trained:
    """One run."""
    torch.manual_seed(seed)
    clock = Clock()
    records, model, cost = tensors(task, dtype), model_at_start(task, seed, dtype), loss_of(task.work, "mean")
    names, width = [name for name, _ in model.named_parameters()], parameters(task.work)

    def loss(params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return cost(functional_call(model, params, (x[None],)), y[None])

    per_record = vmap(grad(loss), in_dims=(None, 0, 0))

    def answer(silo: int) -> Gradients:
        (x, y), weights, batch = records[silo], [w.detach() for w in weights_of(model)], recipe.batch[silo]
        rows = (torch.rand(len(y)) < batch / len(y)).nonzero()[:, 0]
        mean = [torch.zeros_like(w) for w in weights]
        if len(rows):
            now = dict(zip(names, weights, strict=True))
            mean = clipped_mean(lambda a, b: list(per_record(now, a, b).values()), recipe.clip, width, x[rows], y[rows])
        deviation = recipe.noise[silo] * 2.0 * recipe.clip / batch
        return [leaf * (len(rows) / batch) + deviation * torch.randn_like(leaf) for leaf in mean]

    return play(task, recipe, clock, model, answer)


def reference(task: Task, recipe: Recipe, seed: int) -> Trained:
    """The same in float64."""
    return train(task, recipe, seed, torch.float64)
