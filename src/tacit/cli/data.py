"""`tacit data`: what a data set looks like, divided into silos."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tacit.data import DataError, Federation, load, names, plot_partition, summary
from tacit.data.catalogue import OWN

Name = Annotated[
    str | None,
    typer.Argument(help="A data set, or a study's TOML file; leave it out to list data sets.", show_default=False),
]
Partition = Annotated[
    str | None,
    typer.Option(
        help="natural, label, digit-pairs, sorted-target, attribute, dirichlet, iid or one-class; by default "
        "the data set's own."
    ),
]
Silos = Annotated[int | None, typer.Option(help="How many silos; by default the data set's own number.")]
Level = Annotated[
    float | None,
    typer.Option(help="Heterogeneity: 0 to 1 for attribute and sorted-target, a concentration for dirichlet."),
]
Seed = Annotated[int, typer.Option(help="Of partition and split.")]
Plot = Annotated[Path | None, typer.Option(help="Draw the partition to this PNG file.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

_MOST_LABELS = 4


def data_command(
    name: Name = None,
    partition: Partition = None,
    silos: Silos = None,
    level: Level = None,
    seed: Seed = 0,
    plot: Plot = None,
    as_json: Json = False,
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
        typer.echo(json.dumps(summary(federation)))
        return
    _print(federation)
    if plot is not None:
        typer.echo(f"Picture: {plot}")


def _list(as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps([*names(), *OWN]))
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


def _print(federation: Federation) -> None:
    facts = summary(federation)
    console = Console()
    console.print(_silo_table(facts))
    steps = Table(title="Preprocessing")
    for heading in ("step", "reads", "what"):
        steps.add_column(heading, overflow="fold")
    for step in facts["steps"]:
        reads = "public" if step["public"] else "[bold red]private records[/]"
        steps.add_row(step["name"], reads, step["detail"])
    console.print(steps)
    shape = " x ".join(str(size) for size in facts["feature_shape"])
    bound = "unbounded" if facts["feature_norm"] is None else f"at most {facts['feature_norm']:.4g}"
    console.print(f"Features: {shape}, l2 norm {bound}. Task: {facts['task']}.")
    if facts["touches_private_data"]:
        console.print("[bold red]Not private:[/] a step reads private records and is not priced.")
    console.print(f"Cite: {facts['citation']}", highlight=False)


def _silo_table(facts: dict[str, Any]) -> Table:
    table = Table(title=f"{facts['name']}: {facts['partition']}")
    table.add_column("silo", overflow="fold")
    for heading in ("train", "validation", "test"):
        table.add_column(heading, justify="right")
    table.add_column("target (train)" if facts["task"] == "regression" else "labels (train)", overflow="fold")
    grouped = "groups" in facts["silos"][0]
    if grouped:
        table.add_column("sensitive groups (train)", overflow="fold")
    for silo in facts["silos"]:
        row = [silo["name"], *(str(silo[part]) for part in ("train", "validation", "test"))]
        if "target" in silo:
            row.append("{least:.3g} to {greatest:.3g}, mean {mean:.3g}".format(**silo["target"]))
        else:
            row.append(_shares(silo["labels"]))
        if grouped:
            row.append(_shares(silo["groups"]))
        table.add_row(*row)
    return table


def _shares(counts: dict[str, int]) -> str:
    total = max(sum(counts.values()), 1)
    present = sorted((item for item in counts.items() if item[1]), key=lambda item: -item[1])
    words = [f"{name} {count / total:.0%}" for name, count in present[:_MOST_LABELS]]
    return ", ".join(words) + (", ..." if len(present) > _MOST_LABELS else "")
