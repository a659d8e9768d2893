"""What powers of residuals and targets say: the error of a model of numbers, in shares of the target's range.

    RMSE = sqrt(mean r^2)        R^2 = 1 - mean r^2 / variance of the target        bias = mean r

for residuals r = prediction - target, at most ``residual`` large. Means of powers are linear in the released cells, so
their errors are known; those of RMSE and R^2 follow to first order. The errors of both tables count as independent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tacit.counting.estimate import COEFFICIENTS, Noisy, Row, Z, noise_variance
from tacit.counting.request import DEGREE, Table
from tacit.counting.scored import Scored

RMSE, R2, BIAS = "RMSE", "R2", "mean residual"
_SEEN = 3.0


def number_rows(wanted: Scored, tables: Sequence[Table], noisy: Sequence[Noisy]) -> Iterator[Row]:
    """Error, explained variance and bias: of all records, or of each group."""
    groups = tables[0].axes[0].cells if tables[0].request.by else ("",)
    shaped = [one.cells.reshape(*one.cells.shape[:-1], len(groups), -1) for one in noisy]
    for place, level in enumerate(groups):
        name = f"{tables[0].request.by} = {level}" if tables[0].request.by else ""
        residual = _Powers(shaped[0][..., place, :], noisy[0])
        target = _Powers(shaped[1][..., place, :], noisy[1])
        yield from _rows(name, wanted.residual, residual, target)


def square_gain(measure: str, most: float, noisy: Noisy) -> Row:
    """How much smaller a second model's mean square error is, from powers of the difference on each record."""
    difference = _Powers(noisy.cells, noisy)
    first, second = COEFFICIENTS[1], COEFFICIENTS[2]
    # d = most^2 (2 s - 1), and its square.
    d1, d2 = most**2 * (2 * first - 1), most**4 * (4 * second - 4 * first + 1)
    gain = difference.mean(d1)
    half = Z * np.sqrt(difference.variance(d1, np.maximum(difference.mean(d2), 0.0)))
    return _told("", measure, (gain, gain - half, gain + half), difference.seen, (-(most**2), most**2))


class _Powers:
    """Means of powers of a share s, among records that have it."""

    def __init__(self, cells: np.ndarray, noisy: Noisy) -> None:
        self._noisy, self._cells = noisy, cells[..., : DEGREE + 1]
        weight = self._cells.sum(axis=-1)
        count = DEGREE + 1
        seen = weight > np.maximum(_SEEN * np.sqrt(noise_variance(noisy, count, count)), 1.0 / noisy.records)
        self.weight, self.seen = np.where(seen, weight, 1.0), seen

    def mean(self, coefficients: np.ndarray) -> np.ndarray:
        """The mean of a polynomial, from what it is worth in each cell."""
        return (self._cells * coefficients).sum(axis=-1) / self.weight

    def variance(self, coefficients: np.ndarray, square: np.ndarray) -> np.ndarray:
        """Of that mean: by noise and sampling; ``square`` is the mean of the polynomial's square."""
        mean = self.mean(coefficients)
        gradient = (coefficients - mean[..., None]) / self.weight[..., None]
        noise = noise_variance(self._noisy, (gradient**2).sum(axis=-1), gradient.sum(axis=-1))
        return noise + np.maximum(square - mean**2, 0.0) / (self._noisy.records * self.weight)


def _rows(group: str, most: float, residual: _Powers, target: _Powers) -> Iterator[Row]:
    first, second, third, fourth = (COEFFICIENTS[k] for k in range(1, DEGREE + 1))
    # r = most (2 s - 1), and powers of it.
    r1, r2 = most * (2 * first - 1), most**2 * (4 * second - 4 * first + 1)
    r4 = most**4 * (16 * fourth - 32 * third + 24 * second - 8 * first + 1)
    bias, square = residual.mean(r1), residual.mean(r2)
    half = Z * np.sqrt(residual.variance(r1, np.maximum(square, 0.0)))
    yield _told(group, BIAS, (bias, bias - half, bias + half), residual.seen, (-most, most))
    of_square = residual.variance(r2, np.maximum(residual.mean(r4), 0.0))
    half = Z * np.sqrt(of_square)
    bounds = [np.sqrt(np.clip(v, 0.0, most**2)) for v in (square, square - half, square + half)]
    yield _told(group, RMSE, bounds, residual.seen, (0.0, most))
    mean = target.mean(first)
    spread = target.mean(second) - mean**2
    around = second - 2 * mean[..., None] * first + mean[..., None] ** 2
    fourths = target.mean(fourth) - 4 * mean * target.mean(third) + 6 * mean**2 * target.mean(second) - 3 * mean**4
    of_spread = target.variance(around, np.maximum(fourths, 0.0))
    seen = residual.seen & target.seen & (spread > _SEEN * np.sqrt(of_spread))
    safe = np.where(seen, spread, 1.0)
    value = 1 - square / safe
    half = Z * np.sqrt(of_square / safe**2 + square**2 * of_spread / safe**4)
    yield _told(group, R2, (value, value - half, np.minimum(value + half, 1.0)), seen, (-np.inf, 1.0))


def _told(group: str, measure: str, values: Sequence[np.ndarray], seen: np.ndarray, whole: tuple[float, float]) -> Row:
    value, low, high = values
    return Row(
        group, "", measure, np.where(seen, value, np.nan), np.where(seen, low, whole[0]), np.where(seen, high, whole[1])
    )
