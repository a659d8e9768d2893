"""Linear regression on medical insurance charges: Figure 2 of Lowy and Razaviyayn (arXiv:2106.09779).

``python -m experiments.insurance_linear`` writes ``results/insurance-linear``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from experiments.common import records_of, seeds_of
from experiments.convex_curves import Design, mean_at, plot
from experiments.folder import Data, Experiment
from tacit import data
from tacit.data import Federation
from tacit.objectives import Objective, Problem, linear, squared
from tacit.studies.run import pooled

TRIALS = 20
DESIGN = Design(
    silos=10,
    participants=(10, 5),
    epsilons=(0.125, 0.25, 0.5, 1.0, 2.0, 3.0, 6.0, 10.0),
    steps=(0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6),
    clips=(0.05, 0.15, 0.5, 1.5),
    metric="mse",
)


def compute(_: Any) -> Data:
    """All curves, relative to predicting the mean."""
    federations = [data.load("insurance", silos=DESIGN.silos, seed=trial) for trial in range(TRIALS)]
    problem = Problem(Objective(linear(federations[0].feature_shape[0], 1), squared()))
    seeds, records = seeds_of(federations, problem.objective), records_of(federations[0])
    naive, best = zip(*(_anchors(federation) for federation in federations), strict=True)
    found = DESIGN.panels(problem, seeds, records, np.asarray(naive))
    found["least squares, pooled"] = float(np.mean(best))
    return {**DESIGN.meta(records, TRIALS), "curves": found}


def _anchors(federation: Federation) -> tuple[float, float]:
    """Test error of predicting the mean of the training targets, and of pooled least squares relative to it."""
    train, test = (pooled(federation, part) for part in ("train", "test"))
    naive = float(((test["y"] - train["y"].mean()) ** 2).mean())
    design = np.c_[train["x"], np.ones(len(train["y"]))]
    weights = np.linalg.lstsq(design, train["y"], rcond=None)[0]
    error = float(((np.c_[test["x"], np.ones(len(test["y"]))] @ weights - test["y"]) ** 2).mean())
    return naive, (error / naive) ** 0.5


def draw(folder: Path, data: Data) -> None:
    """Error against epsilon, one panel for each participation."""
    panels = {title: curves for title, curves in data["curves"].items() if title.startswith("M=")}
    plot(folder / "figure.png", panels, "root of test MSE / naive MSE")


def words(data: Data) -> Data:
    """Who wins where, and what the theorem's noise costs, at epsilon 1 and 10."""
    full = data["curves"]["M=10"]
    return {
        **DESIGN.words(data, (0.125, 1.0, 3.0, 10.0)),
        "pooled": data["curves"]["least squares, pooled"],
        "ours": [mean_at(full, "MB-SGD", e) for e in ("1.0", "10.0")],
        "theorem": [mean_at(full, "MB-SGD, the theorem's noise", e) for e in ("1.0", "10.0")],
        "open": mean_at(full, "MB-SGD, not private"),
    }


EXPERIMENT = Experiment("insurance-linear", compute, draw, words, finding=DESIGN.finding)

if __name__ == "__main__":
    EXPERIMENT.main()
