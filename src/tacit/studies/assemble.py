"""From a study to the things it names: federation, problem, algorithm."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit import data, geometry
from tacit.algorithm import Algorithm, Protects
from tacit.algorithms import Entry, find
from tacit.objectives import (
    Loss,
    Model,
    Objective,
    Problem,
    absolute,
    cnn,
    constants,
    hinge,
    linear,
    logistic,
    mlp,
    pinball,
    softmax,
    squared,
)
from tacit.studies.centralisation import regrouped
from tacit.studies.spec import AlgorithmSection, ObjectiveSection, Study, StudyError, unknown_parameters

_ACTIVATIONS = {"relu": jax.nn.relu, "softplus": jax.nn.softplus, "tanh": jnp.tanh}
_LOSSES: dict[str, Callable[[ObjectiveSection], Loss]] = {
    "logistic": lambda section: logistic(),
    "softmax": lambda section: softmax(),
    "hinge": lambda section: hinge(section.smoothness),
    "squared": lambda section: squared(),
    "absolute": lambda section: absolute(section.smoothness),
    "pinball": lambda section: pinball(section.quantile or 0.0, section.smoothness),
}
_FITTING = {
    "binary": ("logistic", "softmax", "hinge"),
    "multiclass": ("softmax",),
    "regression": ("squared", "absolute", "pinball"),
}
"""The losses of each kind of target, the default first."""


def federation_of(study: Study, seed: int) -> data.Federation:
    """The silos' records for one seed of the study."""
    part = study.partition
    federation = data.load(
        study.data.name,
        partition=part.kind,
        silos=part.silos,
        level=part.level,
        seed=seed,
        validation=part.validation,
        test=part.test,
        records_per_silo=part.records_per_silo,
        **study.data.options,
    )
    federation = regrouped(study, federation)
    if federation.task != "regression":
        classes = np.unique(np.concatenate([silo.train["y"] for silo in federation.silos]))
        if len(classes) < 2:
            only = ", ".join(federation.class_names[int(c)] for c in classes) if federation.class_names else "one"
            fix = "choose another partition or more silos"
            if study.data.name == "csv":
                fix = "add records of another class to the silos' files, or choose another target: tacit init --target"
            raise StudyError(
                f"Expected at least two classes among the training records of {study.data.name}, got only "
                f"{only}; {fix}."
            )
    return federation


def problem_of(study: Study, federation: data.Federation) -> Problem:
    """The objective of the study, with the constants that its preprocessing makes known."""
    section = study.objective
    fitting = _FITTING[federation.task]
    name = section.loss or fitting[0]
    if name not in fitting:
        raise StudyError(
            f"objective.loss: {name!r} does not fit the {federation.task} target of {federation.name}; "
            f"use one of {', '.join(fitting)}."
        )
    outputs = federation.num_classes or 1 if name == "softmax" else 1
    try:
        regulariser = geometry.regulariser(section.regulariser)
    except ValueError as error:
        raise StudyError(f"objective.regulariser: {error}") from None
    objective = Objective(_model(section, federation, outputs), _LOSSES[name](section))
    # Strong convexity that a regulariser brings is not the losses', of which the theorems speak.
    norm = federation.feature_norm if study.preprocessing is None else study.preprocessing.norm
    known = constants(objective, feature_norm=norm)
    return Problem(objective, regulariser, lipschitz=known.lipschitz, smoothness=known.smoothness)


def _model(section: ObjectiveSection, federation: data.Federation, outputs: int) -> Model:
    shape = federation.feature_shape
    if section.model == "cnn":
        if len(shape) != 3:
            raise StudyError(f"objective.model: 'cnn' needs images, but a record of {federation.name} is {shape}.")
        widths = {"channels": section.channels, "hidden": section.hidden}
        own: dict[str, Any] = {name: value for name, value in widths.items() if value}
        return cnn((shape[0], shape[1], shape[2]), outputs=outputs, **own)
    if len(shape) != 1:
        raise StudyError(
            f"objective.model: {section.model!r} needs flat features, but a record of {federation.name} is {shape}; "
            'use "cnn" for images.'
        )
    if section.model == "linear":
        return linear(shape[0], outputs)
    return mlp((shape[0], *section.hidden, outputs), activation=_ACTIVATIONS[section.activation or "relu"])


@dataclass(frozen=True)
class Builder:
    """Builds the study's algorithm; ``build`` takes the parameters that differ from run to run."""

    entry: Entry
    problem: Problem
    fixed: dict[str, Any]

    def build(self, **changes: Any) -> Algorithm:
        """The algorithm with the study's parameters and terms, and these changes of either."""
        return self.entry.build(self.problem, **{**self.fixed, **changes})


def check_parameters(study: Study) -> Entry:
    """The study's algorithm, or an error that names a parameter that it does not have or that is missing."""
    section = study.algorithm
    entry = find(section.name)
    accepted = entry.parameters
    strange = unknown_parameters({"name": entry.name, **section.own})
    if strange:
        fix = " ".join(f"--set algorithm.{key}=none" for key in strange)
        raise StudyError(
            "\n".join(f"algorithm.{key}: {text}" for key, text in strange.items())
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
    fixed = {
        "step_size": section.step_size,
        "num_rounds": section.num_rounds,
        "clip_norm": section.clip_norm,
        "noise_multiplier": None,
        "batch_size": section.batch_size,
        "sampling": section.scheme,
        "capacity": capacity_for(study, records),
        "channel": section.channel if study.privacy.private else "open",
        "protects": _protection(study, entry),
        **section.own,
    }
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


def capacity_for(study: Study, records: list[int]) -> Any:
    """The physical limit of a Poisson batch: four standard deviations above its mean, priced as a truncation."""
    section = study.algorithm
    if section.scheme != "poisson" or section.batch_size is None:
        return None
    limit = section.batch_size + math.ceil(4 * math.sqrt(section.batch_size))
    return tuple(min(limit, n) for n in records)
