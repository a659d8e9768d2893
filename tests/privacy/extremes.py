"""A search for the accountant's limits: prices over a grid of extreme schedules, each checked against what must hold.

`search` prices every point and its neighbours; `soak/accountant.py` runs it in full, and the tests a trimmed grid.
"""

import dataclasses
import itertools
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from tacit.privacy import Event, PricingError, gaussian_mu, gdp_epsilon, price, risk, risk_of_price
from tacit.privacy.schedule import loss_parts, payable

COUNTS = (1, 10, 1_000, 100_000, 1_000_000, 10_000_000)
RATES = (1e-6, 1e-4, 1e-2, 0.5, 0.999)
NOISES = (0.1, 0.5, 1.0, 10.0, 1e3, 1e5)
DELTAS = (1e-9, 1e-6, 1e-2)
SAMPLINGS = ("poisson", "wor", "wr")
RECORDS = 1_000_000
# The grid costs at most this share of epsilon, and two neighbours may differ by it in the wrong direction.
TOLERANCE = 1e-3


@dataclasses.dataclass(frozen=True)
class Grid:
    """The values to combine."""

    counts: Sequence[int] = COUNTS
    rates: Sequence[float] = RATES
    noises: Sequence[float] = NOISES
    deltas: Sequence[float] = DELTAS
    samplings: Sequence[str] = SAMPLINGS


def sampled(sampling: str, count: int, rate: float, noise: float) -> tuple[Event, ...]:
    batch = max(1, round(rate * RECORDS))
    return (Event(kind="g", noise_multiplier=noise, count=count, records=RECORDS, batch=batch, sampling=sampling),)


def mixed(count: int, rate: float, noise: float) -> tuple[Event, ...]:
    """Subsampled releases of two kinds, beside a few of all records that cost about as much."""
    full = Event(
        kind="f",
        noise_multiplier=max(noise / (rate * math.sqrt(count)), 0.1),
        count=3,
        records=RECORDS,
        batch=RECORDS,
        sampling="full",
    )
    [one] = sampled("poisson", count, rate, noise)
    [two] = sampled("wor", max(1, count // 7), rate, 3 * noise)
    return one, dataclasses.replace(two, kind="h"), full


def reports(count: int, anonymity: int, noise: float, rate: float) -> tuple[Event, ...]:
    records = 10_000
    batch = max(1, round(rate * records))
    return (
        Event(
            kind="r",
            noise_multiplier=noise,
            count=count,
            records=records,
            batch=batch,
            sampling="full" if batch == records else "wor",
            mechanism="reports",
            reports=max(batch, anonymity),
            streams=(1.0, 2.0),
        ),
    )


def epsilon_of(events: Sequence[Event], delta: float) -> float:
    """The price after everything that must hold of one; NaN where it is refused with a reason."""
    try:
        paid = price(events, delta=delta)
        reading = risk_of_price(paid)
    except PricingError:
        return math.nan
    epsilon = paid.epsilon
    assert 0.0 <= epsilon < math.inf, (epsilon, events)
    assert paid.accountant in ("gdp", "pld", "pure")
    for profile, _ in loss_parts(payable(events)):
        # No schedule is more private than one of its releases.
        assert float(profile(np.array([epsilon]))[0]) <= delta * (1 + 1e-9), (epsilon, events)
    if all(e.mechanism != "reports" for e in events):
        assert epsilon <= gdp_epsilon(gaussian_mu(events), delta) * (1 + 1e-9), (epsilon, events)
    point = risk(epsilon=epsilon, delta=delta)
    assert 0.0 <= reading.advantage <= point.advantage * (1 + 1e-6), (reading, point, events)
    assert 0.01 <= reading.tpr_at_1pct_fpr <= min(1.0, point.tpr_at_1pct_fpr * (1 + 1e-6)), (reading, point, events)
    return epsilon


def check_order(values: Iterable[float], what: str) -> None:
    """Raise unless these prices grow; refused ones are left out."""
    known = [v for v in values if not math.isnan(v)]
    for smaller, larger in itertools.pairwise(known):
        assert smaller <= larger * (1 + TOLERANCE) + 1e-12, (what, smaller, larger, known)


def search(grid: Grid) -> Iterator[tuple[tuple[object, ...], float]]:
    """Price the grid, check every price, and check that prices are monotone along each of its lines.

    Yields the point and its epsilon; NaN where the point is refused with a reason.
    """
    axes = (grid.counts, grid.rates, grid.noises, grid.deltas)
    for sampling in grid.samplings:
        found = np.full([len(axis) for axis in axes], math.nan)
        for place in np.ndindex(*found.shape):
            count, rate, noise, delta = (axis[i] for axis, i in zip(axes, place, strict=True))
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                events = mixed(count, rate, noise) if sampling == "mixed" else sampled(sampling, count, rate, noise)
                found[place] = epsilon_of(events, delta)
            yield (sampling, count, rate, noise, delta), float(found[place])
        for axis, name in enumerate(("count", "rate", "noise", "delta")):
            for line in np.moveaxis(found, axis, -1).reshape(-1, found.shape[axis]):
                # Fewer releases and smaller batches cost less; so do more noise and a larger delta.
                check_order(line if axis < 2 else line[::-1], f"{sampling} by {name}")
