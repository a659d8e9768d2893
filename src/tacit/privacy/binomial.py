"""The shuffled vector sum: what binomial noise, added in shares by all contributors, is worth.

Each contributor shifts its vector (of norm at most L) into [0, 2L], rounds every coordinate at random to a grid of
``grid`` steps, and adds ``Bin(bits, 1/2)``; only the sum over contributors is seen. With F the distribution function of
Bin(m, 1/2), a binomial has a monotone likelihood ratio, so the best test between it and its shift by an integer k is a
threshold, and the shift is dominated by (|k| mu_1)-GDP,

    mu_1 = max_c [Phi^-1 F(c) - Phi^-1 F(c-1)],

up to the mass ``tau`` outside the window that the maximum is taken over. Coordinates compose, and rounding is a
mixture whose points lie within ``B`` of the centre of the grid, so R rounds in d coordinates are

    delta(eps) <= R d tau + (1 - R d tau) gauss_delta(eps, 2 B mu_1 sqrt(R)).

Only noise that the adversary does not know counts: m = bits x (contributors that arrive and do not collude).

References:
    Cheu, Joseph, Mao, Peng. Shuffle private stochastic convex optimization (arXiv:2106.09805): the protocol.
    Lowy, Ghafelebashi, Razaviyayn (arXiv:2203.06735), Algorithms 4 and 5: its use; the centring is corrected here.
"""

import math

REJECTION = 1e-12
# From max(FEWEST_FLIPS, grid^2) honest flips on, mu_1 sigma is at most EXCESS (it falls with m; a test tabulates it).
FEWEST_FLIPS = 20_000
EXCESS = 1.002
FEWEST_STEPS = 200


def rounding_bound(grid: int, dimension: int, rejection: float = REJECTION) -> float:
    """A distance from the centre that a rounded vector exceeds with probability at most ``rejection``.

    A vector of norm at most L has norm at most grid/2 around the centre; rounding moves each coordinate by less than
    one, independently and on average not at all.

    >>> round(rounding_bound(200, 100), 1)
    103.9
    """
    half, root = grid / 2, math.sqrt(dimension)
    concentrated = half**2 + dimension / 4 + math.sqrt(2 * math.log(1 / rejection)) * (half + root / 2)
    return math.sqrt(min(concentrated, (half + root) ** 2))


def grid_for(contributors: int, dimension: int) -> int:
    """A grid so fine that rounding adds at most 5% to the noise: even, at least 2 sqrt(N), 10 sqrt(d) and 200.

    The bound on a rounded vector exceeds half the grid by a share of 7.5/grid, however small the crowd is.

    >>> [rounding_bound(grid_for(n, 60), 60) / (grid_for(n, 60) / 2) < 1.05 for n in (100, 2_000, 10**6)]
    [True, True, True]
    """
    return 2 * math.ceil(max(2 * math.sqrt(contributors), 10 * math.sqrt(dimension), FEWEST_STEPS) / 2)


def bits_for(noise_multiplier: float, grid: int, dimension: int, honest: int) -> int:
    """Coin flips that each contributor adds to each coordinate.

    Formal guarantee: against everyone but the shuffler and the ``honest`` contributors, the sum is at least as private
    as a Gaussian release with this multiplier, up to the tails of the binomial: mu_1 sigma <= 1.002 holds for at least
    max(20,000, grid^2) honest flips.

    >>> bits_for(4.0, 200, 100, 10_000)
    278
    """
    if noise_multiplier == 0.0:
        return 0
    needed = (4 * EXCESS * rounding_bound(grid, dimension) * noise_multiplier) ** 2
    return math.ceil(max(needed, FEWEST_FLIPS, grid**2) / honest)
