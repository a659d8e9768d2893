"""The engine at the door: each record's vector, computed by jax or torch and stored; nothing here is trusted.

A combination of gradients of wide dense layers comes in factors, in differences of neighbouring points
(`tacit.silo.gradients` says why). Everything else is formed, a vector for each record. Gradients of a model that
another library computes are asked of it (`outside_vectors`). `checked_sum` bounds whatever this computes.

What must hold for the price of sampled batches is that a record's vector depends on the broadcast, the record and its
slot alone. So nothing is summed over records, shapes are fixed, and nothing that a record says can make this fail. The
code of a model of the owner's own might: then an `OutsideError` is raised, and the daemon uses that model no more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int64

from tacit.algorithm import Record, Silo, Statistic, Work
from tacit.objectives.objective import Metric, Pulled
from tacit.objectives.query import SQUARE, GradientQuery, SaddleQuery, SquareQuery, differences, gradient_at
from tacit.silo.gradients import (
    combination_terms,
    factors_of,
    formed_at,
    has_bias,
    is_formed,
    is_outside,
    is_tapped,
    total_of,
    weights_of,
)
from tacit.silo.integers import Factors, Sums, Vectors, fits_factors

WHOLE = ""
"""The name of the only block of a statistic without blocks."""


class OutsideError(Exception):
    """What a model that another library computes has raised, by its kind alone: a record may have been the reason."""


class Layout(NamedTuple):
    """How the sums of a block become a statistic; ``width`` is how many floats are stored for each record."""

    shape: Any
    factored: tuple[str, ...]
    terms: int
    width: int

    def leaves(self, sums: Sums) -> list[Int64[np.ndarray, ...]]:
        """The sum of the block leaf after leaf, in the place where the sums lie: what is added to one is in them."""
        return jax.tree.leaves(self.assemble(sums))

    def assemble(self, sums: Sums) -> Any:
        """The statistic's tree, with int64 leaves."""
        if not self.factored:
            return self.shaped(sums.formed)
        at, layers = 0, {}
        for name, layer in self.shape.items():
            if name in self.factored:
                layers[name] = _weights(sums.layers[name], layer)
            else:
                width = _width(layer)
                layers[name] = _unravel(layer, sums.formed[at : at + width])
                at += width
        return layers

    def shaped(self, flat: np.ndarray) -> Any:
        """A vector, leaf after leaf, as the statistic's tree."""
        return _unravel(self.shape, flat)


def _weights(matrix: np.ndarray, layer: Any) -> dict[str, np.ndarray]:
    """The weights of a dense layer from the matrix of its sum, in which a bias is the last row; torch turns them."""
    return weights_of(layer, matrix[:-1], matrix[-1]) if has_bias(layer) else weights_of(layer, matrix, None)


def whole(shape: Any) -> Layout:
    """The layout of a block that is formed in full."""
    return Layout(shape, (), 1, _width(shape))


def layouts(silo: Silo, work: Work, record: Record) -> dict[str, Layout]:
    """The layout of each block of a statistic, from shapes alone."""
    shape = jax.eval_shape(silo.query, work, record)
    if isinstance(silo.release.noise_multiplier, Mapping):
        return {name: _layout(silo.query, work, record, name, shape[name]) for name in sorted(shape)}
    return {WHOLE: _layout(silo.query, work, record, WHOLE, shape)}


def _layout(query: Any, work: Work, record: Record, block: str, shape: Any) -> Layout:
    if is_outside(query):
        return _factored(shape, _outside_terms(query, work, record))
    if is_square(query):
        return Layout(shape, (SQUARE,), 1, 2 * len(shape[SQUARE]["w"]))
    if not _is_gradient(query, block):
        return whole(shape)
    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype), record)

    def terms(work: Work, some: Record) -> dict[str, Any]:
        gradient = _gradient(query, work, block)
        parts = [factors_of(gradient.objective, point, some) for point in gradient.points(work)]
        inputs, cotangents, weights = parts[0].inputs, parts[0].cotangents, gradient.weights(work)
        model = gradient.objective.model
        dense = [n for n in shape if inputs[n].ndim == 2 and not is_formed(model, n, inputs[n], cotangents[n])]
        return {n: [(t.left, t.right) for t in combination_terms(parts, weights, n, some)] for n in dense}

    return _factored(shape, jax.eval_shape(terms, work, one))


def _outside_terms(query: GradientQuery, work: Work, record: Record) -> dict[str, Any]:
    """The shapes of the terms of each dense layer that another library may leave in factors."""
    model = query.objective.model.outside
    assert model is not None
    dense = model.dense(record["x"].shape, record["x"].dtype)

    def terms(work: Work) -> dict[str, Any]:
        def zeros(side: int) -> dict[str, Any]:
            return {name: jnp.zeros((1, own[side])) for name, own in dense.items()}

        parts: list[Any] = [Pulled({}, zeros(0), zeros(1)) for _ in query.points(work)]
        weights = query.weights(work)
        return {n: [(t.left, t.right) for t in combination_terms(parts, weights, n, ())] for n in dense}

    return dict(jax.eval_shape(terms, work))


def _factored(shape: Any, shapes: Mapping[str, Any]) -> Layout:
    """The layout of a block whose dense layers have terms of these shapes: wide ones stay in factors."""
    widths = {name: (len(own), own[0][0].shape[1] + 1, own[0][1].shape[1]) for name, own in shapes.items()}
    factored = [name for name, own in widths.items() if fits_factors(*own, len(shape)) and _is_wide(*own)]
    formed = sum(_width(layer) for name, layer in shape.items() if name not in factored)
    in_factors = sum(widths[name][0] * sum(widths[name][1:]) for name in factored)
    most = max((widths[name][0] for name in factored), default=1)
    return Layout(shape, tuple(factored), most, formed + in_factors)


def _is_wide(terms: int, inputs: int, outputs: int) -> bool:
    """Whether a layer's matrix has more entries than its factors; otherwise it is formed, and rounded more finely."""
    return inputs * outputs > terms * (inputs + outputs)


def _is_gradient(query: Any, block: str) -> bool:
    """Whether a block is a combination of gradients whose layers are tapped."""
    if block == WHOLE:
        return is_tapped(query)
    return isinstance(query, SaddleQuery) and block == "params" and bool(query.saddle.model.layers)


def _gradient(query: Any, work: Work, block: str) -> GradientQuery:
    """The combination of gradients that a block is."""
    if block == WHOLE:
        return query
    return gradient_at(query.game(work).at(query.point(work)[1]), lambda work: query.point(work)[0])


def vectors_of(silo: Silo, blocks: Mapping[str, Layout], work: Work, records: Record) -> dict[str, Vectors]:
    """Each record's vector, block by block, as jax arrays; to be compiled, and stored as NumPy arrays before use."""
    vectors: dict[str, Vectors] = {}
    plain = None
    for block, layout in blocks.items():
        if layout.factored and isinstance(silo.query, SquareQuery):
            vectors[block] = _squares(silo.query, work, records)
            continue
        if layout.factored:
            vectors[block] = _tapped(_gradient(silo.query, work, block), layout, work, records)
            continue
        plain = _plain(silo.query, work, records) if plain is None else plain
        vectors[block] = Vectors(_ravel(plain if block == WHOLE else plain[block]), {})
    return vectors


def is_square(query: Any) -> bool:
    """Whether a query is a matrix of second moments, which stays in factors whatever its width."""
    return isinstance(query, SquareQuery)


def _squares(query: SquareQuery, work: Work, records: Record) -> Vectors:
    own = jax.vmap(lambda record: query.vector(work, record))(records).astype(jnp.float32)[None]
    return Vectors(jnp.zeros((own.shape[1], 0), jnp.float32), {SQUARE: Factors(own, own)})  # type: ignore[arg-type]


def outside_vectors(query: Any, blocks: Mapping[str, Layout], work: Work, records: Record) -> dict[str, Vectors]:
    """Each record's vector, asked of the library that computes the model; only the loss is compiled by jax."""
    model, layout, weights = query.objective.model.outside, blocks[WHOLE], query.weights(work)
    parts: list[Any] = []
    try:
        for point in query.points(work):
            outputs, pull = model.pulled(point, records["x"], layout.factored)
            parts.append(pull(np.asarray(_slopes(query.objective.cost.value)(outputs, records["y"]))))
    except Exception as error:
        raise OutsideError(type(error).__name__) from None
    formed, layers = [np.zeros((len(records["y"]), 0), np.float32)], {}
    for name, layer in layout.shape.items():
        if name in layout.factored:
            layers[name] = _stacked(combination_terms(parts, weights, name, records), layer)
            continue
        total = total_of(differences([part.formed[name] for part in parts], weights))
        formed += [np.asarray(leaf, np.float32).reshape(len(leaf), -1) for leaf in jax.tree.leaves(total)]
    return {WHOLE: Vectors(np.concatenate(formed, axis=1), jax.tree.map(np.asarray, layers))}


@lru_cache(maxsize=16)
def _slopes(value: Metric) -> Callable[[Any, Any], Any]:
    """The gradient of the loss in a record's outputs, record by record: it follows from that record alone."""
    return jax.jit(jax.vmap(jax.grad(lambda output, target: value(output[None], target[None])[0])))


def _stacked(terms: list[Any], layer: Any) -> Factors:
    """The terms of a dense layer as one array for each side; a bias is a last column of the left one."""
    lefts = [_with_bias(term.left, term.bias) if has_bias(layer) else term.left for term in terms]
    return Factors(jnp.stack(lefts), jnp.stack([term.right for term in terms]))  # type: ignore[arg-type]


def _plain(query: Any, work: Work, records: Record) -> Statistic:
    if isinstance(query, SaddleQuery) and query.saddle.model.layers:
        params, duals = query.point(work)
        by_params = jax.vmap(lambda record: query(work, record))(records)["params"]
        # What nobody asks for is not computed.
        return {"params": by_params, "duals": query.game(work).by_duals(params, duals, records)}
    return jax.vmap(lambda record: query(work, record))(records)


def _tapped(query: GradientQuery, layout: Layout, work: Work, records: Record) -> Vectors:
    points, weights, model = query.points(work), query.weights(work), query.objective.model
    parts = [factors_of(query.objective, point, records) for point in points]
    formed, layers = [], {}
    for name, layer in layout.shape.items():
        if name in layout.factored:
            layers[name] = _stacked(combination_terms(parts, weights, name, records), layer)
            continue
        formed.append(_ravel(total_of(differences(formed_at(model, points, parts, name), weights))))
    records_here = next(iter(jax.tree.leaves(records))).shape[0]
    joined = jnp.concatenate(formed, axis=1) if formed else jnp.zeros((records_here, 0), jnp.float32)
    return Vectors(joined, layers)  # type: ignore[arg-type]


def _with_bias(left: Array, bias: bool) -> Array:
    return jnp.concatenate([left, jnp.full((left.shape[0], 1), float(bias), left.dtype)], axis=1)


def _ravel(statistics: Any) -> Any:
    """Leaves with a leading axis of records, as one matrix."""
    leaves = jax.tree.leaves(statistics)
    return jnp.concatenate([leaf.reshape(leaf.shape[0], -1).astype(jnp.float32) for leaf in leaves], axis=1)


def _unravel(shape: Any, flat: np.ndarray) -> Any:
    leaves, form = jax.tree.flatten(shape)
    parts, at = [], 0
    for leaf in leaves:
        width = math.prod(leaf.shape)
        parts.append(flat[at : at + width].reshape(leaf.shape))
        at += width
    return jax.tree.unflatten(form, parts)


def _width(tree: Any) -> int:
    return sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(tree))
