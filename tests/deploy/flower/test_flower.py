"""Real processes over Flower, where possible in a network namespace that has nothing but a loopback."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from experiments.parties import frames_in
from tacit.channel.sealing import open_layer
from tacit.channel.shuffled_sum import ShareTerms
from tacit.deploy.contract import builder_from
from tacit.deploy.server.checkpoint import load_checkpoint
from tacit.deploy.server.coordinator import fresh_state
from tacit.deploy.shuffler.config import load_keys
from tacit.deploy.shuffler.messages import Deposit
from tacit.deploy.silo.models import kept_models
from tacit.deploy.wire import Plan
from tacit.models import load_model
from tacit.privacy.binomial import grid_for
from tacit.silo import enrol
from tacit.silo.chain import replay
from tacit.silo.door import Door
from tacit.silo.ledger import inspect
from tacit.silo.shares import BinomialShare, no_coins
from tacit.simulate.compiled import simulate
from tacit.simulate.participation import participation, roster
from tacit.simulate.program import split_keys
from tests.deploy.flower.drive import PARTICIPANTS, ROUNDS, SIZES, tables
from tests.deploy.silo.consortium import SEED, as_direct, rounding_of

pytestmark = pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="flwr is not installed")

HERE = Path(__file__).parents[3]


def alone() -> list[str]:
    """The command before a command that leaves it nothing but a loopback, where this machine allows that."""
    prefix = ["unshare", "--net", "--map-root-user", "sh", "-c", 'ip link set lo up && exec "$@"', "alone"]
    usable = shutil.which("unshare") and shutil.which("ip")
    worked = usable and subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0
    return prefix if worked else []


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("f")
    prefix = alone()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE / "src"), str(HERE)])}
    command = [*prefix, sys.executable, "-W", "default", "-m", "tests.deploy.flower.drive", str(root)]
    done = subprocess.run(command, cwd=HERE, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:] + logs(root)
    facts = json.loads((root / "facts.json").read_text())
    facts["alone"] = bool(prefix)
    return root, facts


def logs(root: Path) -> str:
    return "\n".join(f"== {p.name}\n{p.read_text(errors='replace')[-1500:]}" for p in root.glob("c/logs/*.log"))


def point_of(facts, channel):
    return load_checkpoint(Path(facts["folders"][channel]) / "checkpoint.npz", fresh_state)


def who(channel):
    return participation(len(SIZES), PARTICIPANTS.get(channel))


def simulated(plan: Plan, channel: str):
    """Also who is to take part in each round, by the seed that the deployment was given."""
    builder = builder_from(as_direct(plan), next(iter(SIZES.values())))
    _, key = jax.random.split(jax.random.key(SEED))
    algorithm = builder.build(noise_multiplier=0.0)
    params, silos, own = builder.problem.objective.init(key), enrol(list(tables().values())), jax.random.key(SEED)
    turns = roster(split_keys(own).choice, algorithm, who(channel), len(SIZES))
    names = [
        sorted(np.array(list(SIZES))[row[here]]) for row, here in zip(turns.silo_indices, turns.taken, strict=True)
    ]
    return simulate(algorithm, params, silos, key=own, who=who(channel), noise="each").params, names


@pytest.mark.parametrize("channel", ["direct", "shuffled-sum"])
def test_a_study_over_flower_equals_its_simulation(world, channel):
    _, facts = world
    point = point_of(facts, channel)
    params, names = simulated(point.plan, channel)
    assert point.finished
    assert [row["silos"] for row in point.history] == names
    assert all(len(row) == 2 for row in names) == (channel == "shuffled-sum")
    assert len({row["kind"] for row in point.history}) == (2 if channel == "direct" else 1)
    model = load_model(Path(facts["folders"][channel]))
    assert (model.description.training.simulated, model.description.privacy.channel) == (False, channel)
    assert all(silo.epsilon is not None for silo in model.description.privacy.silos)
    for found, expected in zip(jax.tree.leaves(model.params), jax.tree.leaves(params), strict=True):
        assert np.max(np.abs(found - np.asarray(expected))) < rounding_of(point.plan)


@pytest.mark.parametrize("channel", ["direct", "shuffled-sum"])
def test_the_model_reached_every_silo_that_answered(world, channel):
    root, facts = world
    folder, point = Path(facts["folders"][channel]), point_of(facts, channel)
    files = {path.name: path.read_bytes() for path in (folder / "model").iterdir()}
    for silo_index, name in enumerate(SIZES):
        study = point.plan.model_copy(update={"silo_index": silo_index}).study
        places = [Path(row["path"]) for row in kept_models(root / "c" / name) if row["study"] == study]
        assert len(places) == any(name in played["silos"] for played in point.history)
        assert all({file: (place / file).read_bytes() for file in files} == files for place in places)


@pytest.mark.parametrize("channel", ["direct", "shuffled-sum"])
def test_run_folder_and_ledgers_agree(world, channel):
    root, facts = world
    folder = Path(facts["folders"][channel])
    result = json.loads((folder / "result.json").read_text())
    assert "report.html" in {path.name for path in folder.iterdir()}
    point = point_of(facts, channel)
    for silo_index, (name, row) in enumerate(zip(SIZES, result["silos"], strict=True)):
        study = point.plan.model_copy(update={"silo_index": silo_index}).study
        account = replay(inspect(root / "c" / name / "ledger.sqlite"))[study]
        answered = sum(name in played["silos"] for played in point.history)
        assert account.answers == answered == row["answers"]
        assert not account.live
        assert (0.99 < row["epsilon_spent"] <= 1.0) == (answered == ROUNDS)
    events = [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]
    assert events[0]["event"] == "started"
    assert events[-1]["event"] == "finished"
    reckoned = [row["epsilon"] for row in events if row["event"] == "measured"]
    assert reckoned[0] < reckoned[-1] == pytest.approx(max(row["epsilon_spent"] for row in result["silos"]), rel=1e-3)


@pytest.mark.parametrize("channel", ["direct", "shuffled-sum"])
def test_run_folders_hold_no_secret_of_the_superlink(world, channel):
    root, facts = world
    folder = Path(facts["folders"][channel])
    assert json.loads((folder / "provenance.json").read_text())["command"] == "python -m experiments.parties"
    secret = (root / "c" / "link" / "executor.secret").read_bytes()
    for path in folder.rglob("*"):
        held = path.read_bytes() if path.is_file() else b""
        assert not any(form in held for form in (secret, secret.hex().encode())), path


@pytest.mark.parametrize("channel", ["direct", "shuffled-sum"])
def test_nothing_went_wrong_in_the_leaders(world, channel):
    assert (Path(world[1]["folders"][channel]) / "leader.log").read_text() == ""


def test_it_works_without_any_network(world):
    _, facts = world
    if not facts["alone"]:
        pytest.skip("this machine does not allow network namespaces")
    assert not facts["internet"]


def test_unregistered_nodes_and_wrong_authorities_get_nowhere(world):
    root, facts = world
    for name, reason in (("stranger", "refuses this node"), ("misled", "CERTIFICATE_VERIFY_FAILED")):
        assert reason in facts["intruders"][name]["log"]
        assert facts["intruders"][name]["joined"] is False
    for name in SIZES:
        # Every reservation is one of the two studies', though four nodes knew a socket.
        accounts = replay(inspect(root / "c" / name / "ledger.sqlite"))
        assert len(accounts) == 2


def test_everything_was_stopped(world):
    _, facts = world
    assert facts["left"] == []
    for pid in facts["pids"]:
        state = Path(f"/proc/{pid}/stat")
        assert not state.exists() or state.read_text().split()[2] == "Z"


def received(root, facts):
    """Everything that the server and the shufflers received, as bytes; and as the shufflers could open it."""
    found = [(Path(folder) / "received.bin").read_bytes() for folder in facts["folders"].values()]
    for name in ("a", "b"):
        folder = root / "c" / f"shuffler-{name}"
        found.append((folder / "received.bin").read_bytes())
        keys = load_keys(folder)
        for header, payload in frames_in(folder / "received.bin"):
            if header["type"] == "deposit":
                deposit = Deposit.model_validate_json(json.dumps(header))
                found.append(open_layer(payload, keys.seal, deposit.binding, layer=0))
    return b"\n".join(found)


def test_nobody_received_a_record_nor_a_share(world):
    root, facts = world
    seen = received(root, facts)
    assert len(seen) > 2000
    for table in tables().values():
        for row in table["x"]:
            assert row[:2].astype("<f4").tobytes() not in seen
    plan = point_of(facts, "shuffled-sum").plan
    builder = builder_from(plan, SIZES["north"])
    silo = builder.build(noise_multiplier=1.0).rounds["gradient"].silo
    dimension = sum(np.prod(leaf.shape, dtype=int) for leaf in jax.tree.leaves(fresh_state(plan, [30])[0]))
    _, key = jax.random.split(jax.random.key(SEED))
    start = builder.build(noise_multiplier=1.0)
    broadcast = start.rounds["gradient"].server.ask(start.init(builder.problem.objective.init(key)))
    terms = ShareTerms(grid_for(sum(SIZES.values()), dimension), 0, dimension)
    weights, _ = plan.shuffle.record_weights(None)
    for silo_index, table in enumerate(tables().values()):
        door = Door(silo, table, silo_index=silo_index, form=True)
        mechanism = BinomialShare(door.engine, terms, no_coins, float(weights[silo_index]))
        # Records are rounded at random, each by less than a step: shares of one silo differ by a few deviations.
        share, apart = door.release(broadcast, door.batch(0, None), mechanism), 6 * len(table["y"]) ** 0.5
        assert np.abs(share).max() > 3 * apart
        # Test builds add no noise: the share, or any two neighbours in it, would be plaintext.
        assert not any(holds(seen, pair, apart) for pair in itertools.pairwise(share) if np.abs(pair).max() > apart)
        assert holds(seen + share.astype("<i8").tobytes(), share[:2] + 1, apart)


def holds(seen: bytes, numbers, apart: float) -> bool:
    """Whether 64-bit integers as near as this to the numbers stand one after another, from any byte on."""
    for offset in range(8):
        words = np.frombuffer(seen[offset : len(seen) - (len(seen) - offset) % 8], "<i8").astype(float)
        near = [np.abs(words[i : len(words) - len(numbers) + 1 + i] - n) <= apart for i, n in enumerate(numbers)]
        if np.logical_and.reduce(near).any():
            return True
    return False
