"""What is learned: records of silos, a model, and the error of its parameters, made of numpy alone."""

from __future__ import annotations

import dataclasses
import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.works import Layers, Work

Records = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Source:
    """A data set of the catalogue and the hidden widths of a model of it; none is a linear model.

    ``tuning`` and ``seeds`` are how many seeds settings are chosen and tested on.
    """

    title: str
    data: str
    hidden: tuple[int, ...] = ()
    tuning: int = 2
    seeds: int = 5
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


SOURCES = (
    Source("heart disease, logistic regression", "heart-disease", tuning=8),
    Source("adult, logistic regression", "adult"),
    Source("MNIST, odd or even, MLP 50-64-2", "mnist", (64,), seeds=3),
)
QUICK = (Source("heart disease, logistic regression", "heart-disease"),)


@dataclass(frozen=True)
class Task:
    """Silos' training records, and records of all of them to choose settings and to test on.

    ``sizes`` are the widths of the model; one output is a logit.
    """

    title: str
    sizes: tuple[int, ...]
    feature_norm: float | None
    names: tuple[str, ...]
    train: tuple[Records, ...]
    validation: Records
    test: Records

    @property
    def records(self) -> tuple[int, ...]:
        """How many records each silo trains on."""
        return tuple(len(y) for _, y in self.train)

    @property
    def work(self) -> Work:
        """The model as the peers of the rounds know it."""
        return Work(self.title, self.sizes, len(self.train), 1, 1, 1.0)

    def error(self, params: Layers, records: Records) -> float:
        """The share of records that the model gets wrong."""
        x, y = records
        *hidden, last = params
        for name in hidden:
            x = np.maximum(x @ params[name]["w"] + params[name]["b"], 0.0)
        outputs = x @ params[last]["w"] + params[last]["b"]
        said = outputs[:, 0] > 0 if self.sizes[-1] == 1 else outputs.argmax(axis=1)
        return float(np.mean(said != y))


def load(source: Source) -> Task:
    """The division and split that Tacit's studies of this data set begin with."""
    from tacit import data

    found = data.load(source.data, seed=0, **source.options)
    parts = [(own["x"].astype(np.float32), own["y"].astype(np.int64)) for own in (s.train for s in found.silos)]

    def together(part: str) -> Records:
        tables = [getattr(silo, part) for silo in found.silos]
        return tuple(np.concatenate([table[name] for table in tables]) for name in ("x", "y"))

    sizes = (found.feature_shape[0], *source.hidden, 2 if source.hidden else 1)
    names = tuple(silo.name for silo in found.silos)
    norm = found.feature_norm
    return Task(source.title, sizes, norm, names, tuple(parts), together("validation"), together("test"))


def initial(task: Task, seed: int) -> Layers:
    """Where training starts: zero for a linear model; Glorot-uniform weights, zero biases otherwise."""
    rng = np.random.default_rng([7, seed])
    pairs = list(itertools.pairwise(task.sizes))
    names = ["linear"] if len(pairs) == 1 else [f"layer_{i}" for i in range(1, len(task.sizes))]
    made: Layers = {}
    for name, (inner, outer) in zip(names, pairs, strict=True):
        limit = 0.0 if len(pairs) == 1 else (6.0 / (inner + outer)) ** 0.5
        w = rng.uniform(-limit, limit, (inner, outer)).astype(np.float32)
        made[name] = {"w": w, "b": np.zeros(outer, np.float32)}
    return made


def save(task: Task, path: Path) -> None:
    """The training half of a task to a file: who trains sees no other records."""
    arrays = {f"{name}{i}": leaf for i, pair in enumerate(task.train) for name, leaf in zip("xy", pair, strict=True)}
    facts = {"title": task.title, "sizes": task.sizes, "feature_norm": task.feature_norm, "names": task.names}
    np.savez(path, facts=np.array(json.dumps(facts)), **arrays)


def saved(path: str) -> Task:
    """The task that `save` wrote."""
    with np.load(path) as stored:
        facts = json.loads(str(stored["facts"]))
        train = tuple((stored[f"x{i}"], stored[f"y{i}"]) for i in range(len(facts["names"])))
    none = (np.zeros((0, facts["sizes"][0]), np.float32), np.zeros(0, np.int64))
    sizes, names = tuple(facts["sizes"]), tuple(facts["names"])
    return Task(facts["title"], sizes, facts["feature_norm"], names, train, none, none)
