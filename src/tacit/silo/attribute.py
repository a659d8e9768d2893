"""Sums of statistics of which the sensitive attribute of one record can move only a bounded part.

Where the sensitive attribute ``s`` alone is protected, features and target count as known. A record then has one
statistic for each of the k values that ``s`` could take, T_1 ... T_k: all of them are functions of what is known, and
only *which* of them is added is secret. So each record adds

    C + f (T_s - C),      C = mean of the T_r,      f = min(1, 2 bound / max over r, q of ||T_r - T_q||),

where C and f do not depend on ``s``. Replacing ``s`` moves the sum by f ||T_s - T_s'|| <= 2 bound, for any broadcast
and any record; nothing else about the record is bounded, because nothing else is secret. Factors come from differences
to T_1, so that what all T_r share, such as the gradient of a loss, does not enter their rounding. The sum comes in two
parts, the C and the rest. Noise is added to the rest alone: what is known may be large, under a hostile broadcast even
huge, and rounding beside it would tell of the attribute.

For combinations of gradients of dense layers the T_r share their inputs ``a`` and differ in the cotangents c_r alone,
so that ||T_r - T_q||^2 = sum over layers of (1 + |a|^2) |c_r - c_q|^2: no per-record gradient is formed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from tacit.algorithm import PerBlock, Record, Statistic, Work
from tacit.objectives.objective import Objective
from tacit.objectives.query import GradientQuery, SaddleQuery
from tacit.silo.gradients import (
    MICRO_BATCH_FLOATS,
    TINY,
    Mask,
    by_block,
    factors_of,
    in_micro_batches,
    is_tapped,
    scales,
    statistic_width,
    usable,
)


def attribute_sum(
    query: Any, work: Work, records: Record, present: Mask, bound: PerBlock, *, groups: int
) -> tuple[Statistic, Statistic]:
    """The sum over present records of their statistics in two parts: what is known, and what ``s`` decides.

    Formal guarantee: if ``s`` of one record changes and nothing else does, the first part stays as it is, bit for bit,
    and each block of the second changes by at most ``2 bound x (1 + SLACK)`` in l2 norm, whatever the work and the
    records are, in exact addition. Nothing is promised about changes of other fields. A record of which any of the k
    statistics is not finite adds zero, whatever its ``s``; values of ``s`` outside 0 ... groups - 1 count as the
    nearest one.
    """
    if "s" not in records:
        raise ValueError("Expected records with a field 's', the sensitive attribute that is protected.")
    own = jnp.clip(records["s"].astype(jnp.int32), 0, groups - 1)
    worlds = {**records, "s": own}
    split = _as_gradients(query, work)
    if split is None:
        return _general(jax.vmap(lambda record: query(work, record)), worlds, present, bound, groups)
    objective, point, rest = split
    if rest is None:
        return _tapped(objective, point, worlds, present, bound, groups)
    if not isinstance(bound, Mapping) or set(bound) != {"params", "duals"}:
        raise ValueError("Expected a clip for the blocks 'params' and 'duals' of a saddle query.")
    params = _tapped(objective, point, worlds, present, bound["params"], groups)
    duals = _general(rest, worlds, present, bound["duals"], groups)
    known, hidden = ({"params": p, "duals": d} for p, d in zip(params, duals, strict=True))
    return known, hidden


def _as_gradients(query: Any, work: Work) -> tuple[Objective, Any, Any] | None:
    """The objective and point whose gradient a query is, and what else it computes, where the tapped path serves."""
    if isinstance(query, SaddleQuery):
        (params, duals), game = query.point(work), query.game(work)
        by_duals = partial(game.by_duals, params, duals)
        return (game.at(duals), params, by_duals) if game.model.layers and not game.model.unfold else None
    if is_tapped(query) and isinstance(query, GradientQuery) and not query.objective.model.unfold:
        points, weights = query.points(work), query.weights(work)
        if len(points) == 1 and isinstance(weights[0], float | int) and weights[0] == 1:
            return query.objective, points[0], None
    return None


def _versions(records: Record, groups: int) -> list[Record]:
    """The records as they would be if ``s`` were 0, 1, ..."""
    return [{**records, "s": jnp.full_like(records["s"], r)} for r in range(groups)]


def _chosen(values: Sequence[Array], own: Array) -> Array:
    """Each record's entry of the array of its own group; ``own`` is broadcast against them."""
    return sum((jnp.where(own == r, value, 0.0) for r, value in enumerate(values)), jnp.zeros_like(values[0]))


def _mean(values: Sequence[Array]) -> Array:
    return sum(values[1:], values[0]) / len(values)


def _tapped(
    objective: Objective, point: Any, records: Record, present: Mask, bound: Float[Array, ""] | float, groups: int
) -> tuple[Statistic, Statistic]:
    versions = [factors_of(objective, point, some) for some in _versions(records, groups)]
    inputs = versions[0].inputs
    if set(inputs) != set(point) or any(a.ndim != 2 for a in inputs.values()):
        raise ValueError(f"Expected every layer of {sorted(point)} to be a tapped dense layer, got {sorted(inputs)}.")
    # How each group's cotangents differ from those of the first.
    apart = {name: [v.cotangents[name] - versions[0].cotangents[name] for v in versions] for name in inputs}
    lengths = {name: jnp.sum(a**2, axis=1) + float("b" in point[name]) + TINY for name, a in inputs.items()}
    farthest = jnp.zeros(present.shape)
    for r, q in combinations(range(groups), 2):
        gaps = (lengths[name] * (jnp.sum((c[r] - c[q]) ** 2, axis=1) + TINY) for name, c in apart.items())
        farthest = jnp.maximum(farthest, sum(gaps))
    finite = jnp.isfinite(sum(jnp.sum(v.cotangents[n] ** 2, axis=1) * lengths[n] for v in versions for n in inputs))
    factor, counts = scales(farthest, 4.0 * farthest, 2.0 * usable(bound), present & finite)
    known, hidden = {}, {}
    for name, a in inputs.items():
        middle = _mean(apart[name])
        common = jnp.where(counts[:, None], versions[0].cotangents[name] + middle, 0.0)
        rest = factor[:, None] * (_chosen(apart[name], records["s"][:, None]) - middle)
        secret = jnp.where(counts[:, None], rest, 0.0)
        # Records are finite, and copies of them are dear; other inputs of a record that does not count may not be.
        left = a if any(a is leaf for leaf in jax.tree.leaves(records)) else jnp.where(counts[:, None], a, 0.0)
        parts = [{"w": jnp.matmul(left.T, c, precision="highest"), "b": c.sum(axis=0)} for c in (common, secret)]
        known[name], hidden[name] = ({leaf: part[leaf] for leaf in point[name]} for part in parts)
    return known, hidden


def _general(
    each: Callable[[Record], Statistic], records: Record, present: Mask, bound: PerBlock, groups: int
) -> tuple[Statistic, Statistic]:
    def part(some: Record, there: Mask) -> tuple[Statistic, Statistic]:
        values = [each(version) for version in _versions(some, groups)]
        limits = by_block(bound, values[0])
        if isinstance(limits, Mapping):
            blocks = {n: _bounded([v[n] for v in values], some["s"], there, limits[n]) for n in values[0]}
            known, hidden = ({n: pair[i] for n, pair in blocks.items()} for i in range(2))
            return known, hidden
        return _bounded(values, some["s"], there, limits)

    limit = MICRO_BATCH_FLOATS // (groups * statistic_width(each, records))
    known, hidden = in_micro_batches(part, (records, present), limit)
    return known, hidden


def _bounded(values: Sequence[Statistic], own: Array, present: Mask, limit: Any) -> tuple[Statistic, Statistic]:
    """The two parts of the sum of one block, from its value for each group."""
    # Records along the last axis: short axes there would be slow, and the copies are fused away.
    turned = [jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, -1), value) for value in values]
    apart = [jax.tree.map(jnp.subtract, value, turned[0]) for value in turned]
    farthest = jnp.zeros(present.shape)
    for one, other in combinations(apart, 2):
        farthest = jnp.maximum(farthest, _squares(jax.tree.map(jnp.subtract, one, other)))
    finite = jnp.isfinite(sum(_squares(value) for value in turned))
    factor, counts = scales(farthest, 4.0 * farthest, 2.0 * usable(limit), present & finite)

    def total(part: Array) -> Array:
        return jnp.where(counts, part, 0.0).sum(axis=-1)

    def middle(first: Array, *gaps: Array) -> Array:
        return total(first + _mean(gaps))

    def rest(*gaps: Array) -> Array:
        return total(factor * (_chosen(gaps, own) - _mean(gaps)))

    return jax.tree.map(middle, turned[0], *apart), jax.tree.map(rest, *apart)


def _squares(statistics: Any) -> Float[Array, " records"]:
    """The squared norm of each record's statistic, records along the last axis."""
    return sum(
        (jnp.sum(leaf.reshape(-1, leaf.shape[-1]) ** 2, axis=0) for leaf in jax.tree.leaves(statistics)),
        start=jnp.float32(0),
    )
