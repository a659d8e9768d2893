"""The page of the defaults: what it says follows from the cells alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from experiments.folder import Data, save, table


def regret(cell: Data, which: str) -> float:
    """What a setting loses against the best of the grid."""
    if which == "left_out":
        return float(cell[which])
    own = cell[which]
    return float((own["error"] if isinstance(own, dict) else own) - cell["best"]["error"])


def draw(folder: Path, data: Data) -> None:
    """Regrets of all cells, before and now."""
    figure, axis = plt.subplots(figsize=(8, 5), layout="constrained")
    names = list(data["sets"])
    for which, marker, colour in (("earlier", "o", "#bbbbbb"), ("default", "D", "#1f6fb4")):
        regrets, rows = [regret(c, which) for c in data["cells"]], [names.index(c["data"]) for c in data["cells"]]
        label = {"earlier": "defaults before", "default": "defaults"}[which]
        axis.scatter(regrets, rows, marker=marker, color=colour, label=label, s=28)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.axvline(0, color="black", linewidth=0.6)
    axis.set(xlabel="regret: test error above the best setting of the grid, at epsilon 1, 4 and 8")
    axis.legend()
    save(figure, folder / "figure.png")


def words(data: Data) -> Data:
    """Means, worst cells, and the tables."""
    cells, sets = data["cells"], data["sets"]
    kinds = ("default", "earlier", "plain", "left_out")
    mean = {kind: float(np.mean([regret(cell, kind) for cell in cells])) for kind in kinds}
    practised = [cell for cell in cells if cell["rehearsed"] is not None]
    worse = max(cells, key=lambda cell: regret(cell, "default") - regret(cell, "earlier"))
    plain = max(cells, key=lambda cell: regret(cell, "plain") - regret(cell, "earlier"))
    ran = [cell for cell in cells if cell["norms"] is not None]
    norms = list(ran[0]["norms"])
    counts = sorted({row["settings"] for row in sets.values()})
    return {
        "mean": mean,
        "rehearsed": float(np.mean([regret(cell, "rehearsed") for cell in practised])),
        "rehearsal_count": len(practised),
        "beside": float(np.mean([regret(cell, "default") for cell in practised])),
        "rehearsal_seconds": [f(cell["rehearsed"]["cpu_seconds"] for cell in practised) for f in (min, max)],
        "largest": max(regret(cell, "default") for cell in cells),
        "worse": {"by": worse["default"] - worse["earlier"], **_named(worse)},
        "plain_worse": {"by": plain["plain"] - plain["earlier"], **_named(plain)},
        "better": sum(cell["default"] < cell["earlier"] for cell in cells),
        "edges": sum(cell["best"]["edge"] for cell in cells),
        "counts": counts,
        "cells_table": table(
            ["data", "epsilon", "best", "its setting", "before", "defaults", "regret before", "regret", "left out"],
            [_cells_row(cell) for cell in cells],
        ),
        "sets_table": table(
            ["data", "target", "silos", "training records", "features", "splits"],
            [[name, *_set_row(row)] for name, row in sets.items()],
        ),
        "rehearsal_table": table(
            ["data", "epsilon", "chosen", "error", "regret", "regret of the defaults"],
            [_rehearsal_row(c) for c in practised],
        ),
        "run_sets": len({cell["data"] for cell in ran}),
        "apart": max(abs(cell["norms"][norms[0]] - cell["default"]) for cell in ran),
        "norms": norms,
        "norm_means": {n: float(np.mean([c["norms"][n] - c["norms"][norms[0]] for c in ran])) for n in norms},
        "norm_gains": {n: sum(c["norms"][n] < c["norms"][norms[0]] - 0.01 for c in ran) for n in norms},
        "norm_losses": {n: sum(c["norms"][n] > c["norms"][norms[0]] + 0.01 for c in ran) for n in norms},
        "norms_table": table(
            ["data", "epsilon", *(f"norm {n}" for n in norms)],
            [[*_cell_name(c), *(f"{c['norms'][n]:.3f}" for n in norms)] for c in ran],
        ),
    }


def _named(cell: Data) -> dict[str, Any]:
    return {"data": cell["data"], "epsilon": cell["epsilon"]}


def _cell_name(cell: Data) -> list[str]:
    return [cell["data"], f"{cell['epsilon']:g}"]


def _setting(row: Data) -> str:
    return f"{row['server']} {row['step_size']:.3g}, clip {row['clip_norm']:g}"


def _cells_row(cell: Data) -> list[str]:
    best = cell["best"]
    numbers = (cell["earlier"], cell["default"])
    regrets = (regret(cell, which) for which in ("earlier", "default", "left_out"))
    how = f"{_setting(best)}, {best['rounds']} rounds, {best['output']}{' (edge)' if best['edge'] else ''}"
    return [
        cell["data"],
        f"{cell['epsilon']:g}",
        f"{best['error']:.3f}",
        how,
        *(f"{n:.3f}" for n in (*numbers, *regrets)),
    ]


def _set_row(row: Data) -> list[str]:
    target = {"multiclass": f"{row['classes']} classes", "binary": "2 classes", "regression": "a number"}[row["task"]]
    return [target, str(len(row["records"])), str(sum(row["records"])), str(row["features"]), str(row["splits"])]


def _rehearsal_row(cell: Data) -> list[str]:
    own = cell["rehearsed"]
    numbers = own["error"], regret(cell, "rehearsed"), regret(cell, "default")
    return [*_cell_name(cell), _setting(own), *(f"{n:.3f}" for n in numbers)]
