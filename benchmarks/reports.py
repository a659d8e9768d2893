"""A round of shuffled reports against drawing as many random numbers: ``python -m benchmarks.reports``.

Ten silos of 1,651 records, as in California housing, every record reporting a difference and a gradient of the small
network: one normal number for each record, stream and parameter. The round, gradients and clips included, is timed
beside the generator that it uses and beside jax's own, interleaved, as medians; the bar is 1.5 times the drawing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit.algorithm import Terms
from tacit.algorithms.ce_psgm import mb_psgm_fg
from tacit.objectives import Objective, Problem, mlp, squared
from tacit.silo import enrol
from tacit.silo.reports import drawn_terms, normals, randomised_sum, salts
from tacit.simulate.participation import participation
from tacit.simulate.program import advance, split_keys, start, turns_of

SILOS, RECORDS, ROUNDS, REPEATS = 10, 1651, 4, 7
KEY = jax.random.key(0)


def round_of(width: int, randomiser: str) -> tuple[Callable[[], Any], int]:
    """Rounds of MB-PSGM-FG, compiled, and the number of parameters."""
    problem = Problem(Objective(mlp((8, width, 1), activation=jax.nn.softplus), squared()))
    rng = np.random.default_rng(0)
    silos = enrol([{"x": rng.normal(size=(RECORDS, 8)), "y": rng.normal(size=RECORDS)} for _ in range(SILOS)])
    params = problem.objective.init(KEY)
    terms = Terms(1.0, 1.0, None, "full", channel="shuffled-reports")
    how: Any = randomiser
    recipe = mb_psgm_fg(step_size=0.01, num_rounds=ROUNDS + 1, difference_slope=1.0, randomiser=how)
    algorithm = recipe(problem, terms)
    who = participation(SILOS, honest=1.0)
    turns = jax.tree.map(lambda rows: rows[1:], turns_of(algorithm, 0, who, SILOS, split_keys(KEY)))

    def run(records: Any) -> Any:
        carry = start(algorithm, params, silos, who=who, noise="each")
        own = silos._replace(records=records)
        return advance(algorithm, own, split_keys(KEY), carry, turns, who=who, noise="each", measure=None)[0].state

    compiled = jax.jit(run).lower(silos.records).compile()
    return lambda: compiled(silos.records), sum(leaf.size for leaf in jax.tree.leaves(params))


def drawing(parameters: int, draw: Callable[[Any], Any]) -> Callable[[], Any]:
    """As many rounds of nothing but numbers, of both streams of every silo; a sum is kept, so that they are made."""

    def run(key: Any) -> Any:
        def one(total: Any, key: Any) -> tuple[Any, None]:
            drawn = jax.vmap(draw)(jax.random.split(key, 2 * SILOS))
            return total + drawn.sum(axis=(0, 1)), None

        return jax.lax.scan(one, jnp.zeros(parameters), jax.random.split(key, ROUNDS))[0]

    compiled = jax.jit(run).lower(KEY).compile()
    return lambda: compiled(KEY)


def reporting(parameters: int, name: Any) -> Callable[[], Any]:
    """Reports of vectors that are there already: the drawing, and what is made of it."""
    rows, present = jnp.arange(RECORDS), jnp.ones(RECORDS, bool)
    drawn = drawn_terms(name, parameters, 1.0)
    units = jax.random.normal(KEY, (2 * SILOS, RECORDS, parameters))
    units = units / jnp.linalg.norm(units, axis=2, keepdims=True)

    def run(key: Any, units: Any) -> Any:
        def one(total: Any, key: Any) -> tuple[Any, None]:
            keys = jax.random.split(key, 2 * SILOS)
            said = jax.vmap(lambda k, u: randomised_sum(k, u, present, rows, drawn, name))(keys, units)
            return total + said.sum(axis=0), None

        return jax.lax.scan(one, jnp.zeros(parameters), jax.random.split(key, ROUNDS))[0]

    compiled = jax.jit(run).lower(KEY, units).compile()
    return lambda: compiled(KEY, units)


def main() -> None:
    """Time everything side by side and print one JSON object."""
    rows = jnp.arange(RECORDS)
    found = {}
    for width in (10, 40):
        played = {name: round_of(width, name) for name in ("duchi", "privunit2")}
        size = played["duchi"][1]
        ways = {name: run for name, (run, _) in played.items()}
        ways |= {f"{name} of given vectors": reporting(size, name) for name in played}
        ways["hashed numbers"] = drawing(size, lambda key, d=size: normals(salts(key, 1)[0], rows, d))
        ways["jax's numbers"] = drawing(size, lambda key, d=size: jax.random.normal(key, (RECORDS, d)))
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for repeat in range(REPEATS + 1):
            for name, run in ways.items():
                began = time.perf_counter()
                jax.block_until_ready(run())
                taken[name] += [(time.perf_counter() - began) / ROUNDS] if repeat else []
        middle = {name: float(np.median(values)) for name, values in taken.items()}
        for name in [*played, *(f"{name} of given vectors" for name in played)]:
            for base in ("hashed numbers", "jax's numbers"):
                found[f"d={size}: {name} / {base}"] = round(middle[name] / middle[base], 2)
        found[f"d={size}: ms"] = {name: round(1e3 * value, 1) for name, value in middle.items()}
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
