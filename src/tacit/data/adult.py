"""UCI Adult: does a person earn more than 50,000 dollars a year; 48,842 people from both files of the source.

Categories are those of the data set's manual; a question mark gives zeros. The survey weight ``fnlwgt`` is
not used.

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
from tacit.data.files import locate
from tacit.data.table import Table

CITATION = (
    "Becker and Kohavi (1996). Adult. UCI Machine Learning Repository. https://doi.org/10.24432/C5XW20. CC BY 4.0."
)

CATEGORIES: dict[str, tuple[str, ...]] = {
    "workclass": (
        "Private", "Self-emp-not-inc", "Self-emp-inc", "Federal-gov", "Local-gov", "State-gov", "Without-pay",
        "Never-worked",
    ),
    "education": (
        "Bachelors", "Some-college", "11th", "HS-grad", "Prof-school", "Assoc-acdm", "Assoc-voc", "9th",
        "7th-8th", "12th", "Masters", "1st-4th", "10th", "Doctorate", "5th-6th", "Preschool",
    ),
    "marital-status": (
        "Married-civ-spouse", "Divorced", "Never-married", "Separated", "Widowed", "Married-spouse-absent",
        "Married-AF-spouse",
    ),
    "occupation": (
        "Tech-support", "Craft-repair", "Other-service", "Sales", "Exec-managerial", "Prof-specialty",
        "Handlers-cleaners", "Machine-op-inspct", "Adm-clerical", "Farming-fishing", "Transport-moving",
        "Priv-house-serv", "Protective-serv", "Armed-Forces",
    ),
    "relationship": ("Wife", "Own-child", "Husband", "Not-in-family", "Other-relative", "Unmarried"),
    "race": ("White", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other", "Black"),
    "sex": ("Female", "Male"),
    "native-country": (
        "United-States", "Cambodia", "England", "Puerto-Rico", "Canada", "Germany",
        "Outlying-US(Guam-USVI-etc)", "India", "Japan", "Greece", "South", "China", "Cuba", "Iran",
        "Honduras", "Philippines", "Italy", "Poland", "Jamaica", "Vietnam", "Mexico", "Portugal", "Ireland",
        "France", "Dominican-Republic", "Laos", "Ecuador", "Taiwan", "Haiti", "Columbia", "Hungary",
        "Guatemala", "Nicaragua", "Scotland", "Thailand", "Yugoslavia", "El-Salvador", "Trinadad&Tobago",
        "Peru", "Hong", "Holand-Netherlands",
    ),
}  # fmt: skip

NUMBERS = {
    "age": Bounded("age", 17, 90),
    "capital-gain": Bounded("capital-gain", 0, 99_999, log=True, unit=1_000, from_zero=True),
    "capital-loss": Bounded("capital-loss", 0, 5_000, log=True, unit=1_000, from_zero=True),
    "hours-per-week": Bounded("hours-per-week", 1, 99),
}

AGES = Bands(
    "age",
    ((17, "17 to 24"), (25, "25 to 34"), (35, "35 to 44"), (45, "45 to 54"), (55, "55 to 64"), (65, "65 up")),
    91,
)

COLUMNS = (*NUMBERS, *CATEGORIES)

ENCODED: tuple[Column, ...] = (
    *NUMBERS.values(),
    AGES,
    *(OneHot(name, tuple(range(len(labels))), labels) for name, labels in CATEGORIES.items()),
)

SENSITIVE = {name: Sensitive(name, tuple(range(len(CATEGORIES[name]))), CATEGORIES[name]) for name in ("sex", "race")}

FEATURE_NORM = 3.5


def read(directory: Path | None, verify: bool, *, sensitive: str = "sex", sensitive_in_features: bool = False) -> Table:
    """Everyone in both files."""
    rows = [
        row
        for file in (layout.ADULT_DATA, layout.ADULT_TEST)
        for row in _rows(locate(file, directory, verify).read_text(encoding="ascii"))
    ]
    raw = np.column_stack([_column(rows, name) for name in COLUMNS])
    group = Sensitive.choose(SENSITIVE, sensitive)
    return Table(
        x=raw,
        y=np.array([row["Y"].startswith(">50K") for row in rows], dtype=np.int32),
        fit=fixed_encoding(COLUMNS, ENCODED, FEATURE_NORM, None if sensitive_in_features else sensitive),
        task="binary",
        class_names=("at most 50K", "above 50K"),
        s=group.codes(raw[:, COLUMNS.index(sensitive)]),
        group_names=group.labels,
        attributes={name: raw[:, COLUMNS.index(name)] for name in ("age", "hours-per-week")},
    )


def _rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines(), skipinitialspace=True))


def _column(rows: list[dict[str, str]], name: str) -> np.ndarray:
    if name in NUMBERS:
        return np.array([float(row[name]) for row in rows])
    code = {label: float(number) for number, label in enumerate(CATEGORIES[name])}
    return np.array([code.get(row[name], np.nan) for row in rows])
