"""The full audit: every algorithm in every setting, every canary, every search; written where people can read it."""

from __future__ import annotations

import datetime
import json
import platform
import zlib
from collections.abc import Callable, Container, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import jax

import tacit
from experiments.audit.fair import printed_fair_claim
from experiments.audit.papers import EPSILONS, Exceeded, printed_claim
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


class Journal:
    """Rows already found, so that a long audit that was stopped goes on where it was; one file for each setting."""

    def __init__(self, file: Path, *, trials: int, seed: int) -> None:
        self.file, head = file, {"version": tacit.__version__, "trials": trials, "seed": seed}
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        if not lines or json.loads(lines[0]) != head:
            lines = [json.dumps(head)]
            file.write_text(lines[0] + "\n", encoding="utf-8")
        self.rows = dict(json.loads(line) for line in lines[1:])

    def row(self, name: str, make: Callable[[], AuditResult]) -> dict[str, Any]:
        """The row of this name: from the file, or made now and kept."""
        if name not in self.rows:
            self.rows[name] = make().as_json()
            with self.file.open("a", encoding="utf-8") as file:
                file.write(json.dumps([name, self.rows[name]]) + "\n")
        return dict(self.rows[name])


def mechanisms(
    trials: int, seed: int, say: Say, journal: Journal, algorithms: Container[str] = tuple(ALGORITHMS)
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The opposite canary on everything with all trials; the others, which only find bugs, on schedules with fewer."""
    rows, refused = [], {}
    for subject in subjects(epsilon=EPSILON, delta=DELTA):
        if subject.entry.name not in algorithms:
            continue
        if subject.algorithm is None:
            refused[subject.label] = subject.refusal
            continue
        several = subject.setting.channel == "direct" and subject.setting.name == "schedule"
        for canary in CANARIES if several else CANARIES[:1]:
            share = subject.setting.share if canary == CANARIES[0] else 0.05
            attack = partial(audit_subject, subject, canary, trials=max(int(trials * share), 2000), seed=seed)
            found = journal.row(f"{subject.label}, {canary}", attack)
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
    journal = Journal(folder / "journal.jsonl", trials=trials, seed=seed)
    rows, refused = mechanisms(trials, seed, say, journal)
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
            "command": f"python -m experiments.audit --trials {trials} --seed {seed}",
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
    (folder / "audit.md").write_text(as_markdown(found, papers), encoding="utf-8")
    journal.file.unlink()
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


def as_markdown(found: dict[str, Any], papers: Iterable[Exceeded]) -> str:
    """The findings for people."""
    made = "; ".join(f"{name}: {value}" for name, value in found["made"].items())
    broken = "\n".join(f"- {line}" for line in found["violations"]) or "None."
    lines = ["# Attacks on our own guarantee", "", made, "", "## Violations", "", broken, "", "## Mechanisms", ""]
    lines += [
        f"Claimed epsilon = {EPSILON:g} at delta = {DELTA:g}, transcripts of one silo against a hostile server. Lower "
        "bounds at 95% and 99%; tightness = lower bound at 95% / claim.",
        "",
        "| algorithm, setting | canary | bound through | claimed | 95% | 99% | tightness | trials |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        *(_mechanism_line(row) for row in found["mechanisms"]),
        "",
        "## Sensitivity",
        "",
        "The largest change of an un-noised statistic that was found, as a share of the priced sensitivity.",
        "",
        "| algorithm | model | kind | search | largest share |",
        "| --- | --- | --- | --- | --- |",
        *(
            f"| {r['algorithm']} | {r['model']} | {r['kind']} | {r['search']} | {r['largest_share']:.5g} |"
            for r in found["sensitivity"]
        ),
        "",
        "## Whole training, one run",
        "",
        *(
            f"- {r['study']} at epsilon = {r['epsilon_claimed']:.3g}, silo {r['silo']}: {r['correct']} of "
            f"{r['guesses']} guesses right among {r['canaries']} canaries; lower bound {r['epsilon_lower_bound']:.3g}."
            for r in found["one_run"]
        ),
        "",
        "## A printed claim that is provably exceeded",
        "",
        *(_paper_line(paper) for paper in papers),
        "",
        "## Reconstruction",
        "",
        _reconstruction_line(found["reconstruction"]),
        "",
    ]
    return "\n".join(lines)


def _mechanism_line(row: dict[str, Any]) -> str:
    claimed = "infinite" if row["epsilon_claimed"] is None else f"{row['epsilon_claimed']:.3f}"
    tight = "" if row["tightness"] is None else f"{row['tightness']:.3f}"
    bounds = row["lower_bounds"]
    route = {"gdp": "mu", "direct": "epsilon"}[row["route"]]
    return (
        f"| {row['label']} | {row['canary']} | {route} | {claimed} | {bounds['0.95']:.3f} | {bounds['0.99']:.3f} | "
        f"{tight} | {row['trials']} |"
    )


def _paper_line(paper: Exceeded) -> str:
    verdict = "exceeded" if paper.violated else "not refuted"
    return (
        f"- {paper.source}, n = {paper.records}, K = {paper.batch}, R = {paper.rounds}: claimed epsilon "
        f"{paper.epsilon_claimed:g} at delta = 1/n^2, proven at least {paper.epsilon_lower_bound:.2f} (95%, "
        f"{paper.trials} trials): {verdict}."
    )


def _reconstruction_line(found: dict[str, Any]) -> str:
    return (
        f"From one message of a silo with {found['images']} images a hostile server recovers "
        f"{found['recovered_unprotected']} without protection and {found['recovered_protected']} at epsilon = "
        f"{found['epsilon']:g} (a correlation above 0.95 counts; medians "
        f"{found['median_similarity_unprotected']:.3f} and {found['median_similarity_protected']:.3f}). "
        "See reconstruction.png."
    )
