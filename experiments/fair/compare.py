"""Trade-off curves side by side: areas, and violations at equal error."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.common import interval

Spot = tuple[float, float]
RESAMPLED = 200


def points_of(cell: Mapping[str, Any]) -> list[tuple[dict[str, float], dict[str, float]]]:
    """Mean and interval of error and violation at each dial."""
    return [(interval(e), interval(v)) for e, v in zip(cell["error"], cell["violation"], strict=True)]


def means_of(cell: Mapping[str, Any]) -> list[Spot]:
    """Mean error and violation at each dial."""
    errors, violations = (np.asarray(cell[name]).mean(axis=1).tolist() for name in ("error", "violation"))
    return list(zip(errors, violations, strict=True))


def joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Two curves of one method as one, for each budget."""
    lists = ("dials", "error", "violation", "by_chance")
    return {
        epsilon: {
            **cell,
            "setting": [cell["setting"], second[epsilon]["setting"]],
            "second_choice": second[epsilon].get("choice"),
            **{k: [*cell[k], *second[epsilon][k]] for k in lists},
        }
        for epsilon, cell in first.items()
    }


def dominated(spots: Sequence[Spot], corner: Sequence[float]) -> float:
    """The area of errors and violations that some point is better than, up to a corner of no use.

    The corner has the error of a classifier that says the same of everybody and the violation of one that does not care
    about fairness. Counting errors alone would favour settings that ignore the dial, counting violations alone those
    that say the same of everybody.

    >>> round(dominated([(0.1, 0.2), (0.2, 0.1)], (0.3, 0.3)), 6)
    0.03
    """
    area, lowest = 0.0, corner[1]
    ordered = sorted((e, v) for e, v in spots if e < corner[0])
    for (error, violation), (until, _) in itertools.pairwise([*ordered, (corner[0], 0.0)]):
        lowest = min(lowest, violation)
        area += (until - error) * (corner[1] - lowest)
    return area


def least_violation(cell: Mapping[str, Any], error: float) -> float | None:
    """The least mean violation of a curve at an error of at most this, on the straight lines between its points.

    ``None`` where the curve has no point at so small an error.
    """
    return _least(sorted(means_of(cell)), error)


def _least(spots: Sequence[Spot], error: float) -> float | None:
    reached = [v for e, v in spots if e <= error]
    for (e0, v0), (e1, v1) in itertools.pairwise(spots):
        if e0 <= error < e1:
            reached.append(v0 + (v1 - v0) * (error - e0) / (e1 - e0))
    return min(reached) if reached else None


def pairs(ours: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[list[Spot], int, int]:
    """Least violations (ours, theirs) at the error of each point of either curve.

    Both sides take the best that their curve has at this error or below. Also how many of these errors only the other
    curve reaches, and how many only ours.
    """
    found, theirs_alone, ours_alone = [], 0, 0
    curves = [sorted(means_of(cell)) for cell in (ours, other)]
    for error, _ in (*means_of(ours), *means_of(other)):
        own, theirs = (_least(spots, error) for spots in curves)
        if own is not None and theirs is not None:
            found.append((own, theirs))
        theirs_alone += own is None
        ours_alone += theirs is None
    return found, theirs_alone, ours_alone


def headline(panels: Mapping[str, Any], other: str) -> dict[str, float]:
    """By how much the violation of SteFFLe lies below another method's at equal error, over budgets and h.

    ``mean`` averages over points (as the paper seems to), ``total`` divides sums, so that points where the other
    violation is small weigh little. Errors that only one side reaches are counted, not compared.
    """
    met: list[Spot] = []
    alone = np.zeros(2, int)
    for curves in panels.values():
        for epsilon, cell in curves["SteFFLe"].items():
            found, *rest = pairs(cell, curves[other][epsilon])
            met += [pair for pair in found if pair[1] > 0]
            alone += rest
    counts = {"points": len(met), "theirs_alone": int(alone[0]), "ours_alone": int(alone[1])}
    if not met:
        return {"mean": float("nan"), "total": float("nan"), **counts}
    own, theirs = (np.asarray(side) for side in zip(*met, strict=True))
    return {"mean": float(np.mean(1 - own / theirs)), "total": float(1 - own.sum() / theirs.sum()), **counts}


def spread(pages: Sequence[Mapping[str, Any]], other: str) -> dict[str, list[float]]:
    """A 90% interval for both shares of `headline`, averaged over pages: seeds are drawn again, alike for all curves.

    Seeds are splits and noise that all curves of a page share.
    """
    generator, drawn = np.random.default_rng(0), []
    for _ in range(RESAMPLED):
        each = [headline(_drawn(panels, other, generator), other) for panels in pages]
        drawn.append([np.nanmean([one[name] for one in each]) for name in ("mean", "total")])
    low, high = np.nanquantile(np.asarray(drawn), (0.05, 0.95), axis=0)
    return {"mean": [float(low[0]), float(high[0])], "total": [float(low[1]), float(high[1])]}


def _drawn(panels: Mapping[str, Any], other: str, generator: np.random.Generator) -> dict[str, Any]:
    """The curves of SteFFLe and another method on as many seeds, drawn with repetition."""
    seeds = len(next(iter(next(iter(panels.values()))["SteFFLe"].values()))["error"][0])
    taken = generator.integers(0, seeds, seeds)

    def again(cell: Mapping[str, Any]) -> dict[str, Any]:
        return {name: np.asarray(cell[name])[:, taken] for name in ("error", "violation")}

    return {
        level: {name: {e: again(cell) for e, cell in curves[name].items()} for name in ("SteFFLe", other)}
        for level, curves in panels.items()
    }
