"""Survival from CSV files over real daemons: curves, then hazards, then concordance; and the bundle's predictions."""

import csv
import json

import numpy as np
import pytest
import tomli_w

from tacit.counting.validated import main_row
from tacit.data.schema import schema_from, schema_text
from tacit.deploy.permissions import write_secret
from tacit.deploy.silo.policy import load_policy
from tacit.deploy.silo.service import home_of
from tacit.models.loading import load_model
from tacit.plans.catalogue import shipped
from tacit.privacy import price
from tacit.silo.chain import replay
from tacit.silo.ledger import inspect
from tests.data.test_survival import TREE, patients
from tests.deploy.server.test_statistics import DELTA, NAMES, led, study_tree
from tests.deploy.silo.consortium import policy_tree, running, silo_key

COUNT = 400
ASKED = [{"kind": "survival", "columns": ["days", "died"], "by": "sex", "bins": 6}]
TRAINED = {"name": "mb-sgd", "num_rounds": 15, "step_size": 1.0, "clip_norm": 0.5, "sampling": "full"}


@pytest.fixture(scope="module")
def silos(tmp_path_factory):
    root, folders = tmp_path_factory.mktemp("survival"), []
    for place, name in enumerate(NAMES):
        folder = root / name
        folder.mkdir(mode=0o700)
        write_secret(folder / "records.csv", patients(place, COUNT))
        write_secret(folder / "schema.toml", schema_text(schema_from(TREE, "test")))
        data = {"file": "records.csv", "columns": "schema.toml", "task": "regression", "classes": None}
        allow = {"algorithms": sorted(shipped()), "min_silos": 2}
        tree = policy_tree(name, allow=allow, data={**data, "validation": 0.4})
        write_secret(folder / "policy.toml", tomli_w.dumps(tree))
        write_secret(folder / "sign.key", silo_key(name))
        folders.append(folder)
    with running(folders) as daemons:
        yield daemons


def test_curves_then_hazards_then_concordance(silos, tmp_path):
    asked = led(tmp_path / "asked", silos, study_tree({"name": "statistics", "statistics": ASKED}, epsilon=4.0))
    curves = json.loads((asked / "statistics.json").read_text())["statistics"][0]["rows"]
    women = [row["value"] for row in curves if row["group"] == "f" and row["measure"] == "survival"]
    assert women == pytest.approx([kaplan_meier(3650 * part / 6) for part in range(1, 7)], abs=0.12)
    objective = {"loss": "piecewise-exponential", "bins": 4}
    tree = study_tree(TRAINED, epsilon=8.0, objective=objective, validation={"epsilon": 8.0})
    root = led(tmp_path / "trained", silos, tree)
    told = main_row(json.loads((root / "validation.json").read_text())["numbers"], "concordance")
    model = load_model(root)
    found = model.evaluate(cells(patients(7, 600)))
    assert found["concordance"] > 0.65
    assert told["low"] - 0.05 < found["concordance"] < told["high"] + 0.05
    times, lives = model.predict_survival({"age": ["40", "80"], "sex": ["f", "f"]})
    assert times.tolist() == [912.5, 1825.0, 2737.5, 3650.0]
    assert (lives[0] > lives[1]).all(), "the young live longer"
    for daemon in silos:
        entries = inspect(home_of(daemon.folder, load_policy(daemon.folder / "policy.toml")).ledger)
        assert [own.pool for own in replay(entries).values()] == ["training", "training", "validation"]
        for own, epsilon in zip(replay(entries).values(), (4.0, 8.0, 8.0), strict=True):
            assert 0.98 * epsilon < price(own.debited(), delta=DELTA).epsilon <= epsilon


def kaplan_meier(until):
    """The share of women that lives until then, by the product limit over all silos' records."""
    tables = [cells(patients(place, COUNT)) for place in range(3)]
    days, died, sex = (np.concatenate([np.array(own[name]) for own in tables]) for name in ("days", "died", "sex"))
    days, died = days.astype(float)[sex == "f"], (died == "yes")[sex == "f"]
    ends = np.unique(days[died & (days < until)])
    return float(np.prod([1 - (died & (days == t)).sum() / (days >= t).sum() for t in ends]))


def cells(text):
    header, *rows = csv.reader(text.splitlines())
    return dict(zip(header, map(list, np.array(rows).T), strict=True))
