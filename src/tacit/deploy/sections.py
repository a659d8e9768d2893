"""TOML files that owners write: read, checked, and explained field by field where they are wrong."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tacit.deploy.permissions import check_silo
from tacit.errors import TacitError, explained

Count = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A section of a TOML file; unknown keys and numbers that are not finite are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


_Model = TypeVar("_Model", bound=Section)


def read_toml(path: Path, error: type[TacitError], missing: str) -> dict[str, Any]:
    """The values in a TOML file; ``missing`` says what to do where there is none."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise error(missing) from None
    return values_in(text, path, error)


def values_in(text: bytes, path: Path, error: type[TacitError]) -> dict[str, Any]:
    """The values in the text of a TOML file."""
    try:
        return tomllib.loads(text.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise error(f"{path} is not valid TOML: {problem}.") from None


def changed_values(text: bytes, path: Path, error: type[TacitError]) -> dict[str, Any]:
    """The values in a TOML file that was changed while it was in use: its owner's, and not empty."""
    check_silo(path.parent, [path])
    if not text:
        raise error(f"{path} is empty or cannot be read.")
    return values_in(text, path, error)


def checked(model: type[_Model], tree: dict[str, Any], error: type[TacitError], what: str) -> _Model:
    """A section from plain values, or an error that names every wrong field."""
    try:
        return model.model_validate(tree)
    except ValidationError as problem:
        lines = explained(problem.errors(include_input=False), model)
        raise error(f"{what} cannot be used:\n  {lines}") from None
