"""Real silos, true epsilons: models that organisations of several data sets learn together, beside others' numbers.

``python -m experiments.real_silos`` writes ``results/real-silos``. ``real_silos.toml`` has a table for each data set:
the form for adding one. A row is minibatch SGD through a channel at an epsilon that every silo's record has, its
step and clip chosen by successive halving on the validation records of seeds 0 to 2; reported are the test records of
other seeds. Beside it: the same rounds without privacy, and each silo alone.
Every trial and row is kept as soon as it is there: the same command goes on where an earlier one stopped.
"""

from __future__ import annotations

import argparse
import math
import tomllib
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import dp_accounting
import jax
import matplotlib.pyplot as plt
import numpy as np
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from experiments.common import Runner, interval, verdict
from experiments.folder import PROTOCOL, Data, Experiment, Finding, Parts, save, table
from experiments.search import EVALUATION_SEEDS, TUNING_SEEDS, Point, Space, Trials, refuse_edges, search
from tacit.plans.spec import Study, study_from
from tacit.privacy import Event, price
from tacit.studies.run import Prepared, noise_at, prepare, run_prepared, starts_of

SETS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
EPSILONS = (1.0, 4.0, 8.0)
DELTA = 1e-5


def study_of(name: str, seeds: tuple[int, ...], **changes: Any) -> Study:
    """The study of a data set; ``changes`` are of its algorithm or ``epsilon``."""
    row = SETS[name]
    epsilon = changes.pop("epsilon", EPSILONS[0])
    budget = {"epsilon": epsilon, "delta": DELTA} if epsilon is not None else {}
    algorithm = {"name": "mb-sgd", "num_rounds": row["rounds"], "sampling": "full", "output": "average"}
    chosen = {"step_size": row["steps"][1], "clip_norm": row["clips"][1], **changes}
    return study_from(
        {
            "name": name,
            "data": row["data"],
            "partition": row.get("partition", {}),
            "objective": row["objective"],
            "algorithm": {**algorithm, **chosen},
            "privacy": budget,
            "run": {"seeds": seeds, "weights": row["weights"], "alone": False, "converged": False},
        }
    )


def tuned(name: str, channel: str, epsilon: float, trials: Trials, tuning: tuple[int, ...]) -> Data:
    """Step and clip by the validation loss of the tuning seeds."""
    prepared = prepare(study_of(name, tuning, channel=channel, epsilon=epsilon))
    starts = dict(zip(tuning, starts_of(prepared), strict=True))
    noise = noise_at(prepared, {})
    runner = Runner(_built(prepared, noise), prepared.builder.problem.objective, prepared.who, (3, trials.chunk))

    def run(points: list[Point], seed: int) -> Mapping[str, np.ndarray]:
        start = starts[seed]
        return runner(points, start._replace(evaluation=start.evaluation["parts"]))

    axes = {"step_size": tuple(SETS[name]["steps"]), "clip_norm": tuple(SETS[name]["clips"])}
    return search(Space(f"{name}, {channel}, {epsilon:g}", axes), trials, run, "validation_loss", seeds=tuning)


def _built(prepared: Prepared, noise: np.ndarray) -> Callable[..., Any]:
    def build(step_size: Any, clip_norm: Any) -> Any:
        return prepared.builder.build(noise_multiplier=noise, step_size=step_size, clip_norm=clip_norm)

    return build


def measured(name: str, seeds: tuple[int, ...], **changes: Any) -> Data:
    """The metric by seed of a run, and the most that a silo pays (nothing is paid without privacy)."""
    prepared = prepare(study_of(name, seeds, **changes))
    result = run_prepared(prepared)
    prices = [silo.price.epsilon for silo in prepared.plan.silos if silo.price is not None]
    return {"by_seed": _metric(name, prepared, result.params), "epsilon_certified": max(prices, default=None)}


def references(name: str, seeds: tuple[int, ...]) -> Data:
    """Without privacy: the same rounds, and silos alone on their own test records."""
    study = study_of(name, seeds, epsilon=None)
    run = study.run.model_copy(update={"alone": SETS[name]["over"] == "by-silo", "converged": True})
    prepared = prepare(study.model_copy(update={"run": run}))
    result = run_prepared(prepared)
    own = [values["alone"] for values in result.gains.values()]
    return {
        "silos": len(prepared.names),
        "records": [min(prepared.records), max(prepared.records)],
        "same rounds": _metric(name, prepared, result.params),
        "alone": [float(value) for value in np.mean(own, axis=0)] if own else [],
    }


def _metric(name: str, prepared: Prepared, params: Any) -> list[float]:
    """A model's metric by seed, on all test records or averaged over the silos that have some."""
    measure = jax.jit(prepared.builder.problem.objective.measure)
    found = []
    for s, federation in enumerate(prepared.federations):
        own = jax.tree.map(lambda leaf, s=s: leaf[s], params)
        tables = [{k: silo.test[k] for k in ("x", "y")} for silo in federation.silos if len(silo.test["y"])]
        if SETS[name]["over"] == "pooled":
            tables = [{k: np.concatenate([part[k] for part in tables]) for k in ("x", "y")}]
        found.append(float(np.mean([measure(own, part)[SETS[name]["metric"]] for part in tables])))
    return found


def certified(about: Mapping[str, Any], epsilon: float) -> Data:
    """What a published run spent at each silo, whose noise was calibrated for fewer steps than were taken.

    The noise is that of Renyi accounting for ``epsilon`` in so many epochs, as libraries do it. ``least`` is its tight
    price for adding or removing a record, as they count; ``replaced`` is ours, for replacing one. Both assume Poisson
    batches.
    """
    found: Data = {"least": [], "replaced": []}
    for records in about["records"]:
        rate, counted = about["batch"] / records, about["epochs"] * math.ceil(records / about["batch"])

        def spent(kind: Any, noise: float, steps: int, rate: float = rate) -> float:
            one = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
            return float(kind().compose(dp_accounting.SelfComposedDpEvent(one, steps)).get_epsilon(about["delta"]))

        low, high = 0.1, 100.0
        while high - low > 1e-4:
            middle = (low + high) / 2
            above = spent(RdpAccountant, middle, counted) > epsilon
            low, high = (middle, high) if above else (low, middle)
        shape: dict[str, Any] = {"records": records, "batch": about["batch"], "sampling": "poisson"}
        # Ours is in units of the change of a replaced record, two clips; theirs in clips.
        event = Event(kind="g", noise_multiplier=high / 2, count=about["steps"], **shape)
        found["least"].append(spent(PLDAccountant, high, about["steps"]))
        found["replaced"].append(price([event], delta=about["delta"]).epsilon)
    return found


@lru_cache(maxsize=1)
def published() -> dict[str, list[Data]]:
    """The numbers of others, with certified epsilons where enough is known of how they were made."""
    return {
        name: [
            {**row, "certified": certified(row["certify"], row["epsilon"]) if "certify" in row else None}
            for row in own["published"]
        ]
        for name, own in SETS.items()
    }


def compute(given: argparse.Namespace) -> Data:
    """What is missing of all tables."""
    names = list(SETS)[:1] if given.tiny else given.parts
    tuning = tuple(range(1 if given.tiny else TUNING_SEEDS))
    seeds = tuple(range(len(tuning), len(tuning) + (2 if given.tiny else EVALUATION_SEEDS)))
    epsilons, found = (EPSILONS[:1] if given.tiny else EPSILONS), dict[str, Any]()
    for name in names:
        parts = Parts(given.out / f"{name}.json", [SETS[name], tuning, seeds])
        trials = Trials(given.out / "trials.jsonl", [SETS[name], tuning])
        rows = {}
        for channel in SETS[name]["channels"][: 1 if given.tiny else None]:
            for epsilon in epsilons:
                choice = tuned(name, channel, epsilon, trials, tuning)
                make = partial(measured, name, seeds, channel=channel, epsilon=epsilon, **choice["point"])
                rows[f"{channel} {epsilon:g}"] = {**choice, **parts.get(f"{channel} {epsilon:g}", make)}
        found[name] = {"rows": rows, "references": parts.get("references", partial(references, name, seeds))}
    return {"protocol": PROTOCOL, "delta": DELTA, "seeds": list(seeds), "sets": found, "published": published()}


def draw(folder: Path, data: Data) -> None:
    """The metric against epsilon, a panel for each data set; lines are without privacy and alone."""
    sets = data["sets"]
    figure, axes = plt.subplots(1, len(sets), figsize=(4.4 * len(sets), 3.8), layout="constrained", squeeze=False)
    for axis, (name, found) in zip(axes.flat, sets.items(), strict=True):
        channels = list(dict.fromkeys(label.split()[0] for label in found["rows"]))
        references = compared(name, found)
        for place, channel in enumerate(channels):
            own = {
                float(k.split()[1]): interval(v["by_seed"]) for k, v in found["rows"].items() if k.startswith(channel)
            }
            at = [epsilon * 1.03**place for epsilon in own]
            bars = [one["half90"] for one in own.values()]
            axis.errorbar(at, [one["mean"] for one in own.values()], bars, marker="o", capsize=2, label=channel)
        for label, style in (("same rounds", ":"), ("alone", "--")):
            if references[label]:
                level = float(np.mean(references[label]))
                axis.axhline(level, ls=style, color="black", lw=1, label=f"{label}, not private")
        axis.set(title=SETS[name]["title"], xlabel="epsilon", ylabel=SETS[name]["metric"], xscale="log")
        axis.legend(fontsize=7)
    save(figure, folder / "figure.png")


def words(data: Data) -> Data:
    """A table for each data set, and in one sentence each whether learning together helps at each epsilon."""
    refuse_edges({f"{name}, {k}": row for name, own in data["sets"].items() for k, row in own["rows"].items()})
    return {
        "tables": [
            {
                "title": SETS[name]["title"],
                "note": SETS[name]["note"],
                "about": _about(name, found["references"]),
                "table": _table(name, found, data["published"][name]),
                "said": _said(name, found),
            }
            for name, found in data["sets"].items()
        ],
        "seeds_text": f"{data['seeds'][0]} to {data['seeds'][-1]}",
    }


def _about(name: str, found: Data) -> str:
    low, high = found["records"]
    kind = "averaged over silos" if SETS[name]["over"] == "by-silo" else "on the test records of all silos"
    return f"{found['silos']} silos of {low} to {high} training records; {SETS[name]['metric']} {kind}."


def _table(name: str, found: Data, others: list[Data]) -> str:
    rows = [
        [f"Tacit, {label.split()[0]}", f"{row['epsilon_certified']:.3g}", _cell(row["by_seed"])]
        for label, row in found["rows"].items()
    ]
    shown = {"same rounds": "Tacit, same rounds", "alone": "each silo alone, own test records"}
    references = compared(name, found)
    rows += [[words, "not private", _cell(references[key])] for key, words in shown.items() if references[key]]
    for row in others:
        claimed = row["epsilon"] if isinstance(row["epsilon"], str) else f"{row['epsilon']:g}"
        if row["certified"]:
            least, replaced = (", ".join(f"{e:.2f}" for e in row["certified"][k]) for k in ("least", "replaced"))
            claimed = f"printed {claimed}; at least {least} by silo ({replaced} where a record is replaced)"
        rows.append([row["who"], "not private" if claimed == "none" else claimed, f"{row['value']:g}"])
    return table(["who", "epsilon of every record", SETS[name]["metric"]], rows)


def compared(name: str, found: Data) -> Data:
    """What is compared: silos alone, on their own test records, only with an average over silos."""
    own = found["references"]
    return own if SETS[name]["over"] == "by-silo" else {**own, "alone": []}


def _cell(values: list[float]) -> str:
    one = interval(values)
    return f"{one['mean']:.4f} ± {one['half90']:.4f}"


def _said(name: str, found: Data) -> str:
    """Which channels are better or worse than silos alone beyond the interval, and at which epsilon."""
    alone = compared(name, found)["alone"]
    if not alone:
        return "Silos alone are not compared here."
    sign = -1 if SETS[name].get("better") == "larger" else 1
    kinds: dict[str, dict[str, list[str]]] = {"below": {}, "above": {}, "level": {}}
    for label, row in found["rows"].items():
        channel, epsilon = label.split()
        kinds[verdict(interval(sign * np.subtract(row["by_seed"], alone)))].setdefault(channel, []).append(epsilon)
    budgets = {label.split()[1] for label in found["rows"]}
    told = {
        kind: ", ".join(
            f"{channel} at {'every epsilon' if set(own) == budgets else 'epsilon ' + ' and '.join(own)}"
            for channel, own in cells.items()
        )
        or "nothing"
        for kind, cells in kinds.items()
    }
    return f"Beyond the interval, better than silos alone is {told['below']}, and worse {told['above']}."


def finding(data: Data) -> Finding:
    """What is said of each data set."""
    return Finding(" ".join(f"{name}: {_said(name, own)}" for name, own in data["sets"].items()).rstrip("."), "none")


EXPERIMENT = Experiment("real-silos", compute, draw, words, tiny=True, parts=tuple(SETS), finding=finding)

if __name__ == "__main__":
    EXPERIMENT.main()
