"""Statistics as plain data and as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tacit.counting.estimate import Hypothesis, Row
from tacit.counting.request import Table

_MEASURES = {"counts": "share", "histogram": "share", "table": "share", "moments": "mean"}
"""The measure of a kind that a picture shows, where there are several."""


def statistic_json(table: Table, rows: Sequence[Row], tests: Sequence[Hypothesis], noise: float) -> dict[str, Any]:
    """One statistic: what was asked, the deviation of the noise in a cell's share, and every number with its interval.

    A value is ``None`` where too few records are seen to say anything.
    """
    request = table.request
    return {
        "title": request.title,
        "kind": request.kind,
        "columns": list(request.columns),
        "by": request.by,
        "unit": table.axes[-1].column.unit,
        "ranges": {axis.column.name: list(axis.column.range) for axis in table.axes if axis.column.kind == "number"},
        "noise": noise,
        "rows": [
            {
                "group": row.group or None,
                "cell": row.cell,
                "measure": row.measure,
                "value": _number(row.value),
                "low": _number(row.low),
                "high": _number(row.high),
            }
            for row in rows
        ],
        "tests": [
            {"test": t.name, "statistic": _number(t.statistic), "freedom": t.freedom, "p_value": _number(t.p_value)}
            for t in tests
        ],
    }


def _number(value: np.ndarray) -> float | None:
    found = float(value)
    return found if math.isfinite(found) else None


def draw(tables: Sequence[Table], rows: Sequence[Sequence[Row]], path: Path, title: str) -> None:
    """Draw every statistic with its intervals to ``path``."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to import, so only when asked for
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2 * len(tables)), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    panels = figure.subplots(len(tables), squeeze=False)[:, 0]
    for axes, table, own in zip(panels, tables, rows, strict=True):
        shown = [row for row in own if row.measure == _MEASURES.get(table.request.kind, row.measure)]
        curve = table.request.kind == "survival"
        for group in dict.fromkeys(row.group for row in shown):
            (_curve if curve else _bars)(axes, group, [row for row in shown if row.group == group])
        axes.set_title(table.request.title, fontsize="medium")
        axes.set_ylabel(shown[0].measure if shown else "")
        axes.spines[["top", "right"]].set_visible(False)
        if table.request.by is not None:
            axes.legend(title=table.request.by, frameon=False, fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _bars(axes: Any, group: str, rows: Sequence[Row]) -> None:
    """Points with intervals; a value that is not told has its interval alone."""
    values, lows, highs = (np.array([float(getattr(row, part)) for row in rows]) for part in ("value", "low", "high"))
    middle = np.where(np.isfinite(values), values, (lows + highs) / 2)
    error = np.maximum(np.stack([middle - lows, highs - middle]), 0.0)
    axes.errorbar([row.cell for row in rows], middle, yerr=error, fmt="o", capsize=3, label=group or None)
    axes.tick_params(axis="x", labelrotation=30)


def _curve(axes: Any, group: str, rows: Sequence[Row]) -> None:
    """A survival curve with its band, as far as it is seen."""
    seen = [row for row in rows if np.isfinite(row.value)]
    times = [0.0, *(float(row.cell) for row in seen)]
    [line] = axes.step(times, [1.0, *(float(row.value) for row in seen)], where="post", label=group or None)
    low, high = [1.0, *(float(row.low) for row in seen)], [1.0, *(float(row.high) for row in seen)]
    axes.fill_between(times, low, high, step="post", alpha=0.2, color=line.get_color())
    axes.set_ylim(0, 1.02)
