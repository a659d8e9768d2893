"""A hostile server and pairwise sums: whatever silos are told, no sum of their answers has less noise than priced.

Daemons answer in this process, as they ship. Where masks must not cancel, the bits of every sum and difference of
answers are looked at: they are uniform.
"""

import itertools
import math

import numpy as np
import pytest
import tomli_w

from tacit.channel.pairwise import in_order, masks_of, new_study_key, public_key
from tacit.channel.shuffled_sum import joined
from tacit.deploy.pairwise import enrolment_of, member_of
from tacit.deploy.signing import Signer
from tacit.deploy.silo import pairwise as silo_pairwise
from tacit.deploy.silo.answering import Samplers
from tacit.deploy.silo.policy import PolicyError, policy_from
from tacit.deploy.silo.service import NOISE_OFF, SiloService
from tacit.deploy.wire import Answer, AnswerTogether, Finish, Pairwise, Propose, RefusalError
from tacit.privacy.pairwise import share_multiplier
from tacit.silo.integers import BOUND
from tacit.silo.ledger import inspect
from tacit.silo.sampler import discrete_gaussian
from tests.channel.test_pairwise import LOW_ORDER, is_uniform
from tests.deploy.silo.consortium import LocalClient, broadcast_of, make_home, pins, plan_of, policy_tree, records_of

NAMES = ("a", "b", "c", "d")
SIZES = (30, 17, 24, 21)
WIDTH = 400
MOST = 2**50
"""Far above every sum of these records, and far below what a mask is."""


class Silo:
    """A daemon in this process, and the noise that it has drawn: for each answer, part after part."""

    def __init__(self, root, name, noise):
        peers = pins(*(other for other in NAMES if other != name))
        changes = {"allow": {"channels": ["direct", "pairwise"]}, "pairwise": {"peers": peers}, "test": not noise}
        records = records_of(NAMES.index(name), SIZES[NAMES.index(name)], WIDTH)
        self.name, self.drawn = name, []
        self.home, policy = make_home(root / name, records, **changes)
        self.service = SiloService(policy, records, self.home, noise_off=not noise)
        if noise:
            self.service._samplers = Samplers(self._draw, flips=True)
        self.client = LocalClient(self.service)

    def _draw(self, size, sigma):
        part = discrete_gaussian(size, sigma)
        self.drawn[-1] = np.concatenate([self.drawn[-1], part])
        return part

    def enrolled(self, plan):
        return self.client.ask(Propose(plan=self.own(plan)))[0].enrolment

    def own(self, plan):
        return plan.model_copy(update={"silo_index": NAMES.index(self.name)})

    def asked(self, plan, roster, *, round_index=0, attempt=0, value=0.0):
        specs, payload = broadcast_of(plan, value)
        terms = {"round": round_index, "attempt": attempt, "roster": tuple(roster), "arrays": specs}
        return AnswerTogether(study=self.own(plan).study, **terms), payload

    def says(self, plan, roster, **told):
        self.drawn.append(np.zeros(0, np.int64))
        header, body = self.client.ask(*self.asked(plan, roster, **told))
        assert len(body) == 8 * header.coordinates
        return np.frombuffer(body, "<u8")

    def refuses(self, code, plan, roster, **told):
        with pytest.raises(RefusalError) as caught:
            self.says(plan, roster, **told)
        assert caught.value.code == code, caught.value
        return str(caught.value)

    @property
    def debits(self):
        return [entry.data for entry in inspect(self.home.ledger) if entry.kind == "debit"]


@pytest.fixture
def silos(tmp_path, monkeypatch):
    """Four daemons of a test build: their noise is zeros, and everything else as it ships."""
    monkeypatch.setenv(NOISE_OFF, "1")
    made = [Silo(tmp_path, name, noise=False) for name in NAMES]
    yield made
    for silo in made:
        silo.service.close()


def plan_with(among=None, **changes):
    terms = {"silos": NAMES, "records": SIZES, "colluding": 1, "min_silos": 3, "spare_attempts": 2, **(among or {})}
    own = {"pairwise": Pairwise(**terms), "features": (WIDTH,), "everyone": False, **changes}
    return plan_of({"name": "mb-sgd", "sampling": "full", "channel": "pairwise"}, **own)


def rosters(silos, plan):
    return [silo.enrolled(plan) for silo in silos]


def combinations_are_uniform(messages):
    """Whether every sum and difference of these messages is uniform in its bits."""
    for signs in itertools.product((0, 1, 2**64 - 1), repeat=len(messages)):
        if any(signs):
            with np.errstate(over="ignore"):
                mixed = sum(np.uint64(s) * m for s, m in zip(signs, messages, strict=True))
            if not is_uniform(mixed):
                return False
    return True


def test_answers_for_one_sum_add_up_and_nothing_less_does(silos):
    plan = plan_with()
    roster = rosters(silos, plan)
    said = [silo.says(plan, roster) for silo in silos]
    assert np.abs(joined(said)).max() < MOST
    assert np.abs(joined(said)).max() > 0
    assert combinations_are_uniform(said[:3])


TOLD = {
    "a smaller roster": lambda silos, plan, roster: {"roster": roster[1:]},
    "another broadcast": lambda silos, plan, roster: {"value": 0.25},
    "another attempt": lambda silos, plan, roster: {"attempt": 1},
    "another round": lambda silos, plan, roster: {"round_index": 1},
}


@pytest.mark.parametrize("what", TOLD)
def test_silos_that_are_told_different_things_add_up_to_nothing(silos, what):
    plan = plan_with()
    roster = rosters(silos, plan)
    said = [silo.says(plan, roster) for silo in silos[:3]]
    said.append(silos[3].says(plan, **{"roster": roster, **TOLD[what](silos, plan, roster)}))
    assert combinations_are_uniform(said)


def test_silos_of_different_versions_add_up_to_nothing(silos, monkeypatch):
    plan = plan_with()
    roster = rosters(silos, plan)
    said = [silo.says(plan, roster) for silo in silos[:3]]
    monkeypatch.setattr(silo_pairwise, "VERSION", silo_pairwise.VERSION + 1)
    said.append(silos[3].says(plan, roster))
    assert combinations_are_uniform(said)


@pytest.mark.parametrize(
    "changes",
    [{"nonce": "ff"}, {"epsilon": 2.0}, {"delta": 1e-7}, {"among": {"colluding": 2}}, {"among": {"spare_attempts": 3}},
     {"among": {"records": (30, 17, 24, 22)}}, {"among": {"weights": "records"}}],
    ids=str,
)  # fmt: skip
def test_a_silo_takes_no_key_that_was_signed_for_another_plan(silos, changes):
    """Three silos are told one plan and the fourth another: it refuses their keys, and they refuse its key."""
    plan, other = plan_with(), plan_with(**changes)
    roster = rosters(silos, plan)
    if changes.get("among", {}).get("records"):
        # The fourth would notice that its own records are not its own; the first does not.
        strange = silos[0].enrolled(other)
        assert "signed for this plan" in silos[1].refuses("roster", plan, [strange, *roster[1:]])
        return
    strange = silos[3].enrolled(other)
    assert strange.key != roster[3].key
    assert "signed for this plan" in silos[0].refuses("roster", plan, [*roster[:3], strange])
    assert "signed for this plan" in silos[3].refuses("roster", other, [*roster[:3], strange])
    assert not any(silo.debits for silo in silos)


def changed(enrolment, **fields):
    return enrolment.model_copy(update=fields)


def test_rosters_that_lie_are_refused_and_cost_nothing(silos):
    plan = plan_with()
    roster = rosters(silos, plan)
    first, own = silos[0], roster[0]
    outsider = enrolment_of(plan, "stranger", public_key(new_study_key()), Signer(b"s" * 32))
    server = enrolment_of(plan, "b", public_key(new_study_key()), Signer(b"s" * 32))
    wrong = {
        "below the least": roster[:2],
        "a silo twice": [*roster[:3], roster[2]],
        "one's own twice": [own, own, *roster[1:]],
        "without oneself": roster[1:],
        "a silo that the plan does not name": [*roster[:3], outsider],
        "a key of the server's under a silo's name": [own, server, *roster[2:]],
        "a key that nobody signed": [own, changed(roster[1], key=public_key(new_study_key()).hex()), *roster[2:]],
        "a signature of somebody else's": [own, changed(roster[1], signature=roster[2].signature), *roster[2:]],
        "another silo's key as one's own": [own, roster[1], changed(roster[2], key=roster[1].key)],
    }
    for what, told in wrong.items():
        assert first.refuses("roster", plan, told), what
    assert not first.debits


@pytest.mark.parametrize("raw", LOW_ORDER, ids=lambda raw: raw.hex()[:6])
def test_a_colluding_silo_cannot_enrol_a_key_of_low_order(silos, raw):
    """It has signed the key: everybody would know the masks that are shared with it, and it may; but no second silo."""
    plan = plan_with()
    roster = rosters(silos, plan)
    bad = enrolment_of(plan, "b", raw, silos[1].service._signer)
    assert "low order" in silos[0].refuses("roster", plan, [roster[0], bad, *roster[2:]])


def test_a_flipped_top_bit_is_no_second_key(silos):
    plan = plan_with()
    roster = rosters(silos, plan)
    key = bytes.fromhex(roster[2].key)
    twin = enrolment_of(plan, "b", key[:31] + bytes([key[31] | 0x80]), silos[1].service._signer)
    assert "canonical" in silos[0].refuses("roster", plan, [roster[0], twin, roster[2]])


def test_a_copied_key_counts_once(silos):
    """A colluding silo enrols the key of another one as its own: both are refused, and alone it gains nothing."""
    plan = plan_with()
    roster = rosters(silos, plan)
    copied = enrolment_of(plan, "b", bytes.fromhex(roster[2].key), silos[1].service._signer)
    silos[0].refuses("roster", plan, [roster[0], copied, *roster[2:]])
    # Without the true holder nothing cancels: the mask that is shared with the copy is nobody's else.
    said = [silos[0].says(plan, [roster[0], copied, roster[3]]), silos[3].says(plan, [roster[0], copied, roster[3]])]
    assert combinations_are_uniform(said)


def test_a_silo_that_enrols_two_keys_for_one_study_gains_nothing(silos):
    """Two silos are told one key of a colluder and the third another; it takes off all masks that it knows."""
    plan, colluder = plan_with(), silos[1].service._signer
    honest = rosters([silos[0], *silos[2:]], plan)
    secrets = [new_study_key() for _ in range(2)]
    told = [[*honest, enrolment_of(plan, "b", public_key(secret), colluder)] for secret in secrets]

    def without_its_masks(silo, which, attempt):
        header, body = silo.client.ask(*silo.asked(plan, told[which], attempt=attempt))
        members = [member_of(plan, one, one.identity) for one in told[which]]
        pair = in_order([one for one in members if one.silo in ("b", silo.name)], members[-1])
        known = masks_of(secrets[which], pair, bytes.fromhex(header.context), header.coordinates)
        with np.errstate(over="ignore"):
            return np.frombuffer(body, "<u8") + known

    others = (silos[0], *silos[2:])
    assert combinations_are_uniform([without_its_masks(silo, w, 0) for silo, w in zip(others, (0, 0, 1), strict=True)])
    # Told the same, the honest silos' sum is left, as it is priced.
    assert np.abs(joined(without_its_masks(silo, 0, 1) for silo in others)).max() < MOST


def test_a_replay_gets_the_stored_answer_and_another_context_none(silos):
    plan = plan_with()
    roster = rosters(silos, plan)
    first = silos[0].says(plan, roster)
    assert (silos[0].says(plan, roster) == first).all()
    for told in ({"roster": roster[:3]}, {"value": 1.0}, {"roster": roster[::-1]}):
        silos[0].refuses("answered", plan, **{"roster": roster, **told})
    assert len(silos[0].debits) == 1


def test_attempts_go_forward_and_are_debited(silos):
    plan = plan_with()
    roster = rosters(silos, plan)
    one = silos[0]
    one.says(plan, roster)
    one.says(plan, roster[:3], attempt=2)
    one.refuses("answered", plan, roster, attempt=1)
    one.refuses("answered", plan, roster, attempt=0)
    one.refuses("attempt", plan, roster, attempt=3)
    one.says(plan, roster, round_index=1)
    one.refuses("answered", plan, roster, round_index=0, attempt=2)
    assert [(d["round"], d.get("attempt", 0)) for d in one.debits] == [(0, 0), (0, 2), (1, 0)]
    assert [d["releases"] for d in one.debits] == [1, 1, 1]


def test_no_more_answers_than_were_reserved(silos):
    """Four rounds and two spare attempts: the seventh answer is refused, whichever it is."""
    plan = plan_with()
    roster = rosters(silos, plan)
    one = silos[0]
    for round_index, attempt in ((0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (3, 0)):
        one.says(plan, roster, round_index=round_index, attempt=attempt)
    one.refuses("exhausted", plan, roster, round_index=3, attempt=1)
    assert len(one.debits) == 6


def test_late_silos_may_join_any_later_attempt(silos):
    plan = plan_with()
    roster = rosters(silos, plan)
    said = [silo.says(plan, roster[:3], attempt=1) for silo in silos[:3]]
    assert np.abs(joined(said)).max() < MOST
    said = [silo.says(plan, roster, round_index=2) for silo in silos]
    assert np.abs(joined(said)).max() < MOST


def test_a_round_without_a_roster_is_refused(silos):
    plan = plan_with()
    rosters(silos, plan)
    specs, payload = broadcast_of(plan)
    with pytest.raises(RefusalError, match="expected a roster"):
        silos[0].client.ask(Answer(study=silos[0].own(plan).study, round=0, arrays=specs), payload)
    direct = plan_of({"name": "mb-sgd", "sampling": "full"}, features=(WIDTH,))
    silos[0].client.ask(Propose(plan=direct))
    specs, payload = broadcast_of(direct)
    told = {"round": 0, "attempt": 0, "roster": tuple(rosters(silos, plan)), "arrays": specs}
    with pytest.raises(RefusalError, match="expected a roster"):
        silos[0].client.ask(AnswerTogether(study=direct.study, **told), payload)


def test_a_peer_that_the_owner_no_longer_pins_is_refused_at_once(silos):
    plan = plan_with()
    roster = rosters(silos, plan)
    one = silos[0]
    changes = {"allow": {"channels": ["direct", "pairwise"]}, "test": True}
    tree = policy_tree("a", **changes, pairwise={"peers": pins("b", "c")})
    (one.home.folder / "policy.toml").write_text(tomli_w.dumps(tree))
    assert one.refuses("not-allowed", plan, roster)
    assert not one.debits


def test_a_finished_study_has_no_key(silos):
    plan = plan_with()
    rosters(silos, plan)
    silos[0].client.ask(Finish(study=silos[0].own(plan).study))
    with pytest.raises(RefusalError, match="ended"):
        silos[0].enrolled(plan)


def test_a_test_build_and_a_real_silo_add_up_to_nothing(silos, tmp_path):
    plan = plan_with()
    real = Silo(tmp_path / "real", "d", noise=True)
    roster = [*rosters(silos[:3], plan), real.enrolled(plan)]
    said = [silo.says(plan, roster) for silo in (*silos[:3], real)]
    assert combinations_are_uniform(said)
    real.service.close()


# With noise.


@pytest.fixture
def loud(tmp_path):
    made = [Silo(tmp_path, name, noise=True) for name in NAMES]
    yield made
    for silo in made:
        silo.service.close()


def spread(noise):
    """The standard deviation, in units of the sensitivity of the sum."""
    return np.std(np.asarray(noise, float)) / (2 * BOUND)


def test_without_those_that_collude_the_noise_is_as_priced(loud):
    """What c colluders leave when they take off all they know; with more of them the plan says what is left."""
    plan = plan_with()
    roster = rosters(loud, plan)
    [z] = loud[0].client.ask(Propose(plan=plan))[0].noise_multipliers.values()
    for attempt in range(3):
        told = roster if attempt < 2 else roster[:3]
        for silo in loud[: len(told)]:
            silo.says(plan, told, attempt=attempt)
    wide = 1 + 5 / math.sqrt(2 * WIDTH)
    for silos, attempt in ((loud, 0), (loud, 1), (loud[:3], 2)):
        honest = [silo.drawn[attempt] for silo in silos[1:]]
        assert z / wide < spread(sum(honest)) < z * wide
        share = share_multiplier(z, len(silos), 1)
        assert share * math.sqrt(len(silos) - 2) / wide < spread(sum(honest[1:])) < share * wide * 2
    # Noise is fresh in every attempt.
    for silo in loud[:3]:
        assert len({drawn.tobytes() for drawn in silo.drawn}) == 3


def test_the_same_batch_is_never_used_for_two_attempts(loud):
    """Sampled batches are drawn anew: two attempts of one round read different records."""
    plan = plan_with().model_copy(
        update={"algorithm": {**plan_with().algorithm, "sampling": "wor", "batch_size": 5}, "nonce": "1a"}
    )
    roster = rosters(loud, plan)
    worker = loud[0].service._worker(loud[0].service._opened(), plan.study)
    seen = []
    original = worker._batches
    worker._batches = lambda *args: seen.append(original(*args)) or seen[-1]
    for attempt in range(3):
        loud[0].says(plan, roster, attempt=attempt)
    assert len({batch.rows[batch.present].tobytes() for [batch] in seen}) > 1


# The owner's policy.


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"colluding": 0}, "greater than or equal to 1"),
        ({"colluding": 3}, "others must add noise"),
        ({"min_silos": 1}, "greater than or equal to 2"),
        ({"peers": {}}, "at least 1"),
        ({"peers": {**pins("b"), "c": pins("b")["b"]}}, "one key under two names"),
        ({"peers": pins("a", "b")}, "which is this one"),
        ({"peers": {"b": "ed25519:AAAA"}}, "pairwise.peers"),
    ],
)
def test_policies_that_promise_nothing_are_refused(section, said):
    tree = policy_tree("a", allow={"channels": ["pairwise"]}, pairwise={"peers": pins("b", "c"), **section})
    with pytest.raises(PolicyError, match=said):
        policy_from(tree)


def test_the_channel_needs_its_section():
    with pytest.raises(PolicyError, match="pairwise"):
        policy_from(policy_tree("a", allow={"channels": ["pairwise"]}))


def test_an_owner_may_count_on_fewer_than_the_plan_does(silos):
    """Who fears two colluders does not consent to a plan that counts on one."""
    one = silos[0]
    changes = {"allow": {"channels": ["direct", "pairwise"]}, "test": True}
    tree = policy_tree("a", **changes, pairwise={"peers": pins("b", "c", "d"), "colluding": 2})
    (one.home.folder / "policy.toml").write_text(tomli_w.dumps(tree))
    with pytest.raises(RefusalError, match="2 silos may collude"):
        one.enrolled(plan_with())
    assert one.enrolled(plan_with({"colluding": 2})) is not None
