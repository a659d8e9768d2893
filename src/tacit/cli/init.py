"""``tacit init``: a study from a folder of one CSV file per silo, and everything that was assumed on the way."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Annotated, Any

import tomli_w
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tacit.cli import choose
from tacit.data.discover import Declared, Draft, Folder, Found, draft, look, undeclared
from tacit.data.federation import DataError
from tacit.data.schema import schema_text
from tacit.errors import TacitError

_STATISTICS = ("moments", "quantiles", "histogram")


def init_command(
    folder: Annotated[Path, typer.Argument(help="A folder with one CSV file per silo, all with the same columns.")],
    target: Annotated[str | None, typer.Option(help="The column to predict; asked for if it is missing.")] = None,
    ranges: Annotated[
        list[str] | None,
        typer.Option("--range", metavar="COLUMN=LOW:HIGH", help="A public range; may be repeated."),
    ] = None,
    levels: Annotated[
        list[str] | None,
        typer.Option("--levels", metavar="COLUMN=A,B,C", help="Public levels or classes; may be repeated."),
    ] = None,
    bounds: Annotated[
        Path | None, typer.Option(help="TOML file of public knowledge: a table per column, low and high, or levels.")
    ] = None,
    drop: Annotated[list[str] | None, typer.Option(help="A column to leave out; may be repeated.")] = None,
    private: Annotated[
        str | None,
        typer.Option(
            help="Standardise numbers by private statistics inside the budget: moments, quantiles, histogram."
        ),
    ] = None,
    read_records: Annotated[
        bool,
        typer.Option("--read-records", help="Take what is not declared from the records: NOT private, and marked so."),
    ] = False,
    epsilon: Annotated[float, typer.Option(help="Budget of each silo.")] = 1.0,
    delta: Annotated[float, typer.Option(help="Probability with which the guarantee may fail.")] = 1e-6,
    out: Annotated[Path | None, typer.Option(help="The study to write; by default study.toml in the folder.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over files that exist.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Make a study from a folder of one CSV file per silo; asks for what is missing if a person is there to answer.

    Example: tacit init clinics --target ill --levels ill=no,yes --range age=0:110 --levels sex=f,m
    """
    if private is not None and private not in _STATISTICS:
        raise TacitError(f"Expected --private to be one of {', '.join(_STATISTICS)}, got {private!r}.")
    study_path, schema_path = out or folder / "study.toml", folder / "schema.toml"
    for path in (study_path, schema_path):
        if path.exists() and not force:
            raise TacitError(f"{path} exists; use --force to write over it, or --out for another study.")
    declared = _declared(ranges or [], levels or [], drop or [], bounds)
    found = look(folder, declared.drop)
    asking = choose.somebody_answers() and not as_json
    if target is None:
        target = _ask_target(found, asking)
    if asking and not read_records:
        declared = _ask(found, target, declared, private)
    drafted = draft(found, target, declared, read_records=read_records, private=private is not None)
    study = _study(folder, study_path, drafted, epsilon, delta, private)
    schema_path.write_text(schema_text(drafted.schema), encoding="utf-8")
    study_path.parent.mkdir(parents=True, exist_ok=True)
    study_path.write_text(tomli_w.dumps(study), encoding="utf-8")
    _say(found, drafted, study_path, schema_path, as_json)


def _declared(ranges: list[str], levels: list[str], drop: list[str], bounds: Path | None) -> Declared:
    """What the owner declares, from flags and from a file; flags win."""
    known_ranges, known_levels = _read_bounds(bounds) if bounds is not None else ({}, {})
    for text in ranges:
        name, value = _pair(text, "--range", "age=0:110")
        known_ranges[name] = _range(value, f"--range {text}")
    for text in levels:
        name, value = _pair(text, "--levels", "sex=f,m")
        known_levels[name] = tuple(part.strip() for part in value.split(","))
    return Declared(known_ranges, known_levels, drop)


def _pair(text: str, flag: str, example: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise TacitError(f"Expected {flag} COLUMN=..., such as {flag} {example}, got {text!r}.")
    return name.strip(), value


def _range(text: str, where: str) -> tuple[float, float]:
    low, colon, high = text.partition(":")
    try:
        pair = (float(low), float(high)) if colon else None
    except ValueError:
        pair = None
    if pair is None or not pair[0] < pair[1]:
        raise TacitError(f"Expected LOW:HIGH with LOW < HIGH, such as 0:110, got {text!r} ({where}).")
    return pair


def _read_bounds(path: Path) -> tuple[dict[str, tuple[float, float]], dict[str, tuple[str, ...]]]:
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TacitError(f"--bounds: {path} cannot be read as TOML: {error}.") from None
    ranges, levels = {}, {}
    for name, part in tree.items():
        keys = set(part) if isinstance(part, dict) else set()
        if keys == {"low", "high"}:
            ranges[name] = _range(f"{part['low']}:{part['high']}", f"{path}, [{name}]")
        elif keys == {"levels"} and isinstance(part["levels"], list):
            levels[name] = tuple(str(level) for level in part["levels"])
        else:
            raise TacitError(f"--bounds: expected [{name}] in {path} to have low and high, or levels; got {part}.")
    return ranges, levels


def _ask_target(found: Folder, asking: bool) -> str:
    if not asking:
        raise TacitError(f"Expected --target COLUMN, the column to predict; there are {', '.join(found.columns)}.")
    return str(typer.prompt(f"Which column is to be predicted? ({', '.join(found.columns)})"))


def _ask(found: Folder, target: str, declared: Declared, private: str | None) -> Declared:
    """Ask for every range and level that is still open; an answer is a declaration that it is public."""
    typer.echo("What you answer here counts as public knowledge: from a form, a manual, a law; not from the records.")
    ranges, levels = dict(declared.ranges), dict(declared.levels)
    for column in undeclared(found, target, declared):
        if private is not None and column.kind == "number" and column.name != target:
            continue
        if column.levels and (column.kind == "category" or column.name == target or len(column.levels) == 2):
            shown = ",".join(column.levels)
            levels[column.name] = tuple(typer.prompt(f"{column.name}: its levels, known to all", shown).split(","))
        else:
            ranges[column.name] = _ask_range(column)
    return Declared(ranges, levels, declared.drop)


def _ask_range(column: Found) -> tuple[float, float]:
    while True:
        seen = f"{column.low:g}:{column.high:g}"
        answer = typer.prompt(f"{column.name}: its range, known to all, as LOW:HIGH (your records lie in {seen})")
        try:
            return _range(answer, column.name)
        except TacitError as error:
            typer.echo(str(error))


def _study(
    folder: Path, study_path: Path, drafted: Draft, epsilon: float, delta: float, private: str | None
) -> dict[str, Any]:
    """The study as a tree: a linear model by noisy minibatch SGD, which `tacit choose` can improve on."""
    task = drafted.schema.target.task
    place = os.path.relpath(folder.resolve(), study_path.resolve().parent)
    tree: dict[str, Any] = {
        "format": 1,
        "name": folder.resolve().name,
        "title": f"{drafted.schema.target.column} from {len(drafted.schema.used)} columns",
        "data": {"name": "csv", "options": {"folder": place}},
        "objective": {
            "model": "linear",
            "loss": {"binary": "logistic", "multiclass": "softmax", "regression": "squared"}[task],
            "regulariser": "l2-ball:10",
        },
        "algorithm": {
            "name": "mb-sgd",
            "channel": "direct",
            "num_rounds": 30,
            "sampling": "full",
            "step_size": 1.0 if task == "regression" else 4.0,
            "clip_norm": 0.5,
            "output": "average",
        },
        "privacy": {"epsilon": epsilon, "delta": delta},
        "run": {"seeds": 3, "weights": "records"},
    }
    if private is not None:
        numbers = list(drafted.schema.numbers)
        if not numbers:
            raise DataError("Expected at least one column of numbers for --private; leave it out.")
        tree["preprocessing"] = {"standardise": private, "columns": numbers, "share": 0.2, "norm": 1.0}
    return tree


def _say(found: Folder, drafted: Draft, study: Path, schema: Path, as_json: bool) -> None:
    if as_json:
        facts = {
            "study": str(study),
            "schema": str(schema),
            "silos": dict(found.sizes),
            "columns": {name: column.kind for name, column in drafted.schema.columns.items()},
            "task": drafted.schema.target.task,
            "assumed": list(drafted.assumed),
            "not_private": list(drafted.loud),
        }
        typer.echo(json.dumps(facts))
        return
    console = Console()
    table = Table("column", "seems", "is read as", "missing", title=f"{len(found.sizes)} silos in {found.path}")
    for name, column in found.columns.items():
        read = drafted.schema.columns.get(name)
        words = "the target" if read is None else read.kind
        table.add_row(escape(name), column.kind, words, str(sum(column.missing.values())))
    console.print(table)
    for line in drafted.assumed:
        console.print(f"assumed  {escape(line)}", highlight=False)
    for line in drafted.loud:
        console.print(f"[bold red]NOT PRIVATE[/]  {escape(line)}", highlight=False)
    console.print(f"Wrote {study} and {schema}. Next: tacit plan {study}; tacit run {study}", highlight=False)
    console.print(
        f"Another algorithm: tacit choose --study {study}. Each silo: tacit silo init HOME --records FILE.csv "
        f"--columns {schema}",
        highlight=False,
    )
