"""The records of a study, silo by silo."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tacit import data
from tacit.data.federation import Target
from tacit.data.schema import Schema, public_schema
from tacit.objectives.losses import SURVIVAL
from tacit.plans.spec import Study, StudyError
from tacit.studies.centralisation import regrouped


def schema_of(study: Study) -> Schema | None:
    """The schema of a study of CSV silos, if silos may serve it; no record is read. Other data sets have none."""
    options = study.data.options
    if study.data.name != "csv":
        return None
    return public_schema(Path(str(options.get("folder", ""))) / str(options.get("schema") or "schema.toml"))


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
    _check_times(study, federation.target)
    _check_counts(study, federation)
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


def _check_counts(study: Study, federation: data.Federation) -> None:
    """Raise where a loss of counts meets a number below zero; simulated silos may say so, real ones never do."""
    if study.objective.loss != "poisson":
        return
    for silo in federation.silos:
        for part in (silo.train, silo.validation, silo.test):
            if part is not None and len(part["y"]) and part["y"].min() < 0:
                raise StudyError(
                    f"objective.loss: 'poisson' is of counts, and {silo.name} has a target of {part['y'].min():g}; "
                    'correct it, or use "squared".'
                )


def _check_times(study: Study, target: Target | None) -> None:
    """Raise where times of an event are trained as plain numbers, or plain numbers as such times."""
    if target is None or target.range is None or study.algorithm.name == "statistics":
        return
    survives = study.objective.loss == SURVIVAL
    if study.objective.loss == "poisson" and target.range[0] < 0:
        raise StudyError(
            f"objective.loss: 'poisson' is of counts, and the range of {target.column!r} in the schema begins at "
            f'{target.range[0]:g}; declare a range from 0 on, or use "squared".'
        )
    if survives and target.event is None:
        raise StudyError(
            f"objective.loss: {SURVIVAL!r} needs to know whose event was seen, and {target.column!r} of "
            f"{study.data.name} is a number that was scaled to [0, 1]: every record would have an event. Name the "
            "column of the event in the schema (tacit init --event COLUMN)."
        )
    if target.event is not None and not survives:
        raise StudyError(
            f"objective.loss: {target.column!r} of {study.data.name} is the time of an event ({target.event}), "
            f'negative where it was not seen; set loss = "{SURVIVAL}".'
        )
