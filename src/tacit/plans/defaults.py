"""Settings to start from, by public facts alone: `tacit init`, `choose`, `tune`, `fit` and the estimators have these.

For a linear model whose features have norm B, with p parameters, and noise of deviation s C in every coordinate of the
mean message of each of R rounds, C the clip:

    b           sqrt((B^2 + 1) / 2), so that features of norm one have b = 1
    clip        C = c b
    step        min(cap / b^2, kappa / (b s C sqrt(R p)))

Noise moves the iterates by about step x s C sqrt(R p): kappa says how far it may, and cap how far a step goes where
there is little noise. The steps of adam have no length of a gradient in them: min(cap / b, kappa / (b s sqrt(R p))).
Where noise is little, s sqrt(p / R) at most `CALM_BELOW`, several classes have more rounds, of adam: others end far
from the optimum. `experiments.defaults` holds the constants against the best of hundreds of settings on public data
sets. Sizes, widths, classes, budget and channel count as public; no record is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tacit.algorithm import Channel, ServerRule
from tacit.errors import TacitError
from tacit.objectives import Problem
from tacit.objectives.losses import SURVIVAL
from tacit.plans.assemble import parameter_count
from tacit.privacy import Budget, gdp_mu
from tacit.privacy.anonymity import counted_silos
from tacit.privacy.pairwise import noise_of_mean


class Settings(NamedTuple):
    """What a study's [algorithm] has for mb-sgd with full batches."""

    num_rounds: int
    step_size: float
    clip_norm: float
    output: str
    server: ServerRule


class Rule(NamedTuple):
    """The constants of one kind of target."""

    rounds: int
    clip: float
    kappa: float | None
    cap: float
    output: str
    server: ServerRule


LINEAR = {
    "binary": Rule(30, clip=0.3, kappa=None, cap=0.2, output="last", server="adam"),
    "multiclass": Rule(30, clip=0.3, kappa=16.0, cap=64.0, output="tail", server="sgd"),
    "regression": Rule(100, clip=0.1, kappa=1.0, cap=2.0, output="tail", server="sgd"),
}
CALM = {"multiclass": Rule(100, clip=1.0, kappa=1.0, cap=1.0, output="tail", server="adam")}
CALM_BELOW = 0.06
"""Rules for little noise: that of the mean of one round, if there is one alone, over all parameters and in clips."""
_TASKS = {"binary": ("logistic", "hinge"), "multiclass": ("softmax",), "regression": ("squared", "absolute", "pinball")}
NETWORK = {
    "binary": Settings(50, 8.0, 0.5, "average", "sgd"),
    "multiclass": Settings(50, 4.0, 0.5, "average", "sgd"),
    "regression": Settings(50, 1.0, 0.5, "average", "sgd"),
}
"""Networks have not been studied: a place to start from, whatever the noise."""
HAZARDS = Settings(15, 0.4, 0.5, "average", "sgd")
"""Nor have hazards: those of the study ``tcga-brca``, which were not tuned."""


def defaults(
    task: str,
    *,
    parameters: int,
    feature_norm: float,
    noise: float,
    linear: bool = True,
    clip_norm: float | None = None,
) -> Settings:
    """Settings for a task: ``binary``, ``multiclass`` or ``regression``.

    ``noise`` is what `mean_noise` says, 0 without privacy. A step for another clip than ours goes with ``clip_norm``.

    >>> defaults("regression", parameters=14, feature_norm=1.0, noise=0.02)
    Settings(num_rounds=100, step_size=1.34, clip_norm=0.1, output='tail', server='sgd')
    """
    if not linear:
        return NETWORK[task] if clip_norm is None else NETWORK[task]._replace(clip_norm=clip_norm)
    whole, size = noise * math.sqrt(parameters), math.sqrt((feature_norm**2 + 1.0) / 2.0)
    rule = CALM[task] if task in CALM and whole <= CALM_BELOW else LINEAR[task]
    clip = rule.clip * size if clip_norm is None else clip_norm
    adam = rule.server == "adam"
    step = rule.cap / size if adam else rule.cap / size**2
    # R rounds have sqrt(R) times the noise of one.
    walk = size * whole * rule.rounds * (1.0 if adam else clip)
    if rule.kappa is not None and walk > 0:
        step = min(step, rule.kappa / walk)
    return Settings(rule.rounds, _short(step), _short(clip), rule.output, rule.server)


def defaults_of(
    problem: Problem,
    records: Sequence[int],
    budget: Budget | None,
    *,
    feature_norm: float | None = None,
    clip_norm: float | None = None,
    **mean: Any,
) -> Settings:
    """The settings of a problem on silos that train on so many records; ``mean`` is what `mean_noise` takes besides.

    Features that nobody bounds are taken to have a norm of about one.
    """
    name = problem.objective.cost.name
    if name == SURVIVAL:
        return HAZARDS if clip_norm is None else HAZARDS._replace(clip_norm=clip_norm)
    task = next((task for task, names in _TASKS.items() if name in names), None)
    if task is None:
        raise TacitError("Expected an algorithm such as tacit.mb_sgd(...) for a loss that Tacit has no defaults for.")
    noise = 0.0
    if budget is not None:
        if budget.epsilon is None:
            raise TacitError("Expected an algorithm for a budget that is a noise multiplier; defaults need an epsilon.")
        sums: dict[str, Any] = {
            "honest": 1.0 if budget.honest is None else budget.honest,
            "colluding": budget.colluding,
        }
        noise = mean_noise(records, epsilon=budget.epsilon, delta=budget.delta, **sums, **mean)
    return defaults(
        task,
        parameters=parameter_count(problem),
        feature_norm=1.0 if feature_norm is None else feature_norm,
        noise=noise,
        linear=problem.objective.model.linear is not None,
        clip_norm=clip_norm,
    )


def _short(value: float) -> float:
    """Three digits, as people write them."""
    return float(f"{value:.3g}")


def mean_noise(
    records: Sequence[int],
    *,
    epsilon: float | Sequence[float],
    delta: float,
    channel: Channel = "direct",
    weights: Sequence[float] | None = None,
    participants: int | None = None,
    honest: float = 1.0,
    colluding: int = 1,
) -> float:
    """Deviation of the noise that is left in every coordinate of the mean message, in clips, if there is one round.

    Rounds of full batches share the budget: R of them have sqrt(R) times this noise each. ``weights`` of silos are
    those of the mean (``None``: equal), of which ``participants`` come to a round (``None``: all).

    >>> direct, trusted = (mean_noise([100] * 25, epsilon=1.0, delta=1e-6, channel=c) for c in ("direct", "trusted"))
    >>> round(direct / trusted, 6)
    5.0
    """
    sizes, silos = np.asarray(records, float), len(records)
    shares = np.full(silos, 1.0) if weights is None else np.asarray(weights, float)
    each = 2.0 * shares / shares.sum() / sizes
    mu = np.asarray([gdp_mu(e, delta) for e in np.broadcast_to(np.asarray(epsilon, float), silos)])
    present = silos if participants is None else participants
    fewer = silos / present
    if channel == "direct":
        return float(np.sqrt(np.sum((each / mu) ** 2) * fewer))
    central = float(each.max() / mu.min()) * fewer
    if channel == "trusted":
        return central
    if channel == "pairwise":
        return central * noise_of_mean(present, colluding)
    if channel == "shuffled-sum":
        counted = np.sort(sizes)[: counted_silos(silos, present, honest)].sum()
        return central * math.sqrt(sizes.sum() / fewer / counted)
    raise TacitError(
        f"Expected a channel whose noise is known in advance, got {channel!r}; give step_size and clip_norm yourself."
    )
