"""What theory says of a study before it runs: the theorem's bound on excess risk beside the lower bound."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from tacit import geometry
from tacit.objectives import Problem, start_risk
from tacit.plans.catalogue import find
from tacit.plans.spec import PreprocessingSection, Study
from tacit.privacy import gdp_epsilon, gdp_mu
from tacit.theory import ConvexSetting, Statement, is_convex, stated

NO_BALL = 'no ball that holds an optimum is known; set objective.regulariser = "l2-ball:RADIUS"'


def bound_of(study: Study, problem: Problem, records: list[int], epsilon: float | None) -> Statement | str | None:
    """The theorem of the study's algorithm at its budget and within its rounds, for the smallest silo.

    A sentence where a constant is missing; ``None`` where no theorem speaks of the algorithm.
    """
    section = study.algorithm
    theorem = find(section.name).theory
    if theorem is None or not is_convex(theorem) or epsilon is None or not math.isfinite(epsilon):
        return None
    known = ball_and_strength(study.objective.regulariser)
    radius = problem.radius or known.radius
    if problem.lipschitz is None or problem.smoothness is None:
        return (
            "No bound: no Lipschitz constant and smoothness are known for this loss; the logistic and softmax losses "
            "of a linear model on bounded features have them, and with objective.smoothness the hinge, absolute and "
            "pinball losses."
        )
    if known.others:
        return f"No bound: theorems speak of l2-ball and squared-l2, and objective.regulariser has {known.others[0]}."
    if radius is None:
        return f"No bound: {NO_BALL}."
    shapes = jax.eval_shape(problem.objective.init, jax.random.key(0))
    who = study.run.participants
    setting = ConvexSetting(
        # A squared norm counts as a part of each record's loss.
        lipschitz=problem.lipschitz + known.strength * radius,
        smoothness=problem.smoothness + known.strength,
        strong_convexity=known.strength,
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
    return stated(theorem, setting, most_rounds=section.num_rounds, **terms)


def bound_json(bound: Statement | str | None) -> dict[str, Any] | None:
    """The bound as plain data."""
    if bound is None or isinstance(bound, str):
        return None if bound is None else {"missing": bound}
    return {
        "sentence": bound.sentence(),
        **{name: getattr(bound, name) for name in ("source", "risk", "bound", "rate", "lower_bound")},
        "rounds": bound.parameters["num_rounds"],
        "conditions": [{"text": c.text, "holds": c.holds} for c in bound.conditions],
        "lower_conditions": [{"text": c.text, "holds": c.holds} for c in bound.lower_conditions],
    }


def bound_text(found: dict[str, Any]) -> str:
    """The bound in a few sentences."""
    return str(found["missing"] if "missing" in found else found["sentence"])


class Known(NamedTuple):
    """What a regulariser tells the theorems: a ball around zero, where linear models start, and a strength."""

    radius: float | None
    strength: float
    others: tuple[str, ...]


def ball_and_strength(regulariser: str | Mapping[str, Any]) -> Known:
    """The l2 ball, the strength of a squared l2 norm, and what else a regulariser is made of.

    >>> ball_and_strength("squared-l2:0.5+l2-ball:3")
    Known(radius=3.0, strength=0.5, others=())
    """
    terms = geometry.terms(regulariser)
    balls = [float(term["radius"]) for term in terms if term["kind"] == "l2-ball"]
    strength = sum(float(term["strength"]) for term in terms if term["kind"] == "squared-l2")
    others = tuple(str(term["kind"]) for term in terms if term["kind"] not in ("l2-ball", "squared-l2", "zero"))
    return Known(min(balls, default=None), strength, others)


def left_for_training(preprocessing: PreprocessingSection | None, epsilon: float, delta: float) -> float:
    """What is left of an epsilon after the statistics that are released before training."""
    if preprocessing is None:
        return epsilon
    whole, first = gdp_mu(epsilon, delta), gdp_mu(preprocessing.share * epsilon, delta)
    return gdp_epsilon(math.sqrt(whole**2 - first**2), delta)
