"""The noise that a plan announces is the noise that a round has."""

import jax
import numpy as np
import pytest

from tacit.plans.spec import load_study
from tacit.simulate.compiled import simulate_grid
from tacit.studies.noise import mean_over_clip
from tacit.studies.run import prepare, starts_of


@pytest.mark.parametrize(
    ("channel", "weights"),
    [
        ("direct", "equal"),
        ("direct", "records"),
        ("trusted", "equal"),
        ("trusted", "records"),
        ("shuffled-sum", "equal"),
        ("shuffled-sum", "records"),
    ],
)
def test_one_round_has_as_much_noise_in_its_mean_as_the_plan_says(channel, weights):
    settings = (
        "run.seeds=1",
        "run.alone=false",
        "algorithm.num_rounds=1",
        "algorithm.step_size=1",
        "privacy.epsilon=1",
    )
    chosen = (f"algorithm.channel={channel}", f"run.weights={weights}", "run.honest=0.75", "algorithm.output=last")
    prepared = prepare(load_study("heart-disease", (*settings, *chosen)))
    study, plan, build = prepared.study, prepared.plan, prepared.builder.build
    said = mean_over_clip(study, plan.silos, build(noise_multiplier=1.0), len(plan.silos))["gradient"]
    [start] = starts_of(prepared)
    many = [start._replace(key=key) for key in jax.random.split(jax.random.key(0), 60)]
    found = simulate_grid(lambda: build(**plan.parameters), {}, many, who=prepared.who).params
    spread = np.concatenate([np.asarray(leaf).reshape(len(many), -1) for leaf in jax.tree.leaves(found)], axis=1)
    deviation = np.sqrt(spread.var(axis=0, ddof=1).mean())
    # 60 x 23 Gaussians know their deviation to 2%; the binomial noise is rounded up by a little.
    assert deviation / study.algorithm.clip_norm == pytest.approx(said, rel=0.07)
