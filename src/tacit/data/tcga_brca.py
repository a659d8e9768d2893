"""TCGA-BRCA: survival of breast cancer patients, whose hospitals lie in six regions; a region is a silo.

A target is the time until death in shares of a horizon of ten years, with a minus where the patient was last seen
alive; ``tables/tcga_brca.toml`` says what features mean. Whoever was watched for longer than that was watched for it.
No attempt to identify participants may be made (terms of the GDC).

Options:
    features: ``"compact"`` (the default, six features) or ``"full"`` (eleven).
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np

from tacit.data.encode import level_cells, number_cells
from tacit.data.federation import DataError, Step, Table, Target
from tacit.data.files import locate
from tacit.data.layout import described, layout
from tacit.data.tabular import fixed_table

STEP = Step("target", True, "Days until death up to ten years, in shares of ten years; negative where last seen alive.")


def read(directory: Path | None, verify: bool, *, features: str = "compact") -> Table:
    """The patients of hospitals in the six regions."""
    if features not in ("compact", "full"):
        raise DataError(f"Expected features={features!r} to be 'compact' or 'full'.")
    tree = described("tcga_brca")
    patients, centres = (_rows(name, directory, verify) for name in ("brca", "centers"))
    # A handful of patients of other regions is no silo.
    regions = {row["TSS Code"]: row["Region"] for row in centres if row["Region"] != "Other"}
    known = [row for row in patients if row["pid"].split("-")[1] in regions]
    where = np.array([regions[row["pid"].split("-")[1]] for row in known])
    names = tuple(sorted(set(where.tolist())))
    if features == "full":
        tree["features"] += tree["more_features"]
    columns = {"age": np.array([float(row["age_at_index"]) for row in known])}
    for name, parts in tree["any"].items():
        columns[name] = np.array([float(any(float(row[part]) for part in parts)) for row in known])
    columns = {name: columns[name] for feature in tree["features"] for name in feature["columns"]}
    days, died = (np.array([float(row[key]) for row in known]) for key in ("T", "E"))
    time, event = np.clip(days / tree["horizon"], 1e-4, 1.0), (died > 0) & (days < tree["horizon"])
    tree["target"] |= {"low": -1.0, "high": 1.0}
    table = fixed_table(tree, columns, np.where(event, time, -time), steps=(STEP,))
    assert table.cells is not None
    watched = [
        number_cells("days", days, 0.0, tree["horizon"], "days"),
        level_cells("death", event * 1.0, ("no", "yes")),
    ]
    return replace(
        table,
        natural=np.searchsorted(names, where),
        silo_names=names,
        target=Target(tree["target"]["column"]),
        cells=np.column_stack([table.cells[:, :-1], *(own.values for own in watched)]),
        columns=(*table.columns[:-1], *(own.facts for own in watched)),
    )


def _rows(name: str, directory: Path | None, verify: bool) -> list[dict[str, str]]:
    path = locate(layout()[f"tcga_brca/{name}.csv"], directory, verify)
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))
