"""What settings lose against the best of a grid, and what rules that are fitted without a data set lose on it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tacit.plans.defaults import mean_noise

Row = dict[str, Any]
EARLIER = 0.01
"""Nothing may be worse than the defaults that were there before by more than this."""


class Rule(NamedTuple):
    """A rule for the step: ``min(cap, kappa / noise)``, or ``cap`` alone where there is no kappa."""

    rounds: int
    output: str
    server: str
    clip: float
    kappa: float | None
    cap: float


PLAIN = {
    "binary": Rule(100, "tail", "sgd", 1.0, 8.0, 8.0),
    "multiclass": Rule(100, "tail", "sgd", 1.0, 8.0, 4.0),
    "regression": Rule(100, "tail", "sgd", 0.1, 1.0, 2.0),
}
"""A hundred plain rounds for every target, with constants that an earlier study had found on other splits."""


class Explored:
    """The grid of one data set: errors by rounds, output and setting at every epsilon."""

    def __init__(
        self,
        label: str,
        by_rounds: Mapping[int, Row],
        before: Sequence[float],
        epsilons: Sequence[float],
        delta: float,
    ) -> None:
        self.label, self.by_rounds, self.before, self.epsilons = label, by_rounds, before, epsilons
        self.facts = next(iter(by_rounds.values()))
        self.task, self.records = self.facts["task"], self.facts["records"]
        outputs = self.facts["classes"] if self.task == "multiclass" else 1
        self.parameters = (self.facts["features"] + 1) * outputs
        self.count = sum(len(row["settings"]) * len(row["errors"]) for row in by_rounds.values())
        told: dict[str, Any] = {"delta": delta, "weights": self.records}
        self.noise = [mean_noise(self.records, epsilon=epsilon, **told) for epsilon in epsilons]
        self._tables: dict[Any, tuple[np.ndarray, np.ndarray]] = {}

    def best(self, place: int) -> Row:
        """The best setting at one epsilon, and whether its step or clip is at the edge of the grid."""
        found = []
        for rounds, row in self.by_rounds.items():
            for output, errors in row["errors"].items():
                for setting, error in zip(row["settings"], errors[place], strict=True):
                    found.append({**setting, "rounds": rounds, "output": output, "error": error})
        least = min(found, key=lambda row: row["error"] if math.isfinite(row["error"]) else math.inf)
        return {**least, "edge": self._is_edge(least)}

    def _is_edge(self, row: Row) -> bool:
        """Whether the grid has no shorter or no longer step for this clip, or no smaller clip.

        A clip of one cuts next to nothing of features of norm one: there is nothing beyond it.
        """
        own = [s for s in self.by_rounds[row["rounds"]]["settings"] if s["server"] == row["server"]]
        steps = [s["step_size"] for s in own if s["clip_norm"] == row["clip_norm"]]
        return row["step_size"] in (min(steps), max(steps)) or row["clip_norm"] == min(s["clip_norm"] for s in own)

    def errors(self, rule: Rule) -> np.ndarray:
        """The error of a rule at every epsilon, between the steps of the grid on a line in their logarithms."""
        found = []
        for place in range(len(self.epsilons)):
            walk = self.noise[place] * rule.clip * rule.rounds * math.sqrt(self.parameters)
            step = rule.cap if rule.kappa is None else min(rule.cap, rule.kappa / walk)
            steps, errors = self._table(rule, place)
            found.append(float(np.interp(math.log(step), steps, errors)))
        return np.asarray(found)

    def _table(self, rule: Rule, place: int) -> tuple[np.ndarray, np.ndarray]:
        key = (rule.rounds, rule.output, rule.server, rule.clip, place)
        if key not in self._tables:
            errors = self.by_rounds[rule.rounds]["errors"][rule.output][place]
            own = [
                (setting["step_size"], error)
                for setting, error in zip(self.by_rounds[rule.rounds]["settings"], errors, strict=True)
                if setting["server"] == rule.server and setting["clip_norm"] == rule.clip
            ]
            steps, values = zip(*own, strict=True)
            self._tables[key] = np.log(steps), np.asarray(values, float)
        return self._tables[key]


def rules_for(one: Explored) -> list[Rule]:
    """The rules to fit from."""
    grid = one.by_rounds[100]["settings"]
    clips = sorted({setting["clip_norm"] for setting in grid})
    adam = sorted({setting["step_size"] for setting in grid if setting["server"] == "adam"})
    both = list(itertools.product((30, 100), ("tail", "last")))
    plain = [
        Rule(rounds, output, server, clip, kappa, cap)
        for (rounds, output), server, clip, kappa, cap in itertools.product(
            both,
            ("sgd", "momentum"),
            clips,
            (1.0, 2.0, 4.0, 8.0, 12.0, 16.0, 24.0, 32.0),
            (2.0, 4.0, 8.0, 16.0, 32.0, 64.0),
        )
    ]
    return plain + [Rule(*pair, "adam", clip, None, step) for pair, clip, step in itertools.product(both, clips, adam)]


def left_out(sets: Sequence[Explored], best: Mapping[tuple[str, int], float]) -> dict[str, list[float]]:
    """By data set: the regrets of the rule that is fitted to all others of its task.

    The rule has the least mean regret of those that are nowhere worse than before by more than `EARLIER`, or is worse
    by the least where there is none. Two divisions of one data set are left out together.
    """
    found: dict[str, list[float]] = {}
    for task in {one.task for one in sets}:
        own = [one for one in sets if one.task == task]
        rules, places = rules_for(own[0]), range(len(own[0].epsilons))
        bests = {one.label: np.asarray([best[one.label, place] for place in places]) for one in own}
        before = {one.label: np.asarray([one.before[place] for place in places]) for one in own}
        errors = {one.label: np.asarray([one.errors(rule) for rule in rules]) for one in own}
        for one in own:
            others = [o.label for o in own if o.label.split(",")[0] != one.label.split(",")[0]]
            regret = np.mean([errors[o] - bests[o] for o in others], axis=(0, 2))
            worse = np.max([errors[o] - before[o] for o in others], axis=(0, 2))
            allowed = np.where(worse <= max(EARLIER, worse.min()), regret, np.inf)
            found[one.label] = (errors[one.label][int(np.argmin(allowed))] - bests[one.label]).round(4).tolist()
    return found
