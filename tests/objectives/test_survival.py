"""Survival regression: the likelihood, its optimum against a closed form, and the concordance against a plain loop."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tacit
from tacit.data.schema import schema_from, schema_text
from tacit.errors import TacitError
from tacit.objectives import Objective, Problem
from tacit.objectives.survival import concordance, hazards, piecewise_exponential
from tacit.plans.spec import StudyError, study_from
from tacit.privacy.strategy import FRESH
from tacit.silo.door import NO_PAST, DiscreteGaussian, Door, no_noise
from tacit.silo.integers import BOUND
from tacit.studies.federation import federation_of


def plain_loss(output, target, bins):
    """One record's minus log-likelihood, bin by bin."""
    time, event, total = abs(target), target > 0, 0.0
    for k in range(bins):
        start, end = k / bins, (k + 1) / bins
        total += max(0.0, min(time, end) - start) * np.exp(output[k])
        total -= output[k] if event and start <= time < end else 0.0
    return total


@pytest.mark.parametrize("bins", [1, 3, 8])
def test_the_loss_is_the_likelihood_of_constant_hazards(bins):
    rng = np.random.default_rng(bins)
    outputs, targets = rng.normal(size=(40, bins)), rng.uniform(-1, 1, 40)
    found = piecewise_exponential(bins).value(jnp.asarray(outputs), jnp.asarray(targets))
    np.testing.assert_allclose(
        found, [plain_loss(o, t, bins) for o, t in zip(outputs, targets, strict=True)], rtol=1e-5
    )


def test_hazards_and_ratios_are_found_again():
    """Patients whose hazard is known: minimising the loss finds it, bins and ratios."""
    rng = np.random.default_rng(0)
    x = rng.choice([-1.0, 1.0], (20_000, 2))
    hazard = 0.8 * np.exp(x @ [0.5, -0.25])
    life, seen = rng.exponential(1 / hazard), rng.uniform(0.2, 1.5, len(x))
    time = np.minimum(np.minimum(life, seen), 1.0)
    y = np.where((life <= seen) & (life < 1.0), time, -time)
    objective = Objective(hazards(2, 4), piecewise_exponential(4))
    records = {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(y, jnp.float32)}
    params = objective.init(jax.random.key(0))
    step = jax.jit(
        lambda p: jax.tree.map(lambda w, g: w - 0.5 * g, p, jax.grad(lambda q: objective.losses(q, records).mean())(p))
    )
    for _ in range(400):
        params = step(params)
    np.testing.assert_allclose(params["linear"]["w"][:, 0], [0.5, -0.25], atol=0.04)
    np.testing.assert_allclose(params["linear"]["b"], np.log(0.8), atol=0.1)
    constant = piecewise_exponential(4).constant(records["y"])
    best = objective.cost.value(jnp.broadcast_to(constant, (len(y), 4)), records["y"]).mean()
    assert float(objective.losses(params, records).mean()) < float(best)


def test_concordance_is_that_of_all_pairs():
    rng = np.random.default_rng(1)
    risk, target = rng.integers(0, 5, 60).astype(float), rng.uniform(-1, 1, 60).round(1)
    right = pairs = 0.0
    for i, j in itertools.permutations(range(60), 2):
        if target[i] > 0 and abs(target[i]) < abs(target[j]):
            pairs += 1
            right += 1.0 if risk[i] > risk[j] else 0.5 * (risk[i] == risk[j])
    found = concordance(jnp.asarray(risk)[:, None], jnp.asarray(target))
    assert float(found) == pytest.approx(right / pairs, abs=1e-6)
    assert np.isnan(concordance(jnp.zeros((3, 1)), jnp.array([-1.0, -0.5, -0.2])))


def test_a_subjects_bins_are_summed_before_they_are_clipped():
    """At the door: hostile subjects and weights, and no record's integers are beyond the clip."""
    problem = Problem(Objective(hazards(3, 5), piecewise_exponential(5)))
    terms = tacit.Terms(clip_norm=0.5, noise_multiplier=1.0, batch_size=None, sampling="full")
    silo = tacit.mb_sgd(step_size=1.0, num_rounds=1)(problem, terms).rounds["gradient"].silo
    rng = np.random.default_rng(0)
    records = {"x": (rng.normal(size=(30, 3)) * 1e3).astype(np.float32), "y": rng.uniform(-1, 1, 30).astype(np.float32)}
    door = Door(silo, records, silo_index=0, form=False)
    work = {"linear": {"w": np.full((3, 1), 0.5, np.float32), "b": np.zeros(5, np.float32)}}
    mechanism = DiscreteGaussian(door.engine, 1.0, no_noise, FRESH, NO_PAST, nonnegative=False)
    for place in range(30):
        total = mechanism.sums(work, door.records, np.arange(30) == place, {"": 0.5})[""]
        assert sum(int(v) ** 2 for v in total.formed) <= BOUND**2


def test_bins_are_counted():
    with pytest.raises(TacitError, match="from 1 to 1000"):
        piecewise_exponential(0)


def test_a_number_of_a_csv_file_is_refused_for_a_signed_time(tmp_path):
    """It is scaled to [0, 1]: every record would have its event."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text("age,days\n" + "\n".join(f"{20 + i},{i - 10}" for i in range(20)) + "\n")
    columns = {"age": {"kind": "number", "low": 0.0, "high": 100.0}}
    schema = {"target": {"column": "days", "low": -10.0, "high": 10.0}, "columns": columns}
    (tmp_path / "schema.toml").write_text(schema_text(schema_from(schema, "test")))
    tree = {"name": "times", "data": {"name": "csv", "options": {"folder": str(tmp_path)}}}
    tree |= {"objective": {"loss": "piecewise-exponential"}, "algorithm": {"name": "mb-sgd", "clip_norm": 1.0}}
    own = {"num_rounds": 1, "step_size": 1.0}
    with pytest.raises(StudyError, match="every record would have an event"):
        federation_of(study_from({**tree, "algorithm": {**tree["algorithm"], **own}}), 0)
