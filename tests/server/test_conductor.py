"""The server among real daemons and shufflers, over their sockets: as in simulation, with silos that come and go."""

import jax
import pytest

from tacit.channel.sealing import Signer, new_signing_key
from tacit.privacy import price
from tacit.runtime.certificates import Authority
from tacit.runtime.daemon.contract import builder_from
from tacit.runtime.daemon.protocol import Plan, RefusalError, Shuffle
from tacit.runtime.participation import participation
from tacit.runtime.server.checkpoint import Checkpoint, load_checkpoint
from tacit.runtime.server.conductor import Conductor, Patience, StalledError, fresh_state, meet
from tacit.runtime.server.shuffles import Sums
from tacit.runtime.server.transport import SocketTransport
from tacit.runtime.shuffler.config import write_secret
from tacit.runtime.simulate import simulate
from tacit.silo import enrol
from tacit.silo.chain import replay
from tacit.silo.ledger import inspect
from tests.algorithms.table import largest_difference
from tests.daemon.consortium import SEED, Daemon, fork_server, make_home, plan_of, records_of
from tests.shuffler.parties import Party

SIZES = (30, 17, 24, 21)
NAMES = ("s0", "s1", "s2", "s3")
PATIENCE = Patience(10.0, 20.0)


@pytest.fixture(scope="module")
def tables():
    return [records_of(i, size) for i, size in enumerate(SIZES)]


@pytest.fixture(scope="module")
def world(tmp_path_factory, tables):
    """Four daemons without noise, and two shufflers."""
    root = tmp_path_factory.mktemp("w")
    keys = {name: new_signing_key() for name in NAMES}
    silos = {name: Signer(raw) for name, raw in keys.items()}
    authority = Authority(root / "certificates")
    parties = [Party(root / name, authority, silos) for name in ("a", "b")]
    seals = {party.terms.name: str(party.keys.seal.public) for party in parties}
    context, daemons = fork_server(), []
    for name, table in zip(NAMES, tables, strict=True):
        shuffle = {"shufflers": seals, "honest": 1.0}
        allow = {"channels": ["direct", "shuffled-sum"]}
        changes = {"test": True, "test_seed": SEED, "budget": {"epsilon": 500.0}, "allow": allow, "shuffle": shuffle}
        make_home(root / name, table, **changes)
        write_secret(root / name / "sign.key", keys[name])
        daemons.append(Daemon(root / name, context, noise_off=True))
    for daemon in daemons:
        daemon.ready()
    yield daemons, parties, seals
    for part in [*daemons, *parties]:
        part.stop()


def plan_like(seals=None, *, least=4, algorithm=None, **changes):
    shuffle = None if seals is None else Shuffle(records=SIZES, least=least, honest=1.0, shufflers=seals)
    channel = {} if seals is None else {"channel": "shuffled-sum"}
    common = {"name": "mb-sgd", "sampling": "full", **channel, **(algorithm or {})}
    return plan_of(common, shuffle=shuffle, **changes)


def conductor_of(plan, world, folder, *, who=None, patience=PATIENCE, transport=None, seed=0, events=None):
    daemons, parties, _ = world
    path = folder / "checkpoint.npz"
    transport = transport or SocketTransport([daemon.home.socket for daemon in daemons])
    tell = (lambda event, facts: None) if events is None else (lambda event, facts: events.append((event, facts)))
    found = meet(transport, 4, patience, tell)
    names = tuple(sorted(found))
    point = (
        load_checkpoint(path, fresh_state)
        if path.exists()
        else Checkpoint(plan, names, SIZES, fresh_state(plan, SIZES))
    )
    callers = {party.terms.name: party.caller() for party in parties}
    # Test builds flip no coins; the simulation without noise has none either, and the same rounding.
    sums = None if plan.shuffle is None else Sums(point.plan, names, callers, coins=False)
    addresses = {name: at for name, (at, _) in found.items()}
    return Conductor(point, path, transport, addresses, who=who, patience=patience, sums=sums, tell=tell, seed=seed)


def simulated(plan, tables, who=None, noise=0.0):
    builder = builder_from(plan, SIZES[0])
    params = builder.problem.objective.init(jax.random.key(0))
    algorithm = builder.build(noise_multiplier=noise)
    return simulate(algorithm, params, enrol(tables), key=jax.random.key(SEED), who=who, noise="each").params


def test_direct_rounds_equal_the_simulation(world, tables, tmp_path):
    plan = plan_like()
    conductor = conductor_of(plan, world, tmp_path)
    receipts = conductor.run()
    assert largest_difference(conductor.params, simulated(plan, tables)) < 1e-5
    assert {name: r.answers for name, r in receipts.items()} == dict.fromkeys(NAMES, 4)


def test_shuffled_sums_equal_the_simulation_and_ledgers_show_their_price(world, tables, tmp_path):
    daemons, _, seals = world
    plan = plan_like(seals)
    conductor = conductor_of(plan, world, tmp_path)
    receipts = conductor.run()
    assert largest_difference(conductor.params, simulated(plan, tables)) < 1e-5
    for place, daemon in enumerate(daemons):
        account = replay(inspect(daemon.home.ledger))[plan.model_copy(update={"place": place}).study]
        spent = price(account.debited(), delta=plan.delta).epsilon
        assert receipts[NAMES[place]].epsilon == pytest.approx(spent)
        assert 0.99 * plan.epsilon < spent <= plan.epsilon


def test_a_killed_server_goes_on_where_it_was(world, tables, tmp_path):
    _, _, seals = world
    plan = plan_like(seals, nonce="aa")

    class KilledError(Exception):
        pass

    def killed(number):
        if number == 2:
            raise KilledError

    first = conductor_of(plan, world, tmp_path)
    with pytest.raises(KilledError):
        first.run(killed)
    # The sum of the next round is asked for, but the server dies before it writes down what it learnt.
    save = first.point.save
    first.point.save = lambda path: save(path) if first.point.decided else None
    first._play(2)
    second = conductor_of(plan, world, tmp_path)
    assert second.point.round == 2
    assert second.point.decided == NAMES
    second.run()
    assert largest_difference(second.params, simulated(plan, tables)) < 1e-5


class Flaky(SocketTransport):
    """Some silos cannot be reached in some asks."""

    def __init__(self, sockets, down):
        super().__init__(sockets)
        self.down, self.asks = down, 0

    def ask(self, requests, seconds, enough=None):
        self.asks += 1
        reached = {at: f for at, f in requests.items() if not self.down(self.asks, at)}
        return super().ask(reached, seconds, enough)


def test_rounds_go_on_without_silos_that_may_be_missed_and_they_may_come_back(world, tmp_path):
    daemons, _, _ = world
    sockets = [daemon.home.socket for daemon in daemons]
    # s3 is away in the second and third round.
    transport = Flaky(sockets, lambda ask, at: ask in (4, 5) and at == str(sockets[3]))
    plan, events = plan_like(everyone=False, name="flaky"), []
    who = participation(4, (2, 4))
    conductor = conductor_of(plan, world, tmp_path, who=who, transport=transport, events=events, seed=3)
    receipts = conductor.run()
    history = conductor.point.history
    assert len(history) == 4
    assert all(len(row["silos"]) >= 2 for row in history)
    assert sum("s3" in row["missed"] for row in history) >= 1
    answered = sum("s3" in row["silos"] for row in history)
    assert receipts["s3"].answers == answered
    for name in NAMES:
        assert receipts[name].answers == sum(name in row["silos"] for row in history)


def test_where_everyone_is_needed_the_run_waits_and_then_stalls_with_a_checkpoint(world, tmp_path):
    daemons, _, _ = world
    sockets = [daemon.home.socket for daemon in daemons]
    down = [True]
    transport = Flaky(sockets, lambda ask, at: ask > 4 and down[0] and at == str(sockets[0]))
    plan = plan_like(name="needed")
    conductor = conductor_of(plan, world, tmp_path, transport=transport, patience=Patience(0.5, 1.0))
    with pytest.raises(StalledError, match="needs 4 silos"):
        conductor.run()
    down[0] = False
    again = conductor_of(plan, world, tmp_path, transport=transport)
    assert again.point.round > 0
    again.run()
    assert len(again.point.history) == 4


class Meddling(SocketTransport):
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


def test_a_courier_that_shows_a_silo_another_broadcast_opens_no_sum(world, tmp_path):
    """Also how a server would tag a silo: its share is bound to what it was shown, and fits no others."""
    daemons, _, seals = world
    sockets = [daemon.home.socket for daemon in daemons]
    plan = plan_like(seals, nonce="ee")
    conductor = conductor_of(plan, world, tmp_path, transport=Meddling(sockets, sockets[1], there=other_broadcast))
    with pytest.raises(RefusalError) as caught:
        conductor.run()
    assert caught.value.code == "missing"
    assert conductor.point.round == 0


def test_a_courier_that_changes_a_sealed_share_is_found_out(world, tmp_path):
    daemons, _, seals = world
    sockets = [daemon.home.socket for daemon in daemons]

    def flipped(reply):
        header, payload = reply
        return (header, payload[:-1] + bytes([payload[-1] ^ 1])) if b'"sealed"' in header else reply

    plan = plan_like(seals, nonce="ef")
    conductor = conductor_of(plan, world, tmp_path, transport=Meddling(sockets, sockets[2], back=flipped))
    with pytest.raises(RefusalError) as caught:
        conductor.run()
    assert caught.value.code == "signature"


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
        conductor = conductor_of(plan_like(nonce="dd"), world, tmp_path)
        conductor._plans = {NAMES[0]: plan}
        with pytest.raises(RefusalError) as caught:
            conductor.propose()
        assert caught.value.code == code
