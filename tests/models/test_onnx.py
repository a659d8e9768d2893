"""An exported graph says what the model says, to 1e-5, in a runtime that knows nothing of Tacit."""

import json
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from tacit.data.federation import Target
from tacit.models import BundleError, export_onnx
from tacit.objectives import Objective, linear, logistic, mlp, squared
from tests.models.test_trained import OBJECTIVES, model_of


@pytest.fixture
def runtime():
    pytest.importorskip("onnx", reason="the extra onnx is not installed")
    return pytest.importorskip("onnxruntime", reason="onnxruntime, which checks exports, is not installed")


def run(runtime, path, x):
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"features": x}), strict=True)), session


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_graph_equals_the_model(name, runtime, tmp_path):
    objective, shape = OBJECTIVES[name]
    model = model_of(objective, shape)
    x = np.random.default_rng(0).normal(size=(40, *shape)).astype(np.float32)
    found, _ = run(runtime, export_onnx(model, tmp_path / "model.onnx"), x)
    outputs = model.outputs(x)
    if model.description.task == "regression":
        assert np.abs(found["prediction"][:, 0] - model.predict(x)).max() < 1e-5 * max(1, np.abs(outputs).max())
        return
    assert (found["class"] == model.positions(outputs)).all()
    if model.has_probabilities:
        assert np.abs(found["probabilities"] - model.predict_proba(x)).max() < 1e-5
    else:
        assert np.abs(found["score"][:, 1] - outputs[:, 0]).max() < 1e-5 * max(1, np.abs(outputs).max())


def test_numbers_have_their_unit_and_classes_their_names(runtime, tmp_path):
    x = np.ones((3, 4), np.float32)
    costs = model_of(Objective(linear(4, 1), squared()), (4,), target=Target("cost", (), (100.0, 300.0), "euro"))
    found, session = run(runtime, export_onnx(costs, tmp_path / "cost.onnx"), x)
    assert np.allclose(found["prediction"][:, 0], costs.predict(x), rtol=1e-5)
    assert costs.predict(x)[0] > 100
    facts = session.get_modelmeta().custom_metadata_map
    assert (facts["target"], facts["unit"]) == ("cost", "euro")
    ill = model_of(Objective(linear(4, 1), logistic()), (4,), target=Target("ill", ("no", "yes")))
    _, session = run(runtime, export_onnx(ill, tmp_path / "ill.onnx"), x)
    assert json.loads(session.get_modelmeta().custom_metadata_map["classes"]) == ["no", "yes"]


def test_a_model_of_ones_own_is_not_exported(runtime, tmp_path):
    model = model_of(Objective(mlp((4, 2, 1), activation=jnp.sin), logistic()), (4,))
    with pytest.raises(BundleError, match="linear, mlp, cnn"):
        export_onnx(model, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


def test_without_the_extra_the_error_says_how_to_get_it():
    code = (
        "import sys; sys.modules['onnx'] = None\n"
        "from tests.models.test_trained import OBJECTIVES, model_of\n"
        "from tacit.models import export_onnx\n"
        "export_onnx(model_of(*OBJECTIVES['linear']), 'never.onnx')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'tacit[onnx]'" in done.stderr
