"""``tacit plan``: the price of a study before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from tacit.cli import UNPRICED, Json, Set, Study, numeral, point_cells, print_json, print_table, print_warnings
from tacit.errors import TacitError
from tacit.stopping import stops_at_once

if TYPE_CHECKING:
    from tacit.data.schema import Schema
    from tacit.studies.plan import Plan
    from tacit.studies.run import Prepared


def plan_command(
    study: Study,
    overrides: Set = None,
    policy: Annotated[
        Path | None,
        typer.Option(help="A silo's policy.toml: show also what the study takes from that account, and what is left."),
    ] = None,
    records: Annotated[
        str | None,
        typer.Option(metavar="N,N,...", help="Price for silos that train on so many records; no data file is read."),
    ] = None,
    schema: Annotated[
        Path | None, typer.Option(help="With --records: the schema of all silos; by default the study's own.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Price a study before anything runs: per silo and kind of round, beside the noise that the paper prints.

    With --policy two prices are shown: the plan's own epsilon, and the share of the account that it takes by its rule.
    With --records a server prices a study whose records it does not have, by their number and the schema.

    Example: tacit plan heart-disease --set privacy.epsilon=2
    """
    with stops_at_once():
        from tacit.plans.spec import load_study
        from tacit.studies.run import prepare

    loaded = load_study(study, overrides or ())
    if schema is not None and records is None:
        raise TacitError("Expected --schema together with --records 300,200,150, how many records each silo has.")
    prepared = prepare(loaded) if records is None else _counted(loaded, records, schema)
    plan, facts = prepared.plan, _as_data(prepared)
    if policy is not None:
        from tacit.cli.status import account_of_plan

        facts["account"] = account_of_plan(plan, policy)
    if as_json:
        print_json(facts)
        return
    console = Console()
    _print_prices(plan, facts, console)
    _print_paper(facts, console)
    console.print(f"Guarantee: {facts['guarantee']}.")
    console.print(f"Noise: {facts['noise']}.")
    _print_parties(facts, console)
    _print_fair(facts, console)
    if facts["theory"] is not None:
        from tacit.studies.bound import bound_text

        console.print(bound_text(facts["theory"]))
    _print_reading(plan, console)
    print_warnings(facts["warnings"], console)
    if "account" in facts:
        _print_account(facts["account"], console)
    if facts["preprocessing_private"]:
        console.print(UNPRICED)


def _counted(study: Any, records: str, path: Path | None) -> Prepared:
    """A study that is priced by its schema and the numbers of records alone."""
    from tacit.studies.run import prepare_counted

    return prepare_counted(study, *schema_and_counts(study, records, path))


def schema_and_counts(study: Any, records: str, path: Path | None) -> tuple[Schema, list[int]]:
    """The schema of a study, or that at the path, and the numbers of records that --records says."""
    from tacit.data.schema import public_schema
    from tacit.studies.federation import schema_of

    counts = [int(part) if part.strip().isdecimal() else 0 for part in records.split(",")]
    if min(counts) < 1:
        raise TacitError(f"Expected --records as whole numbers above 0, such as 300,200,150, got {records!r}.")
    schema = schema_of(study) if path is None else public_schema(path)
    if schema is None:
        raise TacitError(
            f"Expected --schema with --records: {study.data.name} has no schema, but records of its own; leave "
            "--records out to price those, or give the schema of the silos."
        )
    return schema, counts


def _as_data(prepared: Prepared) -> dict[str, Any]:
    """The plan, the noise in the mean of all silos, the price at every point of the grid, and whole silos' sizes."""
    from tacit.studies.noise import mean_over_clip
    from tacit.studies.plan import min_silos_of, plan_json
    from tacit.studies.run import noise_at, points_of

    study, plan = prepared.study, prepared.plan
    silos = prepared.federations[0].silos if prepared.federations else ()
    unit = prepared.builder.build(noise_multiplier=1.0)
    private, min_silos = study.privacy.private, min_silos_of(study, len(plan.silos))
    points = points_of(study.run.grid) if study.run.grid and private else []
    return plan_json(plan) | {
        "sigma_of_mean_over_clip": mean_over_clip(study, plan.silos, unit, min_silos) if private else {},
        "grid": [{"point": point, "noise_multiplier": noise_at(prepared, point).tolist()} for point in points],
        "released_before_training": study.preprocessing is not None,
        "preprocessing_private": any(federation.touches_private_data for federation in prepared.federations[:1]),
        "records_with_held_out": {
            silo.name: sum(len(part["y"]) for part in (silo.train, silo.validation, silo.test)) for silo in silos
        },
    }


def _print_prices(plan: Plan, facts: dict[str, Any], console: Console) -> None:
    headings = ("silo", "n", "kind", "count", "batch", "z", "sigma/C", "epsilon")
    table = Table(*(Column(name, no_wrap=True) for name in headings))
    table.title = f"{facts['study']}: the price before anything runs"
    for silo in facts["silos"]:
        name, records, epsilon = silo["name"], str(silo["records"]), numeral(silo["epsilon"])
        for kind in silo["kinds"]:
            noise = numeral(kind["noise_multiplier"], 2), numeral(kind["sigma_over_clip"], 4)
            batch = f"{kind['batch']} {kind['sampling']}"
            table.add_row(name, records, kind["kind"], str(kind["count"]), batch, *noise, epsilon)
            name = records = epsilon = ""
    print_table(table, console)
    console.print(
        f"delta = {plan.study.privacy.delta:g}; z = sigma / replace-one sensitivity; C = clip norm; n is each silo's "
        "training records; epsilon is that of all kinds together."
    )
    if facts["sigma_of_mean_over_clip"]:
        listed = ", ".join(f"{kind} {sigma:.4f}" for kind, sigma in facts["sigma_of_mean_over_clip"].items())
        shared = plan.study.algorithm.channel in ("pairwise", "shuffled-sum")
        share = " sigma above is of a silo's own share of the noise." if shared else ""
        console.print(f"In the mean of all silos sigma/C is: {listed}.{share}")
    _print_held_out(facts, console)
    _print_grid(facts["grid"], console)


def _print_paper(facts: dict[str, Any], console: Console) -> None:
    papers = Table(
        "silo", Column("releases", no_wrap=True), "sigma/C", "really buys epsilon", "noise / ours", "its conditions"
    )
    papers.title = "the noise that the paper prints, at the same epsilon"
    for silo in facts["silos"]:
        paper = silo["paper"]
        if paper is not None:
            failed = [c["text"] for c in paper["conditions"] if not c["holds"]]
            releases = "\n".join(f"{release['count']} x {release['kind']}" for release in paper["releases"])
            sigmas = "\n".join(f"{s:.4g}" for s in paper["sigma_over_clip"])
            compared = numeral(paper["epsilon_certified"]), f"{paper['noise_ratio']:.2f}"
            conditions = "fail: " + "; ".join(failed) if failed else "hold"
            papers.add_row(silo["name"], releases, sigmas, *compared, conditions)
    if papers.row_count:
        print_table(papers, console)


def _print_account(account: dict[str, Any], console: Console) -> None:
    """Both prices of the plan by name, at a silo with this account."""
    from tacit.cli.status import account_words, percent_of

    table = Table("silo", "own epsilon", "of the account", "left then", title="what the plan takes from this account")
    for row in account["silos"]:
        left = "-" if row["left_share"] is None else percent_of(row["left_share"])
        table.add_row(row["name"], numeral(row["own_epsilon"]), row["refusal"] or percent_of(row["takes_share"]), left)
    print_table(table, console)
    console.print(account_words(account), highlight=False)


def _print_grid(grid: list[dict[str, Any]], console: Console) -> None:
    """The noise at every point of the grid; the table of silos is of the study's own setting."""
    if not grid:
        return
    table = Table(*grid[0]["point"], "z, least to most", title="the grid: noise at each of its points")
    for row in grid:
        ends = dict.fromkeys(f"{z:.2f}" for z in (min(row["noise_multiplier"]), max(row["noise_multiplier"])))
        table.add_row(*point_cells(row["point"]), " to ".join(ends))
    print_table(table, console)
    console.print("The other tables are of the study's own setting. Every point of a grid that runs has its own price.")


def _print_held_out(facts: dict[str, Any], console: Console) -> None:
    """Say that a deployment of the same files has more records to train on, where it has."""
    if facts["released_before_training"]:
        console.print("Silos cannot serve a study with private statistics yet: it is for simulation (`tacit run`).")
        return
    whole = facts["records_with_held_out"]
    trained = {silo["name"]: silo["records"] for silo in facts["silos"]}
    more = [f"{name} {n}" for name, n in whole.items() if n > trained.get(name, n)]
    if more:
        listed = ", ".join(more[:5]) + (f" and {len(more) - 5} more" if len(more) > 5 else "")
        console.print(
            "n leaves out the records held out for validation and test, as `tacit run` does. `tacit server run` splits "
            f"nothing: a daemon trains on all records of its file, and prices them ({listed})."
        )


def _print_parties(facts: dict[str, Any], console: Console) -> None:
    """Who sees what, and what is left if the shuffler talks."""
    for party in facts["parties"]:
        console.print(f"  {party['who']}: {party['sees']}")
    if facts["counts_on"] is not None:
        console.print(facts["counts_on"])
    alone = [silo for silo in facts["silos"] if silo["epsilon_if_more_collude"]]
    if alone:
        worst = max(alone, key=lambda silo: max(silo["epsilon_if_more_collude"].values()))
        left = [f"{epsilon:.4g} if {number} collude" for number, epsilon in worst["epsilon_if_more_collude"].items()]
        console.print(
            f"{worst['name']}: if more silos collude with the server than the price counts on, epsilon is "
            f"{', '.join(left)}, in place of {worst['epsilon']:.4g}. With all others only its own share of the noise "
            "is left."
        )
    exposed = [silo for silo in facts["silos"] if silo["epsilon_without_shuffler"] is not None]
    if exposed:
        worst = max(exposed, key=lambda silo: silo["epsilon_without_shuffler"])
        largest = max(e for kind in worst["kinds"] for e in kind.get("local_epsilons", ()))
        console.print(
            f"{worst['name']}: each report is {largest:.4g}-LDP. If the shuffler colludes with the server, epsilon is "
            f"{worst['epsilon_without_shuffler']:.4g} in place of {worst['epsilon']:.4g} (ISRL-DP: the local epsilon "
            "composed over all reports)."
        )


def _print_fair(facts: dict[str, Any], console: Console) -> None:
    """What crosses between divisions, and the designs that protect the attribute."""
    if "crossings" not in facts:
        return
    alone = facts["protects"] == "sensitive-attribute"
    what = "the sensitive attribute alone; features and targets count as known" if alone else "whole records"
    console.print(f"Protected: {what}.")
    table = Table("from", "to", "message", "numbers a round", "promise")
    table.title = f"what crosses ({facts['centralisation']})"
    for row in facts["crossings"]:
        table.add_row(row["sender"], row["receiver"], row["message"], str(row["numbers"]), row["promise"])
    print_table(table, console)
    if "designs" not in facts:
        return
    designs = Table("design", "sampling", "z", "sigma/clip", "clip bounds", "epsilon")
    designs.title = "ways to protect the attribute at this budget, for the smallest silo"
    for row in facts["designs"]:
        sampling = row["sampling"] + (f", {row['passes']} passes" if row["passes"] > 1 else "")
        noise = f"{row['noise_multiplier']:.3g}", f"{row['sigma_over_clip']:.4g}"
        epsilon = f"{row['epsilon']:.3g}" + (" (claimed less)" if row["name"] == "as printed" else "")
        designs.add_row(row["name"], sampling, *noise, row["bounds"], epsilon)
    print_table(designs, console)


def _print_reading(plan: Plan, console: Console) -> None:
    """What the price means to people, and what it does not promise."""
    from tacit.privacy import SILO_SAMPLING, risk_of_price
    from tacit.studies.plan import user_level_of

    priced = [(silo, silo.price) for silo in plan.silos if silo.price is not None]
    if priced:
        worst, paid = max(priced, key=lambda pair: pair[1].epsilon)
        console.print(f"{worst.name}: {risk_of_price(paid).sentence}")
        whole = user_level_of(plan, worst)
        if whole is not None:
            console.print(
                f"If all {worst.records} records of {worst.name} change together, epsilon is {whole['epsilon']:.4g}."
            )
    if plan.study.run.participants is not None:
        console.print(SILO_SAMPLING)
