"""Training from Python: what is taken, what is refused, and what is told of how training went."""

import jax
import numpy as np
import pytest

import tacit
from tacit.data import load
from tacit.errors import TacitError
from tacit.objectives import Objective, linear, logistic
from tacit.plans.catalogue import ALGORITHMS, SOLVERS
from tacit.privacy import price
from tacit.privacy.schedule import gaussian_mu
from tacit.silo import enrol
from tests.algorithms.table import LOGISTIC, least_squares, tables

BUDGET = tacit.Budget(epsilon=2.0, delta=1e-4)
SGD = tacit.mb_sgd(step_size=0.5, num_rounds=4)


def same(a, b):
    return all(bool((u == v).all()) for u, v in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_a_name_is_answered_with_the_function_to_call():
    for given, call in (
        ("mb-sgd", r"tacit\.mb_sgd\(step_size=\.\.\., num_rounds=\.\.\.\), got 'mb-sgd'; names are for studies"),
        ("local-sgd", r"tacit\.local_sgd\(step_size=\.\.\., num_rounds=\.\.\., local_steps=\.\.\.\)"),
        ("unheard-of", r"tacit\.mb_sgd\("),
    ):
        with pytest.raises(TacitError, match=call):
            tacit.fit(LOGISTIC, tables(), given, budget=BUDGET, clip_norm=1.0)


def test_a_budget_needs_a_clip_and_none_needs_nothing():
    with pytest.raises(TacitError, match="clip_norm"):
        tacit.fit(LOGISTIC, tables(), SGD, budget=BUDGET)
    assert tacit.fit(LOGISTIC, tables(), SGD, budget=None).silos[0].price is None


def test_any_function_of_a_problem_and_terms_is_an_algorithm():
    seen = []

    def own(problem, terms):
        seen.append(terms)
        return SGD(problem, terms)

    terms = {"clip_norm": 0.7, "batch_size": 5, "sampling": "wor", "seed": 3}
    found = tacit.fit(LOGISTIC, tables(), own, budget=BUDGET, **terms)
    assert same(found.params, tacit.fit(LOGISTIC, tables(), SGD, budget=BUDGET, **terms).params)
    assert {(t.clip_norm, t.batch_size, t.sampling, t.channel, t.protects) for t in seen} == {
        (0.7, 5, "wor", "direct", "record")
    }
    assert seen[0].noise_multiplier == 1.0
    assert seen[-1].noise_multiplier.shape == (3,)


def test_batches_are_poisson_unless_something_else_is_said():
    found = tacit.fit(LOGISTIC, tables(), SGD, budget=BUDGET, clip_norm=1.0, batch_size=5, measure_every=0)
    assert [event.sampling for silo in found.silos for event in silo.events] == ["poisson"] * 3


def test_the_trace_is_the_loss_on_the_training_records_by_round():
    made, problem, _ = least_squares(sizes=(30, 20))
    gd = tacit.prox_spider(step_size=0.7, num_rounds=5, phase_length=2, difference_slope=None)
    found = tacit.fit(problem, made, gd, budget=None, measure_every=2)
    assert found.trace["round"].tolist() == [2, 4, 5]
    assert set(found.trace) == {"round", "loss", "mse", "estimate_norm", "step_norm"}
    records = {k: np.concatenate([t[k] for t in made]) for k in ("x", "y")}
    last = problem.objective.measure(found.params, records)
    assert found.trace["loss"][-1] == pytest.approx(float(last["loss"]), rel=1e-5)
    assert np.all(np.diff(found.trace["loss"]) < 0)
    assert found.trace["step_norm"][-1] == pytest.approx(0.7 * found.trace["estimate_norm"][-1], rel=1e-4)


def test_measuring_changes_nothing_and_can_be_left_out():
    terms = {"budget": BUDGET, "clip_norm": 1.0}
    watched = tacit.fit(LOGISTIC, tables(), SGD, **terms)
    silent = tacit.fit(LOGISTIC, tables(), SGD, measure_every=0, **terms)
    assert same(watched.params, silent.params)
    assert set(watched.trace) == {"round", "loss", "error"}
    assert silent.trace == {}


def test_a_long_run_is_measured_about_fifty_times():
    found = tacit.fit(LOGISTIC, tables(), tacit.mb_sgd(step_size=0.1, num_rounds=130), budget=None)
    assert len(found.trace["loss"]) == 65
    assert found.trace["round"][-1] == 130


def test_an_algorithm_says_something_of_itself():
    found = tacit.fit(LOGISTIC, tables(), tacit.sgda(step_size=0.1, num_rounds=3, radius=0.05), budget=None)
    assert found.trace["duals_norm"].shape == (3,)
    assert found.trace["duals_norm"][-1] == pytest.approx(0.05)


def test_the_sensitive_attribute_alone_can_be_protected():
    fair = tacit.steffle(step_size=0.1, num_rounds=3, strength=0.5, frequencies=(0.4, 0.6))
    found = tacit.fit(LOGISTIC, tables(), fair, budget=BUDGET, clip_norm=1.0, protects="sensitive-attribute")
    assert {event.protects for silo in found.silos for event in silo.events} == {"sensitive-attribute"}
    with pytest.raises(ValueError, match="whole records"):
        tacit.fit(LOGISTIC, tables(), SGD, budget=BUDGET, clip_norm=1.0, protects="sensitive-attribute")


def test_a_federation_hands_the_attribute_to_those_who_read_it(monkeypatch):
    federation = load("synthetic", sizes=[30, 30], features=3, groups=2)
    problem = tacit.Problem(Objective(linear(3, 1), logistic()))
    seen = []

    def watched(tables, names):
        seen.append(set(tables[0]))
        return enrol(tables, names)

    monkeypatch.setattr("tacit.fitting.enrol", watched)
    fair = tacit.steffle(step_size=0.1, num_rounds=1, strength=0.5, frequencies=(0.5, 0.5))
    for algorithm in (SGD, fair, lambda problem, terms: SGD(problem, terms)):
        tacit.fit(problem, federation, algorithm, budget=BUDGET, clip_norm=1.0, measure_every=0)
    assert seen == [{"x", "y"}, {"x", "y", "s"}, {"x", "y", "s"}]


def clinics(target="ill", columns=dict):
    rng = np.random.default_rng(3)
    made = {}
    for name, n in (("bergen", 30), ("oslo", 50)):
        x = rng.normal(size=(n, 2)) / 2
        made[name] = columns({"age": x[:, 0], "dose": x[:, 1], target: np.where(x[:, 0] > 0, "yes", "no")})
    return made


ILL = {"target": "ill", "classes": ["no", "yes"]}
TWO = tacit.Problem(Objective(linear(2, 1), logistic()))


def test_columns_and_silos_keep_their_names_from_plan_to_bundle(tmp_path):
    silos = clinics()
    found = tacit.fit(TWO, silos, tacit.mb_sgd(step_size=8.0, num_rounds=20), budget=None, **ILL)
    assert [silo.name for silo in found.silos] == ["bergen", "oslo"]
    assert set(found.scores(silos)["silos"]) == {"bergen", "oslo"}
    found.save(tmp_path / "bundle")
    model = tacit.load_model(tmp_path / "bundle")
    assert [silo.name for silo in model.description.privacy.silos] == ["bergen", "oslo"]
    assert model.description.features.names == ("age", "dose")
    assert model.description.target.column == "ill"
    assert len(repr(found).splitlines()) <= 10
    # Rows by name, in another order, with a label that is left alone.
    rows = {"dose": silos["oslo"]["dose"], "age": silos["oslo"]["age"], "ill": silos["oslo"]["ill"]}
    assert (model.predict(rows) == silos["oslo"]["ill"]).mean() > 0.9
    assert model.evaluate(rows)["accuracy"] == found.scores(silos)["silos"]["oslo"]["accuracy"]


def test_a_data_frame_is_columns_by_name():
    pandas = pytest.importorskip("pandas")
    given = {"budget": BUDGET, "clip_norm": 1.0, "measure_every": 0, **ILL}
    framed = tacit.fit(TWO, clinics(columns=pandas.DataFrame), SGD, **given)
    assert same(framed.params, tacit.fit(TWO, clinics(), SGD, **given).params)
    assert same(framed.params, tacit.fit(TWO, list(clinics().values()), SGD, **given).params)


def test_columns_of_rows_are_asked_for_by_name():
    found = tacit.fit(TWO, clinics(), SGD, budget=None, **ILL)
    with pytest.raises(TacitError, match=r"Expected a column 'dose'.*did you mean 'doze'"):
        found.predict({"age": [1.0], "doze": [1.0]})
    with pytest.raises(TacitError, match="row 1: expected a number in column 'dose'"):
        found.predict({"age": [1.0, 2.0], "dose": [1.0, "much"]})
    with pytest.raises(TacitError, match="row 0: expected a number in column 'age'"):
        found.predict({"age": [float("nan")], "dose": [1.0]})


def test_training_goes_on_and_is_priced_with_what_was_before():
    first = tacit.fit(LOGISTIC, tables(), SGD, budget=tacit.Budget(epsilon=1.0, delta=1e-4), clip_norm=1.0)
    both = tacit.fit(LOGISTIC, tables(), SGD, budget=BUDGET, clip_norm=1.0, init=first)
    for before, after in zip(first.silos, both.silos, strict=True):
        assert 1.99 < after.price.epsilon <= 2.0
        assert after.price.epsilon == pytest.approx(price(after.events, delta=1e-4 - after.kept).epsilon)
        # The releases of both, in whatever form, have the separation of all of them.
        [new] = [event for event in after.events if event.kind != "earlier"]
        assert gaussian_mu(after.events) == pytest.approx(gaussian_mu([*before.events, new]))
        assert after.kept >= before.kept
    assert both.model.description.training.rounds == 8
    # The rest of the budget is less than all of it, and no more than needed is added to the noise.
    alone = tacit.fit(LOGISTIC, tables(), SGD, budget=BUDGET, clip_norm=1.0)
    noise = [f.silos[0].multipliers["gradient"] for f in (first, both, alone)]
    assert noise[2] < noise[1] < noise[0]
    third = tacit.fit(LOGISTIC, tables(), SGD, budget=tacit.Budget(epsilon=3.0, delta=1e-4), clip_norm=1.0, init=both)
    assert gaussian_mu(third.silos[0].events) > gaussian_mu(both.silos[0].events) > gaussian_mu(first.silos[0].events)


def test_training_starts_where_it_ended():
    gd = tacit.mb_sgd(step_size=0.5, num_rounds=3, output="last")
    whole = tacit.fit(LOGISTIC, tables(), tacit.mb_sgd(step_size=0.5, num_rounds=6, output="last"), budget=None)
    half = tacit.fit(LOGISTIC, tables(), gd, budget=None)
    for init in (half, half.model, half.params):
        found = tacit.fit(LOGISTIC, tables(), gd, budget=None, init=init)
        for a, b in zip(jax.tree.leaves(found.params), jax.tree.leaves(whole.params), strict=True):
            assert np.allclose(a, b, atol=1e-6)


def test_the_noise_of_what_goes_on_is_fresh():
    """With the seed of before, too: the same noise twice would cancel out."""
    first = tacit.fit(LOGISTIC, tables(), SGD, budget=BUDGET, clip_norm=1.0)
    loose = tacit.Budget(epsilon=4.0, delta=1e-4)
    one, other = (
        tacit.fit(LOGISTIC, tables(), SGD, budget=loose, clip_norm=1.0, init=init) for init in (first, first.params)
    )
    fresh = jax.random.fold_in(jax.random.key(0), 4)
    assert not np.array_equal(jax.random.key_data(fresh), jax.random.key_data(jax.random.key(0)))
    assert not same(one.params, other.params)


def test_two_passes_are_two_and_two_limits_are_not_one():
    """Within a schedule passes share an order and rounds a limit; releases of two trainings do not."""
    again = {"batch_size": 5, "sampling": "one-pass"}
    once = tacit.mb_sgd(step_size=0.5, num_rounds=2)
    noise = tacit.Budget(noise_multiplier=3.0, delta=1e-4)
    first = tacit.fit(LOGISTIC, tables(), once, budget=noise, clip_norm=1.0, **again)
    both = tacit.fit(LOGISTIC, tables(), once, budget=noise, clip_norm=1.0, init=first, **again)
    assert gaussian_mu(first.silos[0].events) == pytest.approx(1 / 3)
    assert gaussian_mu(both.silos[0].events) == pytest.approx(2**0.5 / 3)
    limited = tacit.Budget(noise_multiplier=3.0, delta=1e-4, max_participations=4)
    first = tacit.fit(LOGISTIC, tables(), SGD, budget=limited, clip_norm=1.0)
    both = tacit.fit(LOGISTIC, tables(), SGD, budget=limited, clip_norm=1.0, init=first)
    assert both.silos[0].price.mu == pytest.approx(8**0.5 / 3, rel=1e-4)


def test_subsampled_releases_are_composed_too():
    terms = {"clip_norm": 1.0, "batch_size": 5, "sampling": "wor"}
    noise = tacit.Budget(noise_multiplier=3.0, delta=1e-4)
    first = tacit.fit(LOGISTIC, tables(), SGD, budget=noise, **terms)
    both = tacit.fit(LOGISTIC, tables(), SGD, budget=noise, init=first, **terms)
    eight = tacit.fit(LOGISTIC, tables(), tacit.mb_sgd(step_size=0.5, num_rounds=8), budget=noise, **terms)
    for a, b in zip(both.silos, eight.silos, strict=True):
        assert a.price.epsilon == pytest.approx(b.price.epsilon, rel=1e-3)


def test_of_a_bundle_the_price_is_added(tmp_path):
    first = tacit.fit(LOGISTIC, tables(), SGD, budget=tacit.Budget(epsilon=1.0, delta=1e-5), clip_norm=1.0)
    first.save(tmp_path / "bundle")
    model, total = tacit.load_model(tmp_path / "bundle"), tacit.Budget(epsilon=3.0, delta=1e-4)
    both = tacit.fit(LOGISTIC, tables(), SGD, budget=total, clip_norm=1.0, init=model)
    for before, after in zip(first.silos, both.silos, strict=True):
        own = price(after.events, delta=1e-4 - before.price.delta - after.kept).epsilon
        assert after.price.epsilon == pytest.approx(before.price.epsilon + own)
        assert 2.9 < after.price.epsilon <= 3.0
        assert after.price.delta == 1e-4
    # What is known by its price alone is not forgotten when training goes on once more.
    third = tacit.fit(LOGISTIC, tables(), SGD, budget=tacit.Budget(epsilon=9.0, delta=1e-4), clip_norm=1.0, init=both)
    assert third.silos[0].stated == both.silos[0].stated == (first.silos[0].price.epsilon, 1e-5)
    assert third.silos[0].price.epsilon <= 9.0
    with pytest.raises(TacitError, match=r"epsilon=0\.5 of the budget to be more than"):
        tacit.fit(LOGISTIC, tables(), SGD, budget=tacit.Budget(epsilon=0.5, delta=1e-4), clip_norm=1.0, init=model)
    with pytest.raises(TacitError, match=r"delta=1e-05 .* to be more than the 1e-05"):
        tacit.fit(LOGISTIC, tables(), SGD, budget=tacit.Budget(epsilon=3.0, delta=1e-5), clip_norm=1.0, init=model)


def test_what_cannot_be_priced_together_is_refused():
    given = {"budget": BUDGET, "clip_norm": 1.0}
    open_, private = tacit.fit(LOGISTIC, tables(), SGD, budget=None), tacit.fit(LOGISTIC, tables(), SGD, **given)
    for init in (open_, open_.model):
        with pytest.raises(TacitError, match="Expected init with a price"):
            tacit.fit(LOGISTIC, tables(), SGD, **given, init=init)
    with pytest.raises(TacitError, match=r"'silo 2' had .* and has none"):
        tacit.fit(LOGISTIC, tables()[:2], SGD, **given, init=private)
    shorter = [{name: column[1:] for name, column in table.items()} for table in tables()]
    with pytest.raises(TacitError, match="'silo 0' had"):
        tacit.fit(LOGISTIC, shorter, SGD, **given, init=private)
    with pytest.raises(TacitError, match="channel='direct' and protects='record' as in the earlier"):
        tacit.fit(LOGISTIC, tables(), SGD, **given, init=private, channel="trusted")
    with pytest.raises(TacitError, match="cost less than epsilon=1"):
        tacit.fit(LOGISTIC, tables(), SGD, budget=tacit.Budget(epsilon=1.0, delta=1e-4), clip_norm=1.0, init=private)


def test_the_public_names_are_listed_and_nothing_else():
    functions = {name.replace("-", "_") for name in (*ALGORITHMS, *SOLVERS)}
    folders = {"data", "fairness", "geometry", "models", "objectives", "privacy"}
    assert set(dir(tacit)) == set(tacit.__all__) | functions | folders
    assert all(getattr(tacit, name) is not None for name in dir(tacit))
    with pytest.raises(AttributeError, match="no attribute 'jax'"):
        _ = tacit.jax
