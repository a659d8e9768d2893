"""Four hospitals and nobody else: pairwise sums between processes, over Flower, with kills and silos that leave."""

import importlib.util
import io
import json
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from rich.console import Console

from experiments.parties import Consortium, hospital, train
from tacit.data.heart_disease import HOSPITALS
from tacit.deploy.contract import builder_from
from tacit.deploy.server.checkpoint import load_checkpoint
from tacit.deploy.server.coordinator import fresh_state
from tacit.deploy.silo.service import NOISE_OFF
from tacit.models import load_model
from tacit.plans.spec import load_study
from tacit.privacy import price
from tacit.silo import enrol
from tacit.silo.chain import replay
from tacit.silo.ledger import inspect
from tacit.simulate.compiled import simulate
from tacit.simulate.participation import participation
from tests.deploy.silo.consortium import SEED, as_direct

pytestmark = pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="flwr is not installed")

NAMES = sorted(HOSPITALS)


def study_of(name, *changes):
    own = ["algorithm.channel=pairwise", f"name={name}", "pairwise.min_silos=3", "pairwise.spare_attempts=4"]
    return load_study("heart-disease", [*own, *changes])


def records_at(name):
    return hospital(name).records


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Four daemons (test builds: no noise), four nodes, a SuperLink; no shuffler."""
    root = tmp_path_factory.mktemp("p")
    policy = {"budget": {"epsilon": 30.0, "delta": 1e-5}, "pad_seconds": 0.0, "test": True}
    silos = [hospital(name) for name in NAMES]
    for silo in silos:
        silo.policy.update(policy)
    consortium = Consortium(root / "c", silos, shufflers=(), **{NOISE_OFF: "1"})
    consortium.start_all()
    consortium.check = lambda: None
    yield consortium, root
    consortium.stop()


def played(consortium, root, study, at_round=None, act=None, **patience):
    """Lead a study; once so many rounds are done, something happens meanwhile."""
    out = root / "runs"
    thread = None
    if act is not None:
        thread = threading.Thread(target=_watch, args=(out, study.name, at_round, act), daemon=True)
        thread.start()
    terms = {"round_seconds": 600.0, "patience": 600.0, **patience}
    folder = train(consortium, study, out, Console(file=io.StringIO()), evaluate=False, seed=SEED, **terms)
    if thread is not None:
        thread.join(60)
        assert not thread.is_alive()
    return folder, load_checkpoint(folder / "checkpoint.npz", fresh_state)


def _watch(out, name, at_round, act):
    """Act once a round of the study is done."""
    while True:
        for path in out.glob("*/progress.jsonl"):
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            done = [row["round"] for row in lines if row["event"] == "round"]
            if lines and lines[0].get("study") == name and max(done, default=0) >= at_round:
                act()
                return
        time.sleep(0.02)


def simulated(plan, who):
    builder = builder_from(as_direct(plan).model_copy(update={"pairwise": None}), 1)
    _, key = jax.random.split(jax.random.key(SEED))
    tables = enrol([records_at(name) for name in NAMES])
    quiet = builder.build(noise_multiplier=0.0)
    return simulate(quiet, builder.problem.objective.init(key), tables, key=jax.random.key(SEED), who=who).params


def check_ledgers(consortium, point, times=None):
    for silo_index, name in enumerate(NAMES):
        study = point.plan.model_copy(update={"silo_index": silo_index}).study
        account = replay(inspect(consortium.folder(name) / "ledger.sqlite"))[study]
        asked = sum(name in roster for row in point.history for roster in row["rosters"])
        if times is None:
            assert account.answers == asked
            assert not account.live
        assert price(account.debited(), delta=point.plan.delta).epsilon <= point.plan.epsilon


def test_heart_disease_is_learnt_as_in_the_simulation_whoever_is_killed(world):
    """Every silo must be in every round; a daemon is killed and comes back, and answers what it had answered."""
    consortium, root = world

    def kill():
        consortium.parties[NAMES[1]].kill()
        consortium.parties[NAMES[1]].start()

    study = study_of("killed", "pairwise.min_silos=4", "pairwise.spare_attempts=0", "algorithm.num_rounds=12")
    folder, point = played(consortium, root, study, 3, kill, round_seconds=5.0)
    assert point.finished
    assert [row["silos"] for row in point.history] == [NAMES] * 12
    who = participation(4, weights=[len(records_at(name)["y"]) for name in NAMES])
    expected, model = simulated(point.plan, who), load_model(folder)
    assert (model.description.training.simulated, model.description.privacy.channel) == (False, "pairwise")
    for found, theirs in zip(jax.tree.leaves(model.params), jax.tree.leaves(expected), strict=True):
        assert np.max(np.abs(found - np.asarray(theirs))) < 2e-4
        assert np.max(np.abs(theirs)) > 0.05
    check_ledgers(consortium, point)
    result = json.loads((folder / "result.json").read_text())
    assert all(0.99 < row["epsilon_spent"] <= 1.0 for row in result["silos"])
    assert (folder / "report.html").exists()


def test_the_others_go_on_without_a_silo_that_leaves(world):
    consortium, root = world
    gone = NAMES[2]
    study = study_of("leaving", "algorithm.num_rounds=8")
    _, point = played(consortium, root, study, 2, consortium.parties[gone].kill, round_seconds=3.0)
    consortium.parties[gone].start()
    assert point.finished
    assert point.history[0]["silos"] == NAMES
    assert point.history[-1]["silos"] == [name for name in NAMES if name != gone]
    assert sum(len(row["rosters"]) for row in point.history) <= 8 + 4
    check_ledgers(consortium, point, times="it has not heard of the end")


def test_nobody_received_a_record(world):
    """All that the server received is masked: no record of anybody, and no two equal messages."""
    _, root = world
    seen = b"".join(path.read_bytes() for path in (root / "runs").glob("*/received.bin"))
    assert len(seen) > 10_000
    for name in NAMES:
        for row in records_at(name)["x"][:50]:
            assert row[:4].astype("<f4").tobytes() not in seen


def test_nothing_went_wrong_in_the_leaders(world):
    for path in (world[1] / "runs").glob("*/leader.log"):
        assert Path(path).read_text() == ""
