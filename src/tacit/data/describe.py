"""What a federation looks like: in numbers, and as a picture.

Both show how records are spread over silos. They are exact, so they are for simulations and for data that its
holder may look at; they are not private releases.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tacit.data.federation import Federation, SiloData

_BANDS = 10


def summary(federation: Federation) -> dict[str, Any]:
    """Sizes, labels and sensitive groups of every silo, and the preprocessing, as plain data.

    Labels and groups are counts of training records; a regression target is given by its least, mean and
    greatest value.

    >>> from tacit.data import load
    >>> summary(load("heart-disease"))["silos"][2]["labels"]
    {'healthy': 5, 'ill': 81}
    """
    same = ("name", "partition", "task", "num_classes", "feature_shape", "feature_norm", "touches_private_data")
    return {
        **{name: getattr(federation, name) for name in same},
        "feature_shape": list(federation.feature_shape),
        "silos": [_silo(federation, silo) for silo in federation.silos],
        "steps": [{"name": s.name, "public": s.public, "detail": s.detail} for s in federation.steps],
        "citation": federation.citation,
    }


def _silo(federation: Federation, silo: SiloData) -> dict[str, Any]:
    row: dict[str, Any] = {"name": silo.name}
    row |= {part: len(getattr(silo, part)["y"]) for part in ("train", "validation", "test")}
    y = silo.train["y"]
    if federation.task == "regression":
        row["target"] = {"least": float(y.min()), "mean": float(y.mean()), "greatest": float(y.max())}
    else:
        row["labels"] = _counts(y, federation.class_names)
    if "s" in silo.train:
        row["groups"] = _counts(silo.train["s"], federation.group_names)
    return row


def _counts(values: np.ndarray, names: tuple[str, ...]) -> dict[str, int]:
    return {name: int(count) for name, count in zip(names, np.bincount(values, minlength=len(names)), strict=True)}


def plot_partition(federation: Federation, path: Path) -> None:
    """Draw who holds what to ``path``: a bar per silo, stacked by label or by tenths of the target."""
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to import, so only when asked for
    from matplotlib.figure import Figure

    names, counts = _stacks(federation)
    figure = Figure(figsize=(8, max(2.5, 1.2 + 0.28 * min(len(counts), 60))), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    cmap, shades = colormaps["tab10"], [index % 10 for index in range(len(names))]
    if federation.task == "regression":
        cmap, shades = colormaps["viridis"], np.linspace(0, 1, len(names)).tolist()
    left = np.zeros(len(counts))
    for name, column, colour in zip(names, counts.T, map(cmap, shades), strict=True):
        axes.barh(np.arange(len(counts)), column, left=left, color=colour, label=name, height=0.8)
        left = left + column
    axes.set_yticks(np.arange(len(counts)) if len(counts) <= 60 else [])
    if len(counts) <= 60:
        axes.set_yticklabels([silo.name for silo in federation.silos])
    axes.invert_yaxis()
    axes.set_xlabel("records (train, validation and test)")
    axes.set_title(f"{federation.name}: {federation.partition}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _stacks(federation: Federation) -> tuple[tuple[str, ...], np.ndarray]:
    """Names of the stacked pieces, and how many records of each every silo has."""
    targets = [np.concatenate([part["y"] for part in (s.train, s.validation, s.test)]) for s in federation.silos]
    if federation.task != "regression":
        names = federation.class_names
        return names, np.stack([np.bincount(y, minlength=len(names)) for y in targets])
    edges = np.quantile(np.concatenate(targets), np.linspace(0, 1, _BANDS + 1))
    names = tuple(f"{low:.2f} to {high:.2f}" for low, high in pairwise(edges))
    return names, np.stack(
        [np.bincount(np.searchsorted(edges[1:-1], y, side="right"), minlength=_BANDS) for y in targets]
    )
