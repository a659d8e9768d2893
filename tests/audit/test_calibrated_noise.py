"""The noise that a daemon offers is that of a continuous Gaussian but for a thousandth.

A door adds integers, drawn from tables, keeps a part of delta for both, and rounds its multiplier to 32 bits.
"""

import pytest

from experiments.audit.questions import offered
from experiments.audit.table import Setting, plan_of
from tacit.audit.deployed import deploy
from tacit.deploy.contract import seat_of
from tacit.plans.catalogue import find
from tacit.privacy import calibrate

RECORDS, ROUNDS, BATCH, DELTA = 1000, 20, 50, 1e-5
MOST = 1.001
WIDE = 50_000  # so many parameters, and noise for each
WAYS = {
    "full": ("mb-sgd", "full", None, "direct"),
    "Poisson": ("mb-sgd", "poisson", BATCH, "direct"),
    "without replacement": ("mb-sgd", "wor", BATCH, "direct"),
    "with replacement": ("mb-sgd", "wr", BATCH, "direct"),
    "running sum": ("mu2-sgd", "full", None, "direct"),
    "dp-ftrl": ("dp-ftrl", "one-pass", BATCH, "direct"),
    "pairwise": ("mb-sgd", "full", None, "pairwise"),
    "running sum, pairwise": ("mu2-sgd", "full", None, "pairwise"),
}


@pytest.mark.parametrize(("epsilon", "features"), [(0.2, 1), (8.0, 1), (1.0, WIDE)])
@pytest.mark.parametrize("way", WAYS)
def test_offered_noise_is_that_of_a_continuous_gaussian(way, epsilon, features):
    name, sampling, batch, channel = WAYS[way]
    setting = Setting(way, sampling, ROUNDS, RECORDS, batch, None, channel)
    plan = plan_of(find(name), setting, epsilon=epsilon, delta=DELTA).model_copy(update={"features": (features,)})
    offer = deploy(plan, (RECORDS,) * plan.silos, offered).own
    events = seat_of(plan, RECORDS).events(offer.algorithm)
    assert {event.mechanism for event in events} <= {"gaussian", "cumulative", "correlated"}
    continuous = calibrate(events, epsilon=epsilon, delta=DELTA)
    assert offer.price.epsilon <= epsilon
    for event, least in zip(events, continuous, strict=True):
        assert 1 - 1e-6 < event.noise_multiplier / least.noise_multiplier <= MOST
