"""Two descriptions of records, and what differs between them, in words for the people who must agree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tacit.deploy.wire import ColumnDescription, Description
from tacit.errors import counted, printable

_MOST_LISTED = 8
_LONGEST_NAME = 60
WITHOUT = (
    "has no schema: only the shape of its records, the task and the number of classes are known, not what they mean"
)
"""What is said of a silo whose records have no schema."""


def differences(found: Description, expected: Description) -> list[str]:
    """How ``found`` differs from what is expected, a line for each; none exactly where their digests are equal.

    >>> one, other = (Description(features=(n,), task="binary", classes=2) for n in (25, 13))
    >>> differences(one, other)
    ['records have the shape (25), expected (13)']
    """
    lines = list(_target(found, expected))
    lines += _unlike("features are of the backbone", found.backbone, expected.backbone)
    if found.columns is None or expected.columns is None:
        if found.columns != expected.columns:
            lines.append(WITHOUT if found.columns is None else "has a schema, expected records without one")
        lines += _sequence("records have the shape", found.features, expected.features)
        return lines
    lines += _columns(found.columns, expected.columns)
    lines += _unlike("features have the norm bound", found.norm, expected.norm)
    lines += _unlike("cells are encoded by version", found.encoding, expected.encoding)
    return lines


def sentence(lines: Sequence[str], most: int = _MOST_LISTED) -> str:
    """Differences as one sentence; of very many, the first."""
    more = [f"and {counted(len(lines) - most, 'more difference')}"] if len(lines) > most else []
    return "; ".join([*lines[:most], *more])


def _target(found: Description, expected: Description) -> Iterator[str]:
    yield from _unlike("the task is", found.task, expected.task)
    own, other = found.target, expected.target
    if own is None or other is None:
        yield from _unlike("the number of classes is", found.classes, expected.classes)
        return
    yield from _unlike("the target is", own.column, other.column)
    if found.task == expected.task:
        yield from _sequence("classes are", own.classes or (), other.classes or ())
        yield from _scale(f"the target {_shown(own.column)}", own, other)
        yield from _unlike("the event is told by", own.event, other.event, absent="no column")
        yield from _sequence("levels of the event are", own.event_levels or (), other.event_levels or ())


def _scale(subject: str, own: Any, other: Any) -> Iterator[str]:
    """What differs in the range and the unit of a number."""
    if (own.low, own.high) != (other.low, other.high):
        low, high, least, most = map(_shown, (own.low, own.high, other.low, other.high))
        yield f"{subject} lies in [{low}, {high}], expected [{least}, {most}]"
    yield from _unlike(f"{subject} is in", own.unit, other.unit, absent="no unit")


def _columns(found: Sequence[ColumnDescription], expected: Sequence[ColumnDescription]) -> Iterator[str]:
    own, other = ({column.name: column for column in columns} for columns in (found, expected))
    for name in own:
        if name in other:
            yield from _column(own[name], other[name])
    more, fewer = [name for name in own if name not in other], [name for name in other if name not in own]
    for names, word in ((more, "more"), (fewer, "less")):
        if names:
            number = "one column" if len(names) == 1 else f"{len(names)} columns"
            yield f"{number} {word}: {_listed(names)[1:-1]}"
    yield from _sequence(
        "columns are in the order", [name for name in own if name in other], [name for name in other if name in own]
    )


def _column(own: ColumnDescription, other: ColumnDescription) -> Iterator[str]:
    subject = f"column {_shown(own.name)}"
    if own.kind != other.kind:
        yield f"{subject} is a {own.kind}, expected a {other.kind}"
        return
    yield from _scale(subject, own, other)
    yield from _sequence(f"levels of {_shown(own.name)} are", own.levels or (), other.levels or ())
    if own.log != other.log:
        scales = [("logarithmic" if column.log else "plain") for column in (own, other)]
        yield f"{subject} is on a {scales[0]} scale, expected a {scales[1]} one"
    if own.missing != other.missing:
        marked = [("marked" if column.missing else "not marked") for column in (own, other)]
        yield f"missing cells of {_shown(own.name)} are {marked[0]} by a feature, expected {marked[1]}"


def _unlike(subject: str, own: Any, other: Any, absent: str = "none") -> Iterator[str]:
    if own != other:
        yield f"{subject} {_shown(own, absent)}, expected {_shown(other, absent)}"


def _sequence(subject: str, own: Sequence[Any], other: Sequence[Any]) -> Iterator[str]:
    """What differs between two lists; long ones are shown from the first place at which they do."""
    if list(own) == list(other):
        return
    first = next((place for place, pair in enumerate(zip(own, other, strict=False)) if pair[0] != pair[1]), None)
    start = min(len(own), len(other)) - 1 if first is None else first
    start = start if max(len(own), len(other)) > _MOST_LISTED else 0
    yield f"{subject} {_listed(own, start)}, expected {_listed(other, start)}"


def _listed(values: Sequence[Any], start: int = 0) -> str:
    """Values in parentheses from a place on; of very many the first, with their number."""
    start = max(start, 0)
    shown = [_shown(value) for value in values[start : start + _MOST_LISTED]]
    left_out = len(values) - len(shown)
    return f"({', '.join(['...'] * bool(start) + shown)}{f', ...: {len(values)} in all' * bool(left_out)})"


def _shown(value: Any, absent: str = "none") -> str:
    """A value, or a name that somebody else has chosen, as it can be shown."""
    if value is None or isinstance(value, float):
        return absent if value is None else repr(value).removesuffix(".0")
    return printable(str(value), _LONGEST_NAME)
