"""Rates of SPIDER, SVRG and minibatch SGD; the shuffled sum beside a trusted server; supports found privately.

``python -m tacit.studies.papers.nonconvex_rates`` writes ``results/nonconvex-rates``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from tacit import geometry
from tacit.algorithm import Algorithm, Channel, Params
from tacit.algorithms import mb_sgd, prox_spider, prox_svrg
from tacit.objectives import Loss, Model, Objective, Problem, linear, squared
from tacit.objectives.models import dense
from tacit.privacy import gdp_epsilon, gdp_mu
from tacit.runtime.simulate import Seed, simulate_grid
from tacit.silo import enrol
from tacit.studies.papers.common import interval, out_folder, table, write
from tacit.theory import gradient_mapping, proximal_descent, risk

DIMENSION, SILOS, RECORDS = 20, 4, 25
TAIL = 0.2
ROUNDS, SEEDS = 2560, 5
PHASES = (16, 64)
DELTA = 1e-5


def main() -> None:
    """Run everything and write the result folder."""
    started = time.perf_counter()
    folder = out_folder("nonconvex-rates")
    rates = _rates()
    print("rates", round(time.perf_counter() - started), "s", flush=True)
    central = _central()
    print("central", round(time.perf_counter() - started), "s", flush=True)
    supports = _supports()
    _figure(folder / "figure.png", rates, central, supports)
    found = {"rates": rates, "shuffled_sum": central, "supports": supports}
    write(folder, found, _readme(rates, central, supports), started)


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


def _arms(problem: Problem) -> dict[str, tuple[Callable[..., Algorithm], int]]:
    """Name: factory of (noise, step, ratio), and phase length."""
    fixed: dict[str, Any] = {"num_rounds": ROUNDS, "clip_norm": 2.5, "batch_size": None, "sampling": "full"}

    def sgd(noise_multiplier: Any, step_size: Any, ratio: Any) -> Algorithm:
        return mb_sgd(problem, noise_multiplier=noise_multiplier, step_size=step_size, output="last", **fixed)

    def reduced(factory: Any, phase: int) -> Callable[..., Algorithm]:
        def build(noise_multiplier: Any, step_size: Any, ratio: Any) -> Algorithm:
            own = {"noise_multiplier": noise_multiplier, "step_size": step_size, "difference_noise": ratio}
            return factory(problem, phase_length=phase, difference_slope=1.0, **own, **fixed)

        return build

    arms: dict[str, tuple[Callable[..., Algorithm], int]] = {"MB-SGD": (sgd, 1)}
    for phase in PHASES:
        arms[f"SPIDER q={phase}"] = reduced(prox_spider, phase), phase
        arms[f"SVRG q={phase}"] = reduced(prox_svrg, phase), phase
    return arms


def _rates() -> dict[str, Any]:
    """For each algorithm and budget, the least mean squared gradient over rounds, steps and ratios of noise."""
    problem = valley()
    seeds = _valley_seeds(problem)
    targets = np.geomspace(50, 2000, 7)  # mu n sqrt(N) / sqrt(d)
    unit = RECORDS * SILOS**0.5 / DIMENSION**0.5
    best: dict[str, np.ndarray] = {}
    for name, (build, phase) in _arms(problem).items():
        points = [
            (z, step, ratio)
            for z in np.geomspace(0.05, 12, 12)
            for step in (0.5, 0.1)
            for ratio in ((1.0,) if phase == 1 else (1.0, 4.0))
        ]
        grid = dict(zip(("noise_multiplier", "step_size", "ratio"), np.asarray(points, np.float32).T, strict=True))
        outcome = simulate_grid(
            build,
            grid,
            seeds,
            measure=lambda params, pooled: {"norm": gradient_mapping(problem, params, pooled, 0.5) ** 2},
            measure_every=phase * max(1, 40 // phase),
        )
        anchors = np.ceil(outcome.rounds / phase)
        z, _, ratio = np.asarray(points).T
        mu = np.sqrt(anchors + (outcome.rounds - anchors) / ratio[:, None] ** 2) / z[:, None]
        error = np.where(np.isfinite(outcome.trace["norm"]), outcome.trace["norm"], np.inf).mean(axis=0)
        # A run with more noise than the budget asks for is private enough: it counts for all larger budgets.
        reached = np.asarray([error[mu * unit <= x].min(initial=np.inf) for x in targets])
        family = name.split()[0]
        best[family] = np.minimum(best.get(family, np.inf), reached)
        print(name, np.round(reached, 5), flush=True)
    slopes = {name: -float(np.polyfit(np.log(targets), np.log(values), 1)[0]) for name, values in best.items()}
    return {"budget": targets.tolist(), "best": {k: v.tolist() for k, v in best.items()}, "slopes": slopes}


def _regression(strength: float, group: bool) -> tuple[Problem, list[Seed], np.ndarray]:
    """Ten silos of 1,000 records, 60 features of which 6 matter (two groups of three); features of norm at most one."""
    features = 60
    truth = np.zeros(features)
    truth[[0, 1, 2, 30, 31, 32]] = [1.0, -1.0, 1.0, -1.0, 1.0, -1.0]
    penalty = geometry.group_lasso(strength, np.arange(features) // 3) if group else geometry.l1(strength)
    problem = Problem(Objective(linear(features, 1, bias=False), squared()), penalty, smoothness=1.0)
    seeds = []
    for number in range(10):
        rng = np.random.default_rng(number)
        x = rng.normal(size=(10, 1000, features))
        x /= np.linalg.norm(x, axis=2, keepdims=True)
        y = x @ truth + 0.05 * rng.normal(size=x.shape[:2])
        made = [{"x": a, "y": b} for a, b in zip(x, y, strict=True)]
        pooled = {"x": jnp.asarray(x.reshape(-1, features), jnp.float32), "y": jnp.asarray(y.ravel(), jnp.float32)}
        key = jax.random.key(number)
        seeds.append(Seed(key, problem.objective.init(key), enrol(made), pooled))
    return problem, seeds, truth


def _train(problem: Problem, seeds: list[Seed], epsilons: Any, channel: Channel, factory: Any, **own: Any) -> Any:
    rounds = 30
    mu = np.asarray([gdp_mu(e, DELTA) for e in epsilons])

    def build(noise_multiplier: Any) -> Algorithm:
        return factory(
            problem,
            step_size=20.0,
            num_rounds=rounds,
            clip_norm=0.5,
            noise_multiplier=noise_multiplier,
            batch_size=None,
            sampling="full",
            channel=channel,
            **own,
        )

    return simulate_grid(build, {"noise_multiplier": (rounds**0.5 / mu).astype(np.float32)}, seeds).params


def _central() -> dict[str, Any]:
    """Excess risk of SGD and SPIDER through the shuffled sum, a trusted server, and directly, at equal epsilon."""
    problem, seeds, _ = _regression(0.001, False)
    epsilons = (0.5, 1.0, 2.0)
    least = [proximal_descent(problem, seed.params, seed.evaluation, 30.0, 300) for seed in seeds]
    spider = {"phase_length": 3, "difference_slope": 1.0}
    found: dict[str, Any] = {"epsilon": list(epsilons)}
    for name, factory, own in (("MB-SGD", mb_sgd, {"output": "last"}), ("SPIDER", prox_spider, spider)):
        rows = {}
        for channel in ("shuffled-sum", "trusted", "direct"):
            params = _train(problem, seeds, epsilons, channel, factory, **own)
            rows[channel] = [_excess(problem, seeds, params, least, i) for i in range(len(epsilons))]
        ratio = [a["mean"] / b["mean"] for a, b in zip(rows["shuffled-sum"], rows["trusted"], strict=True)]
        found[name] = {**rows, "shuffled_over_trusted": ratio}
    return found


def _excess(problem: Problem, seeds: list[Seed], params: Params, least: list[Params], i: int) -> dict[str, float]:
    values = [
        float(risk(problem, jax.tree.map(lambda leaf, s=s: leaf[s, i], params), seed.evaluation))
        - float(risk(problem, least[s], seed.evaluation))
        for s, seed in enumerate(seeds)
    ]
    return interval(np.asarray(values))


def _supports() -> list[dict[str, Any]]:
    """How often the support is exactly the true one, by epsilon; ten seeds, every record in every round."""
    epsilons = (0.5, 1.0, 2.0, 4.0, 8.0)
    rows = []
    for group, strength in ((False, 0.004), (True, 0.006)):
        problem, seeds, truth = _regression(strength, group)
        for channel in ("direct", "shuffled-sum"):
            params = _train(problem, seeds, epsilons, channel, mb_sgd, output="last")
            chosen = np.asarray(params["linear"]["w"])[..., 0] != 0
            for i, epsilon in enumerate(epsilons):
                right = chosen[:, i] == (truth != 0)
                rows.append(
                    {
                        "penalty": "group lasso" if group else "lasso",
                        "channel": channel,
                        "epsilon": epsilon,
                        "exact": float(right.all(axis=1).mean()),
                        "missed": float((~chosen[:, i] & (truth != 0)).sum(axis=1).mean()),
                        "false": float((chosen[:, i] & (truth == 0)).sum(axis=1).mean()),
                    }
                )
    return rows


def _figure(path: Path, rates: dict[str, Any], central: dict[str, Any], supports: list[dict[str, Any]]) -> None:
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    x = np.asarray(rates["budget"])
    for name, values in rates["best"].items():
        left.loglog(x, values, "o-", ms=3, label=f"{name}, slope {rates['slopes'][name]:.2f}")
    for power, style in ((1.0, ":"), (4 / 3, "--")):
        left.loglog(
            x, rates["best"]["MB-SGD"][0] * (x / x[0]) ** -power, style, color="grey", lw=1, label=f"-{power:.2f}"
        )
    left.set(xlabel="mu n sqrt(N/d)", ylabel="squared gradient norm", title="Rates")
    left.legend(fontsize=7)
    for name in ("MB-SGD", "SPIDER"):
        for channel, style in (("shuffled-sum", "-"), ("trusted", "--"), ("direct", ":")):
            rows = central[name][channel]
            means, bars = [r["mean"] for r in rows], [r["half90"] for r in rows]
            middle.errorbar(central["epsilon"], means, bars, ls=style, label=f"{name}, {channel}", capsize=2)
    middle.set(
        xlabel="epsilon", ylabel="excess risk", xscale="log", yscale="log", title="Shuffled sum, 10 silos of 1,000"
    )
    middle.legend(fontsize=7)
    for penalty in ("lasso", "group lasso"):
        for channel, style in (("direct", ":"), ("shuffled-sum", "-")):
            rows = [r for r in supports if r["penalty"] == penalty and r["channel"] == channel]
            right.plot(
                [r["epsilon"] for r in rows],
                [r["exact"] for r in rows],
                style,
                marker="o",
                ms=3,
                label=f"{penalty}, {channel}",
            )
    right.set(xlabel="epsilon", ylabel="share of seeds with the exact support", xscale="log", title="Support")
    right.legend(fontsize=7)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _readme(rates: dict[str, Any], central: dict[str, Any], supports: list[dict[str, Any]]) -> str:
    slopes = table(
        ["algorithm", "slope", *(f"{x:.0f}" for x in rates["budget"])],
        [
            [name, f"{rates['slopes'][name]:.2f}", *(f"{v:.2g}" for v in values)]
            for name, values in rates["best"].items()
        ],
    )
    ratios = table(
        ["algorithm", *(f"epsilon {e:g}" for e in central["epsilon"])],
        [[name, *(f"{r:.3f}" for r in central[name]["shuffled_over_trusted"])] for name in ("MB-SGD", "SPIDER")],
    )
    found = table(
        ["penalty", "channel", "epsilon", "exact support", "missed of 6", "false of 54"],
        [[r["penalty"], r["channel"], r["epsilon"], r["exact"], r["missed"], r["false"]] for r in supports],
    )
    small = gdp_epsilon(0.1, DELTA)
    return f"""# Rates of the non-convex algorithms

![figure](figure.png)

**Rates.** A problem made to be as hard as smooth losses get, on which gradients move little between rounds: a bowl in
{DIMENSION} directions and a long valley ({SILOS} silos of {RECORDS} records, {SEEDS} seeds, full batches). The budget
is mu n sqrt(N/d), where all releases of a silo together are mu-GDP (mu = 0.1 is epsilon = {small:.2f} at delta =
{DELTA:g}); up to constants it is epsilon n sqrt(N/d). For each budget and algorithm: the least mean squared norm of
the gradient over the number of rounds (up to {ROUNDS}), two step sizes and, for SPIDER and SVRG, phases of {PHASES}
and two ratios of noise. Choosing the least is an oracle's choice, the same for all. The theory's powers are 1 for
minibatch SGD and 4/3 for SPIDER.

{slopes}
**The shuffled sum beside a trusted server.** Lasso regression, 10 silos of 1,000 records, 60 features, 30 rounds,
delta = {DELTA:g}, 10 paired seeds: excess risk through the shuffled sum over that of central DP at the same epsilon.

{ratios}
**Supports.** The same records; 6 of 60 coefficients are not zero, in two groups of three. Noisy proximal minibatch
SGD; the penalty strengths (lasso 0.004, group lasso 0.006) were fixed before the runs.

{found}
"""


if __name__ == "__main__":
    main()
