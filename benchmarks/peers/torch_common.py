"""What the peers in torch share: the model, its loss, batches of all silos at once, and rounds."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.peers.works import CHANNELS, CHECK_STEP, DENSE, IMAGE, KERNEL, Layers, Prepared, Work, data, start

Gradients = list[Tensor]


class ChannelsLast(nn.Module):
    """Channels after pixels, the order in which the parameters of the first dense layer lie."""

    def forward(self, x: Tensor) -> Tensor:
        """Move channels to the end."""
        return x.permute(0, 2, 3, 1)


def model_of(work: Work, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """The model with the common initial parameters."""
    parts: list[nn.Module] = []
    if work.sizes:
        widths = work.sizes
    else:
        depths = (IMAGE[2], *CHANNELS)
        for inner, outer in itertools.pairwise(depths):
            parts += [nn.Conv2d(inner, outer, KERNEL), nn.MaxPool2d(2), nn.ReLU()]
        parts += [ChannelsLast(), nn.Flatten()]
        widths = (start(work)["dense_1"]["w"].shape[0], *DENSE, work.outputs)
    for inner, outer in itertools.pairwise(widths):
        parts += [nn.Linear(inner, outer), nn.ReLU()]
    model = nn.Sequential(*parts[:-1]).to(dtype)
    with torch.no_grad():
        for module, layer in zip(layers_of(model), start(work).values(), strict=True):
            w = torch.as_tensor(layer["w"])
            if isinstance(module, nn.Conv2d):
                module.weight.copy_(w.reshape(KERNEL, KERNEL, -1, w.shape[1]).permute(3, 2, 0, 1))
            else:
                module.weight.copy_(w.T)
            module.bias.copy_(torch.as_tensor(layer["b"]))
    return model


def layers_of(model: nn.Module) -> list[Any]:
    """The modules with parameters, in order."""
    return [module for module in model.modules() if isinstance(module, nn.Conv2d | nn.Linear)]


def exported(work: Work, model: nn.Module) -> Layers:
    """The parameters, named and shaped as everywhere."""
    found: Layers = {}
    for name, module in zip(start(work), layers_of(model), strict=True):
        w = module.weight.detach()
        w = w.permute(2, 3, 1, 0).reshape(-1, w.shape[0]) if isinstance(module, nn.Conv2d) else w.T
        found[name] = {"w": w.double().numpy().copy(), "b": module.bias.detach().double().numpy().copy()}
    return found


def loss_of(work: Work, reduction: str) -> nn.Module:
    """Binary or categorical cross-entropy."""
    return _Logit(reduction) if work.outputs == 1 else nn.CrossEntropyLoss(reduction=reduction)


class _Logit(nn.Module):
    """Binary cross-entropy of a column of logits."""

    def __init__(self, reduction: str) -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(
            outputs[:, 0], targets.to(outputs.dtype), reduction=self.reduction
        )


def tensors(work: Work, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """The data; images have channels first, as torch wants them."""
    x, y = data(work)
    features = torch.as_tensor(x).to(dtype)
    return features if work.sizes else features.permute(0, 1, 4, 2, 3).contiguous(), torch.as_tensor(y)


def batch(work: Work, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Of every silo a batch without replacement, all in one."""
    rows = torch.rand(y.shape).topk(work.batch, dim=1).indices
    rows = (rows + torch.arange(work.silos)[:, None] * work.records).reshape(-1)
    return x.reshape(-1, *x.shape[2:])[rows], y.reshape(-1)[rows]


def first(work: Work, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The records on which all peers are compared."""
    return x[:, : work.batch].reshape(-1, *x.shape[2:]), y[:, : work.batch].reshape(-1)


def rounds_of(
    work: Work,
    model: nn.Module,
    gradient: Callable[[Tensor, Tensor], Gradients],
    change: Callable[[Gradients, Tensor, Tensor], Gradients] | None,
    private: bool = True,
) -> Prepared:
    """Rounds of ``gradient(x, y)`` at the model's parameters and, in SPIDER, ``change(old parameters, x, y)``."""
    x, y = tensors(work)
    weights = [weight for module in layers_of(model) for weight in (module.weight, module.bias)]
    initial = [weight.detach().clone() for weight in weights]

    def play(count: int, step: float, noise: bool, full: bool) -> None:
        old, estimate = initial, initial
        for number in range(count):
            some = first(work, x, y) if full else batch(work, x, y)
            if work.algorithm == "spider" and number % 2:
                assert change is not None
                fresh = [e + c for e, c in zip(estimate, change(old, *some), strict=True)]
            else:
                fresh = gradient(*some)
            if noise:
                fresh = [g + work.deviation * torch.randn_like(g) for g in fresh]
            old, estimate = [weight.detach().clone() for weight in weights], fresh
            with torch.no_grad():
                for weight, g in zip(weights, fresh, strict=True):
                    weight -= step * g

    return checked_and_timed(work, model, lambda: reset(weights, initial), play, private)


def reset(weights: list[Any], initial: Gradients) -> None:
    """Back to the start."""
    with torch.no_grad():
        for weight, own in zip(weights, initial, strict=True):
            weight.copy_(own)


def checked_and_timed(
    work: Work,
    model: nn.Module,
    back: Callable[[], None],
    play: Callable[[int, float, bool, bool], None],
    private: bool = True,
) -> Prepared:
    """A peer from ``play(rounds, step size, noise, on the first records)``."""
    before = exported(work, model)

    def moved() -> Layers:
        back()
        play(work.check_rounds, CHECK_STEP, False, True)
        after = exported(work, model)
        back()
        return {n: {k: before[n][k] - after[n][k] for k in before[n]} for n in before}

    def step() -> None:
        back()
        play(work.rounds, work.step_size, private, False)

    return Prepared(moved, step)
