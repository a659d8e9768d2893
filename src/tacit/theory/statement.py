"""What a theorem is told, and what it says: the types that this folder fills in."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal, get_type_hints

from tacit.errors import TacitError
from tacit.privacy import Condition, gdp_mu
from tacit.privacy.statements import at_most

Risk = Literal["population", "empirical"]


class TheoryError(TacitError):
    """A theorem that cannot be applied; the message names what is missing or out of range."""


def check_positive(setting: Any, may_be_zero: str = "") -> None:
    """Raise unless every number of a setting is finite and above zero, and delta is below one."""
    for name, value in ((field.name, getattr(setting, field.name)) for field in fields(setting)):
        if value is None or isinstance(value, str) or (name == may_be_zero and value == 0):
            continue
        if not (math.isfinite(value) and value > 0):
            raise TheoryError(f"Expected {name}={value} > 0 and finite.")
    if setting.delta >= 1:
        raise TheoryError(f"Expected delta={setting.delta} < 1.")


def harmonic(chances: Mapping[int, float]) -> float:
    """M with 1/M = E[1/M_r], where a round has m silos with probability ``chances[m]``.

    Theorems speak of a random number of silos through this number alone: the variance of a mean over m silos, of their
    noise and of who came, is a linear function of 1/m.

    >>> round(harmonic({1: 0.5, 3: 0.5}), 6)
    1.5
    """
    if not chances or min(chances) < 1 or min(chances.values()) < 0 or abs(sum(chances.values()) - 1) > 1e-9:
        raise TheoryError(f"Expected chances of at least one silo that add up to one, got {dict(chances)}.")
    return 1 / math.fsum(chance / m for m, chance in chances.items())


def binomial_silos(silos: int, chance: float, at_least: int = 1) -> float:
    """M where each silo comes by itself with this chance, and rounds of fewer than ``at_least`` silos are not held.

    >>> binomial_silos(10, 1.0), round(binomial_silos(10, 0.5), 2)
    (10.0, 4.36)
    """
    if not (0 < chance <= 1 and 1 <= at_least <= silos):
        raise TheoryError(f"Expected 0 < chance={chance} <= 1 and 1 <= at_least={at_least} <= silos={silos}.")
    counts = range(at_least, silos + 1)
    weights = {m: math.comb(silos, m) * chance**m * (1 - chance) ** (silos - m) for m in counts}
    total = math.fsum(weights.values())
    return harmonic({m: weight / total for m, weight in weights.items()})


@dataclass(frozen=True, kw_only=True)
class ConvexSetting:
    """A convex problem, a federation and a budget.

    ``lipschitz`` (L), ``smoothness`` (beta; ``None``: not smooth) and ``strong_convexity`` (mu) hold for each record's
    loss; ``radius`` (D) bounds the distance from the initial point to an optimum. There are ``silos`` (N) of
    ``records`` (n) each, of whom ``participants`` (M; ``None``: all) come to a round; where their number is
    random, 1/M = E[1/M_r], as `harmonic` and `binomial_silos` find it. ``dimension`` (d) counts parameters;
    ``gap`` bounds the excess risk of the initial point where more is known of it than L D.

    >>> s = ConvexSetting(lipschitz=1, radius=1, records=1234, silos=25, dimension=50, epsilon=1, delta=1 / 1234**2)
    >>> round(s.mu, 4), s.present
    (0.232, 25)
    """

    lipschitz: float
    radius: float
    records: int
    silos: int
    dimension: int
    epsilon: float
    delta: float
    smoothness: float | None = None
    strong_convexity: float = 0.0
    participants: float | None = None
    gap: float | None = None

    def __post_init__(self) -> None:
        check_positive(self, may_be_zero="strong_convexity")
        if self.present > self.silos:
            raise TheoryError(f"Expected participants={self.participants} <= silos={self.silos}.")
        if self.smoothness is not None and self.strong_convexity > self.smoothness:
            raise TheoryError(
                f"Expected strong_convexity={self.strong_convexity:g} <= smoothness={self.smoothness:g}: no loss "
                "curves more than its smoothness allows."
            )

    @property
    def present(self) -> float:
        """How many silos come to a round: M, the reciprocal of the mean of 1/M_r."""
        return self.silos if self.participants is None else self.participants

    @cached_property
    def mu(self) -> float:
        """The budget as a Gaussian separation: all releases together must be mu-GDP."""
        return gdp_mu(self.epsilon, self.delta)


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A theorem with the numbers put in.

    Args:
        algorithm: Name as typed in a study.
        source: The theorem.
        parameters: Arguments of the algorithm's factory.
        bound: Excess risk that is guaranteed, with all constants, at these parameters.
        rate: The theorem's expression as printed, its hidden constant set to one.
        lower_bound: What no algorithm of the class can beat, its hidden constant set to one.
        risk: Whose excess is bounded.
        conditions: What the bound rests on, with the numbers put in.
        lower_conditions: What the lower bound rests on.
        smoothing: The smoothness b of the envelope or convolution to run on, for losses that are not smooth.
    """

    algorithm: str
    source: str
    parameters: Mapping[str, Any]
    bound: float
    rate: float
    lower_bound: float
    risk: Risk
    conditions: tuple[Condition, ...] = ()
    lower_conditions: tuple[Condition, ...] = ()
    smoothing: float | None = None

    @property
    def failed(self) -> tuple[str, ...]:
        """The conditions that do not hold, each with its numbers."""
        return tuple(c.text for c in self.conditions if not c.holds)

    def sentence(self, measure: str | None = None) -> str:
        """What it promises."""
        rounds, lower = self.parameters["num_rounds"], ""
        measure = measure or f"{self.risk} excess risk"
        if math.isfinite(self.lower_bound) and self.lower_bound > 0:
            failed = "; ".join(c.text for c in self.lower_conditions if not c.holds)
            lower = f" No algorithm does better than {self.lower_bound:.3g}, up to a constant"
            lower += f"; this lower bound alone needs more: {failed}." if failed else "."
        return (
            f"{self.source}, with its own parameters and {rounds} rounds at this budget: {measure} at "
            f"most {self.bound:.3g}. {conditions_text(self.failed)}{lower}"
        )


def conditions_text(failed: Iterable[str]) -> str:
    """Whether a promise stands, by the conditions that fail.

    >>> conditions_text(["bound=3 <= L D=1"])
    'The promise is empty: it needs bound=3 <= L D=1.'
    """
    needs = "; ".join(failed)
    return f"The promise is empty: it needs {needs}." if needs else "Its conditions hold."


def says_something(bound: float, s: ConvexSetting) -> Condition:
    """Whether the bound beats the initial point, whose excess risk is at most L D whatever the data, or ``s.gap``."""
    anywhere = s.lipschitz * s.radius
    if s.gap is not None and s.gap < anywhere:
        return at_most("bound", bound, "excess risk at the start", s.gap)
    return at_most("bound", bound, "L D", anywhere)


def is_convex(theorem: Callable[..., Any] | None) -> bool:
    """Whether there is a theorem and it speaks of convex losses."""
    return theorem is not None and get_type_hints(theorem).get("setting") is ConvexSetting


def stated(
    theorem: Callable[..., Statement],
    s: ConvexSetting,
    *,
    most_rounds: int,
    heterogeneous: bool = True,
    channel: str = "direct",
    batch_size: int | None = None,
) -> Statement:
    """The theorem of an algorithm with its own parameters, within so many rounds.

    Silos that may differ (the default: nobody has said that they are alike) leave minibatch SGD a promise about the
    records at hand, not about the population. A pass is made of batches of ``batch_size``, or large enough to end in
    time.

    >>> from tacit.theory import mb_sgd_from_theory
    >>> s = ConvexSetting(lipschitz=1, radius=1, smoothness=1, records=90, silos=4, dimension=9, epsilon=1, delta=1e-5)
    >>> stated(mb_sgd_from_theory, s, most_rounds=30).parameters["num_rounds"]
    30
    """
    takes = inspect.signature(theorem).parameters
    own: dict[str, Any] = {"channel": channel} if "channel" in takes else {}
    if "risk" in takes:
        own["risk"] = "empirical" if heterogeneous else "population"
    if "num_rounds" not in takes:
        return theorem(s, batch_size=batch_size or math.ceil(s.records / most_rounds), **own)
    found = theorem(s, **own)
    return found if found.parameters["num_rounds"] <= most_rounds else theorem(s, num_rounds=most_rounds, **own)
