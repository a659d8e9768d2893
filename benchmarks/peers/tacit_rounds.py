"""Tacit: the very program that ``simulate`` compiles."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.peers.works import CHECK_STEP, Layers, Prepared, Work, data, difference, start
from tacit.algorithm import Algorithm
from tacit.objectives import Objective, Problem, cnn, linear, logistic, mlp, softmax
from tacit.plans.catalogue import find
from tacit.silo import Silos
from tacit.simulate.compiled import simulate
from tacit.simulate.participation import participation
from tacit.simulate.program import advance, split_keys, turns_of
from tacit.simulate.program import start as begin


def problem_of(work: Work) -> Problem:
    """The model and its loss."""
    if not work.sizes:
        return Problem(Objective(cnn(), softmax()))
    model = linear(*work.sizes) if len(work.sizes) == 2 else mlp(work.sizes)
    return Problem(Objective(model, logistic() if work.outputs == 1 else softmax()))


def algorithm_of(work: Work, problem: Problem, **changes: Any) -> Algorithm:
    """MB-SGD, or SPIDER with phases of two."""
    terms: dict[str, Any] = {
        "step_size": work.step_size,
        "num_rounds": work.rounds,
        "clip_norm": work.clip,
        "noise_multiplier": work.noise_multiplier,
        "batch_size": work.batch,
        "sampling": "wor",
        **changes,
    }
    if work.algorithm == "spider":
        return find("prox-spider").build(problem, phase_length=2, difference_slope=None, **terms)
    return find("mb-sgd").build(problem, output="last", **terms)


def silos_of(work: Work, records: int) -> Silos:
    """The first records of every silo."""
    x, y = data(work)
    count = jnp.full(work.silos, records, jnp.int32)
    return Silos({"x": jnp.asarray(x[:, :records]), "y": jnp.asarray(y[:, :records], jnp.int32)}, count)


def prepare(work: Work) -> Prepared:
    """Our own model, with the weights that all peers start from."""
    params = {name: {k: jnp.asarray(v) for k, v in layer.items()} for name, layer in start(work).items()}
    return prepared(work, problem_of(work), params, lambda own: own)


def prepared(work: Work, problem: Problem, params: Any, layers: Callable[[Any], Any]) -> Prepared:
    """One compiled program for all rounds, as ``simulate`` makes it; the check goes through ``simulate`` itself.

    ``layers`` are parameters of the problem as all peers name them.
    """
    silos, before = silos_of(work, work.records), start(work)
    algorithm, who = algorithm_of(work, problem), participation(work.silos)

    def run(records: Any, key: Any, roster: Any) -> Any:
        keys = split_keys(key)
        own = silos._replace(records=records)
        carry = begin(algorithm, params, own, who=who, noise="summed")
        return advance(algorithm, own, keys, carry, roster, who=who, noise="summed", measure=None)[0].state

    turns = turns_of(algorithm, 0, who, work.silos, split_keys(jax.random.key(0)))
    began = time.perf_counter()
    compiled = jax.jit(run).lower(silos.records, jax.random.key(0), turns).compile()
    taken = time.perf_counter() - began
    state = {"key": jax.random.key(1)}

    def step() -> None:
        state["key"], key = jax.random.split(state["key"])
        jax.block_until_ready(compiled(silos.records, key, turns))

    def moved() -> Layers:
        exact = {"sampling": "full", "batch_size": None, "noise_multiplier": 0.0, "step_size": CHECK_STEP}
        check = algorithm_of(work, problem, **exact, num_rounds=work.check_rounds)
        after = simulate(check, params, silos_of(work, work.batch), key=jax.random.key(0)).params
        return difference(before, layers(after))

    return Prepared(moved, step, taken)
