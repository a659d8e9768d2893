"""The run folder: resolved study, result, metrics by round, model, preprocessing and provenance."""

from __future__ import annotations

import csv
import datetime
import json
import platform
import shlex
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tomli_w

from tacit.algorithm import GUARANTEES
from tacit.plans.spec import Study
from tacit.privacy import risk_of_price
from tacit.privacy.parties import parties, without_shuffler
from tacit.privacy.plan import SiloPlan
from tacit.studies.plan import Plan, crossing_json, user_level_of
from tacit.studies.run import Result, summary


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
        "gains": {name: _gain_json(**gain) for name, gain in result.gains.items()},
        "preprocessing_private": result.prepared.federations[0].touches_private_data,
        "warnings": plan.warnings,
        "grid": result.grid,
        "seconds": result.seconds,
        "run_dir": None if run_dir is None else str(run_dir),
        **crossing_json(plan),
    }


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
        "git_revision": _revision(),
    }


def _revision() -> str | None:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        run = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=True)
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
    written = result_json(result, folder)
    (folder / "result.json").write_text(json.dumps(written, indent=1), encoding="utf-8")
    write_provenance(folder)
    steps = [vars(step) for step in result.prepared.federations[0].steps]
    (folder / "preprocessing.json").write_text(json.dumps(steps, indent=1), encoding="utf-8")
    _write_metrics(result, folder / "metrics.csv")
    # One model, that of the first seed: epsilon is the price of one training, not of one for each seed.
    tree = jax.tree_util.tree_leaves_with_path(result.params)
    leaves = {jax.tree_util.keystr(path): leaf[0] for path, leaf in tree}
    np.savez(folder / "model.npz", allow_pickle=False, **leaves)
    shutil.rmtree(stages_of(folder))
    return written


def _write_metrics(result: Result, path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["run", "seed", "round", *result.trace])
        for label, trace in (("private", result.trace), ("non_private", result.open_trace)):
            for s, seed in enumerate(result.prepared.study.run.seed_list):
                for r, played in enumerate(result.rounds):
                    rows.writerow([label, seed, int(played), *(f"{trace[name][s, r]:.6g}" for name in trace)])
