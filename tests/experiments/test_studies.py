"""The studies from end to end with made-up training: every point is built and priced, chosen, drawn and written."""

import json
import math

import numpy as np
import pytest

from experiments import breast_cancer_mlp, convex_private, real_silos
from experiments.common import Runner
from experiments.folder import PROTOCOL
from experiments.gallery import EXHIBITS
from experiments.spider import PRINTED, RULES, finding, methods, told
from tacit import data
from tacit.errors import TacitError


def made_up(self, points, seed):
    """An error with a known best move, after building the algorithm at every point."""
    for point in points:
        self.build(**point)
    far = np.array([abs(math.log(point["move"] / point.get("clip_norm", 1.0))) for point in points])
    error = 0.1 + 0.02 * far
    return {"validation_error": error, "train_loss": error, "test_error": error}


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.setattr(Runner, "__call__", made_up)
    breast_cancer_mlp.EXPERIMENT.main(["--tiny", "--out", str(tmp_path / "breast-cancer-mlp")])
    return tmp_path / "breast-cancer-mlp"


def test_a_study_is_tuned_written_and_put_on_its_card(study):
    found = json.loads((study / "data.json").read_text())
    assert found["protocol"] == PROTOCOL
    page = (study / "README.md").read_text()
    for printed in PRINTED.values():
        assert f"{printed:+.2f}" in page
    assert "level" in page
    silos = dict(zip(found["silos"], found["records"], strict=True))
    for name, n in silos.items():
        assert f"{name} {n}" in page
    card = EXHIBITS["breast-cancer-mlp"].card(study.parent)
    assert card.found == finding(found["settings"]).found != EXHIBITS["breast-cancer-mlp"].found
    assert card.verdict == "level"


def test_a_page_with_a_choice_at_an_edge_is_not_written(study):
    found = json.loads((study / "data.json").read_text())
    cell = next(iter(found["settings"].values()))["curves"]["validation"]["MB-SGD"][0]
    cell["point"]["move"] = max(cell["axes"]["move"])
    with pytest.raises(TacitError, match="MB-SGD"):
        told(found["settings"])


def test_spider_is_the_best_of_what_its_authors_tried():
    lines = methods((0.1,), {"local_steps": 4})
    labels = [method.label for method in lines["SPIDER"]]
    assert "MB-SGD" in labels  # q = 1
    assert {"Algorithm 3, q=2", "Algorithm 11", "Algorithm 3, q=3, sigma_2 infinite"} <= set(labels)
    assert set(RULES) == {"validation", "training loss"}


def test_what_others_print_is_priced_again():
    [row] = [row for row in real_silos.SETS["heart-disease"]["published"] if "certify" in row]
    found = real_silos.certified(row["certify"], row["epsilon"])
    assert found["least"] == pytest.approx([1.31, 1.42, 3.74, 2.08], abs=0.03)
    assert all(ours > least for ours, least in zip(found["replaced"], found["least"], strict=True))


def test_every_set_of_real_silos_makes_a_study():
    for name, row in real_silos.SETS.items():
        study = real_silos.study_of(name, (0, 1), channel=row["channels"][0], epsilon=4.0)
        assert study.privacy.epsilon == 4.0
        assert real_silos.study_of(name, (0,), epsilon=None).privacy.private is False
        assert {"title", "note", "published", "metric", "over"} <= set(row)


def test_adult_is_divided_by_employer():
    try:
        found = data.load("adult", partition="natural")
    except data.DataError:
        pytest.skip("the data set is not on this machine")
    sizes = {silo.name: len(silo.train["y"]) for silo in found.silos}
    assert list(sizes) == [
        "private companies",
        "self-employed",
        "federal government",
        "local government",
        "state government",
        "others",
    ]
    assert max(sizes, key=sizes.get) == "private companies"
    whole = data.load("adult", partition="iid", silos=1)
    assert sum(sizes.values()) == pytest.approx(len(whole.silos[0].train["y"]), abs=6)


def test_the_population_risk_is_known_exactly():
    """By brute force: the excess of a model over the truth, on very many fresh records of all silos."""
    rng = np.random.default_rng(0)
    tables, truth = convex_private.regression(rng, 40_000, 0.3)
    w = truth + 0.2 * convex_private.sphere(rng, 1)[0]
    x, y = (np.concatenate([part[k] for part in tables]) for k in ("x", "y"))
    excess = 0.5 * np.mean((x @ w - y) ** 2 - (x @ truth - y) ** 2)
    assert excess == pytest.approx(0.2**2 / (2 * convex_private.DIMENSION), rel=0.1)


def test_the_least_absolute_error_is_found():
    rng = np.random.default_rng(0)
    x, y = np.ones((101, 1)), rng.normal(size=101)
    assert convex_private._median(x, y) == pytest.approx(np.abs(y - np.median(y)).mean(), abs=1e-5)
