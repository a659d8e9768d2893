"""MNIST, odd or even, 25 silos of two digits, a network 50-64-2: SPIDER as its authors ran it.

``python -m experiments.mnist_parity_mlp`` writes ``results/mnist-parity-mlp``; it needs MNIST's files. Every trial is
kept in ``trials.jsonl`` as soon as it is there: the same command goes on where an earlier one stopped.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

from experiments.earlier import mnist_parity_mlp as before
from experiments.folder import PROTOCOL, Data
from experiments.search import Trials
from experiments.spider import Study, experiment, methods, seeds_of_data
from tacit.objectives import Objective, mlp, softmax
from tacit.simulate.participation import participation

OBJECTIVE = Objective(mlp((50, 64, 2)), softmax())
SILOS, SPARE = 25, 3
SETTINGS = ((25, 25), (25, 50), (12, 25), (12, 50))
"""(M, R): how many silos take part in a round, and rounds."""
EPSILONS = (0.75, 1.0, 1.5, 3.0, 6.0, 12.0, 18.0)
LOCAL = {"local_steps": 4, "batch_size": 308, "sampling": "poisson", "capacity": 379}
CLIPS, SLOPES = (0.5, 1.0, 2.0), (0.1, 0.3, 0.9)
LATER = ("ratio", "difference_slope")


def moves(epsilon: float, rounds: int) -> tuple[float, ...]:
    """Step size x clip norm to begin with: about the root of epsilon, and shorter where there are more rounds."""
    middle = 0.5 if math.isinf(epsilon) else 5.0 * epsilon**0.5 * (25 / rounds) ** 0.5
    return tuple(middle * 2.0**k for k in (-1, 0, 1))


def study(folder: Path, taking: int, rounds: int, tiny: bool = False) -> Study:
    """One (M, R). Where not all silos take part in a round, each answers a few rounds more than its share."""
    options: dict[str, Any] = {"records_per_silo": 40} if tiny else {}
    seed, records = seeds_of_data("mnist", OBJECTIVE, **options)
    lines = methods(SLOPES, LOCAL) if not tiny else methods((0.3,), {**LOCAL, "batch_size": 8, "capacity": 16}, (1, 2))
    cap = None if taking == SILOS else math.ceil(rounds * taking / SILOS) + SPARE
    shape: dict[str, Any] = {
        "clips": CLIPS if not tiny else (1.0,),
        "moves": lambda e: moves(e, rounds),
        "lines": lines,
    }
    budget: dict[str, Any] = {"delta": 1 / records[0] ** 2, "epsilons": EPSILONS if not tiny else (3.0,)}
    few: dict[str, Any] = {"tuning": 1, "testing": 2, "ratios": (1.0,)} if tiny else {"later": LATER}
    trials = Trials(folder / "trials.jsonl", [records, rounds, taking, tiny])
    who = participation(SILOS, taking, cap=cap)
    name = f"M={taking}, R={rounds}"
    return Study(name, OBJECTIVE, seed, records, rounds=rounds, trials=trials, who=who, **shape, **budget, **few)


def compute(given: argparse.Namespace) -> Data:
    """What is missing of all curves."""
    chosen = SETTINGS[:1] if given.tiny else SETTINGS
    made = [study(given.out, m, 4 if given.tiny else r, given.tiny) for m, r in chosen]
    found = {own.name: own.found for own in made}
    return {"protocol": PROTOCOL, "records": made[0].records, "delta": made[0].delta, "settings": found}


def words(data: Data) -> Data:
    """The tables of each setting, and the improvement in percent."""
    return {
        "title": "MNIST, odd or even, 25 silos of two digits",
        "setting": f"25 silos of two digits each ({data['records'][0]} records), a network 50-64-2, full batches; "
        f"where 12 silos come to a round, each answers at most {SPARE} rounds more than its share.",
        "protocol_note": "Images of a silo are in no other; PCA is fitted on 10,000 images that are in none.",
    }


EXPERIMENT = experiment("mnist-parity-mlp", compute, words, before)

if __name__ == "__main__":
    EXPERIMENT.main()
