"""What is computed: data, model, batch and clip, the same for every peer, made of numpy alone."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

Layers = dict[str, dict[str, np.ndarray]]
Algorithm = Literal["mb-sgd", "spider"]

IMAGE = (32, 32, 3)
KERNEL, CHANNELS, DENSE = 5, (6, 16), (120, 84)
CHECK_STEP = 0.5
CLEAR = 1e-5
"""How far every ReLU and every maximum of a pool lies from a tie, on the records by which peers are compared."""


@dataclass(frozen=True)
class Work:
    """Noisy rounds over silos of equal size, a batch drawn without replacement at each.

    ``sizes`` are the widths of dense layers, from features to outputs; none is the CNN on 32 x 32 colour images.
    SPIDER alternates a gradient (clipped to ``clip``) and a difference of gradients (clipped to twice that).
    """

    name: str
    sizes: tuple[int, ...]
    silos: int
    batch: int
    records: int
    clip: float
    algorithm: Algorithm = "mb-sgd"
    rounds: int = 10
    step_size: float = 0.1
    noise_multiplier: float = 1.0

    @property
    def features(self) -> tuple[int, ...]:
        """The shape of one record."""
        return (self.sizes[0],) if self.sizes else IMAGE

    @property
    def outputs(self) -> int:
        """How many outputs the model has; one is a logit."""
        return self.sizes[-1] if self.sizes else 10

    @property
    def deviation(self) -> float:
        """Of the noise of the mean over silos, each of which adds multiplier x sensitivity: 2 clip / batch."""
        return self.noise_multiplier * 2.0 * self.clip / self.batch / self.silos**0.5

    @property
    def check_rounds(self) -> int:
        """How many rounds show every kind of round once."""
        return 2 if self.algorithm == "spider" else 1

    def to_json(self) -> str:
        """For another process."""
        return json.dumps(dataclasses.asdict(self))


def from_json(text: str) -> Work:
    """The work that ``to_json`` wrote."""
    fields = json.loads(text)
    return Work(**{**fields, "sizes": tuple(fields["sizes"])})


class Prepared(NamedTuple):
    """A peer, ready.

    ``moved`` is start minus end after ``check_rounds`` rounds of step ``CHECK_STEP`` on the first ``batch`` records of
    every silo without noise: after one round, that many clipped mean gradients. ``step`` plays ``rounds`` rounds with
    sampling and noise, and is what is timed; where starting up cannot be told apart from outside it returns seconds.
    """

    moved: Callable[[], Layers]
    step: Callable[[], float | None]
    compile_seconds: float = 0.0


def data(work: Work) -> tuple[np.ndarray, np.ndarray]:
    """Features (silos, records, ...) and classes (silos, records).

    The gradient jumps at a tie, where float32 and float64 may take different sides. So the records by which peers are
    compared are drawn again while one is near a tie of the initial model.
    """
    rng, again = np.random.default_rng(0), np.random.default_rng(2)
    x = _features(rng, work, (work.silos, work.records))
    y = rng.integers(0, max(2, work.outputs), (work.silos, work.records))
    compared = x[:, : work.batch].reshape(-1, *work.features)
    near = np.arange(len(compared))
    while len(near := near[margins(work, compared[near]) < CLEAR]):
        compared[near] = _features(again, work, (len(near),))
    x[:, : work.batch] = compared.reshape(work.silos, -1, *work.features)
    return x, y


def _features(rng: np.random.Generator, work: Work, many: tuple[int, ...]) -> np.ndarray:
    x = rng.standard_normal((*many, *work.features), np.float32)
    return x * np.float32((50 / work.sizes[0]) ** 0.5 if work.sizes else 1.0)


def margins(work: Work, x: np.ndarray) -> np.ndarray:
    """How near each record comes to a tie of the initial model, in float64: at a ReLU or between two pixels of a pool.

    What a ReLU sets to zero passes nothing on, so that two pixels below zero may be equal.
    """
    parts = [x[first : first + 64] for first in range(0, len(x), 64)]
    return np.concatenate([_margins(work, part.astype(np.float64)) for part in parts] or [np.zeros(0)])


def _margins(work: Work, x: np.ndarray) -> np.ndarray:
    found = np.full(len(x), np.inf)
    *hidden, _ = start(work).items()
    for name, layer in hidden:
        if name.startswith("conv"):
            x, ties = _pooled(x, layer)
        else:
            x = x.reshape(len(x), -1) @ layer["w"] + layer["b"]
            ties = np.abs(x)
        x = np.maximum(x, 0.0)
        found = np.minimum(found, ties.reshape(len(x), -1).min(axis=1))
    return found


def _pooled(x: np.ndarray, layer: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """A convolution after its 2 x 2 pools, and of every pool the distance to the next tie."""
    seen = np.lib.stride_tricks.sliding_window_view(x, (KERNEL, KERNEL), axis=(1, 2)).transpose(0, 1, 2, 4, 5, 3)
    records, rows, columns = seen.shape[:3]
    outs = seen.reshape(records, rows, columns, -1) @ layer["w"] + layer["b"]
    pools = outs.reshape(records, rows // 2, 2, columns // 2, 2, -1).swapaxes(2, 3)
    second, first = np.moveaxis(np.sort(pools.reshape(*pools.shape[:3], 4, -1), axis=3)[..., 2:, :], 3, 0)
    return first, np.where(first > 0.0, np.minimum(first, first - second), -first)


def start(work: Work) -> Layers:
    """Initial parameters, named and shaped as Tacit's are; dense weights are (inputs, outputs)."""
    rng = np.random.default_rng(1)
    shapes: dict[str, tuple[int, int]] = {}
    if work.sizes:
        names = ["linear"] if len(work.sizes) == 2 else [f"layer_{i}" for i in range(1, len(work.sizes))]
        shapes = dict(zip(names, zip(work.sizes[:-1], work.sizes[1:], strict=True), strict=True))
    else:
        depths, widths = (IMAGE[2], *CHANNELS), (_flat(), *DENSE, 10)
        for i, (inner, outer) in enumerate(itertools.pairwise(depths), 1):
            shapes[f"conv_{i}"] = (KERNEL**2 * inner, outer)
        for i, (inner, outer) in enumerate(itertools.pairwise(widths), 1):
            shapes[f"dense_{i}"] = (inner, outer)
    return {
        name: {
            "w": (rng.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32),
            "b": (0.1 * rng.standard_normal(shape[1])).astype(np.float32),
        }
        for name, shape in shapes.items()
    }


def _flat() -> int:
    side = IMAGE[0]
    for _ in CHANNELS:
        side = (side - KERNEL + 1) // 2
    return side * side * CHANNELS[-1]


def parameters(work: Work) -> int:
    """How many parameters the model has."""
    return sum(leaf.size for layer in start(work).values() for leaf in layer.values())


def distance(found: Layers, wanted: Layers) -> float:
    """The largest error of a coordinate, relative to the largest coordinate that is wanted."""
    errors = [np.abs(found[n][k] - wanted[n][k]).max() for n in wanted for k in wanted[n]]
    sizes = [np.abs(wanted[n][k]).max() for n in wanted for k in wanted[n]]
    return float(max(errors) / max(sizes))


def difference(before: Layers, after: Any) -> Layers:
    """Start minus end, as float64."""
    return {
        name: {k: np.asarray(layer[k], np.float64) - np.asarray(after[name][k], np.float64) for k in layer}
        for name, layer in before.items()
    }
