"""Private statistics of columns, for standardisation: one release of each silo before training.

Every column lies in [-1, 1], because its public range was scaled to that; what is outside is moved to the end. A
record's statistic, for each of D columns with value v, is one of

    moments      (v, v^2 - 1)                                        norm at most 1
    histogram    its bin of B, as an indicator, less 1/B             norm sqrt(1 - 1/B)
    quantiles    a tree: for each of l levels, +1 or -1 at the       norm sqrt(l)
                 node that holds v, for its left or right half

and a silo says the mean over its n records plus Gaussian noise of multiplier z: with C the bound on the norm of all
columns together, one record moves it by 2C/n at most. Centring makes that as small as a ball allows; for moments it
is exact (two records at opposite ends are 2 sqrt(D)/n apart), for a histogram at most sqrt(2) too large.

The tree is kept instead of a histogram where quantiles are wanted: a quantile sums few of its noisy numbers, but half
the bins of a histogram. It is the Haar transform of the histogram (Xiao, Wang and Gehrke, "Differential privacy via
wavelet transforms", ICDE 2010, with Gaussian noise).

Every message is the Gaussian mechanism on a mean of clipped statistics, as in training, and is priced with it.
"""

import math
from collections.abc import Sequence
from typing import Literal, get_args

import jax.numpy as jnp

from tacit.algorithm import Algorithm, Record, Round, Server, Silo, Terms, Work

Kind = Literal["moments", "quantiles", "histogram"]


def column_statistics(terms: Terms, *, columns: Sequence[int], statistic: Kind, bins: int = 16) -> Algorithm:
    """One round that releases a statistic of these coordinates of ``x``; the output has one row per column."""
    places = jnp.asarray(tuple(columns), jnp.int32)
    bound = column_bound(statistic, bins) * math.sqrt(len(columns))

    def query(work: Work, record: Record) -> jnp.ndarray:
        values = jnp.clip(record["x"][places], -1.0, 1.0)
        return _statistic(values, statistic, bins)

    release = terms.drawn(None, "full").release(clip=lambda work: bound)
    once = Round(Silo(query, release), Server(lambda state: state, lambda state, message: message), "all")
    width = 2 if statistic == "moments" else (bins if statistic == "histogram" else bins - 1)
    return Algorithm(
        lambda params: jnp.zeros((len(columns), width)), {"statistics": once}, ("statistics",), lambda state: state
    )


def column_bound(statistic: Kind, bins: int) -> float:
    """A bound on the norm of the statistic of one column.

    >>> column_bound("moments", 16), column_bound("quantiles", 16)
    (1.0, 2.0)
    """
    if statistic not in get_args(Kind):
        raise ValueError(f"Expected statistic={statistic!r} to be one of {', '.join(get_args(Kind))}.")
    if statistic == "moments":
        return 1.0
    if bins < 2 or bins & (bins - 1):
        raise ValueError(f"Expected bins={bins} to be a power of two, such as 16; halves are counted.")
    return math.sqrt(1 - 1 / bins) if statistic == "histogram" else math.sqrt(math.log2(bins))


def _statistic(values: jnp.ndarray, statistic: Kind, bins: int) -> jnp.ndarray:
    """The statistic of each value in [-1, 1], shape (columns, width)."""
    if statistic == "moments":
        return jnp.stack([values, values**2 - 1.0], axis=1)
    place = jnp.clip(jnp.floor((values + 1.0) / 2.0 * bins), 0, bins - 1).astype(jnp.int32)
    if statistic == "histogram":
        return (place[:, None] == jnp.arange(bins)[None, :]).astype(jnp.float32) - 1.0 / bins
    levels = int(math.log2(bins))
    signs = []
    for level in range(levels):
        node = place >> (levels - level)
        left = 1.0 - 2.0 * ((place >> (levels - level - 1)) & 1)
        signs.append((node[:, None] == jnp.arange(2**level)[None, :]) * left[:, None])
    return jnp.concatenate(signs, axis=1)
