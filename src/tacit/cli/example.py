"""``tacit init --example``: sample files that ship with Tacit, for a first try."""

from __future__ import annotations

import shutil
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from tacit.errors import TacitError, unknown

EXAMPLES = {"clinics": "readmitted"}
"""The target of each example."""


class Example(NamedTuple):
    """A folder of sample files, what is predicted, and the file of what is publicly known."""

    folder: Path
    target: str
    bounds: Path


def written_example(name: str, folder: Path | None, given: dict[str, Any], *, force: bool) -> Example:
    """Write the files of an example into a new folder; ``given`` are options that it answers itself."""
    if name not in EXAMPLES:
        raise TacitError(f"--example: {unknown('example', name, EXAMPLES)}")
    strange = [flag for flag, value in given.items() if value]
    if strange:
        raise TacitError(f"Expected --example without {', '.join(strange)}: an example knows its own columns.")
    place = Path(name) if folder is None else folder
    if place.exists() and any(place.iterdir() if place.is_dir() else [place]) and not force:
        raise TacitError(f"{place} exists; name a new folder, tacit init NEW --example {name}, or use --force.")
    with resources.as_file(resources.files("tacit.data") / "examples" / name) as source:
        shutil.copytree(source, place, dirs_exist_ok=True)
    return Example(place, EXAMPLES[name], place / "public.toml")


def next_steps(folder: Path) -> str:
    """What to type after ``tacit init --example``."""
    model, rows = folder / "model", folder / "new"
    return (
        f"The records are invented; {folder / 'README.md'} says how. From here to predictions:\n"
        f"  tacit run {folder / 'study.toml'} --model {model}\n"
        f"  tacit predict {model} {rows / 'new.csv'} --proba\n"
        f"  tacit evaluate {model} {rows / 'labelled.csv'}"
    )
