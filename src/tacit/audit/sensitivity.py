"""The sensitivity audit: search for the swap of one record that moves a silo's statistic most.

What is measured is the distance between the un-noised statistics of two neighbouring silos, in standard deviations of
the noise that the silo would add, times the priced multiplier: a ratio of one is the whole priced sensitivity, and more
means that the price is too low. The search climbs gradients in everything that a hostile server and record may
choose (the broadcast, both versions of the record, all other records), from many starts; a second search draws
magnitudes from the whole range of float32, where rounding, underflow and overflow live.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tacit.algorithm import Algorithm, Broadcast
from tacit.audit.worst_case import hostile_broadcasts, message_shapes
from tacit.objectives import Objective
from tacit.privacy.plan import events_of
from tacit.silo import parted_statistic, view_of

_ROWS = 3


@dataclass(frozen=True)
class SensitivityResult:
    """The largest share of its priced sensitivity that a kind of round was brought to."""

    kind: str
    largest: float
    tries: int

    @property
    def violated(self) -> bool:
        """Whether the price is too low."""
        return self.largest > 1.0


def audit_sensitivity(
    algorithm: Algorithm, objective: Objective, features: int, *, key: Array, starts: int = 64, steps: int = 40
) -> list[SensitivityResult]:
    """Climb for each kind of round of an algorithm that was built for ``objective`` with full batches."""
    found = []
    for kind, ratio, broadcast in _ratios(algorithm, objective, features):
        keys = jax.random.split(key, starts)
        free = jax.vmap(lambda k, b=broadcast: _random(k, b, features, jnp.linspace(-1.0, 4.0, 16)))(keys)
        climb = jax.jit(jax.vmap(lambda one, ratio=ratio: _climb(ratio, one, steps)))
        found.append(SensitivityResult(kind, float(np.max(np.asarray(climb(free)))), starts * steps))
    return found


def audit_extremes(
    algorithm: Algorithm, objective: Objective, features: int, *, key: Array, tries: int = 1 << 14
) -> list[SensitivityResult]:
    """Try magnitudes from the whole range of float32, each part of the input with its own."""
    found = []
    for kind, ratio, broadcast in _ratios(algorithm, objective, features):
        keys = jax.random.split(key, tries)
        free = jax.vmap(lambda k, b=broadcast: _random(k, b, features, jnp.linspace(-37.0, 37.0, 75)))(keys)
        values = np.asarray(jax.jit(jax.vmap(ratio))(free))
        found.append(SensitivityResult(kind, float(np.max(np.nan_to_num(values, nan=0.0, posinf=np.inf))), tries))
    return found


def _ratios(algorithm: Algorithm, objective: Objective, features: int) -> Any:
    """For each kind of round, the share of its priced sensitivity as a function of what an adversary chooses."""
    params = objective.init(jax.random.key(0))
    blank = {"x": jnp.zeros((_ROWS, features)), "y": jnp.zeros(_ROWS), "s": jnp.zeros(_ROWS, jnp.int32)}
    shapes = message_shapes(algorithm, params, view_of(blank, _ROWS, jnp.arange(_ROWS), 0))
    said = hostile_broadcasts(algorithm, params, shapes, turning=False)
    for event in events_of(algorithm, place=0, silos=1, records=_ROWS):
        last = max(i for i, name in enumerate(algorithm.schedule) if name == event.kind)
        yield event.kind, _ratio(algorithm, event.kind, event.noise_multiplier, params), said[last]


def _ratio(algorithm: Algorithm, kind: str, multiplier: float, params: Any) -> Callable[[Any], Array]:
    silo, memory = algorithm.rounds[kind].silo, algorithm.memory(params)
    attribute = silo.release.protects == "sensitive-attribute"

    def statistic(broadcast: Broadcast, records: Any) -> Any:
        desk = view_of(records, _ROWS, jnp.arange(_ROWS), 0)
        work = silo.start(broadcast, memory)
        return parted_statistic(silo, work, desk, key=jax.random.key(0), position=0)[1:]

    def ratio(free: Any) -> Array:
        worlds = [
            jax.tree.map(lambda rows, own: rows.at[0].set(own), free["others"], free["one" if attribute else name])
            for name in ("one", "zero")
        ]
        # The sensitive attribute is no number to climb: its first two values are tried.
        worlds = [{**w, "s": jnp.zeros(_ROWS, jnp.int32).at[0].set(s)} for s, w in enumerate(worlds)]
        (first, deviation), (second, _) = (statistic(free["broadcast"], world) for world in worlds)
        gaps = jax.tree.map(jnp.subtract, first, second)
        if not isinstance(deviation, dict):
            gaps, deviation = {"all": gaps}, {"all": deviation}
        return multiplier * jnp.sqrt(sum(_squared(gaps[name], deviation[name]) for name in gaps))

    return ratio


def _squared(gap: Any, deviation: Array) -> Array:
    """Squared distance in units of the deviation; nothing moved is no distance, even where there is no noise."""
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(gap)]))
    # Scaled before squaring, so that the audit itself neither under- nor overflows.
    scale = jnp.where(largest > 0, largest, 1.0)
    total = sum((jnp.sum((leaf / scale) ** 2) for leaf in jax.tree.leaves(gap)), start=jnp.float32(0))
    return jnp.where(largest > 0, total * (scale / deviation) ** 2, 0.0)


def _random(key: Array, broadcast: Broadcast, features: int, exponents: Array) -> Any:
    """A random start: every part gets a magnitude of its own."""
    keys = iter(jax.random.split(key, 64))

    def draw(shape: tuple[int, ...], exponent: Array | None = None) -> Array:
        exponent = jax.random.choice(next(keys), exponents) if exponent is None else exponent
        return (10.0**exponent * jax.random.normal(next(keys), shape)).astype(jnp.float32)

    def record(*rows: int) -> dict[str, Array]:
        faint = jax.random.choice(next(keys), exponents)
        # Often a target that makes up for the features: their product is what is clipped, their squares what rounds.
        loud = jnp.where(jax.random.bernoulli(next(keys)), 1.0 - faint, jax.random.choice(next(keys), exponents))
        return {"x": draw((*rows, features), faint), "y": draw(rows, loud)}

    def point(leaf: Array) -> Array:
        leaf = jnp.asarray(leaf)
        return draw(leaf.shape) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    one = record()
    # The same features with another target is the swap whose gradients are opposite.
    zero = {"x": jnp.where(jax.random.bernoulli(next(keys)), one["x"], draw((features,))), "y": -one["y"]}
    free = {"broadcast": jax.tree.map(point, broadcast), "others": record(_ROWS), "one": one, "zero": zero}
    # Records that are not finite never pass the silo's door.
    return jax.tree.map(lambda leaf: jnp.nan_to_num(leaf, posinf=3e38, neginf=-3e38), free)


def _climb(ratio: Callable[[Any], Array], free: Any, steps: int) -> Array:
    """The best ratio on a path of normalised gradient steps."""
    real = jax.tree.map(lambda leaf: jnp.issubdtype(leaf.dtype, jnp.floating), free)
    moving, rest = jax.tree.map(lambda leaf, is_real: leaf if is_real else None, free, real), free

    def whole(moving: Any) -> Any:
        return jax.tree.map(
            lambda now, old: old if now is None else now, moving, rest, is_leaf=lambda leaf: leaf is None
        )

    def step(moving: Any, number: Array) -> tuple[Any, Array]:
        value, slope = jax.value_and_grad(lambda m: ratio(whole(m)))(moving)
        pace = 0.3 * 0.93**number

        def move(leaf: Array, g: Array) -> Array:
            g = jnp.where(jnp.isfinite(g), g, 0.0)
            size = jnp.sqrt(jnp.mean(leaf**2)) + 1e-3
            return leaf + pace * size * g / (jnp.sqrt(jnp.mean(g**2)) + 1e-20)

        return jax.tree.map(move, moving, slope), value

    return jnp.max(jnp.nan_to_num(jax.lax.scan(step, moving, jnp.arange(steps))[1]))
