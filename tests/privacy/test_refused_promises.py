"""Plans that would promise more than is proved are refused, and crowds are those that are sure to come."""

import jax.numpy as jnp
import numpy as np
import pytest

import tacit
from tacit.algorithm import Algorithm, Release, Round, Server, Silo
from tacit.objectives import Objective, Problem, linear, logistic
from tacit.privacy import PricingError
from tacit.privacy.crowd import counted_silos
from tacit.privacy.plan import Budget, events_of, plan_silos
from tacit.runtime.server.terms import check_study
from tacit.studies.spec import StudyError, load_study

SERVER = Server(lambda state: state, lambda state, message: state)


def schedule(rounds, order, **silo):
    return Algorithm(
        lambda params: params,
        {
            kind: Round(Silo(lambda w, r: r["x"], release, **silo), SERVER, who)
            for kind, (release, who) in rounds.items()
        },
        order,
        lambda state: state,
    )


def passing(batch):
    return Release(lambda work: 1.0, 4.0, batch, "one-pass", passes=2)


def test_passes_that_would_not_repeat_in_step_are_refused():
    turns = schedule({"g": (passing(10), "in turn")}, ("g",) * 16)
    kinds = schedule({"a": (passing(4), "all"), "b": (passing(6), "all")}, ("a", "b") * 2)
    for algorithm, records in ((turns, 40), (kinds, 12)):
        with pytest.raises(PricingError, match="passes=1"):
            events_of(algorithm, place=0, silos=2, records=records)
    plain = schedule({"g": (passing(10), "all")}, ("g",) * 8)
    assert events_of(plain, place=0, silos=2, records=40)[0].passes == 2


def test_a_round_without_noise_makes_no_user_level_promise():
    attribute = Release(lambda work: 1.0, 4.0, None, "full", protects="sensitive-attribute", groups=2)
    free = schedule({"g": (attribute, "all")}, ("g",), reads=("x", "y"))
    with pytest.raises(PricingError, match="not noised"):
        plan_silos(free, ["s"], [100], Budget(epsilon=4.0, delta=1e-6, user_level=True))


@pytest.mark.parametrize("field", ["user_level=true", "protects='sensitive-attribute'"])
def test_promises_that_real_silos_do_not_price_are_not_proposed_to_them(field):
    with pytest.raises(StudyError, match=field.split("=")[0]):
        check_study(load_study("heart-disease", [f"privacy.{field}"]), 0)


@pytest.mark.parametrize(
    ("silos", "least", "honest", "counted"), [(10, 10, 1.0, 10), (100, 40, 0.75, 15), (4, 3, 0.5, 1)]
)
def test_all_that_collude_may_be_among_those_that_come(silos, least, honest, counted):
    assert counted_silos(silos, least, honest) == counted
    with pytest.raises(PricingError, match="collude"):
        counted_silos(silos, silos - int(honest * silos), honest)


def test_a_fit_pays_for_the_crowd_that_comes():
    rng = np.random.default_rng(0)
    silos = [{"x": rng.normal(size=(40, 2)), "y": rng.integers(0, 2, 40)} for _ in range(5)]
    problem = Problem(Objective(linear(2, 1), logistic()))
    terms = {"channel": "shuffled-reports", "step_size": 0.1, "num_rounds": 2, "clip_norm": 1.0}

    def reports(**changes):
        found = tacit.fit(
            problem, silos, algorithm="mb-sgd", budget=tacit.Budget(epsilon=2.0, delta=1e-5), **terms, **changes
        )
        assert bool(jnp.all(jnp.isfinite(found.params["linear"]["w"])))
        return found.silos[0].events[0].reports

    assert reports() == 200
    assert reports(participants=2) == 80
