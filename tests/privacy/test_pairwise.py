"""Pairwise sums: the two facts that their price rests on, enumerated on small cases, and the price itself."""

import contextlib
import dataclasses
import itertools
import math

import numpy as np
import pytest

from tacit.plans.catalogue import find
from tacit.plans.price import Seat, afford, releases_of
from tacit.privacy import Event, PricingError, price
from tacit.privacy.filter import cost, rule_for
from tacit.privacy.gaussian import gdp_mu
from tacit.privacy.pairwise import (
    Peers,
    if_all_collude,
    if_more_collude,
    noise_of_mean,
    share_multiplier,
    with_attempts,
)
from tacit.privacy.plan import Budget, events_of
from tacit.silo.spending import Account, LedgerError
from tests.algorithms.table import CASES, LOGISTIC

MODULUS = 5


def views(silos, honest, sums):
    """How often each view of the adversary comes, over all masks: the honest messages, and the masks that it knows.

    Two silos share a mask; the adversary has those of which one is not honest.
    """
    pairs = list(itertools.combinations(range(silos), 2))
    known = [pair for pair in pairs if not set(pair) <= set(honest)]
    counts = {}
    for drawn in itertools.product(range(MODULUS), repeat=len(pairs)):
        mask = dict(zip(pairs, drawn, strict=True))
        said = []
        for i in honest:
            signed = [mask[min(i, j), max(i, j)] * (1 if i < j else -1) for j in range(silos) if j != i]
            said.append((sums[i] + sum(signed)) % MODULUS)
        view = tuple(said), tuple(mask[pair] for pair in known)
        counts[view] = counts.get(view, 0) + 1
    return counts


@pytest.mark.parametrize(("silos", "honest"), [(3, (0, 1, 2)), (3, (0, 2)), (4, (0, 1, 3)), (4, (1, 2))])
def test_the_view_is_uniform_given_the_honest_sum(silos, honest):
    """Every way to put one sum under the masks looks the same, and every message that adds up to it is as likely."""
    one = views(silos, honest, [1, 2, 3, 4])
    shifted = {honest[0]: 3, honest[1]: -3}
    assert views(silos, honest, [[1, 2, 3, 4][i] + shifted.get(i, 0) for i in range(silos)]) == one
    assert views(silos, honest, [[1, 2, 3, 4][i] + (i == honest[0]) for i in range(silos)]) != one
    assert len(set(one.values())) == 1
    # All messages of which the sum (without the known masks) is right: one is free less than there are silos.
    known = math.comb(silos, 2) - math.comb(len(honest), 2)
    assert len(one) == MODULUS ** (len(honest) - 1 + known)


def test_who_alone_is_honest_is_not_hidden_by_masks():
    """The smallest case beyond the promise: with all others the adversary reads the silo's own sum."""
    assert views(3, (1,), [1, 2, 3]) != views(3, (1,), [1, 3, 3])


def pmf(width, reach):
    x = np.arange(-reach, reach + 1)
    weights = np.exp(-(x**2) / (2 * width**2))
    return weights / weights.sum()


@pytest.mark.parametrize("shares", [2, 3, 8])
@pytest.mark.parametrize("width", [0.8, 1.0, 1.5, 2.0])
def test_shares_add_up_to_a_discrete_gaussian(shares, width):
    """The distance is below what the price leaves out, 10 sum_k exp(-2 pi^2 s^2 k/(k+1)), and falls with s."""
    reach = math.ceil(12 * width * math.sqrt(shares))
    one = pmf(width, reach)
    total = one
    for _ in range(shares - 1):
        total = np.convolve(total, one)
    whole = pmf(width * math.sqrt(shares), (len(total) - 1) // 2)
    distance = np.abs(total - whole).sum() / 2
    bound = 10 * sum(math.exp(-2 * math.pi**2 * width**2 * k / (k + 1)) for k in range(1, shares))
    assert distance <= bound + 1e-12
    # At the door a share is at least 1024 wide: nothing is left.
    assert 10 * shares * math.exp(-(math.pi**2) * 1024.0**2) == 0.0


def test_shares_of_silos_that_do_not_collude_add_up_to_the_price():
    for silos, colluding in ((3, 1), (4, 2), (25, 1)):
        share = share_multiplier(2.0, silos, colluding)
        assert math.sqrt(silos - colluding) * share == pytest.approx(2.0)
        assert noise_of_mean(silos, colluding) == pytest.approx(math.sqrt(silos / (silos - colluding)))


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        ({"colluding": 0}, "a curious one is always there"),
        ({"colluding": 3}, "Expected colluding=3 < 3"),
        ({"min_silos": 5}, "there are no more silos"),
        ({"spare_attempts": -1}, "spare_attempts"),
    ],
)
def test_what_cannot_be_counted_on_is_refused(terms, said):
    with pytest.raises(PricingError, match=said):
        Peers(**{"records": (10, 10, 10, 10), "colluding": 1, "min_silos": 3, **terms})


def algorithm_of(name="mb-sgd", **terms):
    return CASES[name].build(LOGISTIC, **{"noise_multiplier": 1.0, "channel": "pairwise", **terms})


def own_events(algorithm, spare=0, min_silos=4, **own):
    peers = Peers((20, 20, 20, 20), 1, min_silos, spare)
    return events_of(algorithm, silo_index=0, silos=4, records=20, peers=peers, **own)


def test_every_attempt_is_a_release():
    [plain], [spared] = own_events(algorithm_of(num_rounds=6)), own_events(algorithm_of(num_rounds=6), 3)
    assert (plain.count, spared.count) == (6, 9)
    assert spared.participations is None


def test_attempts_of_several_kinds_share_what_is_spare():
    """Three more of either kind, and three more in all: the worst allocation is the dearest kind."""
    algorithm = algorithm_of("prox-svrg")
    plain, spared = own_events(algorithm), own_events(algorithm, 3)
    rounds = sum(event.count for event in plain)
    assert len(plain) > 1
    assert [e.count - p.count for e, p in zip(spared, plain, strict=True)] == [3] * len(plain)
    assert {event.participations for event in spared} == {rounds + 3}
    assert price(spared, delta=1e-6).epsilon > price(plain, delta=1e-6).epsilon


PAIRED = ("prox-svrg", "prox-spider", "ce-psgm-fg", "diff2-gd", "diff2-bvr-lsgd")
SEVERAL = (*PAIRED, "quantile-clip", "preconditioned-sgd", "localised-mb-sgd")


def greedy(algorithm, events, spare, dear):
    """What a server gets that asks again as often as a silo answers, first of all the rounds of ``dear`` kinds."""
    account = Account(events, 1e18)
    for number, kind in enumerate(algorithm.schedule):
        part = algorithm.rounds[kind]
        if part.participants == "in turn" and algorithm.turns[number] % 4:
            continue
        again = spare if part.silo.release.channel == "pairwise" and kind in dear else 0
        for attempt in range(again + 1):
            with contextlib.suppress(LedgerError):
                account = account.after(kind, part.silo.local_steps, number, attempt)
    return account


@pytest.mark.parametrize("name", SEVERAL)
def test_no_order_of_attempts_releases_more_than_is_priced(name):
    """Answers are limited by the ledger, so the limit must count answers: local steps are releases, and no answers."""
    own = {"sampling": "full", "batch_size": None, "num_rounds": 4, "noise_multiplier": 20.0}
    if "local_steps" in find(name).parameters:
        own |= {"local_steps": 9}
    algorithm, spare = algorithm_of(name, **own), 8
    events = own_events(algorithm, spare)
    priced, rule = price(events, delta=1e-6).epsilon, rule_for("renyi", 4.0, 1e-6)
    kinds = list(algorithm.rounds)
    for dear in (kinds, *([one] for one in kinds)):
        made = greedy(algorithm, events, spare, dear)
        freed = [dataclasses.replace(event, participations=None) for event in made.debited()]
        assert price(freed, delta=1e-6).epsilon <= priced * (1 + 1e-9)
        assert cost(rule, freed).loss <= cost(rule, events).loss * (1 + 1e-9)


def test_in_one_pass_all_spare_attempts_may_read_one_batch():
    terms = {"num_rounds": 3, "sampling": "one-pass", "batch_size": 4, "noise_multiplier": 6.0}
    [plain], [spared] = own_events(algorithm_of(**terms)), own_events(algorithm_of(**terms), 3)
    mu = [gdp_mu(price([event], delta=1e-6).epsilon, 1e-6) for event in (plain, spared)]
    assert mu[1] == pytest.approx(mu[0] * math.sqrt(1 + 3))


def test_a_limit_of_answers_leaves_room_for_attempts():
    [event] = own_events(algorithm_of(num_rounds=6), 2, max_participations=4)
    assert (event.count, event.participations) == (6, 6)


@pytest.mark.parametrize(("spare", "min_silos"), [(1, 4), (0, 3)])
def test_running_sums_need_one_roster(spare, min_silos):
    algorithm = algorithm_of("mu2-sgd", sampling="one-pass", batch_size=4, num_rounds=3)
    with pytest.raises(PricingError, match="later increments reveal the noise"):
        own_events(algorithm, spare, min_silos)
    assert own_events(algorithm)[0].mechanism == "cumulative"


def test_nobody_is_priced_without_peers():
    with pytest.raises(PricingError, match="share the noise"):
        events_of(algorithm_of(), silo_index=0, silos=4, records=20)


def test_rounds_in_turn_are_refused():
    algorithm = find("mb-sgd").build(
        LOGISTIC,
        step_size=1.0,
        num_rounds=2,
        clip_norm=1.0,
        noise_multiplier=1.0,
        batch_size=None,
        sampling="full",
        channel="pairwise",
    )
    part = algorithm.rounds["gradient"]
    turned = algorithm.__class__(
        algorithm.init,
        {"gradient": part.__class__(part.silo, part.server, "in turn")},
        algorithm.schedule,
        algorithm.output,
    )
    with pytest.raises(PricingError, match="one in turn"):
        own_events(turned)


def test_all_silos_add_the_noise_of_the_strictest():
    """With mini-batches the smallest silo needs most; each silo then pays for that noise with its own records."""

    def build(z):
        return algorithm_of(noise_multiplier=z, num_rounds=8, sampling="wor", batch_size=5)

    sizes = (20, 40, 80)
    seats = [Seat(i, 3, n, None, None, Peers(sizes, 1, 3)) for i, n in enumerate(sizes)]
    found = afford(build, seats, Budget(epsilon=1.0, delta=1e-5), dimensions={"gradient": 10})
    assert len(set(found.noise.tolist())) == 1
    epsilons = [own.epsilon for own in found.prices]
    assert 0.999 < epsilons[0] <= 1.0
    assert epsilons == sorted(epsilons, reverse=True)
    assert epsilons[-1] < 0.5


def test_what_is_left_if_all_others_collude():
    """mu grows by sqrt(m - c)."""
    event = Event(kind="g", noise_multiplier=8.0, count=1, records=9, batch=9, sampling="full")
    left = if_all_collude([event], Peers((9,) * 5, 1, 3), delta=1e-6)
    assert gdp_mu(left, 1e-6) == pytest.approx(math.sqrt(4) / 8.0)


def test_what_is_left_if_more_collude_than_were_counted_on():
    """The server chooses the worst roster; with as many as were counted on nothing is lost."""
    event, peers = Event(kind="g", noise_multiplier=8.0, count=1, records=9, batch=9, sampling="full"), (9,) * 6
    left = [gdp_mu(if_more_collude([event], Peers(peers, 2, 4), k, delta=1e-6), 1e-6) for k in range(2, 6)]
    worst = [min(max(1, m - k) / (m - 2) for m in range(4, 7)) for k in range(2, 6)]
    assert left == [pytest.approx(1 / 8.0 / math.sqrt(share)) for share in worst]
    assert left == sorted(left)
    assert if_more_collude([event], Peers(peers, 2, 4), 5, delta=1e-6) == if_all_collude(
        [event], Peers(peers, 2, 4), delta=1e-6
    )


def test_the_door_is_priced_as_one_discrete_gaussian():
    seat = Seat(0, 4, 20, None, None, Peers((20,) * 4, 1, 4))
    [event] = releases_of(algorithm_of(num_rounds=2), seat)
    assert event.mechanism == "discrete-gaussian"
    assert event.grid_sigma == 2.0**37


def test_attempts_change_no_other_channel():
    algorithm = CASES["mb-sgd"].build(LOGISTIC, noise_multiplier=1.0, channel="direct")
    events = events_of(algorithm, silo_index=0, silos=4, records=20)
    assert with_attempts(events, algorithm.rounds, Peers((20,) * 4, 1, 4, 5)) == events
