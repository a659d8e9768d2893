"""From a study to the things it names: federation, problem, algorithm."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit import data, geometry
from tacit.algorithm import Algorithm
from tacit.algorithms import Entry, find
from tacit.errors import unknown
from tacit.objectives import Loss, Model, Objective, Problem, linear, logistic, mlp, softmax, squared
from tacit.studies.centralisation import regrouped
from tacit.studies.spec import Study, StudyError

_COMMON = {
    "step_size",
    "num_rounds",
    "clip_norm",
    "noise_multiplier",
    "batch_size",
    "sampling",
    "capacity",
    "channel",
    "protects",
}
_LOSSES: dict[str, Callable[[], Loss]] = {"logistic": logistic, "softmax": softmax, "squared": squared}
_DEFAULT_LOSS = {"binary": "logistic", "multiclass": "softmax", "regression": "squared"}


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
            raise StudyError(
                f"Expected at least two classes among the training records of {study.data.name}, got only "
                f"{classes.tolist()}; choose another partition or more silos."
            )
    return federation


def problem_of(study: Study, federation: data.Federation) -> Problem:
    """The objective of the study, with the constants that its preprocessing makes known."""
    section = study.objective
    name = section.loss or _DEFAULT_LOSS[federation.task]
    if (name == "squared") != (federation.task == "regression"):
        raise StudyError(
            f"objective.loss: {name!r} does not fit the {federation.task} target of {federation.name}; "
            f"use {_DEFAULT_LOSS[federation.task]!r}."
        )
    if name == "logistic" and federation.num_classes != 2:
        raise StudyError(f"objective.loss: 'logistic' needs two classes, got {federation.num_classes}; use 'softmax'.")
    outputs = federation.num_classes or 1 if name == "softmax" else 1
    features = math.prod(federation.feature_shape)
    model = linear(features, outputs) if section.model == "linear" else mlp((features, *section.hidden, outputs))
    try:
        regulariser = geometry.regulariser(section.regulariser)
    except ValueError as error:
        raise StudyError(f"objective.regulariser: {error}") from None
    lipschitz, smoothness = _constants(model, name, federation)
    return Problem(Objective(model, _LOSSES[name]()), regulariser, lipschitz=lipschitz, smoothness=smoothness)


def _constants(model: Model, loss: str, federation: data.Federation) -> tuple[float | None, float | None]:
    """L and beta of each record's loss for a linear model on features of bounded norm."""
    if model.layers != ("linear",) or federation.feature_norm is None:
        return None, None
    squared_norm = federation.feature_norm**2 + 1  # the bias is one more feature, equal to one
    return {
        "logistic": (math.sqrt(squared_norm), squared_norm / 4),
        "softmax": (math.sqrt(2 * squared_norm), squared_norm / 2),
        "squared": (None, squared_norm),
    }[loss]


@dataclass(frozen=True)
class Builder:
    """Builds the study's algorithm; ``build`` takes the parameters that differ from run to run."""

    entry: Entry
    problem: Problem
    fixed: dict[str, Any]

    def build(self, **changes: Any) -> Algorithm:
        """The algorithm with the study's parameters and these changes."""
        return self.entry.factory(self.problem, **{**self.fixed, **changes})


def builder_of(study: Study, problem: Problem, records: list[int]) -> Builder:
    """The study's algorithm for silos with these numbers of records, before noise is decided."""
    section = study.algorithm
    entry = find(section.name)
    accepted = entry.parameters
    for key in section.own:
        if key not in set(accepted) - {"noise_multiplier"}:
            raise StudyError(f"algorithm.{key}: {unknown('parameter of ' + entry.name, key, set(accepted) - _COMMON)}")
    missing = [
        name
        for name, parameter in accepted.items()
        if parameter.default is parameter.empty and name not in _COMMON and name not in section.own
    ]
    if missing:
        raise StudyError(f"algorithm.{missing[0]}: missing; {entry.name} needs it.")
    fixed = {
        "step_size": section.step_size,
        "num_rounds": section.num_rounds,
        "clip_norm": section.clip_norm,
        "noise_multiplier": None,
        "batch_size": section.batch_size,
        "sampling": section.scheme,
        "capacity": capacity_for(study, records),
        "channel": section.channel if study.privacy.private else "open",
        **_protection(study, entry),
        **section.own,
    }
    return Builder(entry, problem, fixed)


def _protection(study: Study, entry: Entry) -> dict[str, Any]:
    """What the algorithm is told to protect, where it can protect less than whole records."""
    protects = study.privacy.protects
    if entry.can_protect_attribute:
        return {"protects": protects}
    if protects != "record":
        raise StudyError(
            f'privacy.protects: {entry.name} protects whole records; set it to "record", or use steffle to protect the '
            "sensitive attribute alone."
        )
    return {}


def capacity_for(study: Study, records: list[int]) -> Any:
    """The physical limit of a Poisson batch: four standard deviations above its mean, priced as a truncation."""
    section = study.algorithm
    if section.scheme != "poisson" or section.batch_size is None:
        return None
    limit = section.batch_size + math.ceil(4 * math.sqrt(section.batch_size))
    return tuple(min(limit, n) for n in records)
