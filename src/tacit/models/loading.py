"""``load_model``: a bundle as a model to use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tacit.data.csv_silos import encoding_of, target_of
from tacit.data.encode import Bounded, Columns
from tacit.data.schema import NumberColumn, Schema, described_schema, read_schema, with_ranges
from tacit.models.bundle import read_bundle
from tacit.models.description import BundleError, plain_stages
from tacit.models.trained import TrainedModel
from tacit.objectives import Model


def load_model(folder: str | Path, *, model: Model | None = None, schema: str | Path | None = None) -> TrainedModel:
    """The model of a bundle, or of the run folder that holds one.

    ``model`` is needed where the architecture is the user's own, and refused elsewhere. ``schema`` is the TOML schema
    of the CSV files that a model was trained on, for bundles without columns.
    """
    found = TrainedModel(*read_bundle(Path(folder), model))
    return found if schema is None else with_schema(found, Path(schema))


def with_schema(found: TrainedModel, path: Path) -> TrainedModel:
    """The model with the columns of a schema, which must give as many features as the model takes."""
    return with_rules(found, read_schema(path), str(path))


def with_rules(found: TrainedModel, rules: Schema, path: str) -> TrainedModel:
    """As `with_schema`, of a schema that was read; ``path`` says in errors where it is from."""
    encoding, target, description = encoding_of(rules), target_of(rules), found.description
    if description.columns:
        raise BundleError("The bundle has columns of its own; leave the schema out.")
    outputs = len(found.classes) if description.task != "regression" else 0
    if (len(encoding.names),) != description.features.shape or rules.target.task != description.task:
        raise BundleError(
            f"{path}: expected {description.features.shape[0]} features and a {description.task} target, got "
            f"{len(encoding.names)} and {rules.target.task}; give the schema that the silos share."
        )
    if outputs and len(target.classes) != outputs:
        raise BundleError(f"{path}: expected {outputs} classes, got {len(target.classes)}; give the silos' own schema.")
    changes = {
        "columns": dict(encoding.columns),
        "encoding": plain_stages(encoding.stages)[0],
        "preprocessing": encoding.steps,
        "target": target,
        "features": description.features.model_copy(update={"names": encoding.names, "norm": encoding.norm}),
    }
    return replace(found, description=description.model_copy(update=changes), stages=encoding.stages)


def ranges_in(found: TrainedModel, described: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """The ranges by which silos whose schema is ``described`` so make the features that a model takes.

    Raises unless they can make them: what they said of a model of other columns would be nonsense.
    """
    schema, own = described_schema(described), found.description
    parts = [part for stage in found.stages if isinstance(stage, Columns) for part in stage.columns]
    limits = {part.column: (part.low, part.high) for part in parts if isinstance(part, Bounded)}
    numbers = {n: c for n, c in schema.columns.items() if isinstance(c, NumberColumn) and n in limits}
    ranges = {name: limits[name] for name, column in numbers.items() if limits[name] != (column.low, column.high)}
    rules = with_ranges(schema, ranges)
    if encoding_of(rules).stages != found.stages or target_of(rules) != own.target:
        raise BundleError(
            f"The model takes {', '.join(own.columns)} for {own.target.column}, and silos have "
            f"{', '.join(schema.used)} for {schema.target.column}: columns, levels, units or classes differ. Give a "
            "model that was trained with their schema."
        )
    return ranges
