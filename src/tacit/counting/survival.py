"""Survival from counts by (group, time, event): Kaplan-Meier curves by life tables, and the log-rank test.

In the bin j of time d_j subjects have their event and c_j are last seen without it, half of the bin long on average:

    at risk      R_j = sum over k >= j of (d_k + c_k), and those beyond the last edge, less c_j / 2
    survival     S after bin J = product over j <= J of (1 - d_j / R_j)
    log-rank     U_g = sum over j of (d_gj - R_gj d_j / R_j),      U^T (V + W)^-1 U ~ chi^2 with groups - 1

V is the usual (hypergeometric) covariance and W that of the noise, by the derivative of U in every cell. A curve ends
where the number at risk is not seen beyond its noise, and so does the sum of the test.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats

from tacit.counting.request import Table

_SEEN = 4.0  # at risk, in deviations of its noise
_FEWEST = 5.0  # subjects at risk, for a curve to go on


class _LifeTable:
    """The cells of a survival table as numbers of subjects: events and censored by (group, bin), and those beyond."""

    def __init__(self, table: Table, cells: np.ndarray, records: int) -> None:
        time = table.axes[-2]
        self.bins = time.inner
        shape = table.shape if table.request.by else (1, *table.shape)
        self.groups = table.axes[0].cells if table.request.by else ("",)
        self.known = len(table.axes[0].column.levels) if table.request.by else 1
        counts = cells.reshape(*cells.shape[:-1], *shape) * records
        self.events, self.censored = counts[..., : self.bins, 1], counts[..., : self.bins, 0]
        self.beyond = counts[..., self.bins + time.below, :2].sum(axis=-1)
        low, high = time.column.range
        self.times = [low + (high - low) * edge for edge in time.edges]
        # Entry (j, k): what one of bin k adds to those at risk in bin j, as an event and as censored.
        later = np.triu(np.ones((self.bins, self.bins)))
        self.of_events, self.of_censored = later, later - 0.5 * np.eye(self.bins)

    @property
    def at_risk(self) -> np.ndarray:
        """By (group, bin)."""
        seen = self.events @ self.of_events.T + self.censored @ self.of_censored.T
        return seen + self.beyond[..., None]

    def risk_cells(self) -> np.ndarray:
        """The sum of squares of what cells count in those at risk, by bin, for one group."""
        return (self.of_events**2 + self.of_censored**2).sum(axis=1) + 2.0


def _open(at_risk: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """Whether the number at risk is seen, in this bin and all before."""
    return np.logical_and.accumulate(at_risk > np.maximum(_SEEN * deviation, _FEWEST), axis=-1)


def survival_rows(
    table: Table, cells: np.ndarray, noise: float, records: int, z: float
) -> list[tuple[str, str, tuple[np.ndarray, np.ndarray, np.ndarray]]]:
    """Survival at every edge, group by group, with its interval; NaN and [0, 1] where too few are at risk."""
    life = _LifeTable(table, cells, records)
    deviation = noise * records
    rows = []
    for place, group in enumerate(life.groups):
        events, censored = life.events[..., place, :], life.censored[..., place, :]
        at_risk = life.at_risk[..., place, :]
        seen = _open(at_risk, deviation * np.sqrt(life.risk_cells()))
        safe = np.where(seen, at_risk, 1.0)
        left = np.where(seen, np.maximum(at_risk - events, 0.5), 1.0)
        beyond = life.beyond[..., place]
        error = _log_error(life, left, safe, (events, censored, beyond), deviation, cells.shape[-1])
        survival = np.exp(np.cumsum(np.log(left / safe), axis=-1))
        value = np.minimum.accumulate(np.clip(survival, 0.0, 1.0), axis=-1)
        low, high = (np.clip(survival * (1 + sign * z * error), 0.0, 1.0) for sign in (-1, 1))
        for j in range(life.bins):
            here = seen[..., j]
            found = (np.where(here, value[..., j], np.nan), np.where(here, low[..., j], 0.0))
            rows.append((group, f"{life.times[j + 1]:g}", (*found, np.where(here, high[..., j], 1.0))))
    return rows


def _log_error(
    life: _LifeTable, left: np.ndarray, safe: np.ndarray, counts: Any, deviation: float, cells: int
) -> np.ndarray:
    """The standard error of log S after each bin: of sampling, as Greenwood's, and of the noise.

    log S sums log(R_j - d_j) - log R_j. Its derivative in a cell is summed over bins; that of the cells with any
    constant is zero, so that a multinomial sample has variance sum of (derivative^2 x count).
    """
    events, censored, beyond = counts
    per_event = (life.of_events - np.eye(life.bins)) / left[..., :, None] - life.of_events / safe[..., :, None]
    per_censored = life.of_censored * (1 / left - 1 / safe)[..., :, None]
    by_event, by_censored = np.cumsum(per_event, axis=-2), np.cumsum(per_censored, axis=-2)
    by_beyond = np.cumsum(1 / left - 1 / safe, axis=-1)
    sampling = np.einsum("...jk,...k->...j", by_event**2, np.maximum(events, 0.0))
    sampling = sampling + np.einsum("...jk,...k->...j", by_censored**2, np.maximum(censored, 0.0))
    sampling = sampling + by_beyond**2 * np.maximum(beyond, 0.0)[..., None]
    squares = (by_event**2).sum(-1) + (by_censored**2).sum(-1) + 2.0 * by_beyond**2
    total = by_event.sum(-1) + by_censored.sum(-1) + 2.0 * by_beyond
    return np.sqrt(sampling + deviation**2 * np.maximum(squares - total**2 / cells, 0.0))


def logrank(table: Table, cells: np.ndarray, noise: float, records: int) -> tuple[np.ndarray, int, np.ndarray]:
    """The log-rank statistic of the listed groups, its degrees of freedom, and the p-value; noise is accounted for."""
    life = _LifeTable(table, cells, records)
    events, at_risk = life.events[..., : life.known, :], life.at_risk[..., : life.known, :]
    deviation = noise * records * np.sqrt(life.risk_cells())
    used = _open(at_risk.sum(axis=-2), deviation * np.sqrt(life.known))
    risk = np.where(used, at_risk.sum(axis=-2), 1.0)
    total = np.where(used, events.sum(axis=-2), 0.0)
    share = np.where(used[..., None, :], at_risk / risk[..., None, :], 0.0)
    excess = (np.where(used[..., None, :], events, 0.0) - share * total[..., None, :]).sum(axis=-1)
    spread = total * np.clip((risk - total) / np.maximum(risk - 1, 1.0), 0.0, 1.0)
    both = np.eye(life.known)[:, :, None] * share[..., :, None, :] - share[..., :, None, :] * share[..., None, :, :]
    covariance = np.einsum("...ghj,...j->...gh", both, spread)
    covariance = covariance + (noise * records) ** 2 * _noise_gram(life, used, share, total / risk, cells.shape[-1])
    free = life.known - 1
    matrix = covariance[..., :free, :free]
    least = 1e-9 + 1e-6 * np.abs(np.trace(matrix, axis1=-2, axis2=-1))[..., None, None]
    solved = np.linalg.solve(matrix + least * np.eye(free), excess[..., :free, None])[..., 0]
    statistic = np.maximum((excess[..., :free] * solved).sum(axis=-1), 0.0)
    return statistic, free, stats.chi2.sf(statistic, free)


def _noise_gram(life: _LifeTable, used: np.ndarray, share: np.ndarray, hazard: np.ndarray, cells: int) -> np.ndarray:
    """J (I - 1 1^T / K) J^T for the derivative J of U in the cells of the groups; axes (group, group)."""
    groups = np.eye(life.known)
    # dU_g: -(sum over j of what a cell (h, k) adds to R_j) (delta_gh - R_gj/R_j) d_j/R_j, and directly by an event.
    apart = (groups[:, :, None] - share[..., :, None, :]) * np.where(used, hazard, 0.0)[..., None, None, :]
    by_event = -np.einsum("...ghj,jk->...ghk", apart, life.of_events)
    by_event = by_event + (groups[:, :, None] - share[..., :, None, :]) * used[..., None, None, :]
    by_censored = -np.einsum("...ghj,jk->...ghk", apart, life.of_censored)
    by_beyond = -apart.sum(axis=-1, keepdims=True)
    parts = np.concatenate([by_event, by_censored, by_beyond, by_beyond], axis=-1)
    flat = parts.reshape(*parts.shape[:-2], -1)
    sums = flat.sum(axis=-1)
    return flat @ np.swapaxes(flat, -1, -2) - sums[..., :, None] * sums[..., None, :] / cells
