"""The papers' experiments on small sizes: what their pages claim can be seen in seconds, or fails."""

import json

import jax
import numpy as np
import pytest

from experiments.folder import Parts
from experiments.nonconvex_rates import metered
from experiments.sdp_against_central import compare, ratio
from experiments.sparse_regression import Sizes
from experiments.support_recovery import recovery
from tacit import geometry
from tacit.objectives import Objective, Problem, linear, softmax
from tacit.plans.catalogue import find
from tacit.silo import enrol
from tacit.simulate.compiled import simulate


def test_the_shuffled_sum_is_near_central_dp_and_far_from_noise_at_every_silo():
    sizes = Sizes(silos=4, records=400, features=30)
    terms = {"mb-sgd": {"num_rounds": 8, "step_size": 10.0, "clip_norm": 0.5, "output": "last"}}
    found = compare(sizes, geometry.squared_l2(0.001), range(16), (1.0,), terms)["algorithms"]["mb-sgd"]
    [near], excess = found["sdp_over_central"], {c: row[0]["mean"] for c, row in found["excess"].items()}
    assert near["mean"] == pytest.approx(excess["shuffled-sum"] / excess["trusted"])
    assert 0.8 < near["mean"] < 1.4  # three deviations of 16 draws around 1.09
    assert excess["direct"] > 2.5 * excess["trusted"]  # four silos: four times the variance


def test_a_ratio_of_paired_means_knows_its_spread():
    rng = np.random.default_rng(0)
    shared, other = rng.normal(5, 1, 400), rng.normal(5, 0.1, 400)
    assert ratio(2 * shared, shared) == {"mean": pytest.approx(2.0), "half90": pytest.approx(0.0, abs=1e-9)}
    assert ratio(shared, other)["half90"] == pytest.approx(1.645 * 0.2 / 20, rel=0.1)


@pytest.mark.parametrize(("penalty", "strength"), [("lasso", 0.008), ("group lasso", 0.012)])
def test_the_support_is_found_privately_and_not_for_free(penalty, strength):
    sizes = Sizes(silos=4, records=500, features=30)
    terms = {"strength": strength, "clip_norm": 0.4, "num_rounds": 6}
    rows = recovery(sizes, penalty, "shuffled-sum", range(5), (0.05, 8.0), **terms)
    assert rows[1]["exact"] == 1.0
    assert rows[0]["exact"] < 0.5
    assert rows[0]["missed"] + rows[0]["false"] > 1


DATA = np.random.default_rng(0).normal(size=(3, 20, 4)).astype(np.float32)
MODEL = Objective(linear(4, 2), softmax())


def silos(scale=1.0):
    return enrol([{"x": scale * x, "y": (x[:, 0] > 0).astype(np.int32)} for x in DATA])


def test_meters_change_nothing_and_add_up_the_noise():
    problem, start = Problem(MODEL), MODEL.init(jax.random.key(0))
    size = sum(leaf.size for leaf in jax.tree.leaves(start))
    common = {"clip_norm": 0.5, "noise_multiplier": 0.7, "num_rounds": 5, "step_size": 0.1}
    common |= {"batch_size": None, "sampling": "full"}
    sizes = {"records": 20, "silos": 3, "dimension": size, "step_size": 0.1}
    fresh = size * (0.7 * 2 * 0.5 / 20) ** 2 / 3
    reduced = {**common, "phase_length": 5, "difference_slope": None, "difference_noise": 1.0}
    # Differences are clipped to 2C, so that each has four times the variance of an anchor.
    for made, adds_up, released, held in (
        (find("mb-sgd").build(problem, output="last", **common), False, 5, 5),
        (find("prox-spider").build(problem, **reduced), True, 1 + 4 * 4, 1 + 5 + 9 + 13 + 17),
        (find("prox-svrg").build(problem, **reduced), False, 1 + 4 * 4, 1 + 4 * 5),
    ):
        plain = simulate(made, start, silos(), key=jax.random.key(1)).params
        params, totals = simulate(metered(made, adds_up=adds_up, **sizes), start, silos(), key=jax.random.key(1)).params
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), params, plain)
        np.testing.assert_allclose(totals, np.array([released, held, 0.01 * held]) * fresh, rtol=1e-4)


def test_a_part_is_made_once_and_anew_for_other_settings(tmp_path):
    made = []

    def make():
        made.append(1)
        return [{"epsilon": 1.0}]

    path = tmp_path / "parts.json"
    for settings, times in (([1], 1), ([1], 1), ([2], 2)):
        parts = Parts(path, settings)
        assert parts.get("curve", make) == [{"epsilon": 1.0}]
        assert len(made) == times
    assert json.loads(path.read_text())["settings"] == parts.fingerprint
    assert parts.cpu_minutes >= 0
