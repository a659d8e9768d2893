"""Sparse linear regression over silos: proximal-PL, with a known optimum and a known support, at a priced budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.common import noise_for
from tacit.algorithm import Algorithm, Channel, Params
from tacit.geometry import Regulariser
from tacit.objectives import Objective, Problem, linear, squared
from tacit.plans.catalogue import find
from tacit.silo import enrol
from tacit.simulate.compiled import Seed, simulate_grid

DELTA = 1e-5
GROUP = 3


@dataclass(frozen=True)
class Sizes:
    """How much data: silos, records in each, features, of which two groups of three matter."""

    silos: int = 10
    records: int = 1000
    features: int = 60

    @property
    def truth(self) -> np.ndarray:
        """The true coefficients: one or minus one in the first group and in one in the middle, zero elsewhere."""
        found = np.zeros(self.features)
        middle = self.features // GROUP // 2 * GROUP
        found[:GROUP], found[middle : middle + GROUP] = (1.0, -1.0, 1.0), (-1.0, 1.0, -1.0)
        return found

    @property
    def groups(self) -> np.ndarray:
        """The group of each feature."""
        return np.arange(self.features) // GROUP


def regression(sizes: Sizes, penalty: Regulariser, draws: Sequence[int]) -> tuple[Problem, list[Seed]]:
    """The problem and one repetition for each draw: features on the unit sphere, little noise on targets."""
    problem = Problem(Objective(linear(sizes.features, 1, bias=False), squared()), penalty, smoothness=1.0)
    seeds = []
    for draw in draws:
        rng = np.random.default_rng(draw)
        x = rng.normal(size=(sizes.silos, sizes.records, sizes.features))
        x /= np.linalg.norm(x, axis=2, keepdims=True)
        y = x @ sizes.truth + 0.05 * rng.normal(size=x.shape[:2])
        made = [{"x": a, "y": b} for a, b in zip(x, y, strict=True)]
        flat = jnp.asarray(x.reshape(-1, sizes.features), jnp.float32)
        pooled = {"x": flat, "y": jnp.asarray(y.ravel(), jnp.float32)}
        key = jax.random.key(draw)
        seeds.append(Seed(key, problem.objective.init(key), enrol(made), pooled))
    return problem, seeds


def trained(build: Callable[..., Algorithm], seeds: Sequence[Seed], sizes: Sizes, epsilons: Sequence[float]) -> Params:
    """Models with axes (seeds, epsilons); the noise of each is the least that accounting allows at its budget."""
    noise = [noise_for(build, [sizes.records] * sizes.silos, epsilon, DELTA) for epsilon in epsilons]
    return simulate_grid(build, {"noise_multiplier": np.stack(noise)}, seeds).params


def builder(name: str, problem: Problem, channel: Channel, **terms: Any) -> Callable[..., Algorithm]:
    """An algorithm as a function of the noise multiplier alone; full batches unless the terms say otherwise."""
    plain = {"batch_size": None, "sampling": "full", "channel": channel}

    def build(noise_multiplier: Any) -> Algorithm:
        return find(name).build(problem, noise_multiplier=noise_multiplier, **{**plain, **terms})

    return build
