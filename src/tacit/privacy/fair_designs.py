"""The designs of SteFFLe that protect the sensitive attribute, each priced, beside the one that is printed.

The noise of a design is compared at the same number of rounds, as the standard deviation of a mean message over the
bound on one record's part (half of how far the attribute can move it; the whole of it under a secret batch).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tacit.privacy.calibration import calibrate
from tacit.privacy.events import Event, PricingError
from tacit.privacy.statements import Setting
from tacit.privacy.theorems import steffle


@dataclass(frozen=True)
class Design:
    """One way to draw batches, and what it costs.

    Args:
        name: What people call it.
        sampling: As typed in a study.
        passes: How often fixed epochs use a record; 1 elsewhere.
        noise_multiplier: Joint multiplier of both messages of a round.
        sigma_over_clip: Standard deviation of a message's noise over its clip, if both messages share equally.
        bounds: What the clip bounds.
        epsilon: The certified price.
    """

    name: str
    sampling: str
    passes: int
    noise_multiplier: float
    sigma_over_clip: float
    bounds: str
    epsilon: float


def fair_designs(*, records: int, rounds: int, batch: int, epsilon: float, delta: float) -> tuple[Design, ...]:
    """The three designs at this budget, the least noisy first, then the printed one at what it really costs.

    Formal guarantee: each but the last is (epsilon, delta)-DP for the sensitive attribute.

    >>> designs = fair_designs(records=1234, rounds=50, batch=88, epsilon=1.0, delta=1 / 1234**2)
    >>> [design.name for design in designs]
    ['full batch', 'secret batch', 'fixed epochs', 'as printed']
    >>> round(designs[-1].epsilon, 1)
    5.3
    """
    if batch > records:
        raise PricingError(f"Expected batch={batch} <= records={records}; lower the batch.")
    passes = math.ceil(rounds / (records // batch))
    terms: dict[str, Any] = {"kind": "step", "noise_multiplier": 1.0, "count": rounds, "records": records}
    attribute = {**terms, "protects": "sensitive-attribute"}
    candidates = {
        "full batch": Event(**attribute, batch=records, sampling="full"),
        "fixed epochs": Event(**attribute, batch=batch, sampling="one-pass", passes=passes),
        "secret batch": Event(**terms, batch=batch, sampling="poisson"),
    }
    designs = []
    for name, event in candidates.items():
        [tuned] = calibrate([event], epsilon=epsilon, delta=delta)
        designs.append(_design(name, tuned, epsilon))
    designs.sort(key=lambda design: design.sigma_over_clip)
    printed = steffle(Setting(records=records, num_rounds=rounds, batch_size=batch, epsilon=epsilon, delta=delta))
    return (*designs, _design("as printed", printed.events[0], printed.epsilon_certified))


def _design(name: str, event: Event, epsilon: float) -> Design:
    alone = event.protects == "sensitive-attribute"
    bounds = "half of what s can move" if alone else "the whole of a record's gradient"
    sigma = math.sqrt(2) * event.noise_multiplier * 2 / event.batch
    return Design(name, event.sampling, event.passes, event.noise_multiplier, sigma, bounds, epsilon)
