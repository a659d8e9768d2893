"""Breast cancer, two silos by label, a network of five hidden units: the paper's figure under an honest protocol.

``python -m experiments.breast_cancer_mlp`` writes ``results/breast-cancer-mlp``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.common import Rows, grid_of, records_of, seeds_of
from experiments.folder import Data, Experiment
from experiments.mlp_curves import (
    EPSILONS,
    FLOORS,
    Arm,
    Curves,
    difference_table,
    draw_panels,
    error_table,
    family,
    floor_of,
    paired_with,
    shown_of,
)
from tacit import data
from tacit.objectives import Objective, mlp, softmax

OBJECTIVE = Objective(mlp((30, 5, 2)), softmax())
ROUNDS, SEEDS, PHASES = 25, 10, (2, 5)
MOVES = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
CLIPS = (0.5, 1.0)
STEPS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Step sizes without privacy."""
THEOREM = ("MB-SGD", "SPIDER q=2")


def compute(_: Any) -> Data:
    """All curves, those with the theorems' noise too."""
    federations = [data.load("breast-cancer", seed=s) for s in range(SEEDS)]
    seeds, records = seeds_of(federations, OBJECTIVE), records_of(federations[0])
    delta = 1 / max(records) ** 2
    curves, arms = Curves(OBJECTIVE, seeds, seeds, records, delta, ROUNDS, chunk=500), _arms()
    found = {label: curves.curve(arm) for label, arm in arms.items()}
    theorem = {label: curves.curve(arms[label], ours=False) for label in THEOREM}
    floors = {label: floor_of(curves.non_private(arms[arm], STEPS)) for label, arm in FLOORS.items()}
    gains = paired_with(shown_of(found, PHASES))
    extra = {"records": records, "delta": delta, "rounds": ROUNDS, "seeds": SEEDS}
    plain = {"curves": found, "theorem": theorem, "non_private": floors, "less_mb_sgd": gains, "tried": curves.tried}
    return {**extra, **plain}


def _arms() -> dict[str, Arm]:
    def plain(epsilon: float) -> list[dict[str, float]]:
        return grid_of(clip_norm=CLIPS, move=MOVES)

    def local(epsilon: float) -> list[dict[str, float]]:
        return grid_of(clip_norm=CLIPS, move=[m / 4 for m in MOVES])

    def reduced(epsilon: float) -> list[dict[str, float]]:
        return grid_of(clip_norm=CLIPS, move=MOVES[1:6], difference_slope=(0.1, 0.5), difference_noise=(2.0,))

    return family(PHASES, plain, reduced, local)


def _pricing(data: Data) -> dict[str, Rows]:
    """Our prices beside the theorems'."""
    found: dict[str, Rows] = {}
    for label in THEOREM:
        found |= {label: data["curves"][label], f"{label}, theorem's noise": data["theorem"][label]}
    return found


def draw(folder: Path, data: Data) -> None:
    """The paper's figure, and the price of the theorems."""
    title = f"Breast cancer, 2 silos by label, R={ROUNDS}"
    draw_panels(folder / "figure.png", {title: (shown_of(data["curves"], PHASES), data["non_private"])})
    draw_panels(folder / "pricing.png", {"The same epsilon, priced by theorems and here": (_pricing(data), {})})


def words(data: Data) -> Data:
    """The tables."""
    return {
        "points": ", ".join(f"{label} {number}" for label, number in data["tried"].items()),
        "errors": error_table(shown_of(data["curves"], PHASES), data["non_private"]),
        "differences": difference_table("less MB-SGD", data["less_mb_sgd"], EPSILONS),
        "priced": error_table(_pricing(data), {}),
    }


EXPERIMENT = Experiment("breast-cancer-mlp", compute, draw, words)

if __name__ == "__main__":
    EXPERIMENT.main()
