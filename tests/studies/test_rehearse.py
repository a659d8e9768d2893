"""Rehearsal: settings from made-up records, with no record in reach."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from tacit.cli import app
from tacit.errors import TacitError
from tacit.plans.spec import StudyError, load_study, study_from
from tacit.studies import rehearse as module
from tacit.studies.rehearse import TEACHERS, Rehearsed, _Teacher, rehearse
from tacit.studies.run import Declared, prepare_facts

GRID = {"algorithm.step_size": [0.01, 4.0, 3000.0]}


def study(**algorithm):
    usual = {"name": "mb-sgd", "num_rounds": 12, "step_size": 1.0, "clip_norm": 0.5, "output": "tail"}
    tree = {"name": "made-up", "data": {"name": "csv"}, "algorithm": {**usual, **algorithm}}
    return study_from({**tree, "privacy": {"epsilon": 4.0}, "run": {"weights": "records"}})


def prepared(facts, records=(120, 90, 60), **algorithm):
    return prepare_facts(study(**algorithm), facts, records)


BINARY = Declared("binary", 2, (6,), 1.0)
TASKS = [BINARY, Declared("multiclass", 4, (6,), 1.0), Declared("regression", None, (6,), 1.0)]


def test_the_chosen_step_is_the_one_that_learns():
    facts = TASKS[2]
    found = rehearse(prepared(facts), facts, GRID)
    assert found.errors.shape == (TEACHERS, 3)
    assert TEACHERS >= 6
    assert found.chosen == {"algorithm.step_size": 4.0}
    assert found.regrets[1] < min(found.regrets[0], found.regrets[2])


@pytest.mark.parametrize("facts", TASKS[:2], ids=lambda facts: facts.task)
def test_classes_can_be_learnt_from_teachers(facts):
    """With little noise every teacher is far better than guessing."""
    found = rehearse(prepared(facts, (4000, 4000)), facts, {"algorithm.step_size": [4.0]})
    assert found.errors.max() < 0.8 * (1 - 1 / facts.num_classes)


def test_the_same_seed_draws_the_same_and_another_other_records():
    one, same, other = (rehearse(prepared(BINARY), BINARY, GRID, seed=seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one.errors, same.errors)
    assert (one.errors != other.errors).any()


def test_the_study_keeps_what_was_chosen_and_the_seed():
    found = Rehearsed(({"algorithm.step_size": 2.0, "algorithm.server": "adam"},), np.zeros((6, 1)), 7, "error")
    kept = found.rehearsed(study())
    assert (kept.algorithm.step_size, kept.algorithm.server) == (2.0, "adam")
    assert (kept.rehearsal.seed, kept.rehearsal.teachers, kept.rehearsal.points) == (7, 6, 1)
    assert kept.model_copy(update={"algorithm": study().algorithm, "rehearsal": None}) == study()


def test_what_diverges_is_not_chosen():
    found = Rehearsed(({"algorithm.step_size": 1.0}, {"algorithm.step_size": 2.0}), np.array([[np.nan, 0.4]]), 0, "mse")
    assert found.chosen == {"algorithm.step_size": 2.0}


def test_teachers_have_skewed_features_within_the_norm_and_all_classes():
    facts = Declared("multiclass", 3, (30,), 2.0)
    for index in range(TEACHERS):
        drawn = _Teacher(facts, np.random.default_rng(index), index).draw(400)
        assert np.linalg.norm(drawn["x"], axis=1).max() <= 2.0 * (1 + 1e-6)
        assert set(np.unique(drawn["y"])) == {0, 1, 2}
        centred = drawn["x"] - drawn["x"].mean(axis=0)
        skew = (centred**3).mean(axis=0) / np.maximum(centred.std(axis=0), 1e-9) ** 3
        assert np.abs(skew).max() > 1.0


def test_large_silos_are_rehearsed_with_fewer_records_and_as_much_less_noise(monkeypatch):
    monkeypatch.setattr(module, "_WORK", 700)
    large = prepared(BINARY, (4000, 2000))
    sizes, less = module._fewer(large, BINARY)
    assert sum(sizes) < 300
    # Noise over records is what is left in the mean.
    assert less * sum(sizes) == pytest.approx(6000)


def test_other_algorithms_are_rehearsed_as_they_are():
    tree = study().model_dump(exclude_none=True)
    del tree["algorithm"]["output"]
    tree["algorithm"] |= {"name": "prox-spider", "phase_length": 3, "difference_slope": 1.0}
    facts = TASKS[2]
    ready = prepare_facts(study_from(tree), facts, (120, 90, 60))
    assert rehearse(ready, facts, {"algorithm.step_size": [0.001, 0.5]}).chosen == {"algorithm.step_size": 0.5}


@pytest.mark.parametrize(
    ("facts", "grid", "words"),
    [
        (BINARY, {"algorithm.num_rounds": [1, 2]}, "--grid: expected keys among"),
        (BINARY, {"algorithm.step_size": [-1.0]}, "greater than 0"),
        (Declared("binary", 2, (6,), None), None, "rows of features with a public norm"),
    ],
)
def test_what_cannot_be_rehearsed_is_refused(facts, grid, words):
    with pytest.raises(StudyError, match=words):
        rehearse(prepared(facts), facts, grid)


def tacit(*arguments):
    done = CliRunner().invoke(app, [str(part) for part in arguments])
    if done.exception is not None:
        raise done.exception
    return done.stdout


def test_commands_rehearse_without_a_record(tmp_path, monkeypatch):
    """The files are gone, and every reader of records raises."""
    folder = tmp_path / "clinics"
    tacit("init", folder, "--example", "clinics")
    for path in folder.rglob("*.csv"):
        path.unlink()

    def unreadable(*given, **named):
        raise AssertionError("a record was read")

    for reader in ("tacit.data.csv_silos.read", "tacit.data.csv_silos.silo_records", "tacit.data.load"):
        monkeypatch.setattr(reader, unreadable)
    grid = ("--grid", "algorithm.step_size=[0.1,0.3]", "--set", "algorithm.num_rounds=6")
    known = ("--records", "60,50,40", "--seed", "5", "--out", tmp_path / "runs")
    told = json.loads(tacit("tune", folder / "study.toml", "--rehearse", *grid, *known, "--json"))
    assert told["records_read"] == 0
    written = load_study(f"{told['run_dir']}/study.toml")
    assert written.rehearsal.seed == told["seed"] == 5
    assert written.algorithm.step_size == told["chosen"]["algorithm.step_size"]


def test_init_rehearses_and_says_so(tmp_path):
    said = " ".join(tacit("init", tmp_path / "c", "--example", "clinics", "--rehearse", "--seed", "2").split())
    kept = load_study(tmp_path / "c" / "study.toml")
    assert kept.rehearsal.seed == 2
    assert f"algorithm.step_size = {kept.algorithm.step_size:g}" in said
    assert "No record was read: it costs nothing." in said


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--rehearse", "--plan"), "--plan without --rehearse"),
        (("--records", "3"), "--records together with --rehearse"),
        ((), "--rehearse has a usual grid"),
    ],
)
def test_flags_of_the_other_kind_are_refused(flags, words):
    with pytest.raises(TacitError, match=words):
        tacit("tune", "heart-disease", *flags)
