"""What a steward agrees to in a crowd, and what its contributions are bound to."""

import base64
import dataclasses
import re

import pytest
import tomli_w

from tacit.channel.sealing import SealError, new_secret, public_key
from tacit.deploy.contract import builder_from, record_of, seat_of
from tacit.deploy.server.shuffles import cut
from tacit.deploy.shuffler.messages import parse_request
from tacit.deploy.silo.consent import consider
from tacit.deploy.silo.policy import AllowSection, ShuffleSection
from tacit.deploy.silo.service import NOISE_OFF, SiloService
from tacit.deploy.silo.shuffled import check_shuffle
from tacit.deploy.wire import Answer, Propose, RefusalError, Shuffle
from tacit.plans import price as pricing
from tacit.plans.price import MOST_SIZES, strictest_seats
from tacit.privacy import calibrate
from tacit.privacy.anonymity import colluding_silos
from tests.algorithms.table import PSGM
from tests.deploy.silo.consortium import LocalClient, broadcast_of, make_home, plan_of, policy_tree, records_of

RECORDS = records_of(0, 40)
SEALS = {name: str(new_secret().public) for name in "ab"}
SERVER = str(new_secret().public)
CHANNELS = ["direct", "shuffled-sum", "shuffled-reports"]


def crowd_plan(channel="shuffled-sum", **changes):
    server = SERVER if channel == "shuffled-reports" else None
    terms = {
        "records": (40, 40, 40, 40),
        "min_silos": 4,
        "honest": 1.0,
        "shufflers": SEALS,
        "server": server,
        **changes,
    }
    algorithm = {"name": "mb-sgd", "sampling": "full", "channel": channel, "num_rounds": 2}
    return plan_of(algorithm, shuffle=Shuffle(**terms), epsilon=6.0, silos=len(terms["records"]))


@pytest.fixture
def make(tmp_path):
    made = []

    def one(*, noise_off=False, **changes):
        folder = tmp_path / f"silo{len(made)}"
        shuffle = {"shufflers": SEALS, "colluding": 0, "max_local_epsilon": 8.0}
        allow = {"channels": CHANNELS, **changes.pop("allow", {})}
        home, policy = make_home(folder, RECORDS, shuffle=shuffle, allow=allow, test=noise_off, **changes)
        made.append(SiloService(policy, RECORDS, home, noise_off=noise_off))
        return LocalClient(made[-1])

    yield one
    for service in made:
        service.close()


@pytest.mark.parametrize("channel", ["shuffled-sum", "shuffled-reports"])
def test_a_test_build_is_never_in_a_pile_with_a_real_silo(make, monkeypatch, channel):
    """A shuffler's piles are by ``consortium``: the same plan, round and broadcast must give another one."""
    monkeypatch.setenv(NOISE_OFF, "1")
    plan, piles = crowd_plan(channel), []
    specs, payload = broadcast_of(plan)
    for noise_off in (False, False, True):
        client = make(noise_off=noise_off)
        client.ask(Propose(plan=plan))
        answer = client.ask(Answer(study=plan.study, round=0, arrays=specs), payload)
        (raw, *_) = cut(*answer).values()
        piles.append(parse_request(raw[8 : 8 + int.from_bytes(raw[4:8], "big")]).consortium)
    assert piles[0] == piles[1] != piles[2]


@pytest.mark.parametrize("channel", ["shuffled-sum", "shuffled-reports"])
@pytest.mark.parametrize(
    "sizes", [{"batch_size": [2, 2, 2, 40]}, {"difference_sampling": "wor", "difference_batch_size": [2, 2, 2, 40]}]
)
def test_batches_that_differ_by_silo_are_refused(make, channel, sizes):
    """Each silo would flip the coins of its own batch, and count on those of the largest."""
    plan = crowd_plan(channel)
    own = {"name": "prox-spider", "phase_length": 2, "difference_slope": 1.0, "clip_norm": 1.0, "step_size": 0.1}
    plan = plan.model_copy(update={"algorithm": {**plan.algorithm, **own, **sizes}})
    with pytest.raises(RefusalError):
        make().ask(Propose(plan=plan))


SIZES = (40, *range(45, 85))


def sampled(records=SIZES, silo_index=0, name="mb-sgd", **changes):
    plan = crowd_plan(records=records, min_silos=len(records))
    algorithm = {**plan.algorithm, "name": name, "sampling": "wor", "batch_size": 8}
    return plan.model_copy(update={"algorithm": algorithm, "silo_index": silo_index, **changes})


@pytest.fixture
def priced(monkeypatch):
    """The sizes of silos whose noise is calibrated, one after another."""
    found = []

    def watched(events, **rest):
        found.append(events[0].records)
        return calibrate(events, **rest)

    pricing._calibrated.cache_clear()
    monkeypatch.setattr("tacit.plans.price.calibrate", watched)
    return found


def test_a_plan_with_silos_of_many_sizes_is_priced_for_few(make, priced):
    consent = make().ask(Propose(plan=sampled()))[0]
    assert sorted(priced) == sorted(SIZES)[:MOST_SIZES]
    assert 0.99 * 6.0 < consent.epsilon <= 6.0


def test_silos_of_all_sizes_find_the_same_noise_and_none_pays_more(priced):
    owner = ShuffleSection(shufflers=SEALS, colluding=0)
    allow = AllowSection(algorithms=("mb-sgd",), channels=("shuffled-sum",))
    found = []
    for silo_index in (0, 1, 20, len(SIZES) - 1):
        plan = sampled(silo_index=silo_index)
        found.append(consider(plan, records=SIZES[silo_index], record=record_of(plan), allow=allow, shuffle=owner))
    assert len({tuple(event.noise_multiplier for event in offer.events) for offer in found}) == 1
    prices = [offer.price.epsilon for offer in found]
    assert prices == sorted(prices, reverse=True)
    assert prices[0] <= 6.0


@pytest.mark.parametrize(
    ("code", "allow", "plan"),
    [
        ("not-allowed", {"algorithms": ["local-sgd"]}, sampled()),
        ("not-allowed", {"channels": ["direct"]}, sampled()),
        ("not-allowed", {"min_silos": 100}, sampled()),
        ("busy", {"max_open": 1}, sampled(nonce="02")),
    ],
)
def test_what_the_policy_forbids_is_refused_before_anything_is_priced(make, priced, code, allow, plan):
    client = make(allow=allow, approval={"mode": "manual"})
    if code == "busy":
        client.ask(Propose(plan=crowd_plan()))
        priced.clear()
    with pytest.raises(RefusalError) as caught:
        client.ask(Propose(plan=plan))
    assert caught.value.code == code
    assert priced == []


# Every point of low order on the curve and its twin, among them two that are not written in the shortest way.
LOW = [
    (0).to_bytes(32, "little"),
    (1).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    (2**255 - 20).to_bytes(32, "little"),
    (2**255 - 19).to_bytes(32, "little"),
    (2**255 - 18).to_bytes(32, "little"),
]


@pytest.mark.parametrize("raw", LOW, ids=lambda raw: raw.hex()[:8])
def test_a_key_that_anybody_could_open_is_none(raw):
    text = "x25519:" + base64.b64encode(raw).decode()
    with pytest.raises(SealError, match="low order"):
        public_key(text)
    hybrid = new_secret("mlkem768-x25519").public
    with pytest.raises(SealError, match="low order"):
        public_key(str(dataclasses.replace(hybrid, raw=hybrid.raw[:-32] + raw)))
    assert public_key(str(hybrid)) == hybrid


def test_a_plan_that_seals_reports_to_such_a_key_is_refused_before_it_is_priced(make, priced):
    zero = "x25519:" + base64.b64encode(bytes(32)).decode()
    plan = crowd_plan("shuffled-reports", server=zero)
    with pytest.raises(RefusalError, match="low order") as caught:
        make().ask(Propose(plan=plan))
    assert caught.value.code == "bad-plan"
    assert priced == []


def test_rounds_in_turn_are_priced_for_those_whose_turn_comes_oftenest():
    """Few sizes: each at its first place. Many: as if all came first, which none pays less than."""
    few = report_turns((40, 30, 40, 20))
    unit = builder_from(few, 40).build(noise_multiplier=1.0)
    seats, skipped = strictest_seats(unit, seat_of(few, 40))
    assert [(seat.silo_index, seat.records) for seat in seats] == [(3, 20), (1, 30), (0, 40)]
    assert not skipped
    many = report_turns(tuple(range(60, 40, -1)))
    unit = builder_from(many, 60).build(noise_multiplier=1.0)
    seats, skipped = strictest_seats(unit, seat_of(many, 60))
    assert [(seat.silo_index, seat.records) for seat in seats] == [(0, n) for n in range(41, 41 + MOST_SIZES)]
    assert skipped
    turns = [
        sum(e.count for e in seat_of(many, 60)._replace(silo_index=i).events(unit) if e.kind == "local")
        for i in range(many.silos)
    ]
    assert turns == sorted(turns, reverse=True)
    assert turns[0] > turns[-1]


def report_turns(records):
    plan = crowd_plan("shuffled-reports", records=records, min_silos=len(records))
    return plan.model_copy(update={"algorithm": {**plan.algorithm, **PSGM, "name": "ce-psgm", "local_steps": 2}})


@pytest.mark.parametrize("channel", ["shuffled-sum", "shuffled-reports"])
def test_shufflers_that_are_added_to_a_running_daemon_are_answered_through(tmp_path, channel):
    """A sealer of the policy before would be none, and every answer an error."""
    home, policy = make_home(tmp_path / "silo", RECORDS)
    service = SiloService(policy, RECORDS, home)
    try:
        client, plan = LocalClient(service), crowd_plan(channel)
        with pytest.raises(RefusalError, match="a channel among direct"):
            client.ask(Propose(plan=plan))
        shuffle = {"shufflers": SEALS, "colluding": 0, "max_local_epsilon": 8.0}
        tree = policy_tree("silo", shuffle=shuffle, allow={"channels": CHANNELS})
        (home.folder / "policy.toml").write_text(tomli_w.dumps(tree))
        assert client.ask(Propose(plan=plan))[0].state == "consented"
        specs, payload = broadcast_of(plan)
        assert client.ask(Answer(study=plan.study, round=0, arrays=specs), payload)[0].silo == "silo"
    finally:
        service.close()


@pytest.mark.parametrize(("silos", "colluding"), [(3, 1), (4, 1), (7, 2), (12, 5)])
def test_a_study_that_counts_on_too_many_silos_is_told_what_to_set(silos, colluding):
    owner = ShuffleSection(shufflers=SEALS, colluding=colluding)
    allow = AllowSection(algorithms=("mb-sgd",), channels=("shuffled-sum",))
    terms = {"records": (40,) * silos, "min_silos": silos}
    with pytest.raises(RefusalError, match=r"run\.honest = ") as caught:
        check_shuffle(crowd_plan(**terms), 40, allow, owner)
    honest = float(re.search(r"run\.honest = (\S+) ", str(caught.value))[1])
    # No more is given up than the owner asks for.
    assert colluding_silos(silos, honest) == colluding
    check_shuffle(crowd_plan(**terms, honest=honest), 40, allow, owner)
