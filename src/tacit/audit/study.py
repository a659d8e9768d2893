"""The audit of a study: its own algorithm, schedule, sampling, noise and silo sizes, under attack."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tacit.audit.mechanism import AuditError, AuditResult, audit_mechanism, claim_of
from tacit.audit.reconstruction import draw_picture, reconstruct
from tacit.audit.transcript import Seat
from tacit.audit.worst_case import CANARIES, Canary, attackers_problem
from tacit.errors import unknown
from tacit.studies.report import write_report
from tacit.studies.run import prepare
from tacit.studies.spec import Study

FILE = "audit.json"


def audit_study(
    study: Study,
    *,
    trials: int,
    kind: str | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    canaries: Sequence[Canary] = CANARIES,
) -> dict[str, Any]:
    """Attack the silo with the fewest records, the cheapest to attack of those that pay most, with every canary.

    The finding as plain data. ``epsilon_lower_bound`` and its companions are those of the canary that proves most;
    ``results`` has all of them.
    """
    prepared = prepare(study)
    if not study.privacy.private:
        raise AuditError(f"Expected a private study, got {study.name} without a budget; set privacy.epsilon.")
    silos = prepared.plan.silos
    dearest = max(silo.price.epsilon for silo in silos if silo.price is not None)
    rank = [(s.price is None or s.price.epsilon < 0.99 * dearest, s.records) for s in silos]
    place = min(range(len(silos)), key=rank.__getitem__)
    algorithm = dataclasses.replace(prepared.builder, problem=attackers_problem()).build(**prepared.plan.parameters)
    if kind is not None and kind not in algorithm.rounds:
        raise AuditError(unknown("kind of round", kind, algorithm.rounds))
    seat = Seat(silos[place].records, place, len(silos), study.privacy.max_participations)
    claim = silos[place].price if kind is None else claim_of(algorithm, seat, study.privacy.delta, kind)
    keys = jax.random.split(jax.random.key(seed), len(canaries))
    results = [
        audit_mechanism(
            algorithm,
            seat,
            delta=study.privacy.delta,
            trials=trials,
            # Each canary is a bound of its own: the confidence of the best of them is shared out.
            confidence=1 - (1 - confidence) / len(canaries),
            key=key,
            label=f"{study.name}, {silos[place].name}",
            canary=canary,
            kind=kind,
            claim=claim,
        )
        for key, canary in zip(keys, canaries, strict=True)
    ]
    return _finding(study, silos[place].name, kind, results, confidence)


def _finding(
    study: Study, silo: str, kind: str | None, results: list[AuditResult], confidence: float
) -> dict[str, Any]:
    best = max(results, key=lambda result: result.epsilon_lower_bound)
    return {
        "study": study.name,
        "algorithm": study.algorithm.name,
        "silo": silo,
        "kind": kind,
        "delta": best.delta,
        "epsilon_claimed": best.epsilon_claimed if np.isfinite(best.epsilon_claimed) else None,
        "epsilon_lower_bound": best.epsilon_lower_bound,
        "confidence": confidence,
        "trials": sum(result.trials for result in results),
        "tightness": best.tightness,
        "violated": any(result.violated for result in results),
        "results": [result.as_json() for result in results],
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
