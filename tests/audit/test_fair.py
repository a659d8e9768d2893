"""The printed design of SteFFLe is refuted; the designs that ship are attacked, in the simulator, and hold.

No daemon holds a sensitive attribute.
"""

import pytest

from experiments.audit.searches import audit_extremes, audit_sensitivity
from tacit.audit.mechanism import audit_mechanism
from tacit.audit.simulated import Seat, SimulatedTarget
from tacit.audit.worst_case import attackers_problem
from tacit.objectives import Objective, Problem, linear, logistic
from tacit.plans.catalogue import find
from tacit.privacy import calibrate, events_of
from tests.audit.strict import beyond

DELTA = 1e-5
ATTRIBUTE = {"protects": "sensitive-attribute"}
DESIGNS = {
    "full batch": {"sampling": "full", "batch_size": None, **ATTRIBUTE},
    "fixed epochs": {"sampling": "one-pass", "batch_size": 2, "passes": 5, **ATTRIBUTE},
    "record": {"sampling": "full", "batch_size": None, "protects": "record"},
}


def built(design, noise):
    return find("steffle").build(
        attackers_problem(),
        step_size=0.2,
        num_rounds=10,
        clip_norm=0.01,
        noise_multiplier=noise,
        strength=0.5,
        frequencies=(0.5, 0.5),
        **DESIGNS[design],
    )


@pytest.mark.parametrize("design", DESIGNS)
def test_the_designs_that_ship_hold(design):
    events = events_of(built(design, 1.0), silo_index=0, silos=1, records=4)
    [tuned] = calibrate(events, epsilon=1.0, delta=DELTA)
    target = SimulatedTarget(built(design, tuned.noise_multiplier), Seat(4), DELTA)
    result = audit_mechanism(target, trials=16_000, seed=3, label=design)
    assert result.label == f"{design}, simulated"
    assert not beyond(result)
    assert result.epsilon_claimed == pytest.approx(1.0, rel=2e-3)
    assert result.tightness > (0.1 if design == "record" else 0.3)


def test_no_swap_moves_a_statistic_further_than_is_priced():
    objective = Objective(linear(3, 1), logistic())
    algorithm = find("steffle").build(
        Problem(objective, lipschitz=2.0, smoothness=1.0),
        step_size=0.2,
        num_rounds=2,
        clip_norm=0.3,
        noise_multiplier=2.0,
        strength=0.5,
        frequencies=(0.4, 0.6),
        **DESIGNS["full batch"],
    )
    for search in (audit_sensitivity, audit_extremes):
        options = {"starts": 16, "steps": 30} if search is audit_sensitivity else {"tries": 500}
        [result] = search(algorithm, objective, 3, seed=0, **options)
        assert result.path == "simulated"
        assert not result.violated
        assert search is audit_extremes or result.largest > 0.5
