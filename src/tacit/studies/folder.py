"""The run folder: resolved study, price, model, preprocessing and provenance.

What was measured on records without noise lies in a folder of its own, ``not-private``: nothing else in a run folder
says more of the records than the price allows.
"""

from __future__ import annotations

import csv
import datetime
import json
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tomli_w

from tacit.algorithm import GUARANTEES, Params
from tacit.models import SiloPrice
from tacit.models.scores import CALIBRATION, averaged, classes_of
from tacit.models.scores import flat as flat_scores
from tacit.models.trained import silo_prices
from tacit.plans.spec import Study
from tacit.privacy import risk_of_price
from tacit.privacy.parties import parties, without_shuffler
from tacit.privacy.plan import SiloPlan
from tacit.studies.bundle import write_model
from tacit.studies.plan import Plan, crossing_json, user_level_of
from tacit.studies.run import ALL_SILOS, Prepared, Result, summary

NOT_PRIVATE = "not-private"
_MEASURED: dict[str, Any] = {
    "metrics": {},
    "baselines": {"non_private": {}, "converged": {}, "alone": {}},
    "reference": {},
    "gains": {},
    "scores": {},
    "grid": [],
}
"""What of a result was measured on records without noise, and what stands for it outside of its folder."""
_README = """# Not private

Everything here was measured on records without noise: errors, losses, confusion matrices, curves, and the baselines.
No epsilon covers it. It is for those who may see the records and evaluate a simulation; it is not made where real
silos train. Do not publish it with the model: `tacit report --publish RUN` writes a page that leaves it out.

- `result.json`: the whole result, with price, metrics, baselines, gains by silo and scores by class and silo
- `metrics.csv`: loss and metrics by round; `scores.csv`: scores by model, seed, silo and class
- `report.html`: one page about the run
"""


def result_json(result: Result, run_dir: Path | None) -> dict[str, Any]:
    """The result as plain data, in the documented shape."""
    study, plan = result.prepared.study, result.prepared.plan
    silos = [_silo_json(plan, *row) for row in zip(plan.silos, result.epsilon_spent, strict=True)]
    channel = study.algorithm.channel if study.privacy.private else "open"
    steps = int(study.algorithm.own.get("local_steps", 1))
    return {
        "study": study.name,
        "algorithm": study.algorithm.name,
        "channel": channel,
        "guarantee": GUARANTEES[channel],
        "parties": [{"who": who, "sees": sees} for who, sees in parties(channel, steps)],
        "seeds": list(study.run.seed_list),
        "silos": silos,
        "metrics": _summaries(result.metrics),
        "baselines": {
            "non_private": _summaries(result.non_private),
            "converged": _summaries(result.converged),
            "alone": {name: _summaries(values) for name, values in result.alone.items()},
            "constant": _summaries(result.constant),
        },
        "reference": result.reference,
        "scores": _scores_json(result),
        "gains": {name: _gain_json(**gain) for name, gain in result.gains.items()},
        "preprocessing_private": result.prepared.federations[0].touches_private_data,
        "warnings": plan.warnings,
        "grid": result.grid,
        "seconds": result.seconds,
        "run_dir": None if run_dir is None else str(run_dir),
        **crossing_json(plan),
        **_hazard_ratios(result),
    }


def _hazard_ratios(result: Result) -> dict[str, Any]:
    """Of survival regression: how many times the hazard is from the low end of a feature to its high one, two apart."""
    federation, loss = result.prepared.federations[0], result.prepared.builder.problem.objective.cost.name
    if loss != "piecewise-exponential":
        return {}
    ratios = np.exp(2.0 * np.asarray(result.params["linear"]["w"])[..., 0])
    names = federation.feature_names or tuple(map(str, range(ratios.shape[1])))
    return {"hazard_ratios": {name: summary(own) for name, own in zip(names, ratios.T, strict=True)}}


def _silo_json(plan: Plan, silo: SiloPlan, spent: float | None) -> dict[str, Any]:
    price = silo.price
    return {
        "name": silo.name,
        "records": silo.records,
        "epsilon": None if price is None else price.epsilon,
        "epsilon_spent": spent,
        "delta": None if price is None else price.delta,
        "noise_multiplier": {} if price is None else silo.multipliers,
        "epsilon_without_shuffler": None if price is None else without_shuffler(silo.events, delta=price.delta),
        "risk": None if price is None else vars(risk_of_price(price)),
        "user_level": user_level_of(plan, silo),
    }


def _scores_json(result: Result) -> dict[str, Any]:
    """Scores by model over seeds: on the test records of all silos, and of one model by silo."""
    found: dict[str, Any] = {}
    for model in dict.fromkeys(row.model for row in result.scores):
        rows = [row for row in result.scores if row.model == model]
        by = {
            silo: averaged([row.values for row in rows if row.silo == silo])
            for silo in dict.fromkeys(r.silo for r in rows)
        }
        found[model] = {"all": by.pop(ALL_SILOS), "silos": by}
    federation = result.prepared.federations[0]
    told = {
        "target": None if federation.target is None else federation.target.column,
        "classes": classes_of(federation),
    }
    return {**told, "calibration": CALIBRATION, "models": found} if found else {}


def _gain_json(together: np.ndarray, alone: np.ndarray) -> dict[str, Any]:
    """The error on a silo's own test records, of the model of all silos and of its own, and by how much it falls."""
    return {"together": summary(together), "alone": summary(alone), "gain": summary(alone - together)}


def _summaries(values: dict[str, np.ndarray]) -> dict[str, dict[str, float]]:
    return {name: summary(column) for name, column in values.items()}


def typed_command() -> str:
    """The command that the user has typed; not for a process that another program has started."""
    return shlex.join(["tacit", *sys.argv[1:]])


def provenance(command: str) -> dict[str, Any]:
    """What made a result: versions, machine, date, command and revision."""
    packages = ("tacit", "jax", "jaxlib", "numpy", "scipy", "dp-accounting")
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "devices": [str(device) for device in jax.devices()],
        "versions": {name: version(name) for name in packages},
        "tacit_revision": _revision(),
    }


def _revision(home: Path = Path(__file__).parent) -> str | None:
    """Tacit's own revision: of the checkout that holds this file, or that pip installed from.

    An installed package may lie inside a repository of the user's, whose revision says nothing about Tacit.
    """
    if _git(home, "ls-files", "--error-unmatch", Path(__file__).name) is not None:
        return _git(home, "describe", "--always", "--dirty", "--abbrev=12")
    try:
        told = json.loads(distribution("tacit").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return None
    commit = told.get("vcs_info", {}).get("commit_id")
    return None if commit is None else str(commit)[:12]


def _git(home: Path, *words: str) -> str | None:
    try:
        run = subprocess.run(["git", *words], cwd=home, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.strip() or None


def new_folder(parent: Path, study: Study) -> Path:
    """A fresh folder for a run; an existing one is never written over."""
    stamp = datetime.datetime.now(datetime.UTC).strftime("%Y%m%d-%H%M%S")
    for suffix in ("", *(f"-{i}" for i in range(2, 100))):
        folder = parent / f"{study.name}-{stamp}{suffix}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise FileExistsError(f"Could not make a new folder under {parent}.")


def stages_of(folder: Path) -> Path:
    """Where a run folder keeps how far it is, until it is finished."""
    return folder / "stages"


def start(folder: Path, study: Study) -> None:
    """Write what a run folder holds before the first round: the resolved study, and room for stages."""
    stages_of(folder).mkdir(exist_ok=True)
    write_study(folder, study)


def write_study(folder: Path, study: Study) -> None:
    """Write the resolved study, which can be run again."""
    resolved = study.model_dump(exclude_none=True, mode="json")
    (folder / "study.toml").write_text(tomli_w.dumps(resolved), encoding="utf-8")


def write_provenance(folder: Path) -> None:
    """Write what made a result, by the command that the user has typed."""
    (folder / "provenance.json").write_text(json.dumps(provenance(typed_command()), indent=1), encoding="utf-8")


def write(result: Result, folder: Path) -> dict[str, Any]:
    """Write a run folder and return the result as plain data."""
    start(folder, result.prepared.study)
    written, apart = result_json(result, folder), folder / NOT_PRIVATE
    apart.mkdir(exist_ok=True)
    (apart / "README.md").write_text(_README, encoding="utf-8")
    (apart / "result.json").write_text(json.dumps(written, indent=1), encoding="utf-8")
    (folder / "result.json").write_text(json.dumps(unmeasured(written), indent=1), encoding="utf-8")
    write_provenance(folder)
    steps = [vars(step) for step in result.prepared.federations[0].steps]
    (folder / "preprocessing.json").write_text(json.dumps(steps, indent=1), encoding="utf-8")
    _write_metrics(result, apart / "metrics.csv")
    _write_scores(result, apart / "scores.csv")
    first, own = jax.tree.map(lambda leaf: leaf[0], (result.params, result.personal))
    write_bundle(folder, result.prepared, first, silo_prices(result.prepared.plan.silos), own)
    shutil.rmtree(stages_of(folder))
    return written


def write_bundle(
    folder: Path, prepared: Prepared, params: Params, prices: Sequence[SiloPrice], personal: Params | None = None
) -> None:
    """Write the model of one training, that of the first seed: these are its prices, not those of all seeds."""
    objective, federation = prepared.builder.problem.objective, prepared.federations[0]
    write_model(folder, prepared.study, objective, params, federation, prices, personal)


def unmeasured(written: Mapping[str, Any]) -> dict[str, Any]:
    """A result without what was measured on records without noise."""
    return {**written, **_MEASURED, "not_private": NOT_PRIVATE}


def read_result(folder: Path) -> dict[str, Any]:
    """The whole result of a run folder, as far as it is there."""
    apart = folder / NOT_PRIVATE / "result.json"
    found: dict[str, Any] = json.loads((apart if apart.is_file() else folder / "result.json").read_text("utf-8"))
    return found


def metrics_path(folder: Path) -> Path:
    """The metrics by round; those of real silos are of public records, and lie with the rest."""
    apart = folder / NOT_PRIVATE / "metrics.csv"
    return apart if apart.is_file() else folder / "metrics.csv"


def _write_scores(result: Result, path: Path) -> None:
    """One row for each number: of which model, in which seed, on which records."""
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["run", "seed", "silo", "score", "value"])
        for row in result.scores:
            for name, value in flat_scores(row.values).items():
                rows.writerow([row.model, row.seed, row.silo or "all", name, f"{value:.6g}"])


def _write_metrics(result: Result, path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["run", "seed", "round", *result.trace])
        for label, trace in (("private", result.trace), ("non_private", result.open_trace)):
            for s, seed in enumerate(result.prepared.study.run.seed_list):
                for r, played in enumerate(result.rounds):
                    rows.writerow([label, seed, int(played), *(f"{trace[name][s, r]:.6g}" for name in trace)])
