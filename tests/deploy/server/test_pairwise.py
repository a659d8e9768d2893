"""The server among daemons that sum pairwise: the model is the simulation's, ledgers are right, silos may vanish."""

import json

import jax
import numpy as np
import pytest

from tacit.cli.books import rests_on
from tacit.deploy.server.coordinator import Patience, StalledError
from tacit.deploy.server.pairwise import Summing
from tacit.deploy.wire import Pairwise, Propose, unframed
from tacit.privacy import price
from tacit.silo.chain import replay
from tacit.silo.ledger import inspect
from tacit.simulate.participation import participation
from tests.algorithms.table import PSGM, largest_difference
from tests.deploy.server.world import (
    NAMES,
    PATIENCE,
    SIZES,
    Flaky,
    Forgetting,
    conductor_of,
    killed_after,
    simulated,
    travelled,
)
from tests.deploy.silo.consortium import make_home, peers_of, plan_of, running

SHORT = Patience(20.0, 40.0)


@pytest.fixture(scope="module")
def world(tmp_path_factory, tables):
    """Four daemons without noise that pin each other's keys; no third party."""
    root = tmp_path_factory.mktemp("w")
    allow = {"channels": ["direct", "pairwise"], "max_open": 40}
    for name, table in zip(NAMES, tables, strict=True):
        pairwise = {"peers": peers_of(name, NAMES), "min_silos": 3}
        make_home(root / name, table, test=True, allow=allow, pairwise=pairwise)
    with running([root / name for name in NAMES], noise_off=True) as daemons:
        yield daemons, [], None


def pairwise_plan(*, algorithm=None, among=None, **changes):
    terms = {"silos": NAMES, "records": SIZES, "colluding": 1, "min_silos": 3, "spare_attempts": 2, **(among or {})}
    common = {"name": "mb-sgd", "sampling": "full", "channel": "pairwise", **(algorithm or {})}
    everyone = terms["min_silos"] == len(NAMES)
    return plan_of(common, **{"pairwise": Pairwise(**terms), "everyone": everyone, **changes})


def account_at(daemons, plan, silo_index):
    return replay(inspect(daemons[silo_index].home.ledger))[plan.model_copy(update={"silo_index": silo_index}).study]


@pytest.mark.parametrize("weights", ["equal", "records"])
def test_pairwise_sums_equal_the_simulation_and_ledgers_show_their_price(world, tables, tmp_path, weights):
    plan = pairwise_plan(among={"weights": weights, "spare_attempts": 0, "min_silos": 4})
    coordinator = conductor_of(plan, world, tmp_path, who=_who(weights))
    receipts = coordinator.run()
    expected = simulated(plan, tables, _who(weights))
    assert largest_difference(coordinator.params, expected) < 3e-5 < travelled(plan, expected) / 20
    for silo_index, name in enumerate(NAMES):
        account = account_at(world[0], plan, silo_index)
        assert account.answers == 4
        spent = price(account.debited(), delta=plan.delta).epsilon
        assert receipts[name].epsilon == pytest.approx(spent, rel=1e-6)
        assert 0.99 * plan.epsilon < spent <= plan.epsilon
    assert all("rosters" in row and len(row["rosters"]) == 1 for row in coordinator.point.history)


def _who(weights):
    return participation(4, weights=SIZES if weights == "records" else None)


@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "prox-svrg", "phase_length": 2, "difference_slope": 1.0},
        {"name": "mb-psgm", **{k: v for k, v in PSGM.items() if k not in ("step_size", "num_rounds", "channel")}},
        {"name": "mu2-sgd"},
    ],
    ids=lambda own: own["name"],
)
def test_other_algorithms_sum_pairwise_too(world, tables, tmp_path, algorithm):
    """Rounds of several kinds, of several blocks, and a running sum among silos that all stay."""
    plan = pairwise_plan(algorithm=algorithm, among={"spare_attempts": 0, "min_silos": 4}, nonce="01")
    coordinator = conductor_of(plan, world, tmp_path)
    coordinator.run()
    expected = simulated(plan, tables)
    assert largest_difference(coordinator.params, expected) < 3e-5 < travelled(plan, expected) / 20


def test_a_round_without_somebody_is_asked_again_of_the_others(world, tables, tmp_path):
    """One silo is there when keys are asked for, and not when it should answer: the next attempt is without it."""
    plan, events = pairwise_plan(nonce="02"), []
    sockets = [daemon.home.socket for daemon in world[0]]
    late = str(sockets[2])

    transport = Flaky(sockets, lambda ask, at: False)
    coordinator = conductor_of(plan, world, tmp_path, transport=transport, events=events, patience=SHORT)
    original = coordinator._sum_of

    def once_without(round_index, specs, payload, roster, gone):
        if round_index == 1 and "s2" in roster:
            transport.down = lambda ask, at: at == late
        return original(round_index, specs, payload, roster, gone)

    coordinator._sum_of = once_without
    coordinator.run(lambda done: setattr(transport, "down", lambda ask, at: False) if done == 2 else None)
    rosters = [row["rosters"] for row in coordinator.point.history]
    assert rosters[1] == [list(NAMES), ["s0", "s1", "s3"]]
    assert rosters[0] == [list(NAMES)]
    # It lost its place in one round, and nothing else.
    assert rosters[-1][-1] == list(NAMES)
    made = [account_at(world[0], plan, i).made["gradient"] for i in range(4)]
    # Who stayed away is not waited for in the round after that, and may be there: each answers as rosters say, once.
    back = sum("s2" in row[-1] for row in rosters)
    assert made == [5, 5, back, 5]
    assert back in (2, 3)
    expected = four_rounds(plan, tables, [tuple(row[-1]) for row in rosters])
    assert largest_difference(coordinator.params, expected) < 3e-5
    assert next(facts["silos"] for event, facts in events if event == "missing") == ["s2"]


def four_rounds(plan, tables, rosters):
    """The study without noise, where these silos answer: means of N p_i over those that are there."""
    from tacit.deploy.contract import builder_from
    from tacit.silo import clipped_sum

    builder = builder_from(plan, SIZES[0])
    algorithm = builder.build(noise_multiplier=1.0)
    part = algorithm.rounds["gradient"]
    state = algorithm.init(builder.problem.objective.init(jax.random.key(0)))
    for roster in rosters:
        broadcast = part.server.ask(state)
        means = []
        for name in roster:
            table = tables[NAMES.index(name)]
            total = clipped_sum(part.silo.query, broadcast, table, np.ones(len(table["y"]), bool), 0.7)
            means.append(jax.tree.map(lambda leaf, n=len(table["y"]): leaf / n, total))
        mean = jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *means)
        state = part.server.tell(state, mean)
    return algorithm.output(state)


def test_a_killed_server_asks_for_the_same_sum(world, tables, tmp_path):
    plan = pairwise_plan(nonce="03", among={"spare_attempts": 0, "min_silos": 4})

    first = conductor_of(plan, world, tmp_path)
    killed_after(first, 2)
    # The next round is answered, but the server dies before it writes down what it learnt.
    save = first.point.save
    first.point.save = lambda path: save(path) if first.point.round == 2 else None
    first._play(2)
    second = conductor_of(plan, world, tmp_path)
    assert second.point.round == 2
    assert second.point.attempts == (NAMES,)
    second.run()
    expected = simulated(plan, tables)
    assert largest_difference(second.params, expected) < 3e-5
    assert [account_at(world[0], plan, i).answers for i in range(4)] == [4] * 4


def test_a_server_that_forgot_its_roster_needs_a_spare_attempt(world, tmp_path):
    """Silos answer one context of an attempt: who asks with another broadcast must pay for the next one."""
    plan = pairwise_plan(nonce="04")
    first = conductor_of(plan, world, tmp_path)
    first.propose()
    first._play(0)
    (tmp_path / "checkpoint.npz").unlink()
    second = conductor_of(plan, world, tmp_path)
    second.point.state = jax.tree.map(lambda leaf: leaf + leaf.dtype.type(0.5), second.point.state)
    second.propose()
    second._play(0)
    assert len(second.point.history[0]["rosters"]) == 2
    assert [account_at(world[0], plan, i).made["gradient"] for i in range(4)] == [2] * 4


def test_a_killed_daemon_comes_back_with_its_key_and_its_answer(world, tables, tmp_path):
    """The study key is in the ledger: the same context gets the stored reply after a restart."""
    plan = pairwise_plan(nonce="05", among={"spare_attempts": 0, "min_silos": 4})
    coordinator = conductor_of(plan, world, tmp_path)

    def restarted(number):
        if number < 3:
            world[0][number].kill()
            world[0][number].start()
            world[0][number].ready()

    coordinator.run(restarted)
    assert largest_difference(coordinator.params, simulated(plan, tables)) < 3e-5


def test_without_attempts_to_spare_a_study_waits_and_then_stops(world, tmp_path):
    plan = pairwise_plan(nonce="06", among={"spare_attempts": 0})
    sockets = [daemon.home.socket for daemon in world[0]]
    transport = Flaky(sockets, lambda ask, at: False)
    coordinator = conductor_of(plan, world, tmp_path, transport=transport, patience=Patience(2.0, 6.0))
    coordinator.propose()
    original = coordinator._sum_of

    def without(*args):
        transport.down = lambda ask, at: at == str(sockets[1])
        return original(*args)

    coordinator._sum_of = without
    with pytest.raises(StalledError, match="1 attempt of at most 1; s1: no answer"):
        coordinator._play(0)
    # It can go on from its checkpoint, with the same roster.
    transport.down, coordinator._sum_of = (lambda ask, at: False), original
    coordinator._patience = PATIENCE
    coordinator._play(0)
    assert [account_at(world[0], plan, i).answers for i in range(4)] == [1] * 4


def test_keys_are_erased_at_the_end_of_a_study(world, tmp_path):
    plan = pairwise_plan(nonce="07")
    coordinator = conductor_of(plan, world, tmp_path)
    coordinator.propose()
    enrolled = {n: coordinator.consents[n].enrolment for n in NAMES}
    assert len({own.key for own in enrolled.values()}) == 4
    coordinator._play(0)
    secret = _study_key(world[0][0].home, plan)
    kept = world[0][0].home.ledger
    files = [kept, kept.with_name(kept.name + "-wal")]
    assert any(secret in file.read_bytes() for file in files)
    coordinator.finish()
    assert not any(secret in file.read_bytes() for file in files if file.exists())


def _study_key(home, plan):
    import sqlite3

    from tacit.deploy.silo.answering import remembered

    with sqlite3.connect(f"{home.ledger.as_uri()}?mode=ro", uri=True) as database:
        [row] = database.execute("SELECT state FROM studies WHERE study = ?", (plan.study,)).fetchall()
    return remembered(row[0]).study_key


def test_the_ledger_says_what_the_epsilon_rests_on(world, tmp_path):
    plan = pairwise_plan(nonce="08")
    conductor_of(plan, world, tmp_path).propose()
    [entry] = [e for e in inspect(world[0][0].home.ledger) if e.kind == "reserve" and e.study == plan.study]
    assert rests_on(json.loads(entry.data["plan"])) == (
        "at most 1 of 4 silos collude with the server, in rounds of 3 or more (pairwise)"
    )


@pytest.mark.parametrize(
    ("among", "said"),
    [
        ({"min_silos": 2}, "at least 3 silos in a round"),
        ({"silos": ("s0", "s1", "s2", "stranger")}, "missing: stranger"),
        ({"records": (30, 17, 24, 999)}, None),
        ({"records": (31, 17, 24, 21)}, "pairwise.records"),
        ({"silos": ("s1", "s0", "s2", "s3")}, "this silo's own name"),
    ],
)
def test_plans_that_the_owner_did_not_allow_are_refused(world, among, said):
    plan = pairwise_plan(nonce="09", among=among)
    client = world[0][0].client(10.0)
    try:
        if said is None:
            # Of others' records a silo knows nothing: who lies about them is told other masks.
            assert client.ask(Propose(plan=plan))[0].state == "consented"
        else:
            with pytest.raises(Exception, match=said):
                client.ask(Propose(plan=plan))
    finally:
        client.close()


def test_rosters_of_a_round():
    summing = Summing(pairwise_plan())
    assert summing.rosters((), ("s0", "s1"), is_over=False) == ()
    first = summing.rosters((), ("s3", "s0", "s1", "s2"), is_over=False)
    assert first == (NAMES,)
    assert summing.rosters(first, NAMES, is_over=False) == first
    second = summing.rosters(first, ("s0", "s1", "s3"), is_over=False)
    assert second == (NAMES, ("s0", "s1", "s3"))
    assert summing.rosters(first, ("s0", "s1"), is_over=False) == first
    third = summing.rosters(second, NAMES, is_over=True)
    assert len(third) == 3
    assert summing.rosters(third, NAMES[:3], is_over=True) == third


def test_silos_that_were_silent_are_asked_again_where_too_few_are_left(world, tmp_path):
    """Two of four miss an attempt, three are needed: the next attempt is that of all who are back, not a standstill."""
    plan = pairwise_plan(nonce="0a")
    sockets = [daemon.home.socket for daemon in world[0]]
    transport = Flaky(sockets, lambda ask, at: False)
    coordinator = conductor_of(plan, world, tmp_path, transport=transport, patience=SHORT)
    coordinator.propose()
    original, calls = coordinator._sum_of, []

    def at_first_without_two(*args):
        calls.append(args)
        transport.down = lambda ask, at: len(calls) <= 2 and at in map(str, sockets[2:])
        found = original(*args)
        transport.down = lambda ask, at: False
        return found

    coordinator._sum_of = at_first_without_two
    coordinator._play(0)
    assert coordinator.point.history[0]["rosters"] == [list(NAMES), list(NAMES)]
    assert [account_at(world[0], plan, i).made["gradient"] for i in range(4)] == [2, 2, 1, 1]


def test_a_plan_of_sums_is_proposed_once_and_again_to_who_does_not_know_it(world, tmp_path):
    """As for direct rounds; the silo that asks for the plan again has its key still, and the same sum is asked."""
    sockets = [daemon.home.socket for daemon in world[0]]
    transport, plan = Forgetting(sockets, str(sockets[2])), pairwise_plan(nonce="0b")
    coordinator = conductor_of(plan, world, tmp_path, transport=transport)
    transport.counts.clear()
    coordinator.run()
    once = dict.fromkeys(map(str, sockets), 1)
    # The proposal, three rounds, the one silo that enrols again, the third round again, the last one, and the end.
    assert transport.counts == [once, once, once, once, {str(sockets[2]): 1}, once, once, once]
    assert [len(row["rosters"]) for row in coordinator.point.history] == [1] * 4
    assert [account_at(world[0], plan, i).made["gradient"] for i in range(4)] == [4] * 4


def test_without_an_attempt_to_spare_silos_are_asked_whether_they_are_there(world, tmp_path):
    """A roster with somebody who has left could not be changed any more; where all are needed nothing is gained."""
    sockets = [daemon.home.socket for daemon in world[0]]
    once = dict.fromkeys(map(str, sockets), 1)
    for nonce, min_silos, requests in (("0c", 3, 1 + 2 * 4 + 1), ("0d", 4, 1 + 4 + 1)):
        plan = pairwise_plan(nonce=nonce, among={"spare_attempts": 0, "min_silos": min_silos})
        transport = Forgetting(sockets, None)
        coordinator = conductor_of(plan, world, tmp_path / nonce, transport=transport)
        transport.counts.clear()
        coordinator.run()
        assert transport.counts == [once] * requests


def test_a_silo_with_another_study_key_enrols_again_and_the_next_attempt_is_asked(tables, tmp_path):
    """A silo loses its ledger in the middle of a study: its new key makes a new roster, which the others pay for."""
    names = NAMES[:3]
    allow = {"channels": ["direct", "pairwise"]}
    for name, table in zip(names, tables, strict=False):
        pairwise = {"peers": peers_of(name, names), "min_silos": 3}
        make_home(tmp_path / name, table, test=True, allow=allow, pairwise=pairwise)
    among = {"silos": names, "records": SIZES[:3], "spare_attempts": 1}
    plan, events = pairwise_plan(nonce="0e", among=among, silos=3), []
    with running([tmp_path / name for name in names], noise_off=True) as daemons:
        world = daemons, [], None
        coordinator = conductor_of(plan, world, tmp_path, names=names, min_silos=3, events=events)

        def lost(number):
            if number == 2:
                daemons[1].kill()
                for path in (*daemons[1].home.ledger.parent.glob("ledger.sqlite*"), daemons[1].home.counter):
                    path.unlink(missing_ok=True)
                daemons[1].start()
                daemons[1].ready()

        before = dict(coordinator.propose())["s1"].enrolment
        coordinator.run(lost)
        assert coordinator._enrolments["s1"].key != before.key
        made = [account_at(daemons, plan, i).made["gradient"] for i in range(3)]
    assert [len(row["rosters"]) for row in coordinator.point.history] == [1, 1, 2, 1]
    # The two others answered the attempt that failed; the new ledger has the two rounds that it answered.
    assert made == [5, 2, 5]
    assert {(facts["silo"], facts["code"]) for event, facts in events if event == "refusal"} <= {
        ("s1", "unknown-study"),
        ("s1", "addressed"),
    }


class Rosters(Flaky):
    """Notes the study keys in the rosters that silos are sent."""

    def __init__(self, sockets):
        super().__init__(sockets, lambda ask, at: False)
        self.rosters = []

    def ask(self, requests, seconds, enough=None):
        told = [json.loads(unframed(raw)[0]) for frames in requests.values() for raw in frames]
        self.rosters += [one["roster"] for one in told if "roster" in one]
        return super().ask(requests, seconds, enough)


def test_rosters_hold_what_silos_enrolled_with(world, tmp_path):
    plan = pairwise_plan(nonce="0f")
    transport = Rosters([daemon.home.socket for daemon in world[0]])
    coordinator = conductor_of(plan, world, tmp_path, transport=transport)
    coordinator.run()
    enrolled = {name: consent.enrolment for name, consent in coordinator.consents.items()}
    assert len(transport.rosters) == 16
    for roster in transport.rosters:
        assert {one["silo"]: one["key"] for one in roster} == {name: own.key for name, own in enrolled.items()}


def test_a_silo_that_refuses_a_roster_is_asked_for_its_key_once(world, tmp_path):
    """Its key may be another one; where it is the same, the round goes on without it."""
    plan, events = pairwise_plan(nonce="10"), []
    coordinator = conductor_of(plan, world, tmp_path, events=events)
    coordinator.propose()
    stolen = coordinator._enrolments["s2"].model_copy(update={"key": coordinator._enrolments["s1"].key})
    original, calls = coordinator._sum_of, []

    def with_another(round_index, specs, payload, roster, gone):
        calls.append(sorted(roster))
        own = {**roster, "s2": stolen} if len(calls) == 1 else roster
        return original(round_index, specs, payload, own, gone)

    coordinator._sum_of = with_another
    coordinator._play(0)
    assert calls == [list(NAMES)] * 2
    assert len(coordinator.point.history[0]["rosters"]) == 1
    assert coordinator._is_gone("s2", "roster", coordinator._enrolments["s2"]) is False
    assert coordinator._is_gone("s2", "roster", coordinator._enrolments["s2"]) is True
