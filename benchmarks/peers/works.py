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
    """Features (silos, records, ...) and classes (silos, records)."""
    rng = np.random.default_rng(0)
    width = int(np.prod(work.features))
    x = rng.standard_normal((work.silos, work.records, *work.features), np.float32)
    x *= np.float32(1.0 if work.sizes == () else (50 / width) ** 0.5)
    return x, rng.integers(0, max(2, work.outputs), (work.silos, work.records))


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
