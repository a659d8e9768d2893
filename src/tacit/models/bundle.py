"""A bundle: a folder that holds a model and all that is needed to use it.

``model.safetensors`` has the weights under plain names such as ``linear.w`` (and the arrays of the encoding, where it
has any), ``model.json`` everything else, ``README.md`` a model card. Where silos have models of their own,
``personal.safetensors`` has their weights under the same names, with a leading axis of the silos that its metadata
names. No file holds code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from tacit.algorithm import Params
from tacit.data.federation import Stage
from tacit.errors import TacitError
from tacit.models.card import card
from tacit.models.description import BundleError, Description, parsed, plain_stages, stages_from, text_of
from tacit.objectives import Model
from tacit.objectives.leaves import leaf_name, named_leaves, personal_bytes
from tacit.objectives.models import built

WEIGHTS, DESCRIPTION, CARD, PERSONAL = "model.safetensors", "model.json", "README.md", "personal.safetensors"
FOLDER = "model"
"""The bundle of a run folder."""


def write_bundle(
    folder: Path,
    description: Description,
    params: Params,
    stages: Sequence[Stage],
    personal: Mapping[str, Params],
    *,
    overwrite: bool = False,
) -> Path:
    """Write a bundle into a folder, which is made if it is not there; nothing is written over unless that is said."""
    held = [folder / name for name in (WEIGHTS, DESCRIPTION, CARD, PERSONAL) if (folder / name).exists()]
    if held and not overwrite:
        raise BundleError(f"{held[0]} exists; nothing is written over. Save into another folder, or remove it.")
    leaves = named_leaves(params)
    _, arrays = plain_stages(stages)
    shapes = {name: leaf.shape for name, leaf in leaves.items()}
    description = description.model_copy(update={"tensors": shapes})
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: np.ascontiguousarray(leaf) for name, leaf in (leaves | arrays).items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "tacit"})
    (folder / DESCRIPTION).write_text(text_of(description), encoding="utf-8")
    (folder / CARD).write_text(card(description, len(personal)), encoding="utf-8")
    (folder / PERSONAL).unlink(missing_ok=True)
    if personal:
        (folder / PERSONAL).write_bytes(personal_bytes(personal))
    return folder


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


def read_bundle(
    folder: Path, model: Model | None
) -> tuple[Description, Params, Model, tuple[Stage, ...], dict[str, Params]]:
    """What a bundle holds; ``model`` is the user's own where the architecture is."""
    place = bundle_folder(folder)
    description = parsed((place / DESCRIPTION).read_text(encoding="utf-8"), str(place / DESCRIPTION))
    tensors, _ = _tensors(place / WEIGHTS)
    architecture = _architecture(description, model, place)
    params = _params(architecture, tensors, description, place / WEIGHTS)
    personal = _personal(architecture, description, place / PERSONAL) if (place / PERSONAL).exists() else {}
    return description, params, architecture, stages_from(description.encoding, tensors), personal


def _tensors(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The arrays of a file, and its metadata."""
    try:
        with safe_open(path, framework="numpy") as stored:
            return {name: stored.get_tensor(name) for name in stored.keys()}, stored.metadata() or {}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise BundleError(f"{path} cannot be read ({error}); copy the bundle again.") from None


def _personal(model: Model, description: Description, path: Path) -> dict[str, Params]:
    """The models of silos' own, by the name of the silo."""
    stacked, metadata = _tensors(path)
    try:
        names = [str(name) for name in json.loads(metadata["silos"])]
    except (KeyError, TypeError, ValueError):
        raise BundleError(f"{path} does not say whose models it holds; copy the bundle again.") from None
    if any(len(leaf) != len(names) for leaf in stacked.values()):
        raise BundleError(f"{path}: expected a model for each of {len(names)} silos; copy the bundle again.")
    return {
        name: _params(model, {key: leaf[i] for key, leaf in stacked.items()}, description, path)
        for i, name in enumerate(names)
    }


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


def _params(model: Model, tensors: Mapping[str, np.ndarray], description: Description, path: Path) -> Params:
    """The tree of the model's parameters, each found by its name."""
    shapes = jax.eval_shape(model.init, jax.eval_shape(lambda: jax.random.key(0)))
    leaves = []
    for place, leaf in jax.tree_util.tree_leaves_with_path(shapes):
        name = leaf_name(place)
        found = tensors.get(name)
        if found is None or found.shape != leaf.shape or description.tensors.get(name) != leaf.shape:
            got = "none" if found is None else str(found.shape)
            raise BundleError(
                f"Expected an array {name!r} of shape {leaf.shape} in {path}, got {got}; it belongs to "
                "another model, or was damaged."
            )
        leaves.append(found)
    return jax.tree.unflatten(jax.tree.structure(shapes), leaves)
