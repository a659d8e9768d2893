"""Breast cancer, two silos by label, a network of five hidden units: SPIDER as its authors ran it.

``python -m experiments.breast_cancer_mlp`` writes ``results/breast-cancer-mlp``; it goes on where another stopped.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from experiments.folder import PROTOCOL, Data
from experiments.search import Trials
from experiments.spider import Study, experiment, methods, seeds_of_data
from tacit import data
from tacit.objectives import Objective, mlp, softmax

OBJECTIVE = Objective(mlp((30, 5, 2)), softmax())
ROUNDS = 25
EPSILONS = (0.75, 1.0, 1.5, 3.0, 6.0, 12.0, 18.0)
LOCAL = {"local_steps": 4}
CLIPS, SLOPES = (0.25, 0.5, 1.0), (0.1, 0.5, 2.5)


def moves(epsilon: float) -> tuple[float, ...]:
    """Step size x clip norm to begin with."""
    middle = 1.0 if math.isinf(epsilon) else 0.5 * epsilon**0.5
    return tuple(middle * 2.0**k for k in (-2, -1, 0, 1, 2))


def study(folder: Path, tiny: bool) -> Study:
    """All curves, at their size or a small one."""
    seed, records = seeds_of_data("breast-cancer", OBJECTIVE)
    budget: dict[str, Any] = {"delta": 1 / max(records) ** 2, "epsilons": (3.0,) if tiny else EPSILONS}
    lines = methods(SLOPES[1:2], LOCAL, (1, 2)) if tiny else methods(SLOPES, LOCAL)
    shape: dict[str, Any] = {"clips": (0.5,) if tiny else CLIPS, "moves": moves, "lines": lines}
    few: dict[str, Any] = {"tuning": 2, "testing": 2, "ratios": (1.0,)} if tiny else {"testing": 10}
    trials = Trials(folder / "trials.jsonl", [records, tiny], chunk=48)
    rounds = 3 if tiny else ROUNDS
    return Study(f"R={rounds}", OBJECTIVE, seed, records, rounds=rounds, trials=trials, **budget, **shape, **few)


def compute(given: argparse.Namespace) -> Data:
    """What is missing of all curves."""
    own = study(given.out, given.tiny)
    names = [silo.name for silo in data.load("breast-cancer", seed=0).silos]
    sizes = {"records": own.records, "silos": names, "delta": own.delta}
    return {"protocol": PROTOCOL, **sizes, "settings": {own.name: own.found}}


def words(data: Data) -> Data:
    """The tables and the improvement in percent."""
    sizes = " and ".join(f"{name} {n}" for name, n in zip(data["silos"], data["records"], strict=True))
    return {
        "title": "Breast cancer, two silos by label",
        "setting": f"one silo for each label (training records: {sizes}), a network 30-5-2, full batches.",
        "protocol_note": "Features are scaled by public bounds: standardising each one-class silo by itself, as the "
        "released code does, removes the class means.",
    }


EXPERIMENT = experiment("breast-cancer-mlp", compute, words)

if __name__ == "__main__":
    EXPERIMENT.main()
