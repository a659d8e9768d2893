"""ACSIncome, California 2018 (a sample of 39,133 people): does a person earn more than 50,000 dollars a year.

The columns are those of the folktables task of the same name. Codes are those of the census's data
dictionary; occupations and places of birth, which have hundreds of codes, are grouped by the dictionary's own
ranges.

Options:
    sensitive: ``"sex"`` (the default) or ``"race"``: what ``s`` is.
    sensitive_in_features: whether ``x`` also has the sensitive attribute; by default not.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from tacit.data import layout
from tacit.data.encode import Bands, Bounded, Column, OneHot, Sensitive, fixed_encoding
from tacit.data.federation import DataError
from tacit.data.files import locate
from tacit.data.table import Table

CITATION = (
    "Ding, Hardt, Miller and Schmidt (2021). Retiring Adult: new datasets for fair machine learning. "
    "NeurIPS. Data: U.S. Census Bureau, American Community Survey 2018, public use microdata sample, "
    "California."
)

COLUMNS = ("AGEP", "COW", "SCHL", "MAR", "OCCP", "POBP", "RELP", "WKHP", "SEX", "RAC1P")

# First code of each group of occupations in the 2018 census occupation list.
OCCUPATIONS = (
    (10, "management"), (500, "business"), (800, "finance"), (1000, "computing"), (1300, "engineering"),
    (1600, "science"), (2000, "social services"), (2100, "law"), (2200, "education"), (2600, "arts"),
    (3000, "health professions"), (3600, "health support"), (3700, "protection"), (4000, "food"),
    (4200, "cleaning"), (4300, "personal care"), (4700, "sales"), (5000, "office"), (6000, "farming"),
    (6200, "construction"), (6800, "extraction"), (7000, "repair"), (7700, "production"), (9000, "transport"),
    (9800, "military"), (9900, "unemployed"),
)  # fmt: skip

BIRTHPLACES = (
    (1, "another state"), (6, "California"), (7, "another state"), (60, "US territory"), (100, "Europe"),
    (200, "Asia"), (300, "the Americas"), (303, "Mexico"), (304, "the Americas"), (400, "Africa"),
    (500, "Oceania"),
)  # fmt: skip

ENCODED: tuple[Column, ...] = (
    Bounded("AGEP", 17, 95),
    Bounded("WKHP", 1, 99),
    OneHot("COW", tuple(range(1, 10))),
    OneHot("SCHL", tuple(range(1, 25))),
    OneHot("MAR", tuple(range(1, 6))),
    Bands("OCCP", OCCUPATIONS, 10_000),
    Bands("POBP", BIRTHPLACES, 600),
    OneHot("RELP", tuple(range(18))),
    OneHot("SEX", (1, 2), ("male", "female")),
    OneHot("RAC1P", tuple(range(1, 10))),
)

SENSITIVE = {
    "sex": Sensitive("SEX", (1, 2), ("male", "female")),
    "race": Sensitive(
        "RAC1P",
        tuple(range(1, 10)),
        (
            "white", "black", "American Indian", "Alaska native", "tribe not specified", "Asian",
            "Pacific islander", "other", "two or more",
        ),
    ),
}  # fmt: skip

FEATURE_NORM = 3.0


def read(directory: Path | None, verify: bool, *, sensitive: str = "sex", sensitive_in_features: bool = False) -> Table:
    """Everyone in the sample."""
    path = locate(layout.ACS_INCOME, directory, verify)
    with path.open(encoding="ascii", newline="") as stream:
        rows = list(csv.DictReader(stream))
    absent = [name for name in (*COLUMNS, "PINCP") if not rows or name not in rows[0]]
    if absent:
        raise DataError(f"Expected {path} to have a column {absent[0]}; {layout.ACS_INCOME.how}")
    raw = np.array([[float(row[name]) for name in COLUMNS] for row in rows])
    group = Sensitive.choose(SENSITIVE, sensitive)
    return Table(
        x=raw,
        y=np.array([row["PINCP"] == "True" for row in rows], dtype=np.int32),
        fit=fixed_encoding(COLUMNS, ENCODED, FEATURE_NORM, None if sensitive_in_features else group.column),
        task="binary",
        class_names=("at most 50K", "above 50K"),
        s=group.codes(raw[:, COLUMNS.index(group.column)]),
        group_names=group.labels,
        attributes={"age": raw[:, 0], "hours": raw[:, COLUMNS.index("WKHP")]},
    )
