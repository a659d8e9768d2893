"""Random allocation: in every epoch each record goes into one of T batches, drawn uniformly and kept secret.

Each record is used once an epoch, where Poisson sampling may leave it out or use it twice. Its place is one secret for
the whole epoch, so releases are not independent: earlier messages say something about where the record may still be.
The price is that of Poisson sampling at a somewhat larger rate, but for a small probability.

Proof. Fix where the other records are, and two values of one record, with clipped statistics v_t and v'_t in release t,
however the server chooses its questions. Let L_t be the likelihood of message t with the first value in batch t over
that with nothing there. Given all messages before t, the record is in batch t with probability

    q_t = 1 / (T - t + 1 + sum_{i<t} L_i),       and q'_t, with L'_i, for the second value.

So message t has the law (1 - q_t) N(0) + q_t N(v_t), or (1 - q'_t) N(0) + q'_t N(v'_t) in the other world.

*While q_t and q'_t are at most r*, this pair is dominated by that of Poisson sampling at rate r with values C and -C.
For any test of the message that accepts with probability p when no record is there, and any factor a, its probability
in the first world less a times that in the second is at most p (1 - a) + q_t (A - p) + a q'_t (p - B), with
A = Phi(Phi^-1(p) + C/sigma) and B = Phi(Phi^-1(p) - C/sigma). That grows with q_t and q'_t. Where both are r, it is
what a half-line of the same p has for the pair of Poisson sampling.

*The probability that q_t or q'_t exceeds r for some t* is added to delta. Let the record be in batch I. Given the past
and I, each L_i with i != I is exp(s Z - s^2/2), Z normal and s at most C/sigma, and so is each L'_i: both 1 - L_i and
1 - L'_i add up to martingales, and E exp(k (1 - L)) grows with s, because L does in convex order. L_I is not negative.
By Ville's inequality, for each of the two and for every k > 0, with psi(k) = log E exp(k (1 - L)) at s = C/sigma,

    P(q_t > r for some t) <= exp(T psi(k) - k (T - 1 - 1/r)).

*A server may skip rounds, and stop in the middle of an epoch, by what it has heard.* So each release is charged twice
the failure of a whole epoch: whichever epoch says anything has paid for all of it. Twice, because masses of certain
disclosure compose to a little less than their sum.

References:
    Feldman, Shenfeld. Privacy amplification by random allocation (arXiv:2502.08202): the comparison with Poisson
    sampling where one record is added or removed. Replacing one needs both rates, as above.
"""

import math
from functools import lru_cache

import numpy as np
from scipy import special
from scipy.optimize import minimize_scalar

EPOCH_FAILURE = 1e-22
"""The probability, in an epoch, with which its messages say more than those of Poisson sampling would."""

_WORTH = 0.5
_WINDOW, _CELLS = 12.0, 24_000
_LARGEST_EXPONENT = 200.0
# Covers the rounding of float arithmetic and of the silo's random words.
_SHAVE = 1 + 1e-9


def batches_of(records: int, batch: int) -> int:
    """Into how many batches the records of an epoch go.

    >>> batches_of(100, 10), batches_of(101, 10)
    (10, 11)
    """
    return -(-records // batch)


@lru_cache(maxsize=4096)
def is_amplified(batches: int, multiplier: float) -> bool:
    """Whether the secret is worth more than knowing each record to be in one batch of an epoch, as in one pass.

    Small rates cost Poisson sampling about rate^2 of a release each, and an epoch of known batches costs one release.
    """
    return multiplier > 0 and batches * dominating_rate(batches, multiplier) ** 2 < _WORTH


@lru_cache(maxsize=4096)
def dominating_rate(batches: int, multiplier: float) -> float:
    """The rate of Poisson sampling that is no more private than one epoch, with `EPOCH_FAILURE`.

    ``multiplier`` is the noise over the replace-one sensitivity 2C, so that C/sigma = 1 / (2 multiplier).

    Formal guarantee: as the module's docstring proves. 1.0 where nothing is gained, or the proof does not reach.

    >>> round(1 / dominating_rate(100, 4.0), 1), round(1 / dominating_rate(1000, 4.0), 1), dominating_rate(4, 1.0)
    (87.1, 959.5, 1.0)
    """
    spread, needed = 0.5 / multiplier, math.log(2 / EPOCH_FAILURE) + 1e-6

    def reach(log_k: float) -> float:
        k = math.exp(log_k)
        return (needed + batches * _psi(k, spread)) / k

    best = minimize_scalar(reach, bounds=(-12.0, math.log(_LARGEST_EXPONENT)), method="bounded")
    room = batches - 1 - float(best.fun)
    return 1.0 if room <= 1 else min(1.0, _SHAVE / room)


def _psi(k: float, spread: float) -> float:
    """At least log E exp(k (1 - L)), L = exp(s Z - s^2/2): a sum over cells, each at its largest value."""
    edges = np.linspace(-_WINDOW, _WINDOW, _CELLS + 1)
    # Falls with z, so that the left end of a cell is its largest value.
    values = np.exp(k * (1 - np.exp(spread * edges[:-1] - spread * spread / 2)))
    outside = 2 * math.exp(k) * float(special.ndtr(-_WINDOW))
    return math.log(float(values @ np.diff(special.ndtr(edges))) + outside)
