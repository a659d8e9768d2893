"""Who is heard at a shuffler, and whom its callers believe: pinned keys, whatever certificates say."""

import contextlib
import json
import sqlite3
import threading

import numpy as np
import pytest
import tomli_w

from tacit.channel.sealing import Binding
from tacit.deploy.consortium.certificates import Authority
from tacit.deploy.shuffler.client import Address, Batch, Caller, _collect, greet, hand_in, sum_over
from tacit.deploy.shuffler.config import ShufflerError
from tacit.deploy.shuffler.deposits import Sender, sum_deposits
from tacit.deploy.shuffler.messages import Hello, Welcome
from tacit.deploy.signing import (
    Proposer,
    SignatureError,
    Signer,
    digest_of,
    new_signing_key,
    shuffler_address,
    signed_reply,
)
from tacit.deploy.wire import Hello as SiloHello
from tacit.deploy.wire import RefusalError, SignedRequest, frame, unframed
from tests.deploy.shuffler.parties import CALLER, Party, desk, signers

BINDING = Binding(b"c" * 32, 0, b"h" * 32)
OTHER = BINDING._replace(consortium=b"d" * 32)
SILOS = signers(2)
TO = shuffler_address("a")


@pytest.fixture
def a(tmp_path):
    found = desk(tmp_path / "a", SILOS, record="received.bin")
    yield found
    found.service.close()


def deposits(own, binding=BINDING, length=4):
    """A deposit of each silo."""
    return [
        sum_deposits(np.arange(length), Sender(name, i, 2), signer, binding, shufflers={"a": own.seal})[0]
        for i, (name, signer) in enumerate(SILOS.items())
    ]


def kept(own):
    """All that a shuffler keeps, in memory and on disk."""
    rows = [own.service._released.execute(f"SELECT * FROM {name}").fetchall() for name in ("released", "requests")]
    return list(own.service._piles), rows, own.service._record.tell()


def refused(own, signed):
    with pytest.raises(RefusalError) as caught:
        own.carry(signed)
    return caught.value.code


def bent(signed, **changes):
    """A signed frame with something changed after it was signed."""
    header, payload = unframed(signed)
    payload = changes.pop("payload", payload)
    return frame(SignedRequest.model_validate_json(header).model_copy(update=changes), payload)


def asked(raw, to=TO, proposer=CALLER, **terms):
    header, payload = unframed(raw)
    return proposer.request(header.decode(), payload, silo=to, **terms)


def test_what_no_pinned_caller_has_signed_for_this_shuffler_leaves_no_trace(a):
    raw = deposits(a)[0]
    good, payload = asked(raw), unframed(raw)[1]
    signature = json.loads(unframed(asked(frame(Hello())))[0])["signature"]
    attacks = [
        ("unsigned", raw),
        ("unsigned", frame(Hello())),
        ("unsigned", frame(b"\xff\xfe", payload)),
        # A silo's own key, and a stranger's, under every name.
        ("proposer", asked(raw, proposer=Proposer("s0", SILOS["s0"]))),
        ("signature", asked(raw, proposer=Proposer(CALLER.name, SILOS["s0"]))),
        ("signature", asked(raw, proposer=Proposer(CALLER.name, Signer(new_signing_key())))),
        # Everything that a signature must cover.
        ("signature", bent(good, payload=payload[:-1] + bytes([payload[-1] ^ 1]))),
        ("signature", bent(good, payload=payload + b"\0")),
        ("signature", bent(good, payload=b"")),
        ("signature", bent(good, counter=1 << 62)),
        ("signature", bent(good, silo=shuffler_address("b"))),
        ("signature", bent(good, request=unframed(deposits(a)[1])[0].decode())),
        ("signature", bent(good, signature=signature)),
        ("signature", bent(good, signature="")),
        ("proposer", bent(good, proposer="other")),
        # Right for somebody else: another shuffler, a silo of the same name, nobody.
        ("addressed", asked(raw, shuffler_address("b"))),
        ("addressed", asked(raw, "a")),
        ("addressed", asked(raw, "")),
        ("addressed", asked(frame(Hello()), "")),
        ("bad-message", CALLER.request(SiloHello(), silo=TO)),
    ]
    before = kept(a)
    for code, signed in attacks:
        assert refused(a, signed) == code
        assert not a.service.knows(*unframed(signed))
        assert kept(a) == before
    assert a.service.knows(*unframed(good))
    assert a.carry(good)[0].silos == 1
    # Who repeats what a caller has sent is no caller, though the last request may come again.
    assert not a.service.knows(*unframed(good))
    assert kept(a) != before


def test_an_older_request_is_refused_and_the_last_one_may_come_again(a):
    first, second = (asked(raw, counter=count) for raw, count in zip(deposits(a), (10, 20), strict=True))
    a.carry(first)
    a.carry(second)
    assert a.carry(second)[0].silos == 2
    assert refused(a, first) == "replayed"
    twin = asked(frame(Hello()), counter=20)
    a.carry(asked(frame(Hello()), counter=20))
    collect = frame(_collect(BINDING, list(SILOS), "sum"))
    assert refused(a, asked(collect, counter=20)) == "replayed"
    released = a.carry(asked(collect, counter=21))
    assert a.carry(asked(collect, counter=21)) == released
    assert refused(a, second) == "replayed"
    assert a.carry(twin)[0].name == "a"


def test_counters_outlive_a_restart(tmp_path):
    own = desk(tmp_path / "a", SILOS)
    old = asked(frame(Hello()))
    own.carry(old)
    own.ask(Hello())
    own.service.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "a" / "shuffler.sqlite")) as database:
        assert database.execute("SELECT scope FROM requests").fetchall() == [(f"{CALLER.name}/",)]
    again = type(own.service)(own.service.terms, own.service._keys, tmp_path / "a")
    own.service = again
    assert refused(own, old) == "replayed"
    again.close()


def test_a_request_stays_old_once_its_deposits_were_forgotten(a):
    first, second = (asked(raw) for raw in deposits(a))
    a.carry(first)
    a.carry(second)
    # As after a restart, or when nobody has collected them.
    a.service._piles.clear()
    before = kept(a)
    assert refused(a, first) == "replayed"
    assert kept(a) == before


@pytest.mark.parametrize("text", ["\\ud800", "[" * 5000, "", "null", "1e999", '{"type":"hello","version":NaN}'])
def test_nonsense_that_a_pinned_caller_has_signed_is_refused(a, text):
    signed = CALLER.request(text, silo=TO)
    assert not a.service.knows(*unframed(signed))
    assert refused(a, signed) == "bad-message"
    odd = unframed(signed)[0].replace(b'"proposer":"tester"', b'"proposer":"\\ud800"')
    assert refused(a, frame(odd)) == "unsigned"


def test_two_studies_of_one_proposer_have_counters_of_their_own(a):
    """A large request of one is not refused because small ones of the other have overtaken it."""
    for raw in [*deposits(a), *deposits(a, OTHER)]:
        a.carry(asked(raw))
    slow = asked(frame(_collect(BINDING, list(SILOS), "sum")))
    a.carry(asked(frame(_collect(OTHER, list(SILOS), "sum"))))
    a.ask(Hello())
    assert a.carry(slow)[0].type == "total"


def test_terms_without_callers_or_with_a_bad_key_are_refused(tmp_path):
    with pytest.raises(ShufflerError, match="callers"):
        desk(tmp_path / "a", SILOS, callers={"tester": "ed25519:short"})
    with pytest.raises(ShufflerError, match="callers"):
        desk(tmp_path / "b", SILOS, callers={"tester": "x25519:" + "A" * 43 + "="})


def test_edited_terms_count_from_the_next_request_on(a):
    path = a.service._folder / "shuffler.toml"
    path.parent.chmod(0o700)
    tree = a.service.terms.model_dump(mode="json", exclude_none=True)

    def edit(text=None, mode=0o600, **changes):
        path.write_text(tomli_w.dumps({**tree, **changes}) if text is None else text, encoding="utf-8")
        path.chmod(mode)

    first, second = deposits(a)
    collect = frame(_collect(BINDING, list(SILOS), "sum"))
    a.carry(asked(first))
    a.carry(asked(second))
    other = Proposer("other", Signer(new_signing_key()))
    edit(callers={"other": other.signer.public})
    assert refused(a, asked(collect)) == "proposer"
    assert a.carry(asked(frame(Hello()), proposer=other))[0].name == "a"
    broken = [("x",), ("",), (None, 0o644)]
    for damage in (*(lambda own=own: edit(*own) for own in broken), lambda: edit(port=1), path.unlink):
        damage()
        assert refused(a, asked(frame(Hello()))) == refused(a, asked(frame(Hello()), proposer=other)) == "terms"
    # What was handed in by who is no silo any more, or by a key that was replaced, is in no round.
    edit(silos={**tree["silos"], "s0": Signer(new_signing_key()).public})
    assert refused(a, asked(collect)) == "missing"
    assert refused(a, asked(first)) == "forged"
    edit(min_silos=3)
    a.carry(asked(first))
    assert refused(a, asked(collect)) == "too-few"
    edit()
    assert a.carry(asked(collect))[0].silos == ("s0", "s1")


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def party(tmp_path, authority):
    found = Party(tmp_path / "a", authority, SILOS)
    yield found
    found.stop()


def test_a_certificate_of_the_authority_alone_gets_nothing(party, authority):
    """A hostile member of the consortium, over real TLS."""
    address = party.address(pair=authority.issue("member"))
    with pytest.raises(RefusalError) as caught:
        greet(Caller(address, Proposer("member", SILOS["s0"])))
    assert caught.value.code == "proposer"
    with pytest.raises(RefusalError) as caught:
        greet(Caller(address, Proposer(CALLER.name, SILOS["s0"])))
    assert caught.value.code == "signature"
    assert not party.service._piles


def test_concurrent_studies_of_one_proposer_go_on(party):
    """They overtake one another all the time before their studies are known; nobody is refused for good."""
    faults = []

    def play(number):
        try:
            caller = party.caller(10.0)
            for count in range(5):
                binding = Binding(bytes([number]) * 16 + bytes([count]) * 16, 0, b"h" * 32)
                made = {
                    name: {"a": sum_deposits(np.arange(3), Sender(name, i, 2), own, binding, shufflers=keys)[0]}
                    for i, (name, own) in enumerate(SILOS.items())
                }
                assert sum_over({"a": caller}, made, binding).tolist() == [0, 2, 4]
        except Exception as error:
            faults.append(error)

    keys = {"a": party.keys.seal.public}
    threads = [threading.Thread(target=play, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []


class Impostor(Party):
    """Has a certificate of the authority for the shuffler's host, and answers as ``answer`` says."""

    def start(self):
        super().start()
        self._entrance._handle = lambda header, payload: self.answer(header, payload)

    def answer(self, header, payload):
        raise NotImplementedError


def welcome_of(party):
    keys = party.keys
    facts = {"name": "a", "seal": str(keys.seal.public), "sign": keys.sign.public}
    return Welcome(**facts, layer=0, min_silos=2, silos=("s0",)).model_dump_json().encode()


def in_the_middle(real, fake):
    """Calls the fake one, and expects the real one's key."""
    at = fake.address()
    return Caller(Address("a", real.keys.sign.public, at.host, at.port, at.authority, at.certificate, at.key), CALLER)


@pytest.mark.parametrize("kind", ["unsigned", "own key", "other name", "another request", "changed payload"])
def test_a_man_in_the_middle_with_a_certificate_is_not_believed(party, tmp_path, authority, kind):
    fake = Impostor(tmp_path / "middle" / "a", authority, SILOS)
    seen = party.service.handle(*unframed(asked(frame(Hello()))))

    def answer(header, payload):
        if kind == "unsigned":
            return frame(welcome_of(fake))
        if kind == "own key":
            return fake.service.handle(header, payload)
        if kind == "other name":
            asked_for = digest_of(header, payload)
            return signed_reply(welcome_of(party), b"", request=asked_for, silo="a", signer=party.keys.sign)
        if kind == "another request":
            return seen
        return frame(unframed(party.service.handle(header, payload))[0], b"more")

    fake.answer = answer
    with pytest.raises(SignatureError, match="Shuffler a: expected a reply signed with"):
        greet(in_the_middle(party, fake))
    fake.stop()


def test_who_carries_a_reply_of_the_real_one_is_only_a_carrier(party, tmp_path, authority):
    fake = Impostor(tmp_path / "middle" / "a", authority, SILOS)
    fake.answer = lambda header, payload: party.service.handle(header, payload)
    caller = in_the_middle(party, fake)
    assert greet(caller).sign == party.keys.sign.public
    caller.close()
    fake.stop()


def test_no_silo_is_blamed_for_a_caller_that_is_not_heard(a):
    """A server with another key than the one that is pinned stops; it leaves nobody out."""

    class Unheard:
        def send(self, raw):
            return a.carry(asked(raw, proposer=Proposer("other", CALLER.signer)))

    with pytest.raises(RefusalError) as caught:
        hand_in([Batch(Unheard(), dict(zip(SILOS, deposits(a), strict=True)))])
    assert caught.value.code == "proposer"
