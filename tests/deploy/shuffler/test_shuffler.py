"""Shufflers over real sockets: what they release, what they refuse, and what they forget."""

import ssl
from collections import Counter

import numpy as np
import pytest

from tacit.channel.sealing import Binding, SealError, new_secret, open_layer
from tacit.deploy.consortium.certificates import Authority
from tacit.deploy.shuffler.client import Caller, _collect, greet, mixed_reports, sum_over
from tacit.deploy.shuffler.config import ShufflerError
from tacit.deploy.shuffler.deposits import Sender, report_deposit, sum_deposits
from tacit.deploy.shuffler.messages import Deposit, parse_request, sender_of
from tacit.deploy.shuffler.service import ShufflerService
from tacit.deploy.signing import Signer, new_signing_key
from tacit.deploy.wire import RefusalError, frame
from tests.deploy.shuffler.parties import CALLER, Party, signers

BINDING = Binding(b"c" * 32, 0, b"h" * 32)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def silos():
    return signers(4)


@pytest.fixture
def two(tmp_path, authority, silos):
    first = Party(tmp_path / "a", authority, silos)
    second = Party(tmp_path / "b", authority, silos, layer=1, before={"a": first.keys.sign.public})
    yield [first, second]
    for party in (first, second):
        party.stop()


def shares(parties, silos, vectors, binding=BINDING, min_silos=2):
    keys = {party.terms.name: party.keys.seal.public for party in parties}
    found = {}
    for name, vector in vectors.items():
        sender = Sender(name, int(name[1:]), min_silos)
        found[name] = dict(zip(keys, sum_deposits(vector, sender, silos[name], binding, shufflers=keys), strict=True))
    return found


def reports_of(parties, silos, server, binding=BINDING, min_silos=2, size=16, names=("s0", "s1", "s2")):
    keys = {party.terms.name: party.keys.seal.public for party in parties}
    return {
        name: report_deposit(
            [f"{name}-{i}".encode() for i in range(3)],
            Sender(name, int(name[1:]), min_silos),
            silos[name],
            binding,
            size=size,
            shufflers=keys,
            server=server.public,
        )
        for name in names
    }


def refused(caller, raw):
    with pytest.raises(RefusalError) as caught:
        caller.send(raw) if isinstance(raw, bytes) else caller.ask(raw)
    return caught.value.code


def test_two_aggregating_shufflers_open_the_sum_and_neither_sees_a_share(two, silos):
    rng = np.random.default_rng(0)
    vectors = {name: rng.integers(-(10**12), 10**12, 5) for name in silos}
    callers = {party.terms.name: party.caller() for party in two}
    made = shares(two, silos, vectors)
    assert sum_over(callers, made, BINDING).tolist() == sum(vectors.values()).tolist()
    for party in two:
        assert greet(party.caller()).name == party.terms.name


def test_what_one_shuffler_opens_of_a_share_is_uniform(two, silos):
    """The top bytes of what each shuffler sees, over many splittings of the same small share, are spread evenly."""
    seen = {party.terms.name: [] for party in two}
    for _ in range(300):
        made = shares(two, silos, {"s0": np.zeros(4, np.int64)})["s0"]
        for party in two:
            raw = made[party.terms.name]
            head = int.from_bytes(raw[4:8], "big")
            bound = parse_request(raw[8 : 8 + head]).binding
            opened = open_layer(raw[8 + head :], party.keys.seal, bound, layer=0)
            seen[party.terms.name] += list(np.frombuffer(opened[4:], "<u8") >> np.uint64(60))
    for values in seen.values():
        counts = np.bincount(np.asarray(values, int), minlength=16)
        expected = len(values) / 16
        assert ((counts - expected) ** 2 / expected).sum() < 50  # chi-squared, 15 degrees: 1e-5


def test_a_cascade_delivers_every_report_once_in_another_order(two, silos):
    server = new_secret()
    orders = Counter()
    for number in range(6):
        binding = BINDING._replace(round=number)
        made = reports_of(two, silos, server, binding)
        [found] = mixed_reports([party.caller() for party in two], [(binding, made)], server)
        assert sorted(found) == sorted(f"s{i}-{j}".encode() for i in range(3) for j in range(3))
        orders[tuple(found)] += 1
    assert len(orders) == 6  # nine reports have 362880 orders


def test_the_hybrid_suite_works_the_same(tmp_path, authority, silos):
    party = Party(tmp_path / "pq", authority, silos, kind="mlkem768-x25519")
    server = new_secret("mlkem768-x25519")
    made = reports_of([party], silos, server)
    assert len(mixed_reports([party.caller()], [(BINDING, made)], server)[0]) == 9
    party.stop()


def test_too_few_silos_get_nothing_and_the_silos_own_minimum_counts(two, silos):
    vectors = {name: np.ones(2, np.int64) for name in ("s0", "s1")}
    caller = two[0].caller()
    made = shares(two, silos, vectors, min_silos=3)
    for frames in made.values():
        caller.send(frames["a"])
    assert refused(caller, _collect(BINDING, ["s0", "s1"], "sum")) == "too-few"
    # A third silo makes it enough, also for those that asked for three.
    made = shares(two, silos, {"s2": np.ones(2, np.int64)})
    caller.send(made["s2"]["a"])
    caller.ask(_collect(BINDING, ["s0", "s1", "s2"], "sum"))


def test_a_round_is_released_once_and_in_one_way_also_after_a_crash(two, silos):
    vectors = {name: np.arange(3) for name in silos}
    party, made = two[0], shares(two, silos, vectors)
    caller = party.caller()
    for frames in made.values():
        caller.send(frames["a"])
    request = _collect(BINDING, list(silos), "sum")
    first = caller.ask(request)
    caller.close()
    party.restart()
    caller = party.caller()
    assert caller.ask(request) == first
    # Another set of silos for the same round would give away the difference.
    assert refused(caller, made["s0"]["a"]) == "round"
    assert refused(caller, _collect(BINDING, ["s0", "s1", "s2"], "sum")) == "round"


def test_contributions_are_forgotten_and_can_be_handed_in_again(two, silos):
    vectors = {name: np.arange(3) for name in silos}
    party, made = two[0], shares(two, silos, vectors)
    caller = party.caller()
    for frames in made.values():
        caller.send(frames["a"])
    caller.close()
    party.restart()
    callers = {name: p.caller() for name, p in zip("ab", two, strict=True)}
    assert refused(callers["a"], _collect(BINDING, list(silos), "sum")) == "missing"
    assert sum_over(callers, made, BINDING).tolist() == [0, 4, 8]
    assert not party.service._piles


def test_a_silo_contributes_once(two, silos):
    caller = two[0].caller()
    one = shares(two, silos, {"s0": np.ones(2, np.int64)})["s0"]["a"]
    other = shares(two, silos, {"s0": np.ones(2, np.int64)})["s0"]["a"]
    assert caller.send(one)[0].silos == 1
    assert caller.send(one)[0].silos == 1
    assert refused(caller, other) == "twice"
    assert refused(caller, _collect(BINDING, ["s0", "s0"], "sum")) == "too-few"


def test_unknown_silos_false_names_and_changed_bytes_are_refused(two, silos):
    caller = two[0].caller()
    stranger = {"s9": Signer(new_signing_key())}
    assert refused(caller, shares(two, stranger, {"s9": np.ones(2, np.int64)})["s9"]["a"]) == "unknown-silo"
    pretender = {"s0": Signer(new_signing_key())}
    assert refused(caller, shares(two, pretender, {"s0": np.ones(2, np.int64)})["s0"]["a"]) == "forged"
    good = shares(two, silos, {"s0": np.ones(2, np.int64)})["s0"]["a"]
    assert refused(caller, good[:-1] + bytes([good[-1] ^ 1])) == "forged"
    assert refused(caller, shares(two, silos, {"s0": np.ones(2, np.int64)})["s0"]["b"]) == "unknown-shuffler"
    assert refused(caller, frame('{"type": "open sesame"}')) == "bad-message"


def test_a_report_of_another_size_is_released_with_no_others_and_keeps_none_out(two, silos):
    """Whoever comes first does not decide: a silo with reports of an odd size is named, and the others go on."""
    server, caller = new_secret(), two[0].caller()
    caller.send(reports_of(two, silos, server, names=("s2",), size=17)["s2"])
    made = reports_of(two, silos, server, names=("s0", "s1"))
    for raw in made.values():
        caller.send(raw)
    with pytest.raises(RefusalError, match=r"^s2: reports of another size"):
        caller.ask(_collect(BINDING, ["s0", "s1", "s2"], "reports"))
    assert len(mixed_reports([party.caller() for party in two], [(BINDING, made)], server)[0]) == 6
    with pytest.raises(SealError, match="at most 2 bytes"):
        reports_of(two, silos, server, names=("s1",), size=2)


def test_all_or_none_of_a_silos_reports(two, silos):
    """One report sealed for another round among good ones, correctly signed: nothing of the silo is taken."""
    from tacit.channel.sealing import seal

    server, caller = new_secret(), two[0].caller()
    route = [party.keys.seal.public for party in two] + [server.public]
    bound = BINDING._replace(sender=sender_of("reports", "s0", 0, "a"))
    blobs = [seal(b"x", route, bound, size=16) for _ in range(2)]
    blobs.append(seal(b"x", route, bound._replace(round=1), size=16))
    terms = {"consortium": "63" * 32, "round": 0, "broadcast": "68" * 32}
    header = Deposit(
        mode="reports",
        silo="s0",
        silo_index=0,
        shuffler="a",
        min_silos=2,
        count=3,
        size=len(blobs[0]),
        signature="",
        **terms,
    )
    payload = b"".join(blobs)
    assert refused(caller, frame(header.signed(silos["s0"], payload), payload)) == "sealed"
    assert not two[0].service._piles


def test_a_silo_that_was_shown_another_broadcast_is_in_no_batch_with_the_others(two, silos):
    """Tagging: a server that sends one silo a broadcast of its own cannot have its reports among the others'."""
    server, caller = new_secret(), two[0].caller()
    others = reports_of(two, silos, server)
    tagged = reports_of(two, silos, server, BINDING._replace(broadcast=b"t" * 32), names=("s3",))
    for raw in [*others.values(), *tagged.values()]:
        caller.send(raw)
    assert refused(caller, _collect(BINDING, ["s0", "s1", "s2", "s3"], "reports")) == "missing"
    assert refused(caller, _collect(BINDING._replace(broadcast=b"t" * 32), ["s3"], "reports")) == "too-few"
    caller.ask(_collect(BINDING, ["s0", "s1", "s2"], "reports"))
    # And the round is over for the tag too.
    assert refused(caller, _collect(BINDING._replace(broadcast=b"t" * 32), ["s3"], "reports")) == "round"


def test_the_second_shuffler_takes_whole_batches_of_the_first_only(two, silos):
    server = new_secret()
    made = reports_of(two, silos, server)
    first, second = two[0].caller(), two[1].caller()
    for raw in made.values():
        first.send(raw)
    header, payload = first.ask(_collect(BINDING, list(made), "reports"))
    assert refused(second, made["s0"]) == "unknown-shuffler"
    fewer = header.model_copy(update={"count": 8})
    assert refused(second, frame(fewer.model_dump_json(), payload[: -header.size])) == "forged"
    assert refused(second, frame(header.model_dump_json(), payload[::-1])) == "forged"
    forged = header.model_copy(update={"by": "c"})
    assert refused(second, frame(forged.model_dump_json(), payload)) == "layer"
    done = second.ask(header, payload)
    assert second.ask(header, payload) == done


def test_certificates_of_another_authority_get_nowhere(two, tmp_path):
    other = Authority(tmp_path / "other")
    pair = other.issue("caller")
    with pytest.raises(ssl.SSLError):
        Caller(two[0].address(authority=other.certificate), CALLER).send(frame("{}"))
    with pytest.raises(OSError):
        greet(Caller(two[0].address(pair=pair), CALLER))


def test_rubbish_is_answered_and_the_shuffler_lives_on(two):
    rng = np.random.default_rng(3)
    for _ in range(50):
        raw = rng.bytes(int(rng.integers(0, 200)))
        # Signed by a caller, so that it is read.
        header, _ = two[0].caller().exchange(frame(raw, b"xyz"))
        assert b'"error"' in header
    assert greet(two[0].caller()).name == "a"


def test_what_is_never_collected_is_forgotten(tmp_path, authority, silos):
    now = [0.0]
    party = Party(tmp_path / "a", authority, silos, keep_seconds=10.0)
    party.service._clock = lambda: now[0]
    caller = party.caller()
    caller.send(shares([party], silos, {"s0": np.ones(2, np.int64)})["s0"]["a"])
    now[0] = 11.0
    greet(caller)
    assert not party.service._piles
    party.stop()


def test_one_book_has_one_shuffler(tmp_path, authority, silos):
    """Two on one book could release a round twice, and the difference would be one silo's share."""
    party = Party(tmp_path / "a", authority, silos)
    with pytest.raises(ShufflerError, match="held by another"):
        ShufflerService(party.terms, party.keys, tmp_path / "a")
    party.restart()
    party.stop()


def stolen(raw, thief, signer, silo_index=7, **changes):
    """Somebody else's sealed blobs, in a deposit of one's own."""
    head = int.from_bytes(raw[4:8], "big")
    payload = raw[8 + head :]
    header = parse_request(raw[8 : 8 + head]).model_copy(update={"silo": thief, "silo_index": silo_index, **changes})
    return frame(header.signed(signer, payload), payload)


@pytest.mark.parametrize("changes", [{}, {"mode": "reports"}])
def test_a_share_cannot_be_handed_in_by_another_silo(two, silos, changes):
    made = shares(two, silos, {"s0": np.arange(4)}, min_silos=4)["s0"]
    for party in two:
        raw = stolen(made[party.terms.name], "s1", silos["s1"], min_silos=2, **changes)
        assert refused(party.caller(), raw) in ("sealed", "layer")


def test_a_report_cannot_be_handed_in_by_another_silo(two, silos):
    made = reports_of(two, silos, new_secret())["s0"]
    assert refused(two[0].caller(), stolen(made, "s1", silos["s1"])) == "sealed"


def at_place_zero(parties, silos, name):
    keys = {party.terms.name: party.keys.seal.public for party in parties}
    return sum_deposits(np.arange(4), Sender(name, 0, 2), silos[name], BINDING, shufflers=keys)


def test_two_silos_cannot_have_one_place(two, silos):
    """A server that offers several silos the same place would make the crowd smaller than it was priced."""
    caller = two[0].caller()
    for name in ("s0", "s1"):
        caller.send(at_place_zero(two, silos, name)[0])
    assert refused(caller, _collect(BINDING, ["s0", "s1"], "sum")) == "silo-index"


def test_a_silo_that_takes_anothers_place_first_keeps_nobody_out(two, silos):
    """It is left out of the round, which those whose places are their own go on with."""
    for party, raw in zip(two, at_place_zero(two, silos, "s2"), strict=True):
        party.caller().send(raw)
    callers = {party.terms.name: party.caller() for party in two}
    vectors = {name: np.arange(4) for name in ("s0", "s1", "s3")}
    made = shares(two, silos, vectors)
    for frames in made.values():
        callers["a"].send(frames["a"])
    with pytest.raises(RefusalError, match="s0, s2 have all contributed for index 0"):
        callers["a"].ask(_collect(BINDING, list(silos), "sum"))
    assert sum_over(callers, made, BINDING).tolist() == [0, 3, 6, 9]


def test_one_silo_cannot_fill_the_shufflers_memory(tmp_path, authority, silos):
    """Also not with many tiny contributions to rounds that nobody else plays."""
    party = Party(tmp_path / "a", authority, silos, max_bytes=4 * 50_000)
    caller = party.caller()
    codes = []
    for number in range(20):
        made = shares([party], silos, {"s2": np.arange(2)}, BINDING._replace(round=number))
        try:
            caller.send(made["s2"]["a"])
        except RefusalError as refusal:
            codes.append(refusal.code)
    assert set(codes) == {"busy"}
    assert 5 < len(codes) < 15
    for name in ("s0", "s1"):
        caller.send(shares([party], silos, {name: np.arange(4000)})[name]["a"])
    party.stop()
