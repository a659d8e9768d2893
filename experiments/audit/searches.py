"""Searches for the worst record that take longer, or are for checkouts alone; see `tacit.audit.sensitivity`.

gradient ascent      climbs, from many starts, in the simulator, whose statistic has gradients
whole float range    draws magnitudes from all of float32, where rounding, underflow and overflow live
hostile points       those of `tacit audit`
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tacit.algorithm import Algorithm
from tacit.audit import sensitivity
from tacit.audit.sensitivity import Ground, SensitivityResult, drawn, moved, parts_of, searched
from tacit.objectives import Objective, Problem
from tacit.plans.assemble import record_shape

_ASCENT = np.linspace(-1.0, 4.0, 16)
_RANGE = np.linspace(-37.0, 37.0, 75)


def ground_of(algorithm: Algorithm, objective: Objective, features: int) -> Ground:
    """An algorithm that was built for ``objective``, and records whose targets are numbers."""
    return Ground(algorithm, Problem(objective), record_shape((features,), "regression"))


def audit_sensitivity(
    algorithm: Algorithm, objective: Objective, features: int, *, seed: int, starts: int = 64, steps: int = 40
) -> list[SensitivityResult]:
    """Climb for each kind of round of an algorithm that was built for ``objective``."""
    results = []
    for part in parts_of(ground := ground_of(algorithm, objective, features)):
        draws = [drawn(np.random.default_rng((seed, i)), part.broadcast, ground, _ASCENT) for i in range(starts)]
        free = jax.tree.map(lambda *leaves: jnp.stack(leaves), *draws)
        climb = jax.jit(jax.vmap(lambda one, part=part: _climb(part.simulated, one, steps)))
        best, values = jax.tree.map(np.asarray, climb(free))
        largest, path = float(np.max(values)), "simulated"
        if part.door is not None:
            tops = [jax.tree.map(lambda leaf, i=i: leaf[i], best) for i in range(starts)]
            largest, path = max(moved(part.door, top) for top in tops), "door"
        results.append(SensitivityResult(part.kind, largest, starts * steps, path))
    return results


def audit_extremes(
    algorithm: Algorithm, objective: Objective, features: int, *, seed: int, tries: int = 1 << 11
) -> list[SensitivityResult]:
    """Try magnitudes from the whole range of float32, each part of the input with its own."""
    ground = ground_of(algorithm, objective, features)
    return searched(ground, partial(drawn, exponents=_RANGE), seed=seed, tries=tries)


def audit_hostile_points(
    algorithm: Algorithm, objective: Objective, features: int, *, seed: int, tries: int = 1 << 11
) -> list[SensitivityResult]:
    """The search of `tacit audit`, for an algorithm on a model."""
    return sensitivity.audit_hostile_points(ground_of(algorithm, objective, features), seed=seed, tries=tries)


def _climb(ratio: Callable[[Any], Array], free: Any, steps: int) -> tuple[Any, Array]:
    """The best choice on a path of normalised gradient steps, and its ratio."""
    moving = jax.tree.map(lambda leaf: leaf if jnp.issubdtype(leaf.dtype, jnp.floating) else None, free)

    def whole(moving: Any) -> Any:
        return jax.tree.map(lambda now, old: old if now is None else now, moving, free, is_leaf=lambda x: x is None)

    def step(carry: Any, index: Array) -> tuple[Any, None]:
        moving, best, most = carry
        value, slope = jax.value_and_grad(lambda m: ratio(whole(m)))(moving)
        value = jnp.nan_to_num(value)
        best = jax.tree.map(lambda new, old: jnp.where(value > most, new, old), moving, best)
        pace = 0.3 * 0.93**index

        def move(leaf: Array, g: Array) -> Array:
            g = jnp.where(jnp.isfinite(g), g, 0.0)
            size = jnp.sqrt(jnp.mean(leaf**2)) + 1e-3
            return leaf + pace * size * g / (jnp.sqrt(jnp.mean(g**2)) + 1e-20)

        return (jax.tree.map(move, moving, slope), best, jnp.maximum(value, most)), None

    (_, best, most), _ = jax.lax.scan(step, (moving, moving, jnp.float32(-1.0)), jnp.arange(steps))
    return whole(best), most
