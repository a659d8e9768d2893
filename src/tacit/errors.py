"""Errors that people meet: each names the value, the rule and the way out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, get_args


class TacitError(ValueError):
    """Something that a user can put right; the command line shows its message without a traceback."""


def counted(number: int, noun: str) -> str:
    """A number of things in words.

    >>> counted(1, "silo"), counted(3, "silo")
    ('1 silo', '3 silos')
    """
    return f"{number} {noun}{'s' * (number != 1)}"


def printable(text: str, most: int = 2000) -> str:
    """A text that somebody else has written, so that nothing in it steers a terminal, and it is not endless.

    >>> printable("\\x1b[2Jall\\nagreed"), printable("endless", 3)
    ('?[2Jall?agreed', 'end...')
    """
    shown = "".join(char if char.isprintable() else "?" for char in text[: most + 1])
    return shown if len(shown) <= most else shown[:most] + "..."


def unknown(what: str, value: object, known: Iterable[str]) -> str:
    """The text for a name that does not exist, with the nearest that does.

    >>> unknown("algorithm", "mb-sdg", ["mb-sgd", "local-sgd"])
    "Unknown algorithm 'mb-sdg'; did you mean 'mb-sgd'? Known: local-sgd, mb-sgd."
    """
    names = sorted(known)
    near = nearest(value, names)
    hint = "" if near is None else f" did you mean {near!r}?"
    listed = f"Known: {', '.join(names)}." if names else "There are none."
    return f"Unknown {what} {value!r};{hint} {listed}"


def nearest(value: object, known: Iterable[str]) -> str | None:
    """The name that was probably meant, whatever its case; ``None`` where none is near.

    >>> nearest("SMOKR", ["age", "smoker"]), nearest("height", ["age", "smoker"])
    ('smoker', None)
    """
    names = {name.lower(): name for name in known}
    near = difflib.get_close_matches(str(value).lower(), names, n=1, cutoff=0.5)
    return names[near[0]] if near else None


def known_keys(model: Any, place: Iterable[str] = ()) -> list[str]:
    """The keys of a pydantic model, or of the section of it at a place; none where there is no such section."""
    for part in place:
        field = model.model_fields.get(part)
        kinds = () if field is None else (field.annotation, *get_args(field.annotation))
        model = next((kind for kind in kinds if hasattr(kind, "model_fields")), None)
        if model is None:
            return []
    return list(model.model_fields)


def explained(problems: Iterable[Mapping[str, Any]], model: Any) -> str:
    """What pydantic has found wrong with a file, line by line; an unknown key is named with the nearest that exists.

    Values are left out: they might be keys or passwords. Names of keys are `printable`: others may have written them.
    """
    lines = []
    for problem in problems:
        place = [printable(str(part), 200) for part in problem["loc"]]
        text = str(problem["msg"]).removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            text = unknown("key", place[-1], known_keys(model, [part for part in place[:-1] if not part.isdigit()]))
        elif problem["type"] == "missing":
            text = "missing; set it."
        lines.append(": ".join(part for part in (".".join(place), text) if part))
    return "\n  ".join(lines)
