"""Sums of clipped per-record statistics, by two paths that agree.

The *tapped* path serves combinations of gradients of models made of dense layers. Per record and layer it has
the input ``a`` and the cotangent ``c`` of the output; the layer's gradient is their outer product. A combination
``sum_i k_i a_i (x) c_i`` is written in differences of neighbouring points,

    sum_i k_i g_i = sum_{i<P} s_i (g_i - g_{i+1}) + s_P g_P,      s_i = k_1 + ... + k_i,
    g - g' = (a - a') (x) c + a' (x) (c - c'),

so that no term is much larger than the answer. The plain expansion cancels in float32 for nearby points: it would
under-estimate the norm and let a record through unclipped. Norms and clipped sums follow from the factors; no
(batch x parameters) matrix is formed.

A layer applied at many positions, as a convolution is, has the gradient ``sum_p a_p (x) c_p``. Where its matrix is
small, each record's gradient of it is *formed*: what is summed is what is normed. Where forming would cost more than
the products of all pairs of positions, it stays in factors, with squared norm ``sum_pq <a_p, a_q> <c_p, c_q>``.

The *general* path evaluates any query with ``vmap``. Both bound memory by micro-batches, and so do sums without a clip.

A computed squared norm is raised by a multiple of the rounding unit times the magnitudes that went into it, and by a
floor far above where squares underflow. So it is not smaller than the true norm of what is summed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from tacit.algorithm import Params, PerBlock, Record, Statistic, Work
from tacit.objectives.objective import Model, Objective, Pulled, untapped
from tacit.objectives.query import GradientQuery, SaddleQuery, differences, gradient_at, is_zero

Mask = Bool[Array, " records"]
"""Which of the records of a batch are there."""

SLACK = 1e-4
"""What rounding may add to a contribution in the simulator: measured ones stay below clip x (1 + SLACK)."""

MICRO_BATCH_FLOATS = 2**20
MICRO_BATCH_FLOATS_TAPPED = 2**19  # what a processor's cache holds: a CNN's rounds are a tenth faster than with 2**21
MICRO_BATCH_FLOATS_OUTSIDE = 2**21  # every micro-batch calls the other library
TINY = 1e-30  # far above where squares underflow, times any number of coordinates
_MANY_SIGNS = 8.0  # sums over pairs of positions cancel: their rounding is measured by sizes, and in more units
_ROUNDING = 2e-6  # sixteen units of float32
_FLOOR = 1e-30
_SMALLEST = 1e-25  # below it the noise of a large batch could vanish while a record does not


class _Term(NamedTuple):
    """A part ``left (x) right`` of each record's layer gradient, summed over positions if it has any."""

    left: Float[Array, "records *positions inputs"]
    right: Float[Array, "records *positions outputs"]
    bias: bool
    left_is_data: bool


def is_tapped(query: Any) -> bool:
    """Whether a query can take the tapped path."""
    return isinstance(query, GradientQuery) and bool(query.objective.model.layers)


def is_outside(query: Any) -> bool:
    """Whether a query is a combination of gradients of a model that another library computes."""
    return (
        isinstance(query, GradientQuery)
        and type(query.objective) is Objective
        and query.objective.model.outside is not None
    )


def clipped_sum(query: Any, work: Work, records: Record, present: Mask, bound: PerBlock) -> Statistic:
    """The sum over present records of their statistics, each clipped to ``bound``; for simulation.

    Each record adds at most ``bound x (1 + SLACK)`` in l2 norm, per block, up to the rounding of the compiled program:
    it may compute a difference of nearly equal gradients once for its norm and again for its sum. A record whose
    statistic is not finite adds zero. A real silo adds stored integers instead (`tacit.silo.integers`).
    """
    if isinstance(query, SaddleQuery) and query.saddle.model.layers and isinstance(bound, Mapping):
        return _saddle_sum(query, work, records, present, bound)
    if (is_tapped(query) or is_outside(query)) and not isinstance(bound, Mapping):
        return _tapped_sum(query, work, records, present, usable(bound))
    return _general_sum(query, work, records, present, bound)


def plain_sum(query: Any, work: Work, records: Record, present: Mask) -> Statistic:
    """The sum over present records of their statistics, not clipped: for releases that are not private."""
    parts: dict[type, Callable[..., Statistic]] = {GradientQuery: _plain_gradients, SaddleQuery: _plain_saddle}
    part = parts.get(type(query), _plain_statistics)
    if is_tapped(query):
        limit = MICRO_BATCH_FLOATS_TAPPED // _tapped_width(query, work, records)
    else:
        limit = MICRO_BATCH_FLOATS // statistic_width(jax.vmap(lambda record: query(work, record)), records)
    return in_micro_batches(partial(part, query, work), (records, present), limit)


def _plain_statistics(query: Any, work: Work, records: Record, present: Mask) -> Statistic:
    statistics = jax.vmap(lambda record: query(work, record))(records)
    return jax.tree.map(lambda leaf: jnp.tensordot(present.astype(leaf.dtype), leaf, 1), statistics)


def _plain_gradients(query: GradientQuery, work: Work, records: Record, present: Mask) -> Statistic:
    def total(params: Params) -> Array:
        return jnp.sum(jnp.where(present, query.objective.losses(params, records), 0.0))

    pairs = zip(query.weights(work), query.points(work), strict=True)
    return total_of([jax.tree.map(lambda g, k=k: k * g, jax.grad(total)(point)) for k, point in pairs])


def _plain_saddle(query: SaddleQuery, work: Work, records: Record, present: Mask) -> Statistic:
    def both(point: tuple[Params, Any]) -> Array:
        return jnp.sum(jnp.where(present, query.game(work).values(*point, records, untapped), 0.0))

    return dict(zip(("params", "duals"), jax.grad(both)(query.point(work)), strict=True))


def _saddle_sum(query: SaddleQuery, work: Work, records: Record, present: Mask, bound: Mapping[str, Any]) -> Statistic:
    """Both blocks of a saddle query, each clipped by itself: parameters by taps, the few duals record by record."""
    if set(bound) != {"params", "duals"}:
        raise ValueError(f"Expected a clip for the blocks 'params' and 'duals', got {sorted(bound)}.")
    (params, duals), game = query.point(work), query.game(work)
    gradient = gradient_at(game.at(duals), lambda _: params)
    return {
        "params": _tapped_sum(gradient, work, records, present, usable(bound["params"])),
        "duals": _clipped_in_parts(partial(game.by_duals, params, duals), records, present, bound["duals"]),
    }


def factors_of(objective: Objective, params: Params, records: Record) -> Pulled:
    """Inputs (the very arrays, so that shared ones can be recognised) and cotangents of every tapped layer.

    A model that another library computes is asked for them, and for gradients of the layers that are not dense.
    """
    if objective.model.outside is not None:
        outputs = objective.model.apply(params, records["x"], untapped)
        losses, back = jax.vjp(lambda own: objective.cost.value(own, records["y"]), outputs)
        return objective.model.outside.factors(params, records["x"], back(jnp.ones_like(losses))[0])
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
    return Pulled({}, {name: inputs[name] if name in same else traced[name] for name in traced}, cotangents)


def is_formed(model: Model, name: str, a: Any, c: Any) -> bool:
    """Whether a layer's per-record gradients are formed: decided by shapes alone."""
    if name in model.unfold or a.ndim == 2:
        return name in model.unfold
    positions, inputs, outputs = a.shape[1], a.shape[-1], c.shape[-1]
    return a.ndim != 3 or positions * (inputs + outputs) >= inputs * outputs


def formed_gradients(model: Model, layer: Params, name: str, a: Array, c: Array) -> Statistic:
    """Each record's gradient of one layer: products summed over positions, folded back onto the parameters."""
    a, c = (array.reshape(array.shape[0], -1, array.shape[-1]) for array in (a, c))
    gradients = {"w": jnp.einsum("rpi,rpo->rio", a, c, precision="highest")}
    unfold = model.unfold.get(name, lambda own: own)
    matrices, fold = jax.vjp(unfold, layer)
    if "b" in matrices:
        gradients["b"] = c.sum(axis=1)
    return jax.vmap(lambda own: fold(own)[0])(gradients)


def formed_at(model: Model, points: Sequence[Params], parts: Sequence[Pulled], name: str) -> list[Statistic]:
    """Each record's gradient of one layer that is not in factors, at each point."""
    return [
        part.formed[name]
        if name in part.formed
        else formed_gradients(model, point[name], name, part.inputs[name], part.cotangents[name])
        for point, part in zip(points, parts, strict=True)
    ]


def has_bias(layer: Params) -> bool:
    """Whether a dense layer, ours or of torch, has a bias."""
    return "b" in layer or "bias" in layer


def combination_terms(parts: list[Pulled], weights: Any, name: str, records: Record) -> list[_Term]:
    """The terms of one layer of the combination, in differences of neighbouring points."""
    data = jax.tree.leaves(records)
    terms: list[_Term] = []
    running: Any = 0.0
    for i, part in enumerate(parts):
        running = running + weights[i]
        a, c = part.inputs[name], part.cotangents[name]
        if i == len(parts) - 1:
            if not is_zero(running) or not terms:
                terms.append(_Term(a, running * c, True, any(a is leaf for leaf in data)))
            continue
        after, c_after = parts[i + 1].inputs[name], parts[i + 1].cotangents[name]
        if a is not after:
            terms.append(_Term(a - after, running * c, False, False))
        terms.append(_Term(after, running * (c - c_after), True, any(after is leaf for leaf in data)))
    return terms


def _product(s: _Term, t: _Term, has_bias: bool) -> tuple[Float[Array, " records"], Float[Array, " records"]]:
    """The inner product of two terms for each record, and the size of what was added up."""
    bias = float(has_bias and s.bias and t.bias)
    # Squares of tiny factors vanish in float32 however large the other factor is: each gets a floor of its own, which
    # also covers what the products of different terms lose, by the inequality of means.
    floor = TINY if s is t else 0.0
    if s.left.ndim == 2:
        product = (jnp.sum(s.left * t.left, axis=1) + bias + floor) * (jnp.sum(s.right * t.right, axis=1) + floor)
        return product, jnp.abs(product)
    left = jnp.einsum("rpi,rqi->rpq", s.left, t.left, precision="highest") + bias
    right = jnp.einsum("rpo,rqo->rpq", s.right, t.right, precision="highest")

    def size(term: _Term) -> Array:
        squares = (jnp.sum(term.left**2, axis=2) + bias) * jnp.sum(term.right**2, axis=2)
        return jnp.sum(jnp.sqrt(squares), axis=1)

    positions = s.left.shape[1]
    lost = jnp.sum(s.left**2, axis=(1, 2)) + jnp.sum(s.right**2, axis=(1, 2)) + positions * (bias + floor)
    return jnp.sum(left * right, axis=(1, 2)) + positions * floor * lost, _MANY_SIGNS * size(s) * size(t)


def _tapped_sum(query: GradientQuery, work: Work, records: Record, present: Mask, bound: Float[Array, ""]) -> Statistic:
    part = partial(_tapped_part, query, work, bound=bound)
    floats = MICRO_BATCH_FLOATS_OUTSIDE if is_outside(query) else MICRO_BATCH_FLOATS_TAPPED
    limit = floats // _tapped_width(query, work, records)
    return in_micro_batches(part, (records, present), limit)


def _tapped_width(query: GradientQuery, work: Work, records: Record) -> int:
    """How many floats a record takes in layers with positions or formed gradients; at least one."""
    points = query.points(work)
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape[1:]), leaf.dtype), records)
    given, inputs, cotangents = jax.eval_shape(lambda some: factors_of(query.objective, points[0], some), one)
    width = sum(leaf.size for leaf in jax.tree.leaves(given))
    for name, a in inputs.items():
        c = cotangents[name]
        formed = is_formed(query.objective.model, name, a, c)
        if formed or a.ndim > 2:
            width += a.size + c.size + (a.shape[-1] * c.shape[-1] if formed else (a.size // a.shape[-1]) ** 2)
    return max(1, width * len(points))


def _tapped_part(
    query: GradientQuery, work: Work, records: Record, present: Mask, bound: Float[Array, ""]
) -> Statistic:
    points, weights, model = query.points(work), query.weights(work), query.objective.model
    if len(points) != len(weights):
        raise ValueError(f"Expected as many weights as points, got {len(weights)} and {len(points)}.")
    layout = points[0]
    parts = [factors_of(query.objective, point, records) for point in points]
    if {*parts[0].inputs, *parts[0].formed} != set(layout):
        raise ValueError(f"Expected every layer of {sorted(layout)} to be tapped, got {sorted(parts[0].inputs)}.")
    formed: dict[str, Statistic] = {}
    terms: dict[str, list[_Term]] = {}
    squared = magnitude = jnp.zeros(present.shape)
    for name in layout:
        first = parts[0]
        if name not in first.formed and not is_formed(model, name, first.inputs[name], first.cotangents[name]):
            terms[name] = combination_terms(parts, weights, name, records)
            for i, s in enumerate(terms[name]):
                for t in terms[name][i:]:
                    product, size = _product(s, t, has_bias(layout[name]))
                    times = 1.0 if s is t else 2.0
                    squared, magnitude = squared + times * product, magnitude + times * size
            continue
        summands = differences(formed_at(model, points, parts, name), weights)
        formed[name] = total_of(summands)
        sizes = total_of([jax.tree.map(jnp.abs, summand) for summand in summands])
        squared, magnitude = squared + squared_norms(formed[name]), magnitude + squared_norms(sizes)
    factor, counts = scales(squared, magnitude, bound, present)
    summed = {name: _sum_of_terms(terms[name], layout[name], factor, counts) for name in terms}
    return summed | {name: _scaled_sum(formed[name], factor, counts) for name in formed}


def total_of(trees: list[Any]) -> Any:
    """The sum of trees of one form."""
    return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *trees)


def rows(per_record: Array, like: Array) -> Array:
    """One value per record, shaped to act on the records of an array."""
    return per_record.reshape((-1,) + (1,) * (like.ndim - 1))


def _sum_of_terms(terms: list[_Term], layer: Params, factor: Array, counts: Array) -> dict[str, Array]:
    """The clipped sum of one layer that stays in factors."""
    # Not finite times zero is not zero: such records are masked on both sides.
    right = [jnp.where(rows(counts, t.right), t.right * rows(factor, t.right), 0.0) for t in terms]
    left = [t.left if t.left_is_data else jnp.where(rows(counts, t.left), t.left, 0.0) for t in terms]
    left, right = ([array.reshape(-1, array.shape[-1]) for array in side] for side in (left, right))
    # Not u.T @ v: of few columns that is twenty times slower on CPUs.
    products = [jnp.tensordot(u, v, (0, 0), precision="highest") for u, v in zip(left, right, strict=True)]
    matrix = sum(products[1:], products[0])
    bias = sum(v.sum(axis=0) for t, v in zip(terms, right, strict=True) if t.bias) if has_bias(layer) else None
    return weights_of(layer, matrix, bias)


def weights_of(layer: Params, matrix: Any, bias: Any) -> dict[str, Any]:
    """The weights of a dense layer from those of inputs by outputs; torch turns the matrix."""
    if "weight" in layer:
        return {"weight": matrix.T} | ({} if bias is None else {"bias": bias})
    return {"w": matrix} | ({} if bias is None else {"b": bias})


def _scaled_sum(statistics: Statistic, factor: Array, counts: Array) -> Statistic:
    """The sum over records of their statistics times their factors; a record that does not count is masked."""

    def total(leaf: Array) -> Array:
        return jnp.tensordot(factor, jnp.where(rows(counts, leaf), leaf, 0.0), 1, precision="highest")

    return jax.tree.map(total, statistics)


def in_micro_batches(part: Callable[..., Statistic], batch: tuple[Any, ...], limit: int) -> Statistic:
    """The sum of ``part`` over pieces of a batch of at most ``limit`` records; zeros, all absent, fill the last."""
    size = batch[1].shape[0]
    pieces = -(-size // max(1, limit))
    if pieces <= 1:
        return part(*batch)
    chunk = -(-size // pieces)

    def fold(leaf: Array) -> Array:
        widths = [(0, pieces * chunk - size)] + [(0, 0)] * (leaf.ndim - 1)
        return jnp.pad(leaf, widths).reshape(pieces, chunk, *leaf.shape[1:])

    def add(total: Statistic, some: tuple[Any, ...]) -> tuple[Statistic, None]:
        return jax.tree.map(jnp.add, total, part(*some)), None

    folded = jax.tree.map(fold, batch)
    shapes = jax.eval_shape(part, *jax.tree.map(lambda leaf: leaf[0], folded))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return jax.lax.scan(add, zeros, folded)[0]


def _general_sum(query: Any, work: Work, records: Record, present: Mask, bound: PerBlock) -> Statistic:
    return _clipped_in_parts(jax.vmap(lambda record: query(work, record)), records, present, bound)


def _clipped_in_parts(
    each: Callable[[Record], Statistic], records: Record, present: Mask, bound: PerBlock
) -> Statistic:
    """The clipped sum of what ``each`` computes for the records of a batch, in micro-batches."""

    def part(some: Record, there: Mask) -> Statistic:
        return _clip_and_sum(each(some), there, bound)

    return in_micro_batches(part, (records, present), MICRO_BATCH_FLOATS // statistic_width(each, records))


def statistic_width(each: Callable[[Record], Statistic], records: Record) -> int:
    """How many floats the statistic of a record has; at least one."""
    first = jax.eval_shape(each, jax.tree.map(lambda leaf: leaf[:1], records))
    return max(1, sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(first)))


def _clip_and_sum(statistics: Statistic, present: Mask, bound: PerBlock) -> Statistic:
    """Clip each record's statistic, block by block, and add them up."""

    def block(values: Statistic, limit: Any) -> Statistic:
        squared = squared_norms(values)
        return _scaled_sum(values, *scales(squared, squared, usable(limit), present))

    limits = by_block(bound, statistics)
    if isinstance(limits, Mapping):
        # A record counts in all blocks or in none, so that one bad block hides nothing and adds nothing.
        present = present & jnp.isfinite(squared_norms(statistics))
        return {name: block(statistics[name], limits[name]) for name in statistics}
    return block(statistics, limits)


def usable(bound: Array | float) -> Float[Array, ""]:
    """A bound fit for use; a hostile one (no number, negative, too small for its noise) is zero: nothing is said."""
    bound = jnp.asarray(bound, jnp.float32)
    return jnp.where(jnp.isfinite(bound) & (bound > _SMALLEST), bound, 0.0)


def scales(
    squared: Float[Array, " records"], magnitude: Float[Array, " records"], bound: Float[Array, ""], present: Mask
) -> tuple[Float[Array, " records"], Mask]:
    """The factor that clips each record to ``bound``, and which records count.

    ``magnitude`` is the sum of absolute values of the terms of ``squared``. A record that is absent or whose norm
    is not finite gets factor zero.
    """
    safe = squared + _ROUNDING * magnitude + _FLOOR
    counts = present & jnp.isfinite(safe)
    factor = jnp.minimum(1.0, bound / jnp.sqrt(jnp.where(counts, safe, 1.0)))
    return jnp.where(counts, factor, 0.0), counts


def by_block(value: PerBlock, statistic: Statistic) -> Any:
    """Pair a number, or a mapping of numbers, with the blocks of a statistic."""
    if not isinstance(value, Mapping):
        return value
    if not isinstance(statistic, Mapping) or set(value) != set(statistic):
        blocks = sorted(statistic) if isinstance(statistic, Mapping) else "one block"
        raise ValueError(f"Expected one number for each block of the statistic ({blocks}), got {sorted(value)}.")
    return value


def squared_norms(statistics: Any) -> Float[Array, " records"]:
    """The squared norm of each record's statistic; leaves have a leading axis of records."""
    return sum(
        (jnp.sum(leaf.reshape(leaf.shape[0], -1) ** 2, axis=1) for leaf in jax.tree.leaves(statistics)),
        start=jnp.float32(0),
    )
