"""Rates of SPIDER, SVRG and minibatch SGD, and the noise that each injects on its way to the same gradient norm.

SPIDER begins at once, or where some rounds of minibatch SGD have ended.

``python -m experiments.nonconvex_rates`` writes ``results/nonconvex-rates``.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from experiments.common import slope
from experiments.folder import Data, Experiment, Finding, save, table
from tacit.algorithm import Algorithm, Message, Params, Round, Server, State
from tacit.objectives import Loss, Model, Objective, Problem
from tacit.objectives.models import dense
from tacit.plans.catalogue import find
from tacit.privacy import gdp_epsilon
from tacit.silo import enrol
from tacit.simulate.compiled import Seed, simulate_grid
from tacit.theory import gradient_mapping

DIMENSION, SILOS, RECORDS = 20, 4, 25
TAIL = 0.2
ROUNDS, SEEDS = 2560, 5
PHASES = (16, 64)
WARM = (8, 32, 128)
"""Rounds of minibatch SGD before SPIDER begins."""
SETTINGS = 23
"""How many noise multipliers are tried."""
DELTA = 1e-5
NEAR = 0.1
"""How far a power may be from the theory's."""
INJECTED = ("messages", "estimates", "steps")
LEVEL = 1.25  # noise is compared on the way to this times the squared norm that minibatch SGD reaches


def valley() -> Problem:
    """A bowl of curvature one in 20 directions around the mean, and a valley whose slope falls as s^-1.2.

    The valley, (1 + s^2)^-0.1, is not convex; without noise the squared gradient falls about as 1/rounds, as slowly
    as it may for a smooth loss. Gradients of all records change by the same vector, of length at most the distance.
    """

    def init(key: Any) -> Params:
        return {"bowl": {"w": jnp.zeros((1, DIMENSION))}, "valley": {"w": jnp.ones((1, 1))}}

    def apply(params: Params, x: Any, tap: Any) -> Any:
        one = jnp.ones((x.shape[0], 1))
        return jnp.concatenate([dense(params, "bowl", one, tap) - x, dense(params, "valley", one, tap)], axis=1)

    def value(outputs: Any, targets: Any) -> Any:
        slope = 5.0 * (1 + outputs[:, -1] ** 2) ** (-TAIL / 2)
        return 0.5 * jnp.sum(outputs[:, :-1] ** 2, axis=1) + slope

    return Problem(Objective(Model(init, apply, ("bowl", "valley")), Loss(value)))


def _valley_seeds(problem: Problem) -> list[Seed]:
    found = []
    for number in range(SEEDS):
        rng = np.random.default_rng(number)
        x = rng.normal(size=(SILOS, RECORDS, DIMENSION))
        x /= np.linalg.norm(x, axis=2, keepdims=True)
        made = [{"x": part, "y": np.zeros(RECORDS)} for part in x]
        pooled = {"x": jnp.asarray(x.reshape(-1, DIMENSION), jnp.float32), "y": jnp.zeros(SILOS * RECORDS)}
        key = jax.random.key(number)
        found.append(Seed(key, problem.objective.init(key), enrol(made), pooled))
    return found


class Metered(NamedTuple):
    """A server's state beside what its algorithm has injected so far: squared norms of noise, on average.

    ``totals`` are of the noise in the mean of the silos' messages, in the gradient estimates which steps are taken
    along (the noise of an anchor stays for its whole phase), and in the steps: step^2 times that of the estimates.
    """

    own: State
    totals: Any
    anchor: Any
    held: Any


def metered(
    algorithm: Algorithm, *, step_size: Any, records: int, silos: int, dimension: int, adds_up: bool
) -> Algorithm:
    """The same algorithm, whose output is its parameters and the totals; the server knows all of it.

    ``adds_up``: an estimate carries the noise of all differences since its anchor (SPIDER), not of one alone (SVRG).
    """

    def wrapped(name: str, part: Round) -> Round:
        release, server = part.silo.release, part.server

        def tell(state: Metered, mean: Message) -> Metered:
            bound = release.clip(server.ask(state.own))
            deviation = release.noise_multiplier * 2.0 * jnp.asarray(bound) / records
            fresh = dimension * deviation**2 / silos
            anchor = state.anchor if name == "difference" else fresh
            held = fresh if name != "difference" else fresh + (state.held if adds_up else state.anchor)
            totals = state.totals + jnp.stack([fresh, held, step_size**2 * held])
            return Metered(server.tell(state.own, mean), totals, anchor, held)

        return dataclasses.replace(part, server=Server(lambda state: server.ask(state.own), tell))

    none = jnp.zeros(())
    return dataclasses.replace(
        algorithm,
        init=lambda params: Metered(algorithm.init(params), jnp.zeros(len(INJECTED)), none, none),
        rounds={name: wrapped(name, part) for name, part in algorithm.rounds.items()},
        output=lambda state: (algorithm.output(state.own), state.totals),
    )


class Arm(NamedTuple):
    """An algorithm by (noise, step, ratio), its phase length, and rounds of minibatch SGD before its phases."""

    build: Callable[..., Algorithm]
    phase: int
    warm: int = 0

    def anchors(self, rounds: np.ndarray) -> np.ndarray:
        """How many of so many rounds release whole gradients."""
        return np.minimum(rounds, self.warm) + np.ceil(np.maximum(rounds - self.warm, 0) / self.phase)


def _arms(problem: Problem) -> dict[str, Arm]:
    """All algorithms, with every phase length and warm start; the first word is the family."""
    fixed: dict[str, Any] = {"num_rounds": ROUNDS, "clip_norm": 2.5, "batch_size": None, "sampling": "full"}

    sizes: dict[str, Any] = {"records": RECORDS, "silos": SILOS, "dimension": DIMENSION + 1}

    def sgd(noise_multiplier: Any, step_size: Any, ratio: Any) -> Algorithm:
        own = {"noise_multiplier": noise_multiplier, "step_size": step_size, "output": "last"}
        return metered(find("mb-sgd").build(problem, **own, **fixed), step_size=step_size, adds_up=False, **sizes)

    def reduced(name: str, phase: int, warm: int = 0) -> Callable[..., Algorithm]:
        def build(noise_multiplier: Any, step_size: Any, ratio: Any) -> Algorithm:
            own = {"noise_multiplier": noise_multiplier, "step_size": step_size, "difference_noise": ratio}
            own |= {"warm_rounds": warm} if warm else {}
            made = find(name).build(problem, phase_length=phase, difference_slope=1.0, **own, **fixed)
            return metered(made, step_size=step_size, adds_up=name != "prox-svrg", **sizes)

        return build

    arms = {"MB-SGD": Arm(sgd, 1)}
    for phase in PHASES:
        arms[f"SPIDER q={phase}"] = Arm(reduced("prox-spider", phase), phase)
        arms[f"SVRG q={phase}"] = Arm(reduced("prox-svrg", phase), phase)
        for warm in WARM:
            arms[f"Warm-SPIDER q={phase}, {warm}"] = Arm(reduced("warm-spider", phase, warm), phase, warm)
    return arms


class Traces(NamedTuple):
    """Of one family of algorithms, for every setting and measured round: privacy, error, and noise so far."""

    mu: np.ndarray
    error: np.ndarray
    rounds: np.ndarray
    noise: dict[str, np.ndarray]


def compute(_: Any) -> Data:
    """For each algorithm and budget, the least squared gradient, and the noise on the way to a common one."""
    problem = valley()
    seeds = _valley_seeds(problem)
    targets = np.geomspace(50, 2000, 7)  # mu n sqrt(N) / sqrt(d)
    unit = RECORDS * SILOS**0.5 / DIMENSION**0.5
    traces: dict[str, list[Traces]] = {}
    for name, arm in _arms(problem).items():
        started = time.perf_counter()
        traces.setdefault(name.split()[0], []).append(_traces(problem, seeds, arm))
        print(name, round(time.perf_counter() - started), "s", flush=True)
    best = {name: [min(_least(t, x / unit) for t in parts) for x in targets] for name, parts in traces.items()}
    slopes = {name: -slope(targets, values) for name, values in best.items()}
    levels = [LEVEL * error for error in best["MB-SGD"]]
    noise = {
        name: [_quietest(parts, x / unit, level) for x, level in zip(targets, levels, strict=True)]
        for name, parts in traces.items()
    }
    return {"budget": targets.tolist(), "best": best, "slopes": slopes, "levels": levels, "noise": noise}


def _traces(problem: Problem, seeds: list[Seed], arm: Arm) -> Traces:
    """Every setting of one algorithm and phase: noise multipliers, two steps and, with phases, two ratios of noise."""
    phase, ratios = arm.phase, (1.0,) if arm.phase == 1 else (1.0, 4.0)
    points = [(z, step, r) for z in np.geomspace(0.05, 12, SETTINGS) for step in (0.5, 0.1) for r in ratios]
    grid = dict(zip(("noise_multiplier", "step_size", "ratio"), np.asarray(points, np.float32).T, strict=True))

    def measure(found: tuple[Params, Any], pooled: Any) -> dict[str, Any]:
        params, totals = found
        norm = gradient_mapping(problem, params, pooled, 0.5)
        return {"norm": norm**2, **dict(zip(INJECTED, totals, strict=True))}

    outcome = simulate_grid(arm.build, grid, seeds, measure=measure, measure_every=phase * max(1, 40 // phase))
    anchors = arm.anchors(outcome.rounds)
    z, _, ratio = np.asarray(points).T
    mu = np.sqrt(anchors + (outcome.rounds - anchors) / ratio[:, None] ** 2) / z[:, None]
    error = np.where(np.isfinite(outcome.trace["norm"]), outcome.trace["norm"], np.inf).mean(axis=0)
    noise = {name: outcome.trace[name].mean(axis=0) for name in INJECTED}
    return Traces(mu, error, np.broadcast_to(outcome.rounds, mu.shape), noise)


def _least(traces: Traces, mu: float) -> float:
    """The least error within a budget; a run with more noise than it asks for is private enough."""
    return float(traces.error[traces.mu <= mu].min(initial=np.inf))


def _quietest(parts: list[Traces], mu: float, level: float) -> dict[str, float] | None:
    """Of all runs within a budget that reach the level, at whatever round, the one of the least noise in steps."""
    found = [
        {"rounds": int(t.rounds[i]), **{name: float(values[i]) for name, values in t.noise.items()}}
        for t in parts
        for i in zip(*np.nonzero((t.mu <= mu) & (t.error <= level)), strict=True)
    ]
    return min(found, key=lambda one: one["steps"], default=None)


def draw(folder: Path, data: Data) -> None:
    """The least gradient by budget, and the noise on the way to a common one."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    x = np.asarray(data["budget"])
    for name, values in data["best"].items():
        left.loglog(x, values, "o-", ms=3, label=f"{name}, slope {data['slopes'][name]:.2f}")
    for power, style in ((1.0, ":"), (4 / 3, "--")):
        line = data["best"]["MB-SGD"][0] * (x / x[0]) ** -power
        left.loglog(x, line, style, color="grey", lw=1, label=f"-{power:.2f}")
    left.set(xlabel="mu n sqrt(N/d)", ylabel="squared gradient norm", title="Rates")
    left.legend(fontsize=7)
    for place, (name, found) in enumerate(data["noise"].items()):
        for kind, style in (("messages", "o-"), ("steps", "o:")):
            values = [np.nan if one is None else one[kind] for one in found]
            right.loglog(x, values, style, ms=3, color=f"C{place}", label=f"{name}, in {kind}")
    right.set(xlabel="mu n sqrt(N/d)", ylabel="squared noise, all rounds", title="Noise to the same gradient norm")
    right.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    save(figure, folder / "figure.png")


def words(data: Data) -> Data:
    """Slopes and noise by budget."""
    budgets = [f"{x:.0f}" for x in data["budget"]]
    rates = [
        [name, f"{data['slopes'][name]:.2f}", *(f"{v:.2g}" for v in values)] for name, values in data["best"].items()
    ]
    kinds = {**{kind: (kind, ".3g") for kind in INJECTED}, "rounds": ("(rounds)", "d")}
    noise = [
        [name, said, *("not reached" if one is None else format(one[kind], spec) for one in found)]
        for name, found in data["noise"].items()
        for kind, (said, spec) in kinds.items()
    ]
    sizes = {"dimension": DIMENSION, "silos": SILOS, "records": RECORDS, "last_seed": SEEDS - 1, "rounds": ROUNDS}
    return {
        **sizes,
        "phases": PHASES,
        "warm": WARM,
        "level": LEVEL,
        "delta": DELTA,
        "tenth": gdp_epsilon(0.1, DELTA),
        "rates": table(["algorithm", "slope", *budgets], rates),
        "injected": table(["algorithm", "noise in", *budgets], noise),
    }


def finding(data: Data) -> Finding:
    """The powers of the budget with which squared gradients fall."""
    found = data["slopes"]
    others = ", ".join(f"{name} {value:.2f}" for name, value in found.items() if name not in ("MB-SGD", "SPIDER"))
    near = abs(found["SPIDER"] - 4 / 3) <= NEAR and abs(found["MB-SGD"] - 1) <= NEAR
    said = f"{found['SPIDER']:.2f} for SPIDER and {found['MB-SGD']:.2f} for MB-SGD ({others})"
    return Finding(said, "reproduced" if near else "differs")


EXPERIMENT = Experiment("nonconvex-rates", compute, draw, words, finding=finding)

if __name__ == "__main__":
    EXPERIMENT.main()
