"""What a steward agrees to in a crowd, and what its contributions are bound to."""

import pytest

from tacit.channel.sealing import new_secret, new_signing_key
from tacit.runtime.daemon.protocol import Answer, Propose, Shuffle
from tacit.runtime.daemon.steward import NOISE_OFF, Steward
from tacit.runtime.server.shuffles import cut
from tacit.runtime.shuffler.config import write_secret
from tacit.runtime.shuffler.messages import parse_request
from tests.daemon.consortium import LocalClient, broadcast_of, make_home, plan_of, records_of

RECORDS = records_of(0, 40)
SEALS = {name: str(new_secret().public) for name in "ab"}
SERVER = str(new_secret().public)
CHANNELS = ["direct", "shuffled-sum", "shuffled-reports"]


def crowd_plan(channel="shuffled-sum", **changes):
    server = SERVER if channel == "shuffled-reports" else None
    terms = {"records": (40, 40, 40, 40), "least": 4, "honest": 1.0, "shufflers": SEALS, "server": server, **changes}
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
        write_secret(folder / "sign.key", new_signing_key())
        made.append(Steward(policy, RECORDS, home, noise_off=noise_off))
        return LocalClient(made[-1])

    yield one
    for steward in made:
        steward.close()


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
