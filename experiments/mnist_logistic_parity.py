"""Logistic regression for odd against even digits: the MNIST experiment of Lowy and Razaviyayn (arXiv:2106.09779).

``python -m experiments.mnist_logistic_parity`` writes ``results/mnist-logistic-parity``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.common import records_of, seeds_of
from experiments.convex_curves import Design, mean_at, plot
from experiments.folder import Data, Experiment
from tacit import data
from tacit.objectives import Objective, Problem, linear, logistic

TRIALS = 5
DESIGN = Design(
    silos=25,
    participants=(12, 25),
    epsilons=(0.75, 1.5, 3.0, 6.0, 12.0, 18.0),
    steps=(0.3, 1.0, 3.0, 10.0),
    clips=(0.5, 2.0, 6.0),
    metric="error",
)


def compute(_: Any) -> Data:
    """All curves."""
    federations = [data.load("mnist", partition="digit-pairs", seed=trial) for trial in range(TRIALS)]
    problem = Problem(Objective(linear(50, 1), logistic()))
    seeds, records = seeds_of(federations, problem.objective), records_of(federations[0])
    return {**DESIGN.meta(records, TRIALS), "curves": DESIGN.panels(problem, seeds, records)}


def draw(folder: Path, data: Data) -> None:
    """Error against epsilon, one panel for each participation."""
    plot(folder / "figure.png", data["curves"], "test error")


def words(data: Data) -> Data:
    """Who wins where, and what the theorem's noise costs with all silos, at epsilon 0.75 and 3."""
    everyone = data["curves"]["M=25"]

    def below_open(curves: Data) -> Any:
        floor = mean_at(curves, "Local SGD, not private")
        return [epsilon for epsilon in curves["MB-SGD"] if mean_at(curves, "MB-SGD", epsilon) < floor] or "no case"

    return {
        **DESIGN.words(data, (0.75, 3.0, 18.0)),
        "below_open": {name: below_open(curves) for name, curves in data["curves"].items()},
        "ours": [mean_at(everyone, "MB-SGD", e) for e in ("0.75", "3.0")],
        "theorem": [mean_at(everyone, "MB-SGD, the theorem's noise", e) for e in ("0.75", "3.0")],
    }


EXPERIMENT = Experiment("mnist-logistic-parity", compute, draw, words, finding=DESIGN.finding)

if __name__ == "__main__":
    EXPERIMENT.main()
