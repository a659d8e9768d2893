"""Reports of a local randomiser, one for each record, in an order that nobody knows: what shuffling is worth.

A report of an epsilon_0-LDP randomiser hides among the reports of others, each of which is, with some probability, a
clone of the victim's. By the variation-ratio argument the view of ``reports`` shuffled reports is dominated by counts
of clones. With e = exp(epsilon_0) and alpha = 1/(e + 1), for the randomiser of largest total variation, (e-1)/(e+1):

    C ~ Bin(reports - 1, 2 alpha),  A ~ Bin(C, 1/2);
    the victim adds (1, 0) with probability e alpha and (0, 1) with probability alpha; its neighbour swaps the two;
    the view is (A, C - A) plus that.

Given the number k of clones, P - a Q grows with the first count, so each k contributes a difference of binomial tails
and the whole profile is one sum over k. It is an upper bound for every epsilon_0-LDP randomiser, for both orders, and
adaptively, if the ``reports`` counted are those that are sure to arrive from contributors who do not collude, and if
nothing but its content tells one report from another: one clip, and one randomiser, for all reports of a batch.

References:
    Feldman, McMillan, Talwar. Hiding among the clones (FOCS 2021; arXiv:2012.12803): clones and the closed form.
    Feldman, McMillan, Talwar. Stronger privacy amplification by shuffling (SODA 2023; arXiv:2208.04591).
    Wang et al. Privacy amplification via shuffling: unified, simplified, and tightened (arXiv:2304.05007): the
    variation ratio.
"""

import math
from collections.abc import Sequence
from functools import lru_cache, partial

import numpy as np
from scipy import special

from tacit.privacy.events import PricingError, positive
from tacit.privacy.gaussian import Floats
from tacit.privacy.profiles import Profile, sampled

# Mass of the number of clones outside the window; it counts as certain disclosure.
_SPREADS = 10.0
# Clones are counted in lumps of this share of their mean where that only drops a few: fewer clones are less private.
_LUMP = 1e-3
# Relative error of a binomial tail, with room, and that of a logarithm of a factorial: every term is put on the private
# side by this much.
_ROUNDING = 1e-10
_LOG_ROUNDING = 2.0**-49
# Beyond it exp(epsilon_0) is larger than any crowd: no clone is counted on.
_MOST_LOCAL = 40.0
_COMPOSED_STEP = 0.01
_COMPOSED_LOST = 1e-24


def shuffled_profile(local_epsilon: float, reports: int) -> Profile:
    """epsilon -> delta of one shuffle of this many reports, of which one belongs to the victim.

    Formal guarantee: an upper bound on delta(epsilon) for epsilon >= 0, for replacing the record behind one report of
    any epsilon_0-LDP randomiser, both orders.

    >>> alone = shuffled_profile(1.0, 1)
    >>> crowd = shuffled_profile(1.0, 10_000)
    >>> f"{alone(np.array([0.5]))[0]:.4f}", f"{crowd(np.array([0.05]))[0]:.1e}"
    ('0.2876', '1.1e-07')
    """
    local_epsilon = positive("local_epsilon", local_epsilon)
    if reports < 1:
        raise PricingError(f"Expected reports={reports} >= 1: the victim's own is one.")
    if local_epsilon > _MOST_LOCAL:
        return partial(_pure_profile, local_epsilon=local_epsilon)
    return partial(_clone_profile, local_epsilon=local_epsilon, reports=int(reports))


def _pure_profile(epsilon: Floats, *, local_epsilon: float) -> Floats:
    """Randomised response: (e - e^epsilon)/(e + 1), what a report costs with no crowd around it."""
    gap = np.asarray(epsilon, np.float64) - local_epsilon
    return np.where(gap < 0, -np.expm1(np.minimum(gap, 0.0)), 0.0) / (1 + math.exp(-local_epsilon))


def _clone_profile(epsilon: Floats, *, local_epsilon: float, reports: int) -> Floats:
    eps = np.atleast_1d(np.asarray(epsilon, np.float64))
    delta = np.zeros(eps.shape)
    inside = np.flatnonzero(eps < local_epsilon)
    for some in np.array_split(inside, max(1, -(-len(inside) * 4000 // 4_000_000))):
        delta[some] = _clone_sum(eps[some], local_epsilon, reports)
    return np.clip(delta, 0.0, 1.0).reshape(np.shape(epsilon))


def _clone_sum(eps: Floats, local_epsilon: float, reports: int) -> Floats:
    """sum over k of (P - e^eps Q)_+ with k clones in all, the victim's included."""
    grown, alpha = math.exp(local_epsilon), math.tanh(local_epsilon / 2) / math.expm1(local_epsilon)
    slack = _ROUNDING + _LOG_ROUNDING * float(special.gammaln(reports + 1))
    k, mass, lost = _clones(reports - 1, min(2 * alpha, 1.0), slack)
    ratio = np.exp(eps)[:, None]
    # Coefficients of Bin(a-1; k-1) and of Bin(a; k-1), both with chance one half.
    first = mass * alpha * (grown - ratio)
    second = mass * alpha * (1 - ratio * grown)
    # Bin(a-1; k-1) = 2 (a/k) Bin(a; k) and Bin(a; k-1) = 2 (1 - a/k) Bin(a; k): linear in a, so a threshold.
    slope = 2 * (first - second)
    with np.errstate(divide="ignore", invalid="ignore"):
        threshold = np.where(slope > 0, -k * (2 * second) / slope, np.inf)
    start = np.clip(np.ceil(np.where(np.isnan(threshold), np.inf, threshold)), 0, k + 1)
    tail, edge = _half_tail(start - 1, k - 1), _half_mass(start - 1, k - 1)
    exact: Floats = np.maximum((first + second) * tail + first * edge, 0.0)
    size = (np.abs(first) + np.abs(second)) * (tail + edge)
    return exact.sum(axis=1) + slack * size.sum(axis=1) + lost


def _half_tail(c: Floats, n: Floats) -> Floats:
    """P(Bin(n, 1/2) > c), where a negative number of trials has no outcome."""
    n = np.broadcast_to(n, c.shape)
    inner = (c >= 0) & (c < n)
    inside = special.betainc(np.where(inner, c + 1, 1.0), np.where(inner, n - c, 1.0), 0.5)
    return np.where(n < 0, 0.0, np.where(c < 0, 1.0, np.where(inner, inside, 0.0)))


def _half_mass(c: Floats, n: Floats) -> Floats:
    """P(Bin(n, 1/2) = c), where a negative number of trials has no outcome."""
    n = np.broadcast_to(n, c.shape)
    inner = (c >= 0) & (c <= n)
    log_factorial = special.gammaln(np.arange(int(np.max(n, initial=0.0)) + 2) + 1.0)
    trials, heads = np.where(inner, n, 0).astype(int), np.where(inner, c, 0).astype(int)
    log_mass = log_factorial[trials] - log_factorial[heads] - log_factorial[trials - heads] - trials * math.log(2)
    return np.where(inner, np.exp(log_mass), 0.0)


def _clones(others: int, chance: float, slack: float) -> tuple[Floats, Floats, float]:
    """Numbers of clones, the victim's included, their masses, and the mass that is left out.

    Masses are rounded up by ``slack``: they are upper bounds. Clones are counted in lumps: dropping some of the others'
    is a channel backwards.
    """
    mean, spread = others * chance, math.sqrt(others * chance * (1 - chance))
    low = max(0, math.floor(mean - _SPREADS * spread) - 20)
    high = min(others, math.ceil(mean + _SPREADS * spread) + 20)
    lost = float(special.betainc(others - low + 1, low, 1 - chance) if low > 0 else 0.0)
    lost += float(special.betainc(high + 1, others - high, chance) if high < others else 0.0)
    clones = np.arange(low, high + 1, dtype=np.float64)
    logs = special.gammaln(others + 1) - special.gammaln(clones + 1) - special.gammaln(others - clones + 1)
    logs = logs + special.xlogy(clones, chance) + special.xlog1py(others - clones, -chance)
    law: Floats = np.exp(logs) * (1 + slack)
    firsts = np.arange(0, len(clones), max(1, math.floor(_LUMP * mean)))
    return clones[firsts] + 1.0, np.add.reduceat(law, firsts), lost


@lru_cache(maxsize=256)
def streams_profile(local_epsilons: tuple[float, ...], reports: int) -> Profile:
    """The profile of several streams of reports about the same records, each shuffled by itself.

    Formal guarantee: an upper bound for all streams together: their dominating pairs are convolved, and whatever is
    done to the records as a group (sampling them) must come after.

    >>> one, two = (streams_profile((0.5,) * s, 1000)(np.array([0.05]))[0] for s in (1, 2))
    >>> bool(one < two)
    True
    """
    if len(local_epsilons) == 1:
        return shuffled_profile(local_epsilons[0], reports)
    from tacit.privacy.pld import loss_scale, profile_range

    profiles = [shuffled_profile(e, reports) for e in local_epsilons]
    ranges = [min(e, profile_range(p, _COMPOSED_LOST)) for e, p in zip(local_epsilons, profiles, strict=True)]
    step = max(_COMPOSED_STEP * min(loss_scale(p) for p in profiles), max(ranges) / (1 << 14))
    return _convolved(profiles, ranges, step)


def _convolved(profiles: Sequence[Profile], ranges: Sequence[float], step: float) -> Profile:
    """The profile of a composition, from masses on a grid of losses that are added up one by one (no FFT)."""
    from tacit.privacy.pld import connect_dots

    masses: Floats = np.ones(1)
    lost = 0.0
    for profile, farthest in zip(profiles, ranges, strict=True):
        own, beyond = connect_dots(profile, farthest, step)
        masses, lost = np.convolve(masses, own), lost + beyond
    half = len(masses) // 2
    losses = np.arange(-half, half + 1) * step

    def composed(epsilon: Floats) -> Floats:
        eps = np.atleast_1d(np.asarray(epsilon, np.float64))
        above = slice(half, None)
        deltas = np.concatenate(
            [
                -np.expm1(np.minimum(part[:, None] - losses[above], 0.0)) @ masses[above]
                for part in np.array_split(eps, max(1, -(-len(eps) * len(losses) // 8_000_000)))
            ]
        )
        return np.clip(deltas + lost, 0.0, 1.0).reshape(np.shape(epsilon))

    return composed


def reports_profile(local_epsilons: tuple[float, ...], reports: int, rate: float) -> Profile:
    """Streams of reports about a secret batch, drawn without replacement at this rate in each silo.

    Formal guarantee: the streams are composed first and amplified by sampling once; an upper bound if every silo draws
    a fresh batch of fixed size and each record of the batch gives one report to each stream.
    """
    base = streams_profile(local_epsilons, reports)
    return base if rate == 1.0 else partial(sampled, base=base, rate=rate)
