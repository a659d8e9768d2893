"""The same two networks in Tacit, torch, Flax (linen and nnx) and Equinox, with the same weights to start from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import linen, nnx
from torch import nn

from tacit.models import from_equinox, from_flax, from_torch
from tacit.objectives import Objective, Problem, cnn, mlp, softmax

torch.set_num_threads(1)
SIZES, IMAGE, CHANNELS, HIDDEN = (6, 8, 3), (12, 12, 2), 3, 7


class Brought(NamedTuple):
    """A problem, its parameters from ours, and ours from its parameters."""

    problem: Problem
    theirs: Callable[[Any], Any]
    ours: Callable[[Any], Any]


class TorchCnn(nn.Module):
    """Channels come last in records and in ours."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(IMAGE[2], CHANNELS, 5)
        self.hidden = nn.Linear(4 * 4 * CHANNELS, HIDDEN)
        self.out = nn.Linear(HIDDEN, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(nn.functional.max_pool2d(self.conv(x.permute(0, 3, 1, 2)), 2))
        return self.out(torch.relu(self.hidden(x.permute(0, 2, 3, 1).flatten(1))))


class LinenMlp(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        return linen.Dense(SIZES[2], name="layer_2")(linen.relu(linen.Dense(SIZES[1], name="layer_1")(x)))


class LinenCnn(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        x = linen.Conv(CHANNELS, (5, 5), padding="VALID", name="conv_1")(x)
        x = linen.relu(linen.max_pool(x, (2, 2), (2, 2))).reshape(len(x), -1)
        return linen.Dense(3, name="dense_2")(linen.relu(linen.Dense(HIDDEN, name="dense_1")(x)))


class NnxMlp(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.layer_1, self.layer_2 = nnx.Linear(*SIZES[:2], rngs=rngs), nnx.Linear(*SIZES[1:], rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.layer_2(nnx.relu(self.layer_1(x)))


class NnxCnn(nnx.Module):
    def __init__(self) -> None:
        rngs = nnx.Rngs(0)
        self.conv_1 = nnx.Conv(IMAGE[2], CHANNELS, (5, 5), padding="VALID", rngs=rngs)
        self.dense_1 = nnx.Linear(4 * 4 * CHANNELS, HIDDEN, rngs=rngs)
        self.dense_2 = nnx.Linear(HIDDEN, 3, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = nnx.relu(nnx.max_pool(self.conv_1(x), (2, 2), (2, 2))).reshape(len(x), -1)
        return self.dense_2(nnx.relu(self.dense_1(x)))


class EquinoxCnn(equinox.Module):
    """Of one record, with channels first inside."""

    conv: equinox.nn.Conv2d
    hidden: equinox.nn.Linear
    out: equinox.nn.Linear

    def __init__(self) -> None:
        key = jax.random.key(0)
        self.conv = equinox.nn.Conv2d(IMAGE[2], CHANNELS, 5, key=key)
        self.hidden = equinox.nn.Linear(4 * 4 * CHANNELS, HIDDEN, key=key)
        self.out = equinox.nn.Linear(HIDDEN, 3, key=key)

    def __call__(self, x: Any) -> Any:
        x = equinox.nn.MaxPool2d(2, 2)(self.conv(x.transpose(2, 0, 1)))
        return self.out(jax.nn.relu(self.hidden(jax.nn.relu(x).transpose(1, 2, 0).ravel())))


def _dense(layer: Any) -> dict[str, Any]:
    return {"kernel": layer["w"], "bias": layer["b"]}


def _from_dense(layer: Any) -> dict[str, Any]:
    return {"w": layer["kernel"], "b": layer["bias"]}


def _torch_dense(ours: Any, names: dict[str, str]) -> dict[str, Any]:
    return {own: {"weight": ours[name]["w"].T, "bias": ours[name]["b"]} for name, own in names.items()}


def _from_torch_dense(theirs: Any, names: dict[str, str]) -> dict[str, Any]:
    return {n: {"w": theirs[own]["weight"].T, "b": theirs[own]["bias"]} for n, own in names.items()}


def mlps() -> dict[str, Brought]:
    """The perceptron."""
    names = {"layer_1": "0", "layer_2": "2"}
    module = nn.Sequential(nn.Linear(*SIZES[:2]), nn.ReLU(), nn.Linear(*SIZES[1:]))
    plain = equinox.nn.MLP(SIZES[0], SIZES[2], SIZES[1], 1, key=jax.random.key(0))
    start = equinox.filter(plain, equinox.is_inexact_array)

    def into_equinox(ours: Any) -> Any:
        leaves = [leaf for name in names for leaf in (ours[name]["w"].T, ours[name]["b"])]
        return jax.tree.unflatten(jax.tree.structure(start), leaves)

    def from_it(theirs: Any) -> Any:
        w1, b1, w2, b2 = jax.tree.leaves(theirs)
        return {"layer_1": {"w": w1.T, "b": b1}, "layer_2": {"w": w2.T, "b": b2}}

    dense = lambda ours: {name: _dense(layer) for name, layer in ours.items()}  # noqa: E731
    back = lambda theirs: {name: _from_dense(layer) for name, layer in theirs.items()}  # noqa: E731
    return {
        "tacit": Brought(Problem(Objective(mlp(SIZES), softmax())), lambda p: p, lambda p: p),
        "torch": Brought(
            Problem(from_torch(module, softmax())),
            lambda p: _torch_dense(p, names),
            lambda p: _from_torch_dense(p, names),
        ),
        "linen": Brought(Problem(from_flax(LinenMlp(), softmax(), features=SIZES[:1])), dense, back),
        "nnx": Brought(Problem(from_flax(NnxMlp(), softmax())), dense, back),
        "equinox": Brought(Problem(from_equinox(plain, softmax())), into_equinox, from_it),
    }


def cnns() -> dict[str, Brought]:
    """The convolutional network."""
    names = {"dense_1": "hidden", "dense_2": "out"}
    shape = (5, 5, IMAGE[2], CHANNELS)
    ours = cnn(IMAGE, channels=(CHANNELS,), hidden=(HIDDEN,), outputs=3)

    def into_torch(params: Any) -> Any:
        kernel = params["conv_1"]["w"].reshape(shape).transpose(3, 2, 0, 1)
        return _torch_dense(params, names) | {"conv": {"weight": kernel, "bias": params["conv_1"]["b"]}}

    def from_it(theirs: Any) -> Any:
        kernel = theirs["conv"]["weight"].transpose(2, 3, 1, 0).reshape(-1, CHANNELS)
        return {"conv_1": {"w": kernel, "b": theirs["conv"]["bias"]}} | _from_torch_dense(theirs, names)

    def into_flax(params: Any) -> Any:
        conv = {"kernel": params["conv_1"]["w"].reshape(shape), "bias": params["conv_1"]["b"]}
        return {"conv_1": conv} | {name: _dense(params[name]) for name in names}

    def from_flax_tree(theirs: Any) -> Any:
        conv = {"w": theirs["conv_1"]["kernel"].reshape(-1, CHANNELS), "b": theirs["conv_1"]["bias"]}
        return {"conv_1": conv} | {name: _from_dense(theirs[name]) for name in names}

    return {
        "tacit": Brought(Problem(Objective(ours, softmax())), lambda p: p, lambda p: p),
        "torch": Brought(Problem(from_torch(TorchCnn(), softmax())), into_torch, from_it),
        "linen": Brought(Problem(from_flax(LinenCnn(), softmax(), features=IMAGE)), into_flax, from_flax_tree),
        "nnx": Brought(Problem(from_flax(NnxCnn(), softmax())), into_flax, from_flax_tree),
        "equinox": _equinox_cnn(into_torch, from_it),
    }


def _equinox_cnn(into_torch: Callable[[Any], Any], from_it: Callable[[Any], Any]) -> Brought:
    """Its weights are those of torch, but for one shape."""
    module, names = EquinoxCnn(), ("conv", "hidden", "out")
    form = jax.tree.structure(equinox.filter(module, equinox.is_inexact_array))

    def into(ours: Any) -> Any:
        made = into_torch(ours)
        made["conv"]["bias"] = made["conv"]["bias"][:, None, None]
        return jax.tree.unflatten(form, [made[name][part] for name in names for part in ("weight", "bias")])

    def back(theirs: Any) -> Any:
        leaves = iter(jax.tree.leaves(theirs))
        return from_it({name: {"weight": next(leaves), "bias": next(leaves).ravel()} for name in names})

    return Brought(Problem(from_equinox(module, softmax())), into, back)


NETWORKS = {"mlp": (mlps, SIZES[:1]), "cnn": (cnns, IMAGE)}


def tables(shape: tuple[int, ...], silos: int = 2, records: int = 20) -> list[dict[str, np.ndarray]]:
    """Silos of one size, with records that a network can learn something from."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(silos):
        x = rng.normal(size=(records, *shape)).astype(np.float32)
        y = x.reshape(records, -1)[:, :3].argmax(axis=1).astype(np.int32)
        made.append({"x": x, "y": y})
    return made


def largest(one: Any, other: Any) -> float:
    """The largest difference of two trees."""
    return max(float(jnp.abs(a - b).max()) for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True))
