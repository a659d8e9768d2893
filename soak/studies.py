"""What the attacker proposes: records that it makes itself, and studies of every algorithm about them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from soak.releases import REFUSED

_ONE_PASS = ("one-pass-accelerated", "prox-sgd", "dp-ftrl")
_TWO_PARTS = 3  # records
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
class Silo:
    """Records to serve."""

    x: np.ndarray
    y: np.ndarray
    task: str
    classes: int | None

    @property
    def records(self) -> int:
        """How many there are."""
        return len(self.y)


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
        """The model, with its widths."""
        return self.objective["model"]

    def plan(self, silo: Silo, nonce: str) -> dict[str, Any]:
        """The plan as the protocol has it, for a consortium of one."""
        return {
            "version": 1,
            "name": f"attack-{self.number}",
            "nonce": nonce,
            "features": list(silo.x.shape[1:]),
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
            "proposer": "attacker",
        }


@cache
def silos() -> dict[str, Silo]:
    """Small silos: ordinary records of several widths; hostile, equal and single ones; zeros, labels and images."""
    rng = np.random.default_rng(1)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    harsh = normal(8, 3)
    harsh[:5] = [[0, 0, 0], [1e30, -1e30, 1e30], [1e-30, 1e-38, 0], [1, 1, 1], [1, 1, 1]]
    far = np.array([0, 1e30, 1e-30, 1, 1, -1e30, 1e8, -1], np.float32)
    bright = np.array([1, 1e30, 1e-30, 0], np.float32).reshape(4, 1, 1, 1)
    return {
        "plain": Silo(normal(24, 3), normal(24), "regression", None),
        "narrow": Silo(normal(16, 1), normal(16), "regression", None),
        "wide": Silo(normal(8, 5), normal(8), "regression", None),
        "pair": Silo(normal(2, 3), normal(2), "regression", None),
        "harsh": Silo(harsh, far, "regression", None),
        "twins": Silo(np.ones((2, 3), np.float32), np.ones(2, np.float32), "regression", None),
        "alone": Silo(np.full((1, 2), 0.7, np.float32), np.full(1, -3.0, np.float32), "regression", None),
        "zeros": Silo(np.zeros((4, 3), np.float32), np.zeros(4, np.float32), "regression", None),
        "binary": Silo(harsh, np.arange(8, dtype=np.int32) % 2, "binary", 2),
        "classes": Silo(normal(6, 3), np.arange(6, dtype=np.int32) % 3, "multiclass", 3),
        "images": Silo(normal(4, 6, 6, 1) * bright, np.array([0, 1, 2, 1], np.int32), "multiclass", 3),
    }


def shapes_of(objective: dict[str, Any], silo: Silo) -> list[tuple[int, ...]]:
    """The arrays of a model: of each layer the biases, then the weights."""
    outputs = (silo.classes or 1) if objective["loss"] == "softmax" else 1
    shapes: list[tuple[int, ...]] = []
    size = silo.x.shape[-1]
    if objective["model"] == "cnn":
        side = silo.x.shape[1]
        for channels in objective["channels"]:
            shapes += [(channels,), (25 * size, channels)]
            size, side = channels, (side - 4) // 2
        size *= side * side
    for width in (*objective.get("hidden", ()), outputs):
        shapes += [(width,), (size, width)]
        size = width
    return shapes


def core(only: list[str], rounds: int) -> list[Study]:
    """Few studies that compile fast: one with zeros, one with images, and one of every algorithm with a small network.

    Sampling takes long to price, so only those have it whose differences are attacked best so.
    """
    paired = "alternate-spider" if "alternate-spider" in only else only[0]
    found = [
        ("zeros", paired, {}, {"model": "linear", "loss": "squared"}),
        ("images", paired, {}, {"model": "cnn", "channels": [1], "hidden": [2], "loss": "softmax"}),
    ]
    for name in only:
        sampled = {"sampling": "wor", "batch_size": 2} if name in (*_PHASED, "alternate-spider") else {}
        found.append(("plain", name, sampled, {"model": "mlp", "hidden": [4], "loss": "squared"}))
    return [
        Study(number, silo, _algorithm(name, silos()[silo].records, rounds, sampled), objective, 8.0)
        for number, (silo, name, sampled, objective) in enumerate(found)
    ]


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
        chosen |= {"step_size": float(rng.choice([0.1, 1e-4, 10.0, 1e5])), "local_steps": int(rng.integers(2, 5))}
    for option, values in _OPTIONS.get(name, {}).items():
        if rng.random() < 0.3:
            chosen[option] = float(rng.choice(values))
    epsilon = float(rng.choice([30.0, 8.0, 2.0], p=[0.15, 0.35, 0.5]))
    return Study(number, silo, _algorithm(name, held.records, rounds, chosen), _objective(rng, held, name), epsilon)


def _algorithm(name: str, records: int, rounds: int, chosen: dict[str, Any]) -> dict[str, Any]:
    """An algorithm's section with what was chosen, and whatever else it needs."""
    needed: dict[str, Any] = {"name": name, "num_rounds": rounds, "step_size": 0.1, "clip_norm": 1.0}
    if name in _SLOPED:
        needed["difference_slope"] = 100.0
    if name in _PHASED:
        needed["phase_length"] = 2
    if name in _STEPPING:
        needed["local_steps"] = 2
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
    losses: list[dict[str, Any]] = {
        "regression": [*[{"loss": "squared"}] * 3, {"loss": "absolute"}, {"loss": "pinball", "quantile": 0.3}],
        "binary": [{"loss": "logistic"}, {"loss": "softmax"}, {"loss": "hinge"}],
        "multiclass": [{"loss": "softmax"}],
    }[silo.task]
    objective = dict(losses[rng.integers(len(losses))])
    if silo.x.ndim > 2:
        return objective | {"model": "cnn", "channels": [int(rng.integers(1, 3))], "hidden": [int(rng.integers(1, 9))]}
    if name == "local-sgd" and rng.random() < 0.3:
        objective["regulariser"] = str(rng.choice(["l2-ball:1", "l1:0.1", "squared-l2:0.5"]))
    if rng.random() < 0.25:
        smooth = objective["loss"] in ("absolute", "hinge") and rng.random() < 0.5
        return objective | {"model": "linear"} | ({"smoothness": 1.0} if smooth else {})
    hidden = [int(rng.integers(1, 17))] if rng.random() < 0.9 else [3, 3]
    activation = str(rng.choice(["relu", "softplus", "tanh"], p=[0.6, 0.2, 0.2]))
    return objective | {"model": "mlp", "hidden": hidden, "activation": activation}


def known(names: list[str]) -> list[str]:
    """The algorithms to attack, of those that Tacit lists."""
    return [name for name in names if name not in REFUSED]
