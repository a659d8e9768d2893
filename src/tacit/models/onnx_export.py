"""A model as an ONNX graph: encoded features in, predictions out.

The graph has an input ``features`` (rows, ...) in float32 and outputs by task: ``probabilities`` and ``class`` (its
position) for models of logistic or softmax loss, ``score`` and ``class`` for hinge, ``prediction`` in the target's own
unit for regression. Classes, names of features and unit are in the graph's metadata.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tacit.models.description import BundleError, Description
from tacit.models.scores import LOG_LOSSES
from tacit.models.trained import TrainedModel

_OPSET, _IR = 17, 8  # read by every runtime since 2022
_ACTIVATIONS = {"relu": "Relu", "softplus": "Softplus", "tanh": "Tanh"}


def export_onnx(model: TrainedModel, path: str | Path) -> Path:
    """Write the model as an ONNX file; the architecture must be one that Tacit knows."""
    try:
        import onnx
    except ImportError:
        raise BundleError(
            "Expected the package onnx for an export; install it with: pip install 'tacit[onnx]'"
        ) from None
    about = model.description
    if about.model is None or about.model.name not in _BODIES:
        name = "of its author's own" if about.model is None else about.model.name
        raise BundleError(f"Expected a model among {', '.join(_BODIES)} for an export to ONNX, got one {name}.")
    graph = _Graph(onnx.helper, onnx.numpy_helper)
    raw = _BODIES[about.model.name](graph, model, "features")
    outputs = _head(graph, about, raw)
    shape: list[str | int | None] = ["rows", *about.features.shape]
    value = onnx.helper.make_tensor_value_info
    made = onnx.helper.make_graph(
        graph.nodes,
        about.target.column,
        [value("features", onnx.TensorProto.FLOAT, shape)],
        [value(name, getattr(onnx.TensorProto, kind), ["rows", *rest]) for name, kind, rest in outputs],
        graph.constants,
    )
    file = onnx.helper.make_model(
        made,
        producer_name="tacit",
        producer_version=about.training.tacit,
        opset_imports=[onnx.helper.make_opsetid("", _OPSET)],
        ir_version=_IR,
    )
    onnx.helper.set_model_props(file, _facts(about))
    onnx.checker.check_model(file, full_check=True)
    Path(path).write_bytes(file.SerializeToString())
    return Path(path)


def _facts(about: Description) -> dict[str, str]:
    facts = {"target": about.target.column, "unit": about.target.unit or "", "task": about.task}
    return facts | {"classes": json.dumps(about.target.classes), "features": json.dumps(about.features.names)}


@dataclass
class _Graph:
    """Nodes and constants in the order in which they were added."""

    helper: Any
    numpy_helper: Any
    nodes: list[Any] = field(default_factory=list)
    constants: list[Any] = field(default_factory=list)

    def add(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        name = output or f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(self.helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def constant(self, values: np.ndarray, name: str) -> str:
        self.constants.append(self.numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def dense(self, params: Any, layer: str, inputs: str) -> str:
        """A dense layer with an optional bias."""
        weights = params[layer]
        found = self.add("MatMul", inputs, self.constant(np.asarray(weights["w"]), f"{layer}.w"))
        return (
            self.add("Add", found, self.constant(np.asarray(weights["b"]), f"{layer}.b")) if "b" in weights else found
        )


def _linear(graph: _Graph, model: TrainedModel, x: str) -> str:
    return graph.dense(model.params, "linear", x)


def _mlp(graph: _Graph, model: TrainedModel, x: str) -> str:
    assert model.description.model is not None
    activation = _ACTIVATIONS[model.description.model.arguments["activation"]]
    *hidden, last = model.model.layers
    for name in hidden:
        x = graph.add(activation, graph.dense(model.params, name, x))
    return graph.dense(model.params, last, x)


def _cnn(graph: _Graph, model: TrainedModel, x: str) -> str:
    """Images are (height, width, channels) here and (channels, height, width) in ONNX."""
    assert model.description.model is not None
    given = model.description.model.arguments
    kernel, pool, params = given["kernel"], given["pool"], model.params
    x = graph.add("Transpose", x, perm=[0, 3, 1, 2])
    for name in [layer for layer in model.model.layers if layer.startswith("conv_")]:
        weights = np.asarray(params[name]["w"]).reshape(kernel, kernel, -1, len(params[name]["b"]))
        constants = graph.constant(weights.transpose(3, 2, 0, 1), f"{name}.w"), np.asarray(params[name]["b"])
        x = graph.add("Conv", x, constants[0], graph.constant(constants[1], f"{name}.b"))
        x = graph.add("Relu", graph.add("MaxPool", x, kernel_shape=[pool, pool], strides=[pool, pool]))
    x = graph.add("Flatten", graph.add("Transpose", x, perm=[0, 2, 3, 1]), axis=1)
    *hidden, last = [layer for layer in model.model.layers if layer.startswith("dense_")]
    for name in hidden:
        x = graph.add("Relu", graph.dense(params, name, x))
    return graph.dense(params, last, x)


_BODIES: dict[str, Callable[[_Graph, TrainedModel, str], str]] = {"linear": _linear, "mlp": _mlp, "cnn": _cnn}


def _head(graph: _Graph, about: Description, raw: str) -> list[tuple[str, str, list[int]]]:
    """From the model's outputs to predictions; name, type and width of each result."""
    if about.task == "regression":
        low, high = about.target.range or (0.0, 1.0)
        raw = graph.add("Exp", raw) if about.loss == "poisson" else raw
        scaled = graph.add("Mul", raw, graph.constant(np.array([high - low], np.float32), "scale"))
        graph.add("Add", scaled, graph.constant(np.array([low], np.float32), "low"), output="prediction")
        return [("prediction", "FLOAT", [1])]
    classes = len(about.target.classes)
    if _outputs(about) == 1:
        logits = graph.add(
            "Concat", graph.add("Mul", raw, graph.constant(np.zeros(1, np.float32), "zero")), raw, axis=1
        )
    else:
        logits = raw
    if about.loss in LOG_LOSSES:
        graph.add("Softmax", logits, axis=1, output="probabilities")
        first = ("probabilities", "FLOAT", [classes])
    else:
        graph.add("Identity", logits, output="score")
        first = ("score", "FLOAT", [classes])
    graph.add("ArgMax", logits, axis=1, keepdims=0, output="class")
    return [first, ("class", "INT64", [])]


def _outputs(about: Description) -> int:
    """How many numbers the model gives for a row."""
    given = about.model.arguments if about.model is not None else {}
    return int(given["outputs"] if "outputs" in given else given["sizes"][-1])
