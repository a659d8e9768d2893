"""Figures of the fairness experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from tacit.objectives.fairness import Notion
from tacit.studies.papers.common import interval
from tacit.studies.papers.fair_compare import points_of

_SAID: dict[str, str] = {
    "demographic-parity": "violation of demographic parity",
    "equalized-odds": "violation of equalized odds",
}


def plot_curves(
    path: Path, panels: Mapping[str, Any], notion: Notion, epsilons: Sequence[float], constant: float
) -> None:
    """Error against violation: a row for each heterogeneity, a column for each budget, up to the constant error."""
    size = (4.4 * len(epsilons), 3.8 * len(panels))
    figure, axes = plt.subplots(
        len(panels), len(epsilons), figsize=size, squeeze=False, sharey=True, layout="constrained"
    )
    for row, (level, curves) in zip(axes, panels.items(), strict=True):
        for axis, epsilon in zip(row, epsilons, strict=True):
            for number, (name, values) in enumerate(curves.items()):
                cell = values.get(str(epsilon), values.get("None"))
                style = {"marker": "o", "color": f"C{number}", "linestyle": "-" if str(epsilon) in values else ":"}
                _line(axis, cell, name, style)
            axis.set(title=f"epsilon = {epsilon:g}, h = {level}", xlabel="test error")
            _end(axis, constant)
        row[0].set_ylabel(_SAID[notion])
    axes[0][-1].legend(fontsize=6)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def plot_printed(path: Path, printed: Mapping[str, Any], curves: Mapping[str, Any], constant: float) -> None:
    """For each claimed budget, the printed noise at its true one beside ours at all budgets."""
    figure, axes = plt.subplots(1, len(printed), figsize=(4.4 * len(printed), 3.8), sharey=True, layout="constrained")
    for axis, (epsilon, cell) in zip(np.atleast_1d(axes), printed.items(), strict=True):
        for number, (own, ours) in enumerate(curves["SteFFLe"].items()):
            style = {"marker": "o", "color": f"C{number}", "linestyle": "-" if own == epsilon else "--"}
            _line(axis, ours, f"ours, certified epsilon = {float(own):g}", style)
        label = f"printed noise, certified epsilon = {cell['epsilon_certified']:.3g}"
        _line(axis, cell, label, {"marker": "x", "color": "black", "linestyle": ":"})
        axis.set(title=f"claimed epsilon = {float(epsilon):g}, h = 0.75", xlabel="test error")
        axis.legend(fontsize=7)
        _end(axis, constant)
    np.atleast_1d(axes)[0].set_ylabel(_SAID["demographic-parity"])
    figure.savefig(path, dpi=130)
    plt.close(figure)


def plot_sweeps(path: Path, sweeps: Mapping[str, Any]) -> None:
    """Error and violation against heterogeneity and against the number of silos."""
    figure, axes = plt.subplots(2, 2, figsize=(9, 6.4), sharex="col", layout="constrained")
    lines = [(0, sweeps["levels"], sweeps["by_level"], "N = 3", 0)]
    lines += [(1, sweeps["silos"], cells, f"h = {h}", 1 + i) for i, (h, cells) in enumerate(sweeps["by_silos"].items())]
    for column, at, cells, label, colour in lines:
        for axis, name in zip(axes[:, column], ("error", "parity_gap"), strict=True):
            spots = [interval(np.asarray(cell[name])) for cell in cells]
            means, bars = [s["mean"] for s in spots], [s["half90"] for s in spots]
            axis.errorbar(at, means, bars, marker="o", capsize=2, color=f"C{colour}", label=label)
            axis.legend(fontsize=7)
    axes[0][0].set_ylabel("test error")
    axes[1][0].set_ylabel(_SAID["demographic-parity"])
    axes[1][0].set_xlabel("heterogeneity h")
    axes[1][1].set_xlabel("silos N")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _end(axis: Any, constant: float) -> None:
    """Leave out what is worse than saying the same of everybody."""
    axis.set_xlim(right=min(axis.get_xlim()[1], constant))


def _line(axis: Any, cell: Mapping[str, Any], label: str, style: dict[str, Any]) -> None:
    spots = points_of(cell)
    axis.errorbar(
        [e["mean"] for e, _ in spots],
        [v["mean"] for _, v in spots],
        xerr=[e["half90"] for e, _ in spots],
        yerr=[v["half90"] for _, v in spots],
        label=label,
        capsize=2,
        markersize=3,
        **style,
    )
