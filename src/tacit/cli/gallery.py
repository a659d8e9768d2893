"""``tacit reproduce``: the papers' experiments lie beside the package's source in a checkout, not in the package."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import tacit
from tacit.cli import Json, print_json, print_listing
from tacit.errors import TacitError


def reproduce_command(
    name: Annotated[str | None, typer.Argument(help="A result, as --list names it.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them, one after another.")] = False,
    listing: Annotated[bool, typer.Option("--list", help="What there is, with minutes and data needed.")] = False,
    gallery: Annotated[bool, typer.Option("--gallery", help="Write the index of the results folder again.")] = False,
    results: Annotated[Path, typer.Option(help="The folder of results.")] = Path("results"),
    as_json: Json = False,
) -> None:
    """Make a figure or table of the papers again, from scratch; in a checkout of Tacit.

    Example: tacit reproduce insurance-linear --results my-results
    """
    if sum((name is not None, everything, listing, gallery)) != 1:
        raise TacitError("Expected one of: the name of a result, --all, --list, --gallery.")
    module = experiments_gallery()
    if listing:
        _list(module.EXHIBITS.values(), as_json)
    elif gallery:
        if not results.is_dir():
            raise TacitError(f"No folder {results}; name the folder of results with --results.")
        for name, text in (("README.md", module.index(results)), ("does-it-work.md", module.short(results))):
            (results / name).write_text(text, encoding="utf-8")
            typer.echo(str(results / name))
    else:
        _make(module, list(module.EXHIBITS.values()) if name is None else [module.find_exhibit(name)], results)


def experiments_gallery() -> Any:
    """The module ``experiments.gallery`` of the checkout that this package's source lies in."""
    root = Path(tacit.__file__).resolve().parents[2]
    if not (root / "experiments" / "gallery.py").is_file():
        raise TacitError(
            f"`tacit reproduce` needs a checkout of Tacit: the papers' experiments are not in the installed package at "
            f"{Path(tacit.__file__).parent}. Clone the repository and run `make demo` there, then its .venv/bin/tacit."
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    return importlib.import_module("experiments.gallery")


def _make(module: Any, chosen: list[Any], results: Path) -> None:
    failed = []
    for exhibit in chosen:
        typer.echo(f"{exhibit.name}: about {exhibit.minutes} min; data: {exhibit.data}", err=True)
        if module.reproduce(exhibit, results):
            failed.append(exhibit.name)
    if failed:
        raise TacitError(f"Not made: {', '.join(failed)}; what went wrong stands above.")


def _list(exhibits: Any, as_json: bool) -> None:
    if as_json:
        names = {"name": "name", "paper": "source", "claim": "claim", "minutes": "minutes", "data": "data"}
        print_json([{key: getattr(e, name) for key, name in names.items()} for e in exhibits])
        return
    shown = [
        {"name": e.name, "paper, its claim": f"{e.source}\n{e.claim}", "minutes": str(e.minutes), "data": e.data}
        for e in exhibits
    ]
    print_listing("tacit reproduce NAME", shown, whole=("name", "minutes", "data"))
