"""What noisy cells say: estimates with intervals that include the noise and the sampling of records.

Cells are means over N records of weights that add up to one, each with Gaussian noise of standard deviation ``noise``.
So the sum of all is known, and cells are moved onto it: noise of g . cells then has variance

    noise^2 (|g|^2 - (sum g)^2 / K)      for K cells.

The records count as drawn from a population, which an interval is about. Where it is of the records themselves, as for
counts, it has the noise alone. Everything is computed along the last axis, for many repetitions at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import comb
from typing import Any, NamedTuple

import numpy as np

from tacit.counting.request import DEGREE, Axis, Table
from tacit.counting.survival import logrank, survival_rows

Z = 1.959963984540054
"""An interval is this many standard errors to either side: 95% of a normal distribution."""

_SEEN = 3.0  # a group whose count is within so many deviations of its noise says nothing of what is in it
COEFFICIENTS = np.array([[comb(a, k) / comb(DEGREE, k) for a in range(DEGREE + 1)] for k in range(DEGREE + 1)])
"""Row k: the mean of s^k is this times the cells of the Bernstein polynomials."""


class Noisy(NamedTuple):
    """The released cells of one table, the standard deviation of the noise in each, and how many records they are of.

    ``cells`` may have leading axes of repetitions.
    """

    cells: np.ndarray
    noise: float
    records: int


class Row(NamedTuple):
    """One number with its interval: of ``cell`` in ``group``, where there are such; ``value`` is NaN where too few."""

    group: str
    cell: str
    measure: str
    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


class Hypothesis(NamedTuple):
    """A test of a hypothesis: its statistic, degrees of freedom, and p-value."""

    name: str
    statistic: np.ndarray
    freedom: int
    p_value: np.ndarray


def rows_of(table: Table, noisy: Noisy) -> list[Row]:
    """Everything that a table says."""
    noisy = projected(noisy)
    kind = table.request.kind
    if kind in ("counts", "histogram", "table"):
        return [*_counts(table, noisy), *_shares(table, noisy)]
    readers: dict[str, Any] = {"moments": _moments, "quantiles": _quantiles, "correlation": _correlation}
    if kind == "survival":
        found = survival_rows(table, noisy.cells, noisy.noise, noisy.records, Z)
        return [Row(group, cell, "survival", *values) for group, cell, values in found]
    return [row for name, group in _groups(table, noisy) for row in readers[kind](table, noisy, name, group)]


def hypotheses_of(table: Table, noisy: Noisy) -> list[Hypothesis]:
    """The tests that come with a table: whether survival differs between groups."""
    if table.request.kind != "survival" or table.request.by is None:
        return []
    noisy = projected(noisy)
    return [Hypothesis("log-rank", *logrank(table, noisy.cells, noisy.noise, noisy.records))]


def projected(noisy: Noisy) -> Noisy:
    """Cells moved by the same amount each, such that they add up to one."""
    cells = np.asarray(noisy.cells, np.float64)
    return noisy._replace(cells=cells + (1.0 - cells.sum(axis=-1, keepdims=True)) / cells.shape[-1])


def noise_variance(noisy: Noisy, squares: Any, total: Any) -> Any:
    """Of g . cells, where g has this sum of squares and this sum."""
    return noisy.noise**2 * np.maximum(squares - total**2 / noisy.cells.shape[-1], 0.0)


def score_interval(share: np.ndarray, noise: Any, records: Any) -> tuple[np.ndarray, np.ndarray]:
    """Shares p that lie within Z standard errors, of p itself, from the noisy one; ``noise`` is a variance.

    >>> low, high = score_interval(np.array(0.5), 0.0, 100)
    >>> round(float(low), 3), round(float(high), 3)
    (0.404, 0.596)
    """
    room = Z**2 / records
    middle = (share + room / 2) / (1 + room)
    inside = (share + room / 2) ** 2 - (1 + room) * (share**2 - Z**2 * noise)
    half = np.sqrt(np.maximum(inside, 0.0)) / (1 + room)
    return np.clip(middle - half, 0.0, 1.0), np.clip(middle + half, 0.0, 1.0)


def _cells_of(table: Table) -> list[str]:
    """The names of cells, in order; those of several axes joined."""
    names = [""]
    for axis in table.axes[1 if table.request.by else 0 :]:
        names = [f"{name}, {cell}" if name else cell for name in names for cell in axis.cells]
    return names


def _groups(table: Table, noisy: Noisy) -> Iterator[tuple[str, np.ndarray]]:
    """The cells of each group, with the axes of the table; all of them where there are no groups."""
    cells = noisy.cells.reshape(*noisy.cells.shape[:-1], *table.shape)
    if table.request.by is None:
        yield "", cells
        return
    groups = np.moveaxis(cells, -len(table.shape), 0)
    yield from zip(table.axes[0].cells, groups, strict=True)


def _counts(table: Table, noisy: Noisy) -> Iterator[Row]:
    """How many of these records are in each cell: the noise alone is unknown."""
    half = Z * noisy.records * np.sqrt(noise_variance(noisy, 1.0, 1.0))
    for name, group in _groups(table, noisy):
        flat = group.reshape(*noisy.cells.shape[:-1], -1) * noisy.records
        for place, cell in enumerate(_cells_of(table)):
            value = flat[..., place]
            yield Row(name, cell, "count", *(np.maximum(v, 0.0) for v in (value, value - half, value + half)))


def _shares(table: Table, noisy: Noisy) -> Iterator[Row]:
    """The share of each cell in the population, or in its group's."""
    for name, group in _groups(table, noisy):
        flat = group.reshape(*noisy.cells.shape[:-1], -1)
        count = flat.shape[-1]
        if table.request.by is None:
            whole, seen = np.ones(flat.shape[:-1]), np.ones(flat.shape[:-1], bool)
        else:
            whole, seen = _weight(flat, noisy)
        for place, cell in enumerate(_cells_of(table)):
            share = flat[..., place] / whole
            if table.request.by is None:
                noise = noise_variance(noisy, 1.0, 1.0)
            else:
                squares = (1 - share) ** 2 + (count - 1) * share**2
                noise = noise_variance(noisy, squares, 1 - count * share) / whole**2
            low, high = score_interval(share, noise, noisy.records * whole)
            yield _told(name, cell, "share", (np.clip(share, 0.0, 1.0), low, high), seen, (0.0, 1.0))


def _weight(flat: np.ndarray, noisy: Noisy) -> tuple[np.ndarray, np.ndarray]:
    """The share of all records that these cells hold, and whether that is seen beyond the noise."""
    count = flat.shape[-1]
    weight = flat.sum(axis=-1)
    seen = weight > np.maximum(_SEEN * np.sqrt(noise_variance(noisy, count, count)), 1.0 / noisy.records)
    return np.where(seen, weight, 1.0), seen


def _told(group: str, cell: str, measure: str, values: Sequence[Any], seen: Any, whole: tuple[float, float]) -> Row:
    """A row of value, low and high; the interval is everything possible where too few records are seen."""
    value, low, high = values
    value = np.where(seen, value, np.nan)
    return Row(group, cell, measure, value, np.where(seen, low, whole[0]), np.where(seen, high, whole[1]))


def _central(moments: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The second and the fourth central moment, from the first four."""
    m1, m2, m3, m4 = moments
    return m2 - m1**2, m4 - 4 * m3 * m1 + 6 * m2 * m1**2 - 3 * m1**4


def _moments(table: Table, noisy: Noisy, name: str, group: np.ndarray) -> Iterator[Row]:
    """Mean, variance and standard deviation of the values that are there."""
    column, cells = table.axes[-1].column, group[..., : DEGREE + 1]
    start, end = column.range
    weight, seen = _weight(cells, noisy)
    moments = [cells @ COEFFICIENTS[k] / weight for k in range(1, DEGREE + 1)]
    mean, (second, fourth) = moments[0], _central(moments)
    records = noisy.records * weight
    spread = end - start

    def error(influence: np.ndarray, sampling: np.ndarray) -> np.ndarray:
        squares, total = (influence**2).sum(axis=-1), influence.sum(axis=-1)
        return np.sqrt(noise_variance(noisy, squares, total) / weight**2 + np.maximum(sampling, 0.0) / records)

    first, of_square = COEFFICIENTS[1] - mean[..., None], _squares(mean)
    half = Z * error(first, second)
    scaled = [np.clip(start + spread * v, start, end) for v in (mean, mean - half, mean + half)]
    yield _told(name, column.name, "mean", scaled, seen, (start, end))
    half = Z * error(of_square - second[..., None], fourth - second**2)
    bounds = [np.clip(v, 0.0, 0.25) for v in (second, second - half, second + half)]
    whole = (0.0, 0.25 * spread**2)
    yield _told(name, column.name, "variance", [v * spread**2 for v in bounds], seen, whole)
    deviations = [np.sqrt(v) * spread for v in bounds]
    yield _told(name, column.name, "standard deviation", deviations, seen, (0.0, 0.5 * spread))


def _squares(mean: np.ndarray) -> np.ndarray:
    """What each polynomial's cell counts in the mean of (s - mean)^2."""
    return COEFFICIENTS[2] - 2 * mean[..., None] * COEFFICIENTS[1] + mean[..., None] ** 2


def _correlation(table: Table, noisy: Noisy, name: str, group: np.ndarray) -> Iterator[Row]:
    """Pearson's correlation of two columns, among records that have both."""
    cells = group[..., : DEGREE + 1, : DEGREE + 1]
    weight, seen = _weight(cells.reshape(*cells.shape[:-2], -1), noisy)
    cells = cells / weight[..., None, None]
    moments = np.einsum("ja,...ab,kb->...jk", COEFFICIENTS, cells, COEFFICIENTS)
    means = moments[..., 1, 0], moments[..., 0, 1]
    spreads = moments[..., 2, 0] - means[0] ** 2, moments[..., 0, 2] - means[1] ** 2
    sides = [_squares(mean) - spread[..., None] for mean, spread in zip(means, spreads, strict=True)]
    for side, spread in zip(sides, spreads, strict=True):
        squares, total = (side**2).sum(axis=-1) * cells.shape[-1], side.sum(axis=-1) * cells.shape[-1]
        seen = seen & (spread > _SEEN * np.sqrt(noise_variance(noisy, squares, total)) / weight)
    spreads = np.where(seen, spreads[0], 1.0), np.where(seen, spreads[1], 1.0)
    covariance = moments[..., 1, 1] - means[0] * means[1]
    value = np.clip(covariance / np.sqrt(spreads[0] * spreads[1]), -0.999999, 0.999999)
    variance = _correlation_noise(noisy, means, spreads, value) / weight**2
    variance = variance + _correlation_sampling(moments, means, spreads, value) / (noisy.records * weight)
    half = Z * np.sqrt(variance) / (1 - value**2)
    low, high = (np.tanh(np.arctanh(value) + sign * half) for sign in (-1, 1))
    cell = f"{table.axes[-2].column.name}, {table.axes[-1].column.name}"
    yield _told(name, cell, "correlation", (value, low, high), seen, (-1.0, 1.0))


def _correlation_noise(noisy: Noisy, means: Any, spreads: Any, value: np.ndarray) -> np.ndarray:
    """The variance that noise in the cells gives a correlation, by its influence u v - r (u^2 + v^2) / 2."""
    u, v = ((COEFFICIENTS[1] - m[..., None]) / np.sqrt(s)[..., None] for m, s in zip(means, spreads, strict=True))
    uu, vv = (_squares(m) / s[..., None] for m, s in zip(means, spreads, strict=True))
    both = uu[..., :, None] + vv[..., None, :]
    influence = u[..., :, None] * v[..., None, :] - value[..., None, None] * both / 2
    return noise_variance(noisy, (influence**2).sum(axis=(-2, -1)), influence.sum(axis=(-2, -1)))


def _correlation_sampling(moments: np.ndarray, means: Any, spreads: Any, value: np.ndarray) -> np.ndarray:
    """The mean square of the influence of a record on a correlation."""

    def central(j: int, k: int) -> np.ndarray:
        """The mean of u^j v^k, u and v standardised."""
        total = np.zeros_like(value)
        for p in range(j + 1):
            for q in range(k + 1):
                times = comb(j, p) * comb(k, q) * (-means[0]) ** (j - p) * (-means[1]) ** (k - q)
                total = total + times * moments[..., p, q]
        return total / (spreads[0] ** (j / 2) * spreads[1] ** (k / 2))

    mixed = central(2, 2) - value * (central(3, 1) + central(1, 3))
    return np.maximum(mixed + value**2 / 4 * (central(4, 0) + 2 * central(2, 2) + central(0, 4)), 0.0)


def _quantiles(table: Table, noisy: Noisy, name: str, group: np.ndarray) -> Iterator[Row]:
    """Quantiles of the values that are there, between the edges, from cumulative shares made monotone."""
    axis = table.axes[-1]
    start, end = axis.column.range
    values = group[..., :-1]
    weight, seen = _weight(values, noisy)
    first = values[..., axis.inner] if axis.below else np.zeros(values.shape[:-1])
    steps = np.concatenate([first[..., None], values[..., : axis.inner]], axis=-1)
    below = np.cumsum(steps, axis=-1) / weight[..., None]
    rising = (np.maximum.accumulate(below, -1) + np.minimum.accumulate(below[..., ::-1], -1)[..., ::-1]) / 2
    edges = start + (end - start) * np.asarray(axis.edges)
    for probability in table.request.probabilities:
        error = _below_error(axis, noisy, values.shape[-1], probability, weight)
        low = _crossing(below + Z * error, edges, probability, last=False)
        high = _crossing(below - Z * error, edges, probability, last=True)
        value = np.clip(_crossing(rising, edges, probability, last=False), low, high)
        yield _told(name, f"{probability:g}", "quantile", (value, low, high), seen, (start, end))


def _below_error(axis: Axis, noisy: Noisy, count: int, probability: float, weight: np.ndarray) -> np.ndarray:
    """The standard error of the share below each edge, if the quantile lay there."""
    summed = np.arange(axis.inner + 1) + axis.below
    squares = summed * (1 - probability) ** 2 + (count - summed) * probability**2
    noise = noise_variance(noisy, squares, summed - count * probability) / weight[..., None] ** 2
    return np.sqrt(noise + probability * (1 - probability) / (noisy.records * weight[..., None]))


def _crossing(heights: np.ndarray, edges: np.ndarray, probability: float, *, last: bool) -> np.ndarray:
    """Where a curve over the edges first reaches a height, or is last not above it, between edges by a line."""
    reached = heights >= probability if not last else heights > probability
    if last:
        after = heights.shape[-1] - np.argmax(~reached[..., ::-1], axis=-1)
        after = np.where((~reached).any(axis=-1), after, 0)
    else:
        after = np.where(reached.any(axis=-1), np.argmax(reached, axis=-1), heights.shape[-1])
    inside = np.clip(after, 1, heights.shape[-1] - 1)
    lower = np.take_along_axis(heights, inside[..., None] - 1, -1)[..., 0]
    upper = np.take_along_axis(heights, inside[..., None], -1)[..., 0]
    rise = np.where(upper == lower, 1.0, upper - lower)
    between = edges[inside - 1] + np.clip((probability - lower) / rise, 0.0, 1.0) * (edges[inside] - edges[inside - 1])
    return np.where(after == 0, edges[0], np.where(after == heights.shape[-1], edges[-1], between))
