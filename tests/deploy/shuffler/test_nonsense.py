"""A silo that contributes nonsense is named or counts as zero, and everybody else's round goes on."""

import os

import jax.numpy as jnp
import numpy as np
import pytest

from tacit.algorithm import Release, Silo
from tacit.channel.sealing import Binding, new_secret, seal
from tacit.channel.shuffled_reports import mean_of_reports, report_terms
from tacit.deploy.shuffler.client import LeftOutError, _collect, mixed_reports, sum_over
from tacit.deploy.shuffler.deposits import Sender, _frame, check_deposit, header_of, report_deposit, sum_deposits
from tacit.deploy.shuffler.messages import Relay
from tacit.deploy.wire import RefusalError, frame
from tacit.silo.release import usable_clips
from tests.deploy.shuffler.parties import signers, two_desks, wrapped

BINDING = Binding(b"c" * 32, 0, b"h" * 32)
SERVER = new_secret()
SILOS = signers(4)
HONEST = ("s0", "s1")


@pytest.fixture
def desks(tmp_path):
    with two_desks(tmp_path, SILOS) as found:
        yield found


def sender_like(silo):
    return Sender(silo, int(silo[1]), 2)


def shares(desks, names=HONEST, length=4):
    keys = {name: desk.seal for name, desk in desks.items()}
    found = {}
    for silo in names:
        made = sum_deposits(np.arange(length), sender_like(silo), SILOS[silo], BINDING, shufflers=keys)
        found[silo] = dict(zip(keys, made, strict=True))
    return found


def short_share(desk, silo="s2"):
    """As long as the others' outside, and one number inside."""
    header = header_of("sum", desk.service.terms.name, BINDING, sender_like(silo))
    inside = np.ones(1, "<u8").tobytes()
    return _frame(header, [seal(inside, [desk.seal], header.binding, size=32)], SILOS[silo])


def reports(desks, names=HONEST):
    keys = {name: desk.seal for name, desk in desks.items()}
    common = {"size": 9, "shufflers": keys, "server": SERVER.public}
    found = {}
    for silo in names:
        own = [f"{silo}-{i}".encode() for i in range(3)]
        found[silo] = report_deposit(own, sender_like(silo), SILOS[silo], BINDING, **common)
    return found


def deposit_of(desks, insides, silo="s2"):
    """A deposit whose outer layers are right, around anything."""
    header = header_of("reports", "a", BINDING, sender_like(silo))
    return _frame(header, [wrapped(inside, desks["a"].seal, header.binding) for inside in insides], SILOS[silo])


def inner(desks, report):
    """What the first shuffler finds in a good report."""
    keys = [*(desk.seal for desk in list(desks.values())[1:]), SERVER.public]
    return seal(report, keys, BINDING, size=9, first=1)


def said(*names):
    return sorted(f"{silo}-{i}".encode() for silo in names for i in range(3))


def test_a_share_that_is_shorter_inside_is_refused_alone(desks):
    alone = {"a": desks["a"]}
    made = shares(alone)
    with pytest.raises(LeftOutError, match=r"^s2: size") as caught:
        sum_over(alone, {**made, "s2": {"a": short_share(desks["a"])}}, BINDING)
    assert set(caught.value.reasons) == {"s2"}
    assert caught.value.is_open
    assert sum_over(alone, made, BINDING).tolist() == [0, 2, 4, 6]


def test_a_report_that_a_silo_brings_twice_is_refused_alone(desks):
    first, twice = desks["a"], inner(desks, b"z")
    made = reports(desks)
    bad = deposit_of(desks, [twice, twice])
    with pytest.raises(LeftOutError, match=r"^s2: twice"):
        mixed_reports(list(desks.values()), [(BINDING, {**made, "s2": bad})], SERVER)
    assert not first.released
    [found] = mixed_reports(list(desks.values()), [(BINDING, made)], SERVER)
    assert sorted(found) == said(*HONEST)


def test_a_report_that_two_silos_share_is_there_once_and_takes_none_away(desks):
    shared = inner(desks, b"z")
    made = reports(desks) | {
        "s2": deposit_of(desks, [shared, inner(desks, b"y")]),
        "s3": deposit_of(desks, [shared], "s3"),
    }
    [found] = mixed_reports(list(desks.values()), [(BINDING, made)], SERVER)
    assert sorted(found) == sorted([*said(*HONEST), b"y", b"z"])


def test_what_does_not_open_for_the_server_counts_as_zero(desks):
    alone = {"a": desks["a"]}
    good = inner(alone, b"z" * 9)
    unpadded = wrapped(b"\xff" * 13, SERVER.public, BINDING, 1)
    bad = deposit_of(alone, [os.urandom(len(good)), unpadded])
    [found] = mixed_reports([desks["a"]], [(BINDING, {**reports(alone), "s2": bad})], SERVER)
    assert sorted(found) == sorted([*said(*HONEST), b"", b""])


@pytest.mark.parametrize("nonsense", [b"", b"short", bytes(8) + b"\x02", bytes(8) + b"\xff"])
def test_nonsense_moves_no_sum(nonsense):
    silo = Silo(lambda w, r: r, Release(lambda w: 1.0, 0.5, None, "full", channel="shuffled-reports"))
    terms = {"": report_terms(0.5, 3)}
    report = (7).to_bytes(8, "big") + b"\x01"
    one, both = (
        mean_of_reports({"": some}, usable_clips(silo.release, None), jnp.zeros(3), terms, each=0.5)
        for some in ([report], [report, nonsense])
    )
    assert np.abs(one).max() > 0
    np.testing.assert_array_equal(both, one)


def test_what_does_not_open_for_a_later_shuffler_is_left_out_there_and_counts_as_zero(desks):
    again = seal(b"z", [SERVER.public], BINDING, size=9, first=2)
    second = desks["b"].seal
    # Two layers of the second shuffler around one report, which only it can see to be the same.
    pair = [wrapped(again, second, BINDING, 1) for _ in range(2)]
    bad = deposit_of(desks, [os.urandom(len(pair[0])), *pair])
    [found] = mixed_reports(list(desks.values()), [(BINDING, {**reports(desks), "s2": bad})], SERVER)
    assert sorted(found) == sorted([*said(*HONEST), b"z", b"", b""])


def test_a_later_shuffler_mixes_no_fewer_reports_than_silos_were_asked_for(desks):
    length = len(inner(desks, b"z"))
    made = {silo: deposit_of(desks, [os.urandom(length)], silo) for silo in ("s1", "s2")}
    made["s0"] = deposit_of(desks, [inner(desks, b"z")], "s0")
    with pytest.raises(RefusalError) as caught:
        mixed_reports(list(desks.values()), [(BINDING, made)], SERVER)
    assert (caught.value.code, caught.value.numbers) == ("too-few", {"reports": 1.0, "min_silos": 2.0})
    assert not desks["b"].released


def test_a_shuffler_that_sends_a_report_twice_gets_nothing_mixed(desks):
    """It would know the report again behind the next one, which is what a replay is for."""
    first, made = desks["a"], reports(desks)
    for raw in made.values():
        first.send(raw)
    header, payload = first.ask(_collect(BINDING, list(made), "reports"))
    assert isinstance(header, Relay)
    doubled = payload[: -header.size] + payload[: header.size]
    forged = header.signed(first.service._keys.sign, doubled)
    with pytest.raises(RefusalError, match="twice"):
        desks["b"].ask(forged, doubled)
    assert not desks["b"].released


def test_a_share_that_is_good_for_one_shuffler_only_stops_no_sum(desks):
    made = shares(desks, ("s0", "s1", "s2"))
    made["s2"]["b"] = short_share(desks["b"])
    with pytest.raises(LeftOutError) as caught:
        sum_over(desks, made, BINDING)
    assert set(caught.value.reasons) == {"s2"}
    assert caught.value.is_open
    assert [desk.released for desk in desks.values()] == [0, 0]
    rest = {silo: made[silo] for silo in HONEST}
    assert sum_over(desks, rest, BINDING).tolist() == [0, 2, 4, 6]
    # One set, once, at each of them: the other set would give away the difference.
    for desk in desks.values():
        with pytest.raises(RefusalError) as late:
            desk.ask(_collect(BINDING, ["s0", "s1", "s2"], "sum"))
        assert late.value.code == "round"
    assert sum_over(desks, rest, BINDING).tolist() == [0, 2, 4, 6]


def test_once_a_shuffler_has_released_nobody_is_left_out(desks):
    made = shares(desks, ("s0", "s1", "s2"))
    for own in made.values():
        desks["a"].send(own["a"])
    desks["a"].ask(_collect(BINDING, list(made), "sum"))
    bad = {**made, "s2": {**made["s2"], "b": short_share(desks["b"])}}
    with pytest.raises(LeftOutError) as caught:
        sum_over(desks, bad, BINDING)
    assert not caught.value.is_open
    assert sum_over(desks, made, BINDING).tolist() == [0, 3, 6, 9]


def test_a_shuffler_that_takes_nothing_is_not_known_to_be_open(desks):
    with pytest.raises(LeftOutError) as caught:
        sum_over(desks, {"s2": {name: short_share(desk) for name, desk in desks.items()}}, BINDING)
    assert not caught.value.is_open


def test_only_the_deposit_that_the_plan_has_is_carried_to_a_shuffler(desks):
    raw = shares(desks)["s0"]["a"]
    size = len(seal(bytes(32), [desks["a"].seal], BINDING, size=32))
    expected = header_of("sum", "a", BINDING, sender_like("s0")).model_copy(update={"size": size})
    check_deposit(raw, expected)
    smuggled = frame(_collect(BINDING, ["s0", "s1"], "sum").model_dump_json())
    for bad, reason in (
        (smuggled, "a deposit"),
        (raw + smuggled, "one frame"),
        (b"", "one frame"),
        (raw[:-1], "frame"),
    ):
        with pytest.raises(RefusalError, match=reason):
            check_deposit(bad, expected)
    for field, value in (
        ("silo_index", 1),
        ("min_silos", 4),
        ("count", 2),
        ("round", 1),
        ("shuffler", "b"),
        ("mode", "reports"),
    ):
        with pytest.raises(RefusalError, match=field):
            check_deposit(raw, expected.model_copy(update={field: value}))
