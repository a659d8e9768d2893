"""What theory says of a study before it runs: the theorem's bound on excess risk beside the lower bound."""

from __future__ import annotations

import math
from typing import Any

import jax

from tacit.objectives import Problem, start_risk
from tacit.studies.spec import Study
from tacit.theory import FROM_THEORY, ConvexSetting, Statement, stated

NO_BALL = 'no ball that holds an optimum is known; set objective.regulariser = "l2-ball:RADIUS"'


def bound_of(study: Study, problem: Problem, records: list[int], epsilon: float | None) -> Statement | str | None:
    """The theorem of the study's algorithm at its budget and within its rounds, for the smallest silo.

    A sentence instead says which constant is missing; ``None`` means that no theorem speaks of it.
    """
    section = study.algorithm
    if section.name not in FROM_THEORY or epsilon is None or not math.isfinite(epsilon):
        return None
    radius = problem.radius or _radius(study.objective.regulariser)
    if problem.lipschitz is None or problem.smoothness is None:
        return (
            "No bound: no Lipschitz constant and smoothness are known for this loss; the logistic and softmax losses "
            "of a linear model on bounded features have them, and with objective.smoothness the hinge, absolute and "
            "pinball losses."
        )
    if radius is None:
        return f"No bound: {NO_BALL}."
    shapes = jax.eval_shape(problem.objective.init, jax.random.key(0))
    who = study.run.participants
    setting = ConvexSetting(
        lipschitz=problem.lipschitz,
        smoothness=problem.smoothness,
        strong_convexity=problem.strong_convexity or 0.0,
        radius=radius,
        records=min(records),
        silos=len(records),
        dimension=sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)),
        epsilon=epsilon,
        delta=study.privacy.delta,
        participants=who if who is None or isinstance(who, int) else who[0],
        gap=start_risk(problem.objective),
    )
    terms: dict[str, Any] = {"channel": section.channel, "batch_size": section.batch_size}
    return stated(section.name, setting, most_rounds=section.num_rounds, **terms)


def bound_json(found: Statement | str | None) -> dict[str, Any] | None:
    """The bound as plain data."""
    if found is None or isinstance(found, str):
        return None if found is None else {"missing": found}
    return {
        "sentence": found.sentence(),
        "source": found.source,
        "risk": found.risk,
        "bound": found.bound,
        "rate": found.rate,
        "lower_bound": found.lower_bound,
        "rounds": found.parameters["num_rounds"],
        "conditions": [{"text": c.text, "holds": c.holds} for c in found.conditions],
        "lower_conditions": [{"text": c.text, "holds": c.holds} for c in found.lower_conditions],
    }


def bound_text(found: dict[str, Any]) -> str:
    """The bound in a few sentences."""
    return str(found["missing"] if "missing" in found else found["sentence"])


def _radius(regulariser: str | dict[str, Any]) -> float | None:
    """The radius of a ball around zero, where the linear models start."""
    if isinstance(regulariser, str):
        kind, _, number = regulariser.partition(":")
        return float(number) if kind == "l2-ball" else None
    return float(regulariser["radius"]) if regulariser.get("kind") == "l2-ball" else None
