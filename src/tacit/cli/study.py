"""``tacit run``, ``report``, ``algorithms`` and ``studies``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from tacit.cli import (
    UNPRICED,
    Json,
    Out,
    Set,
    numeral,
    point_cells,
    print_json,
    print_listing,
    print_table,
    print_warnings,
)
from tacit.cli.live import live_view
from tacit.errors import TacitError
from tacit.stopping import ToldInterrupt, stops_at_once

_SILOS = 12  # whose gains fit on a screen; the report has all


def run_command(
    study: Annotated[
        str | None, typer.Argument(help="Name of a study that ships with Tacit, or a path to a TOML file.")
    ] = None,
    overrides: Set = None,
    out: Out = Path("runs"),
    model: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also write the model's bundle into this folder.")
    ] = None,
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
        from tacit.models import load_model
        from tacit.plans.spec import load_study
        from tacit.simulate.compilation import keep_compiled
        from tacit.studies.folder import new_folder, stages_of, start, write
        from tacit.studies.report import write_report
        from tacit.studies.run import prepare, run_prepared
        from tacit.studies.tracking import find_mlflow, log_run

    keep_compiled()
    if model is not None and model.exists():
        raise TacitError(f"--model: {model} exists; nothing is written over. Name another folder, or remove it.")
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
    if model is not None:
        load_model(folder).save(model)
    if mlflow is not None:
        log_run(folder, mlflow)
    if as_json:
        print_json(written)
        return
    _print_result(written, report, model)


def _check_resume(study: str | None, overrides: list[str] | None, folder: Path) -> None:
    from tacit.studies.folder import stages_of

    if study is not None or overrides:
        raise TacitError("--resume goes on with the study of its folder as it is; leave out STUDY and --set.")
    if (folder / "result.json").is_file():
        raise TacitError(f"The run in {folder} is finished; `tacit report {folder}` writes its report again.")
    if not stages_of(folder).is_dir():
        raise TacitError(f"{folder} holds no stopped run; give a folder that `tacit run` made.")


def _print_result(written: dict[str, Any], report: Path, model: Path | None) -> None:
    from tacit.models.bundle import FOLDER
    from tacit.studies.constant import nothing_learnt
    from tacit.studies.report import main_metric, verdict

    console = Console()
    print_table(_silo_table(written), console)
    print_table(_score_table(written), console)
    _print_scores(written, console)
    for line in verdict(written, main_metric(written["metrics"])):
        console.print(line, highlight=False)
    nothing = nothing_learnt(written, main_metric(written["metrics"]))
    if nothing is not None:
        console.print(f"[bold red]{nothing}[/]")
    if written["grid"]:
        print_table(_grid_table(written["grid"]), console)
    print_warnings(written["warnings"], console)
    if written["preprocessing_private"]:
        console.print(UNPRICED)
    console.print(f"{written['seconds']:.1f} s. Report: {report}", soft_wrap=True)
    model = model or Path(written["run_dir"]) / FOLDER
    console.print(f"Model: {model}. Use it: tacit predict {model} NEW.csv", soft_wrap=True, highlight=False)


def report_command(
    run: Annotated[Path, typer.Argument(help="A run folder, as `tacit run` makes it.")],
    publish: Annotated[
        bool, typer.Option("--publish", help="A page for others, without what was measured on records without noise.")
    ] = False,
) -> None:
    """Write the HTML report of a run folder again, or one to publish.

    Example: tacit report runs/heart-disease-20260101-120000 --publish
    """
    from tacit.studies.report import write_report

    typer.echo(str(write_report(run, publish=publish)))


def algorithms_command(as_json: Json = False) -> None:
    """List the algorithms: name, paper and number, guarantee, what they assume.

    Example: tacit algorithms --json
    """
    from tacit.plans.catalogue import shipped

    names = ("name", "paper", "guarantee", "assumes")
    _listing("Algorithms", [{name: getattr(row, name) for name in names} for row in shipped().values()], as_json)


def studies_command(as_json: Json = False) -> None:
    """List the studies that ship with Tacit.

    Example: tacit studies
    """
    from tacit.plans.spec import load_study, study_names

    studies = [load_study(name) for name in study_names()]
    rows = [{"name": s.name, "title": s.title, "data": s.data.name, "algorithm": s.algorithm.name} for s in studies]
    _listing("Studies", rows, as_json)


def _listing(title: str, rows: list[dict[str, str]], as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    print_listing(title, rows, whole=("name", "paper", "data", "algorithm"))


def _silo_table(written: dict[str, Any]) -> Table:
    headings = ("silo", "training records", "epsilon", "spent", "delta", "noise multiplier")
    table = Table(*headings, title=f"{written['study']}: price")
    for silo in written["silos"]:
        noise = ", ".join(f"{kind} {z:.3f}" for kind, z in silo["noise_multiplier"].items())
        delta = "none" if silo["delta"] is None else f"{silo['delta']:.1e}"
        prices = numeral(silo["epsilon"]), numeral(silo["epsilon_spent"]), delta
        table.add_row(silo["name"], str(silo["records"]), *prices, noise or "none")
    return table


def _score_table(written: dict[str, Any]) -> Table:
    from tacit.studies.constant import constant_label
    from tacit.studies.report import alone_label, converged_label, open_label

    names = [name for name in written["metrics"] if name.startswith("test_")]
    table = Table("who trains", *(name.replace("_", " ") for name in names), title="test records of all silos")
    private = written["silos"][0]["epsilon"] is not None
    rows = {"all silos, private" if private else "all silos, not private": written["metrics"]}
    if private:
        rows[f"all silos, {open_label(written)}"] = written["baselines"]["non_private"]
    if written["baselines"]["converged"]:
        rows[f"all silos, {converged_label(written)}"] = written["baselines"]["converged"]
    rows |= {alone_label(silo, private): values for silo, values in written["baselines"]["alone"].items()}
    constant = constant_label(written)
    if constant is not None:
        rows[constant] = written["baselines"]["constant"]
    several = len(written["seeds"]) > 1
    for label, values in rows.items():
        table.add_row(label, *(_score(values.get(name), several) for name in names))
    return table


def _print_scores(written: dict[str, Any], console: Console) -> None:
    """What people read of each model, and what each silo gains on its own test records."""
    from tacit.studies.report import main_metric, metric_title, score_tables

    found, several = score_tables(written), len(written["seeds"]) > 1
    if not found["score_names"]:
        return
    where = f", in the unit of {found['score_target']}" if found["score_target"] and not found["confusion"] else ""
    table = Table("who trains", *(title for _, title in found["score_names"]), title=f"scores on test records{where}")
    for label, row in found["score_models"]:
        table.add_row(label, *(_score(row.get(name), several) for name, _ in found["score_names"]))
    print_table(table, console)
    if written.get("hazard_ratios"):
        ratios = Table("feature", "hazard ratio", title="hazard at the high end of a feature, over that at its low end")
        for name, own in written["hazard_ratios"].items():
            ratios.add_row(name, _score(own, several))
        print_table(ratios, console)
    if 0 < len(written["gains"]) <= _SILOS:
        name = metric_title(main_metric(written["metrics"])).lower()
        gains = Table("silo", "together", "alone", "gain", title=f"{name} of each silo's own records")
        for silo, row in written["gains"].items():
            gains.add_row(silo, *(_score(row[key], several) for key in ("together", "alone", "gain")))
        print_table(gains, console)


def _score(value: dict[str, float] | None, several: bool) -> str:
    """Mean and deviation over seeds; of one seed there is no deviation."""
    if value is None:
        return "–"
    from tacit.studies.charts import number

    mean, std = value["mean"], value["std"]
    return f"{number(mean)} ± {number(std, beside=mean)}" if several else number(mean)


def _grid_table(grid: list[dict[str, Any]]) -> Table:
    names = [name for name in grid[0]["metrics"] if not name.startswith("train")]
    keys = (Column(key, overflow="fold") for key in grid[0]["point"])
    table = Table(*keys, *(name.replace("_", " ") for name in names), title="grid")
    for row in grid:
        table.add_row(*point_cells(row["point"]), *(f"{row['metrics'][name]['mean']:.4f}" for name in names))
    return table
