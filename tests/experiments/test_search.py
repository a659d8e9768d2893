"""Tuning finds the best point, goes on where it stopped, and never ends at the edge of its grid."""

import json

import numpy as np
import pytest

from experiments.common import interval, verdict
from experiments.search import Space, Trials, edges, refuse_edges, search
from tacit.errors import TacitError


class Bowl:
    """Scores with a known optimum, and a count of what was run."""

    def __init__(self, step=16.0, clip=1.0):
        self.step, self.clip, self.runs = step, clip, []

    def __call__(self, points, seed):
        self.runs += [(point["step"], point["clip"], seed) for point in points]
        far = [np.log(p["step"] / self.step) ** 2 + np.log(p["clip"] / self.clip) ** 2 for p in points]
        noise = [0.01 * np.sin(7 * seed + p["step"]) for p in points]
        return {"validation_error": np.array(far) + noise, "train_loss": -np.array(far)}


SPACE = Space("method", {"step": (1.0, 2.0, 4.0), "clip": (0.5, 1.0, 2.0)})


def test_the_grid_grows_until_the_choice_lies_inside(tmp_path):
    bowl = Bowl()
    found = search(SPACE, Trials(tmp_path / "trials.jsonl", 1), bowl, "validation_error")
    assert found["point"] == {"step": 16.0, "clip": 1.0}
    assert edges(found["point"], found["axes"], {}) == {}
    assert len(found["validation_error"]) == 3
    refuse_edges({"method": found})


def test_most_points_are_tried_on_one_seed_alone(tmp_path):
    bowl = Bowl(step=2.0)
    search(SPACE, Trials(tmp_path / "trials.jsonl", 1), bowl, "validation_error")
    by_seed = [sum(seed == number for *_, seed in bowl.runs) for number in range(3)]
    assert by_seed[0] == 9
    assert by_seed[1] == by_seed[2] == 3


def test_a_search_goes_on_where_it_stopped_and_rules_share_their_trials(tmp_path):
    path, bowl = tmp_path / "trials.jsonl", Bowl(step=2.0)

    def stops(points, seed):
        if seed == 1:
            raise KeyboardInterrupt
        return bowl(points, seed)

    with pytest.raises(KeyboardInterrupt):
        search(SPACE, Trials(path, 1), stops, "validation_error")
    found = search(SPACE, Trials(path, 1), bowl, "validation_error")
    assert len(bowl.runs) == len(set(bowl.runs))
    again = Bowl(step=2.0)
    assert search(SPACE, Trials(path, 1), again, "validation_error") == found
    assert again.runs == []
    search(SPACE, Trials(path, 2), again, "validation_error")
    assert again.runs


def test_axes_that_come_later_are_searched_around_the_best_point(tmp_path):
    tried = []

    def run(points, seed):
        tried.extend((p["step"], p["ratio"], p["slope"]) for p in points)
        # The best step depends on the ratio, as it may where noise does.
        far = [np.log(p["step"] / 2 / p["ratio"]) ** 2 + np.log(p["ratio"] / 4) ** 2 + p["slope"] for p in points]
        return {"train_loss": np.array(far)}

    axes = {"step": (1.0, 2.0, 4.0), "ratio": (0.5, 1.0, 2.0), "slope": (0.1, 0.3, 0.9)}
    space = Space("m", axes, ends={"slope": (0.1,)}, later=("ratio", "slope"))
    found = search(space, Trials(tmp_path / "t", 0), run, "train_loss")
    assert {point[1:] for point in tried[:3]} == {(1.0, 0.3)}
    assert found["point"] == {"step": 8.0, "ratio": 4.0, "slope": 0.1}
    assert found["tried"] == len({*tried}) < 3 * 5 * 5


def test_an_axis_may_end_by_its_nature_and_a_page_refuses_other_edges():
    choice = {"point": {"ratio": 9.0, "step": 2.0}, "axes": {"ratio": [1.0, 9.0], "step": [1.0, 2.0, 4.0]}, "ends": {}}
    with pytest.raises(TacitError, match="SPIDER: ratio=9"):
        refuse_edges({"SPIDER": choice})
    refuse_edges({"SPIDER": {**choice, "ends": {"ratio": [9.0]}}})
    refuse_edges({"SPIDER": json.loads(json.dumps({**choice, "ends": {"ratio": [9.0]}}))})


def test_a_run_that_diverged_is_never_chosen(tmp_path):
    def run(points, seed):
        return {"validation_error": np.array([np.nan if p["step"] > 1 else 0.5 for p in points])}

    space = Space("m", {"step": (0.5, 1.0, 2.0)})
    assert search(space, Trials(tmp_path / "t", 0), run, "validation_error")["point"]["step"] <= 1.0


def test_differences_inside_their_interval_are_level():
    assert verdict(interval([0.1, -0.1, 0.05, 0.0, -0.02])) == "level"
    assert verdict(interval([-1.0, -1.1, -0.9])) == "below"
    assert verdict(interval([1.0, 1.1, 0.9])) == "above"
