"""Noise that remembers, at a real silo's door: a strategy's recursion in whole numbers.

`tacit.privacy.strategy` says what C, its weights and its decays are. In the t-th round a door draws integers z_t and
adds

    r_t = z_t - q_t,    q_t = sum_i floor(weight_i h_i),    h_i <- floor(decay_i h_i) + r_t,

to the exact sum of its batch. Fresh noise has no buffer h; a running sum has one, which is the noise of the round
before, and nothing in it is rounded. A banded strategy has the noises of the last rounds themselves for buffers,
h_i = r_{t-i}, and rounds once a round: q_t = floor(sum_i weight_i h_i).

*Proof that rounding costs next to nothing.* Take two sets of records whose sums differ by u_t in round t, and let both
say the same messages. Then their noises differ, r'_t = r_t + u_t, and so do the integers that were drawn: z'_t - z_t =
u_t + q_t(r') - q_t(r). Without floors that is row t of C u. Each floor takes off less than one, in both worlds; what it
takes off a buffer decays with the buffer. With bands there is one floor, and buffers are exact. So z' - z is C u, but
for less than `Strategy.rounding` in each coordinate (a whole number of units, as z and z' are). Its norm over all
rounds and coordinates is at most |C u| + rounding sqrt(rounds x coordinates). Draws are independent discrete Gaussians,
and what is added to them in a round depends on earlier messages and sums alone, so all rounds together are a discrete
Gaussian mechanism of that sensitivity, whatever is asked. `check_rounding` refuses a release in which rounding adds
more than ROUNDING of a sensitivity; the price always counts that much.

*A round that was not answered* still has its noise. The door draws it when it answers again, and adds it to what it
says then. So the messages are sums of those of a silo that answers every round, and says nothing but noise where it was
not asked: the records that a pass would have read there are in no message, and a record comes again no sooner than the
strategy was made for. Sums over all rounds so far have the noise that the strategy promises, too.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Int64

from tacit.privacy.strategy import ONE, Strategy

Buffers = Int64[np.ndarray, "buffers coordinates"]

ROUNDING = 2.0**-13
"""The part of a release's sensitivity that the rounding of buffers may add, and that the price counts."""

_FRACTION = ONE.bit_length() - 1
_LARGEST = 2.0**62
# A sample is at most 28 standard deviations in size.
_MOST_SIGMAS = 32

MOST_REMEMBERED = 2**29
"""Bytes of buffers of one block: a ledger keeps all of them in one entry, far below what its database can hold."""


def check_rounding(strategy: Strategy, coordinates: int, sigma: float, sensitivity: float) -> None:
    """Raise ``ValueError`` unless the recursion is as good as exact, from public numbers alone.

    ``sigma`` and ``sensitivity`` are in units of the sum. A round's noise is at most `Strategy.growth` draws. With
    buffers that is two: entries of C are moments of a measure of mass at most one, so they are log-convex, and all
    entries of C^-1 but the first are negative and add up to at least -1 (Kaluza). So no buffer is larger than
    rounds x 56 sigma. Cut off after k bands, entries are not log-convex. Where they fall, (1 - x) C(x) = 1 - p(x) and
    p has coefficients that are not negative and add up to one; so 1/((1 - x) C(x)), which is C^-1 applied to ones, has
    the chances of a renewal for coefficients, all in [0, 1], and C^-1 their differences. Their sizes are added up.
    What all bands take off is at most k times the largest noise.
    """
    if not strategy.weights:
        return
    if 8 * len(strategy.weights) * coordinates > MOST_REMEMBERED:
        most = MOST_REMEMBERED // (8 * len(strategy.weights))
        raise ValueError(
            f"Expected at most {most} coordinates, of which this noise remembers {len(strategy.weights)} vectors, got "
            f'{coordinates}; take a smaller model, other passes, or mechanism="gaussian".'
        )
    kept = strategy.rounds if strategy.decays else len(strategy.weights)
    if _MOST_SIGMAS * sigma * strategy.growth * kept > _LARGEST:
        raise ValueError(
            f"Expected less noise than {sigma:.3g} units for {strategy.rounds} rounds of noise that remembers, which "
            "must fit 64 bits; raise epsilon, or lower the rounds."
        )
    if not strategy.rounding:
        return
    added = strategy.rounding * math.sqrt(strategy.rounds * coordinates)
    if added > ROUNDING * sensitivity:
        raise ValueError(
            f"Expected fewer than {coordinates} coordinates in {strategy.rounds} rounds of correlated noise, whose "
            'rounding would show; lower the rounds, or use mechanism="gaussian".'
        )


def no_buffers(strategy: Strategy, coordinates: int) -> Buffers:
    """The buffers before the first round."""
    return np.zeros((len(strategy.weights), coordinates), np.int64)


def remembered(
    strategy: Strategy, buffers: Buffers, drawn: Int64[np.ndarray, " coordinates"]
) -> tuple[Int64[np.ndarray, " coordinates"], Buffers]:
    """The noise of a round from what was drawn for it, and the buffers after the round."""
    if not strategy.weights:
        return drawn, buffers
    if not strategy.decays:
        noise = drawn - _weighted(buffers, strategy.weights)
        return noise, np.concatenate([noise[None], buffers[:-1]])
    noise = drawn.copy()
    for weight, buffer in zip(strategy.weights, buffers, strict=True):
        noise -= _scaled(buffer, weight)
    decayed = [_scaled(buffer, decay) + noise for decay, buffer in zip(strategy.decays, buffers, strict=True)]
    return noise, np.stack(decayed)


def _weighted(buffers: Buffers, weights: tuple[int, ...]) -> Int64[np.ndarray, " coordinates"]:
    """floor(sum of weight x buffer / ONE), exactly: fractions of up to 2^22 buffers add up within 63 bits."""
    whole, part = np.zeros_like(buffers[0]), np.zeros_like(buffers[0])
    for weight, buffer in zip(weights, buffers, strict=True):
        whole += weight * (buffer >> _FRACTION)
        part += weight * (buffer & (ONE - 1))
    return whole + (part >> _FRACTION)


def _scaled(values: Int64[np.ndarray, " n"], factor: int) -> Int64[np.ndarray, " n"]:
    """floor(factor x values / ONE), exactly, for 0 <= factor <= ONE and all values: no product exceeds 63 bits."""
    return factor * (values >> _FRACTION) + ((factor * (values & (ONE - 1))) >> _FRACTION)
