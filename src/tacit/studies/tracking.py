"""A run folder in MLflow: parameters, metrics by round, price, and the files. Needs the extra ``mlflow``."""

from __future__ import annotations

import csv
import importlib
import os
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

from tacit.errors import TacitError
from tacit.models.bundle import FOLDER
from tacit.studies.folder import NOT_PRIVATE, metrics_path, read_result

_FILES = ("result.json", "study.toml", "provenance.json", "preprocessing.json", NOT_PRIVATE)


def find_mlflow() -> Any:
    """The module, with its telemetry off: nothing leaves but what is logged to the address given."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    try:
        return importlib.import_module("mlflow")
    except ImportError:
        raise TacitError('--mlflow needs MLflow; install it with pip install "tacit[mlflow]".') from None


def log_run(folder: Path, uri: str) -> str:
    """Log a finished run folder to the tracking store at ``uri``, in the experiment ``tacit``; returns the run's id."""
    mlflow = find_mlflow()
    result = read_result(folder)
    study = tomllib.loads((folder / "study.toml").read_text(encoding="utf-8"))
    mlflow.set_tracking_uri(uri)
    mlflow.set_experiment("tacit")
    with mlflow.start_run(run_name=folder.name) as run:
        mlflow.log_params({name: str(value)[:500] for name, value in flat(study).items()})
        mlflow.set_tags({"guarantee": result["guarantee"], "channel": result["channel"]})
        mlflow.log_metrics(prices(result))
        for step, values in curves(metrics_path(folder)).items():
            mlflow.log_metrics(values, step=step)
        for name in _FILES:
            mlflow.log_artifact(str(folder / name))
        mlflow.log_artifacts(str(folder / FOLDER), FOLDER)
    return str(run.info.run_id)


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by dotted name.

    >>> flat({"privacy": {"epsilon": 1.0}, "name": "x"})
    {'privacy.epsilon': 1.0, 'name': 'x'}
    """
    found: dict[str, Any] = {}
    for name, value in tree.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found


def prices(result: dict[str, Any]) -> dict[str, float]:
    """Every silo's epsilon, reserved and spent."""
    return {
        f"{key}/{''.join(letter if letter.isalnum() else '-' for letter in silo['name'])}": silo[key]
        for silo in result["silos"]
        for key in ("epsilon", "epsilon_spent")
        if silo[key] is not None
    }


def curves(path: Path) -> dict[int, dict[str, float]]:
    """By round: every metric of every part, as ``part/metric``, averaged over seeds."""
    values: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            run, _, step = row.pop("run"), row.pop("seed"), int(row.pop("round"))
            for name, value in row.items():
                values[step][f"{run}/{name}"].append(float(value))
    return {step: {name: sum(own) / len(own) for name, own in row.items()} for step, row in values.items()}
