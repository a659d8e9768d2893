"""CIFAR-10, ten silos of one class each, a convolutional network: SPIDER as its authors ran it, all seven budgets.

``python -m experiments.cifar10_cnn`` writes ``results/cifar10-cnn``; it needs CIFAR-10's file. Every trial is kept in
``trials.jsonl`` as soon as it is there: the same command goes on where an earlier one stopped.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from experiments.earlier import cifar10_cnn as before
from experiments.folder import PROTOCOL, Data
from experiments.search import Trials
from experiments.spider import Study, experiment, methods, seeds_of_data
from tacit.objectives import Objective, cnn, softmax

OBJECTIVE = Objective(cnn(), softmax())
ROUNDS, PHASES = 50, (1, 2, 3)
BATCHES = {"batch_size": 100, "sampling": "poisson", "capacity": 140}
LOCAL = {"local_steps": 2, "batch_size": 50, "sampling": "poisson", "capacity": 79}
"""Capacities are four deviations above the mean, priced as a truncation."""
EPSILONS = (0.75, 1.0, 1.5, 3.0, 6.0, 12.0, 18.0)
SLOPES = (0.5, 1.0, 2.0)


def moves(epsilon: float) -> tuple[float, ...]:
    """Step size x clip norm to begin with."""
    middle = 0.1 if math.isinf(epsilon) else 0.5 * epsilon**0.4
    return tuple(middle * 2.0**k for k in (-1, 0, 1))


def study(folder: Path, tiny: bool) -> Study:
    """All curves, at their size or a small one."""
    options: dict[str, Any] = {"records_per_silo": 60} if tiny else {}
    seed, records = seeds_of_data("cifar10", OBJECTIVE, **options)
    small = {"batch_size": 8, "sampling": "poisson", "capacity": 20}
    lines = methods((1.0,), {**LOCAL, **small}, (1, 2)) if tiny else methods(SLOPES, LOCAL, PHASES)
    budget: dict[str, Any] = {"delta": 1 / records[0] ** 2, "epsilons": (6.0,) if tiny else EPSILONS}
    shape: dict[str, Any] = {"clips": (1.0,), "moves": moves, "lines": lines, "ratios": (1.0,)}
    few: dict[str, Any] = {"tuning": 1, "testing": 2} if tiny else {"later": ("difference_slope",)}
    trials = Trials(folder / "trials.jsonl", [records, tiny], chunk=6)
    terms: dict[str, Any] = {"rounds": 2 if tiny else ROUNDS, "batches": small if tiny else BATCHES}
    return Study(f"R={terms['rounds']}", OBJECTIVE, seed, records, trials=trials, **terms, **budget, **shape, **few)


def compute(given: argparse.Namespace) -> Data:
    """What is missing of all curves."""
    own = study(given.out, given.tiny)
    return {"protocol": PROTOCOL, "records": own.records, "delta": own.delta, "settings": {own.name: own.found}}


def words(data: Data) -> Data:
    """The tables and the improvement in percent."""
    return {
        "title": "CIFAR-10, ten silos of one class each",
        "setting": f"one silo for each class ({data['records'][0]} training images), the paper's network, "
        "Poisson batches of 100 images on average, all priced. The clip is 1: a network's step and clip trade off, and "
        "the step is searched.",
        "protocol_note": "Validation and test images are in no silo's training set.",
    }


EXPERIMENT = experiment("cifar10-cnn", compute, words, before)

if __name__ == "__main__":
    EXPERIMENT.main()
