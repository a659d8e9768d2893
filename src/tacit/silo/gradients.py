"""Sums of clipped per-record statistics, by two paths that agree.

The *tapped* path serves combinations of gradients of models made of dense layers. Per record and layer it has
the input ``a`` and the cotangent ``c`` of the output; the layer's gradient is their outer product. A combination
``sum_i k_i a_i (x) c_i`` is written in differences of neighbouring points,

    sum_i k_i g_i = sum_{i<P} s_i (g_i - g_{i+1}) + s_P g_P,      s_i = k_1 + ... + k_i,
    g - g' = (a - a') (x) c + a' (x) (c - c'),

so that no term is larger than the answer by more than a factor of order one (the plain expansion cancels in float32
for nearby points, under-estimates the norm and lets a record through unclipped). Norms and clipped sums follow
from the factors; no (batch x parameters) matrix is formed.

The *general* path evaluates any query with ``vmap`` in micro-batches that bound memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from tacit.algorithm import Params, PerBlock, Record, Statistic, Work
from tacit.objectives.objective import Objective
from tacit.objectives.query import GradientQuery
from tacit.silo.clipping import by_block, scales, squared_norms, usable

_MICRO_BATCH_FLOATS = 2**20


class _Term(NamedTuple):
    """A rank-one part of each record's layer gradient: ``left (x) right``, and whether the bias takes part."""

    left: Float[Array, "records inputs"]
    right: Float[Array, "records outputs"]
    bias: bool
    left_is_data: bool


def is_tapped(query: Any, params: Params | None = None) -> bool:
    """Whether a query can take the tapped path."""
    return isinstance(query, GradientQuery) and bool(query.objective.model.layers)


def clipped_sum(
    query: Any, work: Work, records: Record, present: Bool[Array, " records"], bound: PerBlock
) -> Statistic:
    """The sum over present records of their statistics, each clipped to ``bound``.

    Formal guarantee: the sum changes by at most ``2 x bound x (1 + SLACK)`` in l2 norm, per block, when one record
    is replaced, whatever the work and the records are. A record whose statistic is not finite adds zero.
    """
    if is_tapped(query) and not isinstance(bound, Mapping):
        return _tapped_sum(query, work, records, present, usable(bound))
    return _general_sum(query, work, records, present, bound)


def plain_sum(query: Any, work: Work, records: Record, present: Bool[Array, " records"]) -> Statistic:
    """The sum over present records of their statistics, not clipped: for releases that are not private."""
    if isinstance(query, GradientQuery):

        def total(params: Params) -> Array:
            return jnp.sum(jnp.where(present, query.objective.losses(params, records), 0.0))

        pairs = zip(query.weights(work), query.points(work), strict=True)
        parts = [jax.tree.map(lambda g, k=k: k * g, jax.grad(total)(point)) for k, point in pairs]
        return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *parts)
    statistics = jax.vmap(lambda record: query(work, record))(records)
    return jax.tree.map(lambda leaf: jnp.tensordot(present.astype(leaf.dtype), leaf, 1), statistics)


def _factors(objective: Objective, params: Params, records: Record) -> tuple[dict[str, Array], dict[str, Array]]:
    """Per layer: the inputs (the very arrays, so that shared ones can be recognised) and the cotangents."""
    inputs: dict[str, Array] = {}

    def record_shapes(name: str, a: Array, z: Array) -> Array:
        if name in shapes:
            raise ValueError(f"Expected layer {name!r} to be tapped once; a shared layer needs the general path.")
        shapes[name] = jnp.zeros_like(z)
        return z

    shapes: dict[str, Array] = {}
    objective.losses(params, records, record_shapes)

    def total(zeros: dict[str, Array]) -> tuple[Array, dict[str, Array]]:
        def tap(name: str, a: Array, z: Array) -> Array:
            inputs[name] = a
            return z + zeros[name]

        return objective.losses(params, records, tap).sum(), dict(inputs)

    cotangents, traced = jax.grad(total, has_aux=True)(shapes)
    same = {name for name, a in inputs.items() if any(a is leaf for leaf in jax.tree.leaves(records))}
    return {name: inputs[name] if name in same else traced[name] for name in traced}, cotangents


def _terms(query: GradientQuery, work: Work, records: Record) -> dict[str, list[_Term]]:
    """The rank-one terms of each layer of the combination, in differences of neighbouring points."""
    parts = [_factors(query.objective, point, records) for point in query.points(work)]
    weights = query.weights(work)
    if len(parts) != len(weights):
        raise ValueError(f"Expected as many weights as points, got {len(weights)} and {len(parts)}.")
    data = jax.tree.leaves(records)
    terms: dict[str, list[_Term]] = {name: [] for name in parts[0][0]}
    running: Any = 0.0
    for i, (inputs, cotangents) in enumerate(parts):
        running = running + weights[i]
        last = i == len(parts) - 1
        for name in terms:
            a, c = inputs[name], cotangents[name]
            is_data = any(a is leaf for leaf in data)
            if last:
                if not (isinstance(running, float | int) and running == 0):
                    terms[name].append(_Term(a, running * c, True, is_data))
                continue
            after, c_after = parts[i + 1][0][name], parts[i + 1][1][name]
            if a is not after:
                terms[name].append(_Term(a - after, running * c, False, False))
            terms[name].append(_Term(after, running * (c - c_after), True, any(after is leaf for leaf in data)))
    return terms


def _tapped_sum(
    query: GradientQuery,
    work: Work,
    records: Record,
    present: Bool[Array, " records"],
    bound: Float[Array, ""],
) -> Statistic:
    layout = query.points(work)[0]
    terms = _terms(query, work, records)
    if set(terms) != set(layout):
        raise ValueError(f"Expected every layer of {sorted(layout)} to be tapped, got {sorted(terms)}.")
    squared = magnitude = jnp.zeros(present.shape)
    for name, layer in terms.items():
        has_bias = "b" in layout[name]
        for i, s in enumerate(layer):
            for t in layer[i:]:
                left = jnp.sum(s.left * t.left, axis=1) + float(has_bias and s.bias and t.bias)
                product = left * jnp.sum(s.right * t.right, axis=1) * (1.0 if s is t else 2.0)
                squared, magnitude = squared + product, magnitude + jnp.abs(product)
    factor, counts = scales(squared, magnitude, bound, present)

    def layer_sum(name: str) -> dict[str, Array]:
        # Not finite times zero is not zero: such records are masked on both sides.
        right = [jnp.where(counts[:, None], t.right * factor[:, None], 0.0) for t in terms[name]]
        left = [t.left if t.left_is_data else jnp.where(counts[:, None], t.left, 0.0) for t in terms[name]]
        products = [jnp.matmul(u.T, v, precision="highest") for u, v in zip(left, right, strict=True)]
        summed = {"w": sum(products[1:], products[0])}
        if "b" in layout[name]:
            biased = [v.sum(axis=0) for t, v in zip(terms[name], right, strict=True) if t.bias]
            summed["b"] = sum(biased[1:], biased[0])
        return summed

    return {name: layer_sum(name) for name in terms}


def _general_sum(
    query: Any, work: Work, records: Record, present: Bool[Array, " records"], bound: PerBlock
) -> Statistic:
    def one(record: Record) -> Statistic:
        return query(work, record)

    first = jax.eval_shape(one, jax.tree.map(lambda leaf: leaf[0], records))
    width = max(1, sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(first)))
    size = present.shape[0]
    chunk = max(1, min(size, _MICRO_BATCH_FLOATS // width))
    padded = -(-size // chunk) * chunk

    def fold(leaf: Array) -> Array:
        widths = [(0, padded - size)] + [(0, 0)] * (leaf.ndim - 1)
        return jnp.pad(leaf, widths).reshape(-1, chunk, *leaf.shape[1:])

    def add(total: Statistic, part: tuple[Record, Array]) -> tuple[Statistic, None]:
        chunk_records, chunk_present = part
        summed = _clip_and_sum(jax.vmap(one)(chunk_records), chunk_present, bound)
        return jax.tree.map(jnp.add, total, summed), None

    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), first)
    if padded == chunk:
        return add(zeros, (records, present))[0]
    return jax.lax.scan(add, zeros, (jax.tree.map(fold, records), fold(present)))[0]


def _clip_and_sum(statistics: Statistic, present: Bool[Array, " records"], bound: PerBlock) -> Statistic:
    """Clip each record's statistic, block by block, and add them up."""

    def block(values: Statistic, limit: Any) -> Statistic:
        squared = squared_norms(values)
        factor, counts = scales(squared, squared, usable(limit), present)

        def total(leaf: Array) -> Array:
            shape = (-1,) + (1,) * (leaf.ndim - 1)
            kept = jnp.where(counts.reshape(shape), leaf, 0.0)
            return jnp.tensordot(factor, kept, 1, precision="highest")

        return jax.tree.map(total, values)

    limits = by_block(bound, statistics)
    if isinstance(limits, Mapping):
        # A record counts in all blocks or in none, so that one bad block hides nothing and adds nothing.
        finite = jnp.isfinite(squared_norms(statistics))
        present = present & finite
        return {name: block(statistics[name], limits[name]) for name in statistics}
    return block(statistics, limits)
