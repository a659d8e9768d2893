"""From released statistics to ranges of numbers, by which the features of a study that follows are scaled.

    moments      mean - 3 deviations to mean + 3 deviations
    quantiles    the first less 1.5 times the distance between first and last, to the last and as much more
    histogram    from the first to the last cell that holds a hundredth of records by its whole interval

All stay within the declared range. This is post-processing of what was released with noise, and costs nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tacit.counting.request import StatisticsError

_SPREADS, _FENCES, _LEAST_SHARE = 3.0, 1.5, 0.01
_LEAST_WIDTH = 0.01  # of the declared range: noise alone must not make a range of nothing


def ranges_of(facts: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """The ranges that statistics (`tacit.studies.statistics.statistics_json`) have found, by column.

    A column of which several were asked has the range of the first; groups are not told apart, and leave none.
    """
    found: dict[str, tuple[float, float]] = {}
    for one in facts["statistics"] or ():
        reader = {"moments": _by_moments, "quantiles": _by_quantiles, "histogram": _by_cells}.get(one["kind"])
        if reader is None or one["by"] is not None:
            continue
        [name] = one["columns"]
        told = reader(one["rows"])
        if told is not None and name not in found:
            found[name] = _within(told, one["ranges"][name])
    if not found:
        raise StatisticsError(
            "Expected moments, quantiles or a histogram of a number, without groups, to find a range of; ask for one."
        )
    return found


def _within(told: tuple[float, float], declared: Sequence[float]) -> tuple[float, float]:
    low, high = declared
    least = _LEAST_WIDTH * (high - low)
    middle = min(max(sum(told) / 2, low + least / 2), high - least / 2)
    return max(low, min(told[0], middle - least / 2)), min(high, max(told[1], middle + least / 2))


def _by_moments(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float] | None:
    values = {row["measure"]: row["value"] for row in rows}
    mean, spread = values["mean"], values["standard deviation"]
    return None if mean is None or spread is None else (mean - _SPREADS * spread, mean + _SPREADS * spread)


def _by_quantiles(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float] | None:
    values = [row["value"] for row in sorted(rows, key=lambda row: float(row["cell"]))]
    if None in values or len(values) < 2:
        return None
    more = _FENCES * (values[-1] - values[0])
    return values[0] - more, values[-1] + more


def _by_cells(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float] | None:
    shares = [row for row in rows if row["measure"] == "share" and " to " in row["cell"]]
    held = [row["cell"] for row in shares if row["value"] is not None and row["low"] > _LEAST_SHARE]
    if not held:
        return None
    return float(held[0].split(" to ")[0]), float(held[-1].split(" to ")[1])
