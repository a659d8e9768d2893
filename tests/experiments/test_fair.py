"""Comparisons of fairness experiments are at equal error, and the page tells what was swept."""

import json

import numpy as np
import pytest

from experiments.fair.compare import dominated, headline, joined, least_violation, pairs, spread
from experiments.fair.driver import experiment
from experiments.fair.page import swept
from experiments.fair.training import Trainer, shuffled
from tacit import data


def cell(*spots):
    return {"error": [[e] for e, _ in spots], "violation": [[v] for _, v in spots], "dials": [0.0] * len(spots)}


def test_violations_are_compared_at_equal_error():
    ours = cell((0.19, 0.02), (0.2, 0.01), (0.21, 0.0))
    assert least_violation(ours, 0.195) == pytest.approx(0.015)
    assert least_violation(ours, 0.3) == 0.0
    assert least_violation(ours, 0.18) is None
    other = cell((0.195, 0.03), (0.18, 0.5), (0.2, 0.04), (0.3, 0.0))
    found, theirs_alone, ours_alone = pairs(ours, other)
    # Errors 0.19, 0.2 and 0.21 are ours, 0.195, 0.2 and 0.3 theirs; only they reach 0.18.
    assert [own for own, _ in found] == pytest.approx([0.02, 0.01, 0.0, 0.015, 0.01, 0.0])
    assert [theirs for _, theirs in found] == pytest.approx([0.5 - 0.47 * 2 / 3, 0.03, 0.03, 0.03, 0.03, 0.0])
    assert (theirs_alone, ours_alone) == (1, 0)
    near = cell((0.2, 0.02), (0.3, 0.02))
    got = headline({"0.0": {"SteFFLe": {"1.0": ours}, "other": {"1.0": near}}}, "other")
    assert (got["points"], got["theirs_alone"], got["ours_alone"]) == (4, 0, 1)
    assert got["mean"] == pytest.approx((0.5 + 1 + 0.5 + 1) / 4)
    assert got["total"] == pytest.approx(1 - 0.02 / 0.08)
    far = {"0.0": {"SteFFLe": {"1.0": cell((0.3, 0.1))}, "other": {"1.0": cell((0.4, 0.0))}}}
    assert np.isnan(headline(far, "other")["mean"])


def test_a_share_has_the_interval_of_its_seeds():
    noise = np.random.default_rng(1).normal(scale=0.002, size=(3, 40))

    def curve(level):
        return {"error": [[e] * 40 for e in (0.1, 0.2, 0.3)], "violation": (level + noise).tolist()}

    panels = {"0.0": {"SteFFLe": {"1.0": curve(0.05)}, "other": {"1.0": curve(0.1)}}}
    (low, high), share = spread([panels], "other")["mean"], headline(panels, "other")["mean"]
    assert low < share < high < low + 0.02
    assert share == pytest.approx(0.5, abs=0.01)


def test_two_curves_of_a_method_become_one():
    first, second = (
        {"1.0": {**cell(spot), "by_chance": [[0.0]], "setting": n}} for n, spot in enumerate([(1, 2), (3, 4)])
    )
    both = joined(first, second)["1.0"]
    assert (both["error"], both["violation"], both["setting"]) == ([[1], [3]], [[2], [4]], [0, 1])
    assert least_violation(both, 3.0) == 2.0


def test_settings_are_judged_by_the_area_they_dominate():
    corner = (0.3, 0.2)
    assert dominated([(0.1, 0.2), (0.3, 0.0)], corner) == 0.0
    assert dominated([(0.2, 0.1)], corner) == pytest.approx(0.1 * 0.1)
    assert dominated([(0.2, 0.1), (0.25, 0.15)], corner) == pytest.approx(0.1 * 0.1)
    assert dominated([(0.2, 0.1), (0.25, 0.0)], corner) == pytest.approx(0.05 * 0.1 + 0.05 * 0.2)
    assert dominated([(0.2, 0.5)], corner) == 0.0


def test_shuffled_attributes_keep_their_number_and_depend_on_nothing():
    y, s = np.tile([0, 1, 1, 1], 500), np.tile([0, 0, 1, 1], 500)
    found = shuffled({"y": y, "s": s})
    assert found["parity_gap"].sum() == found["odds_gap"].sum() == s.sum()
    assert abs(y[found["parity_gap"] == 1].mean() - y.mean()) < 0.05
    # Given the target, the shares of the groups stay as they are.
    assert found["odds_gap"][y == 1].mean() == s[y == 1].mean()
    assert (found["odds_gap"] != s).any()


def test_the_page_tells_both_ends_of_a_sweep():
    spots = [{"error": [0.1, 0.1], "parity_gap": [0.2, 0.2]}, {"error": [0.3, 0.3], "parity_gap": [0.4, 0.4]}]
    found = swept({"levels": [0.0, 0.9], "silos": [1, 12], "by_level": spots, "by_silos": {"0.0": spots[::-1]}})
    assert [line.replace(" ± 0.0000", "") for line in found] == [
        "h from 0.0 to 0.9 at N = 3: error 0.1000 to 0.3000, violation 0.2000 to 0.4000",
        "N from 1 to 12 at h = 0.0: error 0.3000 to 0.1000, violation 0.4000 to 0.2000",
    ]
    assert all(line.count(" ± 0.0000") == 4 for line in found)


def test_methods_are_tuned_on_one_grid_and_written(tmp_path, monkeypatch):
    """Training is replaced by made-up errors with a best step of 8 for everybody; points are built and priced."""
    try:
        data.load("credit-card", partition="attribute", silos=3, level=0.0, records_per_silo=300)
    except data.DataError:
        pytest.skip("the data set is not on this machine")
    built = set()

    def run(self, points, numbers, level):
        if self.method.name not in built:
            self.method.build(**points[0])
            built.add(self.method.name)
        far = np.array([abs(np.log(p["step_size"] / 8)) + abs(np.log(p.get("clip_norm", 0.5) / 0.5)) for p in points])
        far = far + np.array([abs(np.log(p.get("dual_step_size", 0.5) / 0.5)) for p in points])
        if self.method.name == "FedAvg":
            far = np.array([abs(np.log(p["step_size"])) for p in points])
        if self.method.name == "Tran et al.":
            far = np.array([abs(np.log(p["step_size"] / 8)) + abs(np.log(p["clip_norm"] / 2)) for p in points])
        one = np.tile(0.1 + 0.01 * far, (len(list(numbers)), 1))
        names = ("error", "parity_gap", "odds_gap", "parity_gap_by_chance", "odds_gap_by_chance")
        # Central training is unfair, so that everybody else dominates some area.
        unfair = 3.0 if self.method.name == "central ERM" else 0.5
        scaled = {name: one if name == "error" else unfair * one for name in names}
        return {f"{part}_{name}": values for part in ("validation", "test") for name, values in scaled.items()}

    monkeypatch.setattr(Trainer, "run", run)
    folder = tmp_path / "credit-card-fair"
    experiment("credit-card-fair").main(["--tiny", "--out", str(folder), "--parts", "demographic-parity"])
    found = json.loads((folder / "data.json").read_text())["curves"]["demographic-parity"]
    for curves in found.values():
        for name in ("SteFFLe", "central DP-FERMI", "Tran et al."):
            for cell in curves[name].values():
                assert cell["choice"]["point"]["step_size"] == 8.0
                assert set(cell["choice"]["axes"]["step_size"]) >= {2.0, 4.0, 8.0, 16.0}
        assert curves["FedFDP"]["1.0"]["second_choice"]["point"]["step_size"] == 8.0
    assert "one grid of steps" in " ".join((folder / "README.md").read_text().split())
