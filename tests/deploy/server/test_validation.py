"""Over real daemons: a histogram, training with its ranges, validation on records set aside; ledgers and prices."""

import copy
import json
import shutil

import numpy as np
import pytest
import tomli_w

from tacit.counting.ranges import ranges_of
from tacit.counting.validated import main_row
from tacit.data.federation import DataError
from tacit.data.schema import schema_text
from tacit.deploy.server.checkpoint import load_checkpoint
from tacit.deploy.server.coordinator import Coordinator, StalledError, fresh_state
from tacit.deploy.server.study import evaluate_again
from tacit.deploy.server.transport import SocketTransport
from tacit.deploy.server.validation import bundle_run
from tacit.deploy.silo.policy import load_policy
from tacit.deploy.silo.service import home_of
from tacit.deploy.wire import (
    Answer,
    ColumnDescription,
    Description,
    Hello,
    Propose,
    RefusalError,
    TargetDescription,
)
from tacit.errors import TacitError
from tacit.models.bundle import FOLDER
from tacit.models.loading import load_model
from tacit.models.rows import RowsWarning
from tacit.privacy import price
from tacit.silo.chain import Notes, replay
from tacit.silo.ledger import inspect
from tacit.silo.pools import TRAINING, VALIDATION
from tests.deploy.server.test_statistics import DELTA, NAMES, SCHEMA, SIZES, led, rows_of, study_tree, write_silo
from tests.deploy.shuffler.parties import two_parties
from tests.deploy.silo.consortium import LocalClient, broadcast_of, led_by, plan_of, running

SHARE = 0.25
TRAINED = {"name": "mb-sgd", "num_rounds": 20, "step_size": 2.0, "clip_norm": 1.0, "sampling": "full"}
ASKED = [{"kind": "histogram", "columns": ["age"], "edges": {"age": list(range(0, 121, 10))}}]
WIDE = SCHEMA.model_copy(
    update={"columns": SCHEMA.columns | {"age": SCHEMA.columns["age"].model_copy(update={"low": 0.0, "high": 120.0})}}
)
"""A form allows for any age; who comes is known only to the silos."""


@pytest.fixture(scope="module")
def silos(tmp_path_factory):
    root = tmp_path_factory.mktemp("validated")
    folders = [write_silo(root / name, place, data={"validation": SHARE}) for place, name in enumerate(NAMES)]
    for folder in folders:
        (folder / "schema.toml").write_text(schema_text(WIDE))
    with running(folders) as daemons:
        yield daemons


@pytest.fixture(scope="module")
def done(silos, tmp_path_factory):
    """The three studies, one after the other, and the ledgers afterwards."""
    root = tmp_path_factory.mktemp("runs")
    asked = led(root / "asked", silos, study_tree({"name": "statistics", "statistics": ASKED}))
    ranges = ranges_of(json.loads((asked / "statistics.json").read_text()))
    tree = study_tree(TRAINED, epsilon=6.0, validation={"epsilon": 4.0, "groups": ["sex"]})
    tree["data"]["options"] = {"ranges": {name: list(own) for name, own in ranges.items()}}
    trained = led(root / "trained", silos, tree)
    entries = {d.folder.name: inspect(home_of(d.folder, load_policy(d.folder / "policy.toml")).ledger) for d in silos}
    return trained, ranges, entries


def test_the_histogram_becomes_ranges_of_the_model(done):
    trained, ranges, _ = done
    low, high = ranges["age"]
    assert 0 < low < 40
    assert 60 < high < 120
    model = load_model(trained)
    encode = lambda age: model.encode({"age": [age], "sex": ["f"]}).x[0, 0]  # noqa: E731
    assert encode(high) == pytest.approx(encode(120.0))
    assert encode(low) == pytest.approx(encode(0.0))
    assert encode((low + high) / 2) == pytest.approx(0.0, abs=1e-6)


def test_the_ledgers_of_both_pools_equal_the_accountant(done):
    """Each study is one reservation of one pool, made in full; its price is that of its events, and nothing else."""
    trained, _, ledgers = done
    facts = {silo["name"]: silo for silo in json.loads((trained / "validation.json").read_text())["silos"]}
    for size, (name, entries) in zip(SIZES, ledgers.items(), strict=True):
        split, accounts = Notes(entries).split, list(replay(entries).values())
        aside = round(SHARE * size)
        assert (split.training, split.validation) == (size - aside, aside)
        assert [own.pool for own in accounts] == [TRAINING, TRAINING, VALIDATION]
        statistics, training, validation = accounts
        assert {e.records for own in (statistics, training) for e in own.events} == {size - aside}
        [event] = validation.events
        assert (event.records, event.batch, event.sampling, event.count) == (aside, aside, "full", 1)
        paid = price(validation.debited(), delta=DELTA).epsilon
        assert paid == pytest.approx(facts[name]["epsilon_spent"], rel=1e-3)
        assert paid <= 4.0
        [gradients] = training.debited()
        assert (gradients.count, gradients.batch) == (20, size - aside)
        assert price(training.debited(), delta=DELTA).epsilon <= 6.0
        assert [e.kind for e in entries].count("debit") == 1 + 20 + 1
        assert not any(own.live for own in accounts)


def test_the_counts_say_how_the_model_does_at_every_silo(done):
    trained, _, _ = done
    facts = json.loads((trained / "validation.json").read_text())
    assert [silo["records"] for silo in facts["silos"]] == [round(SHARE * size) for size in SIZES]
    model = load_model(trained)
    every = [row for place in range(3) for row in rows_of(place)]
    table = {"age": [row[0] for row in every], "sex": [row[1] for row in every]}
    with pytest.warns(RowsWarning):
        exact = model.evaluate(table, [row[2] for row in every])
    row = {r["measure"]: r for r in facts["numbers"] if not r["group"] and not r["cell"]}
    assert row["accuracy"]["low"] - 0.1 < exact["accuracy"] < row["accuracy"]["high"] + 0.1
    assert row["AUC"]["low"] - 0.1 < exact["auc"] < row["AUC"]["high"] + 0.1
    assert {r["group"] for r in facts["numbers"]} >= {"sex = f", "sex = m", "sex = other", "sex = missing", "sex"}
    assert any(r["cell"] == "predicted yes, is no" for r in facts["numbers"])
    report = (trained / "report.html").read_text()
    assert "Did every silo gain?" in report
    assert (trained / "validation.png").stat().st_size > 1000
    journal = [json.loads(line) for line in (trained / "progress.jsonl").read_text().splitlines()]
    assert [row["event"] for row in journal][-2:] == ["validated", "finished"]


def test_a_model_can_be_asked_about_again_while_the_account_lasts(done, silos):
    trained, _, _ = done
    transport, told = SocketTransport([daemon.home.socket for daemon in silos]), []
    facts = evaluate_again(trained, transport, {"epsilon": 0.5}, tell=lambda event, row: told.append((event, row)))
    assert facts["epsilon"] == 0.5
    assert {silo["epsilon_spent"] <= 0.5 for silo in facts["silos"]} == {True}
    said = [row["text"] for event, row in told if event == "validating"]
    assert said[0] == "validation: waiting for their consent: s0, s1, s2"
    came = [text.partition(" has")[0] for text in said[1:4]]
    assert sorted(came) == list(NAMES)
    assert said[2].endswith(f"validation: waiting for their consent: {came[2]}")
    assert said[4:] == ["validation: s0, s1, s2 answered"]
    # The same once more is not asked: what was paid for is shown.
    paid, told[:] = debits(silos), []
    assert evaluate_again(trained, transport, {"epsilon": 0.5}, tell=lambda event, row: told.append(row)) == facts
    assert debits(silos) == paid
    assert "costs nothing" in told[-1]["text"]
    assert evaluate_again(trained, transport, {"epsilon": 0.5}, tell=quiet, again=True) != facts
    assert debits(silos) == [count + 1 for count in paid]
    with pytest.raises(RefusalError) as refused:
        evaluate_again(trained, transport, {"epsilon": 39.0}, tell=lambda event, row: None)
    assert refused.value.code in ("over-budget", "unpriceable")


def debits(silos):
    ledgers = [home_of(daemon.folder, load_policy(daemon.folder / "policy.toml")).ledger for daemon in silos]
    return [[entry.kind for entry in inspect(path)].count("debit") for path in ledgers]


def bundle_of(trained, tmp_path, silos, change=lambda text: text, **terms):
    """A copy of a model alone, as if it came from elsewhere, and a run folder around it."""
    shutil.copytree(trained / FOLDER, tmp_path / "bundle")
    path = tmp_path / "bundle" / "model.json"
    path.write_text(change(path.read_text()))
    folder = bundle_run(tmp_path / "bundle", tmp_path / "runs", epsilon=terms.get("epsilon"), delta=None)
    told = {"silos": 3, "folder": str(folder), "round_seconds": 120.0, **led_by(folder, *NAMES)}
    (folder / "deployment.toml").write_text(tomli_w.dumps(told))
    return folder, SocketTransport([daemon.home.socket for daemon in silos])


def quiet(event, facts):
    pass


@pytest.mark.parametrize("said", ["../../escaped/x", "/escaped", "a\n\x1b[2Jb", "..", ""])
def test_a_bundle_of_somebody_elses_writes_into_its_own_folder_alone(done, tmp_path, said):
    trained, _, _ = done
    shutil.copytree(trained / FOLDER, tmp_path / "bundle")
    path = tmp_path / "bundle" / "model.json"
    told = json.loads(path.read_text())
    told["training"]["study"] = said
    path.write_text(json.dumps(told))
    folder = bundle_run(tmp_path / "bundle", tmp_path / "runs", epsilon=1.0, delta=1e-6)
    assert folder.parent == tmp_path / "runs"
    assert folder.name.startswith("model-validation-")
    assert sorted(own.name for own in tmp_path.iterdir()) == ["bundle", "runs"]


def test_a_bundle_alone_is_enough_and_silos_make_its_features_by_its_ranges(done, silos, tmp_path):
    trained, ranges, _ = done
    first = json.loads((trained / "validation.json").read_text())
    folder, transport = bundle_of(trained, tmp_path, silos, epsilon=4.0)
    facts = evaluate_again(folder, transport, tell=quiet)
    point = load_checkpoint(folder / "validation" / "checkpoint.npz", fresh_state)
    assert point.plan.ranges == {"age": pytest.approx(ranges["age"])}
    assert point.plan.purpose == "Test the finished model of asked, which predicts ill, on records set aside."
    assert (facts["epsilon"], facts["study"]) == (4.0, first["study"])
    for name in ("accuracy", "AUC"):
        one, other = (main_row(own["numbers"], name) for own in (first, facts))
        assert one["low"] <= other["value"] <= one["high"]
    assert (folder / "validation.png").is_file()
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize(
    ("old", "new"), [('"f",', '"g",'), ('"age"', '"years"'), ('"classes": [\n   "no"', '"classes": [\n   "never"')]
)
def test_a_model_of_other_columns_levels_or_classes_is_refused_before_anybody_is_asked(done, silos, tmp_path, old, new):
    def change(text):
        assert old in text
        return text.replace(old, new)

    folder, transport = bundle_of(done[0], tmp_path, silos, change, epsilon=1.0)
    with pytest.raises(TacitError, match="columns, levels, units or classes differ"):
        evaluate_again(folder, transport, tell=quiet)
    assert not (folder / "validation").exists()


def test_a_question_that_was_left_open_is_not_answered_in_place_of_another(done, silos, tmp_path, monkeypatch):
    """The first was consented to and never played: its reservation ends, and only what is asked now is paid."""
    folder, transport = bundle_of(done[0], tmp_path, silos, epsilon=3.0)

    def stalls(coordinator):
        coordinator.propose()
        raise StalledError("away")

    path = folder / "validation" / "checkpoint.npz"
    with monkeypatch.context() as only_here:
        only_here.setattr(Coordinator, "run", stalls)
        with pytest.raises(StalledError):
            evaluate_again(folder, transport, tell=quiet)
        left = load_checkpoint(path, fresh_state).plan
        with pytest.raises(StalledError):
            evaluate_again(folder, transport, tell=quiet)
        assert load_checkpoint(path, fresh_state).plan == left, "the same question goes on"
    facts = evaluate_again(folder, transport, {"epsilon": 0.25}, tell=quiet)
    assert facts["epsilon"] == 0.25
    for daemon in silos:
        accounts = replay(inspect(home_of(daemon.folder, load_policy(daemon.folder / "policy.toml")).ledger))
        assert not any(own.live for own in accounts.values())
        assert [[e.count for e in own.debited()] for own in accounts.values()][-2:] == [[0], [1]]


def test_a_study_through_shufflers_is_validated_through_them(tmp_path):
    """Without coins: the counts are those of the records set aside, and no silo's own are told."""
    algorithm = {**TRAINED, "num_rounds": 2, "channel": "shuffled-sum"}
    with two_parties(tmp_path, NAMES) as (parties, seals):
        shuffle, allow = {"shufflers": seals, "colluding": 0}, {"channels": ["shuffled-sum"]}
        own = {"data": {"validation": SHARE}, "shuffle": shuffle, "allow": allow, "test": True}
        folders = [write_silo(tmp_path / name, place, **copy.deepcopy(own)) for place, name in enumerate(NAMES)]
        with running(folders, noise_off=True) as daemons:
            entries = [party.entry() for party in parties]
            root = led(tmp_path / "run", daemons, study_tree(algorithm, epsilon=6.0), shufflers=entries)
    facts = json.loads((root / "validation.json").read_text())
    assert (facts["channel"], [silo["numbers"] for silo in facts["silos"]]) == ("shuffled-sum", [None] * 3)
    model, right, count = load_model(root), 0, 0
    for place, daemon in enumerate(daemons):
        entries = inspect(home_of(daemon.folder, load_policy(daemon.folder / "policy.toml")).ledger)
        rows = [rows_of(place)[i] for i in Notes(entries).split.rows(VALIDATION)]
        with pytest.warns(RowsWarning):
            guess = model.predict({"age": [row[0] for row in rows], "sex": [row[1] for row in rows]})
        right, count = right + sum(g == row[2] for g, row in zip(guess, rows, strict=True)), count + len(rows)
        assert [own.pool for own in replay(entries).values()] == [TRAINING, VALIDATION]
    assert main_row(facts["numbers"], "accuracy")["value"] == pytest.approx(right / count, abs=1e-3)
    noise = main_row(facts["numbers"], "accuracy")
    assert noise["high"] - noise["low"] > 2 * 1.96 * np.sqrt(0.25 / count), "the interval knows of the coins"


@pytest.fixture
def alone(tmp_path):
    from tests.deploy.silo.consortium import make_home, records_of

    made = []

    def make(table=None, description=None, **data):
        from tacit.deploy.silo.service import SiloService

        folder = tmp_path / f"silo{len(made)}"
        allow = {"algorithms": ["mb-sgd", "validation"], "min_silos": 2}
        table = records_of(0, 100) if table is None else table
        home, policy = make_home(folder, table, allow=allow, data=data)
        made.append(SiloService(policy, table, home, description=description))
        return LocalClient(made[-1])

    yield make
    for service in made:
        service.close()


def test_a_silo_that_sets_nothing_aside_validates_nothing(alone):
    client = alone()
    assert client.ask(Hello())[0].validation is None
    with pytest.raises(RefusalError, match="set no records aside"):
        client.ask(Propose(plan=plan_of({"name": "validation", "num_rounds": 1, "step_size": 1.0, "clip_norm": None})))


SURVIVAL = {"loss": "piecewise-exponential", "bins": 3}
TIMES = {"x": np.ones((100, 5), np.float32), "y": np.linspace(-1.0, 1.0, 100, dtype=np.float32)}
ASKED_OF_TIMES = {"name": "validation", "asked": {}, "num_rounds": 1, "step_size": 1.0, "clip_norm": None}


def test_survival_is_validated_by_counts_of_risk_time_and_event(alone):
    client = alone(TIMES, task="regression", classes=None, validation=0.2)
    plan = plan_of(ASKED_OF_TIMES, SURVIVAL, task="regression", classes=None)
    client.ask(Propose(plan=plan))
    specs, payload = broadcast_of(plan)
    answer, _ = client.ask(Answer(study=plan.study, round=0, arrays=specs), payload)
    [cells] = [spec.shape for spec in answer.arrays]
    assert cells == (10 * 9 * 2,)
    [event] = client.service._ledger.accounts[plan.study].debited()
    assert (event.kind, event.records) == ("validation", 20)


def test_a_number_that_was_scaled_is_no_survival_time(alone):
    """It would count every record as an event, and say nothing about it."""
    column = {"name": "age", "kind": "number", "low": 0.0, "high": 1.0, "log": False, "missing": False}
    told = Description(
        features=(5,),
        task="regression",
        encoding=1,
        norm="box",
        target=TargetDescription(column="days", low=-10.0, high=10.0),
        columns=tuple(ColumnDescription(**{**column, "name": f"c{i}"}) for i in range(5)),
    )
    client = alone(TIMES, told, task="regression", classes=None, validation=0.2)
    for algorithm in (ASKED_OF_TIMES, {"name": "mb-sgd"}):
        plan = plan_of(algorithm, SURVIVAL, task="regression", classes=None, schema_digest=told.digest)
        with pytest.raises(RefusalError, match="days is a number that was scaled"):
            client.ask(Propose(plan=plan))


def test_a_silo_says_both_sizes_and_trains_on_one(alone):
    client = alone(validation=0.2)
    told = client.ask(Hello())[0]
    assert (told.records, told.validation) == (80, 20)
    plan = plan_of({"name": "mb-sgd", "sampling": "full"})
    client.ask(Propose(plan=plan))
    ledger = client.service._ledger
    assert {e.records for e in ledger.accounts[plan.study].events} == {80}
    assert ledger.charged_in(VALIDATION) == 0.0
    records = client.service._pools
    whole = client.service._records["x"]
    assert len(np.unique(np.concatenate([records[TRAINING]["x"], records[VALIDATION]["x"]]), axis=0)) == len(whole)


def test_ranges_need_a_schema(alone):
    client = alone(validation=0.2)
    with pytest.raises(RefusalError, match="encoded before"):
        client.ask(Propose(plan=plan_of({"name": "mb-sgd"}, ranges={"age": (1.0, 2.0)})))


def test_a_silo_makes_the_features_that_the_model_card_says(tmp_path):
    """From its cells, by the ranges of a plan: what encoding the file anew by these ranges would give."""
    from tacit.data.csv_silos import encode_file, encoding_of, read_csv, reencoded, silo_records
    from tacit.data.schema import with_ranges

    folder = write_silo(tmp_path / "s0", 0)
    records = silo_records(folder / "records.csv", folder / "schema.toml", tell=lambda line: None)
    ranges = {"age": (31.5, 66.0)}
    narrow = with_ranges(SCHEMA, ranges)
    raw, _ = encode_file(read_csv(folder / "records.csv"), narrow)
    found = reencoded(records["columns"], SCHEMA, ranges)
    np.testing.assert_allclose(found, encoding_of(narrow).apply(raw), atol=1e-5)
    for wrong in ({"age": (10.0, 50.0)}, {"age": (50.0, 40.0)}, {"sex": (0.0, 1.0)}):
        with pytest.raises(DataError):
            with_ranges(SCHEMA, wrong)
