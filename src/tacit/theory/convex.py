"""Parameters and bounds of noisy minibatch SGD, accelerated and not.

Lowy and Razaviyayn, "Private Federated Learning Without a Trusted Server: Optimal Algorithms for Convex Losses"
(arXiv:2106.09779), Theorems 2.1, 2.2, 2.3 and 3.1. The paper states orders of magnitude; ``bound`` is the same
statement with its constants, put together from the pieces that its proofs cite:

- convex SGD with step eta: excess <= D^2/(2 eta R) + eta G^2/2, and in population eta R L^2/(nN) more, by uniform
  stability (Hardt, Recht and Singer 2016; needs eta <= 2/beta);
- strongly convex SGD: 2 G^2/(mu (R+1)) with steps 2/(mu (r+2)), or Stich 2019 (arXiv:1907.04232) for smooth losses;
- AC-SA and its stages: Ghadimi and Lan 2012, 2013;
- losses that are not smooth: the Moreau envelope f_b, with f - L^2/(2b) <= f_b <= f, or a convolution with
  f <= f_b <= f + L^2/(2b) (`tacit.objectives.losses.Smooth`); the bound is the same for both.

G^2 bounds the second moment of the mean message and V^2 its variance. Noise is the least that the budget allows
(``accountant="tight"``) or the theorem's own (``"paper"``).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from tacit.privacy import Condition, Event, PaperNoise, Setting, calibrate, price, theorems
from tacit.privacy.statements import at_least, at_most
from tacit.theory.statement import ConvexSetting, Risk, Statement, TheoryError, says_something

Accounting = Literal["tight", "paper"]
Printed = Callable[[Setting], PaperNoise]
PAPER = "Lowy and Razaviyayn (convex)"


class _Noise(NamedTuple):
    """How a gradient is released: arguments of the factory, the deviation of the noise, and what it rests on."""

    terms: dict[str, Any]
    sigma: float
    batch: int
    conditions: tuple[Condition, ...]


def mb_sgd_from_theory(
    setting: ConvexSetting,
    *,
    risk: Risk = "population",
    num_rounds: int | None = None,
    batch_size: int | None = None,
    accountant: Accounting = "tight",
) -> Statement:
    """Theorem 2.1: noisy minibatch SGD, for silos that draw from one distribution (``risk="population"``) or for ERM.

    >>> s = ConvexSetting(lipschitz=1, radius=1, smoothness=1, records=1000, silos=20, dimension=10, epsilon=1,
    ...                   delta=1e-6)
    >>> found = mb_sgd_from_theory(s)
    >>> found.failed, found.lower_bound < found.bound < 0.1
    ((), True)
    """
    s = _smooth(setting, risk)
    rounds = num_rounds or _sgd_rounds(s, risk)
    noise = _noise(theorems.multi_pass, s, rounds, batch_size, accountant)
    second = s.lipschitz**2 * _spread(noise) + s.dimension * noise.sigma**2 / s.present
    steps, output, bound, conditions = _sgd_case(s, rounds, second, risk)
    own = {"step_size": steps, "num_rounds": rounds, "output": output, "clip_norm": s.lipschitz}
    return _statement("mb-sgd", "Theorem 2.1", setting, s, own, noise, risk, bound, conditions)


def accelerated_mb_sgd_from_theory(
    setting: ConvexSetting,
    *,
    num_rounds: int | None = None,
    batch_size: int | None = None,
    accountant: Accounting = "tight",
) -> Statement:
    """Theorem 2.3: accelerated noisy minibatch SGD for empirical risk."""
    s = _smooth(setting, "empirical")
    rounds = num_rounds or _accelerated_rounds(s, batch_size)
    noise = _noise(theorems.multi_pass, s, rounds, batch_size, accountant)
    own, bound = _accelerated(s, rounds, noise)
    return _statement("accelerated-mb-sgd", "Theorem 2.3", setting, s, own, noise, "empirical", bound)


def one_pass_accelerated_from_theory(
    setting: ConvexSetting, *, batch_size: int = 1, accountant: Accounting = "tight"
) -> Statement:
    """Theorem 2.2: one pass of accelerated noisy SGD, for the population risk of silos that differ."""
    s = _smooth(setting, "population")
    rounds = s.records // batch_size
    if rounds < 1:
        raise TheoryError(f"Expected batch_size={batch_size} <= records={s.records}; one pass needs a batch.")
    noise = _noise(theorems.one_pass_accelerated, s, rounds, batch_size, accountant)
    own, bound = _accelerated(s, rounds, noise)
    found = _statement("one-pass-accelerated", "Theorem 2.2", setting, s, own, noise, "population", bound)
    return dataclasses.replace(found, rate=one_pass_rate(s))


def _statement(
    algorithm: str,
    theorem: str,
    setting: ConvexSetting,
    s: ConvexSetting,
    own: dict[str, Any],
    noise: _Noise,
    risk: Risk,
    bound: float,
    conditions: tuple[Condition, ...] = (),
) -> Statement:
    """What a theorem says of ``setting``, whose loss was smoothed to that of ``s`` where it is not smooth."""
    smoothing = s.smoothness if setting.smoothness is None else None
    bound += 0.0 if smoothing is None else s.lipschitz**2 / (2 * smoothing)
    return Statement(
        algorithm=algorithm,
        source=f"{PAPER}, {theorem}" + (" on the Moreau envelope" if smoothing else ""),
        parameters={**own, **noise.terms},
        bound=bound,
        rate=rate(setting, risk),
        lower_bound=lower_bound(setting, risk),
        risk=risk,
        conditions=(*noise.conditions, *conditions, says_something(bound, s)),
        lower_conditions=lower_bound_conditions(setting, round_epsilon(s, noise.terms, own["num_rounds"])),
        smoothing=smoothing,
    )


def rate(s: ConvexSetting, risk: Risk) -> float:
    """The upper bounds of Theorems 2.1 (population) and 2.3 (empirical) as printed, hidden constants set to one."""
    size, silos, log = s.records, s.present, math.log(2 / s.delta)
    noise = math.sqrt(s.dimension * log) / (s.epsilon * size)
    sample = 0.0 if risk == "empirical" else 1.0
    if s.strong_convexity == 0:
        return s.lipschitz * s.radius / math.sqrt(silos) * (sample / math.sqrt(size) + noise)
    return s.lipschitz**2 / (s.strong_convexity * silos) * (sample / size + noise**2)


def one_pass_rate(s: ConvexSetting) -> float:
    """The upper bound of Theorem 2.2 as printed, hidden constant set to one."""
    if s.smoothness is None:
        raise TheoryError("Expected smoothness for Theorem 2.2; give beta, or smooth the loss first.")
    size, log = s.records, math.log(1 / s.delta)
    if s.strong_convexity == 0:
        noise = math.sqrt(s.dimension * log / (s.present * size)) / s.epsilon
        return s.smoothness * s.radius**2 / size**2 + s.lipschitz * s.radius * noise
    decay = math.exp(-math.sqrt(s.strong_convexity / s.smoothness) * size)
    noise = s.dimension * log / (s.epsilon**2 * s.present * size)
    return s.lipschitz * s.radius * decay + s.lipschitz**2 / s.strong_convexity * noise


def lower_bound(s: ConvexSetting, risk: Risk = "population") -> float:
    """Theorem 3.1, hidden constant set to one; for empirical risk its privacy term alone.

    >>> s = ConvexSetting(lipschitz=1, radius=1, records=100, silos=4, dimension=1, epsilon=1, delta=1e-6)
    >>> round(lower_bound(s), 4), round(lower_bound(s, "empirical"), 4)
    (0.055, 0.005)
    """
    sample = 0.0 if risk == "empirical" else 1.0
    privacy = math.sqrt(s.dimension / s.silos) / (s.epsilon * s.records)
    if s.strong_convexity == 0:
        return s.lipschitz * s.radius * (sample / math.sqrt(s.silos * s.records) + min(1.0, privacy))
    statistical = sample * s.lipschitz**2 / (s.strong_convexity * s.records * s.silos)
    return statistical + s.lipschitz * s.radius * min(1.0, privacy**2)


def lower_bound_conditions(s: ConvexSetting, epsilon_r: float | None = None) -> tuple[Condition, ...]:
    """What Theorem 3.1 asks for; with few silos central lower bounds of the same form take over.

    ``epsilon_r`` is the most that one round spends, where it is known: algorithms that say more in a round are not in
    the theorem's class.
    """
    each = () if epsilon_r is None else (at_most("epsilon_r", epsilon_r, "1/n", 1 / s.records),)
    return (
        at_most("epsilon", s.epsilon, "sqrt(N)", math.sqrt(s.silos)),
        at_least("N", s.silos, "16 ln(2/(delta n))", 16 * math.log(max(2 / (s.delta * s.records), 1.0))),
        at_most("delta", s.delta, "1/(nN)^2", 1 / (s.records * s.silos) ** 2),
        Condition(text=f"M={s.present:g} = N={s.silos}", holds=s.present == s.silos),
        *each,
    )


def round_epsilon(s: ConvexSetting, terms: Mapping[str, Any], rounds: int) -> float:
    """What one of so many rounds with these terms spends by itself, at its equal part of delta."""
    batch = terms["batch_size"] or s.records
    shape: dict[str, Any] = {"records": s.records, "batch": batch, "sampling": terms["sampling"], "count": 1}
    event = Event(kind="g", noise_multiplier=float(terms["noise_multiplier"]), **shape)
    return price([event], delta=s.delta / rounds).epsilon


def _smooth(s: ConvexSetting, risk: Risk) -> ConvexSetting:
    """The setting with a smooth loss: its own, or the Moreau envelope whose error is the accuracy aimed at."""
    if s.smoothness is not None:
        return s
    b = s.lipschitz**2 / (2 * rate(s, risk))
    curved = s.strong_convexity * b / (s.strong_convexity + b)
    return dataclasses.replace(s, smoothness=b, strong_convexity=curved)


def _noise(theorem: Printed, s: ConvexSetting, rounds: int, batch: int | None, accountant: Accounting) -> _Noise:
    """The release of a gradient under the budget: the least noise, or the theorem's."""
    if accountant == "paper":
        return _paper_noise(theorem, s, rounds, batch)
    if theorem is theorems.one_pass_accelerated:
        sampling, multiplier = "one-pass", 1 / s.mu
    elif batch is None or batch >= s.records:
        sampling, multiplier, batch = "full", math.sqrt(rounds) / s.mu, None
    else:
        event = Event(kind="g", noise_multiplier=1.0, count=rounds, records=s.records, batch=batch, sampling="poisson")
        [tuned] = calibrate([event], epsilon=s.epsilon, delta=s.delta)
        sampling, multiplier = "poisson", tuned.noise_multiplier
    size = batch or s.records
    terms = {"batch_size": batch, "sampling": sampling, "noise_multiplier": multiplier}
    return _Noise(terms, multiplier * 2 * s.lipschitz / size, size, ())


def _paper_noise(theorem: Printed, s: ConvexSetting, rounds: int, batch: int | None) -> _Noise:
    least = s.epsilon * s.records / (4 * math.sqrt(2 * rounds * math.log(2 / s.delta)))
    size = min(s.records, batch or max(1, math.ceil(least)))
    printed = theorem(Setting(records=s.records, num_rounds=rounds, batch_size=size, epsilon=s.epsilon, delta=s.delta))
    [release] = printed.releases
    terms = {"batch_size": size, "sampling": release.sampling, "noise_multiplier": release.noise_multiplier}
    return _Noise(terms, printed.sigma_over_clip[0] * s.lipschitz, size, printed.conditions)


def _spread(noise: _Noise) -> float:
    """How far sampling raises the second moment of a mean over L^2: a Poisson batch may be larger than its mean."""
    return 1 + 1 / noise.batch if noise.terms["sampling"] == "poisson" else 1.0


def _variance(s: ConvexSetting, noise: _Noise) -> float:
    """V^2: noise, sampling of records, and sampling of silos (whose gradients differ by at most L)."""
    records = 0.0 if noise.terms["sampling"] == "full" else s.lipschitz**2 / noise.batch
    silos = 0.0 if s.present == s.silos else s.lipschitz**2
    return (s.dimension * noise.sigma**2 + records + silos) / s.present


def _sgd_rounds(s: ConvexSetting, risk: Risk) -> int:
    """The theorem's number of rounds, from its general version."""
    assert s.smoothness is not None
    size, silos = s.records, s.present
    reach = s.epsilon * size * math.sqrt(silos / s.dimension)
    if risk == "population":
        reach = min(math.sqrt(size * silos), reach)
    if s.strong_convexity == 0:
        return max(1, math.ceil(s.smoothness * s.radius / s.lipschitz * reach + reach**2))
    target = rate(s, risk)
    decay = math.log(max(math.e, 64 * s.smoothness * s.radius**2 / target))
    return max(1, math.ceil(max(4 * s.smoothness / s.strong_convexity * decay, reach**2)))


def _sgd_case(
    s: ConvexSetting, rounds: int, second: float, risk: Risk
) -> tuple[Any, Any, float, tuple[Condition, ...]]:
    """Steps, output, bound and conditions, where ``second`` is G^2."""
    assert s.smoothness is not None
    pooled = s.records * s.silos
    if s.strong_convexity == 0:
        drift = 2 * s.lipschitz**2 * rounds / pooled if risk == "population" else 0.0
        step = s.radius / math.sqrt(rounds * (second + drift))
        conditions: tuple[Condition, ...] = ()
        if risk == "population":
            step = min(step, 2 / s.smoothness)
            conditions = (at_most("step", step, "2/beta", 2 / s.smoothness),)
        return step, "average", s.radius**2 / (2 * step * rounds) + step * (second + drift) / 2, conditions
    mu, limit = s.strong_convexity, 2 * s.smoothness
    if risk == "empirical":
        index = np.arange(rounds)
        return 2 / (mu * (index + 2)), index + 1.0, 2 * second / (mu * (rounds + 1)), ()
    decay = 32 * limit * s.radius**2 * math.exp(-mu * rounds / (2 * limit))
    bound = decay + 36 * second / (mu * rounds) + 2 * s.lipschitz**2 / (mu * max(pooled - 1, 1))
    return *stich_schedule(rounds, mu, limit), bound, ()


def stich_schedule(rounds: int, mu: float, limit: float) -> tuple[np.ndarray, np.ndarray]:
    """Steps and output weights for smooth, strongly convex losses (Stich 2019, Lemma 3; ``limit`` is 1/largest step).

    >>> steps, weights = stich_schedule(4, 1.0, 1.0)
    >>> steps.tolist(), weights.tolist()
    ([1.0, 1.0, 1.0, 0.6666666666666666], [0.0, 0.0, 4.0, 9.0])
    """
    index = np.arange(rounds)
    if rounds <= limit / mu:
        return np.full(rounds, 1 / limit), (1 - mu / limit) ** -(index + 1.0) if mu < limit else np.ones(rounds)
    half, shift = math.ceil(rounds / 2), 2 * limit / mu
    later = shift + np.maximum(index - half, 0)
    return np.where(index < half, 1 / limit, 2 / (mu * later)), np.where(index < half, 0.0, later**2)


def _accelerated_rounds(s: ConvexSetting, batch: int | None) -> int:
    """Rounds after which the noise that the budget forces is all that is left."""
    assert s.smoothness is not None
    per_round = 4 * s.dimension * (s.lipschitz / (s.records * s.mu)) ** 2 / s.present
    sampled = 0.0 if batch is None or batch >= s.records else s.lipschitz**2 / (s.present * batch)
    if s.participants is not None and s.present < s.silos:
        sampled += s.lipschitz**2 / s.present
    least = math.ceil(sampled / per_round)
    if s.strong_convexity == 0:
        floor = 2 * math.sqrt(2 / 3) * s.radius * math.sqrt(per_round)
        return max(1, least, math.ceil(math.sqrt(8 * s.smoothness * s.radius**2 / floor)))
    # Later stages are as long as all before them together: double the rounds until the bound stops falling.
    first = max(1, least, math.ceil(4 * math.sqrt(2 * s.smoothness / s.strong_convexity)))
    options = [first * 2**k for k in range(8)]
    return min(options, key=lambda r: acsa_stages(s, r, per_round * r + sampled)[2])


def _accelerated(s: ConvexSetting, rounds: int, noise: _Noise) -> tuple[dict[str, Any], float]:
    """Parameters and bound of AC-SA, with stages where there are several."""
    lengths, steps, bound = acsa_stages(s, rounds, _variance(s, noise))
    staged = {"stages": lengths, "step_size": steps} if len(lengths) > 1 else {"step_size": float(steps[0])}
    return {"num_rounds": rounds, "clip_norm": s.lipschitz, **staged}, bound


def acsa_stages(s: ConvexSetting, rounds: int, variance: float) -> tuple[tuple[int, ...], np.ndarray, float]:
    """Rounds and step size of each stage of AC-SA, and the bound on excess risk after the last.

    Convex losses have one stage. For strongly convex ones each full stage halves the gap, from L D; rounds that are
    left over lengthen the last stage.
    """
    assert s.smoothness is not None
    mu, beta = s.strong_convexity, s.smoothness
    gap = s.lipschitz * s.radius
    lengths: list[int] = []
    starts: list[float] = []
    while mu > 0:
        aim = gap / 2
        needed = math.ceil(max(4 * math.sqrt(2 * beta / mu), 128 * variance / (3 * mu * aim)))
        if sum(lengths) + needed > rounds:
            break
        lengths.append(needed)
        starts.append(min(2 * gap / mu, s.radius**2) if len(lengths) == 1 else 2 * gap / mu)
        gap = aim
    if not lengths:
        lengths, starts = [rounds], [s.radius**2]
    lengths[-1] += rounds - sum(lengths)
    stages = [acsa(beta, squared, r, variance) for r, squared in zip(lengths, starts, strict=True)]
    return tuple(lengths), np.asarray([1 / eta for eta, _ in stages]), stages[-1][1]


def acsa(beta: float, squared_distance: float, rounds: int, variance: float) -> tuple[float, float]:
    """The inverse step of one stage, and its bound."""
    cube = rounds * (rounds + 1) * (2 * rounds + 1)
    eta = max(2 * beta, math.sqrt(variance * cube / (12 * squared_distance)))
    return eta, 2 * eta * squared_distance / (rounds * (rounds + 1)) + (2 * rounds + 1) * variance / (6 * eta)
