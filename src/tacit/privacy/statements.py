"""A theorem's noise beside the noise that is needed: the types that `tacit.privacy.theorems` fills in."""

import dataclasses
import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from tacit.privacy.accountant import price
from tacit.privacy.calibration import calibrate
from tacit.privacy.events import Event, Sampling, positive, probability
from tacit.privacy.randomisers import noise_over_clip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Condition:
    """A condition of a theorem with the numbers put in."""

    text: str
    holds: bool


def at_most(name: str, value: float, rule: str, limit: float) -> Condition:
    """``value <= limit`` in words."""
    return Condition(text=f"{name}={value:.4g} <= {rule}{'=' if rule else ''}{limit:.4g}", holds=value <= limit)


def at_least(name: str, value: float, rule: str, limit: float) -> Condition:
    """``value >= limit`` in words."""
    return Condition(text=f"{name}={value:.4g} >= {rule}{'=' if rule else ''}{limit:.4g}", holds=value >= limit)


@dataclasses.dataclass(frozen=True)
class PaperRelease:
    """One kind of release as a theorem prints it; it becomes an `Event` when it is priced.

    Args:
        kind: Name of the kind of round.
        noise_multiplier: Printed sigma over the replace-one sensitivity of the release.
        corrected_multiplier: The same after correcting the theorem by its own argument.
        sensitivity: Replace-one sensitivity in units of the clip bound.
        count: Releases per silo.
        batch: Records per release.
        sampling: How the batch is drawn.
        messages: Messages of equal multiplier that make up the release; the multipliers above are joint.
        terms: Other fields of the `Event`.
    """

    kind: str
    noise_multiplier: float
    corrected_multiplier: float
    sensitivity: float
    count: int
    batch: int
    sampling: Sampling
    messages: int = 1
    terms: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def event(self, records: int, noise_multiplier: float) -> Event:
        """The release as an event of a silo with so many records."""
        own: dict[str, Any] = {name: getattr(self, name) for name in ("kind", "count", "batch", "sampling")}
        return Event(noise_multiplier=noise_multiplier, records=records, **own, **self.terms)

    def over_clip(self, event: Event) -> float:
        """Standard deviation of this release over the clip bound, at the noise of ``event``."""
        if event.mechanism == "reports":
            return noise_over_clip(event)
        return event.noise_multiplier * self.sensitivity


@dataclasses.dataclass(frozen=True)
class PaperNoise:
    """A theorem's noise beside the noise that is needed; prices are computed when asked for."""

    source: str
    records: int
    epsilon: float
    delta: float
    releases: tuple[PaperRelease, ...]
    conditions: tuple[Condition, ...]
    correction: str

    @property
    def events(self) -> tuple[Event, ...]:
        """The releases at the printed noise."""
        return tuple(r.event(self.records, r.noise_multiplier) for r in self.releases)

    @property
    def sigma_over_clip(self) -> tuple[float, ...]:
        """Printed sigma of each release, in units of the clip bound."""
        return tuple(r.over_clip(e) for r, e in zip(self.releases, self.events, strict=True))

    @cached_property
    def epsilon_certified(self) -> float:
        """What the printed noise really buys, with the theorem's sampling."""
        return price(self.events, delta=self.delta).epsilon

    @cached_property
    def epsilon_corrected(self) -> float:
        """What the corrected noise really buys."""
        corrected = [r.event(self.records, r.corrected_multiplier) for r in self.releases]
        return price(corrected, delta=self.delta).epsilon

    @cached_property
    def tight(self) -> tuple[Event, ...]:
        """The releases at the smallest noise that is enough, in the theorem's proportions."""
        return calibrate(self.events, epsilon=self.epsilon, delta=self.delta)

    @property
    def tight_sigma_over_clip(self) -> tuple[float, ...]:
        """Our sigma of each release, in units of the clip bound."""
        return tuple(r.over_clip(e) for r, e in zip(self.releases, self.tight, strict=True))

    @property
    def ratio(self) -> float:
        """Printed noise over needed noise; below 1 the theorem's noise is not private enough."""
        return self.events[0].noise_multiplier / self.tight[0].noise_multiplier


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """What a theorem is applied to: a silo, a budget, and an algorithm's parameters and terms by their own names.

    Those after ``sampling`` (``None``: what the theorem assumes) are read by the algorithms that have them.
    """

    records: int
    num_rounds: int
    batch_size: int
    epsilon: float
    delta: float
    silos: int = 1
    sampling: Sampling | None = None
    phase_length: int | None = None
    restarts: int = 1
    local_steps: int = 1
    local_batch_size: int | None = None
    difference_batch_size: int | None = None
    difference_sampling: Sampling | None = None

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon)
        probability("delta", self.delta)

    @property
    def log(self) -> float:
        """ln(1/delta)."""
        return -math.log(self.delta)
