"""``tacit tune --rehearse``: settings chosen on made-up records, which costs nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from tacit.cli import print_json, print_table
from tacit.cli.plan import schema_and_counts

if TYPE_CHECKING:
    from tacit.plans.assemble import Facts
    from tacit.plans.spec import Study
    from tacit.studies.run import Prepared

_SHOWN = 8  # candidates


def rehearse_study(
    study: Study,
    grid: Mapping[str, Sequence[Any]] | None,
    *,
    records: str | None,
    schema: Path | None,
    seed: int,
    out: Path,
    as_json: bool,
) -> None:
    """Rehearse a study, and write it with what was chosen into a new folder."""
    from tacit.studies.folder import new_folder, write_provenance, write_study
    from tacit.studies.rehearse import rehearse, rehearsed_json

    prepared, facts = _public(study, records, schema)
    found = rehearse(prepared, facts, grid, seed=seed)
    folder = new_folder(out, study)
    told = {**rehearsed_json(found), "run_dir": str(folder)}
    (folder / "rehearsed.json").write_text(json.dumps(told, indent=1), encoding="utf-8")
    write_study(folder, found.rehearsed(study))
    write_provenance(folder)
    if as_json:
        print_json(told)
        return
    print_rehearsed(told)
    path = folder / "study.toml"
    Console().print(f"Wrote {path}. Next: tacit plan {path}; tacit run {path}", highlight=False)


def _public(study: Study, records: str | None, schema: Path | None) -> tuple[Prepared, Facts]:
    """The study priced from what is public of its silos; of a federation that is loaded, sizes and shapes are kept."""
    from tacit.studies.federation import federation_of
    from tacit.studies.run import Declared, facts_of, prepare_counted, prepare_facts

    once = study.model_copy(update={"run": study.run.model_copy(update={"grid": {}})})
    if records is not None:
        known, counts = schema_and_counts(study, records, schema)
        return prepare_counted(once, known, counts), facts_of(known)
    loaded = federation_of(once, study.run.seed_list[0])
    facts = Declared(loaded.task, loaded.num_classes, loaded.feature_shape, loaded.feature_norm, loaded.name)
    names, counts = [silo.name for silo in loaded.silos], [len(silo.train["y"]) for silo in loaded.silos]
    return prepare_facts(once, facts, counts, names), facts


def print_rehearsed(told: Mapping[str, Any]) -> None:
    """The best candidates, and what was chosen."""
    console, rows = Console(), told["candidates"]
    keys = list(told["chosen"])
    table = Table(*(key.removeprefix("algorithm.") for key in keys), "regret", title="best settings on made-up records")
    for row in rows[:_SHOWN]:
        table.add_row(*(shown(row["point"][key]) for key in keys), f"{row['regret']:.4f}")
    print_table(table, console)
    chosen = ", ".join(f"{key} = {shown(value)}" for key, value in told["chosen"].items())
    console.print(
        f"Chosen of {len(rows)}: {chosen}. Regret is the {told['metric']} above the best of each of {told['teachers']} "
        f"random teachers (seed {told['seed']}), on average. No record was read: it costs nothing.",
        highlight=False,
    )


def shown(value: float | str) -> str:
    """A setting, for people."""
    return value if isinstance(value, str) else f"{value:g}"
