"""What a run leaves: when it was ready to begin, when each round ended, and the parameters then."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple


class Trained(NamedTuple):
    """Seconds until the first round could begin and until the end of each, and parameters after each, as all name them.

    Parameters are copied when a round has ended; they are turned into numbers for people by ``layers``, off the clock.
    """

    setup: float
    seconds: list[float]
    kept: list[Any]
    layers: Callable[[Any], Any]


class Clock:
    """Runs from its making."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self.setup, self.seconds, self.kept = 0.0, list[float](), list[Any]()

    def ready(self) -> None:
        """Everything is built and compiled."""
        self.setup = self._now()

    def ended(self, params: Any) -> None:
        """A round has ended with these parameters."""
        self.seconds.append(self._now())
        self.kept.append(params)

    def _now(self) -> float:
        return time.perf_counter() - self._began

    def trained(self, layers: Callable[[Any], Any]) -> Trained:
        """What the run leaves."""
        return Trained(self.setup, self.seconds, self.kept, layers)
