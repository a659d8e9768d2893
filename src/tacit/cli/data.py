"""`tacit data`: what a data set looks like, divided into silos."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from tacit.cli import JsonObject, print_json, print_table
from tacit.data import DataError, Federation, load, names, plot_partition, summary
from tacit.data.catalogue import OWN
from tacit.data.partition import PARTITIONS

_KINDS = tuple(PARTITIONS)
_MOST_LABELS = 4


def data_command(
    name: Annotated[
        str | None,
        typer.Argument(help="A data set, or a study's TOML file; leave it out to list data sets.", show_default=False),
    ] = None,
    partition: Annotated[
        str | None, typer.Option(help=f"{', '.join(_KINDS[:-1])} or {_KINDS[-1]}; by default the data set's own.")
    ] = None,
    silos: Annotated[int | None, typer.Option(help="How many silos; by default the data set's own number.")] = None,
    level: Annotated[
        float | None,
        typer.Option(help="Heterogeneity: 0 to 1 for attribute and sorted-target, a concentration for dirichlet."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of partition and split.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Draw the partition to this PNG file.")] = None,
    as_json: JsonObject = False,
) -> None:
    """Show a data set: its silos, what each step of preprocessing touches, and whom to cite.

    Example: tacit data heart-disease --plot partition.png
    """
    if name is None:
        _list(as_json)
        return
    federation = _federation(name, partition, silos, level, seed)
    if plot is not None:
        plot_partition(federation, plot)
    if as_json:
        print_json(summary(federation))
        return
    _print(summary(federation))
    if plot is not None:
        typer.echo(f"Picture: {plot}")


def _list(as_json: bool) -> None:
    if as_json:
        print_json([*names(), *OWN])
        return
    typer.echo("\n".join(names()))
    typer.echo("csv: your own files; make a study with tacit init FOLDER, then: tacit data FOLDER/study.toml")
    typer.echo("synthetic: made up to order, as tacit choose --out writes it into a study")


def _federation(name: str, partition: str | None, silos: int | None, level: float | None, seed: int) -> Federation:
    """A data set by its name, or the records of a study with what flags change."""
    if not name.endswith(".toml"):
        if name in OWN:
            raise DataError(
                f"Expected a study of {name!r} records, which have no name of their own: tacit data PATH/study.toml"
            )
        return load(name, partition=partition, silos=silos, level=level, seed=seed)
    from tacit.plans.spec import load_study
    from tacit.studies.federation import federation_of

    changes = {"kind": partition, "silos": silos, "level": level}
    overrides = [f"partition.{key}={json.dumps(value)}" for key, value in changes.items() if value is not None]
    return federation_of(load_study(name, overrides), seed)


def _print(facts: dict[str, Any]) -> None:
    console = Console()
    print_table(_silo_table(facts), console)
    steps = Table(*(Column(name, overflow="fold") for name in ("step", "reads", "what")), title="Preprocessing")
    for step in facts["steps"]:
        reads = "public" if step["public"] else "[bold red]private records[/]"
        steps.add_row(step["name"], reads, step["detail"])
    print_table(steps, console)
    shape = " x ".join(str(size) for size in facts["feature_shape"])
    bound = "unbounded" if facts["feature_norm"] is None else f"at most {facts['feature_norm']:.4g}"
    console.print(f"Features: {shape}, l2 norm {bound}. Task: {facts['task']}.")
    if facts["touches_private_data"]:
        console.print("[bold red]Not private:[/] a step reads private records and is not priced.")
    console.print(f"Cite: {facts['citation']}", highlight=False)


def _silo_table(facts: dict[str, Any]) -> Table:
    parts = ("train", "validation", "test")
    table = Table(Column("silo", overflow="fold"), *(Column(part, justify="right") for part in parts))
    table.title = f"{facts['name']}: {facts['partition']}"
    table.add_column("target (train)" if facts["task"] == "regression" else "labels (train)", overflow="fold")
    if "groups" in facts["silos"][0]:
        table.add_column("sensitive groups (train)", overflow="fold")
    for silo in facts["silos"]:
        row = [silo["name"], *(str(silo[part]) for part in parts)]
        if "target" in silo:
            row.append("{least:.3g} to {greatest:.3g}, mean {mean:.3g}".format(**silo["target"]))
        row += [_shares(silo[key]) for key in ("labels", "groups") if key in silo]
        table.add_row(*row)
    return table


def _shares(counts: dict[str, int]) -> str:
    total = max(sum(counts.values()), 1)
    present = sorted((item for item in counts.items() if item[1]), key=lambda item: -item[1])
    words = [f"{name} {count / total:.0%}" for name, count in present[:_MOST_LABELS]]
    return ", ".join(words) + (", ..." if len(present) > _MOST_LABELS else "")
