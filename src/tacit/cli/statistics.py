"""`tacit statistics`: ask silos about their records, with noise, in simulation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from tacit.cli import Json, print_json, print_table
from tacit.errors import TacitError

_Several = list[str] | None


def _option(name: str, form: str, text: str) -> Any:
    return typer.Option(f"--{name}", metavar=form, help=f"{text}; may be repeated.", show_default=False)


def statistics_command(
    source: Annotated[str, typer.Argument(help="A study, its TOML file, or a folder of CSV files with schema.toml.")],
    counts: Annotated[_Several, _option("counts", "COLUMN", "Count the levels of a category")] = None,
    histogram: Annotated[
        _Several, _option("histogram", "COLUMN[=EDGES]", "Count a number between public edges such as 20,40,60")
    ] = None,
    table: Annotated[_Several, _option("table", "A,B[,...]", "Count two or more columns together")] = None,
    mean: Annotated[_Several, _option("mean", "COLUMN", "Mean, variance and standard deviation of a number")] = None,
    quantiles: Annotated[
        _Several, _option("quantiles", "COLUMN[=EDGES]", "Quartiles of a number, between edges")
    ] = None,
    correlation: Annotated[_Several, _option("correlation", "A,B[,...]", "Correlation of each two numbers")] = None,
    survival: Annotated[
        _Several, _option("survival", "TIME,EVENT[=EDGES]", "Kaplan-Meier curves, and a log-rank test with --by")
    ] = None,
    by: Annotated[str | None, typer.Option(metavar="COLUMN", help="A category: each statistic by its levels.")] = None,
    bins: Annotated[int | None, typer.Option(help="Equal parts of a declared range, where no edges are given.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Of all of them together; by default the study's.")] = None,
    delta: Annotated[float | None, typer.Option(help="By default the study's.")] = None,
    channel: Annotated[
        str | None, typer.Option(help="direct, pairwise, shuffled-sum or trusted; else the study's.")
    ] = None,
    within: Annotated[
        float | None, typer.Option(help="Refuse to ask unless noise moves a share by at most this, at 95%.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the simulated noise, and of the partition.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Draw all of it to this PNG file.")] = None,
    as_json: Json = False,
) -> None:
    """Ask for statistics of all silos' records, in one private release, and show them with 95% intervals.

    Intervals include the noise and the sampling of records. Several statistics share one epsilon by need.

    Example: tacit statistics heart-disease --counts sex --mean age --histogram chol=100,200,300,400 --by num
    """
    given = {"counts": counts, "histogram": histogram, "table": table, "moments": mean, "quantiles": quantiles}
    given |= {"correlation": correlation, "survival": survival}
    asked = [request for kind, texts in given.items() for text in texts or () for request in _requests(kind, text)]
    for request in asked:
        request |= ({"by": by} if by and by not in request["columns"] else {}) | ({"bins": bins} if bins else {})

    from tacit.studies.statistics import asking, prepare, priced_silos, run, statistics_json

    study = asking(_study(source), asked, epsilon=epsilon, delta=delta, channel=channel)
    prepared = prepare(study, seed)
    if within is not None:
        _check_within(prepared, within)
    found = run(prepared, seed)
    if plot is not None:
        from tacit.counting.shown import draw

        draw(prepared.tables, found.rows[""], plot, study.name)
    facts = statistics_json(study, priced_silos(prepared), found)
    if as_json:
        print_json(facts)
        return
    print_statistics(facts)
    if plot is not None:
        typer.echo(f"Picture: {plot}")


def _requests(kind: str, text: str) -> list[dict[str, Any]]:
    """What one option asks for; several numbers to correlate are pairs."""
    names, _, edges = text.partition("=")
    columns = [name.strip() for name in names.split(",") if name.strip()]
    request: dict[str, Any] = {"kind": kind, "columns": columns}
    if edges:
        try:
            request["edges"] = {columns[0]: [float(edge) for edge in edges.split(",")]}
        except ValueError:
            request["edges"] = edges
    if kind == "correlation":
        return [{"kind": kind, "columns": list(pair)} for pair in combinations(columns, 2)] or [request]
    return [request]


def _study(source: str) -> Any:
    """A study, or that of a folder of CSV files, with or without a study.toml of its own."""
    from tacit.plans.spec import load_study, study_from

    folder = Path(source)
    if not folder.is_dir():
        return load_study(source)
    if not (folder / "schema.toml").is_file():
        raise TacitError(f"No schema.toml in {folder}; make one with: tacit init {folder} --target COLUMN")
    if (folder / "study.toml").is_file():
        return load_study(folder / "study.toml")
    data = {"name": "csv", "options": {"folder": str(folder)}}
    return study_from({"name": folder.resolve().name, "data": data, "algorithm": {"name": "statistics"}})


def _check_within(asked: Any, within: float) -> None:
    """Raise where noise moves a share by more than is wanted, with what would fit."""
    from tacit.studies.statistics import noise_half_width

    half = noise_half_width(asked)
    if half <= within:
        return
    epsilon = asked.study.privacy.epsilon
    fits = f"epsilon {epsilon * half / within:.2g} or so"
    fewer = int(len(asked.tables) * (within / half) ** 2)
    if fewer:
        fits += f", or {fewer} of these statistics"
    raise TacitError(
        f"Expected noise to move a share by at most {within:g}, got {half:.3g} with epsilon={epsilon:g}. This would "
        f"fit: {fits}, or --within {half * 1.01:.2g}. Nothing was asked."
    )


def print_statistics(facts: dict[str, Any]) -> None:
    """Tables of all statistics, and what they cost."""
    console = Console()
    for one in facts["statistics"]:
        print_table(_table(one["title"], one["rows"], one["unit"], bool(one["by"])), console)
        for test in one["tests"]:
            console.print(
                f"{test['test']}: chi^2 = {test['statistic']:.3g} with {test['freedom']} degrees of freedom, "
                f"p = {test['p_value']:.3g}, noise included"
            )
    silos = facts["silos"]
    total = sum(silo["records"] for silo in silos)
    price = "not private" if facts["epsilon"] is None else f"epsilon {facts['epsilon']:.4g} at delta {facts['delta']:g}"
    console.print(f"{total} records of {len(silos)} silos, {facts['channel']}: {price}, all of it together.")
    console.print(f"Guarantee: {facts['guarantee']}.", highlight=False)


def _table(title: str, rows: Sequence[dict[str, Any]], unit: str | None, grouped: bool) -> Table:
    heads = ["group"] * grouped + ["cell", "measure", "value", "from", "to"]
    table = Table(*(Column(head, justify="right" if head in ("value", "from", "to") else "left") for head in heads))
    table.title = Text(title if unit is None else f"{title} ({unit})")
    for _, alike in groupby(enumerate(rows), key=_folded):
        shown = [row for _, row in alike]
        numbers = ["too few" if shown[0][key] is None else f"{shown[0][key]:.4g}" for key in ("value", "low", "high")]
        cell = shown[0]["cell"] if len(shown) == 1 else f"{shown[0]['cell']} … {shown[-1]['cell']}"
        # Levels and columns are named by others.
        table.add_row(*map(Text, (*([shown[0]["group"]] * grouped), cell, shown[0]["measure"], *numbers)))
    return table


def _folded(numbered: tuple[int, dict[str, Any]]) -> Any:
    """Neighbours of one group that nothing is known of are one line; any other row is a line of its own."""
    place, row = numbered
    return place if row["value"] is not None else (row["group"], row["measure"], row["low"], row["high"])
