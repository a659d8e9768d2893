"""The convex theorems as people are told them: by `tacit choose` before there is a study, by `tacit plan` of one."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, get_type_hints

from tacit.theory.statement import ConvexSetting, Statement

Theorem = Callable[..., Statement]


def is_convex(theorem: Callable[..., Any] | None) -> bool:
    """Whether there is a theorem and it speaks of convex losses."""
    return theorem is not None and get_type_hints(theorem).get("setting") is ConvexSetting


def stated(
    theorem: Theorem,
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
