"""Errors that people meet: each names the value, the rule and the way out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TacitError(ValueError):
    """Something that a user can put right; the command line shows its message without a traceback."""


def unknown(what: str, value: object, known: Iterable[str]) -> str:
    """The text for a name that does not exist, with the nearest that does.

    >>> unknown("algorithm", "mb-sdg", ["mb-sgd", "local-sgd"])
    "Unknown algorithm 'mb-sdg'; did you mean 'mb-sgd'? Known: local-sgd, mb-sgd."
    """
    names = sorted(known)
    near = difflib.get_close_matches(str(value), names, n=1, cutoff=0.5)
    hint = f" did you mean {near[0]!r}?" if near else ""
    return f"Unknown {what} {value!r};{hint} Known: {', '.join(names)}."
