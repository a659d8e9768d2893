"""From a study to its problem and algorithm, and to the shapes of broadcasts and messages."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from tacit import geometry
from tacit.algorithm import Algorithm, Protects, Sampling
from tacit.objectives import (
    Loss,
    Model,
    Objective,
    Problem,
    absolute,
    constants,
    hinge,
    huber,
    logistic,
    pinball,
    poisson,
    softmax,
    squared,
)
from tacit.objectives.losses import FITTING, OWN_LOSSES
from tacit.objectives.models import DIGEST, MODELS, built
from tacit.objectives.objective import Architecture
from tacit.plans.catalogue import Entry, find
from tacit.plans.spec import ONE_ROUND, AlgorithmSection, ObjectiveSection, Study, StudyError, unknown_parameters

_LOSSES: dict[str, Callable[[ObjectiveSection], Loss]] = {
    "logistic": lambda section: logistic(section.class_weights),
    "softmax": lambda section: softmax(section.class_weights),
    "hinge": lambda section: hinge(section.smoothness, section.smoothing or "moreau"),
    "squared": lambda section: squared(),
    "absolute": lambda section: absolute(section.smoothness, section.smoothing or "moreau"),
    "huber": lambda section: huber(section.bend or 1.0),
    "poisson": lambda section: poisson(),
    "pinball": lambda section: pinball(section.quantile or 0.0, section.smoothness, section.smoothing or "moreau"),
    "piecewise-exponential": lambda section: _survival(section),
}


def _survival(section: ObjectiveSection) -> Loss:
    from tacit.objectives.survival import BINS, piecewise_exponential

    return piecewise_exponential(section.bins or BINS)


class Facts(Protocol):
    """What a problem needs to know of the records: a `tacit.data.Federation`, or a plan, says it."""

    @property
    def name(self) -> str:
        """Of the data, for messages."""
        ...

    @property
    def task(self) -> str:
        """``binary``, ``multiclass`` or ``regression``."""
        ...

    @property
    def num_classes(self) -> int | None:
        """How many classes there are; none in regression."""
        ...

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """The shape of one record's features."""
        ...

    @property
    def feature_norm(self) -> float | None:
        """A bound on their norm, where preprocessing gives one."""
        ...


def problem_of(study: Study, facts: Facts) -> Problem:
    """The objective of the study, with the constants that its preprocessing makes known."""
    section = study.objective
    own = [name for name, loss in OWN_LOSSES.items() if facts.task in loss.tasks]
    fitting = (*FITTING[facts.task], *own)
    name = section.loss or fitting[0]
    if name not in fitting:
        raise StudyError(
            f"objective.loss: {name!r} does not fit the {facts.task} target of {facts.name}; "
            f"use one of {', '.join(fitting)}."
        )
    if section.class_weights is not None and len(section.class_weights) != facts.num_classes:
        raise StudyError(
            f"objective.class_weights: expected one weight for each of {facts.num_classes or 0} classes of "
            f"{facts.name}, got {len(section.class_weights)}."
        )
    per_class = OWN_LOSSES[name].per_class if name in OWN_LOSSES else name == "softmax"
    outputs = facts.num_classes or 1 if per_class else 1
    try:
        named = section.regulariser
        regulariser = geometry.zero() if named == "zero" else geometry.regulariser(named)
    except ValueError as error:
        raise StudyError(f"objective.regulariser: {error}") from None
    loss = OWN_LOSSES[name].make(**section.loss_options) if name in OWN_LOSSES else _LOSSES[name](section)
    objective = Objective(_model(section, facts, outputs), loss)
    if section.model not in MODELS or name in OWN_LOSSES:
        from tacit.objectives.apart import check_apart

        record = record_shape(facts.feature_shape, facts.task)
        check_apart(objective, record, np.arange(facts.num_classes or 3).astype(record["y"].dtype))
    # The theorems speak of the losses' strong convexity, which no regulariser adds to.
    norm = facts.feature_norm if study.preprocessing is None else study.preprocessing.norm
    known = constants(objective, feature_norm=norm)
    return Problem(objective, regulariser, lipschitz=known.lipschitz, smoothness=known.smoothness)


def _model(section: ObjectiveSection, facts: Facts, outputs: int) -> Model:
    shape = facts.feature_shape
    if section.model not in MODELS:
        pinned = {} if section.model_digest is None else {DIGEST: section.model_digest}
        given = {"features": shape, "outputs": outputs, **section.model_options, **pinned}
        return built(Architecture(section.model, given))
    if section.model == "cnn":
        if len(shape) != 3:
            raise StudyError(f"objective.model: 'cnn' needs images, but a record of {facts.name} is {shape}.")
        widths = {"channels": section.channels, "hidden": section.hidden}
        own: dict[str, Any] = {name: value for name, value in widths.items() if value}
        return built(Architecture("cnn", {"image": shape, "outputs": outputs, **own}))
    if len(shape) != 1:
        raise StudyError(
            f"objective.model: {section.model!r} needs flat features, but a record of {facts.name} is {shape}; "
            'use "cnn" for images.'
        )
    if section.loss == "piecewise-exponential":
        if section.model != "linear":
            raise StudyError(f'objective.model: "piecewise-exponential" has a linear risk; got {section.model!r}.')
        from tacit.objectives.survival import BINS

        return built(Architecture("hazards", {"features": shape[0], "bins": section.bins or BINS}))
    if section.model == "linear":
        return built(Architecture("linear", {"features": shape[0], "outputs": outputs}))
    sizes = (shape[0], *section.hidden, outputs)
    return built(Architecture("mlp", {"sizes": sizes, "activation": section.activation or "relu"}))


@dataclass(frozen=True)
class Builder:
    """Builds the study's algorithm; ``build`` takes the parameters that differ from run to run."""

    entry: Entry
    problem: Problem
    fixed: dict[str, Any]

    def build(self, **changes: Any) -> Algorithm:
        """The algorithm with the study's parameters and terms, and these changes of either."""
        return self.entry.build(self.problem, **{**self.fixed, **changes})

    def noised(self, noise_multiplier: Any) -> Algorithm:
        """The algorithm with the study's parameters and this noise."""
        return self.build(noise_multiplier=noise_multiplier)


def check_parameters(study: Study) -> Entry:
    """The study's algorithm, or an error that names a parameter that it does not have or that is missing."""
    section = study.algorithm
    entry = find(section.name)
    accepted = entry.parameters
    for place, given in (("algorithm", section.own), ("baseline", study.baseline)):
        strange = unknown_parameters({"name": entry.name, **given})
        if strange:
            fix = " ".join(f"--set {place}.{key}=none" for key in strange)
            raise StudyError(
                "\n".join(f"{place}.{key}: {text}" for key, text in strange.items())
                + f"\nLeave out what it does not know: {fix}"
            )
    missing = [
        name
        for name, parameter in accepted.items()
        if parameter.default is parameter.empty and name not in (*AlgorithmSection.model_fields, *section.own)
    ]
    if missing:
        fix = " ".join(f"--set algorithm.{name}=VALUE" for name in missing)
        raise StudyError(f"algorithm.{missing[0]}: missing; {entry.name} needs it. Set it in the study or with {fix}")
    return entry


def builder_of(study: Study, problem: Problem, records: list[int]) -> Builder:
    """The study's algorithm for silos with these numbers of records, before noise is decided."""
    section, entry = study.algorithm, check_parameters(study)
    limit = capacity_for(section.scheme, section.batch_size, records)
    fixed = {
        "step_size": section.step_size,
        "num_rounds": section.num_rounds,
        "clip_norm": section.clip_norm,
        "noise_multiplier": None,
        "batch_size": section.batch_size,
        "sampling": section.scheme,
        "capacity": limit if section.capacity is None else section.capacity,
        "channel": section.channel if study.privacy.private else "open",
        "protects": _protection(study, entry),
        "silos": len(records),
        "server": section.server,
        **section.own,
    }
    if section.name in ONE_ROUND:
        # Neither steps nor rounds are theirs to choose.
        fixed = {name: value for name, value in fixed.items() if name not in ("step_size", "num_rounds")}
    return Builder(entry, problem, fixed)


def _protection(study: Study, entry: Entry) -> Protects:
    """What the study protects, if its algorithm can protect that."""
    protects = study.privacy.protects
    if protects == "sensitive-attribute" and study.data.options.get("sensitive_in_features"):
        raise StudyError(
            "data.options.sensitive_in_features: features count as known where the sensitive attribute alone is "
            'protected, so it must not be one of them; leave it out, or set privacy.protects = "record".'
        )
    if protects != "record" and not entry.reads_attribute:
        raise StudyError(
            f'privacy.protects: {entry.name} protects whole records; set it to "record", or use steffle to protect the '
            "sensitive attribute alone."
        )
    return protects


def capacity_for(sampling: Sampling, batch_size: Any, records: Sequence[int]) -> tuple[int, ...] | None:
    """The physical limit of a batch of random size; ``batch_size`` is one for all silos, or one for each.

    A Poisson batch may be four standard deviations above its mean and is priced as a truncation. In an epoch nobody
    may be left out: the chance that one is, which is priced, is far below every delta.
    """
    if sampling not in ("poisson", "allocation") or batch_size is None:
        return None
    sizes = np.broadcast_to(np.asarray(batch_size, int), len(records)).tolist()
    above = [4 * math.sqrt(k) if sampling == "poisson" else 11 * math.sqrt(k) + 40 for k in sizes]
    return tuple(min(k + math.ceil(more), n) for k, more, n in zip(sizes, above, records, strict=True))


@dataclass(frozen=True)
class Shapes:
    """Shapes of what is said in each kind of round, the dimension of what is released, and the model's shape."""

    dimensions: dict[str, int]
    broadcasts: dict[str, Any]
    messages: dict[str, Any]
    params: Any


def record_shape(features: tuple[int, ...], task: str, columns: int = 0) -> dict[str, jax.ShapeDtypeStruct]:
    """The shape of one record with these features, this kind of target, and so many declared columns."""
    target = jnp.float32 if task == "regression" else jnp.int32
    record = {"x": jax.ShapeDtypeStruct(features, jnp.float32), "y": jax.ShapeDtypeStruct((), target)}
    return record | ({"columns": jax.ShapeDtypeStruct((columns,), jnp.float32)} if columns else {})


def shapes_of(algorithm: Algorithm, problem: Problem, record: Any) -> Shapes:
    """Shapes of what an algorithm says about a problem with records of this shape."""
    params = jax.eval_shape(problem.objective.init, jax.eval_shape(lambda: jax.random.key(0)))
    state, memory = jax.eval_shape(algorithm.init, params), jax.eval_shape(algorithm.memory, params)
    broadcasts, messages, dimensions = {}, {}, {}
    for kind, part in algorithm.rounds.items():
        broadcasts[kind] = jax.eval_shape(part.server.ask, state)
        work = jax.eval_shape(part.silo.start, broadcasts[kind], memory)
        statistic = jax.eval_shape(part.silo.query, work, record)
        dimensions[kind] = coordinates(statistic)
        work = jax.eval_shape(part.silo.absorb, work, statistic)
        messages[kind] = jax.eval_shape(part.silo.report, work, memory)[0]
        jax.eval_shape(part.server.tell, state, messages[kind])  # finds a server that cannot step as it is told to
    return Shapes(dimensions, broadcasts, messages, params)


def parameter_count(problem: Problem) -> int:
    """How many parameters the model has."""
    return coordinates(jax.eval_shape(problem.objective.init, jax.eval_shape(lambda: jax.random.key(0))))


def coordinates(tree: Any) -> int:
    """How many numbers a tree of shapes has."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))
