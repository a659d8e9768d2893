"""The bundle of a study: its model, with what the study knows of records, training and price."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tacit.algorithm import Params
from tacit.data import Federation
from tacit.data.schema import described_schema, read_schema, with_ranges
from tacit.errors import TacitError
from tacit.models import SiloPrice
from tacit.models.bundle import FOLDER
from tacit.models.description import Features, Training
from tacit.models.loading import with_rules
from tacit.models.trained import privacy_of, trained, trained_on, training_of, with_personal
from tacit.objectives import Objective
from tacit.plans.spec import Study


def write_model(
    folder: Path,
    study: Study,
    objective: Objective,
    params: Params,
    federation: Federation,
    silos: Sequence[SiloPrice],
    personal: Params | None = None,
) -> Path:
    """Write the bundle of a simulated study into its run folder, with silos' own models where there are such."""
    training = _training(study, seed=study.run.seed_list[0])
    channel, protects = study.algorithm.channel, study.privacy.protects
    model = trained_on(federation, objective, params, training, channel, protects, silos)
    return with_personal(model, [silo.name for silo in silos], personal).save(folder / FOLDER, overwrite=True)


def write_deployed_model(
    folder: Path,
    study: Study,
    objective: Objective,
    params: Params,
    facts: Any,
    silos: Sequence[SiloPrice],
    described: Mapping[str, Any] | None = None,
) -> Path:
    """Write the bundle of a deployed study: ``facts`` are shape, task and classes of its plan.

    The schema is public. The bundle has its columns where silos have ``described`` them, or the study names its file
    and that can be read here; otherwise whoever uses the model gives it, ``load_model(folder, schema=...)``.
    """
    model = trained(
        objective,
        params,
        features=Features(shape=tuple(facts.features)),
        training=_training(study, seed=None),
        privacy=privacy_of(study.algorithm.channel, study.privacy.protects, silos),
        task=facts.task,
    )
    # A schema that is not the silos' must not cost them the model: it is saved without columns.
    with contextlib.suppress(TacitError):
        path, ranges = schema_path(study), study.data.options.get("ranges") or {}
        if described is not None and described.get("columns"):
            model = with_rules(model, with_ranges(described_schema(described), ranges), "the silos' description")
        elif path is not None:
            model = with_rules(model, with_ranges(read_schema(path), ranges), str(path))
    return model.save(folder / FOLDER, overwrite=True)


def schema_path(study: Study) -> Path | None:
    """The schema of a study of CSV silos, if it can be read here."""
    options = study.data.options
    if study.data.name != "csv" or not options.get("folder"):
        return None
    path = Path(str(options["folder"])) / str(options.get("schema") or "schema.toml")
    return path if path.is_file() else None


def _training(study: Study, seed: int | None) -> Training:
    """How a study's model was made; among real silos nobody has the seed of all noise."""
    return training_of(
        study=study.name,
        algorithm=study.algorithm.name,
        rounds=study.algorithm.num_rounds,
        seed=seed,
        simulated=seed is not None,
    )
