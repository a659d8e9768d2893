"""Settings of every plan, chosen alike: the least mean error on validation records, of the same small grid.

A grid of clips and steps is tried for every server and schedule of a plan. Where the best lies at an edge of it, a row
beyond that edge is tried too, until it does not, or until the grid has grown three times that way: then it is marked.

All plans are tried in Tacit's simulator, also those of the peers: it computes what they compute (they are checked
against each other before they are timed), and their own programs would take hours.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from benchmarks.peers.errors.recipes import DELTA, EPSILON, SCHEDULES, SERVERS, Recipe, with_noise
from benchmarks.peers.errors.tacit_trainer import build_of, params_of, problem_of, silos_of
from benchmarks.peers.errors.tasks import Task

Plan = Literal["direct", "pairwise", "dp-sgd"]
Place = tuple[int, int]

CLIPS, CLIP_FACTOR = 3, 10**0.5
STEPS, STEP_FACTOR = 4, 2.0
MIDDLE_CLIP, MIDDLE = 0.1, {"sgd": 0.5, "adam": 2.0**-5}
"""The smallest of the grid to begin with: a clip, and a step; of sgd it is the step times the clip."""
GROWTH, WIDTH = 3, 4
TUNING_SEED = 1000


@dataclass(frozen=True)
class Chosen:
    """The settings of a plan, their validation error, how many were tried, and whether they lie at an edge."""

    recipe: Recipe
    error: float
    tried: int
    edge: bool


def settings_of(task: Task, channel: Literal["direct", "pairwise"]) -> Recipe:
    """Tacit's defaults: what ``fit`` takes where nobody says anything, with full batches."""
    from tacit.plans.defaults import defaults_of
    from tacit.privacy import Budget

    budget = Budget(epsilon=EPSILON, delta=DELTA)
    how: dict[str, Any] = {"feature_norm": task.feature_norm, "channel": channel}
    own = defaults_of(problem_of(task), task.records, budget, **how)
    silent = (0.0,) * len(task.records)
    recipe = Recipe(
        channel, "full", task.records, own.num_rounds, own.server, own.output, silent, own.step_size, own.clip_norm
    )
    return with_noise(recipe, task.records)


def candidates(task: Task, plan: Plan, quick: bool) -> list[Recipe]:
    """Every server and schedule of a plan, with its noise; step and clip are open."""
    if plan == "dp-sgd":
        unit = settings_of(task, "direct")
        schedules = [(0.5, 10)] if quick else SCHEDULES
        batches = [tuple(max(1, round(share * n)) for n in task.records) for share, _ in schedules]
        drawn: dict[str, Any] = {"sampling": "poisson", "output": "last"}
        bases = [
            with_noise(dataclasses.replace(unit, batch=batch, rounds=rounds, **drawn), task.records)
            for batch, (_, rounds) in zip(batches, schedules, strict=True)
        ]
    else:
        bases = [settings_of(task, plan)]
    servers = SERVERS[:1] if quick else SERVERS
    return [dataclasses.replace(base, server=server) for base, server in itertools.product(bases, servers)]


def choose(task: Task, plan: Plan, seeds: int, quick: bool) -> Chosen:
    """The best of all candidates."""
    found = [_Grid(task, recipe, seeds).best(0 if quick else GROWTH) for recipe in candidates(task, plan, quick)]
    tried = sum(own.tried for own in found)
    return dataclasses.replace(min(found, key=lambda own: own.error), tried=tried)


class _Grid:
    """Clips and steps of one candidate; a place counts factors from where the grid began."""

    def __init__(self, task: Task, recipe: Recipe, seeds: int) -> None:
        from tacit.simulate.compiled import Seed, grid_program
        from tacit.simulate.participation import participation

        self.task, self.recipe = task, recipe
        silos, self.build = silos_of(task), build_of(task, recipe)
        numbers = range(TUNING_SEED, TUNING_SEED + seeds)
        self.seeds = [Seed(jax.random.key(number), params_of(task, number), silos) for number in numbers]
        self.program = grid_program(self.build, WIDTH, participation(len(task.train)), None)

    def setting(self, place: Place) -> tuple[float, float]:
        """The clip and the step of a place."""
        clip = MIDDLE_CLIP * CLIP_FACTOR ** place[0]
        step = MIDDLE[self.recipe.server] * STEP_FACTOR ** place[1]
        return clip, step / clip if self.recipe.server == "sgd" else step

    def errors(self, places: list[Place]) -> list[float]:
        """The mean errors of places, so many at a time that one program serves."""
        parts = [places[first : first + WIDTH] for first in range(0, len(places), WIDTH)]
        return [error for part in parts for error in self._few(part)]

    def _few(self, places: list[Place]) -> list[float]:
        from tacit.simulate.compiled import simulate_grid

        filled = [*places, *[places[-1]] * (WIDTH - len(places))]
        clips, steps = np.asarray([self.setting(place) for place in filled], np.float32).T
        noise = np.tile(np.asarray(self.recipe.noise, np.float32), (WIDTH, 1))
        grid = {"step_size": steps, "clip_norm": clips, "noise_multiplier": noise}
        outcome = simulate_grid(self.build, grid, self.seeds, program=self.program)
        return [
            float(np.mean([self._error(outcome.params, seed, column) for seed in range(len(self.seeds))]))
            for column in range(len(places))
        ]

    def _error(self, params: Any, seed: int, column: int) -> float:
        own = jax.tree.map(lambda leaf: np.asarray(leaf[seed, column]), params)
        ordered = {name: own[name] for name in self.seeds[0].params}
        return self.task.error(ordered, self.task.validation)

    def best(self, growth: int) -> Chosen:
        """The best place, after the grid has grown where that lay at an edge."""
        found = search(self.errors, growth)
        clip, step = self.setting(found.place)
        return Chosen(dataclasses.replace(self.recipe, clip=clip, step=step), found.error, found.tried, found.edge)


class Found(NamedTuple):
    """The best place of a grid, its error, how many places were tried, and whether it lies at an edge of them."""

    place: Place
    error: float
    tried: int
    edge: bool


def search(errors_of: Callable[[list[Place]], list[float]], growth: int) -> Found:
    """The best of `CLIPS` x `STEPS` places; where it lies at an edge a row is added, at most ``growth`` a side."""
    errors: dict[Place, float] = {}
    low, high = [0, 0], [CLIPS - 1, STEPS - 1]
    grown = {(axis, end): 0 for axis in (0, 1) for end in (-1, 1)}
    while True:
        whole = itertools.product(*(range(a, b + 1) for a, b in zip(low, high, strict=True)))
        new = [place for place in whole if place not in errors]
        errors |= dict(zip(new, errors_of(new), strict=True))
        place = min(errors, key=lambda own: (errors[own], own))
        at = [(axis, end) for axis, end in grown if place[axis] == (low if end < 0 else high)[axis]]
        unlimited = [edge for edge in at if grown[edge] < growth]
        if not unlimited:
            return Found(place, errors[place], len(errors), bool(at))
        for axis, end in unlimited:
            grown[axis, end] += 1
            (low if end < 0 else high)[axis] += end
