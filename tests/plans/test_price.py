"""One price: `fit`, `plan`, `run` and a daemon agree to the last digit, for every algorithm and the same records."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

import tacit
from tacit.audit.deployed import offer, proposed
from tacit.deploy.contract import builder_from, record_of
from tacit.errors import TacitError
from tacit.plans.catalogue import ALGORITHMS
from tacit.plans.price import Seat, plan_silos, releases_of
from tacit.plans.spec import study_from
from tacit.privacy import Budget, Event, price
from tacit.studies.plan import plan_json
from tacit.studies.run import prepare
from tests.algorithms.table import CASES

BUDGET = {"epsilon": 2.0, "delta": 1e-5}
CHANNELS = ("direct", "shuffled-sum", "shuffled-reports")
DEPLOYED = sorted(name for name, entry in ALGORITHMS.items() if not entry.reads_attribute)


def study_of(name, channel, **changes):
    own = {key: value for key, value in CASES[name].parameters.items() if key != "channel"}
    algorithm = {"name": name, "step_size": 0.5, "num_rounds": 6, "clip_norm": 0.5, "sampling": "full", **own}
    run = {"seeds": [0], "alone": False}
    tree = {"name": "priced", "data": {"name": "heart-disease"}, "privacy": BUDGET, "run": run}
    return study_from({**tree, "algorithm": {**algorithm, "channel": channel, **changes}})


def fitted(prepared, monkeypatch):
    """What `fit` says of its silos, with training left out."""
    section, own = prepared.study.algorithm, dict(prepared.study.algorithm.own)
    params = jax.tree.map(lambda leaf: leaf[None, None], prepared.builder.problem.objective.init(jax.random.key(0)))
    nothing = SimpleNamespace(trace={}, params=(params, ()), personal=None)
    monkeypatch.setattr("tacit.fitting._simulate", lambda *_, **__: nothing)
    accepted = ALGORITHMS[section.name].parameters
    own |= {key: getattr(section, key) for key in ("step_size", "num_rounds") if key in accepted}
    result = tacit.fit(
        prepared.builder.problem,
        prepared.federations[0],
        ALGORITHMS[section.name].recipe(**own),
        budget=Budget(**BUDGET, honest=prepared.study.run.honest),
        clip_norm=section.clip_norm,
        batch_size=section.batch_size,
        sampling=section.scheme,
        channel=section.channel,
    )
    return result.silos


@pytest.mark.parametrize("name", DEPLOYED)
def test_fit_plan_run_and_daemon_agree_to_the_last_digit(name, monkeypatch):
    compared = [channel for channel in CHANNELS if agree(name, channel, monkeypatch)]
    assert compared, "no channel takes it"
    assert "direct" in compared or ALGORITHMS[name].parameters["channel"].default != "direct"


def agree(name, channel, monkeypatch):
    """Whether the daemon takes the algorithm through the channel; where it does, all prices must be one."""
    try:
        prepared = prepare(study_of(name, channel))
        offers = consented(prepared)
    except (TacitError, ValueError):
        return False
    printed = plan_json(prepared.plan)["silos"]
    rows = zip(prepared.plan.silos, printed, fitted(prepared, monkeypatch), offers, strict=True)
    for run, plan, fit, daemon in rows:
        assert daemon.price.epsilon == run.price.epsilon == plan["epsilon"] == fit.price.epsilon <= 2.0
        assert daemon.events == run.events == fit.events
        noise = {event.kind: event.noise_multiplier for event in daemon.events}
        assert {row["kind"]: row["noise_multiplier"] for row in plan["kinds"]} == noise
    return True


def consented(prepared):
    """The offers of all silos' daemons for the plan that a server proposes."""
    plan, offers = proposed(prepared), []
    for index, silo in enumerate(prepared.plan.silos):
        own = plan.model_copy(update={"silo_index": index})
        offers.append(offer(own, silo.records, record=record_of(own), build=builder_from))
    return offers


@pytest.mark.parametrize("sampling", ["poisson", "wor", "wr", "one-pass"])
def test_they_agree_for_every_way_to_draw_a_batch(sampling, monkeypatch):
    changes = {"sampling": sampling, "batch_size": 16, "num_rounds": 5}
    prepared = prepare(study_of("mb-sgd", "direct", **changes))
    rows = zip(prepared.plan.silos, fitted(prepared, monkeypatch), consented(prepared), strict=True)
    for run, fit, daemon in rows:
        assert daemon.events == run.events == fit.events
        assert daemon.price.epsilon == run.price.epsilon == fit.price.epsilon <= 2.0


def test_the_price_is_of_the_releases_as_built():
    """Noise is rounded up to float32, and what is priced is the algorithm with that noise."""
    prepared = prepare(study_of("mb-sgd", "direct"))
    noise, silos = prepared.plan.noise, len(prepared.plan.silos)
    assert noise.dtype == np.float32
    for index, silo in enumerate(prepared.plan.silos):
        events = releases_of(prepared.builder.noised(noise), Seat(index, silos, silo.records))
        assert events == silo.events
        assert events[0].mechanism == "discrete-gaussian"
        spent = price(events, delta=BUDGET["delta"])
        assert 0.999 * 2.0 < spent.epsilon == silo.price.epsilon <= 2.0


def test_noise_that_is_given_is_priced_as_it_is():
    build = prepare(study_of("mb-sgd", "direct")).builder.noised
    [silo], noise = plan_silos(build, ["a"], [100], Budget(noise_multiplier=3.0, delta=1e-5), dimensions={})
    assert noise[0] == 3.0
    assert silo.multipliers == {"gradient": 3.0}


def test_what_is_released_before_leaves_a_shuffled_sum_the_rest():
    """Private statistics and training through shufflers are priced together, at every silo."""
    build = prepare(study_of("mb-sgd", "shuffled-sum")).builder.noised
    names, records, budget = ["a", "b"], [60, 90], Budget(**BUDGET, honest=1.0, min_silos=2)
    _, free = plan_silos(build, names, records, budget, dimensions={})
    before = [
        (Event(kind="statistics", noise_multiplier=20.0, count=1, records=n, batch=n, sampling="full"),)
        for n in records
    ]
    plans, noise = plan_silos(build, names, records, budget, dimensions={}, before=before)
    assert noise[0] == noise[1] > free[0]
    assert all(plan.events[0].kind == "statistics" and plan.price.epsilon <= 2.0 for plan in plans)
