"""The fairness experiments as result folders: curves, sweeps, and the printed noise at its true price."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from experiments.fair.compare import joined
from experiments.fair.page import PAGES, Page, draw, finding, words
from experiments.fair.training import DELTA, Arena, Method, Scale, Trainer, constant_error, curve, methods, noise_at
from experiments.folder import PROTOCOL, Data, Experiment, Parts
from experiments.search import Trials
from tacit.algorithm import Algorithm
from tacit.objectives import Problem
from tacit.objectives.fairness import Notion
from tacit.plans.catalogue import find, paper_noise

LEVELS = (0.0, 0.75)
EPSILONS: dict[Notion, tuple[float, ...]] = {"demographic-parity": (1.0, 3.0, 9.0), "equalized-odds": (1.0, 3.0)}
TINY = Scale(seeds=2, tuning=1, rounds=6, records_per_silo=300)
_PAPER_BATCH, _PAPER_EPOCHS, _PRINTED_SEEDS = 256, 40, 5


def experiment(name: str) -> Experiment:
    """The result folder of this name."""
    page = PAGES[name]
    told, made = partial(words, page), partial(compute, page)
    return Experiment(
        name,
        made,
        draw,
        told,
        f"fair {name}",
        "fair.md.j2",
        tiny=True,
        parts=page.parts,
        finding=finding,
        since=PROTOCOL,
    )


def main() -> None:
    """Run what is not yet there and write the result folder."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in PAGES:
        sys.exit(f"Expected one of {', '.join(PAGES)}, got {name or 'nothing'}: python -m experiments.fair NAME")
    experiment(name).main(sys.argv[2:])


def compute(page: Page, given: argparse.Namespace) -> Iterator[Data]:
    """The numbers after each part; what is in the folder is not made again."""
    scale = TINY if given.tiny else Scale()
    parts = Parts(given.out / "parts.json", [page.data, dataclasses.asdict(scale)])
    trials = Trials(given.out / "trials.jsonl", [page.data, dataclasses.asdict(scale)], chunk=64)
    found: Data = {"protocol": PROTOCOL, "curves": {}, "delta": DELTA, "scale": dataclasses.asdict(scale)}
    arena, first = Arena(page.data, 0.0, 3, scale), scale.reported[0]
    found["constant_error"] = parts.get("constant", lambda: constant_error(arena.federation(first), "test"))
    for part in ("demographic-parity", *(part for part in page.parts[1:] if part in given.parts)):
        if part == "printed-noise":
            found["printed"] = parts.get("printed noise", lambda: _printed(page, scale))
        elif part == "sweeps":
            setting = found["curves"]["demographic-parity"]["0.75"]["SteFFLe"]["1.0"]["setting"]
            found["sweeps"] = _sweeps(parts, page, scale, setting)
        else:
            notion: Notion = "equalized-odds" if part == "equalized-odds" else "demographic-parity"
            found["curves"][notion] = _curves(parts, trials, page, scale, notion)
        found["cpu_seconds"] = round(60 * parts.cpu_minutes, 1)
        yield found


def _curves(parts: Parts, trials: Trials, page: Page, scale: Scale, notion: Notion) -> dict[str, Any]:
    """By heterogeneity and method, all on the same splits, those with one holder of all records too."""
    arena = Arena(page.data, 0.0, 3, scale, notion)
    problem = arena.problem()
    found: dict[str, Any] = {str(level): {} for level in LEVELS}
    corner = [float(np.mean([constant_error(arena.federation(i), "validation") for i in range(scale.tuning)])), 1.0]
    for row in methods(problem, arena.frequencies(), notion, scale.rounds):
        epsilons = EPSILONS[notion] if row.private else (None,)
        who = Trainer(row, arena, problem.objective, len(epsilons) * len(row.dials))
        for level in LEVELS:
            made = partial(curve, who, level, epsilons, corner, trials)
            found[str(level)][row.name] = parts.get(f"{notion}, h={level:g}, {row.name}", made)
        if row.name == "central ERM":
            corner[1] = _unfair(trials, found[str(LEVELS[0])][row.name]["None"]["choice"], notion, scale)
    for curves in found.values():
        # Its dial moves no violation of groups, so that the setting does: it is compared at both ends.
        curves["FedFDP"] = joined(curves["FedFDP"], curves.pop("FedFDP, least error"))
    return found


def _unfair(trials: Trials, choice: Mapping[str, Any], notion: Notion, scale: Scale) -> float:
    """The violation of central training on the tuning seeds: what a method has that does not care."""
    label = f"{notion}, h={LEVELS[0]:g}, central ERM, None"
    kept = trials.get(label, [choice["point"]], range(scale.tuning), _nothing)
    return float(kept["violation"].mean())


def _nothing(points: Any, seed: int) -> Any:
    raise AssertionError("these trials were run before")


def _ours(arena: Arena, problem: Problem) -> Method:
    rows = methods(problem, arena.frequencies(), arena.notion, arena.scale.rounds)
    return next(row for row in rows if row.name == "SteFFLe")


def _sweeps(parts: Parts, page: Page, scale: Scale, setting: Mapping[str, float]) -> dict[str, Any]:
    """Error and violation at epsilon = 1 and strength 1 against heterogeneity and against the number of silos."""
    full = scale != TINY
    levels, numbers = ((0.0, 0.3, 0.6, 0.75, 0.9), (1, 2, 3, 6, 9, 12)) if full else ((0.0, 0.9), (1, 3))
    trainers: dict[int, Trainer] = {}

    def spot(level: float, silos: int) -> dict[str, Any]:
        arena = Arena(page.data, 0.0, silos, scale)
        if silos not in trainers:
            problem = arena.problem()
            trainers[silos] = Trainer(_ours(arena, problem), arena, problem.objective, 1)
        who = trainers[silos]
        records = [int(n) for n in arena.seed(0, who.objective, False).silos.counts]
        point = {**setting, "strength": 1.0, "noise_multiplier": noise_at(who.method, records, 1.0)}
        ran = who.run([point], scale.reported, level)
        return {k: [float(v) for v in ran[f"test_{k}"][:, 0]] for k in ("error", "parity_gap")}

    def at(level: float, silos: int) -> Any:
        level = level if silos > 1 else 0.0
        return parts.get(f"sweep h={level:g}, N={silos}", partial(spot, level, silos))

    return {
        "setting": dict(setting),
        "levels": list(levels),
        "silos": list(numbers),
        "by_level": [at(h, 3) for h in levels],
        "by_silos": {str(h): [at(h, n) for n in numbers] for h in LEVELS},
    }


def _printed(page: Page, scale: Scale) -> dict[str, Any]:
    """The noise of Theorem 3.3 as printed, in epochs of batches of 256, and what it really costs."""
    arena = Arena(page.data, 0.75, 3, scale)
    problem, frequencies = arena.problem(), arena.frequencies()
    least = min(int(n) for n in arena.seed(0, problem.objective, False).silos.counts)
    batch, epochs = min(_PAPER_BATCH, least // 4), _PAPER_EPOCHS if scale.rounds > 10 else 2
    rounds = epochs * (least // batch)
    decay_every = max(1, 10 * (least // batch))
    fixed: dict[str, Any] = {"num_rounds": rounds, "clip_norm": 100.0, "batch_size": batch, "passes": epochs}
    fixed |= {"sampling": "one-pass", "protects": "sensitive-attribute"}
    fixed |= {"frequencies": frequencies, "decay": 0.8, "decay_every": decay_every}

    def build(**point: Any) -> Algorithm:
        return find("steffle").build(problem, **fixed, **point)

    dials, steps, epsilons = (0.0, 0.5, 1.0, 2.0, 5.0), (0.25, 1.0), EPSILONS["demographic-parity"]
    prices = {e: paper_noise("steffle", records=least, epsilon=e, delta=DELTA, **fixed) for e in epsilons}
    noise = {e: price.releases[0].noise_multiplier for e, price in prices.items() if price is not None}
    points = [
        {"strength": d, "step_size": s, "noise_multiplier": noise[e]} for e in epsilons for s in steps for d in dials
    ]
    method = Method("as printed", build, "strength", dials, {}, "")
    who = Trainer(method, arena, problem.objective, len(points))
    tuning = who.run(points, range(1), 0.75)["validation_error"].mean(axis=0)
    ran = who.run(points, scale.reported[:_PRINTED_SEEDS], 0.75)
    found = {}
    for n, epsilon in enumerate(epsilons):
        price = prices[epsilon]
        assert price is not None
        chosen = _best_of(tuning, n * len(steps), len(steps), len(dials))
        found[str(epsilon)] = {
            "epsilon_certified": price.epsilon_certified,
            "conditions": [c.text for c in price.conditions if not c.holds],
            "dials": list(dials),
            "step_size": steps[chosen - n * len(steps)],
            "error": _columns(ran["test_error"], chosen, len(dials)),
            "violation": _columns(ran["test_parity_gap"], chosen, len(dials)),
        }
    return found


def _best_of(scores: np.ndarray, first: int, number: int, width: int) -> int:
    """Of some blocks of points, the one with the least mean score."""
    scores = np.nan_to_num(scores, nan=9.0)
    return min(range(first, first + number), key=lambda i: float(scores[i * width : (i + 1) * width].mean()))


def _columns(values: np.ndarray, block: int, width: int) -> list[list[float]]:
    own: Sequence[int] = range(block * width, (block + 1) * width)
    return [[round(float(v), 5) for v in values[:, j]] for j in own]
