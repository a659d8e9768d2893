"""A bundle: a folder that holds a model and all that is needed to use it.

``model.safetensors`` has the weights under plain names such as ``linear.w`` (and the arrays of the encoding, where it
has any), ``model.json`` everything else, ``README.md`` a model card. No file holds code.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from tacit.algorithm import Params
from tacit.errors import TacitError
from tacit.models.card import card
from tacit.models.description import BundleError, Description, parsed, plain_stages, stages_from, text_of
from tacit.models.trained import TrainedModel
from tacit.objectives import Model
from tacit.objectives.models import built

WEIGHTS, DESCRIPTION, CARD = "model.safetensors", "model.json", "README.md"
FOLDER = "model"
"""The bundle of a run folder."""


def save_model(model: TrainedModel, folder: Path, *, overwrite: bool = False) -> Path:
    """Write a bundle into a folder, which is made if it is not there."""
    held = [folder / name for name in (WEIGHTS, DESCRIPTION, CARD) if (folder / name).exists()]
    if held and not overwrite:
        raise BundleError(f"{held[0]} exists; nothing is written over. Save into another folder, or remove it.")
    leaves = named_leaves(model.params)
    _, arrays = plain_stages(model.stages)
    shapes = {name: leaf.shape for name, leaf in leaves.items()}
    description = model.description.model_copy(update={"tensors": shapes})
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: np.ascontiguousarray(leaf) for name, leaf in (leaves | arrays).items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "tacit"})
    (folder / DESCRIPTION).write_text(text_of(description), encoding="utf-8")
    (folder / CARD).write_text(card(description), encoding="utf-8")
    return folder


def named_leaves(params: Params) -> dict[str, np.ndarray]:
    """The arrays of a tree under the names of their places.

    >>> list(named_leaves({"linear": {"b": np.zeros(1), "w": np.zeros((3, 1))}}))
    ['linear.b', 'linear.w']
    """
    found: dict[str, np.ndarray] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = _name(path)
        if name in found or name.startswith("encoding."):
            raise BundleError(f"Expected parameters with different names, none of them encoding, got {name!r} twice.")
        found[name] = np.asarray(leaf)
    return found


def _name(path: tuple[Any, ...]) -> str:
    parts = (str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path)
    return ".".join(parts) or "value"


def load_model(folder: str | Path, *, model: Model | None = None, schema: str | Path | None = None) -> TrainedModel:
    """The model of a bundle, or of the run folder that holds one.

    ``model`` is needed where the architecture is the user's own, and refused elsewhere. ``schema`` is the TOML schema
    of the CSV files that a model was trained on, for bundles without columns.
    """
    place = bundle_folder(Path(folder))
    description = parsed((place / DESCRIPTION).read_text(encoding="utf-8"), str(place / DESCRIPTION))
    try:
        tensors = load_file(place / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise BundleError(f"{place / WEIGHTS} cannot be read ({error}); copy the bundle again.") from None
    architecture = _architecture(description, model, place)
    params = _params(architecture, tensors, description, place)
    found = TrainedModel(description, params, architecture, stages_from(description.encoding, tensors))
    return found if schema is None else with_schema(found, Path(schema))


def bundle_folder(folder: Path) -> Path:
    """The folder of a bundle: this one, or the one that a run folder holds."""
    for place in (folder, folder / FOLDER):
        if (place / DESCRIPTION).is_file():
            return place
    if not folder.exists():
        raise BundleError(f"No folder at {folder}; give a run folder or a bundle, which has a {DESCRIPTION}.")
    raise BundleError(
        f"{folder} is not a bundle: it has no {DESCRIPTION}. Give a folder that `tacit run` made, or its folder "
        f"{FOLDER}; a run that was stopped has none yet."
    )


def _architecture(description: Description, model: Model | None, place: Path) -> Model:
    if description.model is None:
        if model is None:
            raise BundleError(
                f"The architecture of {place} is its author's own: give the model that it was trained with, "
                "load_model(folder, model=...)."
            )
        return model
    if model is not None:
        raise BundleError(f"{place} says itself what its model is, {description.model.name}; leave model= out.")
    try:
        return built(description.model)
    except (TacitError, ValueError) as error:
        raise BundleError(f"{place / DESCRIPTION}: {error}") from None


def _params(model: Model, tensors: Mapping[str, np.ndarray], description: Description, place: Path) -> Params:
    """The tree of the model's parameters, each found by its name."""
    shapes = jax.eval_shape(model.init, jax.eval_shape(lambda: jax.random.key(0)))
    leaves = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(shapes):
        name = _name(path)
        found = tensors.get(name)
        if found is None or found.shape != leaf.shape or description.tensors.get(name) != leaf.shape:
            got = "none" if found is None else str(found.shape)
            raise BundleError(
                f"Expected an array {name!r} of shape {leaf.shape} in {place / WEIGHTS}, got {got}; it belongs to "
                "another model, or was damaged."
            )
        leaves.append(found)
    return jax.tree.unflatten(jax.tree.structure(shapes), leaves)


def with_schema(found: TrainedModel, path: Path) -> TrainedModel:
    """The model with the columns of a schema, which must give as many features as the model takes."""
    from tacit.data.csv_silos import encoding_of, target_of
    from tacit.data.schema import read_schema

    rules = read_schema(path)
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
    return TrainedModel(description.model_copy(update=changes), found.params, found.model, encoding.stages)
