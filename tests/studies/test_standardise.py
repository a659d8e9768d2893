"""Private statistics inside the budget: priced with training, bounded, and refused where no price is known."""

import numpy as np
import pytest

from tacit.plans.spec import StudyError, load_study
from tacit.privacy import calibrate, gdp_mu, price
from tacit.studies.run import prepare
from tacit.studies.standardise import cumulative, shares_of_tree

BASE = ("run.seeds=1", "preprocessing.columns=['age', 'chol']", "algorithm.num_rounds=5")


def study(*overrides, kind="moments"):
    return load_study("heart-disease", [*BASE, f"preprocessing.standardise={kind}", *overrides])


@pytest.mark.parametrize("kind", ["moments", "quantiles", "histogram"])
def test_statistics_and_training_are_one_price(kind):
    prepared = prepare(study("privacy.epsilon=2", kind=kind))
    for silo in prepared.plan.silos:
        assert [event.kind for event in silo.events] == ["statistics", "gradient"]
        first, training = silo.events
        # Exactly: Gaussian separations add up in squares, to what the budget allows.
        total = first.noise_multiplier**-2 + training.count * training.noise_multiplier**-2
        assert gdp_mu(0.999 * 2, 1e-5) ** 2 <= total <= gdp_mu(2, 1e-5) ** 2 * (1 + 1e-9)
        assert silo.price.epsilon == pytest.approx(price(silo.events, delta=1e-5).epsilon)
        assert price([first], delta=1e-5).epsilon == pytest.approx(0.2 * 2, rel=1e-3)
    federation = prepared.federations[0]
    assert not federation.touches_private_data
    assert [s.name for s in federation.steps if s.priced] == ["private standardisation"]
    for silo in federation.silos:
        for part in (silo.train, silo.validation, silo.test):
            assert np.linalg.norm(part["x"].astype(np.float64), axis=1).max() <= 1.0


def test_sampled_training_is_priced_with_statistics():
    prepared = prepare(study("algorithm.sampling=poisson", "algorithm.batch_size=20", "privacy.epsilon=1"))
    alone = prepare(
        load_study(
            "heart-disease",
            [BASE[0], BASE[2], "algorithm.sampling=poisson", "algorithm.batch_size=20", "privacy.epsilon=1"],
        )
    )
    for silo, bare in zip(prepared.plan.silos, alone.plan.silos, strict=True):
        assert 0.998 < silo.price.epsilon <= 1.0
        assert silo.events[1].noise_multiplier > bare.events[0].noise_multiplier


def test_noise_of_statistics_differs_between_seeds_and_budgets():
    one = prepare(study("run.seeds=2", "privacy.epsilon=1"))
    first, second = (f.silos[0].train["x"] for f in one.federations)
    assert first.shape == second.shape
    loud = prepare(study("privacy.epsilon=0.01"))
    quiet = prepare(study("privacy.epsilon=50"))
    assert not np.allclose(loud.federations[0].silos[0].train["x"], quiet.federations[0].silos[0].train["x"])
    assert loud.plan.silos[0].events[0].noise_multiplier > 100 * quiet.plan.silos[0].events[0].noise_multiplier


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("privacy.epsilon=none",), "takes a share of privacy.epsilon"),
        (("privacy.accountant=paper",), "tight"),
        (("privacy.user_level=true",), "user_level"),
        (("run.grid={'privacy.epsilon' = [1.0, 2.0]}",), "released once"),
        (("preprocessing.bins=12",), "power of two"),
        (("preprocessing.columns=['aeg']",), "name some of age"),
    ],
)
def test_what_has_no_price_is_refused(overrides, words):
    with pytest.raises(StudyError, match=words):
        prepare(study(*overrides))


def test_quantiles_of_a_tree():
    shares = np.array([0.1, 0.2, 0.3, 0.4])
    tree = np.array([0.3 - 0.7, 0.1 - 0.2, 0.3 - 0.4])
    np.testing.assert_allclose(shares_of_tree(tree), shares)
    below = cumulative(shares)
    assert np.interp(0.3, below, np.linspace(-1, 1, 5)) == pytest.approx(0.0, abs=1e-4)
    noisy = cumulative(shares_of_tree(np.array([5.0, -9.0, 2.0])))
    assert (np.diff(noisy) > 0).all()
    assert noisy[-1] == 1.0


def test_a_share_that_leaves_nothing_is_refused():
    from tacit.privacy import Event, PricingError
    from tacit.privacy.calibration import calibrate_beside

    event = Event(kind="g", noise_multiplier=1.0, count=5, records=9, batch=9, sampling="full")
    settled = calibrate([event], epsilon=1.0, delta=1e-6)
    with pytest.raises(PricingError, match="smaller share"):
        calibrate_beside(settled, [event], epsilon=0.9, delta=1e-6)
