"""The California housing study: its step rule, its resumption, and every part of it but the training itself."""

import json
from functools import cache

import numpy as np
import pytest

from experiments import california_housing_mlp as study
from tacit import data
from tacit.plans.spec import load_study

apart = cache(study.apart)  # both tests that need it train once


def test_finished_parts_are_not_computed_again(tmp_path):
    made = []
    for _ in range(2):
        found = study.Study(tmp_path, study.TINY).parts.get("An arm, 0.8", lambda: made.append(1) or {"a": 1})
    assert (found, made) == ({"a": 1}, [1])


def test_the_shipped_study_is_the_papers_setting():
    shipped = load_study("california-housing-mlp")
    assert (shipped.algorithm.num_rounds, shipped.algorithm.channel) == (500, "shuffled-reports")
    assert shipped.objective.hidden == (study.HIDDEN,)


def test_prices_choices_tables_and_figures_fit_together(tmp_path, monkeypatch):
    """Training is replaced by made-up traces; every arm is built, priced, chosen, drawn and written."""
    try:
        data.load("california-housing", silos=10, records_per_silo=30)
    except data.DataError:
        pytest.skip("the data set is not on this machine")

    def made_up(build, points, seeds, every):
        for point in points:
            build(**point)
        steps = np.array([1 + abs(np.log(point["step_size"])) for point in points])[None, :, None]
        looks = np.linspace(0.05, 0.01, 10)[None, None] * np.ones((len(seeds), 1, 1)) * steps
        return dict.fromkeys(("train_loss", "squared_gradient", "test_loss"), looks)

    def tried(self, points, seed):
        for point in points:
            self.build(**point)
        return {"train_loss": np.array([1 + abs(np.log(point["step_size"])) for point in points])}

    monkeypatch.setattr(study, "traces", made_up)
    monkeypatch.setattr(study.Runner, "__call__", tried)
    monkeypatch.setattr(study, "SPLITS", {"difference_noise": (1.0,), "local_noise": (1.0,)})
    monkeypatch.setattr(study, "apart", apart)
    folder = tmp_path / study.EXPERIMENT.name
    study.EXPERIMENT.main(["--tiny", "--out", str(folder)])
    written = json.loads((folder / "data.json").read_text(encoding="utf-8"))
    private = [c for label, by in written["curves"].items() if label != "not private" for c in by.values()]
    assert len(private) == 7
    assert all(0 < c["epsilon"] <= 0.8 for c in private)
    duchi, privunit = (written["curves"][f"MB-PSGM-FG, {name} reports"]["0.8"] for name in ("Duchi", "PrivUnit2"))
    assert duchi["bytes_per_silo_and_round"] < privunit["bytes_per_silo_and_round"] / 40
    assert duchi["without_shuffler"] > duchi["epsilon"]
    page = (folder / "README.md").read_text(encoding="utf-8")
    assert "which is not private" in " ".join(page.split())
    assert "level" in page
    local = written["curves"]["CE-PSGM, PrivUnit2 reports"]["0.8"]["chosen"]
    assert local["local_noise"] > 1
    assert local["difference_noise"] > 1
    assert {"figure.png", "heterogeneity.png"} <= {path.name for path in folder.iterdir()}


def test_sorting_by_target_moves_gradients_further_apart_than_hessians():
    try:
        alike, sorted_ = (apart(study.TINY, level) for level in (0.0, 1.0))
    except data.DataError:
        pytest.skip("the data set is not on this machine")
    assert sorted_["target"] > 3 * alike["target"]
    grown = {name: sorted_[name] / alike[name] for name in ("gradient", "hessian")}
    assert grown["gradient"] > 1.5 * grown["hessian"]
    assert 0 < sorted_["hessian"] < sorted_["smoothness"]
