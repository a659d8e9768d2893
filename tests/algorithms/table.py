"""The table that drives the shared tests: a later algorithm joins by its row in the catalogue.

It needs one here if it has parameters without defaults, or converges and samples in ways of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit.algorithm import Algorithm
from tacit.objectives import Objective, Problem, linear, logistic, mlp, softmax, squared
from tacit.plans.catalogue import ALGORITHMS, find
from tacit.silo import enrol
from tacit.simulate.compiled import Seed, grid_program, stack_seeds
from tacit.simulate.participation import Participation, participation
from tacit.simulate.program import Noise, split_keys, turns_of


@dataclass(frozen=True)
class Case:
    """An algorithm with small parameters and terms for the shared tests, and what makes it converge without noise.

    ``convergence`` is ``None`` where one pass ends before the optimum; such an algorithm has a test of its own.
    ``slow_step`` is a step so small that 400 rounds end far from both start and optimum.
    A preset is another algorithm with some parameters settled, and the same program as that.
    """

    name: str
    parameters: dict[str, Any] = field(default_factory=dict)
    convergence: dict[str, Any] | None = field(default_factory=dict)
    samplings: tuple[str, ...] = ("full", "wor", "wr", "poisson", "allocation", "one-pass")
    slow_step: float = 0.002
    preset_of: str | None = None
    settles: dict[str, Any] = field(default_factory=dict)

    def build(self, problem: Problem, **changes: Any) -> Algorithm:
        common = {
            "step_size": 0.2,
            "num_rounds": 6,
            "clip_norm": 0.7,
            "noise_multiplier": 0.2,
            "batch_size": None,
            "sampling": "full",
        }
        return find(self.name).build(problem, **{**common, **self.parameters, **changes})


PSGM = {"difference_slope": 4.0, "momentum": 0.3, "channel": "shuffled-reports"}
DIFF2 = {"difference_slope": 4.0, "channel": "trusted"}
ATTRIBUTE = {"protects": "sensitive-attribute"}

CASES = {name: Case(name) for name in ALGORITHMS} | {
    case.name: case
    for case in (
        Case("mb-sgd", convergence={"output": "last"}),
        Case("local-sgd", {"local_steps": 2, "num_rounds": 3}),
        Case("accelerated-mb-sgd", {"stages": None, "strong_convexity": 0.1}, slow_step=1e-4),
        Case(
            "one-pass-accelerated",
            {"sampling": "one-pass", "batch_size": 2},
            convergence=None,
            samplings=("one-pass",),
            preset_of="accelerated-mb-sgd",
        ),
        Case(
            "prox-sgd",
            {"sampling": "one-pass", "batch_size": 2},
            convergence=None,
            samplings=("one-pass",),
            preset_of="mb-sgd",
            settles={"output": "last"},
        ),
        Case(
            "dp-ftrl",
            {"sampling": "one-pass", "batch_size": 2},
            # Five batches of each silo's records, again and again: noise is taken off in bands.
            convergence={"step_size": 0.1, "batch_size": 8, "passes": 140},
            samplings=("one-pass",),
            preset_of="mb-sgd",
            settles={"mechanism": "correlated", "output": "last"},
        ),
        Case("localised-mb-sgd", {"strength": 0.05}, convergence={"strength": 0.005}, slow_step=1e-4),
        Case("quantile-clip", {"clip_step": 0.2}, convergence={"clip_step": 0.0}),
        Case(
            "preconditioned-sgd",
            convergence={"output": "last"},
            samplings=("full", "wor", "wr", "poisson", "one-pass"),
        ),
        Case(
            "prox-spider",
            {"phase_length": 3, "difference_slope": 4.0},
            convergence={"difference_slope": 100.0},
        ),
        Case(
            "warm-spider",
            {"warm_rounds": 2, "phase_length": 2, "difference_slope": 4.0},
            convergence={"difference_slope": 100.0},
        ),
        Case("alternate-spider", preset_of="prox-spider", settles={"phase_length": 2, "difference_slope": None}),
        Case("prox-svrg", {"phase_length": 3}),
        Case("pl-svrg", {"phase_length": 2, "restarts": 2}, preset_of="prox-svrg"),
        Case(
            "steffle",
            {"strength": 0.5, "frequencies": (0.4, 0.6), **ATTRIBUTE},
            convergence={"strength": 0.0},
            samplings=("full", "poisson", "one-pass"),
        ),
        Case("fedfdp", {"fairness": 0.5, "loss_clip": 100.0}, convergence={"fairness": 0.0}),
        Case(
            "lagrangian-dual",
            {"frequencies": (0.4, 0.6), "multiplier_step": 0.5, **ATTRIBUTE},
            convergence={"multiplier_step": 0.0},
            samplings=("full", "one-pass"),
        ),
        Case(
            "mu2-sgd",
            {"step_size": 0.05},
            convergence={"step_size": 0.02},
            samplings=("full", "one-pass"),
            slow_step=2e-5,
        ),
        Case("ce-psgm", {**PSGM, "local_steps": 3, "num_rounds": 4}, samplings=("wor", "full")),
        Case("ce-psgm-fg", {**PSGM, "local_steps": 2, "num_rounds": 4}, samplings=("full",), preset_of="ce-psgm"),
        Case("mb-psgm", PSGM, samplings=("wor", "full"), preset_of="ce-psgm", settles={"local_steps": 1}),
        Case("mb-psgm-fg", PSGM, samplings=("full",), preset_of="ce-psgm", settles={"local_steps": 1}),
        Case(
            "diff2-gd",
            {**DIFF2, "phase_length": 3},
            preset_of="ce-psgm",
            settles={"local_steps": 1, "momentum": 0.0},
        ),
        Case(
            "diff2-bvr-lsgd",
            {**DIFF2, "phase_length": 2, "local_steps": 2, "num_rounds": 4},
            samplings=("full", "wor"),
            preset_of="ce-psgm",
            settles={"momentum": 0.0},
        ),
    )
}


def test_every_row_is_an_algorithm():
    assert set(CASES) == set(ALGORITHMS)


def tables(seed=0, sizes=(24, 17, 24), features=5, classes=2):
    rng = np.random.default_rng(seed)
    return [
        {
            "x": rng.normal(size=(n, features)).astype(np.float32),
            "y": rng.integers(0, classes, n).astype(np.int32),
            "s": rng.integers(0, 2, n).astype(np.int32),
        }
        for n in sizes
    ]


def least_squares(seed=0, sizes=(40, 40, 40), features=4):
    """Tables whose pooled least-squares solution is known, and the problem."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=features)
    made = []
    for n in sizes:
        x = rng.normal(size=(n, features)) / np.sqrt(features)
        y = x @ truth + 0.1 * rng.normal(size=n)
        made.append({"x": x.astype(np.float32), "y": y.astype(np.float32), "s": np.arange(n, dtype=np.int32) % 2})
    x, y = (np.concatenate([np.asarray(t[k], np.float64) for t in made]) for k in ("x", "y"))
    solution = np.linalg.lstsq(x, y, rcond=None)[0]
    return made, Problem(Objective(linear(features, 1, bias=False), squared())), solution


LOGISTIC = Problem(Objective(linear(5, 1), logistic()))
MLP = Problem(Objective(mlp((5, 8, 2)), softmax()))


def start(problem: Problem) -> Any:
    return problem.objective.init(jax.random.key(0))


def traced_run(algorithm: Algorithm, problem: Problem, *, who: Participation = participation(3), noise: Noise) -> Any:
    """What would be compiled to run an algorithm (its rounds and its output) as jax writes it, and its turns."""
    key = jax.random.key(1)
    seeds = stack_seeds([Seed(key, start(problem), enrol(tables()))])
    program = grid_program(lambda: algorithm, 1, who, None, noise)
    turns = jax.tree.map(lambda row: row[None], turns_of(algorithm, 0, who, 3, split_keys(key)))
    carry = jax.eval_shape(program.begin, {}, seeds)
    return [program.proceed.trace({}, seeds, carry, turns).jaxpr, program.finish.trace({}, carry).jaxpr], turns


def largest_difference(a: Any, b: Any) -> float:
    gaps = jax.tree.map(lambda u, v: float(jnp.abs(u - v).max()), a, b)
    return max(jax.tree.leaves(gaps))
