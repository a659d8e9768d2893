"""A validation as plain data and as a picture, in the words and units of the target."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tacit.counting.estimate import Row
from tacit.counting.performance import ACCURACY, AUC, CONCORDANCE, GAIN, OVER_SHARED
from tacit.counting.residuals import BIAS, R2, RMSE

Plain = Mapping[str, Any]
MAIN = (OVER_SHARED, ACCURACY, AUC, GAIN, RMSE, R2, BIAS, CONCORDANCE)
"""The numbers that people look at first."""


def plain_rows(
    rows: Sequence[Row], *, classes: Sequence[str] = (), scale: tuple[float, float] | None = None
) -> list[dict[str, Any]]:
    """Rows with the names of classes and in the target's unit; a value is ``None`` where too few records are seen."""
    low, high = scale or (0.0, 1.0)
    # Numbers gain in the square of their unit; classes have no scale.
    units = {RMSE: high - low, BIAS: high - low, OVER_SHARED: (high - low) ** 2}
    found = []
    for row in rows:
        times = units.get(row.measure, 1.0)
        numbers = {key: _number(float(getattr(row, key)) * times) for key in ("value", "low", "high")}
        words = {"group": row.group or None, "cell": _named(row.cell, classes), "measure": _named(row.measure, classes)}
        found.append({**words, **numbers})
    return found


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _named(text: str, classes: Sequence[str]) -> str:
    """The names of classes for their positions.

    >>> _named("predicted 1, is 0", ["no", "yes"]), _named("share of class 1", ["no", "yes"])
    ('predicted yes, is no', 'share of yes')
    """

    def name(found: re.Match[str]) -> str:
        place = int(found[2])
        before = "" if found[1] == "class " else found[1]
        return f"{before}{classes[place]}" if place < len(classes) else found[0]

    return re.sub(r"(predicted |is |class )(\d+)\b", name, text)


def main_row(rows: Sequence[Plain], measure: str) -> Plain | None:
    """The row of all records of a measure."""
    return next((row for row in rows if row["measure"] == measure and not row["group"] and not row["cell"]), None)


def gained(rows: Sequence[Plain]) -> bool | None:
    """Whether a model is better than the best constant: by its interval, none where that does not say.

    The best constant is the commonest class, the mean, or one risk for all, whose concordance is a half. Where the
    commonest class is hard to beat, an area under the curve that is above a half with its whole interval counts as a
    gain too.
    """
    verdicts = []
    for measure, even in ((GAIN, 0.0), (AUC, 0.5), (R2, 0.0), (CONCORDANCE, 0.5)):
        row = main_row(rows, measure)
        if row is not None and row["value"] is not None:
            low = row["low"] is not None and row["low"] > even
            high = row["high"] is not None and row["high"] < even
            verdicts.append(True if low else False if high else None)
    if True in verdicts:
        return True
    return False if False in verdicts else None


def gained_over_shared(rows: Sequence[Plain]) -> bool | None:
    """Whether a silo's own model is better than the shared one there: by its interval, none where that does not say."""
    row = main_row(rows, OVER_SHARED)
    if row is None or row["value"] is None:
        return None
    return True if row["low"] > 0 else False if row["high"] < 0 else None


def own_verdict(facts: Plain) -> str | None:
    """Whether every silo gains from its own model, in a sentence; none where nobody asked."""
    if facts.get("own") is None:
        return None
    known = [silo for silo in facts["silos"] if silo["own"] is not None]
    without = [silo["name"] for silo in facts["silos"] if silo["own"] is None]
    by = {answer: [s["name"] for s in known if s["own"]["gained"] is answer] for answer in (True, False, None)}
    if known and len(by[True]) == len(known):
        told = ["Every silo's own model is better there than the shared one."]
    else:
        told = [f"The silo's own model is seen to be better than the shared one at {_listed(by[True])}."]
        told += [f"The shared one is better at {_listed(by[False])}."] if by[False] else []
        told += [f"Noise and few records leave it open at {_listed(by[None])}."] if by[None] else []
    told += [f"No model of its own has {_listed(without)}."] if without else []
    return " ".join(told)


def verdict(facts: Plain) -> str:
    """Whether every silo has gained, in a sentence."""
    known = [silo for silo in facts["silos"] if silo["numbers"] is not None]
    if not known:
        words = {True: "The model is", False: "The model is not", None: "It is not clear whether the model is"}
        return (
            f"{words[facts['gained']]} better than the best constant over all silos. Sums tell nothing of each alone."
        )
    by = {answer: [silo["name"] for silo in known if silo["gained"] is answer] for answer in (True, False, None)}
    if len(by[True]) == len(known):
        return "Every silo gains: at each the model is better than the best constant."
    told = [f"A gain over the best constant is seen at {_listed(by[True])}."]
    told += [f"A loss is seen at {_listed(by[False])}."] if by[False] else []
    told += [f"Noise and few records leave it open at {_listed(by[None])}."] if by[None] else []
    return " ".join(told)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "no silo"


def draw(facts: Plain, path: Path) -> None:
    """Draw the first numbers silo by silo, and how calibrated scores are, to ``path``."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to import, so only when asked for
    from matplotlib.figure import Figure

    measures = [measure for measure in (ACCURACY, AUC, R2, RMSE, CONCORDANCE) if main_row(facts["numbers"], measure)]
    bins = [row for row in facts["numbers"] if row["cell"].startswith("score ") and not row["group"]]
    figure = Figure(figsize=(4.2 * (len(measures) + bool(bins)), 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(measures) + bool(bins), squeeze=False)[0]
    parts = [{"name": "all", **facts}, *(silo for silo in facts["silos"] if silo["numbers"])]
    for axes, measure in zip(panels, measures, strict=False):
        for place, part in enumerate(parts):
            _point(axes, place, main_row(part["numbers"], measure))
            _point(axes, place + 0.2, main_row((part["own"] or {"numbers": ()})["numbers"], measure), "C1")
        axes.set_xticks(range(len(parts)), [part["name"] for part in parts], rotation=30)
        axes.set_title(measure)
    if bins:
        for place, row in enumerate(bins):
            _point(panels[-1], place / 10 + 0.05, row)
        panels[-1].plot([0, 1], [0, 1], lw=0.8, color="gray")
        panels[-1].set_title("calibration")
        panels[-1].set_xlabel("score")
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(facts["study"] + (", orange: silos' own models" if facts["own"] else ""))
    figure.savefig(path, dpi=150)


def _point(axes: Any, place: float, row: Plain | None, color: str = "C0") -> None:
    """A value with its interval, where it is known."""
    if row is not None and row["value"] is not None and row["low"] is not None and row["high"] is not None:
        error = [[max(row["value"] - row["low"], 0.0)], [max(row["high"] - row["value"], 0.0)]]
        axes.errorbar([place], [row["value"]], yerr=error, fmt="o", capsize=3, color=color)
