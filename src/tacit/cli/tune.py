"""``tacit tune``: hyperparameters chosen inside the budget."""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tacit.cli import UNPRICED, Json, Out, Set, Study, print_json, print_table
from tacit.cli.live import progress_bars
from tacit.cli.rehearse import shown
from tacit.errors import TacitError
from tacit.stopping import ToldInterrupt, stops_at_once

if TYPE_CHECKING:
    from tacit.studies.tune import Against, Tuned, TunePlan


def tune_command(
    study: Study,
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", metavar="SECTION.KEY=[V1,V2]", help="Values to choose from, needed; may be repeated."),
    ] = None,
    overrides: Set = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="silos|public",
            help="Whom the budget must cover: all who watch training, the other silos among them (the default), or, "
            'with channel "trusted", only the public, who sees nothing but the chosen model.',
        ),
    ] = None,
    tries: Annotated[
        float | None,
        typer.Option(help="Candidates on average, with --against public; by default as many as the grid has points."),
    ] = None,
    plan_only: Annotated[bool, typer.Option("--plan", help="Show the price and stop.")] = False,
    rehearsed: Annotated[
        bool,
        typer.Option("--rehearse", help="Choose on made-up records, drawn from public facts: no record is read."),
    ] = False,
    records: Annotated[
        str | None,
        typer.Option(metavar="N,N,...", help="With --rehearse: training records of each silo; no file is opened."),
    ] = None,
    schema: Annotated[Path | None, typer.Option(help="With --records: the schema; by default the study's own.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="With --rehearse: of the made-up records.")] = 0,
    out: Out = Path("runs"),
    as_json: Json = False,
) -> None:
    """Choose hyperparameters by private validation errors, all of it within the study's epsilon.

    Every candidate is a whole training and a private error. The silos that train see all of them, so that records pay
    for all. With channel "trusted" and --against public the budget covers only those who see nothing but the chosen
    model, at the price of Papernot and Steinke; what it costs against the other silos is told beside it. Simulated.

    With --rehearse nothing is spent: candidates are tried on made-up records of the same sizes and widths. Without a
    grid the usual one is taken.

    Example: tacit tune heart-disease --grid "algorithm.step_size=[2,8]" --grid "algorithm.clip_norm=[0.3,1]"
    """
    _check_flags(rehearsed, {"--against": against, "--tries": tries, "--plan": plan_only},
                 {"--records": records, "--schema": schema, "--seed": seed})  # fmt: skip
    if not grid and not rehearsed:
        raise TacitError(
            "Expected --grid, the values to choose from, such as: tacit tune "
            f'{shlex.quote(study)} --grid "algorithm.step_size=[2,8]"; --rehearse has a usual grid, and costs nothing'
        )
    with stops_at_once():
        from tacit.plans.spec import load_study
        from tacit.studies.folder import new_folder
        from tacit.studies.tune import plan_json, plan_tuning, tune, tuned_json

    resolved = load_study(study, overrides or ())
    values = dict(_values(text) for text in grid or ())
    if rehearsed:
        from tacit.cli.rehearse import rehearse_study

        known: dict[str, Any] = {"records": records, "schema": schema, "seed": seed}
        rehearse_study(resolved, values or None, out=out, as_json=as_json, **known)
        return
    plan = plan_tuning(resolved, values, against=_against(against), mean_tries=tries)
    if plan_only:
        print_json(plan_json(plan)) if as_json else _print_plan(plan)
        return
    try:
        with progress_bars(quiet=as_json) as watch:
            tuned = tune(plan, watch)
    except KeyboardInterrupt:
        typer.echo("Stopped. Nothing is kept of a search that is not finished.", err=True)
        raise ToldInterrupt from None
    folder = new_folder(out, resolved)
    written = tuned_json(tuned) | {"run_dir": str(folder)}
    _write(tuned, written, folder)
    if as_json:
        print_json(written)
        return
    _print_plan(plan)
    _print_tuned(written)


def _check_flags(rehearsed: bool, paid: dict[str, Any], free: dict[str, Any]) -> None:
    """Raise for flags of the other kind of tuning."""
    strange = [flag for flag, value in (paid if rehearsed else free).items() if value]
    if strange:
        raise TacitError(f"Expected {strange[0]} {'without' if rehearsed else 'together with'} --rehearse.")


def _against(text: str | None) -> Against | None:
    known: dict[str | None, Against | None] = {None: None, "silos": "silos", "public": "public"}
    if text in known:
        return known[text]
    raise TacitError(f"Expected --against silos or --against public, got {text!r}.")


def _values(text: str) -> tuple[str, list[Any]]:
    key, equals, values = text.partition("=")
    try:
        found = tomllib.loads(f"value = {values}")["value"]
    except tomllib.TOMLDecodeError:
        found = None
    if not equals or not isinstance(found, list) or not found or not all(type(v) in (int, float, str) for v in found):
        raise TacitError(f'Expected --grid such as "algorithm.step_size=[0.5,1,2]", got {text!r}.')
    return key.strip(), [value if isinstance(value, str) else float(value) for value in found]


def _write(tuned: Tuned, written: dict[str, Any], folder: Path) -> None:
    from tacit.models import SiloPrice
    from tacit.studies.folder import write_bundle, write_provenance, write_study

    (folder / "tuned.json").write_text(json.dumps(written, indent=1), encoding="utf-8")
    study = tuned.plan.prepared.study
    chosen = {key.removeprefix("algorithm."): value for key, value in written["chosen"].items()}
    write_study(folder, study.model_copy(update={"algorithm": study.algorithm.model_copy(update=chosen)}))
    write_provenance(folder)
    plan = tuned.plan
    prices = [
        SiloPrice(name=silo.name, records=silo.records, epsilon=silo.epsilon, delta=plan.delta) for silo in plan.silos
    ]
    write_bundle(folder, plan.prepared, tuned.params, prices)


def _print_plan(plan: TunePlan) -> None:
    from tacit.studies.tune import AGAINST, SIMULATED

    console = Console()
    headings = ("silo", "records", "validation", "one candidate", "the silos", "the public")
    table = Table(*headings, title="epsilon of tuning, by whom it holds against")
    for silo in plan.silos:
        sizes = str(silo.records), str(silo.validation)
        watched = "nobody" if silo.silos is None else f"{silo.silos:.4f}"
        table.add_row(silo.name, *sizes, f"{silo.epsilon_of_one:.4f}", watched, f"{silo.public:.4f}")
    print_table(table, console)
    for who, words in AGAINST.items():
        console.print(f"the {who}: {words}", highlight=False)
    epsilon = plan.prepared.study.privacy.epsilon
    if plan.tries is None:
        console.print(
            f"{len(plan.points)} candidates, every one seen by those who train: all are paid for together, exactly. "
            f"The budget, epsilon = {epsilon}, covers everyone."
        )
    else:
        _print_selection(plan, console)
        console.print(SIMULATED[0].upper() + SIMULATED[1:] + ".")
    if plan.prepared.federations[0].touches_private_data:
        console.print(UNPRICED)
    console.print(f"delta = {plan.delta:g}. A record is in training or in validation, and pays for the dearer.")


def _print_selection(plan: TunePlan, console: Console) -> None:
    mean, epsilon = 0.0 if plan.tries is None else plan.tries.mean, plan.prepared.study.privacy.epsilon
    console.print(
        f"About {mean:.3g} candidates, a random number. The budget, epsilon = {epsilon}, covers the public alone, who "
        "is told neither the number nor the losers (Papernot and Steinke 2022, Theorem 2)."
    )
    watched = [silo.silos for silo in plan.silos if silo.silos is not None]
    if watched:
        console.print(
            "[bold red]It does not cover the other silos:[/] they see every candidate that is trained, and so how many "
            f"there are. Against them epsilon is {max(watched):.4g}. Leave out --against public for a price that "
            "covers them."
        )


def _print_tuned(written: dict[str, Any]) -> None:
    console = Console()
    heading = f"private validation error, ± {written['score_deviation']:.3f} of noise"
    table = Table(*written["chosen"], heading, title="candidates that may be told; less is better")
    for row in written["candidates"]:
        values = map(shown, row["point"].values())
        table.add_row(*values, f"{row['private_validation_error']:.4f}")
    print_table(table, console)
    # Noise decides where candidates differ by no more than the best of as many equal ones would.
    scores = [row["private_validation_error"] for row in written["candidates"]]
    spread, usual = max(scores) - min(scores), 4 * written["score_deviation"]
    if len(scores) > 1 and spread <= usual:
        console.print(
            f"[bold red]Noise may have chosen:[/] the errors differ by {spread:.3f}, and equal candidates would differ "
            f"by up to {usual:.3f}. Fewer candidates, more validation records or a larger epsilon tell them apart."
        )
    chosen = ", ".join(f"{key} = {shown(value)}" for key, value in written["chosen"].items())
    tests = ", ".join(f"{name.replace('_', ' ')} {v['mean']:.4f}" for name, v in written["metrics"].items())
    console.print(f"Chosen: {chosen}. The model is in {written['run_dir']}; training it again costs again.")
    console.print(f"{tests[0].upper()}{tests[1:]}, measured on {written['metrics_measured_on']}.")
