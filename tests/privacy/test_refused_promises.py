"""Plans that would promise more than is proved are refused, and crowds are those that are sure to come."""

import jax.numpy as jnp
import numpy as np
import pytest

import tacit
from tacit.algorithm import Algorithm, Release, Round, Server, Silo
from tacit.deploy.server.deployment import check_study
from tacit.objectives import Objective, Problem, linear, logistic
from tacit.plans.price import plan_silos
from tacit.plans.spec import StudyError, load_study
from tacit.privacy import PricingError
from tacit.privacy.anonymity import colluding_silos, counted_silos
from tacit.privacy.plan import AnonymitySet, Budget, events_of
from tacit.studies.plan import counts_on

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
            events_of(algorithm, silo_index=0, silos=2, records=records)
    plain = schedule({"g": (passing(10), "all")}, ("g",) * 8)
    assert events_of(plain, silo_index=0, silos=2, records=40)[0].passes == 2


def test_a_round_without_noise_makes_no_user_level_promise():
    attribute = Release(lambda work: 1.0, 4.0, None, "full", protects="sensitive-attribute", groups=2)
    free = schedule({"g": (attribute, "all")}, ("g",), reads=("x", "y"))
    with pytest.raises(PricingError, match="not noised"):
        plan_silos(lambda noise: free, ["s"], [100], Budget(epsilon=4.0, delta=1e-6, user_level=True), dimensions={})


@pytest.mark.parametrize("field", ["user_level=true", "protects='sensitive-attribute'"])
def test_promises_that_real_silos_do_not_price_are_not_proposed_to_them(field):
    with pytest.raises(StudyError, match=field.split("=")[0]):
        check_study(load_study("heart-disease", [f"privacy.{field}"]), 0)


@pytest.mark.parametrize(
    ("silos", "min_silos", "honest", "counted"), [(10, 10, 1.0, 10), (100, 40, 0.75, 15), (4, 3, 0.5, 1)]
)
def test_all_that_collude_may_be_among_those_that_come(silos, min_silos, honest, counted):
    assert counted_silos(silos, min_silos, honest) == counted
    with pytest.raises(PricingError, match=r"collude|min_silos=0"):
        counted_silos(silos, silos - int(honest * silos), honest)


@pytest.mark.parametrize(
    ("silos", "min_silos", "honest", "words"),
    [
        (10, 5, 1.5, "0 < honest"),
        (10, 5, 0.0, "0 < honest"),
        (10, 5, float("nan"), "0 < honest"),
        (10, 20, 1.0, "at most 10 silos"),
        (10, 0, 1.0, "min_silos"),
        (10, 5.5, 1.0, "integer"),
        (0, 1, 1.0, "silos"),
    ],
)
def test_a_crowd_is_never_larger_than_the_silos_there_are(silos, min_silos, honest, words):
    with pytest.raises(PricingError, match=words):
        counted_silos(silos, min_silos, honest)
    with pytest.raises(PricingError, match=words):
        AnonymitySet((40,) * silos, honest, min_silos)


def test_a_share_of_colluding_silos_is_a_share():
    assert colluding_silos(10, 0.75) == 3
    with pytest.raises(PricingError, match="0 < honest"):
        colluding_silos(10, 1.5)


@pytest.mark.parametrize("channel", ["shuffled-sum", "shuffled-reports"])
def test_a_price_that_counts_on_others_says_on_how_many(channel):
    def through(channel, who):
        def build(noise):
            return schedule({"g": (Release(lambda work: 1.0, noise, None, "full", channel=channel), who)}, ("g",) * 3)

        return build

    names, records = ["a", "b", "c"], [40, 40, 40]
    for said in ({}, {"honest": 1.0}, {"min_silos": 3}):
        with pytest.raises(PricingError, match=r"honest=.*min_silos="):
            plan_silos(
                through(channel, "sampled"), names, records, Budget(epsilon=1.0, delta=1e-6, **said), dimensions={}
            )
    # Where everybody comes to every round there is nothing to say of how many come.
    everyone, _ = plan_silos(
        through(channel, "all"), names, records, Budget(epsilon=1.0, delta=1e-6, honest=1.0), dimensions={}
    )
    assert everyone[0].price.epsilon <= 1.0
    plain, _ = plan_silos(through("direct", "sampled"), names, records, Budget(epsilon=1.0, delta=1e-6), dimensions={})
    assert plain[0].price.epsilon <= 1.0


def test_a_fit_through_a_shuffled_channel_must_say_who_is_honest():
    silos = [{"x": np.ones((40, 2)), "y": np.arange(40) % 2} for _ in range(3)]
    with pytest.raises(PricingError, match="honest"):
        tacit.fit(
            Problem(Objective(linear(2, 1), logistic())),
            silos,
            tacit.mb_sgd(step_size=0.1, num_rounds=1),
            budget=tacit.Budget(epsilon=2.0, delta=1e-5),
            channel="shuffled-sum",
            clip_norm=1.0,
        )


@pytest.mark.parametrize(("channel", "says"), [("shuffled-sum", True), ("shuffled-reports", True), ("direct", False)])
def test_a_plan_says_what_its_price_counts_on(channel, says):
    terms = [f"algorithm.channel={channel}", "run.honest=0.75", "run.participants=3"]
    said = counts_on(load_study("heart-disease", terms), 4)
    assert (said is not None) is says
    if said is not None:
        assert "at most 1 of 4 collude (run.honest = 0.75), and at least 3 come" in said


def test_a_fit_pays_for_the_crowd_that_comes():
    rng = np.random.default_rng(0)
    silos = [{"x": rng.normal(size=(40, 2)), "y": rng.integers(0, 2, 40)} for _ in range(5)]
    problem = Problem(Objective(linear(2, 1), logistic()))
    sgd = tacit.mb_sgd(step_size=0.1, num_rounds=2)

    def reports(**changes):
        budget = tacit.Budget(epsilon=2.0, delta=1e-5, honest=1.0)
        found = tacit.fit(problem, silos, sgd, budget=budget, channel="shuffled-reports", clip_norm=1.0, **changes)
        assert bool(jnp.all(jnp.isfinite(found.params["linear"]["w"])))
        return found.silos[0].events[0].reports

    assert reports() == 200
    assert reports(participants=2) == 80


def test_a_fit_whose_budget_promises_little_warns():
    silos = [{"x": np.ones((40, 2)), "y": np.arange(40) % 2}]
    problem, sgd = Problem(Objective(linear(2, 1), logistic())), tacit.mb_sgd(step_size=0.1, num_rounds=1)
    with pytest.warns(UserWarning, match=r"delta = 0.05 is above 1/40.*such as 6e-04"):
        tacit.fit(problem, silos, sgd, budget=tacit.Budget(epsilon=1.0, delta=0.05), clip_norm=1.0)
