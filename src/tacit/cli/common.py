"""What commands share: options, files that options name, and how plain data is shown."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from tacit.errors import TacitError

Study = Annotated[str, typer.Argument(help="Name of a study that ships with Tacit, or a path to a TOML file.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Override a field; may be repeated. VALUE none leaves an optional field out; "
        "run.grid.SECTION.KEY=[1,4] tries several values (epsilon and numbers of the algorithm).",
    ),
]
Out = Annotated[Path, typer.Option(help="Folder in which the run folder is made.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
JsonObject = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

AUTHORITY = "give --authority the consortium's ca.pem, see Certificates in docs/deployment.md"
UNPRICED = "[bold red]Not private:[/] preprocessing read private records and was not priced."

_ROOMY = 120
"""From this many columns on there is room for everything as it comes."""


def group(name: str, text: str) -> typer.Typer:
    """A group of commands."""
    return typer.Typer(name=name, help=text, no_args_is_help=True, rich_markup_mode=None)


def need_file(path: Path, cure: str) -> None:
    """Raise unless there is a file that this user can read; ``cure`` says what to give instead."""
    try:
        with path.open("rb"):
            return
    except (FileNotFoundError, NotADirectoryError):
        wrong = f"No file at {path};"
    except IsADirectoryError:
        wrong = f"Expected a file, got the folder {path};"
    except PermissionError:
        wrong = f"This user may not read {path}; allow it (chmod, chown), or"
    raise TacitError(f"{wrong} {cure}.")


def template(name: str, folder: Path) -> str:
    """A file to start from, for a party that is called like its folder."""
    text = (resources.files("tacit.cli") / "templates" / name).read_text(encoding="utf-8")
    return text.replace("{name}", folder.resolve().name)


def print_json(value: Any) -> None:
    """Plain data as one line of strict JSON: what is not finite becomes null."""
    typer.echo(json.dumps(_finite(value)))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


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


def print_warnings(warnings: list[str], console: Console) -> None:
    """What makes a budget promise little."""
    for line in warnings:
        console.print(f"[bold red]Warning:[/] {line}", highlight=False)


def point_cells(point: dict[str, Any]) -> list[str]:
    """The values of one point of a grid, for a table."""
    return [f"{v:g}" if isinstance(v, int | float) else str(v) for v in point.values()]


def numeral(value: float | None, digits: int = 3) -> str:
    """A number in a table; none where there is none."""
    return "none" if value is None else f"{value:.{digits}f}"
