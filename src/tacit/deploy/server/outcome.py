"""The run folder of a deployed study: the files that a simulation leaves, as far as a server can know them."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tacit.deploy.server.coordinator import Coordinator
from tacit.deploy.server.prices import risk_at
from tacit.deploy.wire import Receipt
from tacit.plans.spec import Study
from tacit.studies.folder import provenance
from tacit.studies.report import write_report


def write_outcome(
    folder: Path,
    study: Study,
    coordinator: Coordinator,
    receipts: Mapping[str, Receipt],
    seconds: float,
    *,
    command: str,
) -> dict[str, Any]:
    """Write result, metrics, model and report; ``command`` is the user's, as this process' own holds a secret."""
    history = coordinator.point.history
    measured = [row for row in history if row.get("measured")]
    last = measured[-1]["measured"] if measured else {}
    found = {
        "study": study.name,
        "algorithm": study.algorithm.name,
        "channel": study.algorithm.channel,
        "seeds": [0],
        "silos": [_silo(coordinator, receipts, silo_index) for silo_index in range(len(coordinator.point.silos))],
        "metrics": {name: {"mean": value, "std": 0.0} for name, value in last.items()},
        "baselines": {"non_private": {}, "alone": {}},
        "preprocessing_private": False,
        "grid": [],
        "seconds": seconds,
        "run_dir": str(folder),
        "deployment": {"rounds": [{k: v for k, v in row.items() if k != "measured"} for row in history]},
    }
    (folder / "result.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    (folder / "provenance.json").write_text(json.dumps(provenance(command), indent=1), encoding="utf-8")
    (folder / "preprocessing.json").write_text("[]", encoding="utf-8")
    with (folder / "metrics.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["run", "seed", "round", *last])
        for row in measured:
            rows.writerow(["private", 0, row["round"], *(f"{row['measured'][name]:.6g}" for name in last)])
    leaves = jax.tree_util.tree_leaves_with_path(coordinator.params)
    arrays = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}
    np.savez(folder / "model.npz", allow_pickle=False, **arrays)
    write_report(folder)
    return found


def _silo(coordinator: Coordinator, receipts: Mapping[str, Receipt], silo_index: int) -> dict[str, Any]:
    point = coordinator.point
    name = point.silos[silo_index]
    consent, receipt = coordinator.consents.get(name), receipts.get(name)
    return {
        "name": name,
        "records": point.records[silo_index],
        "epsilon": None if consent is None else consent.epsilon,
        "epsilon_spent": None if receipt is None else receipt.epsilon,
        "delta": point.plan.delta,
        "noise_multiplier": {} if consent is None else dict(consent.noise_multipliers),
        "risk": risk_at(coordinator, silo_index),
        "answers": None if receipt is None else receipt.answers,
        "ledger_entry": None if receipt is None else receipt.entry,
        "ledger_hash": None if receipt is None else receipt.hash,
    }
