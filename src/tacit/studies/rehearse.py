"""Rehearsal: hyperparameters chosen by training on made-up records, drawn from public facts alone. It costs nothing.

Sizes, the width and norm of features, classes, budget and channel are public. From these *teachers* are drawn: each has
skewed and dependent features, rare ones among them, and a model of its own that labels records, more or less clearly. A
study is rehearsed on as many silos as it has, with its own algorithm, channel and noise, at every point of a grid and
with every teacher, in one compiled program. The point whose error is on average nearest to the best of each teacher is
chosen. No record is read, so that nothing is spent; the study keeps the seed of the draw.

Large silos are rehearsed with fewer records and, for full batches, as much less noise: what is left in the mean stays.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit.plans.assemble import Facts, parameter_count
from tacit.plans.defaults import Settings
from tacit.plans.spec import Study, StudyError, study_from
from tacit.silo import enrol
from tacit.simulate.compiled import Seed, simulate_grid
from tacit.studies.run import Prepared, changes_of, check_values, grid_keys, points_of
from tacit.studies.starting import settings_for

TEACHERS = 6
_WORK = 400_000  # numbers that a round reads of each teacher's records, times parameters of a feature
_TESTS = 500
_PLAIN_STEPS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_ADAM_STEPS = (0.02, 0.05, 0.1, 0.2, 0.5)
_FEWEST = 8  # records of a silo
Point = Mapping[str, Any]


@dataclass(frozen=True)
class Rehearsed:
    """Every point with its test error for each teacher, and what was chosen; ``errors`` has axes teachers, points."""

    points: tuple[Point, ...]
    errors: np.ndarray
    seed: int
    metric: str

    @property
    def regrets(self) -> np.ndarray:
        """How far each point is from the best of a teacher, on average over teachers; what diverged is infinite."""
        finite = np.where(np.isfinite(self.errors), self.errors, np.inf)
        return np.asarray((finite - finite.min(axis=1, keepdims=True)).mean(axis=0))

    @property
    def chosen(self) -> Point:
        """The point of the least regret."""
        return self.points[int(np.argmin(self.regrets))]

    @property
    def sections(self) -> dict[str, dict[str, Any]]:
        """What a study keeps: what was chosen, and how."""
        own = {key.removeprefix("algorithm."): value for key, value in self.chosen.items()}
        drawn = {"seed": self.seed, "teachers": len(self.errors), "points": len(self.points)}
        return {"algorithm": own, "rehearsal": drawn}

    def rehearsed(self, study: Study) -> Study:
        """The study with what was chosen, and the seed of the draw."""
        tree = study.model_dump(exclude_none=True)
        return study_from({**tree, **{name: {**tree.get(name, {}), **own} for name, own in self.sections.items()}})


def usual_points(start: Settings, algorithm: str, feature_norm: float) -> tuple[Point, ...]:
    """The usual grid: the start, then clips around its own, steps of all lengths, and servers for mb-sgd."""
    size = math.sqrt((feature_norm**2 + 1.0) / 2.0)  # as in `tacit.plans.defaults`
    clips = [_short(start.clip_norm * factor) for factor in (1 / 3, 1.0, 3.0)]
    plain = [_short(step / size**2) for step in _PLAIN_STEPS]
    axes = {"algorithm.step_size": plain, "algorithm.clip_norm": clips}
    if algorithm != "mb-sgd":
        return tuple(points_of(axes))
    adam = {**axes, "algorithm.step_size": [_short(step / size) for step in _ADAM_STEPS]}
    own = {"server": start.server, "step_size": start.step_size, "clip_norm": start.clip_norm}
    return (
        {f"algorithm.{name}": value for name, value in own.items()},
        *points_of({"algorithm.server": ["sgd", "momentum"], **axes}),
        *points_of({"algorithm.server": ["adam"], **adam}),
    )


def _short(value: float) -> float:
    return float(f"{value:.3g}")


def rehearse(
    prepared: Prepared, facts: Facts, grid: Mapping[str, Sequence[Any]] | None = None, *, seed: int = 0
) -> Rehearsed:
    """Rehearse a study that was priced from sizes; ``grid`` is the usual one around its defaults unless it is given."""
    study = prepared.study
    if len(facts.feature_shape) != 1 or facts.feature_norm is None or study.privacy.user_level:
        raise StudyError("--rehearse: made-up records are rows of features with a public norm; tune it with --grid.")
    if prepared.builder.entry.reads_attribute:
        raise StudyError(f"--rehearse: nothing is known of the attribute that {study.algorithm.name} reads.")
    if grid is None:
        start = settings_for(study, facts, prepared.records)
        points = usual_points(start, study.algorithm.name, facts.feature_norm)
    else:
        _check_keys(study, grid)
        points = tuple(points_of(grid))
    rows = [changes_of(point) for point in points]
    columns = {name: np.asarray([row[name] for row in rows], np.float32) for name in rows[0]}
    sizes, less = _fewer(prepared, facts)
    objective, metric = prepared.builder.problem.objective, _metric(prepared)
    generator = np.random.default_rng([seed, 14])
    teachers = [_seed(prepared, facts, sizes, generator, jax.random.fold_in(jax.random.key(seed), i), i)
                for i in range(TEACHERS)]  # fmt: skip
    noise = {} if prepared.plan.noise is None else {"noise_multiplier": jnp.asarray(prepared.plan.noise / less)}
    outcome = simulate_grid(
        lambda **point: prepared.builder.build(**noise, **point),
        columns,
        teachers,
        who=prepared.who,
        measure=lambda params, records: {metric: objective.measure(params, records)[metric]},
        measure_every=len(prepared.builder.noised(1.0).schedule),
    )
    return Rehearsed(points, np.asarray(outcome.trace[metric][:, :, -1], float), seed, metric)


def _check_keys(study: Study, grid: Mapping[str, Sequence[Any]]) -> None:
    strange = sorted(set(grid) - set(grid_keys(study)))
    if strange:
        raise StudyError(f"--grid: expected keys among {', '.join(grid_keys(study))}, got {', '.join(strange)}.")
    check_values(study, grid, "--grid ")


def _metric(prepared: Prepared) -> str:
    return next((name for name in ("error", "mse") if name in prepared.builder.problem.objective.cost.metrics), "loss")


def _fewer(prepared: Prepared, facts: Facts) -> tuple[list[int], float]:
    """Records of each silo in rehearsal, and how many times less noise they need."""
    section, records = prepared.study.algorithm, prepared.records
    most = max(200, _WORK // parameter_count(prepared.builder.problem))
    factor = max(1.0, sum(records) / most)
    least = max(_FEWEST, section.batch_size or 1)
    if section.scheme == "one-pass":
        return list(records), 1.0
    sizes = [max(min(least, n), round(n / factor)) for n in records]
    return sizes, float(sum(records) / sum(sizes)) if section.scheme == "full" else 1.0


def _seed(
    prepared: Prepared, facts: Facts, sizes: Sequence[int], generator: np.random.Generator, key: Any, index: int
) -> Seed:
    """One teacher's records: those of each silo, and others to measure on."""
    teacher = _Teacher(facts, generator, index)
    tables = [teacher.draw(size) for size in sizes]
    key_run, key_init = jax.random.split(key)
    params = prepared.builder.problem.objective.init(key_init)
    return Seed(key_run, params, enrol(tables, prepared.names), jax.tree.map(jnp.asarray, teacher.draw(_TESTS)))


class _Teacher:
    """Features and a model that labels them, drawn from width, norm and classes; later teachers are clearer."""

    def __init__(self, facts: Facts, generator: np.random.Generator, index: int) -> None:
        self.generator, self.task, self.norm = generator, facts.task, float(facts.feature_norm or 1.0)
        [width] = facts.feature_shape
        self.rare = generator.beta(0.6, 1.5, size=width)
        self.is_switch = generator.random(width) < 0.5
        self.mixing = generator.normal(size=(max(1, width // 3), width)) / 2
        self.clear = 2.0 * 2.0 ** (index / 2)
        classes = facts.num_classes if facts.task == "multiclass" and facts.num_classes else 1
        decay = 1.0 / np.sqrt(1.0 + np.arange(width))
        self.weights = generator.normal(size=(width, classes)) * generator.permutation(decay)[:, None]
        self.tilt = 0.5 * generator.normal(size=classes)
        sample = self._features(1000) @ self.weights
        self.centre, self.spread = sample.mean(axis=0), max(float(sample.std()), 1e-6)

    def _features(self, count: int) -> np.ndarray:
        hidden = self.generator.normal(size=(count, len(self.mixing))) @ self.mixing
        hidden += self.generator.normal(size=hidden.shape)
        # Switches that are rarely on, and numbers with a long tail, both in [-1, 1].
        on = (self.generator.random(hidden.shape) < self.rare * 2.0 / (1.0 + np.exp(-hidden))).astype(float)
        number = 2.0 * np.exp(hidden - 1.0) / (1.0 + np.exp(hidden - 1.0)) - 1.0
        x = np.where(self.is_switch, on, number)
        return self.norm * x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1.0)

    def draw(self, count: int) -> dict[str, np.ndarray]:
        """So many records."""
        x = self._features(count)
        score = self.clear * ((x @ self.weights - self.centre) / self.spread) + self.tilt
        noise = self.generator.logistic(size=score.shape)
        if self.task == "regression":
            y = 1.0 / (1.0 + np.exp(-(score[:, 0] / self.clear + noise[:, 0] / self.clear))) * 0.8
            return {"x": x.astype(np.float32), "y": y.astype(np.float32)}
        if score.shape[1] > 1:
            # The largest score after Gumbel noise has the probabilities of a softmax.
            return {
                "x": x.astype(np.float32),
                "y": (score + self.generator.gumbel(size=score.shape)).argmax(1).astype(np.int32),
            }
        return {"x": x.astype(np.float32), "y": (score[:, 0] + noise[:, 0] > 0).astype(np.int32)}


def rehearsed_json(found: Rehearsed) -> dict[str, Any]:
    """Every candidate, best first, and what was chosen: nothing in it depends on a record."""
    rows = zip(found.points, found.regrets.tolist(), found.errors.T.tolist(), strict=True)
    best_first = sorted(rows, key=lambda row: row[1])
    return {
        "chosen": dict(found.chosen),
        "seed": found.seed,
        "teachers": len(found.errors),
        "metric": found.metric,
        "candidates": [{"point": dict(point), "regret": regret, "errors": own} for point, regret, own in best_first],
        "records_read": 0,
    }
