"""Silos' own models over real daemons: trained with mr-mtl, kept there, counted in the validation's one release."""

import dataclasses
import html
import json

import pytest
from safetensors.numpy import load

from tacit.cli.server import print_validation
from tacit.counting.performance import OVER_SHARED
from tacit.counting.validated import main_row, own_verdict
from tacit.deploy.server.checkpoint import load_checkpoint
from tacit.deploy.server.coordinator import fresh_state
from tacit.deploy.server.study import evaluate_again
from tacit.deploy.server.transport import SocketTransport
from tacit.deploy.server.validation import bundle_run, evaluation_of
from tacit.deploy.silo.policy import load_policy
from tacit.deploy.silo.service import home_of
from tacit.errors import TacitError
from tacit.models.loading import load_model
from tacit.models.rows import RowsWarning
from tacit.plans.spec import ValidationSection, load_study
from tacit.privacy import price
from tacit.silo.chain import Notes, replay
from tacit.silo.ledger import inspect
from tacit.silo.pools import TRAINING, VALIDATION
from tests.deploy.server.test_statistics import DELTA, NAMES, SIZES, led, rows_of, study_tree, write_silo
from tests.deploy.silo.consortium import running

SHARE = 0.4
TRAINED = {"name": "mr-mtl", "num_rounds": 30, "step_size": 4.0, "strength": 0.05, "clip_norm": 1.0, "sampling": "full"}


def patients(place):
    """Who is ill by age alone; at the last silo it is the young."""
    other = {"no": "yes", "yes": "no"}
    rows = [(age, sex, "yes" if float(age) > 50 else "no") for age, sex, _ in rows_of(place)]
    return [(age, sex, other[ill]) for age, sex, ill in rows] if place == 2 else rows


@pytest.fixture(scope="module")
def silos(tmp_path_factory):
    root, folders = tmp_path_factory.mktemp("own"), []
    for place, name in enumerate(NAMES):
        folders.append(write_silo(root / name, place, data={"validation": SHARE}))
        lines = ["age,sex,ill", *(",".join(row) for row in patients(place))]
        (folders[-1] / "records.csv").write_text("\n".join(lines) + "\n")
    with running(folders) as daemons:
        yield daemons


@pytest.fixture(scope="module")
def done(silos, tmp_path_factory):
    """The study and what its validation said; the ledgers afterwards."""
    tree = study_tree(TRAINED, epsilon=8.0, validation={"epsilon": 8.0})
    root = led(tmp_path_factory.mktemp("runs") / "trained", silos, tree)
    return root, json.loads((root / "validation.json").read_text()), [ledger_of(daemon) for daemon in silos]


def ledger_of(daemon):
    return inspect(home_of(daemon.folder, load_policy(daemon.folder / "policy.toml")).ledger)


def own_accuracy(root, daemon, place):
    """Of the silo's own model, from its disk, and of the shared one, on the records that the silo has set aside."""
    [path] = (daemon.folder / "models" / ".own").iterdir()
    shared, arrays = load_model(root), load(path.read_bytes())
    mine = {"linear": {"w": arrays["linear.w"][0], "b": arrays["linear.b"][0]}}
    rows = [patients(place)[i] for i in Notes(ledger_of(daemon)).split.rows(VALIDATION)]
    table = {"age": [row[0] for row in rows], "sex": [row[1] for row in rows]}
    found = []
    for model in (shared, dataclasses.replace(shared, params=mine)):
        with pytest.warns(RowsWarning):
            guess = model.predict(table)
        found.append(sum(g == row[2] for g, row in zip(guess, rows, strict=True)) / len(rows))
    return found


def test_every_silos_own_model_is_compared_with_the_shared_one(done, silos):
    root, facts, _ = done
    for place, (daemon, silo) in enumerate(zip(silos, facts["silos"], strict=True)):
        shared, own = own_accuracy(root, daemon, place)
        gain = main_row(silo["own"]["numbers"], OVER_SHARED)
        assert gain["low"] - 0.05 < own - shared < gain["high"] + 0.05
        told = main_row(silo["own"]["numbers"], "accuracy")
        assert told["low"] - 0.05 < own < told["high"] + 0.05
        assert abs(main_row(silo["numbers"], "accuracy")["value"] - shared) < 0.15
    assert facts["silos"][2]["own"]["gained"] is True, "where the young are ill, the shared model is wrong"
    assert main_row(facts["silos"][2]["own"]["numbers"], OVER_SHARED)["value"] > 0.3
    assert facts["own"]["study"] == load_checkpoint(root / "checkpoint.npz", fresh_state).plan.consortium.hex()


def test_both_models_are_one_release_and_the_ledger_equals_the_accountant(done):
    """One debit of the validation pool: three blocks whose noise is sqrt(3) of what the price needs alone."""
    root, facts, ledgers = done
    plan = load_checkpoint(root / "validation" / "checkpoint.npz", fresh_state).plan
    assert plan.algorithm["asked"]["own"] == facts["own"]["study"]
    for size, entries, silo in zip(SIZES, ledgers, facts["silos"], strict=True):
        training, validation = replay(entries).values()
        assert (training.pool, validation.pool) == (TRAINING, VALIDATION)
        [event] = validation.events
        assert (event.records, event.count, event.sampling) == (round(SHARE * size), 1, "full")
        paid = price(validation.debited(), delta=DELTA).epsilon
        assert paid == pytest.approx(silo["epsilon_spent"], rel=1e-3)
        assert 7.9 < paid <= 8.0
        assert [entry.kind for entry in entries].count("debit") == 30 + 1
        assert not validation.live


def test_the_report_and_the_command_say_whether_every_silo_gained(done, capsys):
    root, facts, _ = done
    report = html.unescape((root / "report.html").read_text())
    assert "Did every silo gain from its own model?" in report
    assert own_verdict(facts) in report
    print_validation(facts)
    shown = capsys.readouterr().out
    assert "each silo's own model" in shown
    assert OVER_SHARED.split()[0] in shown
    journal = [json.loads(line) for line in (root / "progress.jsonl").read_text().splitlines()]
    assert own_verdict(facts) in next(row["text"] for row in journal if row["event"] == "validated")


def quiet(event, facts):
    pass


def test_a_silo_without_one_counts_the_shared_model_and_says_so(done, silos):
    root, _, _ = done
    paths = [path for daemon in silos for path in (daemon.folder / "models" / ".own").iterdir()]
    kept = [path.read_bytes() for path in paths]
    paths[0].unlink()
    paths[1].write_bytes(b"damaged")
    try:
        transport = SocketTransport([daemon.home.socket for daemon in silos])
        facts = evaluate_again(root, transport, {"epsilon": 4.0}, tell=quiet)
    finally:
        for path, content in zip(paths, kept, strict=True):
            path.write_bytes(content)
    assert [silo["name"] for silo in facts["silos"]] == ["s0", "s2"], "a damaged one is refused, and the others asked"
    assert [silo["own"] is None for silo in facts["silos"]] == [True, False]
    assert "No model of its own has s0." in own_verdict(facts)


def test_own_models_can_be_left_out_and_cannot_be_made_up(done, silos, tmp_path):
    root, _, _ = done
    transport = SocketTransport([daemon.home.socket for daemon in silos])
    facts = evaluate_again(root, transport, {"epsilon": 1.0, "own": False}, tell=quiet)
    assert (facts["own"], own_verdict(facts), {silo["own"] for silo in facts["silos"]}) == (None, None, {None})
    folder = bundle_run(root, tmp_path, epsilon=1.0, delta=None)
    study = load_study(folder / "study.toml")
    assert evaluation_of(folder, study, "tester", {}).own is None
    with pytest.raises(TacitError, match="models of silos' own"):
        evaluation_of(folder, study, "tester", {}, ValidationSection(own=True))
