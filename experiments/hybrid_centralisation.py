"""Who holds the sensitive attributes: one office, several, or every silo; the trade-off of SteFFLe at equal epsilon.

``python -m experiments.hybrid_centralisation`` writes ``results/hybrid-centralisation``. Gupta, Poornash, Lowy and
Razaviyayn (arXiv:2411.07889), Section 4: features stay at their silos, attributes lie at one holder or at any number of
them, and only the holders' messages have noise. The curves are tuned and reported as those of `experiments.fair`.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from experiments.common import interval, verdict
from experiments.fair.compare import dominated, points_of
from experiments.fair.training import DELTA, Arena, Scale, Trainer, constant_error, curve, methods
from experiments.folder import PROTOCOL, Data, Experiment, Finding, Parts, save, table
from experiments.search import Trials, refuse_edges
from tacit.data import Federation
from tacit.studies.centralisation import dealt

DATA, LEVEL, SILOS = "credit-card", 0.75, 3
HOLDERS = (1, 2, 6, 12)
"""Numbers of holders to whom the attributes of all records are dealt."""
EPSILONS = (0.25, 1.0)
DIVIDED = "every silo its own"


@dataclass(frozen=True)
class Held(Arena):
    """An arena whose attributes lie at so many holders, apart from the features."""

    holders: int = 1

    def federation(self, seed: int) -> Federation:
        """The records as the holders see them; features of a full batch may lie anywhere."""
        return dealt(super().federation(seed), self.holders)


def arenas(scale: Scale, holders: tuple[int, ...]) -> dict[str, Arena]:
    """Each way to hold attributes, by name."""
    held: dict[str, Arena] = {_name(n): Held(DATA, LEVEL, SILOS, scale, holders=n) for n in holders}
    return {DIVIDED: Arena(DATA, LEVEL, SILOS, scale), **held}


def _name(holders: int) -> str:
    return "one holder" if holders == 1 else f"{holders} holders"


def compute(given: argparse.Namespace) -> Data:
    """What is missing of all curves, and those without privacy, for which it does not matter who holds what."""
    scale = Scale(seeds=2, tuning=1, rounds=6, records_per_silo=300) if given.tiny else Scale()
    settings = [DATA, LEVEL, SILOS, asdict(scale), EPSILONS]
    parts = Parts(given.out / "parts.json", settings)
    trials = Trials(given.out / "trials.jsonl", settings, chunk=64)
    shown = arenas(scale, HOLDERS[:1] if given.tiny else HOLDERS)
    first = shown[DIVIDED]
    constant = parts.get("constant", lambda: constant_error(first.federation(scale.reported[0]), "test"))
    rows = {row.name: row for row in methods(first.problem(), first.frequencies(), first.notion, scale.rounds)}
    curves: Data = {}
    for name, arena in shown.items():
        who = Trainer(rows["SteFFLe"], arena, arena.problem().objective, len(EPSILONS) * len(rows["SteFFLe"].dials))
        sizes = [len(silo.train["y"]) for silo in arena.federation(0).silos]
        made = partial(curve, who, LEVEL, EPSILONS, [constant, 1.0], _Named(trials, name))
        curves[name] = {"holders": len(sizes), "records": sizes, "cells": parts.get(name, made)}
    open_ = rows["SteFFLe, not private"]
    who = Trainer(open_, first, first.problem().objective, len(open_.dials))
    plain = parts.get("not private", partial(curve, who, LEVEL, (None,), [constant, 1.0], trials))
    told = {"seeds": scale.seeds, "rounds": scale.rounds, "delta": DELTA, "constant_error": constant}
    return {"protocol": PROTOCOL, **told, "curves": curves, "plain": plain}


class _Named(Trials):
    """The trials of one way to hold attributes, in a file that all of them share."""

    def __init__(self, trials: Trials, name: str) -> None:
        self.trials, self.name = trials, name

    def get(self, label: str, *others: Any) -> dict[str, np.ndarray]:
        """As `Trials`."""
        return self.trials.get(f"{self.name}, {label}", *others)


def areas(cell: Data, corner: tuple[float, float]) -> list[float]:
    """By seed: the area that a curve dominates between itself and the corner of no use."""
    seeds = zip(*(zip(*cell[key], strict=True) for key in ("error", "violation")), strict=True)
    return [dominated(list(zip(errors, violations, strict=True)), corner) for errors, violations in seeds]


def corner_of(data: Data) -> tuple[float, float]:
    """The error of the constant classifier, and the largest violation of the curves without privacy."""
    return data["constant_error"], max(max(row) for row in data["plain"]["None"]["violation"])


def draw(folder: Path, data: Data) -> None:
    """Error against violation, a panel for each budget."""
    figure, axes = plt.subplots(1, len(EPSILONS), figsize=(5 * len(EPSILONS), 4), sharey=True, layout="constrained")
    for axis, epsilon in zip(axes, EPSILONS, strict=True):
        lines = {name: own["cells"][str(epsilon)] for name, own in data["curves"].items()}
        for name, cell in {**lines, "not private": data["plain"]["None"]}.items():
            spots = points_of(cell)
            style = {"ls": ":", "color": "black"} if name == "not private" else {}
            means = [[value["mean"] for value in column] for column in zip(*spots, strict=True)]
            axis.plot(*means, marker="o", ms=3, label=name, **style)
        axis.set(title=f"epsilon = {epsilon:g}", xlabel="test error")
        axis.set_xlim(right=min(axis.get_xlim()[1], data["constant_error"]))
    axes[0].set_ylabel("violation of demographic parity")
    axes[0].legend(fontsize=7)
    save(figure, folder / "figure.png")


def words(data: Data) -> Data:
    """A table of areas by holders and budget, and which differences are more than chance."""
    if data["rounds"] > 10:
        cells = {f"{name}, {e}": own["cells"][str(e)]["choice"] for name, own in data["curves"].items()
                 for e in EPSILONS}  # fmt: skip
        refuse_edges(cells)
    corner, rows, said = corner_of(data), [], []
    whole = float(np.mean(areas(data["plain"]["None"], corner)))
    divided = data["curves"][DIVIDED]["cells"]
    for name, own in data["curves"].items():
        found = {e: areas(own["cells"][str(e)], corner) for e in EPSILONS}
        spots = [interval(np.asarray(found[e]) / whole) for e in EPSILONS]
        rows.append([name, *(f"{spot['mean']:.3f} ± {spot['half90']:.3f}" for spot in spots)])
        if name != DIVIDED:
            gaps = [interval((np.asarray(found[e]) - areas(divided[str(e)], corner)) / whole) for e in EPSILONS]
            told = [
                f"{verdict(gap, 'smaller', 'larger')} at epsilon {e:g}" for gap, e in zip(gaps, EPSILONS, strict=True)
            ]
            said.append(f"{name}: {', '.join(told)}")
    return {
        "table": table(["attributes are held by", *(f"epsilon {e:g}" for e in EPSILONS)], rows),
        "said": said,
        "silos": SILOS,
        "level": LEVEL,
        "holders": HOLDERS,
    }


def finding(data: Data) -> Finding:
    """Which ways to hold attributes differ from every silo holding its own."""
    return Finding("area of the trade-off beside every silo holding its own: " + "; ".join(words(data)["said"]), "none")


EXPERIMENT = Experiment("hybrid-centralisation", compute, draw, words, tiny=True, finding=finding)

if __name__ == "__main__":
    EXPERIMENT.main()
