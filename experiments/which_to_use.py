"""Which algorithm to use: general-purpose methods on real records, all tuned alike by rehearsal.

``python -m experiments.which_to_use`` writes ``results/which-to-use``. It can be stopped and goes on where it was.

A *rehearsal* trains on records that are made up from public facts alone: how many records each silo has, how many
features, the bound of their norm, the task and its classes. Step, clip and rounds that err least there are used on the
real records, so that tuning costs no privacy. Every method is searched by one rule on one lattice: first a coarse part
of it, then all neighbours of the best point until none is better. So the best point lies inside of what was tried,
unless a search was ended before: such choices are counted.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from experiments.common import Runner, interval, noise_for, records_of, seeds_of, verdict
from experiments.folder import Data, Experiment, Finding, Parts, save, table
from tacit.algorithm import Algorithm
from tacit.data import Federation
from tacit.data.federation import SiloData
from tacit.objectives import Objective, Problem, linear, logistic, softmax, squared
from tacit.plans.catalogue import find
from tacit.plans.spec import load_study
from tacit.simulate.compiled import Seed
from tacit.studies.federation import federation_of

STUDIES = ("heart-disease", "adult-fair", "credit-card-fair", "acs-income-fair", "california-housing-mlp",
           "mnist-logistic-parity")  # fmt: skip
"""Shipped studies whose records and silos are used, with a linear model."""
MOST = 3_000
"""Records of a silo that are used, at most."""
EPSILONS, DELTA, SEEDS = (0.5, 2.0, 8.0), 1e-5, 5
ROUNDS, FIRST_ROUNDS = (4, 10, 30, 90), (10, 30)
"""Rounds that may be tried, and those that are tried first; the next of them where the best lies at an end."""


@dataclass(frozen=True)
class Axis:
    """Values ``base`` x ``ratio`` to the power of every whole number, and the powers to begin with."""

    base: float
    ratio: float
    first: tuple[int, ...]


AXES = {"travel": Axis(0.1, 10**0.5, (-3, -1, 1, 3, 5)), "clip_norm": Axis(0.3, 10**0.5, (-2, 0, 2))}
"""Step times clip, which is how far one round may move a model; and the clip."""
OWN: dict[str, dict[str, Axis]] = {"localised-mb-sgd": {"strength": Axis(0.1, 10.0, (0,))}}
"""What a method needs beyond these, and no fact that is public gives."""
STEPS, BETTER = 8, 1e-4
"""How often a search goes on to neighbours at most, and by which part of its error a better point must be better."""
REHEARSED, SCORED = 10_000, 5_000
"""A rehearsal is repeated until so many records were made up, and scored on at least so many others."""
WIDTH = 24
"""How many points are trained in one program."""

_FULL: dict[str, Any] = {"sampling": "full"}
_PHASES: dict[str, Any] = {**_FULL, "phase_length": 2}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "mb-sgd": ("mb-sgd", {**_FULL, "output": "last"}),
    "mb-sgd, momentum": ("mb-sgd", {**_FULL, "output": "last", "server": "momentum"}),
    "mb-sgd, adam": ("mb-sgd", {**_FULL, "output": "last", "server": "adam"}),
    "mb-sgd, Poisson": ("mb-sgd", {"sampling": "poisson", "output": "last"}),
    "mb-sgd, allocation": ("mb-sgd", {"sampling": "allocation", "output": "last"}),
    "mb-sgd, one pass": ("mb-sgd", {"sampling": "one-pass", "output": "last"}),
    "dp-ftrl": ("dp-ftrl", {"sampling": "one-pass"}),
    "mu2-sgd": ("mu2-sgd", {"sampling": "one-pass"}),
    "accelerated-mb-sgd": ("accelerated-mb-sgd", _FULL),
    "one-pass-accelerated": ("one-pass-accelerated", {"sampling": "one-pass"}),
    "localised-mb-sgd": ("localised-mb-sgd", {"sampling": "one-pass"}),
    "quantile-clip": ("quantile-clip", _FULL),
    "preconditioned-sgd": ("preconditioned-sgd", _FULL),
    "prox-svrg": ("prox-svrg", _PHASES),
    "pl-svrg": ("pl-svrg", {**_PHASES, "restarts": 2}),
    "prox-spider": ("prox-spider", _PHASES),
    "alternate-spider": ("alternate-spider", _FULL),
    "warm-spider": ("warm-spider", {**_PHASES, "warm_rounds": 2}),
    "diff2-gd": ("diff2-gd", _PHASES),
    "diff2-bvr-lsgd": ("diff2-bvr-lsgd", {**_PHASES, "local_steps": 2}),
    "mb-psgm-fg": ("mb-psgm-fg", _PHASES),
    "ce-psgm-fg": ("ce-psgm-fg", {**_PHASES, "local_steps": 2}),
    "local-sgd": ("local-sgd", {**_FULL, "local_steps": 2}),
}
SAME = {"prox-sgd": "mb-sgd, one pass", "mb-psgm": "mb-psgm-fg", "ce-psgm": "ce-psgm-fg"}
"""Algorithms that with these terms and a linear model without a regulariser are one of the above."""
LEFT_OUT = ("sgda", "steffle", "fedfdp", "lagrangian-dual", "mr-mtl")
"""Algorithms for fairness, for saddle points, or whose models are the silos' own."""
DIRECT_ONLY = ("dp-ftrl", "local-sgd")
"""What has no price through pairwise sums."""
_MOST_BEHIND = 50.0
Point = tuple[int, ...]
"""The powers of a point on its axes."""


def compute(given: Any) -> Data:
    """Every study, channel and method, at all budgets."""
    settings = {"epsilons": EPSILONS, "rounds": ROUNDS, "seeds": SEEDS, "most": MOST}
    parts = Parts(given.out / "parts.json", {**settings, "tiny": given.tiny})
    found: dict[str, Any] = {}
    for study in STUDIES[:1] if given.tiny else STUDIES:
        case = Case(study, given.tiny)
        for channel in ("direct", "pairwise"):
            for name in (n for n in METHODS if channel == "direct" or n not in DIRECT_ONLY):
                label = f"{study} | {channel} | {name}"
                found[label] = parts.get(label, partial(case.method, channel, name))
    return {**settings, "delta": DELTA, "found": found}


class Case:
    """The records of one study, and those of its rehearsals."""

    def __init__(self, study: str, tiny: bool) -> None:
        federations = [_fewer(federation_of(load_study(study), seed)) for seed in range(2 if tiny else SEEDS)]
        first, self.tiny = federations[0], tiny
        self.problem, self.records = _problem(first), records_of(first)
        self.metric = "test_loss" if first.task == "regression" else "test_error"
        times = 1 if tiny else max(1, min(SEEDS, REHEARSED // sum(self.records)))
        made = [rehearsal(first, i) for i in range(times)]
        self.rehearsed = seeds_of(made, self.problem.objective, ("test",))
        self.real = seeds_of(federations, self.problem.objective, ("test",))

    def method(self, channel: str, name: str) -> dict[str, Any]:
        """By epsilon: the point that errs least in rehearsal, and its test errors on the real records."""
        trials = Searches(self, channel, name)
        found = {}
        for epsilon, (rounds, best) in trials.best().items():
            point = trials.values(best.point)
            errors = [float(trials.errors(rounds, [(epsilon, best.point)], [seed])[0]) for seed in self.real]
            settled = best.settled and rounds not in (trials.rounds[0], trials.rounds[-1])
            found[f"{epsilon:g}"] = {"error": errors, "rounds": rounds, **point, "settled": settled}
        return found


@dataclass
class Best:
    """The best point of a search, and whether all its neighbours were tried."""

    point: Point
    error: float
    settled: bool = False


class Searches:
    """Searches for one method in one channel: a program and the noise of every budget for each number of rounds."""

    def __init__(self, case: Case, channel: str, name: str) -> None:
        self.case, self.channel, self.name = case, channel, name
        self.axes = {**AXES, **OWN.get(name, {})}
        self.epsilons = EPSILONS[1:2] if case.tiny else EPSILONS
        self.made: dict[int, tuple[Runner, dict[float, np.ndarray]]] = {}
        passes = METHODS[name][1]["sampling"] != "full"
        self.rounds = [rounds for rounds in ROUNDS if not passes or rounds <= min(case.records)]

    def best(self) -> dict[float, tuple[int, Best]]:
        """For each budget rounds and point of least error; where rounds are at an end, the next are tried too."""
        found: dict[tuple[float, int], Best] = {}
        wanted = {epsilon: list(FIRST_ROUNDS[:1] if self.case.tiny else FIRST_ROUNDS) for epsilon in self.epsilons}
        while any(wanted.values()):
            for rounds in sorted({r for own in wanted.values() for r in own}):
                budgets = [epsilon for epsilon in self.epsilons if rounds in wanted[epsilon]]
                searched = self._searched(rounds, budgets)
                found |= {(epsilon, rounds): best for epsilon, best in searched.items()}
            wanted = {} if self.case.tiny else {e: self._beyond(e, found) for e in self.epsilons}
        return {e: min(((r, b) for (own, r), b in found.items() if own == e), key=_error_of) for e in self.epsilons}

    def _beyond(self, epsilon: float, found: dict[tuple[float, int], Best]) -> list[int]:
        """The next number of rounds on the side where the best one has no neighbour yet."""
        tried = {rounds: best for (own, rounds), best in found.items() if own == epsilon}
        place = self.rounds.index(min(tried.items(), key=_error_of)[0])
        return [rounds for rounds in self.rounds[max(0, place - 1) : place + 2] if rounds not in tried]

    def _searched(self, rounds: int, epsilons: Sequence[float]) -> dict[float, Best]:
        """The best point at each budget in so many rounds."""
        starts = list(itertools.product(*(axis.first for axis in self.axes.values())))
        tried: dict[float, dict[Point, float]] = {epsilon: {} for epsilon in epsilons}
        best = {epsilon: Best(starts[0], np.inf) for epsilon in epsilons}
        wanted: dict[float, Iterable[Point]] = dict.fromkeys(epsilons, starts)
        for _ in range(1 if self.case.tiny else STEPS):
            points = [(e, point) for e in epsilons for point in wanted[e] if point not in tried[e]]
            if not points:
                break
            for (epsilon, point), error in zip(points, self.errors(rounds, points, self.case.rehearsed), strict=True):
                tried[epsilon][point] = float(error)
                if error < best[epsilon].error * (1 - BETTER):
                    best[epsilon] = Best(point, float(error))
            wanted = {epsilon: _neighbours(own.point) for epsilon, own in best.items()}
        for epsilon, own in best.items():
            own.settled = all(point in tried[epsilon] for point in _neighbours(own.point))
        return best

    def values(self, point: Point) -> dict[str, float]:
        """What the powers of a point stand for."""
        return {
            name: axis.base * axis.ratio**power for (name, axis), power in zip(self.axes.items(), point, strict=True)
        }

    def errors(self, rounds: int, points: Sequence[tuple[float, Point]], seeds: Sequence[Seed]) -> np.ndarray:
        """The mean error of points at their budgets over seeds; a run that diverged is infinitely bad."""
        if rounds not in self.made:
            self.made[rounds] = self._made(rounds)
        runner, noise = self.made[rounds]
        told = [{**self.values(point), "noise_multiplier": noise[epsilon]} for epsilon, point in points]
        parts = [told[i : i + WIDTH] for i in range(0, len(told), WIDTH)]
        found = [np.concatenate([runner(part, seed)[self.case.metric] for part in parts]) for seed in seeds]
        return np.nan_to_num(np.mean(found, axis=0), nan=np.inf)

    def _made(self, rounds: int) -> tuple[Runner, dict[float, np.ndarray]]:
        """The method as a function of a point, and the noise of each silo at each budget."""
        problem, (algorithm, own) = self.case.problem, METHODS[self.name]
        terms = {
            "num_rounds": rounds,
            "channel": self.channel,
            **own,
            **batch_of(self.name, min(self.case.records), rounds),
        }
        if "phase_length" in own:
            terms["difference_slope"] = problem.smoothness
        usual = {name: axis.base for name, axis in OWN.get(self.name, {}).items()}

        def build(travel: Any = 1.0, clip_norm: Any = 1.0, **given: Any) -> Algorithm:
            return find(algorithm).build(
                problem, step_size=travel / clip_norm, clip_norm=clip_norm, **terms, **{**usual, **given}
            )

        noise = {epsilon: noise_for(build, self.case.records, epsilon, DELTA) for epsilon in self.epsilons}
        return Runner(build, problem.objective, None, (WIDTH,)), noise


def _error_of(row: tuple[int, Best]) -> float:
    return row[1].error


def _neighbours(point: Point) -> list[Point]:
    """All points at most one power away on each axis, but the point itself.

    >>> _neighbours((0,))
    [(-1,), (1,)]
    """
    near = itertools.product(*((power - 1, power, power + 1) for power in point))
    return [other for other in near if other != point]


def batch_of(name: str, records: int, rounds: int) -> dict[str, Any]:
    """The batch with which a method reads (nearly) all records of the smallest silo, once or in every round."""
    sampling = METHODS[name][1]["sampling"]
    if sampling == "full":
        return {"batch_size": None}
    if name == "localised-mb-sgd":  # its batch is the first of parts, each half of the one before
        return {"batch_size": records // 2}
    batch = max(1, records // rounds)
    return {"batch_size": batch, **({"capacity": min(records, 2 * batch + 10)} if sampling == "poisson" else {})}


def _fewer(federation: Federation) -> Federation:
    """At most so many training records of each silo."""
    silos = (replace(silo, train={k: v[:MOST] for k, v in silo.train.items()}) for silo in federation.silos)
    return replace(federation, silos=tuple(silos))


def _problem(federation: Federation) -> Problem:
    """A linear model with the loss of the task, and the smoothness that follows from the bound of features' norms."""
    width, classes = int(np.prod(federation.feature_shape)), federation.num_classes or 1
    square = (federation.feature_norm or 1.0) ** 2 + 1.0
    if federation.task == "regression":
        return Problem(Objective(linear(width, 1), squared()), smoothness=square)
    if classes == 2:
        return Problem(Objective(linear(width, 1), logistic()), smoothness=square / 4)
    return Problem(Objective(linear(width, classes), softmax()), smoothness=square / 2)


def rehearsal(federation: Federation, seed: int) -> Federation:
    """Records in place of the real ones, drawn from public facts alone: sizes, widths, the bound of norms, the task."""
    generator, scored = np.random.default_rng(seed), -(-SCORED // len(federation.silos))
    width, classes = int(np.prod(federation.feature_shape)), federation.num_classes or 1
    rule = generator.normal(size=(width, max(classes, 2)))
    bound = federation.feature_norm or 1.0

    def drawn(count: int) -> dict[str, np.ndarray]:
        x = generator.normal(size=(count, width))
        x *= bound * generator.uniform(size=(count, 1)) / np.linalg.norm(x, axis=1, keepdims=True)
        scores = x @ rule / bound + 0.3 * generator.normal(size=(count, rule.shape[1]))
        y = np.tanh(scores[:, 0]) if federation.task == "regression" else scores.argmax(axis=1)
        shape = (count, *federation.feature_shape)
        return {"x": x.reshape(shape).astype(np.float32), "y": y.astype(federation.silos[0].train["y"].dtype)}

    def instead(silo: SiloData) -> SiloData:
        test = drawn(max(scored, len(silo.test["y"])))
        return replace(silo, train=drawn(len(silo.train["y"])), validation=drawn(len(silo.validation["y"])), test=test)

    return replace(federation, silos=tuple(map(instead, federation.silos)))


def rows_of(data: Data) -> list[tuple[str, str, str, float, dict[str, Any]]]:
    """Study, channel, method, epsilon and what was found."""
    return [
        (*label.split(" | "), float(epsilon), found)
        for label, own in data["found"].items()
        for epsilon, found in own.items()
    ]


def draw(folder: Path, data: Data) -> None:
    """How far each method is behind the best of its case: a row for each method, a column for each case."""
    means = {(*label, e): interval(found["error"])["mean"] for *label, e, found in rows_of(data)}
    panels = list(dict.fromkeys((study, channel) for study, channel, *_ in rows_of(data)))
    epsilons = sorted({e for *_, e, _ in rows_of(data)})
    cases = [(*panel, e) for panel in panels for e in epsilons]
    behind = np.full((len(METHODS), len(cases)), np.nan)
    for column, (study, channel, epsilon) in enumerate(cases):
        own = [means.get((study, channel, name, epsilon), np.nan) for name in METHODS]
        behind[:, column] = 100 * (np.asarray(own) / np.nanmin(own) - 1)
    order = np.argsort(np.nanmean(np.minimum(behind, _MOST_BEHIND), axis=1))
    figure, axis = plt.subplots(figsize=(13, 7), layout="constrained")
    image = axis.imshow(behind[order], aspect="auto", cmap="viridis_r", vmin=0, vmax=_MOST_BEHIND)
    axis.set_yticks(range(len(METHODS)), [list(METHODS)[i] for i in order], fontsize=8)
    axis.set_xticks(range(len(cases)), [f"{e:g}" for *_, e in cases], fontsize=6)
    axis.set_xlabel("epsilon, for each study and channel (white: no price in this channel)")
    for number, (study, channel) in enumerate(panels):
        middle, title = (number + 0.5) * len(epsilons) - 0.5, study.replace("-", "-\n", 1)
        axis.text(middle, -0.8, f"{title}\n{channel}", ha="center", va="bottom", fontsize=7)
        axis.axvline((number + 1) * len(epsilons) - 0.5, color="white", lw=2)
    figure.colorbar(image, label=f"percent above the best of the case ({_MOST_BEHIND:g} and more)", pad=0.01)
    save(figure, folder / "figure.png")


def words(data: Data) -> Data:
    """A table for each study and channel, how often each method is best or level with the best, seed by seed."""
    rows, tables, level = rows_of(data), [], dict.fromkeys(METHODS, 0)
    epsilons = sorted({e for *_, e, _ in rows})
    panels = list(dict.fromkeys((study, channel) for study, channel, *_ in rows))
    for panel in panels:
        own = {(n, e): f for study, c, n, e, f in rows if (study, c) == panel}
        shown = [n for n in METHODS if any(key[0] == n for key in own)]
        for epsilon in epsilons:
            best = min((own[n, epsilon]["error"] for n in shown), key=np.mean)
            for name in shown:
                level[name] += is_level(own[name, epsilon]["error"], best)
        cells = [[n, *[_cell(own[n, e]) for e in epsilons]] for n in shown]
        header = ["method", *[f"epsilon {e:g}" for e in epsilons]]
        tables.append(f"## {panel[0]}, {panel[1]}\n\n" + table(header, cells))
    direct = {
        name: len(epsilons) * sum(c == "direct" or name not in DIRECT_ONLY for _, c in panels) for name in METHODS
    }
    ranked = sorted(((name, count, direct[name]) for name, count in level.items()), key=lambda row: -row[1] / row[2])
    return {
        "tables": "\n\n".join(tables),
        "level": table(["method", "level with the best", "of"], ranked),
        "ranked": ranked,
        "cases": len(panels) * len(epsilons),
        "open": sum(not found["settled"] for *_, found in rows),
        "runs": len(rows),
        "same": "; ".join(f"{name} is {other}" for name, other in SAME.items()),
        "left_out": ", ".join(LEFT_OUT),
    }


def is_level(errors: Sequence[float], best: Sequence[float]) -> bool:
    """Whether errors are those of the best, or differ from them by less than the interval of paired differences."""
    return errors is best or verdict(interval(np.subtract(errors, best))) == "level"


def _cell(found: Data) -> str:
    own = interval(found["error"])
    places = max(3, 2 - int(np.floor(np.log10(max(own["mean"], 1e-12)))))
    return f"{own['mean']:.{places}f} ± {own['half90']:.{places}f} ({found['rounds']})"


def finding(data: Data) -> Finding:
    """The methods that are most often level with the best."""
    told = words(data)
    most = ", ".join(f"{name} ({count} of {of})" for name, count, of in told["ranked"][:3])
    return Finding(f"most often level with the best: {most}", "none")


EXPERIMENT = Experiment("which-to-use", compute, draw, words, tiny=True, finding=finding)

if __name__ == "__main__":
    EXPERIMENT.main()
