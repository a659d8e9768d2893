"""The pages of the fairness experiments: figures, and what they say of the numbers."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from experiments.common import interval
from experiments.fair.compare import headline, least_violation, points_of, spread
from experiments.fair.training import VALIDATION, Scale
from experiments.folder import PROTOCOL, Data, Finding, save, table
from experiments.search import refuse_edges

SMALL = 10
"""Rounds up to which a run is a trial of the code, whose choices mean nothing."""


@dataclass(frozen=True)
class Page:
    """An experiment: a data set and its parts, parity first."""

    name: str
    data: str
    title: str
    parts: tuple[str, ...]


_DATA = tomllib.loads((Path(__file__).parent / "pages.toml").read_text(encoding="utf-8"))
PAGES = {name: Page(name, row["data"], row["title"], tuple(row["parts"])) for name, row in _DATA["pages"].items()}
PRINTED: dict[str, dict[str, float]] = _DATA["printed"]
MEASURED: dict[str, dict[str, dict[str, list[list[float]]]]] = _DATA["measured"]
_SAID: dict[str, str] = {
    "demographic-parity": "violation of demographic parity",
    "equalized-odds": "violation of equalized odds",
}


def draw(folder: Path, data: Data) -> None:
    """A figure for each notion of fairness, and for the printed noise and the sweeps where they were run."""
    constant = data["constant_error"]
    for notion, panels in data["curves"].items():
        plot_curves(folder / f"figure-{notion}.png", panels, notion, constant)
    if "printed" in data:
        ours = data["curves"]["demographic-parity"]["0.75"]
        plot_printed(folder / "figure-printed-noise.png", data["printed"], ours, constant)
    if "sweeps" in data:
        plot_sweeps(folder / "figure-sweeps.png", data["sweeps"])


def plot_curves(path: Path, panels: Mapping[str, Any], notion: str, constant: float) -> None:
    """Error against violation: a row for each heterogeneity, a column for each budget, up to the constant error."""
    epsilons = list(next(iter(panels.values()))["SteFFLe"])
    shape = (len(panels), len(epsilons))
    size = (4.4 * shape[1], 3.8 * shape[0])
    figure, axes = plt.subplots(*shape, figsize=size, squeeze=False, sharey=True, layout="constrained")
    for row, (level, curves) in zip(axes, panels.items(), strict=True):
        for axis, epsilon in zip(row, epsilons, strict=True):
            for number, (name, values) in enumerate(curves.items()):
                cell = values.get(epsilon, values.get("None"))
                style = {"marker": "o", "color": f"C{number}", "linestyle": "-" if epsilon in values else ":"}
                _line(axis, cell, name, style)
            axis.set(title=f"epsilon = {float(epsilon):g}, h = {level}", xlabel="test error")
            _end(axis, constant)
        row[0].set_ylabel(_SAID[notion])
    axes[0][-1].legend(fontsize=6)
    save(figure, path)


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
    save(figure, path)


def plot_sweeps(path: Path, sweeps: Mapping[str, Any]) -> None:
    """Error and violation against heterogeneity and against the number of silos."""
    figure, axes = plt.subplots(2, 2, figsize=(9, 6.4), sharex="col", layout="constrained")
    lines = [(0, sweeps["levels"], sweeps["by_level"], "N = 3", 0)]
    lines += [(1, sweeps["silos"], cells, f"h = {h}", 1 + i) for i, (h, cells) in enumerate(sweeps["by_silos"].items())]
    for column, at, cells, label, colour in lines:
        for axis, name in zip(axes[:, column], ("error", "parity_gap"), strict=True):
            spots = [interval(cell[name]) for cell in cells]
            means, bars = [s["mean"] for s in spots], [s["half90"] for s in spots]
            axis.errorbar(at, means, bars, marker="o", capsize=2, color=f"C{colour}", label=label)
            axis.legend(fontsize=7)
    axes[0][0].set_ylabel("test error")
    axes[1][0].set_ylabel(_SAID["demographic-parity"])
    axes[1][0].set_xlabel("heterogeneity h")
    axes[1][1].set_xlabel("silos N")
    save(figure, path)


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


def words(page: Page, data: Data) -> Data:
    """What the page says, from the numbers of its folder and of those beside it."""
    scale, curves = Scale(**data["scale"]), data["curves"]
    if data.get("protocol") == PROTOCOL and scale.rounds > SMALL:
        _refuse(curves)
    there = {*curves, *(["printed-noise"] if "printed" in data else []), *data}
    return {
        "title": page.title,
        "every_dial": data["scale"].get("every_dial", False),
        "scale": {**data["scale"], "first": scale.reported[0], "last": scale.reported[-1]},
        "validation": VALIDATION,
        "fair_grids": data.get("protocol") == PROTOCOL,
        "notions": {
            notion: {"headlines": _headlines(panels, PRINTED[notion]), "chance": _chance(panels), "rows": _rows(panels)}
            for notion, panels in curves.items()
        },
        "averaged": _averaged(page, data),
        "missing": [part for part in page.parts if part not in there],
        "certified": {e: cell["epsilon_certified"] for e, cell in data.get("printed", {}).items()},
        "checked": _checked(page, curves["demographic-parity"]["0.0"]),
        "swept": swept(data["sweeps"]) if "sweeps" in data else [],
    }


def _refuse(curves: Mapping[str, Any]) -> None:
    """Raise where a setting lies at the edge of its grid."""
    chosen: dict[str, Any] = {}
    for notion, panels in curves.items():
        for level, methods in panels.items():
            for name, cells in methods.items():
                for e, cell in cells.items():
                    own = {"": cell["choice"], ", least error": cell.get("second_choice")}
                    chosen |= {f"{notion}, h={level}, {name}, {e}{k}": one for k, one in own.items() if one}
    refuse_edges(chosen)


def finding(data: Data) -> Finding:
    """Parity at equal error against both rivals, beside the paper's averages."""
    panels = data["curves"]["demographic-parity"]
    printed = PRINTED["demographic-parity"]
    found = {other: headline(panels, other)["mean"] for other in printed}
    ranges = {other: spread([panels], other)["mean"] for other in printed}
    said = " and ".join(_ranged(share, ranges[other], other) for other, share in found.items())
    half = all(ranges[other][1] >= claim / 2 and ranges[other][0] > 0 for other, claim in printed.items())
    some = any(low > 0 for low, _ in ranges.values())
    return Finding(f"parity violation {said} at equal error", "reproduced" if half else "partly" if some else "differs")


def _headlines(panels: Mapping[str, Any], printed: Mapping[str, float]) -> str:
    rows = []
    for other in ("FedFDP", "Tran et al.", "central DP-FERMI"):
        found = headline(panels, other)
        claim = f"{100 * printed[other]:.1f}% below" if other in printed else "-"
        counts = (found[k] for k in ("points", "theirs_alone", "ours_alone"))
        ranges = spread([panels], other)
        rows.append((other, claim, *(_ranged(found[k], ranges[k]) for k in ("mean", "total")), *counts))
    header = ("against", "the paper", "mean over points", "ratio of sums", "points", "they alone", "SteFFLe alone")
    return table(header, rows)


def _ranged(share: float, range_: Sequence[float], other: str = "") -> str:
    """A share with its interval; level where the interval holds zero.

    >>> _ranged(0.5, [0.4, 0.6])
    '50.0% below (40.0 to 60.0)'
    >>> _ranged(-0.1, [-0.3, 0.1])
    'level (-30.0 to 10.0)'
    >>> _ranged(0.5, [0.4, 0.6], "FedFDP")
    '50.0% below FedFDP (40.0 to 60.0)'
    """
    low, high = (100 * value for value in range_)
    if low <= 0 <= high:
        return f"level{' with ' * bool(other)}{other} ({low:.1f} to {high:.1f})"
    low, high = (low, high) if share >= 0 else (-high, -low)
    said = f"{_below(share)} {other}".rstrip()
    return said if np.isnan(share) else f"{said} ({low:.1f} to {high:.1f})"


def _below(share: float) -> str:
    if np.isnan(share):
        return "no point in common"
    return f"{100 * share:.1f}% below" if share >= 0 else f"{-100 * share:.1f}% above"


def _averaged(page: Page, data: Data) -> Data:
    """Parity averaged over the data sets whose folders are there, at the same scale."""
    pages: dict[str, Any] = {}
    for name in PAGES:
        file = data["folder"].parent / name / "data.json"
        if name == page.name:
            pages[name] = data["curves"]["demographic-parity"]
        elif file.exists():
            kept = json.loads(file.read_text(encoding="utf-8"))
            if kept["scale"] == data["scale"]:
                pages[name] = kept["curves"]["demographic-parity"]
    against = []
    for other, claim in PRINTED["demographic-parity"].items():
        each = [headline(panels, other) for panels in pages.values()]
        means, totals = ([one[k] for one in each if one["points"]] for k in ("mean", "total"))
        if means:
            ranges = spread([panels for panels, one in zip(pages.values(), each, strict=True) if one["points"]], other)
            shares = {"mean": float(np.mean(means)), "total": float(np.mean(totals))}
            found = {name: _ranged(share, ranges[name]) for name, share in shares.items()}
            against.append({"other": other, **found, "claim": 100 * claim})
    return {"pages": list(pages), "against": against}


def _chance(panels: Mapping[str, Any]) -> dict[str, float]:
    """How unfair a fair classifier looks on so few records, beside central training with true attributes."""
    cell = next(iter(panels.values()))["central ERM"]["None"]
    return {"shuffled": float(np.mean(cell["by_chance"][0])), "true": float(np.mean(cell["violation"][0]))}


def _checked(page: Page, curves: Mapping[str, Any]) -> str | None:
    """The baselines beside what others measured with the authors' code."""
    rows: list[Any] = []
    for name, budgets in MEASURED.get(page.data, {}).items():
        for epsilon, spots in budgets.items():
            for error, violation in spots:
                least = least_violation(curves[name][epsilon], error)
                rows.append((name, epsilon, error, violation, "not reached" if least is None else f"{least:.4f}"))
    header = ("baseline", "epsilon", "error", "violation, authors' code", "ours, at this error or less")
    return table(header, rows) if rows else None


def swept(sweeps: Mapping[str, Any]) -> list[str]:
    """Both ends of each sweep."""

    def ends(cells: Any) -> str:
        said = []
        for name, word in (("error", "error"), ("parity_gap", "violation")):
            spots = (interval(cell[name]) for cell in (cells[0], cells[-1]))
            said.append(f"{word} " + " to ".join(f"{spot['mean']:.4f} ± {spot['half90']:.4f}" for spot in spots))
        return ", ".join(said)

    lines = [f"h from {sweeps['levels'][0]} to {sweeps['levels'][-1]} at N = 3: {ends(sweeps['by_level'])}"]
    for h, cells in sweeps["by_silos"].items():
        lines.append(f"N from {sweeps['silos'][0]} to {sweeps['silos'][-1]} at h = {h}: {ends(cells)}")
    return lines


def _rows(panels: Mapping[str, Any]) -> str:
    rows = []
    for level, curves in panels.items():
        for name, values in curves.items():
            for epsilon, cell in values.items():
                for dial, (e, v) in zip(cell["dials"], points_of(cell), strict=True):
                    budget = "none" if epsilon == "None" else epsilon
                    numbers = (f"{e['mean']:.4f} ± {e['half90']:.4f}", f"{v['mean']:.4f} ± {v['half90']:.4f}")
                    rows.append((level, name, cell["guarantee"], budget, f"{dial:g}", *numbers))
    return table(("h", "method", "guarantee", "epsilon", "dial", "test error", "violation"), rows)
