"""What must be known to choose: the loss, the silos, whom to trust, and the budget."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tacit.theory import ConvexSetting, NonconvexSetting, TheoryError


@dataclass(frozen=True, kw_only=True)
class Situation:
    """A problem, a federation, trust and a budget.

    Args:
        convex: Whether each record's loss is convex.
        strong_convexity: mu of each record's loss, 0 if there is none.
        pl: The proximal-PL constant, where there is one.
        smoothness: beta of each record's loss; None: not smooth.
        heterogeneous: Whether silos' records come from different distributions.
        shuffler, trusted_server: Whether they are trusted, the server with messages without noise.
        peers: Whether silos trust each other, but for one, to add their shares of the noise (pairwise sums).
        sizes: Records of each silo; theorems are applied at the smallest.
        lipschitz: L of each record's loss, which is the clip.
        diameter: Of a ball around the initial point that holds an optimum.
        epsilon, delta: Budget of each record.
        fairness: Whether predictions shall not depend on a sensitive attribute.
        participants: Silos that come to a round; None: all.
        gap: Excess risk of the initial point; by default L times the radius, which bounds it for convex losses.
        max_rounds: As many rounds as one is willing to make.
        squared: Whether each record's loss is half the squared error of a linear model, of targets in [0, 1].
    """

    convex: bool
    sizes: tuple[int, ...]
    dimension: int
    epsilon: float
    strong_convexity: float = 0.0
    pl: float | None = None
    smoothness: float | None = None
    heterogeneous: bool = True
    shuffler: bool = False
    trusted_server: bool = False
    peers: bool = False
    lipschitz: float = 1.0
    diameter: float = 2.0
    delta: float = 1e-6
    fairness: bool = False
    participants: int | None = None
    gap: float | None = None
    max_rounds: int = 1000
    squared: bool = False

    def __post_init__(self) -> None:
        names = ("epsilon", "lipschitz", "diameter", "dimension", "max_rounds", "smoothness", "pl", "gap")
        values = {"smallest silo": min(self.sizes, default=0), **{name: getattr(self, name) for name in names}}
        for name, value in values.items():
            if value is not None and not (math.isfinite(value) and value > 0):
                raise TheoryError(f"Expected {name}={value} > 0 and finite; correct the flag.")
        if not 0 < self.delta < 1:
            raise TheoryError(f"Expected 0 < delta={self.delta} < 1; a common choice is 1e-6.")
        if self.strong_convexity < 0 or (self.strong_convexity > 0 and not self.convex):
            raise TheoryError(
                f"Expected strong convexity mu={self.strong_convexity} >= 0, and only for convex losses; give the "
                "proximal-PL constant for others."
            )
        if self.participants is not None and not 1 <= self.participants <= self.silos:
            raise TheoryError(f"Expected 1 <= participants={self.participants} <= silos={self.silos}.")

    @property
    def silos(self) -> int:
        """How many silos there are."""
        return len(self.sizes)

    @property
    def records(self) -> int:
        """Records of the smallest silo, at which theorems are applied."""
        return min(self.sizes)

    @property
    def radius(self) -> float:
        """Half the diameter."""
        return self.diameter / 2

    @property
    def present(self) -> int:
        """How many silos come to a round."""
        return self.silos if self.participants is None else self.participants

    @property
    def start_gap(self) -> float:
        """The excess risk of the initial point, at most."""
        return self.lipschitz * self.radius if self.gap is None else self.gap

    @property
    def shared(self) -> dict[str, Any]:
        """What the theorems of all kinds are told."""
        names = ("lipschitz", "records", "silos", "dimension", "epsilon", "delta")
        return {name: getattr(self, name) for name in names}

    def convex_setting(self) -> ConvexSetting:
        """What the convex theorems are told."""
        return ConvexSetting(
            **self.shared,
            radius=self.radius,
            smoothness=self.smoothness,
            strong_convexity=self.strong_convexity,
            participants=self.participants,
            gap=self.gap,
        )

    def nonconvex_setting(self) -> NonconvexSetting:
        """What the non-convex theorems are told; through the shuffled sum where a shuffler is trusted and all come."""
        assert self.smoothness is not None
        return NonconvexSetting(
            **self.shared,
            smoothness=self.smoothness,
            gap=self.start_gap,
            pl=self.pl_constant,
            participants=self.participants,
            channel="shuffled-sum" if self.shuffler and self.present == self.silos else "direct",
        )

    @property
    def pl_constant(self) -> float | None:
        """The proximal-PL constant: its own, or mu, as strongly convex losses are proximal-PL."""
        return self.pl if self.pl is not None else (self.strong_convexity or None)


Rule = tuple[Callable[[Situation], bool], str]

CONVEX: Rule = (lambda s: s.convex, "its theorem needs convex losses")
SMOOTH: Rule = (lambda s: s.smoothness is not None, "its theorem needs smooth losses (a beta)")
PL: Rule = (lambda s: s.pl_constant is not None, "its theorem needs a proximal-PL constant (or strong convexity)")
EVERYONE: Rule = (lambda s: s.present == s.silos, "its theorem needs every silo in every round")
SHUFFLER: Rule = (lambda s: s.shuffler, "it needs a trusted shuffler")
TRUSTED: Rule = (lambda s: s.trusted_server, "it needs a trusted server")
SQUARED: Rule = (lambda s: s.squared and s.smoothness is not None, "it needs squared losses of a linear model")
UNFAIR: Rule = (lambda s: not s.fairness, "it does nothing for fairness")
FAIR: Rule = (lambda s: s.fairness, "fairness is not asked for")
