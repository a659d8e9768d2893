"""What the page says of results of the earlier protocol."""

from __future__ import annotations

import math
from pathlib import Path

from experiments.common import grid_of
from experiments.earlier.mlp_curves import (
    EPSILONS,
    Arm,
    counted,
    difference_table,
    draw_panels,
    error_table,
    family,
)
from experiments.folder import Data, table
from tacit.objectives import Objective, mlp, softmax

OBJECTIVE = Objective(mlp((50, 64, 2)), softmax())
SILOS, SEEDS, SPARE, PHASES = 25, 5, 3, (2, 3)
SETTINGS = ((25, 25), (25, 50), (12, 25), (12, 50))
"""(M, R): how many silos take part in a round, and rounds."""
BATCHES = {"batch_size": 308, "sampling": "poisson", "capacity": 379}
CLIPS = (1.0, 2.0)
MOVES = {
    0.75: (3.0, 4.0, 6.0),
    1.0: (3.0, 4.0, 6.0),
    1.5: (4.0, 6.0, 8.0),
    3.0: (8.0, 12.0, 16.0),
    6.0: (12.0, 16.0, 24.0),
    12.0: (16.0, 24.0, 32.0),
    18.0: (16.0, 24.0, 32.0),
}
"""Step size x clip norm with 25 rounds: how far a clipped gradient moves the model."""
STEPS = (0.25, 0.5, 1.0, 2.0)
"""Step sizes without privacy."""
PROTOTYPE = {"25,25": (10.8, 10.4, 8.7, 7.1, 5.8, 5.2, 4.8), "25,50": (11.3, 9.9, 8.6, 7.0, 5.6, math.nan, math.nan)}
"""Minibatch SGD of a throw-away prototype with the same accounting, tuned on test records, two seeds."""
REPAIRED = {
    "25,25": (13.90, 12.99, 11.74, 9.78, 8.15, 7.64, 7.60),
    "12,50": (16.19, 15.26, 14.12, 10.81, 9.29, 6.79, 5.92),
}
"""The released code's minibatch SGD with its clipping repaired, at its own noise."""


def arms(rounds: int) -> dict[str, Arm]:
    """The algorithms and the points tried at each epsilon; more rounds take shorter steps."""
    scale = (25 / rounds) ** 0.5

    def plain(epsilon: float) -> list[dict[str, float]]:
        return grid_of(clip_norm=CLIPS, move=[m * scale for m in MOVES[epsilon]])

    def local(epsilon: float) -> list[dict[str, float]]:
        return grid_of(clip_norm=CLIPS[1:], move=[m * scale / 4 for m in MOVES[epsilon]])

    def reduced(epsilon: float) -> list[dict[str, float]]:
        moves = [m * scale for m in MOVES[epsilon]]
        return grid_of(clip_norm=CLIPS[:1], move=moves, difference_slope=(0.1, 0.3), difference_noise=(2.0,))

    return family(PHASES, plain, reduced, local, BATCHES)


def draw(folder: Path, data: Data) -> None:
    """A panel for each (M, R), and the price of the theorems."""
    panels = {
        "MNIST odd/even, M={}, R={}".format(*name.split(",")): (cell["shown"], cell["floors"])
        for name, cell in data["settings"].items()
    }
    draw_panels(folder / "figure.png", panels)
    title = "The same epsilon, priced by theorems and here (M=25, R=25)"
    draw_panels(folder / "pricing.png", {title: (data["pricing"], {})})


def words(data: Data) -> Data:
    """The tables of each setting, and how often variance reduction wins."""
    points = {label: sum(len(arm.points(e)) for e in EPSILONS) for label, arm in arms(25).items()}
    gains = [g for cell in data["settings"].values() for label in ("SPIDER", "SVRG") for g in cell["gains"][label]]
    return {
        "spare": SPARE,
        "tried": ", ".join(f"{label} {number}" for label, number in points.items()),
        "tables": [_tables(name, cell) for name, cell in data["settings"].items()],
        "counted": counted(gains),
        "priced": error_table(data["pricing"], {}),
    }


def _tables(name: str, cell: Data) -> Data:
    """One (M, R): errors, differences, and what minibatch SGD has elsewhere."""
    elsewhere = {"prototype, tuned on test": PROTOTYPE, "released code, clipping repaired": REPAIRED}
    known = [
        [label, *("" if math.isnan(error) else error for error in errors[name])]
        for label, errors in elsewhere.items()
        if name in errors
    ]
    taking, rounds = name.split(",")
    return {
        "taking": taking,
        "rounds": rounds,
        "errors": error_table(cell["shown"], cell["floors"]),
        "differences": difference_table("less MB-SGD, paired by seed, 90% intervals", cell["gains"], EPSILONS),
        "elsewhere": table(["MB-SGD elsewhere", *(f"{e:g}" for e in EPSILONS)], known) if known else None,
    }
