"""Tables of names and what they stand for, which stay readable in 80 columns."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

_ROOMY = 120
"""From this many columns on there is room for everything as it comes."""


def print_listing(title: str, rows: Sequence[Mapping[str, str]], *, whole: Collection[str]) -> None:
    """Rows as a table; words of the ``whole`` columns (names, numbers of papers) are neither cut nor broken."""
    console = Console()

    def column(key: str) -> Column:
        words = [word for row in rows for word in row[key].split()]
        is_tight = key in whole and console.width < _ROOMY
        return Column(key, width=max(map(len, [key, *words])) if is_tight else None, overflow="fold")

    table = Table(*map(column, rows[0]), title=title)
    for row in rows:
        table.add_row(*(escape(value) for value in row.values()))
    console.print(table)
