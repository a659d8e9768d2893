"""``tacit reproduce``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.study import Json
from tacit.cli.tables import print_listing
from tacit.errors import TacitError


def reproduce_command(
    name: Annotated[str | None, typer.Argument(help="A result, as --list names it.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them, one after another.")] = False,
    listing: Annotated[bool, typer.Option("--list", help="What there is, with minutes and data needed.")] = False,
    gallery: Annotated[bool, typer.Option("--gallery", help="Write the index of the results folder again.")] = False,
    results: Annotated[Path, typer.Option(help="The folder of results.")] = Path("results"),
    as_json: Json = False,
) -> None:
    """Make a figure or table of the papers again, from scratch.

    Example: tacit reproduce insurance-linear --results my-results
    """
    from tacit.studies.gallery import EXHIBITS, find_exhibit, index, reproduce

    if sum((name is not None, everything, listing, gallery)) != 1:
        raise TacitError("Expected one of: the name of a result, --all, --list, --gallery.")
    if listing:
        _list(as_json)
    elif gallery:
        if not results.is_dir():
            raise TacitError(f"No folder {results}; name the folder of results with --results.")
        (results / "README.md").write_text(index(results), encoding="utf-8")
        typer.echo(str(results / "README.md"))
    else:
        chosen = list(EXHIBITS.values()) if name is None else [find_exhibit(name)]
        failed = []
        for exhibit in chosen:
            typer.echo(f"{exhibit.name}: about {exhibit.minutes} min; data: {exhibit.data}", err=True)
            if reproduce(exhibit, results):
                failed.append(exhibit.name)
        if failed:
            raise TacitError(f"Not made: {', '.join(failed)}; what went wrong stands above.")


def _list(as_json: bool) -> None:
    from tacit.studies.gallery import EXHIBITS

    rows = [
        {"name": e.name, "paper": e.source, "claim": e.claim, "minutes": e.minutes, "data": e.data}
        for e in EXHIBITS.values()
    ]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    shown = [
        {
            "name": e.name,
            "paper, its claim": f"{e.source}\n{e.claim}",
            "minutes": str(e.minutes),
            "data": e.data,
        }
        for e in EXHIBITS.values()
    ]
    print_listing("tacit reproduce NAME", shown, whole=("name", "minutes", "data"))
