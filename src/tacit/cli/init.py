"""``tacit init``: a study from a folder of one CSV file per silo, and everything that was assumed on the way."""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tomli_w
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from tacit.cli import JsonObject, choose, print_json, print_table, template
from tacit.cli.example import next_steps, written_example
from tacit.cli.rehearse import print_rehearsed
from tacit.data import discover
from tacit.data.discover import Declared, Draft, Folder, look
from tacit.data.federation import DataError
from tacit.data.schema import schema_text
from tacit.errors import TacitError, counted
from tacit.objectives.losses import SURVIVAL
from tacit.privacy.plan import MOST_DELTA

T = TypeVar("T")

_STATISTICS = ("moments", "quantiles", "histogram")


def init_command(
    folder: Annotated[
        Path | None,
        typer.Argument(help="A folder with one CSV file per silo, all with the same columns, or a data dictionary."),
    ] = None,
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
    event: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Where the target is a time: whether it ended with the event. Survival."),
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
    norm: Annotated[
        float,
        typer.Option(min=0.001, help="Rows are shrunk to this norm, each by itself; a larger one keeps more of size."),
    ] = 1.0,
    epsilon: Annotated[float, typer.Option(help="Budget of each silo.")] = 1.0,
    delta: Annotated[float, typer.Option(help="Probability with which the guarantee may fail.")] = 1e-6,
    rehearsed: Annotated[
        bool, typer.Option("--rehearse", help="Choose step, clip and server on made-up records of the same sizes.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="With --rehearse: of the made-up records.")] = 0,
    schema_only: Annotated[
        bool,
        typer.Option("--schema-only", help="Write a schema from a data dictionary alone (TOML or CSV)."),
    ] = False,
    example: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Write sample files first, into FOLDER or a folder of this name: clinics."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The study to write; by default study.toml in the folder (or the schema)."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over files that exist.")] = False,
    as_json: JsonObject = False,
) -> None:
    """Make a study from a folder of one CSV file per silo; asks for what is missing if a person is there to answer.

    With --schema-only a schema for all silos is made from a data dictionary, before anybody has looked at records: a
    line (CSV) or table (TOML) for each column with kind, range or levels, unit, and target.

    With --example clinics three clinics' files of invented patients are written first, for a first try.

    With --event the target is a time, and survival regression is set up: --target days --range days=0:3650 --event
    died --levels died=no,yes. The range ends at the horizon, and the last level is the event.

    Example: tacit init clinics --target ill --levels ill=no,yes --range age=0:110 --levels sex=f,m
    """
    given: dict[str, Any] = {"--target": target, "--range": ranges, "--levels": levels, "--bounds": bounds}
    given |= {"--event": event, "--drop": drop, "--private": private, "--read-records": read_records}
    if example is not None:
        folder, target, bounds = written_example(example, folder, given | {"--schema-only": schema_only}, force=force)
    if folder is None:
        raise TacitError("Expected a FOLDER with one CSV file per silo; for a first try: tacit init --example clinics")
    if schema_only:
        given |= {"--epsilon": epsilon != 1.0, "--delta": delta != 1e-6, "--rehearse": rehearsed, "--norm": norm != 1.0}
        _write_schema(folder, out, given, force, as_json)
        return
    _check_numbers(private, epsilon, delta)
    if rehearsed:
        _check_rehearsal(event, private)
    study_path, schema_path = _places(folder, out)
    for path in (study_path, schema_path):
        if path.exists() and not force:
            raise TacitError(f"{path} exists; use --force to write over it, or --out for another study.")
    declared = replace(_declared(ranges or [], levels or [], drop or [], bounds), event=event)
    found = look(folder, declared.drop, declared.levels)
    asking = choose.somebody_answers() and not as_json
    if target is None:
        target = _ask_target(found, asking)
    discover.check_declared(found, target, declared)
    if asking and not read_records:
        declared = _ask(found, target, declared, private)
    # Whoever was asked and left a question open chose to have it read from the records.
    how: dict[str, Any] = {"read_records": read_records or asking, "private": private is not None, "norm": norm}
    drafted = discover.draft(found, target, declared, **how)
    records = _training_records(found)
    study = _study(folder, study_path, schema_path, drafted, records, epsilon, delta, private, norm)
    told = _rehearsed(study, drafted, records, seed) if rehearsed else None
    study_path.parent.mkdir(parents=True, exist_ok=True)
    schema_path.write_text(schema_text(drafted.schema), encoding="utf-8")
    study_path.write_text(tomli_w.dumps(study), encoding="utf-8")
    _say(found, drafted, study_path, schema_path, as_json)
    if told is not None and not as_json:
        print_rehearsed(told)
    if example is not None and not as_json:
        typer.echo(next_steps(folder))


def _check_numbers(private: str | None, epsilon: float, delta: float) -> None:
    if private is not None and private not in _STATISTICS:
        raise TacitError(f"Expected --private to be one of {', '.join(_STATISTICS)}, got {private!r}.")
    if not 0 < epsilon < math.inf:
        raise TacitError(f"Expected --epsilon={epsilon:g} to be a number above 0, such as 1.")
    if not 0 < delta < MOST_DELTA:
        raise TacitError(f"Expected --delta={delta:g} to lie between 0 and {MOST_DELTA:g}, such as 1e-6.")


def _check_rehearsal(event: str | None, private: str | None) -> None:
    if event is not None:
        raise TacitError("Expected --rehearse without --event: times of events are not made up yet.")
    if private is not None:
        raise TacitError("Expected --rehearse without --private: statistics that are not there yet cannot be made up.")


def _write_schema(description: Path, out: Path | None, given: dict[str, Any], force: bool, as_json: bool) -> None:
    """A schema from a data dictionary, beside it unless told otherwise."""
    from tacit.data.dictionary import schema_of_dictionary

    strange = [flag for flag, value in given.items() if value]
    if strange:
        raise TacitError(f"Expected --schema-only without {', '.join(strange)}; write it into the data dictionary.")
    path = description.with_name("schema.toml") if out is None else out
    if path.exists() and not force:
        raise TacitError(f"{path} exists; use --force to write over it, or --out for another schema.")
    schema = schema_of_dictionary(description)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(schema_text(schema), encoding="utf-8")
    if as_json:
        print_json({"schema": str(path), "columns": list(schema.used), "task": schema.target.task})
        return
    typer.echo(f"Wrote {path}. Give it to every silo: tacit silo init HOME --records FILE.csv --columns {path}")


def _places(folder: Path, out: Path | None) -> tuple[Path, Path]:
    """The study, and its schema beside it: schema.toml, or NAME.schema.toml for --out NAME.toml."""
    usual = folder / "study.toml"
    if out is None or out.resolve() == usual.resolve():
        return usual, folder / "schema.toml"
    return out, out.with_name(f"{out.stem}.schema.toml")


def _declared(ranges: list[str], levels: list[str], drop: list[str], bounds: Path | None) -> Declared:
    """What the owner declares, from flags and from a file; flags win."""
    known_ranges, known_levels = _read_bounds(bounds) if bounds is not None else ({}, {})
    for text in ranges:
        name, value = _pair(text, "--range", "age=0:110")
        known_ranges[name] = _range(value, f"--range {text}")
        known_levels.pop(name, None)
    for text in levels:
        name, value = _pair(text, "--levels", "sex=f,m")
        known_levels[name] = tuple(part.strip() for part in value.split(","))
        known_ranges.pop(name, None)
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
    while True:
        target = str(typer.prompt(f"Which column is to be predicted? ({', '.join(found.columns)})")).strip()
        try:
            discover.check_target(found, target)
        except TacitError as error:
            typer.echo(str(error))
        else:
            return target


def _ask(found: Folder, target: str, declared: Declared, private: str | None) -> Declared:
    """Ask for every range and level that is still open; an answer is a declaration that it is public.

    Nothing that records say is offered as an answer: Enter leaves a question open.
    """
    typer.echo(
        "What you answer here counts as public knowledge: from a form, a manual, a law; not from the records. Enter "
        "without an answer has it read from the records, which is NOT private."
    )
    ranges, levels = dict(declared.ranges), dict(declared.levels)
    for column in discover.undeclared(found, target, declared, private=private is not None):
        if column.levels and (column.kind == "category" or column.name == target or len(column.levels) == 2):
            levels |= _ask_until("its levels, known to all, as A,B,C", column.name, _levels)
        else:
            ranges |= _ask_until("its range, known to all, as LOW:HIGH", column.name, _range)
    return replace(declared, ranges=ranges, levels=levels)


def _levels(text: str, where: str) -> tuple[str, ...]:
    levels = tuple(part.strip() for part in text.split(","))
    discover.check_levels(where, levels, "press Enter")
    return levels


def _ask_until(question: str, column: str, read: Callable[[str, str], T]) -> dict[str, T]:
    """The answer by its column, once it makes sense; nothing for Enter."""
    while True:
        answer = typer.prompt(f"{column}: {question}", default="", show_default=False).strip()
        if not answer:
            return {}
        try:
            return {column: read(answer, column)}
        except TacitError as error:
            typer.echo(str(error))


def _study(
    folder: Path,
    study_path: Path,
    schema_path: Path,
    drafted: Draft,
    records: Sequence[int],
    epsilon: float,
    delta: float,
    private: str | None,
    norm: float,
) -> dict[str, Any]:
    """The study as a tree: a linear model by noisy minibatch SGD."""
    task = drafted.schema.target.task
    tree = tomllib.loads(template("study.toml", folder))
    tree["name"] = folder.resolve().name
    tree["title"] = f"{drafted.schema.target.column} from {len(drafted.schema.used)} columns"
    tree["data"]["options"] = {"folder": os.path.relpath(folder.resolve(), study_path.resolve().parent)}
    if schema_path != folder / "schema.toml":
        tree["data"]["options"]["schema"] = os.path.relpath(schema_path.resolve(), folder.resolve())
    tree["objective"]["loss"] = {"binary": "logistic", "multiclass": "softmax", "regression": "squared"}[task]
    if drafted.schema.target.event is not None:
        tree["objective"]["loss"] = SURVIVAL
    tree["privacy"] = {"epsilon": epsilon, "delta": delta}
    if private is not None:
        numbers = list(drafted.schema.numbers)
        if not numbers:
            raise DataError("Expected at least one column of numbers for --private; leave it out.")
        tree["preprocessing"] = {"standardise": private, "columns": numbers, "share": 0.2, "norm": norm}
    tree["algorithm"] |= _settings(tree, drafted, records)
    return tree


def _training_records(found: Folder) -> list[int]:
    """How many records each silo trains on, after its split."""
    from tacit.data.build import split_sizes
    from tacit.data.catalogue import OWN

    csv = OWN["csv"]
    return [max(1, split_sizes(size, csv.validation, csv.test)[0]) for size in found.sizes.values()]


def _shares() -> str:
    """How the records of each silo are divided."""
    from tacit.data.catalogue import OWN

    validation, test = OWN["csv"].validation, OWN["csv"].test
    return (
        f"Of each silo's records {1 - validation - test:.0%} train, {validation:.0%} validate and {test:.0%} test; "
        "data.validation and data.test of the study change that."
    )


def _settings(tree: dict[str, Any], drafted: Draft, records: Sequence[int]) -> dict[str, Any]:
    """Rounds, step, clip and output to start from, by what is public: see `tacit.plans.defaults`."""
    from tacit.plans.spec import study_from
    from tacit.studies.run import facts_of
    from tacit.studies.starting import settings_for

    return settings_for(study_from(tree), facts_of(drafted.schema), records)._asdict()


def _rehearsed(tree: dict[str, Any], drafted: Draft, records: Sequence[int], seed: int) -> dict[str, Any]:
    """Rehearse the study, which keeps what was chosen."""
    from tacit.plans.spec import study_from
    from tacit.studies.rehearse import rehearse, rehearsed_json
    from tacit.studies.run import facts_of, prepare_counted

    found = rehearse(prepare_counted(study_from(tree), drafted.schema, records), facts_of(drafted.schema), seed=seed)
    for name, own in found.sections.items():
        tree[name] = {**tree.get(name, {}), **own}
    return rehearsed_json(found)


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
        print_json(facts)
        return
    console = Console()
    columns = Column("column", overflow="fold"), "seems", "is read as", "missing"
    table = Table(*columns, title=f"{counted(len(found.sizes), 'silo')} in {found.path}")
    for name, column in found.columns.items():
        read = drafted.schema.columns.get(name)
        words = "the target" if name == drafted.schema.target.column else "its event" if read is None else read.kind
        table.add_row(escape(name), column.kind, words, str(sum(column.missing.values())))
    print_table(table, console)
    for line in (*drafted.assumed, _shares()):
        console.print(f"assumed  {escape(line)}", highlight=False)
    for line in drafted.loud:
        console.print(f"[bold red]NOT PRIVATE[/]  {escape(line)}", highlight=False)
    console.print(f"Wrote {study} and {schema}. Next:", highlight=False, soft_wrap=True)
    _say_next(console, drafted, study, schema)


def _say_next(console: Console, drafted: Draft, study: Path, schema: Path) -> None:
    """The commands that go on from here."""
    # What is not priced is not served, and a daemon serves features of a bounded norm.
    deployed = not drafted.loud and drafted.schema.norm != "box"
    steps = {
        "the price, before anything runs": f"tacit plan {study}",
        "train, test, and keep the model": f"tacit run {study} --model MODEL",
        "predict new rows": "tacit predict MODEL NEW.csv",
        "what theorems would choose": f"tacit choose --study {study}",
    }
    if deployed:
        steps["each silo as a daemon"] = f"tacit silo init HOME --records FILE.csv --columns {schema}"
    for why, command in steps.items():
        console.print(f"  {command}   # {why}", highlight=False, soft_wrap=True)
    if not deployed:
        console.print(
            "For simulation alone: silos serve neither private statistics yet nor what was read from records."
        )
