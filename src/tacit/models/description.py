"""``model.json``: all that is known of a trained model beside its weights, as plain values."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from tacit.algorithm import GUARANTEES, Channel, Protects
from tacit.data.encode import (
    Bands,
    Bounded,
    Columns,
    Curves,
    Missing,
    Norm,
    OneHot,
    Projected,
    Scaled,
    Signed,
    Standard,
)
from tacit.data.federation import RawColumn, Stage, Step, Target, Task
from tacit.errors import TacitError, explained
from tacit.objectives.objective import Architecture

FORMAT = 1
"""The version of the bundle format."""

_KINDS = {
    kind.__name__: kind
    for kind in (Bands, Bounded, Columns, Curves, Missing, Norm, OneHot, Projected, Scaled, Signed, Standard)
}
"""All that an encoding is made of; a bundle may name nothing else."""


class BundleError(TacitError):
    """A bundle that cannot be read, or cannot do what is asked of it."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SiloPrice(_Part):
    """What a silo paid for the model; no epsilon where nothing was protected."""

    name: str
    records: int
    epsilon: float | None = None
    delta: float | None = None


class Privacy(_Part):
    """The price by silo and what it rests on; ``not_covered`` lists what read records outside every price."""

    channel: Channel
    protects: Protects
    silos: tuple[SiloPrice, ...]
    not_covered: tuple[str, ...] = ()

    @property
    def guarantee(self) -> str:
        """What the price rests on: whom it needs to trust."""
        return GUARANTEES[self.channel]


class Training(_Part):
    """How the model was made; ``simulated`` if all silos were in one process."""

    algorithm: str
    rounds: int
    simulated: bool
    tacit: str
    study: str | None = None
    seed: int | None = None


class Features(_Part):
    """What the model takes: arrays of this shape for each row."""

    shape: tuple[int, ...]
    names: tuple[str, ...] = ()
    norm: float | None = None


class Description(_Part):
    """A bundle without its arrays. ``model`` is missing where the architecture is the user's own.

    ``columns`` are the raw columns and ``encoding`` the stages from them to features; both are empty where the model
    was trained on arrays that somebody encoded before. ``tensors`` has the shape of every array of the model.
    """

    format: Literal[1] = 1
    task: Task
    model: Architecture | None = None
    loss: str | None = None
    target: Target
    features: Features
    columns: dict[str, RawColumn]
    encoding: tuple[dict[str, Any], ...]
    preprocessing: tuple[Step, ...]
    tensors: dict[str, tuple[int, ...]]
    training: Training
    privacy: Privacy


def parsed(text: str, where: str) -> Description:
    """The description in a file's text, or an error that says what is wrong with it."""
    try:
        tree = json.loads(text)
    except ValueError as error:
        raise BundleError(f"{where} is not valid JSON ({error}); it is damaged, copy the bundle again.") from None
    found = tree.get("format") if isinstance(tree, dict) else None
    if found != FORMAT:
        raise BundleError(
            f"{where}: expected format={FORMAT}, got {found!r}: the bundle was written by another version of Tacit; "
            "load it with that version."
        )
    tree.get("privacy", {}).pop("guarantee", None)
    try:
        return Description.model_validate(tree)
    except ValidationError as error:
        lines = explained(error.errors(include_input=False), Description)
        raise BundleError(f"{where} cannot be used:\n  {lines}") from None


def text_of(description: Description) -> str:
    """The description as JSON; the guarantee is written out for those who read it without Tacit."""
    tree = description.model_dump(mode="json", exclude_none=True)
    tree["privacy"]["guarantee"] = description.privacy.guarantee
    return json.dumps(tree, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def plain_stages(stages: Sequence[Stage]) -> tuple[tuple[dict[str, Any], ...], dict[str, np.ndarray]]:
    """Stages as plain values beside their arrays, which are named ``encoding.INDEX.FIELD``."""
    arrays: dict[str, np.ndarray] = {}

    def plain(value: Any, name: str) -> Any:
        if isinstance(value, np.ndarray):
            arrays[name] = value
            return {"tensor": name}
        if dataclasses.is_dataclass(value) and type(value).__name__ in _KINDS:
            fields = {f.name: plain(getattr(value, f.name), f"{name}.{f.name}") for f in dataclasses.fields(value)}
            return {"kind": type(value).__name__, **fields}
        if isinstance(value, list | tuple):
            return [plain(part, f"{name}.{index}") for index, part in enumerate(value)]
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise BundleError(f"Expected stages of plain values, got {value!r}; a bundle cannot hold it.")

    return tuple(plain(stage, f"encoding.{index}") for index, stage in enumerate(stages)), arrays


def stages_from(trees: Sequence[Mapping[str, Any]], arrays: Mapping[str, np.ndarray]) -> tuple[Stage, ...]:
    """The stages that plain values and arrays stand for."""

    def made(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return tuple(made(part) for part in value)
        if not isinstance(value, dict):
            return value
        if set(value) == {"tensor"}:
            return arrays[value["tensor"]]
        return _KINDS[value["kind"]](**{name: made(part) for name, part in value.items() if name != "kind"})

    try:
        return tuple(made(tree) for tree in trees)
    except (KeyError, TypeError) as error:
        raise BundleError(f"The bundle's encoding is damaged ({error!r}); copy the bundle again.") from None
