"""California housing, ten silos, a small network: shuffled reports beside other channels, and local steps.

``python -m experiments.california_housing_mlp`` writes ``results/california-housing-mlp``. It can be stopped
and started again: every finished part is kept in ``parts.json``. ``--tiny`` tries everything on a small setting.

Every private method has the same grid of steps and clips, and its split of noise between kinds of rounds (differences,
local steps) is searched around the rule of `tacit.algorithms.noise_split` once step and clip are found. Settings are
chosen by training loss, as the paper's are, on three seeds by successive halving. Methods through shufflers are
searched with Gaussian noise of the same variance at a trusted server. This search is outside the guarantee, as the
paper's is; the prices are those of the runs.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from jax.flatten_util import ravel_pytree

from experiments.common import Runner, columns, grid_of, interval, noise_for, records_of, seeds_of, verdict
from experiments.folder import PROTOCOL, Data, Experiment, Finding, Parts, save, table
from experiments.search import Point, Space, Trials, refuse_edges, search
from tacit import data
from tacit.algorithm import Algorithm
from tacit.geometry.proximal import tree_norm
from tacit.objectives import Objective, Problem, mlp, squared
from tacit.plans.catalogue import find
from tacit.plans.price import plan_silos
from tacit.privacy import Budget
from tacit.privacy.parties import without_shuffler
from tacit.privacy.randomisers import terms_of
from tacit.simulate.compiled import Seed, simulate_grid

HIDDEN = 10
"""Width of the hidden layer, of softplus units: the network of Murata and Suzuki 2023, to whom the paper refers."""
OBJECTIVE = Objective(mlp((8, HIDDEN, 1), activation=jax.nn.softplus), squared())
DIMENSION = 8 * HIDDEN + HIDDEN + HIDDEN + 1
DELTA = 1e-5
SILOS = 10
MOMENTUM, SLOPE = 0.1, 1.0
LOOK = 20
SPLITS = {"difference_noise": (0.5, 1.0, 2.0), "local_noise": (0.25, 1.0, 4.0)}
"""Noise of differences and of local steps over that of the split rule."""
LEVEL_STEPS = tuple(2.0**k for k in range(-6, 4))
"""Steps that are tried at every level of heterogeneity."""
MEASURES = {"train_loss": "train loss", "squared_gradient": "squared gradient norm", "test_loss": "test loss"}
LEVEL_MEASURES = ("train_loss", "squared_gradient")
LOWEST = 1 / 3  # of a mean: where a band is cut, lest it fill a logarithmic axis
OPEN: dict[str, Any] = {"clip_norm": None, "noise_multiplier": None, "channel": "open"}


@dataclass(frozen=True)
class Size:
    """How large the study is."""

    rounds: int = 500
    epsilons: tuple[float, ...] = (0.4, 0.8, 1.6)
    seeds: int = 10
    tuning: int = 3
    clips: tuple[float, ...] = (0.1, 0.3, 1.0)
    steps: tuple[float, ...] = (0.25, 1.0, 4.0)
    records: int | None = None
    levels: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    local_rounds: int = 100
    local_seeds: int = 5


TINY = Size(10, (0.8,), 2, 1, (1.0,), (0.5, 1.0, 2.0), 30, (0.0, 1.0), 8, 1)


@dataclass(frozen=True)
class Arm:
    """A method of the comparison; ``streams`` is how many vectors a silo says in a round."""

    label: str
    algorithm: str
    channel: str
    own: dict[str, Any] = field(default_factory=dict)
    batch: int | None = None
    streams: int = 2

    def build(self, rounds: int, **point: Any) -> Algorithm:
        """The algorithm at a point of the grid."""
        common = {"num_rounds": rounds, "batch_size": self.batch, "sampling": "wor" if self.batch else "full"}
        slope = {} if self.algorithm == "mb-sgd" else {"difference_slope": SLOPE}
        given = {**common, **slope, "channel": self.channel, "silos": SILOS, **self.own, **point}
        return find(self.algorithm).build(Problem(OBJECTIVE), **given)

    def splits(self, rounds: int) -> dict[str, float]:
        """How many times the noise of gradients the split rule gives to differences and to local steps."""
        made = self.build(rounds, clip_norm=1.0, noise_multiplier=1.0, step_size=0.1)
        found = {}
        for kind, part in made.rounds.items():
            noise = part.silo.release.noise_multiplier
            if kind == "local":
                found["local_noise"] = float(noise)
            elif kind != "gradient":
                found["difference_noise"] = float(noise["difference"] if isinstance(noise, dict) else noise)
        return found

    def stand_in(self, noise: float, records: int) -> tuple[Arm, float]:
        """The same method with Gaussian noise at a trusted server, as large as its own, and its multiplier."""
        if self.channel == "shuffled-sum":
            return replace(self, channel="trusted"), noise
        if self.channel != "shuffled-reports":
            return self, noise
        own = {name: value for name, value in self.own.items() if name != "randomiser"}
        deviation = terms_of(self.own["randomiser"], DIMENSION, 1 / noise).deviation
        return replace(self, channel="trusted", own=own), deviation * math.sqrt(SILOS * (self.batch or records)) / 2

    def bytes_per_round(self, records: int) -> float:
        """What one silo says in one round, on average over turns of local steps."""
        local = 4 * DIMENSION / 10 if self.own.get("local_steps", 1) > 1 else 0.0
        if self.channel != "shuffled-reports":
            return self.streams * (8 if self.channel == "shuffled-sum" else 4) * DIMENSION + local
        size = terms_of(self.own["randomiser"], DIMENSION, 1.0).report_bytes
        return self.streams * (self.batch or records) * size + local


def arms(local_batch: int) -> tuple[Arm, ...]:
    """The methods of the comparison."""
    storm = {"momentum": MOMENTUM}
    local = {"local_steps": 4, "local_batch_size": local_batch}
    fresh = {"phase_length": 10}
    reports = "shuffled-reports"
    return (
        Arm("MB-PSGM-FG, Duchi reports", "mb-psgm-fg", reports, {**storm, "randomiser": "duchi"}),
        Arm("MB-PSGM-FG, PrivUnit2 reports", "mb-psgm-fg", reports, {**storm, "randomiser": "privunit2"}),
        Arm("MB-PSGM-FG, shuffled sum", "mb-psgm-fg", "shuffled-sum", storm),
        Arm(
            "CE-PSGM, PrivUnit2 reports",
            "ce-psgm",
            reports,
            {**storm, **local, "randomiser": "privunit2"},
            4 * local_batch,
        ),
        Arm("SDP FedProx-SPIDER", "prox-spider", "shuffled-sum", fresh, streams=1),
        Arm("DIFF2-GD (trusted)", "diff2-gd", "trusted", fresh, streams=1),
        Arm("DIFF2-BVR-LSGD (trusted)", "diff2-bvr-lsgd", "trusted", {**fresh, **local}, streams=1),
    )


def houses(size: Size, seed: int, level: float | None) -> data.Federation:
    """Ten silos of houses, drawn alike, or by sorted target at a level of heterogeneity."""
    kind = {"partition": "iid"} if level is None else {"partition": "sorted-target", "level": level}
    return data.load(
        "california-housing", silos=10, seed=seed, validation=0.0, test=0.2, records_per_silo=size.records, **kind
    )


def repetitions(size: Size, number: int, level: float | None = None) -> tuple[list[Seed], list[int]]:
    """Seeds, another partition and another start each, and the number of records of each silo."""
    loaded = [houses(size, seed, level) for seed in range(number)]
    return seeds_of(loaded, OBJECTIVE, ("train", "test")), records_of(loaded[0])


def measure(params: Any, evaluation: Any) -> dict[str, Any]:
    """Training loss, squared norm of its gradient, and test loss."""

    def risk(w: Any, part: str) -> Any:
        return OBJECTIVE.losses(w, evaluation[part]).mean()

    value, slope = jax.value_and_grad(lambda w: risk(w, "train"))(params)
    return {"train_loss": value, "squared_gradient": tree_norm(slope) ** 2, "test_loss": risk(params, "test")}


def traces(
    build: Callable[..., Algorithm], points: Sequence[dict[str, Any]], seeds: Sequence[Seed], every: int
) -> dict[str, np.ndarray]:
    """Measurements with axes (seeds, points, looks)."""
    return dict(simulate_grid(build, columns(points), seeds, measure=measure, measure_every=every).trace)


def apart(size: Size, level: float) -> dict[str, float]:
    """How far silos' gradients and Hessians are from those of all, at most, at a trained model.

    The theory of local steps speaks of Hessians: the local steps correct the mean gradient by differences alone.
    """
    loaded = houses(size, 0, level)
    start, shape = ravel_pytree(OBJECTIVE.init(jax.random.key(0)))
    parts = [{name: jnp.asarray(silo.train[name]) for name in ("x", "y")} for silo in loaded.silos]

    def risk(w: Any, records: Any) -> Any:
        return OBJECTIVE.losses(shape(w), records).mean()

    everybody = jax.tree.map(lambda *columns: jnp.concatenate(columns), *parts)
    descend = jax.jit(lambda w: jax.lax.fori_loop(0, 500, lambda _, w: w - 0.25 * jax.grad(risk)(w, everybody), w))
    trained = descend(start)
    slope, bend = jax.jit(jax.grad(risk)), jax.jit(jax.hessian(risk))
    whole = bend(trained, everybody)
    return {
        "target": float(np.std([np.mean(part["y"]) for part in parts])),
        "gradient": max(float(jnp.linalg.norm(slope(trained, part) - slope(trained, everybody))) for part in parts),
        "hessian": max(float(jnp.linalg.norm(bend(trained, part) - whole, 2)) for part in parts),
        "smoothness": float(jnp.linalg.norm(whole, 2)),
    }


def priced(arm: Arm, rounds: int, records: Sequence[int], epsilon: float, **split: float) -> tuple[float, Data]:
    """The noise multiplier of all silos at this budget and split, and what it costs with and without shufflers."""
    budget = Budget(epsilon=epsilon, delta=DELTA, honest=1.0, min_silos=len(records))

    def build(noise: Any) -> Algorithm:
        return arm.build(rounds, clip_norm=1.0, noise_multiplier=noise, step_size=0.1, **split)

    plans, noise = plan_silos(build, [str(i) for i in range(len(records))], records, budget, dimensions={})
    if noise is None:
        raise ValueError(f"Expected a budget of epsilon={epsilon} to ask for noise.")
    multiplier = float(noise.max())
    return multiplier, {
        "epsilon": max(p.price.epsilon for p in plans if p.price is not None),
        "without_shuffler": without_shuffler(plans[0].events, delta=DELTA),
        "local_epsilon": 1 / multiplier if arm.channel == "shuffled-reports" else None,
    }


class Study:
    """The study at one size, writing what it finds into a folder."""

    def __init__(self, folder: Path, size: Size) -> None:
        self.folder, self.size = folder, size
        self.look = max(1, min(LOOK, size.rounds // 10))
        folder.mkdir(parents=True, exist_ok=True)
        self.parts = Parts(folder / "parts.json", asdict(size))
        self.trials = Trials(folder / "trials.jsonl", asdict(size))

    def searched(self, arm: Arm, epsilon: float | None, seeds: Sequence[Seed], records: Sequence[int]) -> Data:
        """Step, clip and split by training loss on the tuning seeds: a search that is not private."""
        size, axes = self.size, {"step_size": self.size.steps}
        if epsilon is not None:
            rule = arm.splits(size.rounds)
            axes |= {"clip_norm": size.clips, **{k: tuple(z * f for f in SPLITS[k]) for k, z in rule.items()}}

        @cache
        def noise(split: tuple[tuple[str, float], ...]) -> float:
            return priced(arm, size.rounds, records, epsilon or 1.0, **dict(split))[0]

        def derived(point: Point) -> Point:
            if epsilon is None:
                return {}
            real = noise(tuple((k, point[k]) for k in SPLITS if k in point))
            return {"noise_multiplier": arm.stand_in(real, min(records))[1], "real": real}

        quick = arm if epsilon is None else arm.stand_in(1.0, min(records))[0]

        def build(**point: Any) -> Algorithm:
            real = point.pop("real", None)
            if "local_noise" in point:  # local steps are noised by the silo whatever the channel
                point["local_noise"] = point["local_noise"] * real / point["noise_multiplier"]
            return quick.build(size.rounds, **({} if epsilon is not None else OPEN), **point)

        runner = Runner(build, OBJECTIVE, None, (3, 12))
        label = arm.label if epsilon is None else f"{arm.label} {epsilon:g}"
        space = Space(label, axes, later=tuple(SPLITS), derived=derived)
        run = lambda points, seed: runner(points, seeds[seed])  # noqa: E731
        return search(space, self.trials, run, "train_loss", seeds=range(size.tuning))

    def curve(self, arm: Arm, epsilon: float | None) -> Data:
        """One method at one budget: searched on some seeds, then run on others."""
        size = self.size
        seeds, records = repetitions(size, size.tuning + size.seeds)
        choice = self.searched(arm, epsilon, seeds, records)
        split = {name: choice["point"][name] for name in SPLITS if name in choice["point"]}
        point, price = {"step_size": choice["point"]["step_size"]}, {"epsilon": None}
        if epsilon is not None:
            noise, price = priced(arm, size.rounds, records, epsilon, **split)
            point |= {"clip_norm": choice["point"]["clip_norm"], "noise_multiplier": noise, **split}

        def build(**point: Any) -> Algorithm:
            return arm.build(size.rounds, **({} if epsilon is not None else OPEN), **point)

        seeds = seeds[size.tuning :]
        found = traces(build, [point], seeds, self.look)
        # Schedules with local steps have two rounds for one of the others.
        double = len(build(**point).schedule) // size.rounds
        constant = float(np.var(np.asarray(seeds[0].evaluation["train"]["y"])) / 2)
        reached = found["train_loss"][:, 0] <= 0.6 * constant
        return {
            "chosen": point,
            "choice": choice,
            **price,
            "by_seed": [float(value) for value in found["train_loss"][:, 0, -1]],
            "final": {name: interval(values[:, 0, -1]) for name, values in found.items()},
            "mean": {name: values[:, 0].mean(axis=0).tolist() for name, values in found.items()},
            "std": {name: values[:, 0].std(axis=0).tolist() for name, values in found.items()},
            "rounds": (self.look * (1 + np.arange(reached.shape[1])) / double).tolist(),
            "rounds_to_target": [
                self.look * (int(np.argmax(row)) + 1) / double if row.any() else None for row in reached
            ],
            "bytes_per_silo_and_round": arm.bytes_per_round(max(records)),
        }

    def heterogeneity(self, level: float) -> Data:
        """Local steps against none at one level of heterogeneity: without privacy, and at the largest budget.

        Steps are chosen on seeds of their own; the split of noise is the rule's.
        """
        size = self.size
        seeds, records = repetitions(size, size.local_seeds + size.tuning, level)
        local = {"local_steps": 8, "local_batch_size": max(4, min(records) // 8)}
        steps = LEVEL_STEPS if size.local_rounds > 20 else size.steps
        found: Data = {}
        for label, name, own in (("mini-batch", "mb-psgm-fg", {}), ("local steps", "ce-psgm-fg", local)):
            arm = Arm(label, name, "trusted", {"momentum": MOMENTUM, **own})
            unit = partial(arm.build, size.local_rounds, clip_norm=1.0, step_size=0.1)
            noise = float(noise_for(unit, records, max(size.epsilons), DELTA).max())
            for kind, fixed in (("not private", OPEN), ("private", {"clip_norm": 1.0, "noise_multiplier": noise})):
                build = partial(arm.build, size.local_rounds, **fixed)
                trace = traces(build, grid_of(step_size=steps), seeds, len(build(step_size=0.1).schedule))
                last = {k: np.where(np.isfinite(trace[k]), trace[k], np.inf)[:, :, -1] for k in LEVEL_MEASURES}
                best = int(np.argmin(last["train_loss"][size.local_seeds :].mean(axis=0)))
                measures = {k: interval(values[: size.local_seeds, best]) for k, values in last.items()}
                choice = {"point": {"step_size": steps[best]}, "axes": {"step_size": list(steps)}, "ends": {}}
                found[f"{label}, {kind}"] = {**choice, "step_size": steps[best], **measures}
        return found

    def run(self) -> Data:
        """All parts."""
        size, part = self.size, self.parts.get
        curves: Data = {}
        for arm in arms(max(2, (size.records or 1651) // 16)):
            curves[arm.label] = {
                f"{e:g}": part(f"{arm.label} {e:g}", partial(self.curve, arm, e)) for e in size.epsilons
            }
        open_arm = Arm("not private", "mb-psgm-fg", "open", {"momentum": MOMENTUM})
        curves["not private"] = {"none": part("not private", partial(self.curve, open_arm, None))}
        levels = {f"{v:g}": part(f"level {v:g}", partial(self.heterogeneity, v)) for v in size.levels}
        distances = {f"{v:g}": part(f"apart {v:g}", partial(apart, size, v)) for v in size.levels}
        return {"curves": curves, "heterogeneity": levels, "apart": distances}


def compute(given: argparse.Namespace) -> Data:
    """Everything that is not finished."""
    size = TINY if given.tiny else Size()
    study = Study(given.out, size)
    found = study.run()
    network = {"delta": DELTA, "hidden": HIDDEN, "dimension": DIMENSION, "cpu_minutes": study.parts.cpu_minutes}
    network["protocol"] = PROTOCOL
    return {**network, "rounds": size.rounds, "seeds": size.seeds, "size": asdict(size), **found}


def draw(folder: Path, data: Data) -> None:
    """The paper's figure, and local steps by heterogeneity."""
    draw_curves(folder / "figure.png", data["curves"])
    draw_levels(folder / "heterogeneity.png", data["heterogeneity"])


def budgets_of(curves: Data) -> list[str]:
    """The budgets of the private methods."""
    return list(next(iter(curves.values())))


def draw_curves(path: Path, curves: Data) -> None:
    """Three measures against rounds, a row for each budget; bands of one standard deviation."""
    budgets = budgets_of(curves)
    figure, grid = plt.subplots(len(budgets), 3, figsize=(12, 3.2 * len(budgets)), layout="constrained", squeeze=False)
    for row, epsilon in zip(grid, budgets, strict=True):
        for axis, (name, title) in zip(row, MEASURES.items(), strict=True):
            for label, found in curves.items():
                curve = found.get(epsilon, found.get("none"))
                mean, std = np.asarray(curve["mean"][name]), np.asarray(curve["std"][name])
                style = "--" if label == "not private" else "-"
                [line] = axis.plot(curve["rounds"], mean, label=label, linestyle=style)
                low = np.maximum(mean - std, LOWEST * mean)
                axis.fill_between(curve["rounds"], low, mean + std, color=line.get_color(), alpha=0.15, lw=0)
            axis.set(yscale="log", xlabel="round", ylabel=title, title=rf"$\epsilon$ = {epsilon}")
    grid[0, 0].legend(fontsize=6)
    save(figure, path)


def draw_levels(path: Path, levels: Data) -> None:
    """Local steps against none over the heterogeneity of the partition."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for axis, name in zip(axes, LEVEL_MEASURES, strict=True):
        for label in next(iter(levels.values())):
            values = [row[label][name] for row in levels.values()]
            style = {"linestyle": "-" if label.endswith(", private") else "--", "marker": "o", "label": label}
            means, widths = (np.asarray([v[part] for v in values]) for part in ("mean", "std"))
            bars = [np.minimum(widths, (1 - LOWEST) * means), widths]
            axis.errorbar([float(v) for v in levels], means, bars, **style)
        axis.set(yscale="log", xlabel="heterogeneity (0: iid, 1: sorted by target)", ylabel=name.replace("_", " "))
    axes[0].legend(fontsize=7)
    save(figure, path)


def words(data: Data) -> Data:
    """The comparison of all methods, and of local steps over levels of heterogeneity."""
    size = data.get("size", {})
    if data.get("protocol") == PROTOCOL:
        _refuse(data)
    header = ["method", "epsilon", "train loss", "squared gradient", "test loss", "bytes per silo and round"]
    rows = [
        [label, budget, *_compared(curve)] for label, own in data["curves"].items() for budget, curve in own.items()
    ]
    return {
        "budgets": ", ".join(budgets_of(data["curves"])),
        "first_step": size.get("first_step", 8.0),
        "local_rounds": size.get("local_rounds", Size.local_rounds),
        "level_steps": LEVEL_STEPS,
        "largest": max(size.get("epsilons", Size.epsilons)),
        "against": _against(data) if data.get("protocol") == PROTOCOL else None,
        "compared": table([*header, "rounds to target", "local epsilon", "epsilon without shuffler"], rows),
        "spread": _spread(data),
    }


def _refuse(data: Data) -> None:
    """Raise where a choice lies at the edge of its grid."""
    curves = {f"{label} {e}": curve["choice"] for label, own in data["curves"].items() for e, curve in own.items()}
    levels = {f"level {v}, {label}": cell for v, row in data["heterogeneity"].items() for label, cell in row.items()}
    refuse_edges({**curves, **levels})


def _against(data: Data) -> str:
    """Every private method against MB-PSGM-FG through the shuffled sum, seed by seed, in percent of its loss."""
    base, rows = data["curves"]["MB-PSGM-FG, shuffled sum"], []
    for label, own in data["curves"].items():
        if label in ("MB-PSGM-FG, shuffled sum", "not private"):
            continue
        cells = []
        for budget, curve in own.items():
            gain = interval(100 * (np.divide(curve["by_seed"], base[budget]["by_seed"]) - 1))
            cells.append(f"{gain['mean']:+.1f}% ± {gain['half90']:.1f}, {verdict(gain)}")
        rows.append([label, *cells])
    return table(["training loss against MB-PSGM-FG, shuffled sum", *base], rows)


def _compared(curve: Data) -> list[str]:
    """One method at one budget as cells of the table."""
    final, reached = curve["final"], [r for r in curve["rounds_to_target"] if r is not None]
    measures = [final[name] for name in MEASURES]
    scores = [f"{one['mean']:.4g} ± {one['std']:.2g}" for one in measures]
    rounds = f"{np.mean(reached):.0f} ({len(reached)}/{len(curve['rounds_to_target'])})" if reached else "never"
    local = "" if curve.get("local_epsilon") is None else f"{curve['local_epsilon']:.3f}"
    left = "" if curve.get("without_shuffler") is None else f"{curve['without_shuffler']:.0f}"
    return [*scores, f"{curve['bytes_per_silo_and_round']:.0f}", rounds, local, left]


def _spread(data: Data) -> str:
    """Losses at every level, and how far silos are apart there."""
    labels, rows = list(next(iter(data["heterogeneity"].values()))), []
    for level, row in data["heterogeneity"].items():
        far = data["apart"][level]
        losses = [f"{row[label]['train_loss']['mean']:.4g}" for label in labels]
        rows.append([level, *losses, f"{far['gradient']:.3f}", f"{far['hessian'] / far['smoothness']:.3f}"])
    return table(["level", *labels, "gradients apart", "Hessians apart, of the largest eigenvalue"], rows)


def finding(data: Data) -> Finding:
    """CE-PSGM against MB-PSGM-FG, both through PrivUnit2's reports, at every budget."""
    ours, base = (data["curves"][f"{name}, PrivUnit2 reports"] for name in ("CE-PSGM", "MB-PSGM-FG"))
    gains = {e: interval(100 * (np.divide(ours[e]["by_seed"], base[e]["by_seed"]) - 1)) for e in base}
    cells = ", ".join(f"{g['mean']:+.0f}% ± {g['half90']:.0f} at epsilon {e} ({verdict(g)})" for e, g in gains.items())
    return Finding(f"training loss of CE-PSGM beside MB-PSGM-FG's, both through reports: {cells}", "none")


EXPERIMENT = Experiment("california-housing-mlp", compute, draw, words, tiny=True, finding=finding, since=PROTOCOL)

if __name__ == "__main__":
    EXPERIMENT.main()
