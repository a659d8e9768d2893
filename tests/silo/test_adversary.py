"""Servers that read messages before they propose the next plan, or end a study, against real ledgers."""

import dataclasses
import math

import numpy as np
import pytest
from scipy.optimize import brentq

from tacit.privacy import gdp_mu, price
from tacit.privacy.filter import cost
from tacit.privacy.gaussian import gauss_delta
from tacit.privacy.schedule import profile_for
from tacit.silo.chain import Limit
from tacit.silo.spending import LedgerError
from tests.silo.books import Home, debit, event, refused, reserve

EPSILON, DELTA = 1.0, 1e-5


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path)


def both_signs(profile, epsilon):
    """A symmetric profile at any epsilon: H_{1/a} = 1 - 1/a + H_a/a."""
    height = profile(np.abs(epsilon))
    return np.where(epsilon >= 0, height, -np.expm1(epsilon) + np.exp(epsilon) * height)


def plans():
    """A first Gaussian study, and two that each fill up what it leaves by the joint price: full batches, or one record.

    The second of them has little noise and hides a record by drawing one of a hundred.
    """
    first = 0.8 * gdp_mu(EPSILON, DELTA)
    start, full = event(1 / first, 1), event(1.0001 / (0.6 * gdp_mu(EPSILON, DELTA)), 1)

    def excess(log_z):
        drawn = event(math.exp(log_z), 1, sampling="poisson", batch=1)
        return price([start, drawn], delta=DELTA).epsilon - EPSILON

    z = math.exp(brentq(excess, math.log(0.2), math.log(1.0), xtol=1e-4))
    return start, full, event(1.001 * z, 1, sampling="poisson", batch=1)


def reached(start, *choices):
    """delta at EPSILON of a server that hears the first release and then takes whichever choice suits it."""
    mu = 1 / start.noise_multiplier
    loss = np.linspace(mu * mu / 2 - 9 * mu, mu * mu / 2 + 9 * mu, 8001)
    weight = np.exp(-((loss - mu * mu / 2) ** 2) / (2 * mu * mu))
    heights = []
    for choice in choices:
        sampled = choice.sampling == "poisson"
        profile = profile_for(choice) if sampled else lambda e, c=choice: gauss_delta(e, 1 / c.noise_multiplier)
        heights.append(both_signs(profile, EPSILON - loss))
    return float(weight / weight.sum() @ np.maximum.reduce(heights))


def accepted(home, rule, *path):
    """Whether a ledger with this rule grants these studies one after another; each is answered once and ended."""
    ledger = home.open(limit=Limit(EPSILON, DELTA, rule, "renyi"))
    try:
        for number, study in enumerate(path):
            reserve(ledger, str(number), (study,))
            debit(ledger, 0, str(number))
            ledger.finish(str(number), "finished")
    except LedgerError as error:
        if error.code != "over-budget":
            raise
        return False
    finally:
        ledger.close()
    return True


def test_the_joint_price_breaks_when_plans_follow_messages_and_the_filter_refuses_them(tmp_path):
    """Two plans that are each within (1, 1e-5): chosen by the first message they reach 1.8e-5."""
    start, full, drawn = plans()
    assert reached(start, full) <= DELTA
    assert reached(start, drawn) <= DELTA
    assert reached(start, full, drawn) > 1.7 * DELTA
    for name, path in (("full", (start, full)), ("drawn", (start, drawn))):
        assert accepted(Home(tmp_path / f"fixed {name}"), "fixed-in-advance", *path)
        assert not accepted(Home(tmp_path / f"renyi {name}"), "renyi", *path)
    assert accepted(
        Home(tmp_path / "gdp"), "gdp", start, dataclasses.replace(full, noise_multiplier=full.noise_multiplier * 1.001)
    )


@pytest.mark.parametrize("part", [0.3, 0.6, 0.9])
def test_what_the_filter_grants_stays_within_delta_however_it_is_chosen(tmp_path, part):
    """The same three plans, scaled to what a Renyi account holds: each path fills it up, and none exceeds delta."""
    rule = Limit(EPSILON, DELTA, "renyi", "renyi").fresh
    start = event((rule.order / (2 * part * 0.9999 * rule.limit)) ** 0.5, 1)

    def excess(log_z, **terms):
        return cost(rule, [event(math.exp(log_z), 1, **terms)]).loss - (1 - part) * 0.9999 * rule.limit

    choices = [{}, {"sampling": "poisson", "batch": 1}, {"sampling": "poisson", "batch": 20}]
    found = []
    for terms in choices:
        z = math.exp(brentq(lambda log_z, t=terms: excess(log_z, **t), -3.0, 5.0, xtol=1e-9)) * (1 + 1e-8)
        found.append(event(z, 1, **terms))
    for number, choice in enumerate(found):
        assert accepted(Home(tmp_path / str(number)), "renyi", start, choice)
        assert not accepted(Home(tmp_path / f"more {number}"), "renyi", start, choice, event(50.0, 1))
    assert reached(start, *found) <= DELTA


def test_switching_rules_between_studies_is_refused(home):
    """The server's best study depends on which filter comes next: no ledger ever has a second one."""
    mu = gdp_mu(EPSILON, DELTA)
    ledger = home.open(limit=Limit(EPSILON, DELTA, "gdp", "renyi"))
    reserve(ledger, "first", (event(1 / (0.6 * mu), 1),))
    debit(ledger, 0, "first")
    ledger.finish("first", "finished")
    ledger.close()
    refused("rule", home.open, limit=Limit(EPSILON, DELTA, "renyi", "renyi"))
    refused("rule", home.open, limit=Limit(EPSILON, DELTA, "fixed-in-advance", "renyi"))
    again = home.open(limit=Limit(EPSILON, DELTA, None, "renyi"))
    assert again.rule.name == "gdp"
    again.close()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("rule", ["renyi", "gdp"])
def test_ending_studies_early_never_releases_more_than_the_limit(tmp_path, rule, seed):
    """A server that reserves much, answers as it likes, ends early and comes again, on several studies at a time."""
    rng = np.random.default_rng(seed)
    home = Home(tmp_path)
    ledger = home.open(limit=Limit(EPSILON, DELTA, rule, "renyi"))
    released, live, next_round = [], {}, {}
    for number in range(60):
        act = rng.choice(["reserve", "answer", "answer", "end"])
        name = str(rng.choice(list(live))) if live else ""
        if act == "reserve":
            terms = [{}, {"sampling": "one-pass", "batch": 10}, {"mechanism": "cumulative"}]
            terms += [{"sampling": "poisson", "batch": 10}] if rule == "renyi" else []
            plan = event(float(rng.uniform(4, 60)), int(rng.integers(1, 9)), **terms[rng.integers(len(terms))])
            try:
                reserve(ledger, str(number), (plan,))
                live[str(number)], next_round[str(number)] = plan, 0
            except LedgerError as error:
                if error.code != "over-budget":
                    raise
        elif name and act == "answer" and next_round[name] < live[name].count:
            debit(ledger, next_round[name], name)
            released.append((name, live[name]))
            next_round[name] += 1
        elif name and act == "end":
            ledger.finish(name, "the server has heard enough")
            refused("closed", debit, ledger, 99, name)
            del live[name]
        if number % 20 == 19:
            ledger.close()
            ledger = home.open(limit=Limit(EPSILON, DELTA, rule, "renyi"))
    made = {}
    for name, plan in released:
        made.setdefault(name, []).append(plan)
    total = 0.0
    for plans_of in made.values():
        plan, whole = plans_of[0], plans_of[0].sampling == "one-pass" or plans_of[0].mechanism == "cumulative"
        total += cost(ledger.rule, [plan if whole else dataclasses.replace(plan, count=len(plans_of))]).loss
    assert 0 < total <= ledger.rule.limit
    assert ledger.spent() == pytest.approx(total / ledger.rule.limit, rel=1e-9)
    assert ledger.spent() <= ledger.charged <= 1.0
    ledger.close()
