"""What the attacker proposes: studies of every algorithm, about the records of `soak.silos`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from soak.questions import ONCE, asked_statistics, random_statistics, random_validation
from soak.releases import REFUSED
from soak.silos import Silo, silos

MODELS: dict[str, dict[str, Any]] = {
    "mlp": {"model": "mlp", "hidden": [4]},
    "linear": {"model": "linear"},
    "cnn": {"model": "cnn", "channels": [1], "hidden": [2]},
}
NO_MODEL = "none"
"""What a study of statistics has for a model."""
_ONE_PASS = ("one-pass-accelerated", "prox-sgd", "dp-ftrl")
_TWO_PARTS = 3  # records
_AGAIN = 4
_FULL = ("ce-psgm-fg", "mb-psgm-fg")
_SLOPED = ("prox-spider", "warm-spider", "ce-psgm", "ce-psgm-fg", "mb-psgm", "mb-psgm-fg", "diff2-gd", "diff2-bvr-lsgd")
_PHASED = ("prox-svrg", "pl-svrg", "prox-spider", "warm-spider")
_NEEDED: dict[str, dict[str, Any]] = {
    "pl-svrg": {"restarts": 2},
    "warm-spider": {"warm_rounds": 1},
    "preconditioned-sgd": {"moment_rounds": 1},
    "fedfdp": {"fairness": 0.5},
    "localised-mb-sgd": {"strength": 0.5},
}
_STEPPING = ("ce-psgm", "ce-psgm-fg", "diff2-bvr-lsgd", "local-sgd")
_FEWEST = {"local-sgd": 1}
"""Local steps of which one reads records: it is the first, or else the second of two."""
_DIFFERENCE: dict[str, list[float]] = {"difference_noise": [0.3, 3.0]}
_LOCAL = _DIFFERENCE | {"local_noise": [0.5, 3.0], "local_slope": [0.01, 100.0]}
_OPTIONS = (
    dict.fromkeys(("prox-svrg", "pl-svrg", "prox-spider", "alternate-spider"), _DIFFERENCE)
    | dict.fromkeys(("mb-psgm", "mb-psgm-fg", "diff2-gd"), _DIFFERENCE)
    | dict.fromkeys(("ce-psgm", "ce-psgm-fg", "diff2-bvr-lsgd"), _LOCAL)
    | {"warm-spider": {**_DIFFERENCE, "warm_noise": [0.3, 3.0]}}
    | {"sgda": {"dual_clip_norm": [0.1, 100.0], "dual_share": [0.1, 0.9]}}
    | {"preconditioned-sgd": {"moment_noise": [0.3, 3.0], "floor": [0.001, 1.0]}}
    | {"quantile-clip": {"quantile": [0.1, 0.9], "count_share": [0.01, 0.5]}}
    | {"fedfdp": {"fairness": [1e6], "loss_clip": [0.01, 100.0], "loss_share": [0.1, 0.5]}}
)


@dataclass(frozen=True)
class Study:
    """One study at one silo: its algorithm, its objective, and the price asked for."""

    number: int
    silo: str
    algorithm: dict[str, Any]
    objective: dict[str, Any]
    epsilon: float

    @property
    def model(self) -> str:
        """Linear, mlp, cnn or none."""
        return self.objective.get("model", NO_MODEL)

    def records(self, silo: Silo) -> int:
        """How many records it reads."""
        return silo.aside if self.algorithm["name"] == "validation" else silo.records

    def plan(self, silo: Silo, nonce: str, schema_digest: str | None = None) -> dict[str, Any]:
        """The plan as the protocol has it, for a consortium of one."""
        return {
            "version": 1,
            "name": f"attack-{self.number}",
            "nonce": nonce,
            "features": list(silo.features),
            "task": silo.task,
            "classes": silo.classes,
            "objective": self.objective,
            "algorithm": self.algorithm,
            "epsilon": self.epsilon,
            "delta": 1e-5,
            "max_participations": None,
            "silos": 1,
            "silo_index": 0,
            "everyone": True,
            "shuffle": None,
            "schema_digest": schema_digest,
            "proposer": "attacker",
        }


def shapes_of(objective: dict[str, Any], silo: Silo) -> list[tuple[int, ...]]:
    """The arrays of a model: of each layer the biases, then the weights."""
    if "model" not in objective:
        return []
    outputs = (silo.classes or 1) if objective["loss"] == "softmax" else 1
    shapes: list[tuple[int, ...]] = []
    size = silo.features[-1]
    if objective["model"] == "cnn":
        side = silo.features[0]
        for channels in objective["channels"]:
            shapes += [(channels,), (25 * size, channels)]
            size, side = channels, (side - 4) // 2
        size *= side * side
    for width in (*objective.get("hidden", ()), outputs):
        shapes += [(width,), (size, width)]
        size = width
    return shapes


def models_of(name: str) -> tuple[str, ...]:
    """The models that an algorithm trains, or is asked about."""
    return {"ridge": ("linear",), "statistics": (NO_MODEL,)}.get(name, tuple(MODELS))


def fitting(name: str) -> list[str]:
    """The silos that an algorithm can be asked at, by name."""
    fits = {
        "statistics": lambda silo: silo.columns,
        "validation": lambda silo: silo.aside,
        "ridge": lambda silo: silo.task == "regression",
    }.get(name, lambda silo: True)
    return [place for place, silo in silos().items() if fits(silo)]


def core(only: list[str], rounds: int, *, whole: bool) -> list[Study]:
    """The studies that come first: every algorithm with every model if it is the ``whole``, and else with one.

    Sampling takes long to price, so only those have it whose differences are attacked best so. Local steps are as few
    as there can be, so that a single one is judged; `local-sgd` has a study with three besides.
    """
    paired = "alternate-spider" if "alternate-spider" in only else only[0]
    found = [("zeros", paired, "linear")] if paired not in ONCE else []
    found += [("images", paired, "cnn")] if paired not in ONCE and not whole else []
    for name in only:
        found += [(_place(name, model), name, model) for model in models_of(name)[: None if whole else 1]]
    chosen = [_core_study(number, *one, rounds) for number, one in enumerate(found)]
    if "local-sgd" in only:
        several = algorithm_of("local-sgd", silos()["plain"].records, rounds, {"local_steps": 3})
        chosen.append(Study(len(chosen), "plain", several, MODELS["mlp"] | {"loss": "squared"}, 8.0))
    return chosen


def _place(name: str, model: str) -> str:
    if name == "validation":
        return {"linear": "survey", "mlp": "clinic", "cnn": "photos"}[model]
    return "clinic" if name == "statistics" else "images" if model == "cnn" else "plain"


def _core_study(number: int, place: str, name: str, model: str, rounds: int) -> Study:
    silo = silos()[place]
    loss = {"regression": "squared", "binary": "logistic", "multiclass": "softmax"}[silo.task]
    objective = {} if model == NO_MODEL else MODELS[model] | {"loss": loss}
    if name in ONCE:
        return Study(number, place, _question(name, silo), objective, 8.0)
    sampled = name in (*_PHASED, "alternate-spider") and model == "mlp"
    chosen: dict[str, Any] = {"sampling": "wor", "batch_size": 2} if sampled else {}
    return Study(number, place, algorithm_of(name, silo.records, rounds, chosen), objective, 8.0)


def _question(name: str, silo: Silo) -> dict[str, Any]:
    if name == "ridge":
        return {"name": "ridge", "num_rounds": 1, "clip_norm": 1.0, "strength": 0.1}
    return asked_statistics(silo) if name == "statistics" else {"name": "validation", "num_rounds": 1, "asked": {}}


def random_studies(rng: np.random.Generator, number: int, name: str, rounds: int) -> Iterator[Study]:
    """Studies of one algorithm about one silo, drawn at random; of those that are answered once a few."""
    places = fitting(name)
    place = places[rng.integers(len(places))]
    if name not in ONCE:
        yield random_study(rng, number, place, name, rounds)
        return
    for further in range(_AGAIN):
        yield _random_question(rng, number + further, place, name)


def _random_question(rng: np.random.Generator, number: int, place: str, name: str) -> Study:
    silo, epsilon = silos()[place], float(rng.choice([4.0, 1.0, 0.1]))
    if name == "statistics":
        return Study(number, place, random_statistics(rng, silo), {}, epsilon)
    if name == "validation":
        return Study(number, place, random_validation(rng, silo), _objective(rng, silo, name), epsilon)
    clip, strength = float(rng.choice([1.0, 1e-3, 1e3])), float(rng.choice([1.0, 1e-6, 1e3]))
    ridge = {"name": "ridge", "num_rounds": 1, "clip_norm": clip, "strength": strength}
    return Study(number, place, ridge, {"model": "linear", "loss": "squared"}, epsilon)


def random_study(rng: np.random.Generator, number: int, silo: str, name: str, rounds: int) -> Study:
    """A study of one algorithm about one silo, drawn at random."""
    held, chosen = silos()[silo], dict[str, Any]()
    if rng.random() < 0.6:
        ways = ["wor", "wr", "poisson", "one-pass", "allocation"]
        chosen["sampling"] = str(rng.choice(ways, p=[0.4, 0.2, 0.2, 0.1, 0.1]))
        chosen["batch_size"] = int(rng.integers(1, min(held.records, 8) + 1))
    clips = [1.0, 1e-3, 1e3, 1e6, 1e-12, 1e-30]
    chosen["clip_norm"] = float(rng.choice(clips, p=[0.6, 0.1, 0.1, 0.1, 0.05, 0.05]))
    if name in _SLOPED or (name in _PHASED and rng.random() < 0.5):
        chosen["difference_slope"] = float(rng.choice([1.0, 1e-3, 1e3, 1e6]))
    if name in ("prox-svrg", "prox-spider"):
        chosen["phase_length"] = int(rng.choice([2, 3, 5]))
    if name in _STEPPING:
        steps = int(rng.integers(_FEWEST.get(name, 2), 5))
        chosen |= {"step_size": float(rng.choice([0.1, 1e-4, 10.0, 1e5])), "local_steps": steps}
    for option, values in _OPTIONS.get(name, {}).items():
        if rng.random() < 0.3:
            chosen[option] = float(rng.choice(values))
    epsilon = float(rng.choice([30.0, 8.0, 2.0], p=[0.15, 0.35, 0.5]))
    return Study(number, silo, algorithm_of(name, held.records, rounds, chosen), _objective(rng, held, name), epsilon)


def algorithm_of(name: str, records: int, rounds: int, chosen: dict[str, Any]) -> dict[str, Any]:
    """An algorithm's section with what was chosen, and whatever else it needs."""
    needed: dict[str, Any] = {"name": name, "num_rounds": rounds, "step_size": 0.1, "clip_norm": 1.0}
    if name in _SLOPED:
        needed["difference_slope"] = 100.0
    if name in _PHASED:
        needed["phase_length"] = 2
    if name in _STEPPING:
        needed["local_steps"] = _FEWEST.get(name, 2)
    algorithm = needed | _NEEDED.get(name, {}) | chosen
    if name == "localised-mb-sgd" and algorithm.get("sampling") == "one-pass":
        # Two parts, of which the first has at least two records.
        algorithm["batch_size"] = max(2, min(algorithm["batch_size"], 2 * records // 3))
    scarce = name == "localised-mb-sgd" and records < _TWO_PARTS
    if name in _FULL or scarce or (name == "mu2-sgd" and chosen.get("sampling") != "one-pass"):
        algorithm = {key: value for key, value in algorithm.items() if key not in ("sampling", "batch_size")}
    if name in _ONE_PASS:
        algorithm |= {"sampling": "one-pass", "batch_size": 1}
    if "batch_size" in algorithm and name in ("ce-psgm", "mb-psgm", "diff2-gd", "diff2-bvr-lsgd"):
        algorithm["first_batch_size"] = algorithm["batch_size"]
    algorithm["num_rounds"] = _rounds(algorithm, records)
    return algorithm


def _rounds(algorithm: dict[str, Any], records: int) -> int:
    """As many rounds as the records last for one pass, in whole phases; a round and its local steps in turn are two."""
    name, rounds = algorithm["name"], algorithm["num_rounds"]
    if name in ("localised-mb-sgd", "warm-spider", "preconditioned-sgd"):
        left = records // algorithm["batch_size"] if algorithm.get("sampling") == "one-pass" else rounds
        return max(2, rounds if name == "localised-mb-sgd" else min(rounds, left))
    if name in _STEPPING and name != "local-sgd":
        rounds = rounds // 2
    if algorithm.get("sampling") == "one-pass":
        steps = algorithm.get("local_steps", 1) if name == "local-sgd" else 1
        rounds = min(rounds, records // (algorithm["batch_size"] * steps))
    whole = algorithm.get("phase_length", 1) * algorithm.get("restarts", 1)
    return max(rounds - rounds % whole, whole)


def _objective(rng: np.random.Generator, silo: Silo, name: str) -> dict[str, Any]:
    by_task: dict[str, list[dict[str, Any]]] = {
        "regression": [*[{"loss": "squared"}] * 3, {"loss": "absolute"}, {"loss": "pinball", "quantile": 0.3}],
        "binary": [{"loss": "logistic"}, {"loss": "softmax"}, {"loss": "hinge"}],
        "multiclass": [{"loss": "softmax"}],
    }
    losses = by_task[silo.task]
    objective = dict(losses[rng.integers(len(losses))])
    if len(silo.features) > 1:
        return objective | {"model": "cnn", "channels": [int(rng.integers(1, 3))], "hidden": [int(rng.integers(1, 9))]}
    if name == "local-sgd" and rng.random() < 0.3:
        objective["regulariser"] = str(rng.choice(["l2-ball:1", "l1:0.1", "squared-l2:0.5"]))
    if rng.random() < 0.25:
        smooth = name not in ONCE and objective["loss"] in ("absolute", "hinge") and rng.random() < 0.5
        return objective | {"model": "linear"} | ({"smoothness": 1.0} if smooth else {})
    hidden = [int(rng.integers(1, 17))] if rng.random() < 0.9 else [3, 3]
    activation = str(rng.choice(["relu", "softplus", "tanh"], p=[0.6, 0.2, 0.2]))
    return objective | {"model": "mlp", "hidden": hidden, "activation": activation}


def known(names: list[str]) -> list[str]:
    """The algorithms to attack, of those that Tacit lists."""
    return [name for name in names if name not in REFUSED]
