"""``tacit audit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tacit.cli import Json, Set, Study, numeral, print_json, print_table


def audit_command(
    study: Study,
    overrides: Set = None,
    kind: Annotated[str | None, typer.Option(help="Listen to one kind of round only.")] = None,
    trials: Annotated[
        int, typer.Option(help="Transcripts to count the errors of the best attack, half in each world.")
    ] = 10_000,
    confidence: Annotated[float, typer.Option(help="Confidence of the lower bound.")] = 0.95,
    into: Annotated[
        Path | None, typer.Option(help="A run folder that gets audit.json and a page in its report.")
    ] = None,
    picture: Annotated[
        bool, typer.Option(help="With --into: also the picture of images taken from a message.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Attack a study's own guarantee: a lower bound on epsilon beside the epsilon that is claimed.

    Every transcript comes out of the code with which a silo's daemon answers, noise and batches included; what no
    daemon takes is attacked in the simulator, and says so. 10,000 transcripts of thirty rounds take a few minutes.

    On the study's own model, broadcasts of equal, huge and broken points search for a record that moves a sum farther
    than is priced, for a quarter of a minute of computing at most.

    A bound above the claim, or such a record, proves that the claim is wrong, and ends the command with exit code 1.

    Example: tacit audit heart-disease --trials 100000 --into runs/heart-disease-20260101-120000 --picture
    """
    from tacit.audit.study import audit_study, check_folder, write_audit
    from tacit.plans.spec import load_study

    if into is not None:
        check_folder(into)
    resolved = load_study(study, overrides or ())
    found = audit_study(resolved, kind=kind, trials=trials, confidence=confidence)
    if into is not None:
        write_audit(into, found, picture=picture)
    if as_json:
        print_json(found)
    else:
        _print(found)
    if found["violated"]:
        raise typer.Exit(1)


def _print(found: dict[str, Any]) -> None:
    console = Console()
    heard = "every round" if found["kind"] is None else f"rounds of kind {found['kind']}"
    title = f"{found['study']}, {found['silo']}: {heard}, delta = {found['delta']:.0e}"
    table = Table("canary", "claimed epsilon", "lower bound", "tightness", "trials", title=title)
    for row in found["results"]:
        claimed = "infinite" if row["epsilon_claimed"] is None else f"{row['epsilon_claimed']:.3f}"
        tight = "" if row["tightness"] is None else f"{row['tightness']:.2f}"
        table.add_row(row["canary"], claimed, numeral(row["epsilon_lower_bound"]), tight, str(row["trials"]))
    print_table(table, console)
    if found.get("sensitivity"):
        print_table(_moved(found["sensitivity"]), console)
    if found.get("path") == "simulated":
        console.print("Simulated: no daemon takes this study, so the simulator's messages were attacked.")
    if found["violated"]:
        console.print(
            "[bold red]Violated:[/] more loss is proven than is claimed, or a record moves more than is priced."
        )
    else:
        console.print(f"No violation, at {found['confidence']:.0%} confidence.")
        if not any(row["epsilon_lower_bound"] > 0 for row in found["results"]):
            console.print("Nothing was proven either: too few trials; try --trials 100000.")


def _moved(rows: list[dict[str, Any]]) -> Table:
    """What hostile broadcasts made of one record."""
    table = Table("round", "largest share of what is priced", "broadcasts", title="One record under hostile broadcasts")
    for row in rows:
        table.add_row(row["kind"], f"{row['largest_share']:.5g}", str(row["tries"]))
    return table
