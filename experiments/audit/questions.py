"""What is asked or solved in one round, attacked at the door of a daemon: statistics, validation and ridge.

Their statistics are no gradients, so they keep problems of their own. Two neighbouring silos differ in one record, by
the two corners of what a record can be that move the release farthest.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from experiments.audit.table import CLIP, Setting, plan_with
from experiments.patients import COLUMNS
from tacit.algorithm import Algorithm, Params
from tacit.audit.attack import Scene
from tacit.audit.deployed import Deployed, DoorScene, Engines, Table, cast_of, casts_of, deploy, offer
from tacit.audit.worst_case import Canary
from tacit.deploy.contract import builder_from, record_of
from tacit.deploy.silo.consent import Offer
from tacit.deploy.wire import Plan
from tacit.objectives.losses import SURVIVAL
from tacit.privacy import Price
from tacit.silo.release import in_blocks

Record = Mapping[str, Any]
_RECORDS = 4
SETTINGS = {
    own.name: own
    for own in (
        Setting("single release", "full", 1, _RECORDS, None, 0.75),
        Setting("shuffled sum", "full", 1, _RECORDS, None, None, "shuffled-sum"),
        Setting("pairwise", "full", 1, _RECORDS, None, 0.5, "pairwise"),
    )
}


@dataclass(frozen=True)
class Question:
    """One release: its section of a plan, whose records it reads, and which records may differ.

    ``channels`` says that it is asked through sums over silos as well. Both are the same code for all questions.
    """

    algorithm: Mapping[str, Any]
    corners: Sequence[Record]
    objective: Mapping[str, Any] | None = None
    classes: int | None = None
    features: int = 2
    weights: Params = ()
    channels: bool = False

    def plan(self, setting: Setting, *, epsilon: float, delta: float) -> Plan:
        """The plan that a server would propose."""
        channel = {} if setting.channel == "direct" else {"channel": setting.channel}
        task = {None: "regression", 2: "binary"}.get(self.classes, "multiclass")
        return plan_with(
            {**self.algorithm, "step_size": 1.0, "num_rounds": 1, **channel},
            setting,
            epsilon=epsilon,
            delta=delta,
            features=(self.features,),
            objective={} if self.objective is None else dict(self.objective),
            task=task,
            classes=None if task == "regression" else self.classes,
        )


def _statistics(asked: Mapping[str, Any], *, channels: bool = False) -> Question:
    columns = [dict(own) for own in COLUMNS]
    rows = itertools.product([0.0, 1.0], repeat=len(columns))
    nothing = {"x": np.zeros(1, np.float32), "y": np.float32(0.0)}
    corners = [{**nothing, "columns": np.array(row, np.float32)} for row in rows]
    algorithm = {"name": "statistics", "statistics": [dict(asked)], "columns": columns}
    return Question(algorithm, corners, features=1, channels=channels)


def _validation(loss: str, targets: Sequence[Any], outputs: int = 1, *, channels: bool = False) -> Question:
    """A model that is nearly sure of what it says, of records on either side."""
    biases = 3 if loss == SURVIVAL else outputs
    params = {
        "linear": {
            "w": np.array([[4.0] * outputs, [0.0] * outputs], np.float32),
            "b": np.arange(biases, dtype=np.float32),
        }
    }
    classes = len(targets) if targets[0].dtype.kind == "i" else None
    corners = [{"x": np.array([x, 0.0], np.float32), "y": y} for x, y in itertools.product([-1.0, 1.0], targets)]
    objective: dict[str, Any] = {"model": "linear", "loss": loss}
    if loss == SURVIVAL:
        objective["bins"] = 3
    return Question({"name": "validation", "asked": {}}, corners, objective, classes, weights=params, channels=channels)


def _ridge() -> Question:
    # Orthogonal where the products of features, of constants and of targets add up to nothing.
    points = [(CLIP, 0.0), (-CLIP, 0.0), (0.0, CLIP), (-0.5 * CLIP, CLIP * math.sqrt(0.75))]
    corners = [{"x": np.array(x, np.float32), "y": np.float32(y)} for x, y in itertools.product(points, [0.0, 1.0])]
    algorithm = {"name": "ridge", "strength": 0.1, "clip_norm": CLIP}
    return Question(algorithm, corners, {"model": "linear", "loss": "squared"}, channels=True)


def _numbers(*values: float) -> list[Any]:
    return [np.float32(value) for value in values]


QUESTIONS: dict[str, Question] = {
    "statistics (counts)": _statistics({"kind": "counts", "columns": ["sex"]}),
    "statistics (histogram)": _statistics(
        {"kind": "histogram", "columns": ["age"], "edges": [20, 40, 60], "by": "sex"}
    ),
    "statistics (table)": _statistics({"kind": "table", "columns": ["sex", "age"], "bins": 4}, channels=True),
    "statistics (quantiles)": _statistics({"kind": "quantiles", "columns": ["age"], "bins": 16}),
    "statistics (moments)": _statistics({"kind": "moments", "columns": ["age"]}),
    "statistics (correlation)": _statistics({"kind": "correlation", "columns": ["age", "bmi"]}),
    "statistics (survival)": _statistics({"kind": "survival", "columns": ["time", "event"], "by": "sex", "bins": 8}),
    "validation (two classes)": _validation("logistic", [np.int32(k) for k in range(2)], channels=True),
    "validation (three classes)": _validation("softmax", [np.int32(k) for k in range(3)], 3),
    "validation (numbers)": _validation("squared", _numbers(0, 1)),
    "validation (survival)": _validation(SURVIVAL, _numbers(-1, 0.3, 0.9)),
    "ridge": _ridge(),
}


@dataclass(frozen=True)
class AskedTarget:
    """A daemon that is asked one question; `tacit.audit.mechanism.Target`."""

    deployed: Deployed
    pair: tuple[Record, Record]
    common: Record
    weights: Params
    path: str = "door"

    @property
    def algorithm(self) -> Algorithm:
        """What the daemon built."""
        return self.deployed.own.algorithm

    def claim(self, kind: str | None) -> Price:
        """What the daemon says that its release costs."""
        return self.deployed.own.price

    def scenes(self, *, canary: Canary, kind: str | None, seed: int) -> Sequence[Scene]:
        """The one scene there is: the server has nothing to choose."""
        own, records = self.deployed, self.deployed.records
        worlds = [_table([self.common] * (records[0] - 1) + [record]) for record in self.pair]
        others = [_table([self.common] * count) for count in records[1:]]
        engines = Engines()
        begun = cast_of(own, [worlds[0], *others], (), engines=engines, quiet=False).begun
        loud, quiet = casts_of(own, worlds, others, begun, engines=engines)
        said = _said(own.own, self.weights)
        width = len(loud[0].heard(0, said, begun)[0])
        coins = bool(own.own.shares)
        return [DoorScene(loud, quiet, (0,), (said,), np.ones(1, bool), width, coins, secret=False)]


def _table(rows: Sequence[Record]) -> Table:
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def _said(offer: Offer, weights: Params) -> Any:
    """What the server broadcasts: the model, where one is asked about."""
    [kind] = offer.algorithm.schedule
    return weights if jax.tree.leaves(offer.broadcasts[kind]) else offer.broadcasts[kind]


def offered(plan: Plan, records: int) -> Offer:
    """What a daemon offers for a plan as it is."""
    return offer(plan, records, record=record_of(plan), build=builder_from)


@lru_cache(maxsize=32)
def _farthest(name: str, epsilon: float, delta: float) -> tuple[int, int]:
    """The places of the two corners that a direct release tells best apart."""
    question = QUESTIONS[name]
    own = deploy(question.plan(SETTINGS["single release"], epsilon=epsilon, delta=delta), (_RECORDS,), offered)
    said, engines = _said(own.own, question.weights), Engines()
    exact = []
    for corner in question.corners:
        table = _table([question.corners[0]] * (_RECORDS - 1) + [corner])
        cast = cast_of(own, [table], (), engines=engines, quiet=True)
        exact.append(cast.heard(0, said, cast.begun)[0])
    deviation = _deviation(own.own)
    pairs = itertools.combinations(range(len(exact)), 2)
    return max(pairs, key=lambda pair: float(np.linalg.norm((exact[pair[0]] - exact[pair[1]]) / deviation)))


def _deviation(offer: Offer) -> np.ndarray:
    """The noise of every number of a message, up to a common factor."""
    [kind] = offer.algorithm.schedule
    silo = offer.algorithm.rounds[kind].silo
    clips, noise = silo.release.clip(()), silo.release.noise_multiplier
    if not isinstance(noise, Mapping):
        return np.ones(1)
    said = jax.eval_shape(silo.query, offer.broadcasts[kind], record_of(offer.plan))
    scales = {name: float(noise[name]) * float(in_blocks(clips, name)) for name in said}
    return np.concatenate([np.full(math.prod(leaf.shape), scales[name]) for name, leaf in sorted(said.items())])


def target_of(name: str, setting: Setting, *, epsilon: float, delta: float) -> AskedTarget:
    """A question in a setting, calibrated to its budget."""
    question, (one, other) = QUESTIONS[name], _farthest(name, epsilon, delta)
    plan = question.plan(setting, epsilon=epsilon, delta=delta)
    deployed = deploy(plan, (setting.records,) * plan.silos, offered)
    corners = question.corners
    return AskedTarget(deployed, (corners[one], corners[other]), corners[0], question.weights)


def settings_of(name: str) -> list[Setting]:
    """The settings of a question."""
    return [own for own in SETTINGS.values() if own.channel == "direct" or QUESTIONS[name].channels]
