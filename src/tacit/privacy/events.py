"""What was released: frozen events, priced by `tacit.privacy.accountant`.

An `Event` says what one silo releases, never what it costs. Adjacency is *replace one record of one silo*,
with the number of records public. `noise_multiplier` is the standard deviation of the noise divided by the
replace-one sensitivity of the release: a mean of K records clipped to C, divided by the fixed K, moves by at
most 2C/K, so a multiplier z means sigma = z * 2C/K.

What an event promises about the silo, and what its price depends on:

- `full`: every record is in every release.
- `wor`, `wr`, `poisson`: a fresh, independent and *secret* batch for every release (K of n without
  replacement, K draws with replacement, each record with probability K/n). Everything computed from one batch
  is one release; its blocks are joined with `joint_multiplier`. Shuffled epochs are not `wor`.
- `allocation`: in every epoch of ceil(n/K) releases each record is in one batch, drawn uniformly and *secret*; epochs
  are independent, and one kind of round has the epochs of a schedule to itself (`tacit.privacy.allocation`).
- `one-pass`: batches are disjoint, fixed without looking at any record's content, and a record is in at most
  `passes` of them. All one-pass events of a schedule draw on the same pass.
- Sums are divided by the fixed K whatever the realised batch, and an empty batch is released with noise too.
- Noise multipliers are fixed in advance; queries, clips and noise *scales* may depend on earlier releases.
"""

import dataclasses
import math
import operator
from collections.abc import Iterable
from typing import Literal, get_args

from tacit.errors import TacitError

Sampling = Literal["full", "wor", "wr", "poisson", "allocation", "one-pass"]
Mechanism = Literal["gaussian", "cumulative", "correlated", "discrete-gaussian", "reports"]
Protects = Literal["record", "sensitive-attribute", "silo"]


class PricingError(TacitError):
    """A release that cannot be priced, or a number that is out of range; the message says the way out."""


LEAST_NOISE = 1e-10
"""The least noise multiplier above zero that has a price: epsilon is above 10^19 there."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Event:
    """`count` releases of one kind by one silo under the same static terms.

    Args:
        kind: Name of the kind of round.
        noise_multiplier: Noise standard deviation over the replace-one sensitivity of the whole release
            (several blocks are joined first). Zero means no noise, hence an infinite price.
        count: How many such releases a record may enter, already capped at the participations agreed to.
        records: Number of records n of the silo.
        batch: The fixed divisor K.
        sampling: How a batch is drawn; see the module docstring for what each scheme promises.
        mechanism: `gaussian`; `cumulative` (fresh noise on the running sum of all increments so far, as in
            DP-mu^2); `correlated` (noise that takes off part of what earlier rounds added, see
            `tacit.privacy.strategy`); `discrete-gaussian` (the statistic is rounded to a grid and noise is an
            integer); or `reports` (each record of the batch gives one report of a local randomiser to each stream,
            and all silos' reports of a stream are shuffled together). For reports the noise multiplier is the
            reciprocal of the randomiser's epsilon, so that more is more private there too.
        capacity: Poisson sampling and allocation only: the physical batch limit. Above it, a uniformly random subset
            of `capacity` of the sampled records is kept. None means no limit.
        passes: One-pass and allocation only: the most batches that one record may enter; of allocation the epochs.
        grid_sigma: Discrete Gaussian only: noise standard deviation in units of the grid.
        dimension: Discrete Gaussian only: number of coordinates that are rounded to the grid before the noise; None
            where the statistic is made of integers, whose sensitivity has no rounding in it.
        reports: Reports only: the reports of one shuffle that are sure to arrive from contributors who do not
            collude, the victim's among them.
        streams: Reports only: the noise multiplier of each stream as a multiple of `noise_multiplier`.
        protects: What differs between adjacent data sets. `sensitive-attribute` and `silo` void the
            amplification that `record` enjoys.
        participations: The most rounds that the silo answers, of all kinds of the schedule together; None means no
            limit. Each kind's own `count` is limited besides.
        steps: How many releases of this kind one round makes.
        rounds: Correlated noise only: how many rounds it is made for. All of them are paid for, however many are made.
        strategy: Correlated noise only: weights and decays, or weights of bands, of `tacit.privacy.strategy`, so that
            a ledger prices what was released, whichever strategy is best known by then. None means today's.

    >>> Event(kind="gradient", noise_multiplier=30.5, count=50, records=1234, batch=1234, sampling="full")
    ... # doctest: +ELLIPSIS
    Event(kind='gradient', noise_multiplier=30.5, count=50, records=1234, batch=1234, ...)
    """

    kind: str
    noise_multiplier: float
    count: int
    records: int
    batch: int
    sampling: Sampling
    mechanism: Mechanism = "gaussian"
    capacity: int | None = None
    passes: int = 1
    grid_sigma: float | None = None
    dimension: int | None = None
    reports: int | None = None
    streams: tuple[float, ...] | None = None
    protects: Protects = "record"
    participations: int | None = None
    steps: int = 1
    rounds: int | None = None
    strategy: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    def __post_init__(self) -> None:
        _require_choice("sampling", self.sampling, get_args(Sampling))
        _require_choice("mechanism", self.mechanism, get_args(Mechanism))
        _require_choice("protects", self.protects, get_args(Protects))
        if not isinstance(self.kind, str) or not self.kind:
            raise PricingError(f"Expected kind={self.kind!r} to be a non-empty name of a kind of round.")
        noise = non_negative("noise_multiplier", self.noise_multiplier)
        if 0.0 < noise < LEAST_NOISE:
            raise PricingError(f"Expected noise_multiplier={noise} of at least {LEAST_NOISE:g}; less hides nothing.")
        object.__setattr__(self, "noise_multiplier", noise)
        for name, least in (("count", 0), ("records", 1), ("batch", 1), ("passes", 1), ("steps", 1)):
            object.__setattr__(self, name, integer(name, getattr(self, name), least))
        if self.participations is not None:
            object.__setattr__(self, "participations", integer("participations", self.participations, 0))
        _check_sampling(self)
        _check_mechanism(self)
        _check_strategy(self)
        _check_reports(self)

    @property
    def local_epsilons(self) -> tuple[float, ...]:
        """Reports only: the epsilon of the local randomiser of each stream."""
        return tuple(1 / (self.noise_multiplier * ratio) for ratio in self.streams or ())

    @property
    def rate(self) -> float:
        """The share K/n of the silo's records in a batch."""
        return self.batch / self.records

    def scaled(self, factor: float) -> "Event":
        """The same releases with `factor` times the noise, on the same grid."""
        grid = None if self.grid_sigma is None else self.grid_sigma * factor
        return dataclasses.replace(self, noise_multiplier=self.noise_multiplier * factor, grid_sigma=grid)


def joint_multiplier(multipliers: Iterable[float]) -> float:
    """Multiplier of one release made of several blocks, each with its own noise.

    Formal guarantee: blocks with Gaussian noise of multipliers z_b (each relative to its own sensitivity)
    released together are exactly as private as one Gaussian release with z^-2 = sum_b z_b^-2.

    >>> round(joint_multiplier([3.0, 4.0]), 6)
    2.4
    """
    blocks = [non_negative("noise_multiplier", z) for z in multipliers]
    if not blocks:
        raise PricingError("Expected at least one noise multiplier; a release has at least one block.")
    smallest = min(blocks)
    if smallest == 0.0:
        return 0.0
    return smallest / math.sqrt(math.fsum((smallest / z) ** 2 for z in blocks))


def non_negative(name: str, value: float) -> float:
    """Return `value` as a float, or raise if it is not a finite number >= 0."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise PricingError(f"Expected {name}={value!r} to be a number.") from None
    if not (math.isfinite(number) and number >= 0.0):
        raise PricingError(f"Expected {name}={number} to be finite and >= 0.")
    return number


def positive(name: str, value: float) -> float:
    """Return `value` as a float, or raise if it is not a finite number > 0."""
    number = non_negative(name, value)
    if number == 0.0:
        raise PricingError(f"Expected {name}={number} > 0.")
    return number


def probability(name: str, value: float) -> float:
    """Return `value` as a float strictly between 0 and 1, or raise."""
    number = non_negative(name, value)
    if not 0.0 < number < 1.0:
        raise PricingError(f"Expected 0 < {name}={number} < 1; a common choice is 1e-6 or 1/records^2.")
    return number


def integer(name: str, value: int, least: int) -> int:
    """Return `value` as an int, or raise if it is not a whole number >= `least`."""
    if isinstance(value, bool):
        raise PricingError(f"Expected {name}={value!r} to be an integer.")
    try:
        number = operator.index(value)
    except TypeError:
        raise PricingError(f"Expected {name}={value!r} to be an integer.") from None
    if number < least:
        raise PricingError(f"Expected {name}={number} >= {least}.")
    return number


def _require_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise PricingError(f"Expected {name}={value!r} to be one of {', '.join(choices)}.")


def _check_sampling(event: Event) -> None:
    n, batch = event.records, event.batch
    if event.sampling == "full" and batch != n:
        raise PricingError(
            f'Expected batch={batch} == records={n} for sampling "full"; '
            'set batch=records, or choose sampling="poisson" for mini-batches.'
        )
    if batch > n:
        raise PricingError(
            f'Expected batch={batch} <= records={n} for sampling "{event.sampling}"; '
            'lower the batch or use sampling="full" with batch=records.'
        )
    if event.sampling not in ("one-pass", "allocation") and event.passes != 1:
        raise PricingError(f'Expected passes={event.passes} == 1 unless sampling="one-pass" or "allocation".')
    if event.sampling == "allocation" and event.protects == "sensitive-attribute":
        raise PricingError('Expected sampling="allocation" of whole records, not protects="sensitive-attribute".')
    if event.sampling == "allocation" and event.count > event.passes * -(-n // batch):
        raise PricingError(
            f"Expected count={event.count} <= passes={event.passes} x {-(-n // batch)} batches of an epoch; raise "
            "passes, the number of epochs."
        )
    if event.sampling == "one-pass":
        check_pass([event])
    if event.capacity is not None:
        if event.sampling not in ("poisson", "allocation"):
            raise PricingError(
                f'Expected capacity={event.capacity} only with sampling="poisson" or "allocation", not '
                f'"{event.sampling}"; leave capacity out: other batches have no random size.'
            )
        object.__setattr__(event, "capacity", integer("capacity", event.capacity, 1))
        if event.capacity < batch:
            raise PricingError(
                f"Expected capacity={event.capacity} >= batch={batch}; "
                "raise the capacity or lower the batch, which is the mean size of a batch."
            )


def check_pass(events: Iterable[Event]) -> None:
    """Raise unless these one-pass events fit together into one pass over the records.

    All one-pass events of a schedule share one partition of the records into disjoint batches: their batches
    taken together must not exceed `passes` times the records, and they must agree on `passes`.
    """
    events = list(events)
    if not events:
        return
    passes, n = events[0].passes, events[0].records
    if any(e.passes != passes for e in events):
        kinds = ", ".join(f"{e.kind}: {e.passes}" for e in events)
        raise PricingError(
            f"Expected one number of passes for all one-pass events, got {kinds}; "
            "they share one partition of the records, so give them the same passes."
        )
    used = sum(e.count * e.batch for e in events)
    if used > passes * n:
        terms = " + ".join(f"count={e.count} x batch={e.batch}" for e in events)
        raise PricingError(
            f'Expected {terms} = {used} <= passes={passes} x records={n} for sampling "one-pass"; '
            'lower the rounds or the batch, or use sampling="poisson" to see records again.'
        )


def _check_mechanism(event: Event) -> None:
    if event.mechanism in ("cumulative", "correlated") and event.sampling not in ("full", "one-pass"):
        raise PricingError(
            f'Expected sampling "full" or "one-pass" for mechanism "{event.mechanism}", not "{event.sampling}"; '
            "a batch stays in what later rounds say, so sampling does not amplify."
        )
    if (event.mechanism == "correlated") != (event.rounds is not None):
        raise PricingError('Expected rounds, that the noise is made for, exactly for mechanism "correlated".')
    if event.rounds is not None:
        object.__setattr__(event, "rounds", integer("rounds", event.rounds, max(event.count, 1)))
    discrete = event.mechanism == "discrete-gaussian"
    if not discrete:
        if event.grid_sigma is not None or event.dimension is not None:
            raise PricingError(
                f'Expected grid_sigma and dimension only with mechanism "discrete-gaussian", not '
                f'"{event.mechanism}"; leave them out.'
            )
        return
    if event.grid_sigma is None:
        raise PricingError(
            'Expected grid_sigma for mechanism "discrete-gaussian"; give the noise in units of the grid.'
        )
    object.__setattr__(event, "grid_sigma", non_negative("grid_sigma", event.grid_sigma))
    if (event.grid_sigma == 0.0) != (event.noise_multiplier == 0.0):
        raise PricingError(
            f"Expected grid_sigma={event.grid_sigma} and noise_multiplier={event.noise_multiplier} to be "
            "zero together; they are the same noise in units of the grid and of the sensitivity."
        )
    if event.dimension is not None:
        object.__setattr__(event, "dimension", integer("dimension", event.dimension, 1))


def _check_strategy(event: Event) -> None:
    if event.strategy is None:
        return
    weights, decays = (tuple(integer("strategy", value, 0) for value in part) for part in event.strategy)
    if event.mechanism != "correlated" or (decays and len(weights) != len(decays)):
        raise PricingError(
            'Expected a strategy, with a decay for each weight or for none, only with mechanism "correlated".'
        )
    object.__setattr__(event, "strategy", (weights, decays))


def _check_reports(event: Event) -> None:
    if event.mechanism != "reports":
        if event.reports is not None or event.streams is not None:
            raise PricingError(
                f'Expected reports and streams only with mechanism "reports", not "{event.mechanism}"; leave them out.'
            )
        return
    if event.reports is None or not event.streams:
        raise PricingError(
            'Expected reports and streams for mechanism "reports"; say how many honest reports are sure to be shuffled '
            "together, and give 1.0 for each stream."
        )
    if event.sampling in ("poisson", "allocation", "wr"):
        raise PricingError(
            f'Expected sampling "full", "wor" or "one-pass" for mechanism "reports", not "{event.sampling}": every '
            "record gives one report and their number is fixed."
        )
    if event.protects != "record":
        raise PricingError(f'Expected protects="record" for mechanism "reports", not "{event.protects}".')
    object.__setattr__(event, "reports", integer("reports", event.reports, 1))
    object.__setattr__(event, "streams", tuple(positive("streams", ratio) for ratio in event.streams))
