"""Sixty mistakes and more, to `tacit.fit` and to the commands: each is told what is wrong, and never by jax."""

import re
import shlex
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from typer.testing import CliRunner

import tacit
from tacit.cli import app
from tacit.data import load
from tacit.errors import TacitError
from tacit.objectives import Loss, Model, Objective, linear, logistic, mlp, softmax, squared

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(40, 3)), RNG.integers(0, 2, 40)
CLASSES = RNG.integers(0, 3, 40)
SGD = tacit.mb_sgd(step_size=0.5, num_rounds=2)
BUDGET = tacit.Budget(epsilon=1.0, delta=1e-5)
PROBLEM = tacit.Problem(Objective(linear(3, 1), logistic()))
REGRESSION = tacit.Problem(Objective(linear(3, 1), squared()))


def two(x=X, y=Y):
    return [{"x": X, "y": Y}, {"x": x, "y": y}]


def frame(**columns):
    return {"age": X[:, 0], "dose": X[:, 1], "ill": Y, **columns}


def with_cell(value):
    x = X.copy()
    x[3, 1] = value
    return x


def own(apply=None, value=None):
    """A problem with a model or a loss of one's own."""
    model = linear(3, 1)
    made = model if apply is None else Model(model.init, apply)
    return tacit.Problem(Objective(made, logistic() if value is None else Loss(value)))


def normalised(params, x, tap):
    return (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-3) @ params["linear"]["w"]


def log_loss(outputs, y):
    return jnp.logaddexp(0.0, outputs[:, 0]) - y * outputs[:, 0]


FIT = {
    "labels 1 and 2": ({"silos": two(y=Y + 1)}, "got 2 at silo 1; name the labels in order.* classes=[1, 2]"),
    "labels -1 and 1": ({"silos": two(y=2 * Y - 1)}, "got -1 at silo 1; .*classes=[-1, 1]"),
    "a class of 0.5": (
        {"silos": two(y=Y / 2)},
        "Expected whole labels for loss logistic, got 0.5 at silo 1; .*squared()",
    ),
    "three classes, one output": (
        {"silos": two(y=CLASSES)},
        "labels 0 to 1 .*got 2 at silo 1; for the 3 classes seen there use softmax() and a model with 3 outputs",
    ),
    "softmax of one output": (
        {"problem": tacit.Problem(Objective(linear(3, 1), softmax())), "silos": two(y=CLASSES)},
        "one output per class for loss softmax, got 1 output",
    ),
    "softmax of two outputs for three classes": (
        {"problem": tacit.Problem(Objective(linear(3, 2), softmax())), "silos": two(y=CLASSES)},
        "labels 0 to 1 for loss softmax and 2 outputs, got 2",
    ),
    "logistic of two outputs": (
        {"problem": tacit.Problem(Objective(linear(3, 2), logistic()))},
        "one output for loss logistic, got 2; make one, or use softmax()",
    ),
    "more features than the model takes": (
        {"silos": [{"x": RNG.normal(size=(40, 4)), "y": Y}]},
        "shape (records, 3) as the model takes, got (records, 4); make the model for 4 features",
    ),
    "a network of other features": (
        {"problem": tacit.Problem(Objective(mlp((5, 4, 1)), logistic()))},
        "shape (records, 5) as the model takes, got (records, 3)",
    ),
    "silos of other widths": (
        {"silos": two(x=X[:, :2])},
        "x of silo 1 to have shape (3,) per record as at silo 0, got (2,)",
    ),
    "features without an axis": ({"silos": [{"x": X[:, 0], "y": Y}]}, "give x[:, None] for a single feature"),
    "a column of targets": ({"silos": [{"x": X, "y": Y[:, None]}]}, "shape (40,), got (40, 1); give y[:, 0]"),
    "one-hot targets": ({"silos": [{"x": X, "y": np.eye(2)[Y]}]}, "got (40, 2); .*y.argmax(axis=1)"),
    "fewer targets than records": ({"silos": two(y=Y[:30])}, "x of silo 1 to have 30 rows as y has, got 40"),
    "tuples": ({"silos": [(X, Y), (X, Y)]}, 'Expected silo 0 as {"x": features, "y": targets}.* got a tuple. Write'),
    "one table alone": ({"silos": {"x": X, "y": Y}}, "got a single one; for one silo write [table]"),
    "an array of records": ({"silos": X}, "to be a federation, or silos by name such as"),
    "a table without y": ({"silos": [{"x": X}]}, "fields 'x' (features) and 'y' (targets), got 'x'"),
    "no silo": ({"silos": []}, "at least one silo, got none"),
    "an empty silo": ({"silos": two(x=X[:0], y=Y[:0])}, "silo 1 to hold at least one record, got none; leave an empty"),
    "a missing cell": ({"silos": two(x=with_cell(np.nan))}, "x of silo 1 to be finite, got 1 missing or infinite"),
    "an infinite cell": ({"silos": two(x=with_cell(np.inf))}, "x of silo 1 to be finite"),
    "a masked cell": ({"silos": two(x=np.ma.masked_array(X, mask=X > 2))}, "without missing values, got .* masked"),
    "text features": ({"silos": two(x=X.astype(str))}, "x of silo 1 to be numbers, got text such as"),
    "an array of objects": (
        {"silos": two(x=np.array([["a", None, 1]] * 40, object))},
        "numbers, got objects such as 'a'",
    ),
    "rows of two lengths": ({"silos": two(x=[[1, 2], [1]])}, "x of silo 1 with rows of one length"),
    "a sparse matrix": ({"silos": two(x=scipy.sparse.csr_matrix(X))}, "as a dense array, .* call its .toarray()"),
    "text labels": ({"silos": two(y=np.where(Y, "yes", "no"))}, "got text such as 'yes'; .*classes=['no', 'yes']"),
    "a label that is no class": (
        {"silos": two(y=np.where(Y, "yes", "maybe")), "classes": ["no", "yes"]},
        "silo 0 among classes=['no', 'yes'], got 1; add it",
    ),
    "a class twice": ({"classes": [1, 1]}, "at least two different labels"),
    "three classes for logistic": (
        {"classes": [0, 1, 2]},
        "Expected 2 classes for loss logistic .* got 3; use softmax()",
    ),
    "classes of a number": ({"problem": REGRESSION, "classes": [0, 1]}, "no classes for loss squared"),
    "columns without a target": ({"silos": {"a": frame()}}, "for columns by name say target=COLUMN"),
    "a misspelt target": ({"silos": {"a": frame()}, "target": "il"}, "Unknown column 'il'; did you mean 'ill'?"),
    "a column that one silo lacks": (
        {"silos": {"a": frame(), "b": frame(bmi=X[:, 2])}, "target": "ill"},
        "b to have the columns of a, but 'bmi' is at one of them alone",
    ),
    "a text column": ({"silos": {"a": frame(sex=["f", "m"] * 20)}, "target": "ill"}, "column 'sex' of a to be numbers"),
    "a missing cell of a column": (
        {"silos": {"a": frame(dose=with_cell(np.nan)[:, 1])}, "target": "ill"},
        "a, column 'dose' to be finite",
    ),
    "columns of two lengths": ({"silos": {"a": frame(dose=X[:9, 1])}, "target": "ill"}, "columns of one length at a"),
    "a target for a federation": (
        {"silos": load("synthetic", sizes=[30, 30], features=3), "target": "y"},
        "no target and no classes for a federation",
    ),
    "a tuple for a budget": ({"budget": (1.0, 1e-5)}, "budget=tacit.Budget(epsilon=..., delta=...).* got (1.0, 1e-05)"),
    "no clip": ({"clip_norm": None}, "Expected clip_norm, a bound on each record's part"),
    "a clip of zero": ({"clip_norm": 0.0}, "clip_norm=0.0 to be a finite number > 0"),
    "a clip in words": ({"clip_norm": "one"}, "clip_norm='one' to be a finite number > 0"),
    "clips of three silos": ({"clip_norm": (1.0, 1.0, 1.0)}, "one number or 2 of them, one for each silo"),
    "a batch above the records": ({"batch_size": 50}, "batch_size=50 <= 40, the records of silo 0; lower it"),
    "half a record": ({"batch_size": 2.5}, "batch_size=2.5 to be a whole number >= 1"),
    "no batch to sample": ({"sampling": "wor"}, 'a batch_size for sampling="wor"'),
    "a misspelt sampling": ({"batch_size": 4, "sampling": "poison"}, "'poison'; did you mean 'poisson'?"),
    "a misspelt channel": ({"channel": "dirct"}, "Unknown channel 'dirct'; did you mean 'direct'?"),
    "a misspelt protection": ({"protects": "records"}, "did you mean 'record'?"),
    "a seed in words": ({"seed": "a"}, "seed='a' to be a whole number >= 0"),
    "half a measurement": ({"measure_every": 0.5}, "measure_every=0.5 to be a whole number >= 0"),
    "too many participants": ({"participants": 5}, "participants=5 <= silos=2"),
    "a weight too few": ({"weights": (1.0,)}, "Expected 2 non-negative weights"),
    "an algorithm by name": (
        {"algorithm": "mb-sdg"},
        "such as tacit.mb_sgd(step_size=..., num_rounds=...), got 'mb-sdg'",
    ),
    "an algorithm that was not called": ({"algorithm": tacit.mb_sgd}, "got the function mb_sgd itself"),
    "an objective for a problem": ({"problem": PROBLEM.objective}, "write Problem(objective)"),
    "batch normalisation": ({"problem": own(apply=normalised)}, "mixes records (batch normalisation"),
    "a mean over the batch": (
        {"problem": own(value=lambda outputs, y: jnp.mean(log_loss(outputs, y)))},
        "one loss per record, shape (1,) for 1 record, got (); do not take the mean",
    ),
    "a loss that ranks the batch": (
        {"problem": own(value=lambda outputs, y: log_loss(outputs, y) * (1 + jnp.abs(outputs[:, 0] - outputs.mean())))},
        "not to depend on others of its batch, got .* alone and .* beside another",
    ),
    "a model that fails": (
        {"problem": own(apply=lambda params, x, tap: x @ jnp.ones((7, 1)))},
        "to take features of shape (records, 3), but it raises TypeError: .*model.apply",
    ),
    "a model without an axis of outputs": (
        {"problem": own(apply=lambda params, x, tap: (x @ params["linear"]["w"])[:, 0])},
        "outputs of shape (2, outputs), got (2,)",
    ),
    "to go on from a name": ({"init": "fit"}, "Expected init to be a Fit, a TrainedModel, or parameters"),
    "to go on with another model": (
        {"init": {"linear": {"w": np.zeros((5, 1)), "b": np.zeros(1)}}},
        "shape (3, 1), got (5, 1)",
    ),
}

MADE = {
    "no epsilon": (lambda: tacit.Budget(delta=1e-5), "an epsilon or a noise_multiplier, and not both"),
    "epsilon and noise": (lambda: tacit.Budget(epsilon=1.0, noise_multiplier=2.0), "and not both"),
    "epsilon zero": (lambda: tacit.Budget(epsilon=0.0), "epsilon=0.0 > 0"),
    "epsilon below zero": (lambda: tacit.Budget(epsilon=-1.0), "epsilon=-1.0 to be finite and >= 0"),
    "epsilon in words": (lambda: tacit.Budget(epsilon="one"), "epsilon='one' to be a number"),
    "delta one": (lambda: tacit.Budget(epsilon=1.0, delta=1), "0 < delta=1.0 < 1"),
    "delta of a half": (lambda: tacit.Budget(epsilon=1.0, delta=0.5), "delta=0.5 < 0.1, for with that probability"),
    "a misspelt accountant": (lambda: tacit.Budget(epsilon=1.0, accountant="tihgt"), "did you mean 'tight'?"),
    "no round": (lambda: tacit.mb_sgd(step_size=0.5, num_rounds=0), "num_rounds=0 of mb-sgd to be a whole number >= 1"),
    "a step back": (
        lambda: tacit.mb_sgd(step_size=-1.0, num_rounds=2),
        "step_size=-1.0 of mb-sgd to be a finite number > 0",
    ),
    "a model by name": (lambda: Objective("linear", logistic()), "a model such as linear(features, 1), got 'linear'"),
    "a loss that was not called": (lambda: Objective(linear(3, 1), logistic), "got the function logistic itself"),
    "a regulariser by name": (
        lambda: tacit.Problem(PROBLEM.objective, regulariser="l1"),
        "a regulariser such as tacit.geometry.l1(0.01), got 'l1'",
    ),
    "smoothness below zero": (lambda: tacit.Problem(PROBLEM.objective, smoothness=-1.0), "smoothness=-1.0 >= 0"),
}

COMMANDS = {
    "run heart-diseas": "did you mean 'heart-disease'?",
    "run nowhere.toml": "No study file at nowhere.toml",
    "run broken.toml": "not valid TOML",
    "run empty.toml": "algorithm: missing; set it in the study or with --set",
    "run old.toml": "Expected format=1, got format=99",
    "run clinics/bonn.csv": "holds records and is not a study; `tacit init clinics`",
    "run": "`tacit studies` lists those that ship",
    "run heart-disease --set algorithm.name=mb-sdg": "Unknown algorithm 'mb-sdg'; did you mean 'mb-sgd'?",
    "run heart-disease --set algorithm.stepsize=1": "did you mean 'step_size'?",
    "run heart-disease --set objective.loss=logistik": "Unknown loss 'logistik'; did you mean 'logistic'? .* squared.$",
    "run heart-disease --set objective.model=liner": "Unknown model 'liner'; did you mean 'linear'?",
    "run heart-disease --set objective.loss=squared": "'squared' does not fit the binary target",
    "run heart-disease --set objective.model=cnn": "'cnn' needs images",
    "run heart-disease --set 'objective.model_options={depth=3}'": "they are for registered models",
    "run heart-disease --set 'plugins.modules=[\"not_there\"]'": "plugins.modules: 'not_there' cannot be imported",
    "run heart-disease --set privacy.epsilon=0": "privacy.epsilon: Input should be greater than 0, got 0",
    "run heart-disease --set privacy.delta=0.5": "expected delta < 0.1",
    "run heart-disease --set privacy.noise_multiplier=2": "set epsilon or noise_multiplier, not both",
    "run heart-disease --set 'privacy.epsilon=[1,2]'": "one number or 4 of them (one per silo), got 2",
    "run heart-disease --set algorithm.num_rounds=0": "num_rounds: Input should be greater than or equal to 1",
    "run heart-disease --set algorithm.step_size=-1": "algorithm.step_size: Input should be greater than 0, got -1",
    "run heart-disease --set algorithm.clip_norm=none": "algorithm.clip_norm is needed for a private run",
    "run heart-disease --set algorithm.sampling=poison": "Unknown sampling 'poison'; did you mean 'poisson'?",
    "run heart-disease --set algorithm.channel=dirct": "Unknown channel 'dirct'; did you mean 'direct'?",
    "run heart-disease --set algorithm.sampling=wor --set algorithm.batch_size=9999": "batch=9999 <= records=",
    "run heart-disease --set epsilon=1": "did you mean privacy.epsilon or validation.epsilon?",
    "run heart-disease --set privacy.epsilon": "Expected --set section.key=value",
    "run heart-disease --set data.name=heart": "Unknown data set 'heart'; did you mean 'heart-disease'?",
    "run heart-disease --set partition.kind=natral": "did you mean 'natural'?",
    "run heart-disease --set run.participants=9": "participants=9 <= silos=4",
    "plan heart-disease --set privacy.protects=records": "did you mean 'record'?",
    "init nothing": "at least one .csv file in nothing",
    "init clinics --target il": "did you mean 'ill'?",
    "init clinics --target ill --range age=50:20": "LOW:HIGH with LOW < HIGH",
    "init clinics --target ill --epsilon 0": "--epsilon=0 to be a number above 0",
    "predict nowhere clinics/bonn.csv": "No folder at nowhere; give a run folder or a bundle",
    "evaluate nothing clinics/bonn.csv": "nothing is not a bundle",
    "report nothing": "not a complete run folder",
    "ledger nothing": "No policy at nothing/policy.toml; write one with: tacit silo init nothing",
    "runn": "Did you mean 'run'?",
    "algorithms --jsn": "Did you mean --json?",
}


def pattern(words: str) -> str:
    """Words as they are, with ``.*`` for what is left out."""
    escaped = re.escape(words)
    for kept in (r"\.\*", r"\$"):
        escaped = escaped.replace(kept, kept.replace("\\", ""))
    return escaped


def told(error: BaseException, words: str) -> None:
    """An error of ours with these words; it has no cause in jax and names no tracer."""
    text = str(error)
    assert isinstance(error, TacitError), repr(error)
    assert re.search(pattern(words), text, re.DOTALL), text
    assert error.__cause__ is None
    assert error.__context__ is None or error.__suppress_context__, "no traceback of another's before ours"
    assert "Tracer" not in text
    assert text[-1] in ".?" or ": " in text, "a sentence, or what to type"


def test_there_are_sixty():
    assert len(FIT) + len(MADE) >= 35
    assert len(COMMANDS) >= 25


@pytest.mark.parametrize("mistake", FIT)
def test_a_mistake_to_fit_is_told(mistake):
    changes, words = FIT[mistake]
    given = {"problem": PROBLEM, "silos": two(), "algorithm": SGD, "budget": BUDGET, "clip_norm": 1.0, **changes}
    with pytest.raises(TacitError) as caught:
        tacit.fit(given.pop("problem"), given.pop("silos"), given.pop("algorithm"), **given)
    told(caught.value, words)


@pytest.mark.parametrize("mistake", MADE)
def test_a_mistake_is_told_where_it_is_made(mistake):
    make, words = MADE[mistake]
    with pytest.raises(TacitError) as caught:
        make()
    told(caught.value, words)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "clinics").mkdir()
    for name in ("aachen", "bonn"):
        (folder / "clinics" / f"{name}.csv").write_text("age,ill\n30,no\n40,yes\n50,yes\n", encoding="utf-8")
    for name, text in (("broken", "name = "), ("empty", ""), ("old", "format = 99\n")):
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    (folder / "nothing").mkdir()
    return folder


@pytest.mark.parametrize("line", COMMANDS)
def test_a_mistake_to_a_command_is_told(line, place, monkeypatch):
    monkeypatch.chdir(place)
    done = CliRunner().invoke(app, shlex.split(line))
    assert done.exit_code != 0
    if isinstance(done.exception, SystemExit):
        assert COMMANDS[line] in done.output
    else:
        told(done.exception, COMMANDS[line])


@pytest.mark.parametrize(
    "fields",
    [
        {"x": X.astype(np.int64)},
        {"x": X.tolist(), "y": Y.tolist()},
        {"x": X > 0, "y": Y.astype(bool)},
        {"y": Y.astype(float)},
        {"x": jnp.asarray(X)},
        {"x": SimpleNamespace(detach=lambda: SimpleNamespace(cpu=lambda: SimpleNamespace(numpy=lambda: X)))},
    ],
    ids=["whole features", "lists", "truth values", "whole labels as floats", "jax", "torch"],
)
def test_what_means_the_same_is_taken(fields):
    given = [{"x": X, "y": Y}, {"x": X, "y": Y, **fields}]
    found = tacit.fit(PROBLEM, given, SGD, budget=BUDGET, clip_norm=1.0, measure_every=0)
    assert found.model.classes.tolist() == [0, 1]
