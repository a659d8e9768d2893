"""What the page says of results of the earlier protocol."""

from __future__ import annotations

from pathlib import Path

from experiments.common import Rows, grid_of
from experiments.earlier.mlp_curves import (
    EPSILONS,
    Arm,
    difference_table,
    draw_panels,
    error_table,
    family,
    shown_of,
)
from experiments.folder import Data
from tacit.objectives import Objective, mlp, softmax

OBJECTIVE = Objective(mlp((30, 5, 2)), softmax())
ROUNDS, SEEDS, PHASES = 25, 10, (2, 5)
MOVES = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
CLIPS = (0.5, 1.0)
STEPS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Step sizes without privacy."""
THEOREM = ("MB-SGD", "SPIDER q=2")


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
