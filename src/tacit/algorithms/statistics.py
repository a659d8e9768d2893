"""Several statistics of silos' records in one release: one round, another query.

    message of silo i     for each table b: (1/n) sum over its n records of row_b(record) + N(0, sigma_b^2 I)
    server                keeps the mean of all messages

A row holds a record's weights in the cells of a table (`tacit.counting.request` says which): none is negative and
they add up to one, so its norm is at most one and replacing a record moves the sum of rows by at most sqrt(2). All
tables are blocks of one release, priced together, and each has the noise that its need leaves it.

What is not a number is in the cell of missing values, whatever the column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import comb
from typing import Any

import jax
import jax.numpy as jnp

from tacit.algorithm import Algorithm, Message, Params, Record, Round, Server, Silo, Terms, Work, recipe
from tacit.counting.request import DEGREE, Axis, StatisticsError, Table, block, noise_ratios, parsed

Cells = dict[str, jax.Array]


@recipe
def statistics(problem: Any, terms: Terms, *, statistics: Sequence[Mapping[str, Any]],
               columns: Sequence[Mapping[str, Any]] | None = None) -> Algorithm:  # fmt: skip
    """Counts, histograms, tables, quantiles, moments, correlations and survival, in one round.

    ``columns`` are those of a record's field ``columns`` as a schema declares them; a study leaves them out, and its
    data set says them. The output has the mean row of each table.
    """
    if columns is None:
        raise StatisticsError("Expected records with declared columns; use a study of tables, or CSV files.")
    if terms.channel == "shuffled-reports":
        raise StatisticsError('Expected channel="direct", "pairwise", "shuffled-sum" or "trusted" for statistics.')
    tables = parsed(columns, statistics)
    names = [block(place) for place in range(len(tables))]

    def init(params: Params) -> Cells:
        return {name: jnp.zeros(table.size) for name, table in zip(names, tables, strict=True)}

    def query(work: Work, record: Record) -> Cells:
        return {name: row_of(table, record["columns"]) for name, table in zip(names, tables, strict=True)}

    def tell(state: Cells, message: Message) -> Cells:
        return message

    release = terms.drawn(None, "full").release(
        clip=lambda work: dict.fromkeys(names, 1.0), noise=noise_ratios(tables), nonnegative=True
    )
    once = Round(Silo(query, release, reads=("columns",)), Server(lambda state: (), tell), "all")
    return Algorithm(init, {"statistics": once}, ("statistics",), lambda state: state)


def row_of(table: Table, values: jax.Array) -> jax.Array:
    """A record's weights in the cells of a table, from its columns."""
    row = jnp.ones(1)
    for axis in table.axes:
        row = (row[:, None] * _weights(axis, values[axis.index])[None, :]).reshape(-1)
    return row


def _weights(axis: Axis, value: jax.Array) -> jax.Array:
    """A value's weights in the cells of one axis; a negative value, or what is not finite, is missing."""
    missing = ~jnp.isfinite(value) | (value < 0)
    safe, cells = jnp.where(missing, 0.0, value), len(axis.cells)
    if axis.kind == "powers":
        share = jnp.clip(safe, 0.0, 1.0)
        powers = [comb(DEGREE, a) * share**a * (1.0 - share) ** (DEGREE - a) for a in range(DEGREE + 1)]
        return jnp.where(missing, jnp.zeros(cells).at[-1].set(1.0), jnp.stack([*powers, jnp.zeros(())]))
    place = _level(axis, safe) if axis.kind == "levels" else _bin(axis, safe)
    return (jnp.arange(cells) == jnp.where(missing, cells - 1, place)).astype(jnp.float32)


def _level(axis: Axis, code: jax.Array) -> jax.Array:
    return jnp.minimum(code, axis.inner).astype(jnp.int32)


def _bin(axis: Axis, share: jax.Array) -> jax.Array:
    """The bin that holds a share: each begins at its lower edge, and the last one holds its upper edge too."""
    edges, bins = jnp.asarray(axis.edges, jnp.float32), axis.inner
    place = jnp.searchsorted(edges, share, side="right") - 1
    if not axis.open:
        place = jnp.where(share == edges[-1], bins - 1, place)
    above = bins + axis.below
    return jnp.where(place < 0, bins, jnp.where(place >= bins, above, place)).astype(jnp.int32)
