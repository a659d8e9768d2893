"""Compilation: every algorithm at first and again from the cache, and a grid of 25 runs beside 25 single runs.

``python -m benchmarks.peers.compiling [--quick]`` prints one JSON object; it runs in a process and a cache of its own.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from typing import Any

GRID = 25


def main(quick: bool) -> None:
    """Measure and print."""
    from benchmarks.peers.worker import limit_threads

    limit_threads(2)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TACIT_CACHE"] = folder
        found = {**_grid(quick), **_algorithms(quick)}
    print(json.dumps(found), file=answers, flush=True)


def _grid(quick: bool) -> dict[str, Any]:
    """Without any cache on disk: the program of a grid is compiled once, that of a single run every time."""
    import dataclasses

    import jax
    import numpy as np

    from benchmarks.peers.plan import MLP
    from benchmarks.peers.tacit_rounds import algorithm_of, problem_of, silos_of
    from benchmarks.peers.works import start
    from tacit.simulate.compiled import Seed, simulate, simulate_grid

    work = dataclasses.replace(MLP, rounds=5 if quick else 50, silos=4 if quick else 25)
    problem, silos = problem_of(work), silos_of(work, work.records)
    params = jax.tree.map(jax.numpy.asarray, start(work))
    points = np.linspace(0.05, 0.5, 3 if quick else GRID, dtype=np.float32)
    key = jax.random.key(0)
    singles = []
    for point in points:
        began = time.perf_counter()
        run = simulate(algorithm_of(work, problem, step_size=point), params, silos, key=key)
        jax.block_until_ready(run.params)
        singles.append(time.perf_counter() - began)
    began = time.perf_counter()
    build: Any = lambda step_size: algorithm_of(work, problem, step_size=step_size)  # noqa: E731
    grid = simulate_grid(build, {"step_size": points}, [Seed(key, params, silos)])
    jax.block_until_ready(grid.params)
    whole = time.perf_counter() - began
    return {"grid_seconds": whole, "single_seconds": singles, "grid_ratio": whole / sum(singles), "points": len(points)}


def _algorithms(quick: bool) -> dict[str, Any]:
    """Of each algorithm the first run of six rounds at 25 silos, compiled afresh and then from disk."""
    import jax

    from tacit.objectives import Objective, Problem, mlp, softmax
    from tacit.silo import enrol
    from tacit.simulate.compilation import keep_compiled
    from tacit.simulate.compiled import simulate
    from tests.algorithms.table import CASES, tables

    keep_compiled()
    problem = Problem(Objective(mlp((50, 64, 2)), softmax()))
    silos = enrol(tables(sizes=(60,) * 25, features=50))
    params = problem.objective.init(jax.random.key(0))
    first: dict[str, float] = {}
    again: dict[str, float] = {}
    names = ("mb-sgd", "prox-spider") if quick else tuple(CASES)
    for name in names:
        for into in (first, again):
            jax.clear_caches()
            began = time.perf_counter()
            jax.block_until_ready(simulate(CASES[name].build(problem), params, silos, key=jax.random.key(0)).params)
            into[name] = time.perf_counter() - began
    return {"first": first, "again": again, "slowest": max(first.values()), "slowest_again": max(again.values())}


if __name__ == "__main__":
    main("--quick" in sys.argv[1:])
