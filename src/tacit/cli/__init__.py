"""The command ``tacit``."""

from __future__ import annotations

import inspect
import os
import sys
from typing import NoReturn

import typer
import typer.core
from rich.console import Console
from rich.markup import escape

from tacit import __version__
from tacit.cli.accounting import calibrate_command, price_command
from tacit.cli.audit import audit_command
from tacit.cli.choose import choose_command
from tacit.cli.data import data_command
from tacit.cli.gallery import reproduce_command
from tacit.cli.init import init_command
from tacit.cli.plan import plan_command
from tacit.cli.server import server_app
from tacit.cli.shuffler import shuffler_app
from tacit.cli.silo import ledger_command, silo_app
from tacit.cli.study import algorithms_command, report_command, run_command, studies_command
from tacit.cli.tune import tune_command
from tacit.errors import TacitError
from tacit.stopping import was_told

_STOPPED = 130  # what shells expect of a command that was interrupted

# With rich, typer would escape the brackets in plain help.
typer.core.HAS_RICH = False

app = typer.Typer(
    name="tacit",
    help="Private federated learning without a trusted server.\n\nExample: tacit run heart-disease",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.command("run")(run_command)
app.command("plan")(plan_command)
app.command("price")(price_command)
app.command("calibrate")(calibrate_command)
app.command("algorithms")(algorithms_command)
app.command("studies")(studies_command)
app.command("data")(data_command)
app.command("init")(init_command)
app.command("choose")(choose_command)
app.command("tune")(tune_command)
app.command("report")(report_command)
app.command("audit")(audit_command)
app.command("ledger")(ledger_command)
app.command("reproduce")(reproduce_command)
app.add_typer(silo_app)
app.add_typer(shuffler_app)
app.add_typer(server_app)


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


_keep_examples_whole(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tacit {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Print the version."),
) -> None:
    pass


def main() -> None:
    """Run the command line; a mistake that a user can put right is told without a traceback, with exit code 2."""
    try:
        app()
    except (TacitError, OSError) as error:
        Console(stderr=True, soft_wrap=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False)
        sys.exit(2)
    except KeyboardInterrupt as error:
        _stop(error)
    except SystemExit as ending:
        if ending.code == _STOPPED:
            _stop(ending)
        raise


def _stop(error: BaseException) -> NoReturn:
    """End at once: compiled work that is under way would be pulled from under its own threads."""
    if not was_told(error):
        typer.echo("Stopped.", err=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_STOPPED)
