"""The split of noise between kinds of rounds is the least noisy one, and what it counts is what the algorithms do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from tacit.algorithm import Terms
from tacit.algorithms.noise_split import REPORT, TYPICAL, Kind, difference_ratio, local_ratio, ratio_of, recursive
from tacit.errors import TacitError
from tacit.plans.catalogue import find
from tacit.privacy.randomisers import terms_of
from tests.algorithms.table import least_squares

TERMS = Terms(1.0, 1.0, None, "full")


def total(kinds, ratios):
    """The summed variance of a split at a budget of one: multipliers in these ratios, scaled to spend it."""
    scale = sum(kind.cost / r**2 for kind, r in zip(kinds, ratios, strict=True))
    return scale * sum(kind.harm * r**2 for kind, r in zip(kinds, ratios, strict=True))


@pytest.mark.parametrize(
    ("costs", "harms"), [((13, 12), (25.0, 3.0)), ((500, 499), (80.0, 9.0)), ((1, 150), (2.0, 7e-3))]
)
def test_the_ratio_is_what_an_optimiser_finds(costs, harms):
    kinds = [Kind(cost, harm) for cost, harm in zip(costs, harms, strict=True)]
    found = minimize_scalar(lambda log: np.log(total(kinds, (1.0, np.exp(log)))), bounds=(-9, 9), method="bounded")
    assert ratio_of(kinds[1], kinds[0]) == pytest.approx(np.exp(found.x), rel=1e-3)
    third = Kind(40, 0.3)
    best = (1.0, ratio_of(kinds[1], kinds[0]), ratio_of(third, kinds[0]))
    rng = np.random.default_rng(0)
    others = [total([*kinds, third], np.array(best) * np.exp(rng.normal(0, 0.3, 3))) for _ in range(200)]
    assert total([*kinds, third], best) <= min(others)


@pytest.mark.parametrize(
    ("rounds", "phase", "momentum"), [(7, 3, 0.0), (12, None, 0.3), (9, 4, 0.25), (5, 1, 0.0), (4, 9, 1.0)]
)
def test_harm_is_the_summed_variance_of_the_estimates(rounds, phase, momentum):
    """By the recursion itself: unit noise in one release at a time, its square summed over all estimates."""
    starts = [r == 0 if phase is None else r % phase == 0 for r in range(rounds)]
    harm = {"gradient": 0.0, "difference": 0.0}
    count = {"gradient": 0, "difference": 0}
    for source in range(rounds):
        for kind in harm:
            released = kind == "gradient" if starts[source] else kind == "difference" or momentum > 0
            if not released:
                continue
            count[kind] += 1
            estimate = 0.0
            for r in range(rounds):
                noise = {name: float(r == source and name == kind) for name in harm}
                if starts[r]:
                    estimate = noise["gradient"]
                else:
                    estimate = (1 - momentum) * (estimate + noise["difference"]) + momentum * noise["gradient"]
                harm[kind] += estimate**2
    gradient, difference = recursive(rounds, phase, momentum)
    assert gradient == (count["gradient"], pytest.approx(harm["gradient"]))
    assert difference == (count["difference"], pytest.approx(harm["difference"]))


def noise_of(algorithm):
    return {kind: part.silo.release.noise_multiplier for kind, part in algorithm.rounds.items()}


def build(name, **changes):
    _, problem, _ = least_squares()
    common = {"step_size": 0.1, "num_rounds": 25, "clip_norm": 1.0, "noise_multiplier": 2.0, "batch_size": None}
    return find(name).build(problem, **{**common, "sampling": "full", **changes})


def test_spider_and_svrg_take_the_split_unless_they_are_told():
    noise = noise_of(build("prox-spider", phase_length=2, difference_slope=1.0))
    assert noise["difference"] == pytest.approx(2.0 * (12 / 13 * 25 / 12) ** 0.25 * TYPICAL**-0.5)
    assert noise_of(build("alternate-spider"))["difference"] == pytest.approx(2.0 * (25 / 13) ** 0.25 * 0.5**0.5)
    told = noise_of(build("prox-spider", phase_length=2, difference_slope=1.0, difference_noise=1.0))
    assert told["difference"] == told["gradient"] == 2.0
    svrg = noise_of(build("prox-svrg", phase_length=5))
    assert svrg["difference"] == pytest.approx(2.0 * (20 / 5 * 25 / 20) ** 0.25 * 0.5**0.5)


def test_smaller_batches_of_differences_have_less_noise_multiplier():
    """With a quarter of the records the same multiplier is four times the noise of the mean."""
    gradient, difference = recursive(25, 2)
    small = TERMS.drawn(25, "wor")
    large = TERMS.drawn(100, "wor")
    ratio = difference_ratio(gradient, difference, 1.0, large, small)
    assert ratio == pytest.approx(difference_ratio(gradient, difference, 1.0, large) / 2)


def test_local_steps_of_many_silos_come_seldom_and_are_noisy_alone():
    fresh, _ = recursive(40, None, 0.1)
    ratios = {}
    for channel in ("direct", "trusted", "shuffled-reports"):
        for silos in (1, 10):
            terms = Terms(1.0, 1.0, None, "full", channel=channel, silos=silos)
            ratios[channel, silos] = local_ratio(fresh, terms, terms, num_rounds=40, steps=4)
    once = Kind(3 * 40, 40 * 6 * 4 * (TYPICAL / 100) ** 2)
    assert ratios["direct", 1] == pytest.approx(ratio_of(once, Kind(fresh.cost, 4 * fresh.harm * 4 / 100**2)))
    assert ratios["trusted", 1] == pytest.approx(ratios["direct", 1])
    assert ratios["direct", 10] == pytest.approx(ratios["direct", 1] / 10**0.5)
    assert ratios["trusted", 10] == pytest.approx(ratios["trusted", 1] / 10**0.75)


def test_the_deviation_of_a_report_is_about_what_the_split_takes_it_for():
    for name in ("duchi", "privunit2"):
        local = 0.2
        assert terms_of(name, 101, local).deviation * local == pytest.approx(REPORT, rel=0.25), name


def test_what_is_traced_must_be_given():
    def traced(momentum):
        build("ce-psgm", momentum=momentum, local_steps=2, difference_slope=1.0)
        return momentum

    with pytest.raises(TacitError, match="momentum that is known in advance"):
        jax.jit(traced)(jnp.float32(0.1))
