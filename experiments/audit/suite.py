"""The full audit: every algorithm in every setting, every canary, every search; written where people can read it."""

from __future__ import annotations

import datetime
import json
import platform
import zlib
from collections.abc import Callable, Container
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.audit import questions
from experiments.audit.fair import printed_fair_claim
from experiments.audit.journal import Journal, Part, code, words
from experiments.audit.papers import EPSILONS, printed_claim
from experiments.audit.searches import audit_extremes, audit_hostile_points, audit_sensitivity
from experiments.audit.table import SETTINGS, Setting, Subject, parameters_for, subject, subjects
from experiments.audit.training import audit_training, wide_study
from experiments.folder import render
from tacit.algorithm import Algorithm
from tacit.audit.mechanism import AuditResult, audit_mechanism
from tacit.audit.reconstruction import draw_picture, reconstruct
from tacit.audit.sensitivity import SensitivityResult
from tacit.audit.worst_case import CANARIES
from tacit.objectives import Objective, Problem, linear, logistic, mlp, squared
from tacit.plans.catalogue import ALGORITHMS, Entry, find, shipped
from tacit.plans.spec import load_study

EPSILON, DELTA = 1.0, 1e-5
Say = Callable[[str], None]

_OBJECTIVES = {
    "logistic regression": (Objective(linear(3, 1), logistic()), 3),
    "least squares": (Objective(linear(3, 1, bias=False), squared()), 3),
    "two-layer network": (Objective(mlp((3, 4, 1)), logistic()), 3),
    "two-layer network, squared": (Objective(mlp((3, 4, 1)), squared()), 3),
}
_CLIMBED = (
    Setting("full batch", "full", 4, 3, None, None),
    Setting("shuffled sum", "full", 4, 3, None, None, "shuffled-sum"),
)
_SEARCHES: dict[str, Callable[..., list[SensitivityResult]]] = {
    "gradient ascent": audit_sensitivity,
    "whole float range": audit_extremes,
    "hostile points": audit_hostile_points,
}
# What a release costs beside one at the door (`experiments.audit.costs`): a simulated one next to nothing.
_COSTS = {"shuffled-sum": 1.6, "shuffled-reports": 2.2, "pairwise": 2.1}
_SIMULATED = 0.05
_SEARCHED = 1e5
_BRIEF = 3e4
_WHOLE = (("heart-disease", 8.0), ("wide", 1.0), ("wide", 4.0), ("wide", 8.0))


def seed_for(label: str, seed: int) -> int:
    """A seed of its own for each part of the audit, so that parts share no randomness."""
    return zlib.crc32(f"{seed} {label}".encode())


def audit_subject(subject: Subject, canary: Any, *, trials: int, seed: int) -> AuditResult:
    """Attack one algorithm in one setting with one canary."""
    if subject.target is None:
        raise ValueError(f"{subject.label} cannot be run: {subject.refusal}")
    seed = seed_for(f"{subject.label} {canary}", seed)
    return audit_mechanism(subject.target, trials=trials, seed=seed, label=subject.label, canary=canary)


def _attacked(algorithm: str, setting: str, canary: Any, trials: int, seed: int) -> dict[str, Any]:
    """The row of one attack, from names alone, as a process of its own makes it."""
    [found] = [own for own in SETTINGS if own.name == setting]
    some = subject(find(algorithm), found, epsilon=EPSILON, delta=DELTA)
    return audit_subject(some, canary, trials=trials, seed=seed).as_json()


def _questioned(name: str, setting: str, trials: int, seed: int) -> dict[str, Any]:
    """The row of one question in one setting."""
    target = questions.target_of(name, questions.SETTINGS[setting], epsilon=EPSILON, delta=DELTA)
    return audit_mechanism(target, trials=trials, seed=seed, label=f"{name}, {setting}").as_json()


def mechanisms(
    trials: int, seed: int, say: Say, journal: Journal, algorithms: Container[str] = tuple(shipped()), jobs: int = 1
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Every algorithm in its settings, under their canaries, and every question."""
    parts, required, refused = [], {}, {}
    for some in subjects(epsilon=EPSILON, delta=DELTA, algorithms=algorithms):
        if some.target is None:
            refused[some.label] = some.refusal
            continue
        setting, weight = some.setting, trials * units(some)
        for canary in setting.canaries:
            name, given = f"{some.label}, {canary}", (some.entry.name, setting.name, canary, trials, seed)
            parts.append(Part(name, weight, _attacked, given))
            required[name] = setting.tight
    for question in questions.QUESTIONS:
        for setting in questions.settings_of(question) if question.split(" (")[0] in algorithms else ():
            name, asked = f"{question}, {setting.name}, {CANARIES[0]}", (question, setting.name, trials, seed)
            parts.append(Part(name, trials * _COSTS.get(setting.channel, 1.0), _questioned, asked))
            required[name] = setting.tight
    journal.fill(parts, jobs=jobs, say=say)
    return [journal.rows[part.name] | {"required": required[part.name]} for part in parts], refused


def units(some: Subject) -> float:
    """What a trial costs, in releases at the door."""
    assert some.target is not None
    built = some.target.algorithm
    releases = sum(built.rounds[kind].silo.local_steps for kind in built.schedule)
    return releases * (_SIMULATED if some.target.path == "simulated" else _COSTS.get(some.setting.channel, 1.0))


def _searched(algorithm: str, model: str, setting: int, seed: int) -> list[dict[str, Any]]:
    """The rows of all searches for one algorithm and model; none where it cannot be run that way."""
    objective, features = _OBJECTIVES[model]
    built = _climbed(find(algorithm), objective, _CLIMBED[setting])
    if built is None:
        return []
    own = seed_for(f"{algorithm} {model} {setting}", seed)
    return [
        _sensitivity_row(f"{algorithm}, {_CLIMBED[setting].name}", model, name, result)
        for name, search in _SEARCHES.items()
        for result in search(built, objective, features, seed=own)
    ]


def _climbed(entry: Entry, objective: Objective, setting: Setting) -> Algorithm | None:
    """An algorithm to search, with full batches or, where it demands that, in one pass."""
    problem = Problem(objective, smoothness=1.0, lipschitz=1.0, radius=1.0)
    for own in (setting, replace(setting, sampling="one-pass", batch=1)):
        with suppress(ValueError):
            return entry.build(problem, **parameters_for(entry, own), noise_multiplier=2.0)
    return None


def sensitivities(seed: int, say: Say, journal: Journal, jobs: int = 1) -> list[dict[str, Any]]:
    """All searches for every algorithm, on four kinds of model."""
    parts = [
        Part(
            f"sensitivity of {name}, {_CLIMBED[setting].name}, {model}",
            _SEARCHED,
            _searched,
            (name, model, setting, seed),
        )
        for model in _OBJECTIVES
        for name in ALGORITHMS
        for setting in range(len(_CLIMBED))
    ]
    journal.fill(parts, jobs=jobs, say=say)
    return [row for part in parts for row in journal.rows[part.name]]


def _sensitivity_row(algorithm: str, model: str, search: str, result: SensitivityResult) -> dict[str, Any]:
    return {"algorithm": algorithm, "model": model, "search": search, **result.as_json()}


def printed(trials: int, seed: int, say: Say, journal: Journal, jobs: int = 1) -> list[dict[str, Any]]:
    """Printed claims of papers under attack."""
    parts = [Part(f"printed claim, {epsilon}", _BRIEF, _claim, (epsilon, trials, seed)) for epsilon in EPSILONS]
    parts += [
        Part(
            f"printed design, {'fixed epochs' if epochs else 'fresh batches'}", _BRIEF, _design, (epochs, trials, seed)
        )
        for epochs in (False, True)
    ]
    journal.fill(parts, jobs=jobs, say=say)
    return [journal.rows[part.name] for part in parts]


def _claim(epsilon: float, trials: int, seed: int) -> dict[str, Any]:
    return printed_claim(epsilon, trials=trials, seed=seed).as_json()


def _design(epochs: bool, trials: int, seed: int) -> dict[str, Any]:
    return printed_fair_claim(1.0, trials=trials, seed=seed, epochs=epochs).as_json()


def whole_runs(seed: int, say: Say, journal: Journal, jobs: int = 1) -> list[dict[str, Any]]:
    """One training run of each of a few studies, with canaries."""
    parts = [Part(f"one run of {name}, {epsilon}", _BRIEF, _one_run, (name, epsilon, seed)) for name, epsilon in _WHOLE]
    journal.fill(parts, jobs=jobs, say=say)
    return [journal.rows[part.name] for part in parts]


def _one_run(name: str, epsilon: float, seed: int) -> dict[str, Any]:
    study = wide_study(epsilon) if name == "wide" else load_study(name, [f"privacy.epsilon={epsilon:g}"])
    return {"study": study.name, **audit_training(study, seed=seed, confidence=0.99).as_json()}


def run(folder: Path, *, trials: int, seed: int, say: Say, jobs: int = 1) -> dict[str, Any]:
    """Everything, written as ``audit.json``, ``audit.md`` and ``reconstruction.png``."""
    folder.mkdir(parents=True, exist_ok=True)
    journal = Journal(folder / "journal.jsonl", trials=trials, seed=seed)
    rows, refused = mechanisms(trials, seed, say, journal, jobs=jobs)
    moved = sensitivities(seed, say, journal, jobs)
    papers = printed(trials, seed, say, journal, jobs)
    runs = whole_runs(seed, say, journal, jobs)
    picture = reconstruct(epsilon=EPSILON, delta=DELTA)
    draw_picture(picture, folder / "reconstruction.png")
    found = {
        "made": {
            "command": command(trials, seed),
            **code(),
            "seed": seed,
            "machine": platform.platform(),
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "duration": f"{words(sum(journal.seconds.values()))} of all parts together",
        },
        "setting": {"epsilon": EPSILON, "delta": DELTA, "trials": trials},
        "mechanisms": rows,
        "refused": refused,
        "sensitivity": moved,
        "one_run": runs,
        "papers": papers,
        "reconstruction": picture.as_json(),
    }
    found["violations"] = violations(found)
    (folder / "audit.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    (folder / "audit.md").write_text(page(found), encoding="utf-8")
    return found


def _proven(row: dict[str, Any]) -> float:
    """What a row proves where hundreds of rows are judged at once: all of them are right with 95% or more."""
    return float(row["lower_bounds"].get("0.9999", row["lower_bounds"]["0.99"]))


def violations(found: dict[str, Any]) -> list[str]:
    """Every claim of ours that the audit refutes, and every audit that is less tight than it must be."""
    said = []
    for row in found["mechanisms"]:
        if row["epsilon_claimed"] is not None and _proven(row) > row["epsilon_claimed"]:
            said.append(
                f"{row['label']}, canary {row['canary']}: claimed {row['epsilon_claimed']:.3f}, "
                f"proven {_proven(row):.3f}"
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
