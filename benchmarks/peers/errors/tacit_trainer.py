"""Tacit: the program of ``fit``, played round by round so that the clock can be read."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.peers.errors.clock import Clock, Trained
from benchmarks.peers.errors.recipes import Recipe
from benchmarks.peers.errors.tasks import Task, initial
from tacit.algorithm import Algorithm, Terms
from tacit.algorithms.mb_sgd import mb_sgd
from tacit.objectives import Objective, Problem, linear, logistic, mlp, softmax
from tacit.plans.assemble import capacity_for
from tacit.silo import Silos, enrol
from tacit.simulate.compiled import Seed, grid_program, stack_seeds
from tacit.simulate.participation import participation
from tacit.simulate.program import split_keys, turns_of


def problem_of(task: Task) -> Problem:
    """The model and its loss."""
    model = linear(*task.sizes) if len(task.sizes) == 2 else mlp(task.sizes)
    return Problem(Objective(model, logistic() if task.sizes[-1] == 1 else softmax()))


def build_of(task: Task, recipe: Recipe) -> Any:
    """The algorithm of a recipe, as a function of what is chosen: step, clip and noise."""
    problem, batch = problem_of(task), None if recipe.sampling == "full" else recipe.batch
    capacity = capacity_for(recipe.sampling, batch, task.records)
    terms = partial(Terms, batch_size=batch, sampling=recipe.sampling, capacity=capacity, channel=recipe.channel)

    def build(step_size: Any, clip_norm: Any, noise_multiplier: Any) -> Algorithm:
        sgd = mb_sgd(step_size=step_size, num_rounds=recipe.rounds, output=recipe.output).with_server(recipe.server)
        return sgd(problem, terms(clip_norm, noise_multiplier, silos=len(task.train)))

    return build


def point_of(recipe: Recipe) -> dict[str, np.ndarray]:
    """What is chosen, as a grid of one point."""
    chosen = {"step_size": recipe.step, "clip_norm": recipe.clip, "noise_multiplier": recipe.noise}
    return {name: np.asarray([value], np.float32) for name, value in chosen.items()}


def silos_of(task: Task) -> Silos:
    """All silos' records on the device."""
    return enrol([{"x": x, "y": y.astype(np.int32)} for x, y in task.train], task.names)


def params_of(task: Task, seed: int) -> Any:
    """The initial parameters on the device."""
    return jax.tree.map(jnp.asarray, initial(task, seed))


def train(task: Task, recipe: Recipe, seed: int) -> Trained:
    """One run; compiled anew."""
    jax.clear_caches()
    clock = Clock()
    build, grid = build_of(task, recipe), {name: jnp.asarray(own) for name, own in point_of(recipe).items()}
    own = Seed(jax.random.key(seed), params_of(task, seed), silos_of(task))
    who = participation(len(task.train))
    program = grid_program(build, 1, who, None)
    layout = build(**{name: values[0] for name, values in grid.items()})
    turns = turns_of(layout, 0, who, own.silos.number, split_keys(own.key))
    stacked = stack_seeds([own])
    carry = program.begin(grid, stacked)

    def turn(index: int) -> Any:
        return jax.tree.map(lambda column: column[None, index : index + 1], turns)

    proceed = program.proceed.lower(grid, stacked, carry, turn(0)).compile()
    clock.ready()
    for index in range(recipe.rounds):
        carry, _ = jax.block_until_ready(proceed(grid, stacked, carry, turn(index)))
        clock.ended(carry)

    def layers(kept: Any) -> Any:
        found = jax.tree.map(lambda leaf: np.asarray(leaf[0, 0]), program.finish(grid, kept))
        return {name: found[name] for name in initial(task, seed)}

    return clock.trained(layers)
