"""Private against non-private rounds, as ratios in one run: ``make bench``.

Everything is timed with sampling and noise included, interleaved, and compared by medians, because machines are noisy.
The non-private floor is the faster of a plain jax loop written for this file and Tacit's own open channel. Memory is
what the compiler reserves for temporaries. The last line is one JSON object of the ratios.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from tacit.algorithm import Algorithm
from tacit.objectives import Objective, Problem, linear, logistic, mlp, softmax
from tacit.plans.catalogue import find
from tacit.silo import Silos, draw, enrol
from tacit.simulate.participation import participation
from tacit.simulate.program import advance, split_keys, start, turns_of

KEY = jax.random.key(0)
ROUNDS, REPEATS = 10, 15
PROBLEMS = {
    "logistic d=785": (Problem(Objective(linear(784, 1), logistic())), 784),
    "mlp 50-64-2": (Problem(Objective(mlp((50, 64, 2)), softmax())), 50),
}


def silos_of(number: int, records: int, features: int) -> Silos:
    rng = np.random.default_rng(0)
    return enrol(
        [
            {"x": rng.normal(size=(records, features)) / np.sqrt(features), "y": rng.integers(0, 2, records)}
            for _ in range(number)
        ]
    )


def algorithm_of(problem: Problem, batch: int | None, private: bool) -> Algorithm:
    terms = {"clip_norm": 1.0, "noise_multiplier": 1.0} if private else {"clip_norm": None, "noise_multiplier": None}
    return find("mb-sgd").build(
        problem,
        step_size=0.1,
        num_rounds=ROUNDS,
        batch_size=batch,
        sampling="full" if batch is None else "wor",
        channel="direct" if private else "open",
        output="last",
        **terms,
    )


def program(algorithm: Algorithm, problem: Problem, silos: Silos, noise: str = "summed") -> Any:
    """The whole run, compiled; call it with the records."""
    who = participation(silos.number)
    turns = turns_of(algorithm, 0, who, silos.number, split_keys(KEY))
    params = problem.objective.init(KEY)

    def run(records: Any) -> Any:
        carry = start(algorithm, params, silos, who=who, noise=noise)
        own = silos._replace(records=records)
        return advance(algorithm, own, split_keys(KEY), carry, turns, who=who, noise=noise, measure=None)[0].state

    return jax.jit(run).lower(silos.records).compile()


def floor(problem: Problem, silos: Silos, batch: int | None) -> Any:
    """Non-private minibatch SGD as one would write it by hand in jax, with the same sampling."""
    records_per_silo = int(silos.counts[0])
    params = problem.objective.init(KEY)

    def run(records: Any) -> Any:
        def loss(params: Any, keys: Any) -> Any:
            def one(key: Any, own: Any) -> Any:
                if batch is not None:
                    rows = draw(
                        key,
                        "wor",
                        count=records_per_silo,
                        batch_size=batch,
                        capacity=batch,
                        slots=batch,
                        padded=records_per_silo,
                        order=None,
                        position=0,
                    ).rows
                    own = jax.tree.map(lambda leaf: leaf[rows], own)
                return problem.objective.losses(params, own).mean()

            return jax.vmap(one)(keys, records).mean()

        def step(params: Any, key: Any) -> Any:
            gradient = jax.grad(loss)(params, jax.random.split(key, silos.number))
            return jax.tree.map(lambda w, g: w - 0.1 * g, params, gradient), None

        return jax.lax.scan(step, params, jax.random.split(KEY, ROUNDS))[0]

    return jax.jit(run).lower(silos.records).compile()


def untapped(problem: Problem) -> Problem:
    """The same problem with its taps hidden, so that gradients are materialised record by record."""
    model = problem.objective.model
    plain = type(model)(model.init, model.apply, ())
    return Problem(Objective(plain, problem.objective.cost))


def seconds_per_round(programs: dict[str, Any], records: Any) -> dict[str, float]:
    """Medians of interleaved repetitions."""
    for compiled in programs.values():
        jax.block_until_ready(compiled(records))
    taken: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(REPEATS):
        for name, compiled in programs.items():
            began = time.perf_counter()
            jax.block_until_ready(compiled(records))
            taken[name].append((time.perf_counter() - began) / ROUNDS)
    return {name: float(np.median(values)) for name, values in taken.items()}


def megabytes(compiled: Any) -> float:
    return compiled.memory_analysis().temp_size_in_bytes / 1e6


def compare(name: str, batch: int | None, ratios: dict[str, float]) -> list[str]:
    problem, features = PROBLEMS[name]
    silos = silos_of(25, 1234, features)
    private, public = (algorithm_of(problem, batch, p) for p in (True, False))
    programs = {
        "floor": floor(problem, silos, batch),
        "open": program(public, problem, silos),
        "private": program(private, problem, silos),
        "private, noise each": program(private, problem, silos, "each"),
        "materialised": program(algorithm_of(untapped(problem), batch, True), problem, silos),
    }
    times = seconds_per_round(programs, silos.records)
    best = min(times["floor"], times["open"])
    label = f"{name}, {batch or 1234} records"
    ratios[f"{label}: private / non-private"] = times["private"] / best
    ratios[f"{label}: private, noise drawn at each silo / non-private"] = times["private, noise each"] / best
    ratios[f"{label}: materialised / tapped"] = times["materialised"] / times["private"]
    ratios[f"{label}: memory materialised / tapped"] = megabytes(programs["materialised"]) / megabytes(
        programs["private"]
    )
    cells = [f"{1e3 * times[k]:.2f}" for k in programs]
    return [label, *cells, f"{times['private'] / best:.2f}", f"{megabytes(programs['private']):.1f}"]


def growth(ratios: dict[str, float], base: tuple[int, int, int], label: str, change: Callable[..., Any]) -> None:
    """How time grows when one thing is multiplied by four."""
    times = []
    for setting in (base, change(*base)):
        number, batch, width = setting
        problem = Problem(Objective(mlp((50, width, 2)), softmax()))
        silos = silos_of(number, 1234, 50)
        compiled = program(algorithm_of(problem, batch, True), problem, silos)
        times.append(seconds_per_round({"it": compiled}, silos.records)["it"])
    ratios[f"growth with 4x {label}"] = times[1] / times[0]


def main() -> None:
    ratios: dict[str, float] = {}
    columns = ("setting", "floor", "open", "private", "noise each", "materialised", "private / non-private", "MB")
    table = Table(*columns, title=f"ms per round, 25 silos, {jax.devices()[0].platform}, jax {jax.__version__}")
    for name in PROBLEMS:
        for batch in (123, None):
            table.add_row(*compare(name, batch, ratios))
    Console(width=150).print(table)
    base = (10, 100, 64)
    growth(ratios, base, "silos", lambda n, b, w: (4 * n, b, w))
    growth(ratios, base, "records a round", lambda n, b, w: (n, 4 * b, w))
    growth(ratios, base, "parameters", lambda n, b, w: (n, b, 4 * w))
    print(json.dumps({name: round(value, 3) for name, value in ratios.items()}))


if __name__ == "__main__":
    main()
