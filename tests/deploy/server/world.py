"""Plans, servers and their simulations for the consortium of these tests."""

import jax
import pytest

from tacit.channel.sealing import new_secret
from tacit.deploy.contract import builder_from
from tacit.deploy.server.checkpoint import Checkpoint, load_checkpoint
from tacit.deploy.server.coordinator import Coordinator, Patience, fresh_state, meet
from tacit.deploy.server.shuffles import Reports, Sums
from tacit.deploy.wire import Shuffle, refuse, unframed
from tacit.silo import enrol
from tacit.simulate.compiled import simulate
from tests.algorithms.table import largest_difference
from tests.deploy.silo.consortium import SEED, LocalTransport, as_direct, plan_of

SIZES = (30, 17, 24, 21)
NAMES = ("s0", "s1", "s2", "s3")
PATIENCE = Patience(300.0, 300.0)
KEY = new_secret()


def plan_like(seals=None, *, min_silos=4, algorithm=None, server=None, **changes):
    terms = {"records": SIZES, "min_silos": min_silos, "honest": 1.0, "shufflers": seals, "server": server}
    shuffle = None if seals is None else Shuffle(**terms)
    channel = {} if seals is None else {"channel": "shuffled-sum" if server is None else "shuffled-reports"}
    common = {"name": "mb-sgd", "sampling": "full", **channel, **(algorithm or {})}
    return plan_of(common, shuffle=shuffle, **changes)


def conductor_of(
    plan, world, folder, *, who=None, patience=PATIENCE, transport=None, seed=0, events=None, min_silos=4, names=NAMES
):
    sizes = SIZES[: len(names)]
    folder.mkdir(exist_ok=True)
    daemons, parties, _ = world
    path = folder / "checkpoint.npz"
    transport = transport or LocalTransport([daemon.home.socket for daemon in daemons])
    tell = (lambda event, facts: None) if events is None else (lambda event, facts: events.append((event, facts)))
    found = meet(transport, min_silos, patience, tell)
    point = (
        load_checkpoint(path, fresh_state)
        if path.exists()
        else Checkpoint(plan, names, sizes, fresh_state(plan, sizes))
    )
    callers = {party.terms.name: party.caller() for party in parties}
    shuffled = None
    if plan.shuffle is not None:
        # Test builds flip no coins; they round at random as others do.
        if plan.shuffle.server is None:
            shuffled = Sums(point.plan, NAMES, callers, coins=False)
        else:
            shuffled = Reports(point.plan, NAMES, callers, KEY, noise=False)
    addresses = {name: at for name, (at, _) in found.items()}
    return Coordinator(
        point, path, transport, addresses, who=who, patience=patience, shuffled=shuffled, tell=tell, seed=seed
    )


def simulated(plan, tables, who=None):
    """What a study of full batches comes to without noise, and without the random rounding of shuffled sums."""
    builder = builder_from(as_direct(plan), SIZES[0])
    params = builder.problem.objective.init(jax.random.key(0))
    exact = builder.build(noise_multiplier=0.0)
    return simulate(exact, params, enrol(tables), key=jax.random.key(SEED), who=who, noise="each").params


def travelled(plan, found):
    """How far a model went from where it began."""
    return largest_difference(found, builder_from(plan, SIZES[0]).problem.objective.init(jax.random.key(0)))


class KilledError(Exception):
    """The server is no more."""


def killed_after(coordinator, rounds, then=lambda number: None):
    """Run a study until so many rounds are done, and no further; ``then`` is told after each."""

    def done(number):
        then(number)
        if number == rounds:
            raise KilledError

    with pytest.raises(KilledError):
        coordinator.run(done)


class Flaky(LocalTransport):
    """Some silos cannot be reached in some asks."""

    def __init__(self, sockets, down):
        super().__init__(sockets)
        self.down, self.asks = down, 0

    def ask(self, requests, seconds, enough=None):
        self.asks += 1
        reached = {at: f for at, f in requests.items() if not self.down(self.asks, at)}
        return super().ask(reached, seconds, enough)


class Forgetting(LocalTransport):
    """Counts the requests of each ask; one silo forgets the study once, as one whose folder was put back would."""

    def __init__(self, sockets, forgets):
        super().__init__(sockets)
        self.forgets, self.counts = forgets, []

    def ask(self, requests, seconds, enough=None):
        self.counts.append({at: len(frames) for at, frames in requests.items()})
        replies = super().ask(requests, seconds, enough)
        if self.forgets is not None and len(self.counts) == 4:
            replies[self.forgets] = [unframed(refuse("unknown-study", "no such study; propose it first"))]
        return replies
