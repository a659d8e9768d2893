"""UCI Heart Disease: four hospitals, four natural silos, shipped with the package.

Thirteen measurements per patient; the target is whether angiography found a narrowing of more than 50% in a
major vessel (0 against 1 to 4). The hospitals differ: Cleveland recorded everything; Hungary hardly ever did
fluoroscopy or a thallium scan; Switzerland has no cholesterol (0 stands for missing) and nearly everyone is
ill; at the VA a quarter of the patients had no exercise test.

**Missing values** are never imputed from data. A number that is missing becomes the middle of its range (0
after scaling), a yes/no that is missing becomes 0 between -1 and +1. Missing cholesterol has a feature of its
own, because a whole hospital lacks it.

**Encoding.** Bounds are clinical ranges and categories are those of the data set's manual, so every step is
public. Yes/no features are signed so that +1 is the answer that cardiology associates with disease; rarer
findings are 0/1, so that their usual absence spends none of the norm. Each record is then scaled to norm at
most 1.

Options:
    features: ``"compact"`` (the default, 13 features) leaves out fasting blood sugar and the resting ECG, which
        say least beside an exercise test: under noise every feature has a price (validation error in
        simulated private training decided). ``"full"`` (20 features) has them too, and tells which of exercise
        test, slope, vessels and thallium scan are missing.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from pathlib import Path

import numpy as np

from tacit.data.encode import Bounded, Column, Missing, OneHot, Signed
from tacit.data.federation import DataError, Step
from tacit.data.table import Table
from tacit.data.tabular import fixed_table

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")

COLUMNS = (
    "age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca", "thal",
)  # fmt: skip

CITATION = (
    "Janosi, Steinbrunn, Pfisterer and Detrano (1989). Heart Disease. UCI Machine Learning Repository. "
    "https://doi.org/10.24432/C52P4X. CC BY 4.0. Collected by Andras Janosi, M.D. (Hungarian Institute of "
    "Cardiology, Budapest), William Steinbrunn, M.D. (University Hospital, Zurich), Matthias Pfisterer, "
    "M.D. (University Hospital, Basel) and Robert Detrano, M.D., Ph.D. (V.A. Medical Center, Long Beach "
    "and Cleveland Clinic Foundation)."
)

COMPACT: tuple[Column, ...] = (
    Bounded("age", 30, 80),
    Bounded("trestbps", 90, 190),
    Bounded("chol", 100, 400),
    Missing("chol"),
    Bounded("thalach", 70, 200),
    Bounded("oldpeak", 0, 3),
    Signed("sex", (1,)),
    Signed("cp", (4,)),
    OneHot("cp", (2,), ("atypical angina",)),
    Signed("exang", (1,)),
    Signed("slope", (2, 3)),
    Signed("ca", (1, 2, 3)),
    Signed("thal", (6, 7)),
)

FULL: tuple[Column, ...] = (
    *COMPACT,
    OneHot("fbs", (1,), ("above 120 mg/dl",)),
    OneHot("restecg", (1, 2), ("ST-T abnormality", "hypertrophy")),
    *(Missing(column) for column in ("exang", "slope", "ca", "thal")),
)

FILL = Step("missing values", True, "Fixed: the middle of a range, 0 between the signs of a yes and a no.")


def read(directory: Path | None, verify: bool, *, features: str = "compact") -> Table:
    """The four hospitals, from the files of the package."""
    del directory, verify
    if features not in ("compact", "full"):
        raise DataError(f"Expected features={features!r} to be 'compact' or 'full'.")
    folder = resources.files("tacit.data") / "files" / "heart_disease"
    texts = [(folder / f"processed.{name}.data").read_text(encoding="utf-8") for name in HOSPITALS]
    hospitals = [np.genfromtxt(text.splitlines(), delimiter=",", missing_values="?") for text in texts]
    raw = np.concatenate(hospitals)
    # A blood pressure or a cholesterol of zero was not measured.
    for column in (COLUMNS.index("trestbps"), COLUMNS.index("chol")):
        raw[raw[:, column] == 0, column] = np.nan
    table = fixed_table(
        raw[:, :13],
        raw[:, 13] > 0,
        COLUMNS,
        COMPACT if features == "compact" else FULL,
        norm=1.0,
        citation=CITATION,
        classes=("healthy", "ill"),
        attributes={"age": "age"},
        steps=(FILL,),
    )
    natural = np.repeat(np.arange(len(HOSPITALS)), [len(rows) for rows in hospitals])
    return replace(table, natural=natural, silo_names=HOSPITALS)
