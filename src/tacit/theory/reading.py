"""The convex theorems as people are told them: by `tacit choose` before there is a study, by `tacit plan` of one."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

from tacit.theory.convex import (
    accelerated_mb_sgd_from_theory,
    mb_sgd_from_theory,
    one_pass_accelerated_from_theory,
)
from tacit.theory.mu2 import mu2_sgd_from_theory
from tacit.theory.statement import ConvexSetting, Statement

FROM_THEORY: dict[str, Callable[..., Statement]] = {
    "mb-sgd": mb_sgd_from_theory,
    "accelerated-mb-sgd": accelerated_mb_sgd_from_theory,
    "one-pass-accelerated": one_pass_accelerated_from_theory,
    "mu2-sgd": mu2_sgd_from_theory,
}
"""Algorithm by name: what its theorem asks for and promises."""


def stated(
    name: str,
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

    >>> s = ConvexSetting(lipschitz=1, radius=1, smoothness=1, records=90, silos=4, dimension=9, epsilon=1, delta=1e-5)
    >>> stated("mb-sgd", s, most_rounds=30).parameters["num_rounds"]
    30
    """
    theorem = FROM_THEORY[name]
    takes = inspect.signature(theorem).parameters
    own: dict[str, Any] = {"channel": channel} if "channel" in takes else {}
    if "risk" in takes:
        own["risk"] = "empirical" if heterogeneous else "population"
    if "num_rounds" not in takes:
        return theorem(s, batch_size=batch_size or math.ceil(s.records / most_rounds), **own)
    found = theorem(s, **own)
    return found if found.parameters["num_rounds"] <= most_rounds else theorem(s, num_rounds=most_rounds, **own)
