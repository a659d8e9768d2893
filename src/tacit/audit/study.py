"""The audit of a study: its own algorithm, schedule, sampling, noise and silo sizes, under attack.

A study that daemons take is attacked at the door of a silo, as its daemon would build and answer it. One that can only
be simulated is attacked in the simulator, and every result says so. Transcripts are of a problem of the attacker's,
which makes a silo say most. On the study's own model and form of records, hostile broadcasts search for the record
that moves a sum farther than is priced.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tacit.audit.deployed import DoorTarget, deploy, proposed
from tacit.audit.mechanism import FEWEST_TRIALS, AuditError, AuditResult, Target, audit_mechanism
from tacit.audit.reconstruction import draw_picture, reconstruct
from tacit.audit.sensitivity import Ground, SensitivityResult, audit_hostile_points
from tacit.audit.simulated import Seat, SimulatedTarget
from tacit.audit.worst_case import CANARIES, Canary, attackers_problem
from tacit.errors import TacitError
from tacit.plans.spec import Study
from tacit.studies.plan import peers_at
from tacit.studies.report import write_report
from tacit.studies.run import Prepared, prepare

FILE = "audit.json"
_POINTS, _SECONDS = 1 << 10, 12.0
"""Hostile broadcasts that are tried for each kind of round, and how much computing at most for all of them."""


def audit_study(
    study: Study,
    *,
    trials: int,
    kind: str | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    canaries: Sequence[Canary] = CANARIES,
) -> dict[str, Any]:
    """Attack one silo with every canary: of those that pay most, the one with the fewest records.

    Returns the finding as plain data. ``epsilon_lower_bound`` and its companions are those of the canary that proves
    most; ``results`` has all of them, and ``sensitivity`` the farthest that a record moved each kind of round.
    """
    prepared = prepare(study)
    if not study.privacy.private:
        raise AuditError(f"Expected a private study, got {study.name} without a budget; set privacy.epsilon.")
    silos = prepared.plan.silos
    dearest = max(silo.price.epsilon for silo in silos if silo.price is not None)
    rank = [(s.price is None or s.price.epsilon < 0.99 * dearest, s.records) for s in silos]
    silo_index = min(range(len(silos)), key=rank.__getitem__)
    target = target_of(prepared, silo_index)
    # In the simulator, as the study's plan prices it, all its releases together.
    claim = silos[silo_index].price if kind is None and target.path == "simulated" else None
    results = [
        audit_mechanism(
            target,
            # The first proves most; the others look for bugs, which show at once.
            trials=trials if i == 0 else max(trials // 10, FEWEST_TRIALS),
            # Each canary is a bound of its own: the confidence of the best of them is shared out.
            confidence=1 - (1 - confidence) / len(canaries),
            seed=seed + i,
            label=f"{study.name}, {silos[silo_index].name}",
            canary=canary,
            kind=kind,
            claim=claim,
        )
        for i, canary in enumerate(canaries)
    ]
    moved = [own for own in search_points(prepared, silo_index, seed) if kind in (None, own.kind)]
    return _finding(study, silos[silo_index].name, kind, results, confidence, moved)


def search_points(prepared: Prepared, silo_index: int, seed: int) -> list[SensitivityResult]:
    """Hostile broadcasts to the silo at a place of a study, on the study's own model and form of records."""
    algorithm, federation = prepared.builder.build(**prepared.plan.parameters), prepared.federations[0]
    record = {name: leaf for name, leaf in prepared.record.items() if name in ("x", "y")}
    classes = federation.num_classes or 2
    ground = Ground(algorithm, prepared.builder.problem, record, classes, silo_index)
    return audit_hostile_points(ground, seed=seed, tries=_POINTS, seconds=_SECONDS)


def target_of(prepared: Prepared, silo_index: int) -> Target:
    """The silo at a place of a study: behind its door where daemons take the study, else in the simulator."""
    silos, study = prepared.plan.silos, prepared.study
    try:
        plan = proposed(prepared).model_copy(update={"silo_index": silo_index})
        return DoorTarget(deploy(plan, tuple(silo.records for silo in silos)))
    except TacitError:
        algorithm = dataclasses.replace(prepared.builder, problem=attackers_problem()).build(**prepared.plan.parameters)
        cap, peers = study.privacy.max_participations, peers_at(prepared.plan)
        seat = Seat(silos[silo_index].records, silo_index, len(silos), cap, peers)
        return SimulatedTarget(algorithm, seat, study.privacy.delta)


def _finding(
    study: Study,
    silo: str,
    kind: str | None,
    results: list[AuditResult],
    confidence: float,
    moved: list[SensitivityResult],
) -> dict[str, Any]:
    best = max(results, key=lambda result: result.epsilon_lower_bound)
    return {
        "study": study.name,
        "algorithm": study.algorithm.name,
        "silo": silo,
        "path": best.path,
        "kind": kind,
        "delta": best.delta,
        "epsilon_claimed": best.epsilon_claimed if np.isfinite(best.epsilon_claimed) else None,
        "epsilon_lower_bound": best.epsilon_lower_bound,
        "confidence": confidence,
        "trials": sum(result.trials for result in results),
        "tightness": best.tightness,
        "violated": any(result.violated for result in results) or any(own.violated for own in moved),
        "results": [result.as_json() for result in results],
        "sensitivity": [result.as_json() for result in moved],
    }


def check_folder(folder: Path) -> None:
    """Refuse what is not a run folder, before a long audit rather than after it."""
    if not (folder / "result.json").is_file():
        raise AuditError(f"Expected a run folder at {folder}; make one with `tacit run`.")


def write_audit(folder: Path, finding: dict[str, Any], *, picture: bool = False) -> Path:
    """Put a finding into a run folder, where the report looks for it, and write the report anew."""
    check_folder(folder)
    (folder / FILE).write_text(json.dumps(finding, indent=2) + "\n", encoding="utf-8")
    if picture:
        draw_picture(reconstruct(), folder / "reconstruction.png")
    return write_report(folder)
