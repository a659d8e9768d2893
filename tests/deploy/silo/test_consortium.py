"""Four daemons in processes of their own, and a driver over their sockets: the simulation, with ledgers."""

import contextlib
import sqlite3

import jax
import jax.numpy as jnp
import pytest

from tacit.deploy.contract import builder_from
from tacit.deploy.server.checkpoint import Checkpoint, load_checkpoint
from tacit.deploy.server.coordinator import Coordinator, Patience, fresh_state, meet
from tacit.deploy.silo.answering import remembered
from tacit.deploy.wire import Propose, RefusalError
from tacit.plans.catalogue import ALGORITHMS
from tacit.privacy import price
from tacit.silo import enrol
from tacit.silo.batches import pass_order
from tacit.silo.chain import replay
from tacit.silo.ledger import inspect
from tacit.silo.spending import joint_price
from tacit.simulate import loop
from tacit.simulate.compiled import simulate
from tacit.simulate.participation import participation
from tests.algorithms.table import CASES, largest_difference
from tests.deploy.silo.consortium import SEED, Daemon, LocalTransport, fork_server, make_home, plan_of, records_of

SIZES = (30, 17, 24, 21)
FAIR = tuple(name for name, entry in ALGORITHMS.items() if entry.reads_attribute)
"""They read a sensitive attribute, which these silos do not hold."""


@pytest.fixture(scope="module")
def tables():
    return [records_of(i, size) for i, size in enumerate(SIZES)]


@pytest.fixture(scope="module")
def daemons(tmp_path_factory, tables):
    root = tmp_path_factory.mktemp("d")
    context = fork_server()
    started = []
    for i, table in enumerate(tables):
        make_home(root / f"s{i}", table, test=True)
        started.append(Daemon(root / f"s{i}", context, noise_off=True))
    for daemon in started:
        daemon.ready()
    yield started
    for daemon in started:
        daemon.stop()


@pytest.fixture
def clients(daemons):
    connected = [daemon.client() for daemon in daemons]
    yield connected
    for client in connected:
        client.close()


@pytest.fixture
def coordinator(daemons, tmp_path):
    """Makes a server of a plan, at its beginning."""
    transport = LocalTransport([daemon.home.socket for daemon in daemons])
    patience = Patience(300.0, 300.0)
    found = meet(transport, len(SIZES), patience, lambda event, facts: None)
    addresses = {name: at for name, (at, _) in found.items()}

    def make(plan, who=None):
        point = Checkpoint(plan, tuple(sorted(addresses)), SIZES, fresh_state(plan, SIZES))
        path = tmp_path / "checkpoint.npz"
        return Coordinator(point, path, transport, addresses, who=who, patience=patience, seed=SEED)

    yield make
    transport.close()


def simulated(plan, tables, who=None, order=None):
    """The study without noise; the order of each silo's pass is the daemon's own secret, so the loop is told it."""
    builder = builder_from(plan, SIZES[0])
    algorithm = builder.build(noise_multiplier=0.0)
    params, own = builder.problem.objective.init(jax.random.key(0)), {"key": jax.random.key(SEED), "who": who}
    if not order:
        return simulate(algorithm, params, enrol(tables), noise="each", **own).params, algorithm
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            loop, "silo_order", lambda algorithm, keys, silo_index, count, padded: jnp.asarray(order[silo_index])
        )
        return loop.debug(algorithm, params, tables, **own).params, algorithm


def orders_of(plan, daemons):
    """The order in which each silo goes through its records, as its ledger remembers it while a study is open."""
    found = []
    for silo_index, (daemon, size) in enumerate(zip(daemons, SIZES, strict=True)):
        study = plan.model_copy(update={"silo_index": silo_index}).study
        database = sqlite3.connect(f"file:{daemon.home.ledger}?mode=ro", uri=True)
        with contextlib.closing(database):
            [[state]] = database.execute("SELECT state FROM studies WHERE study = ?", [study])
        found.append(pass_order(remembered(state).order_seed.tobytes(), size))
    return found


def case_plan(name, **changes):
    case = CASES[name]
    common = {"name": name, "step_size": 0.2, "num_rounds": 6, "clip_norm": 0.7, "sampling": "full"}
    return plan_of({**common, **case.parameters, "channel": "direct", **changes}, name=name)


@pytest.mark.parametrize("name", FAIR)
def test_plans_that_read_a_sensitive_attribute_are_refused(name, clients):
    plan = case_plan(name)
    with pytest.raises(RefusalError, match="sensitive attribute"):
        clients[0].ask(Propose(plan=plan))


@pytest.mark.parametrize("name", [name for name in CASES if name not in FAIR])
def test_every_algorithm_equals_its_simulation_and_the_ledgers_add_up(name, coordinator, daemons, tables, tmp_path):
    plan, order = case_plan(name), []
    server = coordinator(plan)
    one_pass = plan.algorithm["sampling"] == "one-pass"
    receipts = server.run(lambda number: order.extend(orders_of(plan, daemons)) if one_pass and not order else None)
    expected, algorithm = simulated(plan, tables, order=order)
    assert bool(order) == one_pass
    assert largest_difference(server.params, expected) < 1e-5
    assert [row["kind"] for row in server.point.history] == list(algorithm.schedule)
    kept = algorithm.output(load_checkpoint(tmp_path / "checkpoint.npz", fresh_state).state)
    assert largest_difference(kept, server.params) == 0.0
    for silo_index, daemon in enumerate(daemons):
        receipt = receipts[daemon.folder.name]
        study = plan.model_copy(update={"silo_index": silo_index}).study
        account = replay(inspect(daemon.home.ledger))[study]
        turns = zip(algorithm.schedule, algorithm.turns, strict=True)
        own = [
            k for k, turn in turns if algorithm.rounds[k].participants != "in turn" or turn % len(SIZES) == silo_index
        ]
        assert account.made == {k: algorithm.rounds[k].silo.local_steps * own.count(k) for k in own}
        assert account.answers == receipt.answers == len(own)
        assert not account.live
        spent = price(account.debited(), delta=plan.delta).epsilon
        assert receipt.epsilon == pytest.approx(spent)
        assert 0.99 * plan.epsilon < spent <= plan.epsilon


def test_a_server_optimiser_is_the_servers_alone(coordinator, daemons, tables, tmp_path):
    plan = case_plan("mb-sgd", server="adam").model_copy(update={"name": "adam"})
    server = coordinator(plan)
    receipts = server.run().values()
    expected, algorithm = simulated(plan, tables)
    assert largest_difference(server.params, expected) < 1e-5
    assert largest_difference(simulated(case_plan("mb-sgd"), tables)[0], expected) > 1e-3
    kept = algorithm.output(load_checkpoint(tmp_path / "checkpoint.npz", fresh_state).state)
    assert largest_difference(kept, server.params) == 0.0
    assert all(0.99 * plan.epsilon < receipt.epsilon <= plan.epsilon for receipt in receipts)


def test_silos_that_miss_rounds_pay_for_those_they_answer(coordinator, tables):
    plan = case_plan("mb-sgd").model_copy(update={"everyone": False, "name": "partial"})
    who = participation(4, 2)
    server = coordinator(plan, who)
    receipts = server.run().values()
    expected, _ = simulated(plan, tables, who)
    assert largest_difference(server.params, expected) < 1e-5
    assert sum(receipt.answers for receipt in receipts) == 6 * 2
    for receipt in receipts:
        assert (receipt.epsilon < 0.95 * plan.epsilon) == (receipt.answers < 6)


def test_a_server_that_starts_from_nothing_again_gets_the_stored_replies(coordinator, daemons):
    plan = case_plan("mb-sgd").model_copy(update={"nonce": "ab"})

    class StopError(Exception):
        pass

    def stop(number):
        if number == 3:
            raise StopError

    with pytest.raises(StopError):
        coordinator(plan).run(stop)
    before = [len(inspect(daemon.home.ledger)) for daemon in daemons]
    again = coordinator(plan)
    receipts = again.run().values()
    # Three rounds were stored; three debits and a closing entry are new.
    assert [len(inspect(daemon.home.ledger)) for daemon in daemons] == [n + 4 for n in before]
    assert all(receipt.answers == 6 for receipt in receipts)
    with pytest.raises(RefusalError, match="another nonce"):
        coordinator(plan).run()


def test_what_a_ledger_reports_is_the_joint_price_of_all_its_studies(clients, daemons):
    for daemon in daemons:
        accounts = replay(inspect(daemon.home.ledger)).values()
        joint = joint_price([account.debited() for account in accounts], delta=1e-5).epsilon
        alone = sum(price(account.debited(), delta=1e-5).epsilon for account in accounts)
        assert len(accounts) >= 3
        assert joint < 0.7 * alone


def test_a_second_daemon_on_the_same_ledger_ends_at_once(daemons):
    second = Daemon(daemons[0].folder, fork_server(), noise_off=True)
    second._process.join(60)
    assert second.exit_code == 1
    daemons[0].ready()


def test_the_door_is_closed_to_others(daemons):
    path = daemons[0].home.socket
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o077 == 0


def test_a_plan_for_other_records_is_refused(clients):
    with pytest.raises(RefusalError) as caught:
        clients[0].ask(Propose(plan=plan_of({"name": "mb-sgd"}, features=(6,))))
    assert caught.value.code == "schema"
