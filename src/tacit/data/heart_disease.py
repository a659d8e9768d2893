"""UCI Heart Disease: four hospitals, four natural silos; ``tables/heart_disease.toml`` says what features mean.

The hospitals differ: Cleveland recorded everything; Hungary hardly ever did fluoroscopy or a thallium scan;
Switzerland has no cholesterol (0 stands for missing) and nearly everyone is ill; at the VA a quarter of the patients
had no exercise test. Missing values are never imputed from data: a number becomes the middle of its range, a yes/no
becomes 0 between -1 and +1.

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

from tacit.data.federation import DataError, Step, Table
from tacit.data.layout import described
from tacit.data.tabular import fixed_table

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
FILL = Step("missing values", True, "Fixed: the middle of a range, 0 between the signs of a yes and a no.")


def read(directory: Path | None, verify: bool, *, features: str = "compact") -> Table:
    """The four hospitals, from the files of the package."""
    del directory, verify
    if features not in ("compact", "full"):
        raise DataError(f"Expected features={features!r} to be 'compact' or 'full'.")
    tree = described("heart_disease")
    folder = resources.files("tacit.data") / "files" / "heart_disease"
    texts = [(folder / f"processed.{name}.data").read_text(encoding="utf-8") for name in HOSPITALS]
    hospitals = [np.genfromtxt(text.splitlines(), delimiter=",", missing_values="?") for text in texts]
    *measured, narrowed = np.concatenate(hospitals).T
    columns = dict(zip(tree["columns"], measured, strict=True))
    for name, values in tree["missing"].items():
        columns[name] = np.where(np.isin(columns[name], values), np.nan, columns[name])
    if features == "full":
        tree["features"] += tree["more_features"]
    table = fixed_table(tree, columns, narrowed > 0, steps=(FILL,))
    natural = np.repeat(np.arange(len(HOSPITALS)), [len(rows) for rows in hospitals])
    return replace(table, natural=natural, silo_names=HOSPITALS)
