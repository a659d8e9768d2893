"""A round goes on without silos whose contributions shufflers do not take, as long as none has released it."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.channel.sealing import Binding
from tacit.deploy.server.checkpoint import Checkpoint, load_checkpoint
from tacit.deploy.server.coordinator import Coordinator, Patience, StalledError, fresh_state
from tacit.deploy.server.shuffles import Reports, Sums, cut, frames_of
from tacit.deploy.shuffler.client import LeftOutError, _collect, sum_over
from tacit.deploy.shuffler.deposits import Sender, header_of, sum_deposits
from tacit.deploy.silo.shuffled import Sealer
from tacit.deploy.wire import Answer, RefusalError, Sealed, broadcast_digest, write_arrays
from tacit.plans.assemble import coordinates
from tacit.simulate.participation import participation
from tests.deploy.server.world import KEY, NAMES, SIZES, plan_like
from tests.deploy.shuffler.parties import signers, two_desks

BOUND, DIGEST = b"c" * 32, b"h" * 32
SILOS = signers(4)
BINDING = Binding(BOUND, 0, DIGEST)


@pytest.fixture
def desks(tmp_path):
    with two_desks(tmp_path, SILOS) as found:
        yield found


class Adding:
    """Real shufflers in this process; of the sum it only remembers whose it was."""

    def __init__(self, desks, shape):
        self._desks, self._shape, self.sums, self.asked = desks, shape, [], []

    def carries(self, kind):
        return True

    def check(self, consents):
        pass

    def mean(self, kind, number, digest, broadcast, answers):
        self.asked.append(tuple(sorted(answers)))
        frames = {silo: cut(*answer) for silo, answer in answers.items()}
        self.sums.append(sum_over(self._desks, frames, BINDING).tolist())
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self._shape)


def answers_of(desks):
    """Sealed answers of all silos."""
    keys, found = {name: desk.seal for name, desk in desks.items()}, {}
    for silo_index, silo in enumerate(NAMES):
        sender = Sender(silo, silo_index, 3)
        first, second = sum_deposits(np.arange(3), sender, SILOS[silo], BINDING, shufflers=keys)
        lengths = {"a": len(first), "b": len(second)}
        found[silo] = (Sealed(study="s", round=0, silo=silo, deposits=lengths), first + second)
    return found


def spoilt(answers, *silos):
    """Some are good for the first shuffler and bad for the second."""
    return answers | {
        silo: (said, body[:-1] + bytes([body[-1] ^ 1])) for silo, (said, body) in answers.items() if silo in silos
    }


def conductor_of(desks, folder, events):
    seals = {name: str(desk.seal) for name, desk in desks.items()}
    plan = plan_like(seals, min_silos=3, everyone=False)
    point = Checkpoint(plan, NAMES, SIZES, fresh_state(plan, SIZES))
    shuffled = Adding(desks, None)
    coordinator = Coordinator(
        point,
        folder / "checkpoint.npz",
        None,
        {},
        who=participation(4, (3, 4)),
        patience=Patience(1.0, 1.0),
        shuffled=shuffled,
        tell=lambda event, facts: events.append((event, facts)),
    )
    shuffled._shape = coordinator._shapes.messages["gradient"]
    return coordinator, shuffled


def test_a_round_goes_on_without_the_silo_that_is_named(desks, tmp_path):
    events = []
    coordinator, shuffled = conductor_of(desks, tmp_path, events)
    coordinator._answers = lambda *_: spoilt(answers_of(desks), "s2")
    coordinator._play(0)
    assert shuffled.asked == [NAMES, ("s0", "s1", "s3")]
    assert shuffled.sums == [[0, 3, 6]]
    [row] = coordinator.point.history
    assert (row["silos"], row["left_out"]) == (["s0", "s1", "s3"], ["s2"])
    [told] = [facts for event, facts in events if event == "refusal"]
    assert (told["silo"], told["text"].split(":")[0]) == ("s2", "forged")
    assert coordinator.point.round == 1


def test_the_smaller_set_is_settled_before_shufflers_are_asked_for_it(desks, tmp_path):
    """A server that is killed then asks for the same set again, which is the only one that is ever released."""
    coordinator, shuffled = conductor_of(desks, tmp_path, [])
    answers = spoilt(answers_of(desks), "s2")
    _, kept = coordinator._mixed("gradient", 0, DIGEST, None, answers)
    point = load_checkpoint(tmp_path / "checkpoint.npz", fresh_state)
    assert set(point.decided) == set(point.answers) == set(kept) == {"s0", "s1", "s3"}
    coordinator._mixed("gradient", 0, DIGEST, None, kept)
    assert shuffled.sums == [[0, 3, 6]] * 2
    assert [desk.released for desk in desks.values()] == [1, 1]


def test_where_too_few_are_left_the_round_stays_shut_and_can_be_played_later(desks, tmp_path):
    coordinator, shuffled = conductor_of(desks, tmp_path, [])
    good = answers_of(desks)
    with pytest.raises(StalledError, match=r"needs 3 silos.*s1: forged.*s2: forged") as caught:
        coordinator._mixed("gradient", 0, DIGEST, None, spoilt(good, "s1", "s2"))
    assert not caught.value.final
    assert [desk.released for desk in desks.values()] == [0, 0]
    assert coordinator.point.decided is coordinator.point.answers is None
    # One of the two has been mended; silos say again what they said.
    coordinator._mixed("gradient", 0, DIGEST, None, spoilt(good, "s2"))
    assert shuffled.sums == [[0, 3, 6]]


def test_nobody_is_left_out_of_a_round_that_a_shuffler_has_released(desks, tmp_path):
    coordinator, shuffled = conductor_of(desks, tmp_path, [])
    good = answers_of(desks)
    frames = {silo: cut(*answer) for silo, answer in good.items()}
    for own in frames.values():
        desks["a"].send(own["a"])
    desks["a"].ask(_collect(BINDING, NAMES, "sum"))
    with pytest.raises(StalledError, match=r"was settled with 4 silos.*s2: forged"):
        coordinator._mixed("gradient", 0, DIGEST, None, spoilt(good, "s2"))
    assert coordinator.point.decided == NAMES
    assert coordinator.point.answers is None
    # The silo still has what it said.
    coordinator._mixed("gradient", 0, DIGEST, None, good)
    assert shuffled.sums == [[0, 4, 8]]


def test_other_refusals_leave_what_was_settled_as_it_is(desks, tmp_path):
    coordinator, shuffled = conductor_of(desks, tmp_path, [])

    def mean(*_):
        raise RefusalError("too-few", "expected more")

    shuffled.mean = mean
    with pytest.raises(RefusalError, match="expected more"):
        coordinator._mixed("gradient", 0, DIGEST, None, answers_of(desks))
    assert coordinator.point.decided == NAMES
    assert set(coordinator.point.answers) == set(NAMES)


def test_answers_that_are_not_what_the_plan_has_are_named_and_others_kept(desks):
    answers = answers_of(desks)
    size = len(cut(*answers["s0"])["a"].split(b"}", 1)[1])

    def expected(silo, shuffler):
        header = header_of("sum", shuffler, BINDING, Sender(silo, NAMES.index(silo), 3))
        return header.model_copy(update={"size": size})

    said, body = answers["s1"]
    answers["s1"] = (said, body[:-1])
    said, body = answers["s2"]
    answers["s2"] = (said.model_copy(update={"deposits": {"a": len(body)}}), body)
    answers["s3"] = answers["s0"]
    frames, reasons = frames_of(answers, ["a", "b"], expected)
    assert set(frames) == {"s0"}
    assert {silo: reason.split(":")[0] for silo, reason in reasons.items()} == dict.fromkeys(
        ("s1", "s2", "s3"), "bad-message"
    )
    assert "silo=s3" in reasons["s3"]


def sealed_by(name, silo_index, plan, shuffled, request, payload):
    """The answer of a silo at an index of the plan, by the daemon's own functions."""
    own, sealer = plan.model_copy(update={"silo_index": silo_index}), Sealer(name, SILOS[name], noise=True)
    if plan.shuffle.server is None:
        share = np.arange(coordinates(shuffled._shapes.messages["gradient"]))
        header, body = sealer.share(own, shuffled.terms, request, payload, share)
    else:
        reports = {"": [os.urandom(8) + b"\x01" for _ in range(SIZES[silo_index])]}
        header, body = sealer.reports(own, shuffled.streams, request, payload, reports, shuffled._algorithm)
    return Sealed.model_validate_json(header), body


@pytest.mark.parametrize("server", [None, str(KEY.public)], ids=["sums", "reports"])
def test_what_silos_seal_is_what_the_server_expects_and_another_place_is_named(desks, server):
    plan = plan_like(
        {name: str(desk.seal) for name, desk in desks.items()}, min_silos=3, everyone=False, epsilon=6.0, server=server
    )
    shuffled = Sums(plan, NAMES, desks) if server is None else Reports(plan, NAMES, desks, KEY)
    specs, payload = write_arrays([np.zeros(2)])
    request, digest = Answer(study=plan.study, round=0, arrays=specs), broadcast_digest(specs, payload)
    common = (plan, shuffled, request, payload)
    # The last silo takes the first one's place.
    silo_indices = {"s0": 0, "s1": 1, "s2": 2, "s3": 0}
    answers = {name: sealed_by(name, silo_index, *common) for name, silo_index in silo_indices.items()}
    with pytest.raises(LeftOutError) as caught:
        shuffled.mean("gradient", 0, digest, None, answers)
    assert caught.value.reasons == {"s3": "bad-message: expected silo_index=3 in its deposit"}
    assert caught.value.is_open
    assert not any(desk.released for desk in desks.values())
    found = shuffled.mean("gradient", 0, digest, None, {name: answers[name] for name in NAMES[:3]})
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(found))
    assert desks["a"].released == desks["b"].released == 1
