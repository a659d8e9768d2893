"""The server among real daemons and shufflers: sums equal the simulation, reports are read as they were mixed."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tomli_w

from tacit.channel.sealing import new_secret
from tacit.channel.shuffled_sum import ShareTerms
from tacit.deploy.server.coordinator import StalledError
from tacit.deploy.server.study import lead
from tacit.deploy.server.transport import SocketTransport
from tacit.deploy.shuffling import bound_to
from tacit.deploy.silo.policy import AllowSection, ShuffleSection
from tacit.deploy.silo.shuffled import check_shuffle
from tacit.deploy.wire import Plan, Propose, RefusalError, Shuffle
from tacit.privacy import price
from tacit.privacy.randomisers import terms_of
from tacit.silo import clipped_sum
from tacit.silo.chain import replay
from tacit.silo.ledger import inspect
from tacit.simulate.participation import participation
from tests.algorithms.table import PSGM, largest_difference
from tests.deploy.server.world import (
    KEY,
    NAMES,
    SIZES,
    Flaky,
    LocalTransport,
    conductor_of,
    killed_after,
    plan_like,
    simulated,
    travelled,
)
from tests.deploy.silo.consortium import SEED, led_by, plan_of, rounding_of


def assert_simulated(plan, found, expected):
    """To the random rounding of the records, which is far less than the way that the model went."""
    assert largest_difference(found, expected) < rounding_of(plan) < travelled(plan, expected) / 20


def test_shuffled_sums_equal_the_simulation_and_ledgers_show_their_price(world, tables, tmp_path):
    daemons, _, seals = world
    plan = plan_like(seals)
    coordinator = conductor_of(plan, world, tmp_path)
    receipts = coordinator.run()
    assert_simulated(plan, coordinator.params, simulated(plan, tables))
    for silo_index, daemon in enumerate(daemons):
        account = replay(inspect(daemon.home.ledger))[plan.model_copy(update={"silo_index": silo_index}).study]
        spent = price(account.debited(), delta=plan.delta).epsilon
        assert receipts[NAMES[silo_index]].epsilon == pytest.approx(spent)
        assert 0.99 * plan.epsilon < spent <= plan.epsilon


def test_a_killed_server_goes_on_where_it_was(world, tables, tmp_path):
    _, _, seals = world
    plan = plan_like(seals, nonce="aa")

    first = conductor_of(plan, world, tmp_path)
    killed_after(first, 2)
    # The sum of the next round is asked for, but the server dies before it writes down what it learnt.
    save = first.point.save
    first.point.save = lambda path: save(path) if first.point.answers else None
    first._play(2)
    second = conductor_of(plan, world, tmp_path)
    assert second.point.round == 2
    assert set(second.point.answers) == set(NAMES)
    # The sealed answers are in the checkpoint: nobody need be there for what is left of the round.
    second._addresses, everybody = {}, second._addresses
    second._play(2)
    second._addresses = everybody
    second.run()
    assert_simulated(plan, second.params, simulated(plan, tables))


@pytest.mark.parametrize("algorithm", [{"name": "prox-spider", "phase_length": 2, "difference_slope": 4.0}, {}])
def test_some_silos_of_many_through_shuffled_sums_equal_the_simulation(world, tables, tmp_path, algorithm):
    _, _, seals = world
    # Each round opens the sum of the silos that came, and no others' noise is taken off.
    plan = plan_like(seals, min_silos=3, algorithm=algorithm, everyone=False, nonce="ad")
    who = participation(4, (3, 4))
    coordinator = conductor_of(plan, world, tmp_path, who=who, seed=SEED)
    receipts = coordinator.run()
    came = [len(row["silos"]) for row in coordinator.point.history]
    assert set(came) == {3, 4}
    assert_simulated(plan, coordinator.params, simulated(plan, tables, who))
    assert sum(receipt.answers for receipt in receipts.values()) == sum(came)
    for receipt in receipts.values():
        assert (receipt.epsilon < 0.99 * plan.epsilon) == (receipt.answers < 4)


def test_blocks_through_shuffled_sums_equal_the_simulation(world, tables, tmp_path):
    _, _, seals = world
    plan = plan_like(seals, algorithm={**PSGM, "name": "mb-psgm", "channel": "shuffled-sum"})
    coordinator = conductor_of(plan, world, tmp_path)
    receipts = coordinator.run()
    assert set(coordinator._shuffled.terms["estimate"]) == {"difference", "gradient"}
    assert_simulated(plan, coordinator.params, simulated(plan, tables))
    assert all(0.99 * plan.epsilon < receipts[name].epsilon <= plan.epsilon for name in NAMES)


def test_silos_that_drop_out_of_a_shuffled_study_come_back_even_to_a_server_that_started_without_them(world, tmp_path):
    daemons, _, seals = world
    sockets = [daemon.home.socket for daemon in daemons]
    away = {"s3": True}
    transport = Flaky(sockets, lambda ask, at: away["s3"] and at == str(sockets[3]))
    who = participation(4, (3, 4))
    plan = plan_like(seals, min_silos=3, everyone=False, nonce="da", algorithm={"num_rounds": 6})
    away["s3"] = False
    first = conductor_of(plan, world, tmp_path, who=who, transport=transport, seed=5)

    killed_after(first, 2, lambda number: away.update(s3=number <= 2))
    # The next server finds three silos, and the fourth later, at an address that it did not know.
    second = conductor_of(plan, world, tmp_path, who=who, transport=transport, seed=5, min_silos=3)
    assert set(second._addresses) == {"s0", "s1", "s2"}
    receipts = second.run(lambda number: away.update(s3=number < 4))
    history = second.point.history
    assert len(history) == 6
    came = ["s3" in row["silos"] for row in history]
    assert not any(came[2:4])
    assert any(came[4:])
    for name in NAMES:
        assert receipts[name].answers >= sum(name in row["silos"] for row in history)
    assert second.consents["s3"].epsilon <= plan.epsilon


class Meddling(LocalTransport):
    """A courier of one silo that changes what it carries: ``change`` gets frames on the way there, or replies back."""

    def __init__(self, sockets, victim, *, there=lambda raw: raw, back=lambda reply: reply):
        super().__init__(sockets)
        self._victim, self._there, self._back = str(victim), there, back

    def ask(self, requests, seconds, enough=None):
        bent = {
            at: [self._there(f) for f in frames] if at == self._victim else frames for at, frames in requests.items()
        }
        found = super().ask(bent, seconds, enough)
        if self._victim in found:
            found[self._victim] = [self._back(reply) for reply in found[self._victim]]
        return found


def other_broadcast(raw):
    return raw[:-4] + b"\0\0\x80?" if b'"answer"' in raw else raw


def flipped(reply):
    header, payload = reply
    return (header, payload[:-1] + bytes([payload[-1] ^ 1])) if b'"sealed"' in header else reply


def test_a_courier_that_shows_a_silo_another_broadcast_opens_no_sum(world, tmp_path):
    """Also how a server would tag a silo: its share is bound to what it was shown, and fits no others."""
    daemons, _, seals = world
    sockets = [daemon.home.socket for daemon in daemons]
    plan = plan_like(seals, nonce="ee")
    coordinator = conductor_of(plan, world, tmp_path, transport=Meddling(sockets, sockets[1], there=other_broadcast))
    with pytest.raises(StalledError, match="s1: bad-message: expected broadcast="):
        coordinator.run()
    assert coordinator.point.round == 0


def test_a_courier_that_changes_a_sealed_share_is_found_out(world, tmp_path):
    daemons, _, seals = world
    sockets = [daemon.home.socket for daemon in daemons]
    plan = plan_like(seals, nonce="ef")
    coordinator = conductor_of(plan, world, tmp_path, transport=Meddling(sockets, sockets[2], back=flipped))
    with pytest.raises(StalledError, match="needs 4 silos, but shufflers do not take s2: forged"):
        coordinator.run()
    # With an honest courier the same round goes on: the silo has kept what it said.
    conductor_of(plan, world, tmp_path).run()


@pytest.mark.parametrize("server", [None, str(KEY.public)], ids=["sums", "reports"])
def test_rounds_go_on_without_a_silo_whose_answers_are_spoilt(world, tmp_path, server):
    daemons, _, seals = world
    sockets = [daemon.home.socket for daemon in daemons]
    terms = {"server": server, "nonce": "f1", "algorithm": {"num_rounds": 2}, "epsilon": 6.0}
    plan = plan_like(seals, min_silos=3, everyone=False, **terms)
    transport = Meddling(sockets, sockets[2], back=flipped)
    coordinator = conductor_of(plan, world, tmp_path, who=participation(4, (3, 4)), transport=transport, seed=SEED)
    receipts = coordinator.run()
    history = coordinator.point.history
    assert all(row["silos"] == ["s0", "s1", "s3"] for row in history)
    # It has paid for what it said, and is reckoned with.
    assert receipts["s2"].answers == sum("s2" in row["left_out"] for row in history) > 0


def test_a_lying_crowd_is_refused(world, tmp_path):
    _, _, seals = world
    for changes, code in (
        ({"records": (10**6, *SIZES[1:])}, "bad-plan"),
        ({"shufflers": {"a": seals["a"]}}, "not-allowed"),
        ({"shufflers": {"a": seals["b"], "b": seals["a"]}}, "not-allowed"),
    ):
        good = plan_like(seals, nonce="cc")
        shuffle = good.shuffle.model_copy(update=changes)
        plan = Plan.model_validate({**good.model_dump(), "shuffle": shuffle.model_dump()})
        coordinator = conductor_of(plan_like(nonce="dd"), world, tmp_path)
        coordinator._plans = {NAMES[0]: plan}
        with pytest.raises(RefusalError) as caught:
            coordinator.propose()
        assert caught.value.code == code


def report_plan(seals, **changes):
    """One stream in the first round, two in the next, and a local phase in turn after each."""
    algorithm = {**PSGM, "name": "ce-psgm", "local_steps": 2, "num_rounds": 2, "clip_norm": 0.7}
    return plan_like(seals, server=str(KEY.public), algorithm=algorithm, **{"epsilon": 6.0, **changes})


def mean_of(silo, broadcast, table):
    """A silo's mean of clipped statistics, all in one vector."""
    records = {name: jnp.asarray(column) for name, column in table.items()}
    present = jnp.ones(len(table["y"]), bool)
    total = clipped_sum(silo.query, broadcast, records, present, silo.release.clip(broadcast))
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(total)]) / len(present)


def test_shuffled_reports_are_read_as_they_were_mixed_and_ledgers_show_their_price(world, tables, tmp_path):
    daemons, _, seals = world
    plan = report_plan(seals)
    coordinator = conductor_of(plan, world, tmp_path)
    shuffled, said = coordinator._shuffled, []
    mean = shuffled.mean
    shuffled.mean = lambda kind, *rest: said.append((kind, rest[2], mean(kind, *rest))) or said[-1][2]
    receipts = coordinator.run()
    assert [row["kind"] for row in coordinator.point.history] == ["gradient", "local", "estimate", "local"]
    assert [kind for kind, _, _ in said] == ["gradient", "estimate"]
    # What the server reads is near the mean of clipped gradients: five standard deviations of as many reports.
    kind, broadcast, found = said[0]
    part = coordinator.algorithm.rounds[kind].silo
    means = [mean_of(part, broadcast, table) for table in tables]
    gap = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(found)]) - np.mean(means, axis=0)
    own = terms_of("duchi", gap.size, shuffled.streams[kind][""].local_epsilon)
    _, each = plan.shuffle.record_weights(None)
    assert np.linalg.norm(gap) < 2.5 * 0.7 * (own.error * sum(SIZES)) ** 0.5 * each
    for silo_index, daemon in enumerate(daemons):
        account = replay(inspect(daemon.home.ledger))[plan.model_copy(update={"silo_index": silo_index}).study]
        by_kind = {event.kind: event for event in account.debited()}
        assert by_kind["gradient"].mechanism == by_kind["estimate"].mechanism == "reports"
        assert by_kind["gradient"].reports == sum(SIZES)
        assert len(by_kind["estimate"].streams) == 2
        assert ("local" in by_kind) == (silo_index < 2)
        assert receipts[NAMES[silo_index]].epsilon == pytest.approx(price(account.debited(), delta=plan.delta).epsilon)
        assert receipts[NAMES[silo_index]].epsilon <= plan.epsilon
    # The strictest silo pays the whole price; those whose turn does not come pay less.
    assert max(receipt.epsilon for receipt in receipts.values()) > 0.99 * plan.epsilon


def test_shuffled_reports_with_some_silos_of_many_and_a_server_that_was_killed(world, tmp_path):
    _, _, seals = world
    plan = plan_like(
        seals, min_silos=3, everyone=False, server=str(KEY.public), epsilon=6.0, algorithm={"num_rounds": 2}, nonce="be"
    )
    who = participation(4, (3, 4))
    first = conductor_of(plan, world, tmp_path, who=who, seed=SEED)
    first.propose()
    save = first.point.save
    first.point.save = lambda path: save(path) if first.point.answers else None
    first._play(0)
    second = conductor_of(plan, world, tmp_path, who=who, seed=SEED)
    assert second.point.answers
    second._play(0)
    # The shufflers release a round once and in one way, so both servers read the same.
    assert largest_difference(second.params, first.params) == 0.0
    second.run()
    event = {event.kind: event for event in second._shuffled._events}["gradient"]
    assert event.reports == sum(sorted(SIZES)[:3])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"server": None}, "shuffle.server"),
        ({"algorithm": {"sampling": "poisson", "batch_size": 5}}, 'sampling "full" or "wor"'),
        ({"algorithm": {"name": "mb-psgm", **PSGM, "randomiser": "privunit2"}}, "floating-point"),
        ({"epsilon": 40.0}, "epsilon_0 of at most 8"),
        ({"algorithm": {"name": "local-sgd", "local_steps": 2}}, "local step"),
    ],
)
def test_reports_that_could_not_keep_their_promise_are_refused_before_consent(world, changes, reason):
    daemons, _, seals = world
    terms = {"server": str(KEY.public), "epsilon": 2.0, **changes}
    plan = plan_like(seals, **terms)
    if terms["server"] is None:
        plan = plan.model_copy(update={"algorithm": {**plan.algorithm, "channel": "shuffled-reports"}})
    client = daemons[0].client()
    try:
        with pytest.raises(RefusalError, match=reason):
            client.ask(Propose(plan=plan))
    finally:
        client.close()


def test_a_study_through_reports_is_led_from_its_run_folder_to_its_report(world, tmp_path):
    daemons, parties, _ = world
    algorithm = {"name": "mb-sgd", "num_rounds": 2, "step_size": 0.2, "clip_norm": 0.7, "channel": "shuffled-reports"}
    privacy, run = {"epsilon": 6.0, "delta": 1e-6}, {"participants": [3, 4]}
    tree = {"name": "led", "data": {"name": "silo"}, "algorithm": algorithm, "privacy": privacy, "run": run}
    (tmp_path / "study.toml").write_text(tomli_w.dumps(tree))
    entries = [party.entry() for party in parties]
    terms = {"silos": 4, "folder": str(tmp_path), "seed": SEED, "round_seconds": 30.0, "patience": 60.0}
    (tmp_path / "deployment.toml").write_text(
        tomli_w.dumps({**terms, **led_by(tmp_path, *NAMES), "shufflers": entries})
    )
    lead(tmp_path, SocketTransport([daemon.home.socket for daemon in daemons]))
    result = json.loads((tmp_path / "result.json").read_text())
    assert (tmp_path / "server.key").stat().st_mode & 0o077 == 0
    assert (tmp_path / "report.html").is_file()
    spent = [row["epsilon_spent"] for row in result["silos"]]
    assert max(spent) <= 6.0
    # The server's own reckoning, from who came and the noise that silos named, is what their ledgers say.
    rows = [json.loads(line) for line in (tmp_path / "progress.jsonl").read_text().splitlines()]
    reckoned = [row["epsilon"] for row in rows if row["event"] == "measured"]
    assert reckoned[0] < reckoned[1] == pytest.approx(max(spent), rel=1e-6)


def consulted(plan, colluding, seals):
    policy = ShuffleSection(shufflers=seals, colluding=colluding)
    check_shuffle(plan, SIZES[0], AllowSection(algorithms=("mb-sgd",)), policy)


def test_a_small_plan_made_of_those_who_collude_is_refused():
    """A share of a small crowd is few silos; what an owner fears is a number of them, whatever the plan."""
    seals = {name: str(new_secret().public) for name in "ab"}
    shared = {"records": SIZES, "min_silos": 4, "shufflers": seals}
    for honest, assumed in ((1.0, 0), (0.75, 1), (0.5, 2)):
        plan = plan_of({"name": "mb-sgd"}, shuffle=Shuffle(**shared, honest=honest))
        consulted(plan, assumed, seals)
        with pytest.raises(RefusalError, match="may collude"):
            consulted(plan, assumed + 1, seals)


def test_contributions_with_other_coins_never_meet():
    plan = plan_like({"a": str(new_secret().public)})
    terms = {"gradient": ShareTerms(200, 1000, 5)}
    fewer = {"gradient": ShareTerms(200, 999, 5)}
    cases = [(terms, True), (fewer, True), ({"other": terms["gradient"]}, True), (terms, False)]
    assert bound_to(plan, terms, noise=True) == bound_to(plan, dict(terms), noise=True)
    assert len({bound_to(plan, own, noise=noise) for own, noise in cases}) == 4
