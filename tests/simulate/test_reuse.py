"""Programs are reused where the same is computed, and nowhere else."""

import time
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tacit
from tacit import geometry
from tacit.objectives import Loss, Objective, cnn, linear, logistic, mlp
from tacit.plans.spec import load_study
from tacit.silo import enrol
from tacit.simulate.compiled import Seed, grid_program, stack_seeds
from tacit.simulate.participation import participation
from tacit.simulate.program import split_keys, turns_of
from tacit.simulate.reuse import Programs, UnkeyedError, key_of
from tacit.studies.run import prepare, run, watch
from tests.algorithms.table import CASES, LOGISTIC, start, tables

STRENGTH = 2.0


def silos(count=3, records=50, features=7, seed=0):
    draw = np.random.default_rng(seed)
    tables = []
    for _ in range(count):
        x = draw.normal(size=(records, features)).astype(np.float32) / features**0.5
        tables.append({"x": x, "y": (x[:, 0] > 0).astype(np.int32)})
    return tables


def problem(features=7, regulariser=None):
    return tacit.Problem(Objective(linear(features, 1), logistic()), regulariser or geometry.zero())


def fitted(epsilon=1.0, seed=0, step_size=2.0, clip_norm=1.0, data=0, own=None, **how):
    budget = None if epsilon is None else tacit.Budget(epsilon=epsilon, delta=1e-5)
    sgd = tacit.mb_sgd(step_size=step_size, num_rounds=11)
    return tacit.fit(own or problem(), silos(seed=data), sgd, budget=budget, clip_norm=clip_norm, seed=seed, **how)


@pytest.fixture
def fresh(monkeypatch):
    """An empty store of programs, and how often one was made."""
    made = []
    kept = Programs()
    get = kept.get
    monkeypatch.setattr(kept, "get", lambda parts, make: get(parts, lambda: (made.append(parts), make())[1]))
    monkeypatch.setattr("tacit.fitting._PROGRAMS", kept)
    return made


def test_a_second_fit_of_the_same_shape_is_fast(fresh):
    started = time.perf_counter()
    fitted()
    first = time.perf_counter() - started
    started = time.perf_counter()
    # Other records, another key, noise, step and clip go into the same program.
    fitted(seed=1, epsilon=2.0, data=1, step_size=1, clip_norm=0.5)
    second = time.perf_counter() - started
    assert len(fresh) == 1
    assert second <= max(0.1 * first, 0.3)


@pytest.mark.parametrize("change", [{"seed": 1}, {"epsilon": 3.0}, {"data": 1}, {"step_size": 1}, {"clip_norm": 0.5}])
def test_a_reused_program_gives_what_a_new_one_gives(fresh, change):
    fitted()
    again = fitted(**change)
    assert len(fresh) == 1
    jax.clear_caches()
    fresh.clear()
    tacit.fitting._PROGRAMS._kept.clear()
    new = fitted(**change)
    assert len(fresh) == 1
    for one, other in zip(
        jax.tree.leaves((again.params, again.trace)), jax.tree.leaves((new.params, new.trace)), strict=True
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": None},
        {"participants": 2},
        {"measure_every": 0},
        {"weights": (1.0, 2.0, 3.0)},
        {"batch_size": 5},
        {"own": problem(regulariser=geometry.l2_ball(0.1))},
        {"own": problem(regulariser=geometry.l2_ball(0.2))},
    ],
)
def test_another_program_is_made_for_what_differs(fresh, change):
    base = fitted()
    other = fitted(**change)
    assert len(fresh) == 2
    assert not np.array_equal(base.params["linear"]["w"], other.params["linear"]["w"]) or "measure_every" in change


def test_keys_follow_what_a_model_is_made_of():
    for make in (lambda n: mlp((n, 4, 1)), lambda n: linear(n, 1), lambda n: cnn((28, 28, n), outputs=3)):
        assert key_of(make(3)) == key_of(make(3))
        assert key_of(make(3)) != key_of(make(2))
    assert key_of(mlp((3, 4, 1), activation=jnp.tanh)) != key_of(mlp((3, 4, 1), activation=jax.nn.relu))
    assert key_of(geometry.l1(0.5)) != key_of(geometry.l1(0.25))
    assert key_of(np.zeros(3)) != key_of(np.zeros(3, np.float32))
    assert key_of(0.0) != key_of(-0.0)
    assert key_of(1) != key_of(True)


def own_loss():
    return Loss(lambda outputs, targets: STRENGTH * (outputs[:, 0] - targets) ** 2)


def test_a_global_value_that_changed_makes_another_key(monkeypatch):
    before = key_of(own_loss())
    assert key_of(own_loss()) == before
    monkeypatch.setitem(globals(), "STRENGTH", 3.0)
    assert key_of(own_loss()) != before


def test_a_loss_of_ones_own_with_another_global_value_is_trained_anew(fresh, monkeypatch):
    first = fitted(own=tacit.Problem(Objective(linear(7, 1), own_loss())), epsilon=None)
    monkeypatch.setitem(globals(), "STRENGTH", 0.5)
    second = fitted(own=tacit.Problem(Objective(linear(7, 1), own_loss())), epsilon=None)
    assert len(fresh) == 2
    assert not np.array_equal(first.params["linear"]["w"], second.params["linear"]["w"])


@dataclass
class Mutable:
    by: float = 1.0


def test_what_may_change_has_no_key(fresh):
    held = Mutable()
    with pytest.raises(UnkeyedError):
        key_of(lambda x: held.by * x)
    for _ in range(2):
        fitted(own=tacit.Problem(Objective(linear(7, 1), Loss(lambda o, t: held.by * (o[:, 0] - t) ** 2))))
    assert len(fresh) == 2


def test_a_function_that_holds_itself_has_a_key():
    def down(n):
        return 0 if n == 0 else down(n - 1)

    assert key_of(down) == key_of(down)


@pytest.fixture
def compilations():
    """A list that grows with every program that XLA compiles."""
    counted = []

    def listen(event, seconds, **_):
        if "backend_compile" in event:
            counted.append(seconds)

    jax.monitoring.register_event_duration_secs_listener(listen)
    return counted


def test_a_second_run_of_a_study_compiles_next_to_nothing(compilations):
    changes = ["run.seeds=1", "algorithm.num_rounds=7", "run.alone=false", "name=again"]
    studies = [load_study("heart-disease", [*changes, *own]) for own in ([], [], ["algorithm.num_rounds=8"])]
    first = run(studies[0])
    made = len(compilations)
    assert made > 5
    compilations.clear()
    second = run(studies[1])
    assert len(compilations) <= 2
    for one, other in zip(*(jax.tree.leaves((r.params, r.trace, r.metrics)) for r in (first, second)), strict=True):
        np.testing.assert_array_equal(one, other)
    # More rounds are another program.
    assert len(run(studies[2]).trace["train_loss"][0]) != len(first.trace["train_loss"][0])


def test_what_a_study_keeps_holds_no_record():
    """Programs outlive their run; records must not."""
    prepared = prepare(load_study("heart-disease", ["run.seeds=1"]))
    held = [cell.cell_contents for cell in watch(prepared).__closure__]
    assert not any(one is prepared or one is prepared.federations for one in held)
    key_of((prepared.builder.build, watch(prepared)))


def test_few_programs_are_kept():
    kept = Programs()
    made = [kept.get(i % 20, lambda i=i: i) for i in range(40)]
    assert made == list(range(40))
    assert kept.get(19, lambda: "new") == 39


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_every_algorithm_takes_its_step_and_clip_as_numbers_of_a_program(case):
    key, who = jax.random.key(1), participation(3)
    seeds = stack_seeds([Seed(key, start(LOGISTIC), enrol(tables()))])
    given = {"step_size": np.float32([0.1]), "clip_norm": np.float32([0.5])}
    program = grid_program(lambda **point: case.build(LOGISTIC, **point), 1, who, None)
    turns = jax.tree.map(lambda row: row[None], turns_of(case.build(LOGISTIC), 0, who, 3, split_keys(key)))
    carry = jax.eval_shape(program.begin, given, seeds)
    jax.eval_shape(program.proceed, given, seeds, carry, turns)
    jax.eval_shape(program.finish, given, carry)


def test_what_lies_in_a_foreign_module_or_at_a_function_has_no_key():
    def attached(x):
        return attached.by * x

    attached.by = 2.0
    for value in (attached, pytest, lambda x: pytest.approx(x)):
        with pytest.raises(UnkeyedError, match="may change"):
            key_of(value)
