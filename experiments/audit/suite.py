"""The full audit: every algorithm in every setting, every canary, every search; written where people can read it."""

from __future__ import annotations

import datetime
import json
import platform
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax

import tacit
from experiments.audit.fair import printed_fair_claim
from experiments.audit.papers import EPSILONS, printed_claim
from experiments.folder import Parts, render
from tacit.algorithms import ALGORITHMS
from tacit.audit.mechanism import AuditResult, audit_mechanism
from tacit.audit.reconstruction import draw_picture, reconstruct
from tacit.audit.sensitivity import SensitivityResult, audit_extremes, audit_sensitivity
from tacit.audit.table import Setting, Subject, parameters_for, subjects
from tacit.audit.training import audit_training
from tacit.audit.worst_case import CANARIES
from tacit.objectives import Objective, Problem, linear, logistic, mlp, squared
from tacit.studies.spec import load_study

EPSILON, DELTA = 1.0, 1e-5
Say = Callable[[str], None]

_OBJECTIVES = {
    "logistic regression": (Objective(linear(3, 1), logistic()), 3),
    "least squares": (Objective(linear(3, 1, bias=False), squared()), 3),
    "two-layer network": (Objective(mlp((3, 4, 1)), logistic()), 3),
}
_CLIMBED = Setting("full batch", "full", 4, 3, None, None)


def key_for(label: str, seed: int) -> jax.Array:
    """A key of its own for each part of the audit, so that parts share no randomness."""
    return jax.random.fold_in(jax.random.key(seed), zlib.crc32(label.encode()))


def audit_subject(subject: Subject, canary: Any, *, trials: int, seed: int) -> AuditResult:
    """Attack one algorithm in one setting with one canary."""
    if subject.algorithm is None:
        raise ValueError(f"{subject.label} cannot be run: {subject.refusal}")
    return audit_mechanism(
        subject.algorithm,
        subject.seat,
        delta=DELTA,
        trials=trials,
        key=key_for(f"{subject.label} {canary}", seed),
        label=subject.label,
        canary=canary,
    )


def _row(subject: Subject, canary: Any, *, trials: int, seed: int) -> dict[str, Any]:
    return audit_subject(subject, canary, trials=trials, seed=seed).as_json()


def mechanisms(trials: int, seed: int, say: Say, parts: Parts) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The opposite canary on everything with all trials; the others, which only find bugs, on schedules with fewer."""
    rows, refused = [], {}
    for subject in subjects(epsilon=EPSILON, delta=DELTA):
        if subject.algorithm is None:
            refused[subject.label] = subject.refusal
            continue
        several = subject.setting.channel == "direct" and subject.setting.name == "schedule"
        for canary in CANARIES if several else CANARIES[:1]:
            share = subject.setting.share if canary == CANARIES[0] else 0.05
            attack = partial(_row, subject, canary, trials=max(int(trials * share), 2000), seed=seed)
            found = parts.get(f"{subject.label}, {canary}", attack)
            rows.append(found | {"required": subject.setting.tight if canary == CANARIES[0] else None})
            say(f"{subject.label}, {canary}: {found['epsilon_lower_bound']:.3f} of {found['epsilon_claimed']}")
    return rows, refused


def sensitivities(seed: int, say: Say) -> list[dict[str, Any]]:
    """Both searches for every algorithm that can be run with full batches, on three kinds of model."""
    rows = []
    for name, (objective, features) in _OBJECTIVES.items():
        for entry in ALGORITHMS.values():
            try:
                problem = Problem(objective, smoothness=1.0, lipschitz=1.0, radius=1.0)
                algorithm = entry.build(problem, **parameters_for(entry, _CLIMBED), noise_multiplier=2.0)
            except ValueError:
                continue
            key = key_for(f"{entry.name} {name}", seed)
            for search, found in (
                ("gradient ascent", audit_sensitivity(algorithm, objective, features, key=key)),
                ("whole float range", audit_extremes(algorithm, objective, features, key=key)),
            ):
                rows += [_sensitivity_row(entry.name, name, search, result) for result in found]
                say(f"{entry.name}, {name}, {search}: {max(result.largest for result in found):.4f}")
    return rows


def _sensitivity_row(algorithm: str, model: str, search: str, result: SensitivityResult) -> dict[str, Any]:
    return {
        "algorithm": algorithm,
        "model": model,
        "kind": result.kind,
        "search": search,
        "largest_share": result.largest,
        "tries": result.tries,
        "violated": result.violated,
    }


def run(folder: Path, *, trials: int, seed: int, say: Say) -> dict[str, Any]:
    """Everything, written as ``audit.json``, ``audit.md`` and ``reconstruction.png``."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = Parts(folder / "parts.json", {"version": tacit.__version__, "trials": trials, "seed": seed})
    rows, refused = mechanisms(trials, seed, say, parts)
    half = max(trials // 2, 1000)
    papers = [printed_claim(epsilon, trials=half, seed=seed) for epsilon in EPSILONS]
    papers += [printed_fair_claim(1.0, trials=half, seed=seed, epochs=epochs) for epochs in (False, True)]
    study = load_study("heart-disease")
    runs = [
        audit_training(load_study("heart-disease", [f"privacy.epsilon={e:g}"]), seed=seed).as_json() for e in (1.0, 8.0)
    ]
    picture = reconstruct(epsilon=EPSILON, delta=DELTA, seed=seed)
    draw_picture(picture, folder / "reconstruction.png")
    found = {
        "made": {
            "command": command(trials, seed),
            "version": tacit.__version__,
            "seed": seed,
            "machine": platform.platform(),
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        },
        "setting": {"epsilon": EPSILON, "delta": DELTA, "trials": trials},
        "mechanisms": rows,
        "refused": refused,
        "sensitivity": sensitivities(seed, say),
        "one_run": [{"study": study.name, **row} for row in runs],
        "papers": [paper.as_json() for paper in papers],
        "reconstruction": picture.as_json(),
    }
    found["violations"] = violations(found)
    (folder / "audit.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    (folder / "audit.md").write_text(page(found), encoding="utf-8")
    parts.path.unlink()
    return found


def violations(found: dict[str, Any]) -> list[str]:
    """Every claim of ours that the audit refutes, and every audit that is less tight than it must be."""
    said = []
    for row in found["mechanisms"]:
        if row["violated"]:
            said.append(
                f"{row['label']}, canary {row['canary']}: claimed {row['epsilon_claimed']:.3f}, "
                f"proven {row['epsilon_lower_bound']:.3f}"
            )
        elif row["required"] is not None and row["tightness"] < row["required"]:
            said.append(f"{row['label']}: tightness {row['tightness']:.2f} below {row['required']}")
    for row in found["sensitivity"]:
        if row["violated"]:
            said.append(
                f"{row['algorithm']} on {row['model']}, {row['kind']}, {row['search']}: {row['largest_share']:.4g} "
                "times the priced sensitivity"
            )
    return said + [f"one run of {row['study']}" for row in found["one_run"] if row["violated"]]


def page(found: dict[str, Any]) -> str:
    """The findings for people."""
    setting = found["setting"]
    return render("audit.md.j2", **found, now=command(setting["trials"], found["made"]["seed"]))


def command(trials: int, seed: int) -> str:
    """What makes these findings."""
    return f"python -m experiments.audit --trials {trials} --seed {seed}"
