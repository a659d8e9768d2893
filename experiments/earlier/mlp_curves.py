"""Tables and figures of error against epsilon, of results with one tuning seed and grids of their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from experiments.common import Rows, epsilon_axis
from experiments.folder import save, table

EPSILONS = (0.75, 1.0, 1.5, 3.0, 6.0, 12.0, 18.0)


@dataclass(frozen=True)
class Arm:
    """One algorithm with its static parameters, and the points that are tried at each budget.

    A point has a ``clip_norm``, a ``move`` (step size x clip: how far a clipped gradient moves the model) and own
    numbers. ``paper`` are further terms of the theorem that prices it, where there is one.
    """

    label: str
    algorithm: str
    static: dict[str, Any]
    points: Callable[[float], list[dict[str, float]]]
    paper: dict[str, Any] | None = None


def family(
    phases: Sequence[int],
    plain: Callable[[float], list[dict[str, float]]],
    reduced: Callable[[float], list[dict[str, float]]],
    local: Callable[[float], list[dict[str, float]]],
    local_batches: dict[str, Any] | None = None,
) -> dict[str, Arm]:
    """Minibatch SGD, SPIDER with each phase length, SVRG with the last, and Local SGD with 4 steps, by label."""
    last = phases[-1]
    made = [
        Arm("MB-SGD", "mb-sgd", {"output": "last"}, plain, {"sampling": "full"}),
        *(Arm(f"SPIDER q={q}", "prox-spider", {"phase_length": q}, reduced, {}) for q in phases),
        Arm(f"SVRG q={last}", "prox-svrg", {"phase_length": last}, reduced),
        Arm("Local SGD", "local-sgd", {"local_steps": 4, **(local_batches or {})}, local),
    ]
    return {arm.label: arm for arm in made}


def shown_of(curves: dict[str, Rows], phases: Sequence[int]) -> dict[str, Rows]:
    """The lines of a figure of a `family`.

    At each budget SPIDER is that of the least validation error: one more choice that test records do not see.
    """
    spiders = zip(*(curves[f"SPIDER q={q}"] for q in phases), strict=True)
    best = [min(rows, key=lambda row: row["validation_error"]) for rows in spiders]
    shown = {"MB-SGD": curves["MB-SGD"], "SPIDER": best}
    return {**shown, "SVRG": curves[f"SVRG q={phases[-1]}"], "Local SGD": curves["Local SGD"]}


def counted(gains: Sequence[dict[str, float]]) -> dict[str, int]:
    """In how many cells the error is smaller, and larger, beyond the 90% interval."""
    better = sum(gain["mean"] + gain["half90"] < 0 for gain in gains)
    worse = sum(gain["mean"] - gain["half90"] > 0 for gain in gains)
    return {"better": better, "worse": worse, "cells": len(gains)}


def draw_panels(path: Path, panels: dict[str, tuple[dict[str, Rows], dict[str, float]]]) -> None:
    """Error against epsilon with error bars, one panel for each title; dotted lines are not private."""
    width = min(2, len(panels))
    rows = math.ceil(len(panels) / width)
    figure, axes = plt.subplots(rows, width, figsize=(6 * width, 4 * rows), layout="constrained", squeeze=False)
    for axis, (title, (curves, floors)) in zip(axes.flat, panels.items(), strict=False):
        _draw_on(axis, title, curves, floors)
    save(figure, path)


def _draw_on(axis: Axes, title: str, curves: dict[str, Rows], floors: dict[str, float]) -> None:
    for place, (label, rows) in enumerate(curves.items()):
        errors = [row["test_error"] for row in rows]
        means, spreads = [e["mean"] for e in errors], [e["std"] for e in errors]
        look: dict[str, Any] = {"ls": "--" if "theorem" in label else "-", "marker": "o", "ms": 3, "capsize": 2}
        axis.errorbar([row["epsilon"] for row in rows], means, spreads, label=label, color=f"C{place}", **look)
    for place, (label, error) in enumerate(floors.items()):
        axis.axhline(error, ls=":", lw=1, color=f"C{place}", label=f"{label}, not private")
    axis.set(ylabel="test error (%)", title=title)
    epsilon_axis(axis, _epsilons(curves))
    axis.legend(fontsize=7)


def error_table(curves: dict[str, Rows], floors: dict[str, float]) -> str:
    """Rows of test errors with their deviation over seeds."""
    rows = []
    for label, row in curves.items():
        cells = [f"{r['test_error']['mean']:.2f} ({r['test_error']['std']:.2f})" for r in row]
        rows.append([label, f"{floors[label]:.2f}" if label in floors else "", *cells])
    return table(["algorithm", "not private", *(f"{e:g}" for e in _epsilons(curves))], rows)


def difference_table(title: str, gains: dict[str, list[dict[str, float]]], epsilons: Sequence[float]) -> str:
    """Rows of differences that `paired` found, with 90% intervals."""
    rows = [[label, *(f"{g['mean']:+.2f} +- {g['half90']:.2f}" for g in row)] for label, row in gains.items()]
    return table([title, *(f"{e:g}" for e in epsilons)], rows)


def _epsilons(curves: dict[str, Rows]) -> list[float]:
    return [row["epsilon"] for row in next(iter(curves.values()))]
