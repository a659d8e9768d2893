"""``tacit run``, ``plan``, ``report``, ``algorithms`` and ``studies``."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from tacit.cli.live import live_view
from tacit.cli.tables import print_listing
from tacit.errors import TacitError
from tacit.stopping import ToldInterrupt, stops_at_once

if TYPE_CHECKING:
    from tacit.data import SiloData
    from tacit.studies.plan import Plan

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
_UNPRICED = "[bold red]Not private:[/] preprocessing read private records and was not priced."
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]


def run_command(
    study: Annotated[
        str | None, typer.Argument(help="Name of a study that ships with Tacit, or a path to a TOML file.")
    ] = None,
    overrides: Set = None,
    out: Annotated[Path, typer.Option(help="Folder in which the run folder is made.")] = Path("runs"),
    resume: Annotated[Path | None, typer.Option(help="Go on with the stopped run in this folder.")] = None,
    mlflow: Annotated[
        str | None,
        typer.Option(metavar="URI", help="Also log the run to MLflow (extra mlflow): a server or sqlite file."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a study, with its baselines, and write a run folder with an HTML report.

    A run that was stopped goes on with --resume and ends as it would have ended. A grid trains at every combination of
    its values, for those who evaluate: what it shows is not covered by epsilon, `tacit tune` chooses inside the budget.

    Example: tacit run heart-disease --set run.seeds=3 --set "run.grid.privacy.epsilon=[1,4]"
    """
    with stops_at_once():
        from tacit.runtime.compilation import keep_compiled
        from tacit.studies.folder import new_folder, stages_of, start, write
        from tacit.studies.report import write_report
        from tacit.studies.run import prepare, run_prepared
        from tacit.studies.spec import load_study
        from tacit.studies.tracking import find_mlflow, log_run

    keep_compiled()
    if mlflow is not None:
        find_mlflow()
    if resume is not None:
        _check_resume(study, overrides, resume)
    elif study is None:
        raise TacitError(
            "Expected a study; `tacit studies` lists those that ship, and a path to a TOML file works too."
        )
    source: str | Path = resume / "study.toml" if resume is not None else study or ""
    prepared = prepare(load_study(source, overrides or ()))
    folder = resume or new_folder(out, prepared.study)
    start(folder, prepared.study)
    try:
        with live_view(prepared, quiet=as_json) as watch:
            result = run_prepared(prepared, watch, stages_of(folder))
    except KeyboardInterrupt:
        typer.echo(f"Stopped. Go on with: tacit run --resume {folder}", err=True)
        raise ToldInterrupt from None
    written = write(result, folder)
    report = write_report(folder)
    if mlflow is not None:
        log_run(folder, mlflow)
    if as_json:
        typer.echo(json.dumps(_finite(written)))
        return
    _print_result(written, report)


def _check_resume(study: str | None, overrides: list[str] | None, folder: Path) -> None:
    from tacit.studies.folder import stages_of

    if study is not None or overrides:
        raise TacitError("--resume goes on with the study of its folder as it is; leave out STUDY and --set.")
    if (folder / "result.json").is_file():
        raise TacitError(f"The run in {folder} is finished; `tacit report {folder}` writes its report again.")
    if not stages_of(folder).is_dir():
        raise TacitError(f"{folder} holds no stopped run; give a folder that `tacit run` made.")


def _print_result(written: dict[str, Any], report: Path) -> None:
    from tacit.studies.constant import nothing_learnt
    from tacit.studies.report import main_metric

    console = Console()
    console.print(_silo_table(written))
    console.print(_score_table(written))
    nothing = nothing_learnt(written, main_metric(written["metrics"]))
    if nothing is not None:
        console.print(f"[bold red]{nothing}[/]")
    if written["grid"]:
        console.print(_grid_table(written["grid"]))
    _print_warnings(written["warnings"], console)
    if written["preprocessing_private"]:
        console.print(_UNPRICED)
    console.print(f"{written['seconds']:.1f} s. Report: {report}", soft_wrap=True)


def plan_command(study: Study, overrides: Set = None, as_json: Json = False) -> None:
    """Price a study before anything runs: per silo and kind of round, beside the noise that the paper prints.

    Example: tacit plan heart-disease --set privacy.epsilon=2
    """
    with stops_at_once():
        from tacit.studies.plan import plan_json
        from tacit.studies.run import prepare
        from tacit.studies.spec import load_study

    prepared = prepare(load_study(study, overrides or ()))
    plan, touched = prepared.plan, prepared.federations[0].touches_private_data
    everything = {silo.name: _size(silo) for silo in prepared.federations[0].silos}
    found = plan_json(plan) | {"preprocessing_private": touched, "records_with_held_out": everything}
    if as_json:
        typer.echo(json.dumps(_finite(found)))
        return
    _print_plan(plan, found)
    if touched:
        Console().print(_UNPRICED)


def report_command(
    run: Annotated[Path, typer.Argument(help="A run folder, as `tacit run` makes it.")],
) -> None:
    """Write the HTML report of a run folder again.

    Example: tacit report runs/heart-disease-20260101-120000
    """
    from tacit.studies.report import write_report

    typer.echo(str(write_report(run)))


def algorithms_command(as_json: Json = False) -> None:
    """List the algorithms: name, paper and number, guarantee, what they assume.

    Example: tacit algorithms --json
    """
    from tacit.algorithms import ALGORITHMS

    rows = [
        {"name": e.name, "paper": e.paper, "guarantee": e.guarantee, "assumes": e.assumes} for e in ALGORITHMS.values()
    ]
    _listing("Algorithms", rows, as_json)


def studies_command(as_json: Json = False) -> None:
    """List the studies that ship with Tacit.

    Example: tacit studies
    """
    from tacit.studies.spec import load_study, study_names

    studies = [load_study(name) for name in study_names()]
    rows = [{"name": s.name, "title": s.title, "data": s.data.name, "algorithm": s.algorithm.name} for s in studies]
    _listing("Studies", rows, as_json)


def _listing(title: str, rows: list[dict[str, str]], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(rows))
        return
    print_listing(title, rows, whole=("name", "paper", "data", "algorithm"))


def _silo_table(written: dict[str, Any]) -> Table:
    table = Table(
        "silo", "records", "epsilon", "spent", "delta", "noise multiplier", title=f"{written['study']}: price"
    )
    for silo in written["silos"]:
        noise = ", ".join(f"{kind} {z:.3f}" for kind, z in silo["noise_multiplier"].items())
        delta = "none" if silo["delta"] is None else f"{silo['delta']:.1e}"
        table.add_row(
            silo["name"],
            str(silo["records"]),
            _number(silo["epsilon"]),
            _number(silo["epsilon_spent"]),
            delta,
            noise or "none",
        )
    return table


def _score_table(written: dict[str, Any]) -> Table:
    from tacit.studies.constant import constant_label
    from tacit.studies.report import open_label

    names = [name for name in written["metrics"] if name.startswith("test_")]
    table = Table("who trains", *(name.replace("_", " ") for name in names), title="test records of all silos")
    private = written["silos"][0]["epsilon"] is not None
    rows = {"all silos, private" if private else "all silos, not private": written["metrics"]}
    if private:
        rows[f"all silos, {open_label(written)}"] = written["baselines"]["non_private"]
    rows |= {f"{silo} alone{', no noise' * private}": values for silo, values in written["baselines"]["alone"].items()}
    constant = constant_label(written)
    if constant is not None:
        rows[constant] = written["baselines"]["constant"]
    several = len(written["seeds"]) > 1
    for label, values in rows.items():
        table.add_row(label, *(_score(values.get(name), several) for name in names))
    return table


def _score(value: dict[str, float] | None, several: bool) -> str:
    """Mean and deviation over seeds; of one seed there is no deviation."""
    if value is None:
        return "–"
    return f"{value['mean']:.3f} ± {value['std']:.3f}" if several else f"{value['mean']:.3f}"


def _grid_table(grid: list[dict[str, Any]]) -> Table:
    names = [name for name in grid[0]["metrics"] if not name.startswith("train")]
    keys = (Column(key, overflow="fold") for key in grid[0]["point"])
    table = Table(*keys, *(name.replace("_", " ") for name in names), title="grid")
    for row in grid:
        table.add_row(
            *(f"{v:g}" if isinstance(v, int | float) else str(v) for v in row["point"].values()),
            *(f"{row['metrics'][name]['mean']:.4f}" for name in names),
        )
    return table


def _print_plan(plan: Plan, found: dict[str, Any]) -> None:
    console = Console()
    table = Table(title=f"{found['study']}: the price before anything runs")
    for name in ("silo", "n", "kind", "count", "batch", "z", "sigma/C", "epsilon"):
        table.add_column(name, no_wrap=True)
    for silo in found["silos"]:
        for number, kind in enumerate(silo["kinds"]):
            first = number == 0
            table.add_row(
                silo["name"] if first else "",
                str(silo["records"]) if first else "",
                kind["kind"],
                str(kind["count"]),
                f"{kind['batch']} {kind['sampling']}",
                _number(kind["noise_multiplier"], 2),
                _number(kind["sigma_over_clip"], 4),
                _number(silo["epsilon"]) if first else "",
            )
    console.print(table)
    delta = plan.study.privacy.delta
    console.print(
        f"delta = {delta:g}; z = sigma / replace-one sensitivity; C = clip norm; n is each silo's training records; "
        "epsilon is that of all kinds together."
    )
    _print_held_out(found, console)
    papers = Table("silo", "sigma/C", "really buys epsilon", "noise / ours", "its conditions")
    papers.title = "the noise that the paper prints, at the same epsilon"
    for silo in found["silos"]:
        paper = silo["paper"]
        if paper is not None:
            failed = [c["text"] for c in paper["conditions"] if not c["holds"]]
            papers.add_row(
                silo["name"],
                ", ".join(f"{s:.4g}" for s in paper["sigma_over_clip"]),
                _number(paper["epsilon_certified"]),
                f"{paper['noise_ratio']:.2f}",
                "hold" if not failed else "fail: " + "; ".join(failed),
            )
    if papers.row_count:
        console.print(papers)
    console.print(f"Guarantee: {found['guarantee']}.")
    console.print(f"Noise: {found['noise']}.")
    _print_parties(found, console)
    _print_fair(found, console)
    if found["theory"] is not None:
        from tacit.studies.bound import bound_text

        console.print(bound_text(found["theory"]))
    _print_reading(plan, console)
    _print_warnings(found["warnings"], console)


def _print_warnings(warnings: list[str], console: Console) -> None:
    for line in warnings:
        console.print(f"[bold red]Warning:[/] {line}", highlight=False)


def _size(silo: SiloData) -> int:
    """All records of a silo: to train on, and held out."""
    return sum(len(part["y"]) for part in (silo.train, silo.validation, silo.test))


def _print_held_out(found: dict[str, Any], console: Console) -> None:
    """Say that a deployment of the same files has more records to train on, where it has."""
    whole = found["records_with_held_out"]
    trained = {silo["name"]: silo["records"] for silo in found["silos"]}
    more = [f"{name} {n}" for name, n in whole.items() if n > trained.get(name, n)]
    if more:
        listed = ", ".join(more[:5]) + (f" and {len(more) - 5} more" if len(more) > 5 else "")
        console.print(
            "n leaves out the records held out for validation and test, as `tacit run` does. `tacit server run` splits "
            f"nothing: a daemon trains on all records of its file, and prices them ({listed})."
        )


def _print_parties(found: dict[str, Any], console: Console) -> None:
    """Who sees what, and what is left if the shuffler talks."""
    for party in found["parties"]:
        console.print(f"  {party['who']}: {party['sees']}")
    if found["counts_on"] is not None:
        console.print(found["counts_on"])
    exposed = [silo for silo in found["silos"] if silo["epsilon_without_shuffler"] is not None]
    if exposed:
        worst = max(exposed, key=lambda silo: silo["epsilon_without_shuffler"])
        largest = max(e for kind in worst["kinds"] for e in kind.get("local_epsilons", ()))
        console.print(
            f"{worst['name']}: each report is {largest:.4g}-LDP. If the shuffler colludes with the server, epsilon is "
            f"{worst['epsilon_without_shuffler']:.4g} in place of {worst['epsilon']:.4g} (ISRL-DP: the local epsilon "
            "composed over all reports)."
        )


def _print_fair(found: dict[str, Any], console: Console) -> None:
    """What crosses between divisions, and the designs that protect the attribute."""
    if "crossings" not in found:
        return
    alone = found["protects"] == "sensitive-attribute"
    console.print(
        "Protected: the sensitive attribute alone; features and targets count as known."
        if alone
        else "Protected: whole records."
    )
    table = Table("from", "to", "message", "numbers a round", "promise")
    table.title = f"what crosses ({found['centralisation']})"
    for row in found["crossings"]:
        table.add_row(row["sender"], row["receiver"], row["message"], str(row["numbers"]), row["promise"])
    console.print(table)
    if "designs" not in found:
        return
    designs = Table("design", "sampling", "z", "sigma/clip", "clip bounds", "epsilon")
    designs.title = "ways to protect the attribute at this budget, for the smallest silo"
    for row in found["designs"]:
        designs.add_row(
            row["name"],
            row["sampling"] + (f", {row['passes']} passes" if row["passes"] > 1 else ""),
            f"{row['noise_multiplier']:.3g}",
            f"{row['sigma_over_clip']:.4g}",
            row["bounds"],
            f"{row['epsilon']:.3g}" + (" (claimed less)" if row["name"] == "as printed" else ""),
        )
    console.print(designs)


def _print_reading(plan: Plan, console: Console) -> None:
    """What the price means to people, and what it does not promise."""
    from tacit.privacy import SILO_SAMPLING, risk_of
    from tacit.studies.plan import user_level_of

    priced = [silo for silo in plan.silos if silo.price is not None]
    if priced:
        worst = max(priced, key=lambda silo: silo.price.epsilon if silo.price else 0.0)
        console.print(f"{worst.name}: {risk_of(worst.events).sentence}")
        whole = user_level_of(plan, worst)
        if whole is not None:
            console.print(
                f"If all {worst.records} records of {worst.name} change together, epsilon is {whole['epsilon']:.4g}."
            )
    if plan.study.run.participants is not None:
        console.print(SILO_SAMPLING)


def _number(value: float | None, digits: int = 3) -> str:
    return "none" if value is None else f"{value:.{digits}f}"


def _finite(value: Any) -> Any:
    """Plain data that strict JSON can hold: what is not finite becomes null."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
