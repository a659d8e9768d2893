"""The files of a deployed study, as far as a server can know them, and the prices that it can compute.

A silo's own ledger decides what it has spent. Plan and noise are public, so the server can price the same releases.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tacit.counting.request import parsed
from tacit.counting.shown import draw
from tacit.deploy.contract import builder_from, seat_of
from tacit.deploy.server.coordinator import Coordinator
from tacit.deploy.server.questions import answered
from tacit.deploy.wire import Plan, Receipt
from tacit.models import SiloPrice
from tacit.plans.catalogue import QUESTIONS
from tacit.plans.price import releases_of
from tacit.plans.spec import Study
from tacit.privacy import Event, PricingError, price, risk_of_price
from tacit.studies.bundle import write_deployed_model
from tacit.studies.folder import provenance
from tacit.studies.report import write_report
from tacit.studies.statistics import ALL_SILOS, read, statistics_json

_SAME = 1e-3
"""How far, relatively, the server's price of a silo's schedule may lie from the silo's own."""


def write_outcome(
    folder: Path,
    study: Study,
    coordinator: Coordinator,
    receipts: Mapping[str, Receipt],
    seconds: float,
    *,
    command: str,
) -> None:
    """Write result, metrics, model and report. ``command`` is the user's: that of this process holds a secret."""
    if study.algorithm.name in QUESTIONS:
        _write_statistics(folder, study, coordinator, receipts, command)
        return
    history = coordinator.point.history
    measured = [row for row in history if row.get("measured")]
    last = measured[-1]["measured"] if measured else {}
    silos = [_silo(coordinator, receipts, silo_index) for silo_index in range(len(coordinator.point.silos))]
    result = {
        "study": study.name,
        "algorithm": study.algorithm.name,
        "channel": study.algorithm.channel,
        "seeds": [0],
        "silos": silos,
        "metrics": {name: {"mean": value, "std": 0.0} for name, value in last.items()},
        "baselines": {"non_private": {}, "converged": {}, "alone": {}},
        "preprocessing_private": False,
        "grid": [],
        "seconds": seconds,
        "run_dir": str(folder),
        "deployment": {"rounds": [{k: v for k, v in row.items() if k != "measured"} for row in history]},
    }
    (folder / "result.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
    (folder / "provenance.json").write_text(json.dumps(provenance(command), indent=1), encoding="utf-8")
    (folder / "preprocessing.json").write_text("[]", encoding="utf-8")
    with (folder / "metrics.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["run", "seed", "round", *last])
        for row in measured:
            rows.writerow(["private", 0, row["round"], *(f"{row['measured'][name]:.6g}" for name in last)])
    write_deployed_model(
        folder,
        study,
        builder_from(coordinator.point.plan, coordinator.point.records[0]).problem.objective,
        coordinator.params,
        coordinator.point.plan,
        [_price(row, coordinator.point.plan) for row in silos],
        None if coordinator.description is None else coordinator.description.model_dump(),
    )
    write_report(folder)


def _price(row: Mapping[str, Any], plan: Plan) -> SiloPrice:
    """What a silo paid; where this process has not seen its consent, the plan's epsilon, which no silo goes beyond."""
    epsilon = plan.epsilon if row["epsilon"] is None else row["epsilon"]
    return SiloPrice(name=row["name"], records=row["records"], epsilon=epsilon, delta=row["delta"])


def _write_statistics(
    folder: Path, study: Study, coordinator: Coordinator, receipts: Mapping[str, Receipt], command: str
) -> None:
    """What silos said about their records, as plain data and as a picture; nothing was trained."""
    point = coordinator.point
    section = point.plan.algorithm
    tables = parsed(section["columns"], section["statistics"])
    told = answered(coordinator, tables)
    found = read(tables, told.sizes, told.means, told.noise)
    silos = [_silo(coordinator, receipts, silo_index) for silo_index in range(len(point.silos))]
    facts = statistics_json(study, silos, found)
    (folder / "statistics.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
    (folder / "provenance.json").write_text(json.dumps(provenance(command), indent=1), encoding="utf-8")
    draw(tables, found.rows[ALL_SILOS], folder / "statistics.png", study.name)


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
        "risk": _risk(coordinator, silo_index),
        "answers": None if receipt is None else receipt.answers,
        "ledger_entry": None if receipt is None else receipt.entry,
        "ledger_hash": None if receipt is None else receipt.hash,
    }


def _releases(coordinator: Coordinator, silo_index: int, answered: Counter[str] | None = None) -> tuple[Event, ...]:
    """A silo's releases: all of its plan, or those of the ``answered`` rounds of each kind.

    None are known of a silo whose consent this process has not seen.
    """
    point = coordinator.point
    consent = coordinator.consents.get(point.silos[silo_index])
    if consent is None:
        return ()
    plan = point.plan.model_copy(update={"silo_index": silo_index})
    builder = builder_from(plan, point.records[silo_index])
    seat = seat_of(plan, point.records[silo_index])
    [(kind, unit), *_] = [(event.kind, event.noise_multiplier) for event in releases_of(builder.noised(1.0), seat)]
    algorithm = builder.noised(np.float32(consent.noise_multipliers[kind] / unit))
    events = []
    for event in releases_of(algorithm, seat):
        steps = algorithm.rounds[event.kind].silo.local_steps
        count = event.count if answered is None else answered[event.kind] * steps
        if count:
            events.append(dataclasses.replace(event, count=count))
    return tuple(events)


def spent(coordinator: Coordinator) -> float | None:
    """The largest price of the answers so far; silos' own ledgers say it exactly."""
    point, epsilons = coordinator.point, []
    for silo_index, name in enumerate(point.silos):
        # A silo that was left out of a sum, or answered an attempt that failed, has paid for its answer.
        rows = [row for row in point.history if name in (*row["silos"], *row.get("left_out", ()))]
        more = [row["kind"] for row in point.history for roster in row.get("rosters", ())[:-1] if name in roster]
        events = _releases(coordinator, silo_index, Counter([*(row["kind"] for row in rows), *more]))
        if events:
            with contextlib.suppress(PricingError):
                epsilons.append(price(events, delta=point.plan.delta).epsilon)
    return max(epsilons, default=None)


def _risk(coordinator: Coordinator, silo_index: int) -> dict[str, Any] | None:
    """How well an attacker could do against a silo, from its schedule of releases, as in a simulation.

    None where the schedule is not known, or its price here is not the one that the silo named.
    """
    point = coordinator.point
    events = _releases(coordinator, silo_index)
    if not events:
        return None
    named = coordinator.consents[point.silos[silo_index]].epsilon
    try:
        paid = price(events, delta=point.plan.delta)
        return vars(risk_of_price(paid)) if abs(paid.epsilon - named) <= _SAME * named else None
    except PricingError:
        return None
