"""Whether 95% intervals of statistics contain the population's value in 95% of draws, noise included.

``python -m experiments.statistics_coverage`` writes ``results/statistics-coverage``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from experiments.folder import Data, Experiment, Finding, Parts, save, table
from experiments.patients import COLUMNS, MEAN_LIFE, STATISTICS, patients
from tacit.algorithm import Algorithm, Channel, Terms
from tacit.algorithms.statistics import row_of, statistics
from tacit.channel import mean_of_shares, weighted_mean
from tacit.counting.estimate import Noisy, hypotheses_of, rows_of
from tacit.counting.request import block, parsed
from tacit.plans.price import plan_silos
from tacit.privacy.anonymity import record_weights
from tacit.privacy.plan import Budget
from tacit.silo import AnonymityCounts, answer, view_of
from tacit.simulate.participation import participation
from tacit.studies.statistics import ALL_SILOS, block_noise

SILOS, RECORDS, DRAWS, DELTA = 4, 500, 1000, 1e-6
EPSILONS = (1.0, 2.0, 8.0)
CHANNELS: tuple[Channel, ...] = ("direct", "shuffled-sum")
LOW, HIGH, LEVEL = 0.925, 0.98, 0.05
RARE, TOLD = 0.005, 0.99  # shares that are smaller, and rows that are told less often, are left out
TABLES = parsed(COLUMNS, STATISTICS)
POPULATION = 4_000_000
_AT_ONCE = 10


def compute(given: Any) -> Data:
    """Coverage of every row of every statistic, by channel and epsilon."""
    silos, draws = (SILOS, 40) if given.tiny else (SILOS, DRAWS)
    rng = np.random.default_rng(0)
    people = np.stack([patients(rng, silos * RECORDS).reshape(silos, RECORDS, -1) for _ in range(draws)])
    truth = population(200_000 if given.tiny else POPULATION)
    sizes = {"silos": silos, "records": RECORDS, "draws": draws, "delta": DELTA}
    parts = Parts(given.out / "parts.json", [sizes, COLUMNS, STATISTICS])
    cases = []
    for channel in CHANNELS:
        for epsilon in EPSILONS[-1:] if given.tiny else EPSILONS:
            found = parts.get(f"{channel}, epsilon {epsilon:g}", partial(_case, channel, epsilon, people, truth))
            cases.append({"channel": channel, "epsilon": epsilon, **found})
    return {**sizes, "cases": cases, "cpu_minutes": parts.cpu_minutes}


def population(size: int) -> list[np.ndarray]:
    """The cells of every table in a population that is as good as infinite."""
    rng, part = np.random.default_rng(1), 100_000
    of = jax.jit(lambda columns: [jax.vmap(lambda r, t=t: row_of(t, r))(columns).mean(axis=0) for t in TABLES])
    rows = [of(patients(rng, part)) for _ in range(size // part)]
    return [np.mean([np.asarray(row[place], np.float64) for row in rows], axis=0) for place in range(len(TABLES))]


def _case(channel: Channel, epsilon: float, people: np.ndarray, truth: list[np.ndarray]) -> Data:
    silos = people.shape[1]

    def build(noise: Any) -> Algorithm:
        terms = Terms(clip_norm=None, noise_multiplier=noise, batch_size=None, sampling="full", channel=channel)
        return statistics(statistics=STATISTICS, columns=COLUMNS)(None, terms)

    budget = Budget(epsilon=epsilon, delta=DELTA, honest=1.0, min_silos=silos)
    names = [f"silo {i}" for i in range(silos)]
    dimensions = {"statistics": sum(table.size for table in TABLES)}
    plans, noise = plan_silos(build, names, [RECORDS] * silos, budget, dimensions=dimensions)
    spent = plans[0].price
    assert noise is not None
    assert spent is not None
    algorithm = build(noise)
    means = _released(algorithm, silos)(people)
    who, sizes = participation(silos), dict.fromkeys(names, RECORDS)
    deviations = block_noise(algorithm.rounds["statistics"].silo.release, TABLES, sizes, who)
    found = []
    for place, (own, wanted) in enumerate(zip(TABLES, truth, strict=True)):
        noisy = Noisy(means[block(place)], deviations[place][ALL_SILOS], silos * RECORDS)
        found.append({"title": own.request.title, "noise": noisy.noise, **_coverage(own, noisy, wanted)})
    return {"noise_multiplier": float(noise[0]), "spent": spent.epsilon, "statistics": found}


def _released(algorithm: Algorithm, silos: int) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
    """What all silos together say, for every draw of people: the simulator's release, silo by silo."""
    silo = algorithm.rounds["statistics"].silo
    sizes = jnp.full(silos, RECORDS)
    weights, largest = record_weights((1 / silos,) * silos, sizes)
    total = float(silos * RECORDS)
    crowd = AnonymityCounts(total, total, weights) if silo.release.channel == "shuffled-sum" else None

    def one(key: jax.Array, columns: jax.Array) -> Any:
        def said(index: jax.Array, own: jax.Array) -> Any:
            view = view_of({"columns": own}, RECORDS, None, index)
            return answer(silo, (), (), view, key=jax.random.fold_in(key, index), position=0, anonymity=crowd)[0]

        messages = jax.vmap(said)(jnp.arange(silos), columns)
        if crowd is None:
            return weighted_mean(messages, jnp.full(silos, 1 / silos))
        return mean_of_shares(messages, sizes, largest, silos)

    def every(people: np.ndarray) -> dict[str, np.ndarray]:
        keys = jax.random.split(jax.random.key(0), len(people))
        found = jax.jit(lambda k, p: jax.lax.map(lambda kp: one(*kp), (k, p), batch_size=_AT_ONCE))(keys, people)
        return {name: np.asarray(own, np.float64) for name, own in found.items()}

    return every


def _coverage(own: Any, noisy: Noisy, wanted: np.ndarray) -> Data:
    """How often the intervals of rows contain the truth, of rows that are told nearly always and are not rare."""
    rows = {}
    for row, true in zip(rows_of(own, noisy), rows_of(own, Noisy(wanted, 0.0, 10**9)), strict=True):
        value = np.exp(-float(row.cell) / MEAN_LIFE) if row.measure == "survival" else float(true.value)
        told = float(np.isfinite(row.value).mean())
        if row.group in ("other", "missing") or row.measure == "count" or value < RARE or told < TOLD:
            continue
        name = " ".join(part for part in (row.group, row.cell, row.measure) if part)
        rows[name] = round(float(np.mean((row.low <= value) & (value <= row.high))), 4)
    tests = {one.name: float(np.mean(one.p_value < LEVEL)) for one in hypotheses_of(own, noisy)}
    covered = list(rows.values())
    least, most = (min(covered), max(covered)) if covered else (None, None)
    return {"rows": rows, "least": least, "most": most, "tests": tests}


def draw(folder: Path, data: Data) -> None:
    """Every row's coverage, by case."""
    figure, axis = plt.subplots(figsize=(8, 3.5), layout="constrained")
    for place, case in enumerate(data["cases"]):
        values = [v for one in case["statistics"] for v in one["rows"].values()]
        axis.plot(np.full(len(values), place) + np.linspace(-0.25, 0.25, len(values)), values, ".", ms=4)
    axis.axhspan(LOW, HIGH, alpha=0.15)
    axis.axhline(0.95, lw=0.8)
    names = [f"{case['channel']}\nepsilon {case['epsilon']:g}" for case in data["cases"]]
    axis.set_xticks(range(len(names)), names, fontsize=8)
    axis.set_ylabel("intervals that contain the truth")
    save(figure, folder / "figure.png")


def words(data: Data) -> Data:
    """Tables and verdicts."""
    head = ["statistic", *(f"{case['channel']}, epsilon {case['epsilon']:g}" for case in data["cases"])]

    def span(one: Data) -> str:
        return "too few to tell" if one["least"] is None else f"{one['least']:.3f} to {one['most']:.3f}"

    titles = [one["title"] for one in data["cases"][0]["statistics"]]
    rows = [[title, *(span(case["statistics"][i]) for case in data["cases"])] for i, title in enumerate(titles)]
    every = [v for case in data["cases"] for one in case["statistics"] for v in one["rows"].values()]
    tests = [
        [case["channel"], f"{case['epsilon']:g}", f"{case['statistics'][-1]['tests']['log-rank']:.1%}"]
        for case in data["cases"]
    ]
    return {
        "coverage": table(head, rows),
        "inside": sum(LOW <= v <= HIGH for v in every),
        "count": len(every),
        "mean": float(np.mean(every)),
        "tests": table(["channel", "epsilon", "rejected at 5%"], tests),
    }


def finding(data: Data) -> Finding:
    """How often intervals contain the truth, and how often the log-rank test is wrong."""
    every = [v for case in data["cases"] for one in case["statistics"] for v in one["rows"].values()]
    tests = [case["statistics"][-1]["tests"]["log-rank"] for case in data["cases"]]
    said = (
        f"95% intervals of statistics hold the truth in {min(every):.1%} to {max(every):.1%} of {data['draws']:,} draws"
    )
    wrong = f"the log-rank test rejects equal survival in {min(tests):.1%} to {max(tests):.1%} at level 5%"
    return Finding(f"{said}, and {wrong}", "none")


EXPERIMENT = Experiment("statistics-coverage", compute, draw, words, tiny=True, finding=finding)

if __name__ == "__main__":
    EXPERIMENT.main()
