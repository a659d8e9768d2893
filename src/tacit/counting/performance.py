"""What counts by (score, truth) say about a model: every number with an interval that includes noise and sampling.

A number f of the cells p of a table has, to first order, the error of its gradient g:

    noise       noise^2 (|g|^2 - (sum g)^2 / K)      for K cells that are moved onto their known sum
    sampling    (sum p g^2 - (sum p g)^2) / N        for N records drawn from a population

Shares (accuracy, sensitivity, ...) get the interval that inverts the test of a share, which holds near 0 and 1 too.
The area under the curve is that of scores as the bins have them: records of one bin count as equal. Concordance is that
of subjects whose times lie in different bins, of whom the earlier had the event: the chance that its risk is higher.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tacit.counting.estimate import Noisy, Row, Z, noise_variance, projected, score_interval
from tacit.counting.request import Table
from tacit.counting.residuals import number_rows, square_gain
from tacit.counting.scored import Scored

ACCURACY, AUC, GAIN, CONCORDANCE = "accuracy", "AUC", "gain over the commonest class", "concordance"
OVER_SHARED = "gain over the shared model"
"""Of a silo's own model: in accuracy, mean square error or concordance, on the same records."""
_SEEN = 3.0  # a part whose weight is within so many deviations of its noise says nothing
_COARSE = 10  # bins of a reliability table


class Cells(NamedTuple):
    """The cells of one group, with their axes flat, among all cells of a table."""

    group: str
    shares: np.ndarray
    noisy: Noisy

    def weight(self, marked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The share of all records in the marked cells, and whether it is seen beyond the noise."""
        found = (self.shares * marked).sum(axis=-1)
        deviation = np.sqrt(noise_variance(self.noisy, (marked**2).sum(), marked.sum()))
        seen = found > np.maximum(_SEEN * deviation, 1.0 / self.noisy.records)
        return np.where(seen, found, 1.0), seen


def performance(wanted: Scored, noisy: Sequence[Noisy], *, probable: bool = True) -> list[Row]:
    """Everything that the released tables of a validation say: of all records, then group by group.

    ``probable`` says that scores are probabilities, which can be calibrated or not.
    """
    width, rows = len(wanted.first), list[Row]()
    for place, tables in enumerate((wanted.first, *wanted.by)):
        own = [projected(one) for one in noisy[place * width : (place + 1) * width]]
        if wanted.task == "regression":
            rows += number_rows(wanted, tables, own)
            continue
        parts = [list(_parts(table, one)) for table, one in zip(tables, own, strict=True)]
        for cells in zip(*parts, strict=True):
            if wanted.task == "survival":
                rows += _survival(tables[0], cells[0])
                continue
            rows += _binary(wanted, tables[0], cells[0], probable) if len(cells) == 1 else _several(wanted, *cells)
        rows += list(_gaps(rows, tables[0])) if place else []
    return rows


def own_performance(wanted: Scored, noisy: Sequence[Noisy], *, probable: bool = True) -> list[Row]:
    """What the tables of silos' own models say, and first what these gain over the shared model.

    Both models are counted on the same records. The table that compares them has the variance of their difference;
    concordances have none, and the interval of their difference allows for any dependence.
    """
    start, width = len(wanted.shared), len(wanted.first)
    rows = performance(wanted._replace(by=()), noisy[start : start + width], probable=probable)
    if wanted.task == "survival":
        shared = performance(wanted._replace(by=()), noisy[:width])
        one, other = (next(r for r in found if r.measure == CONCORDANCE) for found in (rows, shared))
        gain = Row("", "", OVER_SHARED, one.value - other.value, one.low - other.high, one.high - other.low)
    elif wanted.task == "regression":
        gain = square_gain(OVER_SHARED, wanted.residual, projected(noisy[-1]))
    else:
        # Cells are (whether the shared model is right, whether the silo's own is).
        [cells] = _parts(wanted.paired[0], projected(noisy[-1]))
        gain = _mean(cells, OVER_SHARED, np.array([0.0, 1.0, -1.0, 0.0]))
    return [gain, *rows]


def _parts(table: Table, noisy: Noisy) -> Iterator[Cells]:
    """The cells of each group; all of them where there are no groups."""
    if table.request.by is None:
        yield Cells("", noisy.cells, noisy)
        return
    groups, name = table.axes[0].cells, table.request.by
    shaped = noisy.cells.reshape(*noisy.cells.shape[:-1], len(groups), -1)
    for place, level in enumerate(groups):
        yield Cells(f"{name} = {level}", shaped[..., place, :], noisy)


def _row(
    cells: Cells, measure: str, values: Sequence[Any], seen: Any, whole: tuple[float, float], cell: str = ""
) -> Row:
    """A row; where too few records are seen, its value is not a number and its interval everything possible."""
    value, low, high = values
    found = np.where(seen, value, np.nan), np.where(seen, low, whole[0]), np.where(seen, high, whole[1])
    return Row(cells.group, cell, measure, *found)


def _share(cells: Cells, measure: str, part: np.ndarray, whole: np.ndarray, cell: str = "") -> Row:
    """The share of some cells among others, both marked by ones."""
    weight, seen = cells.weight(whole)
    share = (cells.shares * part).sum(axis=-1) / weight
    gradient = (part - share[..., None] * whole) / weight[..., None]
    noise = noise_variance(cells.noisy, (gradient**2).sum(axis=-1), gradient.sum(axis=-1))
    low, high = score_interval(share, noise, cells.noisy.records * weight)
    return _row(cells, measure, (np.clip(share, 0.0, 1.0), low, high), seen, (0.0, 1.0), cell)


def _mean(cells: Cells, measure: str, values: np.ndarray) -> Row:
    """The mean of a value of each cell, among the records of these cells; values lie between -1 and 1."""
    weight, seen = cells.weight(np.ones_like(values))
    mean = (cells.shares * values).sum(axis=-1) / weight
    half = Z * _error(cells, (values - mean[..., None]) / weight[..., None])
    return _row(cells, measure, (mean, mean - half, mean + half), seen, (-1.0, 1.0))


def _error(cells: Cells, gradient: np.ndarray) -> np.ndarray:
    """The standard error of a number with this gradient in the cells."""
    noise = noise_variance(cells.noisy, (gradient**2).sum(axis=-1), gradient.sum(axis=-1))
    square = (cells.shares * gradient**2).sum(axis=-1) - (cells.shares * gradient).sum(axis=-1) ** 2
    return np.sqrt(noise + np.maximum(square, 0.0) / cells.noisy.records)


def _binary(wanted: Scored, table: Table, cells: Cells, probable: bool) -> Iterator[Row]:
    """Of two classes: cells are (bin of the score, class)."""
    edges = np.asarray(table.axes[-2].edges)
    middle, starts = np.repeat((edges[1:] + edges[:-1]) / 2, 2), np.repeat(edges[:-1], 2)
    truth = np.tile([0.0, 1.0], len(edges) - 1)
    chosen, every = (starts >= wanted.threshold).astype(float), np.ones_like(truth)
    yield _share(cells, "share of class 1", truth, every)
    yield _share(cells, ACCURACY, truth * chosen + (1 - truth) * (1 - chosen), every)
    yield _gain(cells, truth * chosen + (1 - truth) * (1 - chosen), np.stack([1 - truth, truth]))
    yield _auc(cells)
    yield _share(cells, "sensitivity", truth * chosen, truth)
    yield _share(cells, "specificity", (1 - truth) * (1 - chosen), 1 - truth)
    yield _share(cells, "precision", truth * chosen, chosen)
    yield _share(cells, "selected", chosen, every)
    for said, marked in (("0", 1 - chosen), ("1", chosen)):
        for true, own in (("0", 1 - truth), ("1", truth)):
            yield _count(cells, f"predicted {said}, is {true}", marked * own)
    if probable:
        yield _mean(cells, "mean score less share of class 1", middle - truth)
        yield from _reliability(cells, starts, truth)


def _gain(cells: Cells, right: np.ndarray, classes: np.ndarray) -> Row:
    """Accuracy less that of the commonest class for all records: what a model is worth."""
    common = np.argmax(np.stack([(cells.shares * own).sum(axis=-1) for own in classes]), axis=0)
    return _mean(cells, GAIN, right - classes[common])


def _count(cells: Cells, cell: str, marked: np.ndarray) -> Row:
    """How many of these records are in the marked cells: the noise alone is unknown."""
    records = cells.noisy.records
    value = records * (cells.shares * marked).sum(axis=-1)
    half = Z * records * np.sqrt(noise_variance(cells.noisy, (marked**2).sum(), marked.sum()))
    return Row(cells.group, cell, "count", *(np.maximum(v, 0.0) for v in (value, value - half, value + half)))


def _reliability(cells: Cells, starts: np.ndarray, truth: np.ndarray) -> Iterator[Row]:
    """The share of class 1 by tenths of the score."""
    tenth = np.minimum(np.floor(starts * _COARSE + 1e-9), _COARSE - 1)
    for place in range(_COARSE):
        inside = (tenth == place).astype(float)
        if inside.any():
            name = f"score {place / _COARSE:g} to {(place + 1) / _COARSE:g}"
            yield _share(cells, "share of class 1", truth * inside, inside, name)


def _auc(cells: Cells) -> Row:
    """The chance that a record of class 1 has a higher score than one of class 0; of one bin counts half."""
    shaped = cells.shares.reshape(*cells.shares.shape[:-1], -1, 2)
    negative, positive = shaped[..., 0], shaped[..., 1]
    truth = np.tile([0.0, 1.0], shaped.shape[-2])
    (ones, seen), (zeros, seen_too) = cells.weight(truth), cells.weight(1 - truth)
    below = np.cumsum(negative, axis=-1) - negative / 2
    above = np.cumsum(positive[..., ::-1], axis=-1)[..., ::-1] - positive / 2
    area = (positive * below).sum(axis=-1) / (ones * zeros)
    by_one = below / (ones * zeros)[..., None] - (area / ones)[..., None]
    by_zero = above / (ones * zeros)[..., None] - (area / zeros)[..., None]
    gradient = np.stack([by_zero, by_one], axis=-1).reshape(cells.shares.shape)
    low, high = _by_odds(area, _error(cells, gradient))
    return _row(cells, AUC, (np.clip(area, 0.0, 1.0), low, high), seen & seen_too, (0.0, 1.0))


def _by_odds(value: np.ndarray, error: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The interval of a chance with this standard error, even in the logarithm of its odds."""
    inside = np.clip(value, 1e-3, 1 - 1e-3)
    odds, half = np.log(inside / (1 - inside)), Z * error / (inside * (1 - inside))
    low, high = (1 / (1 + np.exp(-np.clip(odds + sign * half, -500, 500))) for sign in (-1, 1))
    return low, high


def _survival(table: Table, cells: Cells) -> Iterator[Row]:
    """Of times: cells are (bin of the risk, bin of the time, whether the event was seen)."""
    shape = table.shape[-3:]
    shaped = cells.shares.reshape(*cells.shares.shape[:-1], *shape)
    yield _share(cells, "share with the event", np.tile([0.0, 1.0], shape[0] * shape[1]), np.ones(np.prod(shape)))
    yield _concordance(cells, shaped[..., 1], shaped.sum(axis=-1))


def _concordance(cells: Cells, events: np.ndarray, everyone: np.ndarray) -> Row:
    """Right pairs among those that can be compared; ``events`` and ``everyone`` are shares by (risk, time).

    Both numbers of pairs are sums of products of cells of different times, so that neither is larger or smaller for the
    noise on average. The error has the first order, and the variance of products of two noises.
    """
    after, before = _later(everyone), _earlier(events)
    beaten, beating = _lower(after), _lower(before[..., ::-1, :])[..., ::-1, :]
    right = _Pairs((events * beaten).sum(axis=(-2, -1)), np.stack([beating, beating + beaten], axis=-1))
    after, before = (np.broadcast_to(own.sum(-2, keepdims=True), events.shape) for own in (after, before))
    pairs = _Pairs((events * after).sum(axis=(-2, -1)), np.stack([before, before + after], axis=-1))
    risks, times = events.shape[-2:]
    # So many ordered pairs of cells, each once, by how their risks compare.
    fourth, flat = cells.noisy.noise**4 * times * (times - 1), cells.shares.shape
    slope = pairs.slope.reshape(flat)
    noise = noise_variance(cells.noisy, (slope**2).sum(axis=-1), slope.sum(axis=-1))
    seen = pairs.share > _SEEN * np.sqrt(noise + fourth * risks**2)
    whole = np.where(seen, pairs.share, 1.0)
    value = right.share / whole
    first = _error(cells, (right.slope - value[..., None, None, None] * pairs.slope).reshape(flat) / whole[..., None])
    found = np.clip(value, 0.0, 1.0)
    products = fourth * (risks * (risks - 1) / 2 * ((1 - found) ** 2 + found**2) + risks * (0.5 - found) ** 2)
    error = np.sqrt(first**2 + products / whole**2)
    return _row(cells, CONCORDANCE, (found, *_by_odds(value, error)), seen, (0.0, 1.0))


class _Pairs(NamedTuple):
    """A share of pairs of subjects, and its gradient in the cells of (risk, time, event)."""

    share: np.ndarray
    slope: np.ndarray


def _later(counts: np.ndarray) -> np.ndarray:
    """In each bin of time, the last axis: what comes in later ones."""
    return np.cumsum(counts[..., ::-1], axis=-1)[..., ::-1] - counts


def _earlier(counts: np.ndarray) -> np.ndarray:
    return np.cumsum(counts, axis=-1) - counts


def _lower(counts: np.ndarray) -> np.ndarray:
    """In each bin of risk: what has a lower one, and half of what has the same."""
    return np.cumsum(counts, axis=-2) - counts / 2


def _several(wanted: Scored, confusion: Cells, sure: Cells) -> Iterator[Row]:
    """Of several classes: cells are (predicted, class), and (probability of the predicted class, whether right)."""
    said, true = np.divmod(np.arange(wanted.classes**2), wanted.classes)
    right, every = (said == true).astype(float), np.ones(wanted.classes**2)
    classes = np.stack([(true == k).astype(float) for k in range(wanted.classes)])
    yield _share(confusion, ACCURACY, right, every)
    yield _gain(confusion, right, classes)
    for k in range(wanted.classes):
        yield _share(confusion, "sensitivity", right * classes[k], classes[k], f"class {k}")
        yield _share(confusion, "precision", right * (said == k), (said == k).astype(float), f"class {k}")
    for cell, (one, other) in enumerate(zip(said, true, strict=True)):
        yield _count(confusion, f"predicted {one}, is {other}", (np.arange(len(said)) == cell).astype(float))
    edges = np.asarray(wanted.first[1].axes[0].edges)
    middle = np.repeat((edges[1:] + edges[:-1]) / 2, 2)
    hit = np.tile([0.0, 1.0], len(edges) - 1)
    yield _mean(sure, "mean probability less accuracy", middle - hit)


def _gaps(rows: Sequence[Row], table: Table) -> Iterator[Row]:
    """The largest difference between two listed groups that are seen, of each measure that fairness is about."""
    levels = [f"{table.request.by} = {level}" for level in table.axes[0].column.levels]
    for measure in ("selected", "sensitivity", "specificity", ACCURACY):
        own = [row for row in rows if row.group in levels and row.measure == measure and not row.cell]
        if len(own) >= 2:
            yield _gap(f"{table.request.by}", measure, own)


def _gap(name: str, measure: str, rows: Sequence[Row]) -> Row:
    """The largest difference; the errors of groups are independent. With few groups its interval is 95%, or more."""
    values = np.stack([np.where(np.isfinite(row.value), row.value, np.nan) for row in rows])
    known = np.isfinite(values).sum(axis=0) >= 2
    top = np.argmax(np.where(np.isfinite(values), values, -np.inf), axis=0)
    least = np.argmin(np.where(np.isfinite(values), values, np.inf), axis=0)
    halves = np.stack([(row.high - row.low) / 2 for row in rows])
    pick = lambda table, place: np.take_along_axis(table, place[None], 0)[0]  # noqa: E731
    gap = pick(values, top) - pick(values, least)
    half = np.sqrt(pick(halves, top) ** 2 + pick(halves, least) ** 2)
    found = np.where(known, gap, np.nan), np.where(known, np.maximum(gap - half, 0.0), 0.0)
    return Row(name, "largest difference", measure, *found, np.where(known, np.minimum(gap + half, 1.0), 1.0))
