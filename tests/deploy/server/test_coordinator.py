"""The server among real daemons, over their sockets: as in simulation, with silos that come and go."""

import re
import time

import pytest

from tacit.deploy.server.coordinator import Patience, StalledError
from tacit.deploy.server.deployment import check_study
from tacit.deploy.wire import RefusalError, refuse, unframed
from tacit.plans.spec import StudyError, study_from
from tacit.simulate.participation import participation
from tests.algorithms.table import PSGM, largest_difference
from tests.deploy.server.world import NAMES, Flaky, Forgetting, LocalTransport, conductor_of, plan_like, simulated


def test_direct_rounds_equal_the_simulation(world, tables, tmp_path):
    plan = plan_like()
    coordinator = conductor_of(plan, world, tmp_path)
    receipts = coordinator.run()
    assert largest_difference(coordinator.params, simulated(plan, tables)) < 1e-5
    assert {name: r.answers for name, r in receipts.items()} == dict.fromkeys(NAMES, 4)


def test_rounds_go_on_without_silos_that_may_be_missed_and_they_may_come_back(world, tmp_path):
    daemons, _, _ = world
    sockets = [daemon.home.socket for daemon in daemons]
    # s3 is away in the second and third round.
    transport = Flaky(sockets, lambda ask, at: ask in (4, 5) and at == str(sockets[3]))
    plan, events = plan_like(everyone=False, name="flaky"), []
    who = participation(4, (2, 4))
    coordinator = conductor_of(plan, world, tmp_path, who=who, transport=transport, events=events, seed=3)
    receipts = coordinator.run()
    history = coordinator.point.history
    assert len(history) == 4
    assert all(len(row["silos"]) >= 2 for row in history)
    assert sum("s3" in row["missed"] for row in history) >= 1
    answered = sum("s3" in row["silos"] for row in history)
    assert receipts["s3"].answers == answered
    for name in NAMES:
        assert receipts[name].answers == sum(name in row["silos"] for row in history)


class Babbling(LocalTransport):
    """What one silo says in rounds is spoilt on its way."""

    def __init__(self, sockets, at, spoil):
        super().__init__(sockets)
        self.at, self.spoil = str(at), spoil

    def ask(self, requests, seconds, enough=None):
        found = super().ask(requests, seconds, enough)
        replies = found.get(self.at)
        if replies and b'"message"' in replies[-1][0]:
            found[self.at] = [*replies[:-1], self.spoil(*replies[-1])]
        return found


SPOILT = {
    "no message at all": lambda header, body: (b"\xff{", body),
    "too few bytes": lambda header, body: (header, body[:-4]),
    "another shape": lambda header, body: (header.replace(b'"shape":[5,', b'"shape":[1,5,'), body),
    "not finite": lambda header, body: (header, b"\x00\x00\xc0\x7f" * (len(body) // 4)),
    "another channel": lambda header, body: (
        re.sub(rb'"message"(.*),"arrays":.*', rb'"sealed"\1,"silo":"s2","deposits":{}}', header),
        b"",
    ),
}


@pytest.mark.parametrize("way", SPOILT)
def test_a_silo_that_answers_nonsense_is_named_and_rounds_go_on_without_it(world, tmp_path, way):
    sockets = [daemon.home.socket for daemon in world[0]]
    transport, events = Babbling(sockets, sockets[2], SPOILT[way]), []
    plan = plan_like(everyone=False, name=f"babble{sorted(SPOILT).index(way)}")
    coordinator = conductor_of(plan, world, tmp_path, who=participation(4, (2, 4)), transport=transport, events=events)
    coordinator.run()
    assert len(coordinator.point.history) == 4
    assert all("s2" not in row["silos"] for row in coordinator.point.history)
    assert {(facts["silo"], facts["code"]) for event, facts in events if event == "refusal"} == {("s2", "nonsense")}


class Odd:
    """Shufflers that carry nothing, where one silo consents to other noise than the server counts on."""

    def carries(self, kind):
        return False

    def check(self, consents):
        if "s2" in consents:
            raise RefusalError("noise", "s2: other noise than the server's")


def test_a_consent_to_other_noise_is_that_silos_refusal_and_stops_no_other(world, tmp_path):
    plan, events = plan_like(everyone=False, name="odd"), []
    coordinator = conductor_of(plan, world, tmp_path, who=participation(4, (2, 4)), events=events)
    coordinator._shuffled = Odd()
    coordinator.run()
    assert len(coordinator.point.history) == 4
    assert all("s2" not in row["silos"] for row in coordinator.point.history)
    assert {(facts["silo"], facts["code"]) for event, facts in events if event == "refusal"} == {("s2", "noise")}
    needed = conductor_of(plan_like(name="odd-all"), world, tmp_path / "all", events=events)
    needed._shuffled = Odd()
    with pytest.raises(RefusalError, match="s2 refuses: s2: other noise"):
        needed.run()


def test_rounds_in_turn_wait_for_the_silo_whose_turn_it_is(world, tmp_path):
    daemons, _, _ = world
    sockets = [daemon.home.socket for daemon in daemons]
    down = [False]
    transport = Flaky(sockets, lambda ask, at: down[0] and at == str(sockets[0]))
    algorithm = {**PSGM, "channel": "direct", "name": "ce-psgm", "local_steps": 2, "num_rounds": 2}
    plan, who = plan_like(name="turns", algorithm=algorithm, everyone=False), participation(4, (3, 4))
    coordinator = conductor_of(plan, world, tmp_path, transport=transport, who=who)

    def away(number):
        down[0], coordinator._patience = True, Patience(0.3, 0.6)

    with pytest.raises(StalledError, match=r"needs 1 silos, got 0; s0: no answer"):
        coordinator.run(away)
    down[0] = False
    again = conductor_of(plan, world, tmp_path, transport=transport, who=who)
    again.run()
    turns = [row["silos"] for row in again.point.history if row["kind"] == "local"]
    assert turns == [["s0"], ["s1"]]


def test_a_study_that_too_many_refuse_ends_before_it_begins(world, tmp_path):
    plan = plan_like(everyone=False, epsilon=40.0, nonce="ce")
    coordinator = conductor_of(plan, world, tmp_path, who=participation(4, (2, 4)))
    with pytest.raises(RefusalError) as caught:
        coordinator.run()
    assert caught.value.code == "over-budget"


def test_a_plan_is_proposed_once_and_again_to_who_does_not_know_it(world, tmp_path):
    sockets = [daemon.home.socket for daemon in world[0]]
    transport = Forgetting(sockets, str(sockets[2]))
    coordinator = conductor_of(plan_like(name="once"), world, tmp_path, transport=transport)
    transport.counts.clear()
    coordinator.run()
    once = dict.fromkeys(map(str, sockets), 1)
    # The proposal, three rounds, the silo that forgot, the last round, and the end.
    assert transport.counts == [once, once, once, once, {str(sockets[2]): 2}, once, once]


class Refusing(LocalTransport):
    """All silos refuse what is proposed, once ``code`` is set."""

    code = None

    def ask(self, requests, seconds, enough=None):
        if self.code is None:
            return super().ask(requests, seconds, enough)
        return {at: [unframed(refuse(self.code, f"no, says {at}"))] for at in requests}


@pytest.mark.parametrize("code", ["bad-plan", "bad-message"])
def test_a_plan_that_nobody_can_use_ends_at_once_with_every_refusal(world, tmp_path, code):
    transport, events = Refusing([daemon.home.socket for daemon in world[0]]), []
    coordinator = conductor_of(plan_like(name=code), world, tmp_path, transport=transport, events=events)
    transport.code, begun = code, time.monotonic()
    with pytest.raises(RefusalError) as caught:
        coordinator.propose()
    assert time.monotonic() - begun < 10
    assert caught.value.code == code
    assert {facts["silo"]: facts["code"] for event, facts in events if event == "refusal"} == dict.fromkeys(NAMES, code)


def test_studies_that_daemons_cannot_run_are_refused_before_anybody_is_asked():
    tree = {"name": "t", "data": {"name": "silo"}, "privacy": {"epsilon": 1.0, "delta": 1e-6}}
    for algorithm, reason in (
        ({"name": "steffle", "strength": 0.5}, "sensitive attribute"),
        ({"name": "diff2-gd", "channel": "trusted"}, "cannot be deployed"),
        ({"name": "mb-sgd", "channel": "shuffled-sum"}, "0 shufflers"),
    ):
        study = study_from({**tree, "algorithm": {"num_rounds": 2, "step_size": 0.1, "clip_norm": 1.0, **algorithm}})
        with pytest.raises(StudyError, match=reason):
            check_study(study, 0)


def test_where_everyone_is_needed_the_run_waits_and_then_stalls_with_a_checkpoint(world, tmp_path):
    daemons, _, _ = world
    sockets = [daemon.home.socket for daemon in daemons]
    down = [True]
    transport = Flaky(sockets, lambda ask, at: ask > 4 and down[0] and at == str(sockets[0]))
    plan = plan_like(name="needed")
    coordinator = conductor_of(plan, world, tmp_path, transport=transport, patience=Patience(0.5, 1.0))
    with pytest.raises(StalledError, match="needs 4 silos"):
        coordinator.run()
    down[0] = False
    again = conductor_of(plan, world, tmp_path, transport=transport)
    assert again.point.round > 0
    again.run()
    assert len(again.point.history) == 4
