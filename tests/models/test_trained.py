"""A trained model encodes as training did, says what it did, and survives being saved."""

import json
import pickle
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tacit
from tacit.data import images, load
from tacit.data.csv_silos import encode_file, encoding_of, read_csv, target_of
from tacit.data.encode import Curves, Norm, Standard
from tacit.data.federation import Encoding
from tacit.data.schema import schema_from, schema_text
from tacit.models import BundleError, RowsWarning, SiloPrice, load_model
from tacit.models.description import Features, plain_stages, stages_from
from tacit.models.trained import privacy_of, trained, training_of
from tacit.objectives import Objective, absolute, cnn, hinge, linear, logistic, mlp, pinball, softmax, squared
from tacit.objectives.models import dense
from tacit.objectives.objective import Model
from tacit.plans.spec import study_from
from tacit.studies.bundle import write_deployed_model, write_model
from tacit.studies.run import prepare

SCHEMA = {
    "target": {"column": "ill", "classes": ["no", "yes"]},
    "columns": {
        "age": {"kind": "number", "low": 0, "high": 100, "missing": True},
        "sex": {"kind": "category", "levels": ["f", "m"]},
        "town": {"kind": "category", "levels": ["1", "2", "3"]},
        "id": {"kind": "drop"},
    },
}
ROWS = [("12", "f", "1"), ("", "m", "2"), ("150", "x", "3"), ("7", "?", "9"), ("99.5", "m", "")]
TRAINING = training_of(study="s", algorithm="mb-sgd", rounds=3, seed=0, simulated=True)
PRIVACY = privacy_of("direct", "record", [SiloPrice(name="a", records=9, epsilon=1.0, delta=1e-6)])


def model_of(objective, shape, **about):
    params = objective.init(jax.random.key(1))
    params = jax.tree.map(lambda leaf: leaf + 0.1 * jnp.arange(leaf.size, dtype=leaf.dtype).reshape(leaf.shape), params)
    features = Features(shape=shape)
    return trained(objective, params, features=features, training=TRAINING, privacy=PRIVACY, **about)


@pytest.fixture
def clinic(tmp_path):
    """A model of CSV records, the file that it was trained on, and the features that training saw."""
    rules = schema_from(SCHEMA, "test")
    path = tmp_path / "records.csv"
    path.write_text("id,age,sex,town,ill\n" + "".join(f"7,{','.join(row)},no\n" for row in ROWS), encoding="utf-8")
    encoding = encoding_of(rules)
    raw, _ = encode_file(read_csv(path), rules)
    about = {"encoding": encoding, "task": "binary", "target": target_of(rules)}
    return model_of(Objective(linear(6, 1), logistic()), (6,), **about), path, encoding.apply(raw)


NOTES = (
    "1 cell of 'age' missing: the middle of [0, 100]",
    "1 cell of 'age' outside [0, 100]: moved to its ends",
    "1 cell of 'sex' missing: zeros",
    "1 cell of 'sex' not among its levels: zeros",
    "1 cell of 'town' missing: zeros",
    "1 cell of 'town' not among its levels: zeros",
)


def test_rows_are_encoded_as_training_encoded_them_and_counted(clinic):
    model, path, expected = clinic
    found = model.encode(path)
    assert found.x.tobytes() == expected.tobytes()
    assert found.notes == (*NOTES, "1 column not used: id")


def test_columns_in_any_order_and_of_any_type_give_the_same_features(clinic):
    pandas = pytest.importorskip("pandas", reason="pandas is not a part of Tacit; it comes with some of its extras")
    model, _, expected = clinic
    ages, towns = [12, None, 150, 7, 99.5], [1.0, 2.0, 3.0, 9.0, np.nan]  # as pandas reads whole numbers with a gap
    columns = {"town": towns, "sex": ["f", "m", "x", None, "m"], "age": ages}
    for rows in (columns, pandas.DataFrame(columns), pandas.DataFrame(columns).convert_dtypes()):
        found = model.encode(rows)
        assert found.x.tobytes() == expected.tobytes()
        assert found.notes == NOTES
    with pytest.warns(RowsWarning, match="1 cell of 'sex' not among its levels"):
        assert set(model.predict(columns)) <= {"no", "yes"}


def test_rows_that_cannot_be_read_are_named(clinic, tmp_path):
    model, _, _ = clinic
    good = {"age": [1], "sex": ["f"], "town": ["1"]}
    for rows, match in (
        ({k: v for k, v in good.items() if k != "sex"} | {"sexe": ["f"]}, "column 'sex'.*did you mean 'sexe'"),
        ({}, "no rows to predict"),
        ({**good, "age": []}, "one length"),
        ({**good, "age": ["12,5"]}, "row 0: expected a number in column 'age'"),
        (np.zeros((2, 5)), r"\(rows, 6\).*got shape \(2, 5\)"),
        (np.zeros((0, 6)), "no rows to predict"),
        (np.full((1, 6), np.nan), "finite"),
        (np.array([["f"] * 6]), "columns by name"),
    ):
        with pytest.raises(BundleError, match=match):
            model.encode(rows)
    path = tmp_path / "bad.csv"
    path.write_text("age,sex,town\n1,f,1\nold,f,1\n", encoding="utf-8")
    with pytest.raises(BundleError, match=r"bad.csv, line 3: expected a number"):
        model.encode(path)


def test_raw_rows_in_the_place_of_encoded_ones_are_refused():
    federation = load("heart-disease")
    problem = tacit.Problem(Objective(linear(13, 1), logistic()))
    found = tacit.fit(problem, federation, tacit.mb_sgd(step_size=1.0, num_rounds=1), budget=None)
    with pytest.raises(BundleError, match="seem to be raw rows"):
        found.predict(np.full((2, 13), 60.0))
    assert len(found.predict(federation.silos[0].test["x"])) == len(federation.silos[0].test["y"])


def test_labels_are_in_the_targets_own_words(clinic):
    model, path, x = clinic
    with pytest.warns(RowsWarning):
        found = model.evaluate(path)
    assert found["records"] == 5
    assert found == model.evaluate(x, ["no"] * 5)
    with pytest.raises(BundleError, match="row 1: expected the label 'ill' to be one of no, yes"):
        model.evaluate(x, ["no", "maybe", "no", "no", "no"])
    with pytest.raises(BundleError, match="one label per row"):
        model.evaluate(x, ["no"])
    with pytest.raises(BundleError, match="Expected labels"):
        model.evaluate(x)


OBJECTIVES = {
    "linear": (Objective(linear(4, 1), logistic()), (4,)),
    "no bias": (Objective(linear(4, 3, bias=False), softmax()), (4,)),
    "hinge": (Objective(linear(4, 1), hinge()), (4,)),
    "smoothed": (Objective(linear(4, 1), hinge(2.0)), (4,)),
    "relu": (Objective(mlp((4, 5, 3)), softmax()), (4,)),
    "tanh": (Objective(mlp((4, 5, 1), activation=jnp.tanh), squared()), (4,)),
    "softplus": (Objective(mlp((4, 3, 1), activation=jax.nn.softplus), absolute()), (4,)),
    "pinball": (Objective(linear(4, 1), pinball(0.9)), (4,)),
    "cnn": (Objective(cnn((12, 12, 2), channels=(3,), hidden=(7,), outputs=4), softmax()), (12, 12, 2)),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_model_comes_back_as_it_was(name, tmp_path):
    objective, shape = OBJECTIVES[name]
    model = model_of(objective, shape)
    x = np.random.default_rng(0).normal(size=(6, *shape)).astype(np.float32)
    back = load_model(model.save(tmp_path / "bundle"))
    assert back.predict(x).tobytes() == model.predict(x).tobytes()
    assert pickle.loads(pickle.dumps(model)).predict(x).tobytes() == model.predict(x).tobytes()
    saved = model.description.model_copy(update={"tensors": back.description.tensors})
    assert back.description == saved
    assert not np.allclose(model.outputs(x), 0)
    if name in ("hinge", "smoothed", "tanh", "softplus", "pinball"):
        with pytest.raises(BundleError, match="probabilities"):
            back.predict_proba(x)
    else:
        likely = back.predict_proba(x)
        assert np.allclose(likely.sum(axis=1), 1)
        assert (back.classes[likely.argmax(axis=1)] == back.predict(x)).all()


def own_model():
    def apply(params, x, tap):
        return jnp.sin(dense({"own": params[0]}, "own", x, tap)) * params[1]

    return Model(lambda key: [{"w": jnp.ones((4, 1))}, jnp.ones(1)], apply)


@pytest.mark.parametrize("model", [own_model(), mlp((4, 2, 1), activation=jnp.sin)], ids=["own", "own activation"])
def test_a_model_of_ones_own_needs_to_be_given(model, tmp_path):
    found = model_of(Objective(model, logistic()), (4,))
    folder = found.save(tmp_path / "bundle")
    with pytest.raises(BundleError, match=r"model=\.\.\."):
        load_model(folder)
    with pytest.raises(BundleError, match="pickled"):
        pickle.dumps(found)
    x = np.eye(4, dtype=np.float32)
    assert load_model(folder, model=model).predict_proba(x).tobytes() == found.predict_proba(x).tobytes()
    with pytest.raises(BundleError, match="another model"):
        load_model(folder, model=linear(4, 1))
    known = model_of(Objective(linear(4, 1), logistic()), (4,)).save(tmp_path / "known")
    with pytest.raises(BundleError, match="leave model= out"):
        load_model(known, model=model)


def test_encodings_of_every_kind_come_back_to_the_last_bit():
    generator = np.random.default_rng(0)
    raw = generator.integers(0, 256, (20, 784)).astype(np.uint8)
    small = generator.normal(size=(20, 3))
    curves = Curves((0, 2), np.array([[-0.5, 0.1], [0.0, 1.0]]), np.array([[-1.0, 1.0], [-1.0, 1.0]]))
    made = [(images._mnist_encoding(f"pca-{n}", n, raw), raw) for n in (2, 5)]
    made += [(images._mnist_encoding(name, 0, raw), raw) for name in ("pixels", "unit-pixels")]
    made.append((Encoding((Standard(small.mean(0), small.std(0)), curves, Norm(1.0)), (), 1.0), small))
    for name in ("heart-disease", "breast-cancer"):
        federation = load(name)
        rows = generator.normal(50, 60, (20, len(federation.encoding.columns)))
        rows[3] = np.nan
        made.append((federation.encoding, rows))
    for encoding, rows in made:
        trees, arrays = plain_stages(encoding.stages)
        back = stages_from(json.loads(json.dumps(trees)), arrays)
        again = rows
        for stage in back:
            again = stage.apply(again)
        assert again.tobytes() == encoding.apply(rows).tobytes()


def test_images_may_be_given_as_pixels():
    raw = np.random.default_rng(0).integers(0, 256, (3, 28, 28)).astype(np.uint8)
    encoding = images._mnist_encoding("unit-pixels", 0, raw)
    model = model_of(Objective(linear(784, 10), softmax()), (784,), encoding=encoding)
    assert model.encode(raw).x.tobytes() == encoding.apply(raw.reshape(3, -1)).tobytes()


@pytest.mark.parametrize("name", ["heart-disease", "breast-cancer", "insurance", "adult"])
def test_records_of_a_data_set_given_as_columns_have_the_features_of_training(name, tmp_path):
    federation = load(name)
    if name == "heart-disease":
        table = {"chol": [0.0, 233.0], "trestbps": [145.0, 0.0], "age": [63.0, 41.0]}
        missing = {"chol": [np.nan, 233.0], "trestbps": [145.0, np.nan], "age": [63.0, 41.0]}
    else:
        table = missing = {}
    task = "regression" if federation.task == "regression" else "binary"
    width = federation.feature_shape[0]
    loss = squared() if task == "regression" else logistic()
    about = {"encoding": federation.encoding, "target": federation.target, "task": task}
    model = load_model(model_of(Objective(linear(width, 1), loss), (width,), **about).save(tmp_path / "bundle"))
    filled = {
        column: table.get(column, [1.0, 2.0] if about.levels is None else about.levels[:2])
        for column, about in model.description.columns.items()
    }
    codes = [
        missing.get(column, filled[column]) if about.levels is None else [0.0, 1.0]
        for column, about in model.description.columns.items()
    ]
    every = dict(zip(model.description.columns, codes, strict=True))
    raw = np.stack([every.get(column, [np.nan] * 2) for column in federation.encoding.columns], axis=1)
    assert model.encode(filled).x.tobytes() == federation.encoding.apply(raw).tobytes()


def test_numbers_are_predicted_in_their_own_unit(tmp_path):
    federation = load("insurance")
    problem = tacit.Problem(Objective(linear(*federation.feature_shape, 1), squared()))
    sgd = tacit.mb_sgd(step_size=0.3, num_rounds=200)
    model = load_model(tacit.fit(problem, federation, sgd, budget=None, measure_every=0).save(tmp_path / "bundle"))
    test = {k: np.concatenate([silo.test[k] for silo in federation.silos]) for k in ("x", "y")}
    found = model.evaluate(test["x"], test["y"] * 65_000)
    assert 3000 < found["rmse"] < 9000 < found["mean_rmse"]
    assert found["r2"] == pytest.approx(1 - (found["rmse"] / found["mean_rmse"]) ** 2)


def test_what_is_no_bundle_is_told_apart(tmp_path):
    with pytest.raises(BundleError, match="No folder"):
        load_model(tmp_path / "nowhere")
    with pytest.raises(BundleError, match="is not a bundle"):
        load_model(tmp_path)
    model = model_of(Objective(linear(4, 1), logistic()), (4,))
    folder = model.save(tmp_path / "run" / "model")
    assert load_model(tmp_path / "run").description.task == "binary"  # a run folder will do
    with pytest.raises(BundleError, match="nothing is written over"):
        model.save(folder)
    text = (folder / "model.json").read_text(encoding="utf-8")
    for changed, match in (
        (text.replace('"format": 1', '"format": 2'), "another version"),
        (text[:50], "not valid JSON"),
        (text.replace('"task"', '"tusk"'), "tusk"),
        (text.replace('"linear"', '"transformer"'), "Unknown model"),
        (text.replace('"features": 4', '"features": 5'), "another model"),
    ):
        (folder / "model.json").write_text(changed, encoding="utf-8")
        with pytest.raises(BundleError, match=match):
            load_model(folder)
    (folder / "model.json").write_text(text, encoding="utf-8")
    (folder / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(BundleError, match="copy the bundle again"):
        load_model(folder)


def test_a_deployed_study_has_columns_where_its_schema_is_at_hand(tmp_path):
    (tmp_path / "schema.toml").write_text(schema_text(schema_from(SCHEMA, "test")), encoding="utf-8")
    tree = {"name": "s", "data": {"name": "csv", "options": {"folder": str(tmp_path)}}}
    tree["algorithm"] = {"name": "mb-sgd", "num_rounds": 2, "step_size": 1.0, "clip_norm": 1.0}
    study = study_from({**tree, "privacy": {"epsilon": 1.0}})
    silos = [SiloPrice(name="oslo", records=5, epsilon=1.0, delta=1e-6)]
    rows = {"age": [1], "sex": ["f"], "town": ["1"]}
    for width, has_columns in ((6, True), (5, False)):
        objective = Objective(linear(width, 1), logistic())
        facts = SimpleNamespace(features=(width,), task="binary")
        params = objective.init(jax.random.key(0))
        model = load_model(write_deployed_model(tmp_path / str(width), study, objective, params, facts, silos))
        assert not model.description.training.simulated
        assert bool(model.description.columns) == has_columns
        if has_columns:
            assert model.predict(rows).tolist() == ["no"]
        else:
            with pytest.raises(BundleError, match="no columns"):
                model.predict(rows)
            with pytest.raises(BundleError, match="5 features"):
                load_model(tmp_path / "5", schema=tmp_path / "schema.toml")


def test_what_was_read_from_records_is_said_in_the_bundle(tmp_path):
    federation = load("breast-cancer", scaling="standard")
    problem = tacit.Problem(Objective(linear(*federation.feature_shape, 1), logistic()))
    found = tacit.fit(problem, federation, tacit.mb_sgd(step_size=1.0, num_rounds=2), budget=None)
    assert "NOT PRIVATE" in repr(found)
    assert "**Not private:**" in (found.save(tmp_path / "bundle") / "README.md").read_text(encoding="utf-8")
    assert len(repr(found).splitlines()) <= 10


@pytest.mark.parametrize("statistic", ["moments", "quantiles", "histogram"])
def test_private_standardisation_is_a_part_of_the_encoding(statistic, tmp_path):
    generator = np.random.default_rng(0)
    for name in ("bergen", "oslo"):
        rows = [f"{a:.2f},{b:.3f},{'yes' if a > 50 else 'no'}" for a, b in generator.uniform(0, 100, (60, 2))]
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,b,y", *rows]) + "\n", encoding="utf-8")
    columns = {name: {"kind": "number", "low": 0, "high": 100} for name in ("a", "b")}
    tree = {"target": {"column": "y", "classes": ["no", "yes"]}, "norm": "box", "columns": columns}
    (tmp_path / "schema.toml").write_text(schema_text(schema_from(tree, "test")), encoding="utf-8")
    study = study_from(
        {
            "name": "s",
            "data": {"name": "csv", "options": {"folder": str(tmp_path)}},
            "preprocessing": {"standardise": statistic, "columns": ["a", "b"]},
            "algorithm": {"name": "mb-sgd", "num_rounds": 2, "step_size": 1.0, "clip_norm": 1.0},
            "privacy": {"epsilon": 4.0},
        }
    )
    prepared = prepare(study)
    federation, objective = prepared.federations[0], prepared.builder.problem.objective
    params = objective.init(jax.random.key(0))
    model = load_model(write_model(tmp_path, study, objective, params, federation, []))
    for silo in federation.silos:
        seen = np.concatenate([silo.train["x"], silo.validation["x"], silo.test["x"]])
        found = model.encode(tmp_path / f"{silo.name}.csv").x
        assert sorted(map(bytes, found)) == sorted(map(bytes, seen))
    assert model.description.privacy.not_covered == ()
