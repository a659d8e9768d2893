"""Make the sample files of ``tacit init --example clinics``: invented patients, the same at every run.

    python -m experiments.example_clinics

No real person is in them. Three clinics differ in size and in whom they see; whether a patient comes back within thirty
days depends on age, former stays, smoking, blood pressure, ward and chance. Python's own generator draws them, whose
numbers do not change between versions.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path
from random import Random

FOLDER = Path(__file__).parents[1] / "src" / "tacit" / "data" / "examples" / "clinics"
COLUMNS = ("age", "sex", "smoker", "bmi", "systolic", "former_stays", "ward", "readmitted")
CLINICS = {"bergen": (1300, 66.0, 0.15), "oslo": (900, 54.0, 0.25), "tromso": (600, 60.0, 0.35)}
"""Of each clinic: patients, their mean age, and the share that smokes."""

WARDS = ("surgery", "cardiology", "general")
_MISSING = 0.03


def patient(rng: Random, mean_age: float, smokers: float) -> dict[str, str]:
    """One invented patient."""
    age = min(100, max(18, round(rng.gauss(mean_age, 15))))
    sex = rng.choice(("f", "m"))
    smoker = "current" if rng.random() < smokers else rng.choice(("never", "never", "former"))
    bmi = min(55.0, max(15.0, rng.gauss(26.5, 4.5)))
    systolic = min(220, max(80, round(rng.gauss(112 + 0.35 * age, 14))))
    stays = min(20, int(rng.expovariate(0.9)))
    ward = rng.choice(WARDS)
    score = 0.055 * (age - 60) + 0.75 * stays + 0.03 * (systolic - 133) - 0.9
    score += {"current": 1.0, "former": 0.3, "never": 0.0}[smoker] + {"cardiology": 0.7}.get(ward, 0.0)
    back = rng.random() < 1 / (1 + math.exp(-1.4 * score))
    shown = (str(age), sex, smoker, f"{bmi:.1f}", str(systolic), str(stays), ward, "yes" if back else "no")
    return {
        name: "" if name in ("bmi", "systolic") and rng.random() < _MISSING else cell
        for name, cell in zip(COLUMNS, shown, strict=True)
    }


def main(folder: Path = FOLDER) -> None:
    """Write the files of three clinics, and new patients apart, with and without what became of them."""
    rng = Random(20260101)
    (folder / "new").mkdir(parents=True, exist_ok=True)
    for name, (count, mean_age, smokers) in CLINICS.items():
        _write(folder / f"{name}.csv", COLUMNS, [patient(rng, mean_age, smokers) for _ in range(count)])
    later = [patient(rng, 60.0, 0.2) for _ in range(200)]
    _write(folder / "new" / "labelled.csv", COLUMNS, later)
    # As such files come: another order, an unknown ward, nothing to predict from a column of its own.
    rows = [row | {"note": ""} for row in later[:12]]
    rows[3] |= {"ward": "maternity"}
    rows[7] |= {"note": "moved"}
    _write(folder / "new" / "new.csv", ("note", *COLUMNS[-2::-1]), rows)


def _write(path: Path, columns: tuple[str, ...], rows: list[dict[str, str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
