"""The command ``tacit``: its table of commands, and what they share."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import json
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
import typer.core
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from tacit import __version__
from tacit.errors import TacitError, printable
from tacit.stopping import was_told

_STOPPED = 130  # what shells expect of a command that was interrupted

# With rich, typer would escape the brackets in plain help.
typer.core.HAS_RICH = False

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
Metrics = Annotated[
    int | None,
    typer.Option(metavar="PORT", envvar="TACIT_WATCH_METRICS", help="Serve Prometheus metrics on 127.0.0.1:PORT."),
]
Webhook = Annotated[
    str | None, typer.Option(metavar="URL", envvar="TACIT_WATCH_WEBHOOK", help="POST each event there, as JSON.")
]
Command = Annotated[
    str | None,
    typer.Option(envvar="TACIT_WATCH_COMMAND", help="Run this for each event, with its JSON on standard input."),
]
Live = Annotated[bool, typer.Option("--live", help="Keep looking, every two seconds, until stopped.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
JsonObject = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

AUTHORITY = "give --authority the consortium's ca.pem, see Certificates in docs/deployment.md"
UNPRICED = "[bold red]Not private:[/] preprocessing read private records and was not priced."

_POSIX = ("fcntl", "pwd")
_ELSEWHERE = (
    "Silos, shufflers and servers need file locks and users of Linux or macOS, which this system has not; train and "
    "predict here, and serve there. See docs/platforms.md."
)
_VERBOSE = ("-v", "--verbose")
_SCRAP = 4  # characters of a name, at least
_BORDER = 3  # of a column: a line and a space on either side
_NUMBER = 20  # a cell of so many characters with a digit in it is a number, with a sign or a word
_ROOMY = 120
_LONGEST = 10_000  # characters of a line of an error
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


def template(name: str, folder: Path, called: str | None = None) -> str:
    """A file to start from, for a party that is ``called`` so, or else like its folder."""
    text = (resources.files("tacit.cli") / "templates" / name).read_text(encoding="utf-8")
    return text.replace("{name}", folder.resolve().name if called is None else called)


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


def print_table(table: Table, console: Console) -> None:
    """Print a table so that no number and no word is cut, however narrow the screen or the pipe is.

    Words wrap first. Columns that do not fit even so go into a table of their own below, with the first one again.
    """
    widths = [_least(column) for column in table.columns]
    # Of a name and a number that do not fit beside each other, the name is broken.
    widths[0] = min(widths[0], max(_room(console.width, 2) - max(widths[1:], default=0), _SCRAP))
    for number, part in enumerate(_parts(widths, console.width)):
        below = Table(title=None if number else table.title, box=table.box, padding=table.padding)
        below.show_header, below.rows = table.show_header, list(table.rows)
        below.columns = [dataclasses.replace(table.columns[i], _index=j) for j, i in enumerate(part)]
        least, most = [widths[i] for i in part], [_most(column) for column in below.columns]
        for column, width in zip(below.columns, _shares(least, most, _room(console.width, len(part))), strict=True):
            column.width, column.no_wrap, column.overflow = width, False, "fold"
        console.print(below, crop=False, no_wrap=False)


def _room(width: int, columns: int) -> int:
    """How many characters the cells of so many columns may have beside each other."""
    return width - 1 - _BORDER * columns


def _lines(column: Column) -> list[str]:
    cells = (Text.from_markup(cell) if isinstance(cell, str) else cell for cell in (column.header, *column.cells))
    return [line for cell in cells if isinstance(cell, Text) for line in cell.plain.splitlines() or [""]]


def _most(column: Column) -> int:
    """The width at which nothing of a column wraps."""
    return max(map(cell_len, _lines(column)), default=0)


def _least(column: Column) -> int:
    """The width at which no word of a column is broken, and no short cell with a number in it."""
    head, *cells = _lines(column) or [""]
    words = [cell_len(word) for line in (head, *cells) for word in line.split()]
    whole = [cell_len(cell) for cell in cells if len(cell) <= _NUMBER and any(c.isdigit() for c in cell)]
    return max([*words, *whole], default=0)


def _shares(least: Sequence[int], most: Sequence[int], room: int) -> list[int]:
    """Widths between the two that together fit, those with the most to spare narrowed first."""
    widths = list(most)
    while sum(widths) > room and any(w > m for w, m in zip(widths, least, strict=True)):
        place = max((i for i, w in enumerate(widths) if w > least[i]), key=lambda i: widths[i])
        widths[place] -= 1
    return widths


def _parts(least: Sequence[int], width: int) -> list[list[int]]:
    """Columns for each of several tables: the first in all of them, and of the others as many as fit."""
    parts: list[list[int]] = [[0]]
    for i in range(1, len(least)):
        own = [*parts[-1], i]
        if len(parts[-1]) > 1 and sum(least[j] for j in own) > _room(width, len(own)):
            parts.append([0, i])
        else:
            parts[-1] = own
    return parts


def keep_looking(show: Callable[[], None], seconds: float = 2.0) -> NoReturn:
    """Show something again and again on a cleared screen, until stopped."""
    while True:
        if sys.stdout.isatty():
            typer.clear()
        show()
        sys.stdout.flush()
        time.sleep(seconds)


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


COMMANDS = {
    "run": "study.run_command",
    "plan": "plan.plan_command",
    "price": "accounting.price_command",
    "calibrate": "accounting.calibrate_command",
    "algorithms": "study.algorithms_command",
    "studies": "study.studies_command",
    "data": "data.data_command",
    "statistics": "statistics.statistics_command",
    "init": "init.init_command",
    "schema": "schema.schema_app",
    "choose": "choose.choose_command",
    "tune": "tune.tune_command",
    "report": "study.report_command",
    "predict": "model.predict_command",
    "evaluate": "model.evaluate_command",
    "export": "model.export_command",
    "audit": "audit.audit_command",
    "ledger": "silo.ledger_command",
    "reproduce": "gallery.reproduce_command",
    "consortium": "consortium.consortium_app",
    "silo": "silo.silo_app",
    "shuffler": "shuffler.shuffler_app",
    "server": "server.server_app",
}
"""Where each command lies in this folder. Only the one that is called is loaded: a daemon is a small process."""


def assembled(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """The command line with these commands."""
    typed = typer.Typer(
        name="tacit",
        help="Private federated learning without a trusted server.\n\nExample: tacit run heart-disease",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    for name in names:
        module, _, attribute = COMMANDS[name].partition(".")
        command = getattr(importlib.import_module(f"tacit.cli.{module}"), attribute)
        if isinstance(command, typer.Typer):
            typed.add_typer(command)
        else:
            typed.command(name)(command)
    typed.callback()(_options)
    _keep_examples_whole(typed)
    return typed


def __getattr__(name: str) -> Any:
    if name == "app":
        return assembled()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _whole(text: str) -> str:
    """A help whose example stays on one line, however narrow the terminal: click wraps no paragraph with this mark."""
    return text.replace("\n\nExample: ", "\n\n\b\nExample: ")


def _keep_examples_whole(typed: typer.Typer) -> None:
    """Mark the examples of a group and of all its commands, so that they can be pasted."""
    typed.info.help = _whole(typed.info.help or "")
    for command in typed.registered_commands:
        command.help = _whole(command.help or inspect.getdoc(command.callback) or "")
    for group in typed.registered_groups:
        if group.typer_instance is not None:
            _keep_examples_whole(group.typer_instance)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tacit {__version__}")
        raise typer.Exit


def _options(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Print the version."),
    verbose: bool = typer.Option(
        False, *_VERBOSE, help="Also after the command: say what runs, log, and show the traceback of an error."
    ),
) -> None:
    pass


def _named() -> typer.Typer:
    """The command line with the names of commands alone, for a shell that completes one: nothing is loaded."""
    typed = typer.Typer(name="tacit", rich_markup_mode=None)
    for name in COMMANDS:
        typed.command(name)(lambda: None)
    return typed


def _called() -> str:
    """The command that was typed, also where a shell asks how to complete it."""
    asked = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS", "")
    words = asked.split() if "_TACIT_COMPLETE" in os.environ else sys.argv
    return next((word for word in words[1:] if word not in _VERBOSE), "")


def _is_verbose() -> bool:
    """Whether -v was typed, anywhere; it is taken out, so that every command has it."""
    found = any(word in _VERBOSE for word in sys.argv[1:])
    sys.argv[1:] = [word for word in sys.argv[1:] if word not in _VERBOSE]
    return found


def main() -> None:
    """Run the command line; a mistake that a user can put right is told without a traceback, with exit code 2."""
    called, verbose, completing = _called(), _is_verbose(), "_TACIT_COMPLETE" in os.environ
    try:
        with _telling() if verbose else contextlib.nullcontext():
            typed = assembled([called]) if called in COMMANDS else _named() if completing else assembled()
            typed(prog_name="tacit")
    except (TacitError, OSError, ModuleNotFoundError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name not in _POSIX:
            raise
        if verbose:
            traceback.print_exc()
        text = str(error) if not isinstance(error, ModuleNotFoundError) else _ELSEWHERE
        # It may quote what others have written.
        text = "\n".join(printable(line.expandtabs(), _LONGEST) for line in text.split("\n"))
        Console(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {escape(text)}", highlight=False)
        sys.exit(2)
    except KeyboardInterrupt as error:
        _stop(error)
    except SystemExit as ending:
        if ending.code == _STOPPED:
            _stop(ending)
        raise


@contextlib.contextmanager
def _telling() -> Iterator[None]:
    """Say on standard error what runs, what it logs, and what it took."""
    import logging
    import platform

    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s: %(message)s")
    place = Path(__file__).parents[1]
    machine = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    typer.echo(f"tacit {__version__} from {place}; {machine}", err=True)
    begun = time.monotonic()
    try:
        yield
    finally:
        typer.echo(f"{time.monotonic() - begun:.1f} s{_memory()}", err=True)


def _memory() -> str:
    """The most memory that this process had, where the system counts it."""
    try:
        import resource
    except ImportError:
        return ""
    # Linux counts in units of 1024 bytes, macOS in bytes.
    unit = 1 << (20 if sys.platform == "darwin" else 10)
    return f", at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit:.0f} MiB of memory"


def _stop(error: BaseException) -> NoReturn:
    """End at once: compiled work that is under way would be pulled from under its own threads."""
    if not was_told(error):
        typer.echo("Stopped.", err=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_STOPPED)
