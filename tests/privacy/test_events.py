"""Events reject what cannot be priced, and say the value, the rule and the way out."""

import math

import pytest

from tacit.privacy import Event, PricingError
from tacit.privacy.events import joint_multiplier


def event(**changes):
    base = {
        "kind": "g",
        "noise_multiplier": 2.0,
        "count": 5,
        "records": 100,
        "batch": 10,
        "sampling": "poisson",
    }
    return Event(**(base | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 2000, "sampling": "wor"}, r'Expected batch=2000 <= records=100 for sampling "wor"; lower'),
        ({"sampling": "full"}, r'Expected batch=10 == records=100 for sampling "full"; set batch=records'),
        ({"sampling": "one-pass", "count": 11}, r"count=11 x batch=10 = 110 <= passes=1 x records=100"),
        ({"sampling": "shuffled"}, r"sampling='shuffled' to be one of full, wor, wr, poisson, allocation, one-pass"),
        ({"mechanism": "laplace"}, r"mechanism='laplace' to be one of gaussian, cumulative"),
        ({"protects": "nobody"}, r"protects='nobody' to be one of"),
        ({"noise_multiplier": math.nan}, r"noise_multiplier=nan to be finite and >= 0"),
        ({"noise_multiplier": math.inf}, r"noise_multiplier=inf to be finite"),
        ({"noise_multiplier": -1.0}, r"noise_multiplier=-1.0 to be finite and >= 0"),
        ({"noise_multiplier": 1e-300}, r"noise_multiplier=1e-300 of at least 1e-10"),
        ({"noise_multiplier": "much"}, r"noise_multiplier='much' to be a number"),
        ({"count": -1}, r"count=-1 >= 0"),
        ({"count": 2.5}, r"count=2.5 to be an integer"),
        ({"count": True}, r"count=True to be an integer"),
        ({"records": 0}, r"records=0 >= 1"),
        ({"batch": 0}, r"batch=0 >= 1"),
        ({"kind": ""}, r"kind='' to be a non-empty name"),
        ({"passes": 2}, r'passes=2 == 1 unless sampling="one-pass"'),
        ({"capacity": 5}, r"capacity=5 >= batch=10; raise the capacity"),
        ({"capacity": 20, "sampling": "wor"}, r'capacity=20 only with sampling="poisson" or "allocation", not "wor"'),
        ({"mechanism": "cumulative"}, r'"full" or "one-pass" for mechanism "cumulative", not "poisson"'),
        ({"mechanism": "discrete-gaussian"}, r"grid_sigma for mechanism"),
        ({"dimension": 3}, r'only with mechanism "discrete-gaussian"'),
        (
            {"mechanism": "discrete-gaussian", "grid_sigma": 0.0, "dimension": 3},
            r"grid_sigma=0.0 and noise_multiplier=2.0 to be zero together",
        ),
    ],
)
def test_bad_events_name_value_rule_and_way_out(changes, message):
    with pytest.raises(PricingError, match=message):
        event(**changes)


def test_numpy_integers_become_plain_ones():
    import numpy as np

    made = event(count=np.int64(7), records=np.int32(100))
    assert type(made.count) is int
    assert type(made.records) is int
    assert made == event(count=7)


def test_scaling_keeps_the_grid():
    grid = event(mechanism="discrete-gaussian", grid_sigma=1000.0, dimension=4)
    scaled = grid.scaled(3.0)
    assert (scaled.noise_multiplier, scaled.grid_sigma) == (6.0, 3000.0)


def test_joint_multiplier_adds_inverse_squares():
    assert joint_multiplier([3.0, 4.0]) == pytest.approx(1 / math.sqrt(1 / 9 + 1 / 16), rel=1e-15)
    assert joint_multiplier([5.0]) == 5.0
    assert joint_multiplier([1e-200, 1e-200]) == pytest.approx(1e-200 / math.sqrt(2))
    assert joint_multiplier([2.0, 0.0]) == 0.0
    with pytest.raises(PricingError, match="at least one"):
        joint_multiplier([])
