"""``tacit schema``: what columns mean, and whether two files say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from tacit.cli import Json, group, print_json

schema_app = group(
    "schema",
    "Schemas: what the columns of all silos mean, and whether two of them agree."
    "\n\nExample: tacit schema diff ours.toml theirs.toml",
)

File = Annotated[Path, typer.Argument(help="A schema, as `tacit init` writes it.")]


@schema_app.command("diff")
def diff_command(first: File, second: File, as_json: Json = False) -> None:
    """Say how the second schema differs from the first; the exit code is 1 if it does.

    Silos whose schemas differ do not train together. Dropped columns and comments make no difference.

    Example: tacit schema diff ours.toml theirs.toml
    """
    from tacit.deploy.descriptions import differences

    ours, theirs = _described(first), _described(second)
    lines = differences(theirs, ours)
    if as_json:
        print_json({"same": not lines, "digests": [ours.digest, theirs.digest], "differences": lines})
    elif not lines:
        typer.echo(f"They mean the same; digest {ours.digest}.")
    for line in [] if as_json else lines:
        typer.echo(f"{second}: {line}")
    raise typer.Exit(1 if lines else 0)


@schema_app.command("show")
def show_command(schema: File, as_json: Json = False) -> None:
    """Show what a schema makes of each column, and its digest, which owners can compare by telephone.

    Example: tacit schema show clinics/schema.toml
    """
    found = _described(schema)
    if as_json:
        print_json({"digest": found.digest, **found.model_dump(mode="json", exclude_none=True)})
        return
    table = Table(*(Column(name, overflow="fold") for name in ("column", "kind", "range or levels", "unit")))
    for column in found.columns or ():
        table.add_row(escape(column.name), column.kind, escape(_values(column, column.levels)), column.unit or "")
    assert found.target is not None
    target = found.target
    table.add_row(escape(target.column), "target", escape(_values(target, target.classes)), target.unit or "")
    console = Console()
    console.print(table)
    console.print(f"Features: {found.features[0]}. Digest: {found.digest}", highlight=False)


def _values(part: Any, levels: tuple[str, ...] | None) -> str:
    return f"{part.low:g} to {part.high:g}" if levels is None else ", ".join(levels)


def _described(path: Path) -> Any:
    from tacit.data.schema import read_schema
    from tacit.deploy.wire import Description

    return Description.model_validate(read_schema(path).description())
