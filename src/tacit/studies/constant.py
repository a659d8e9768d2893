"""The baseline that learns nothing: one prediction for every record, from the targets of all training records.

The majority class for an error, the mean target for a squared one, and the output with the least loss. Nothing here is
private. A model that is not better is not worth its price.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tacit.studies.charts import number

Parts = Mapping[str, Mapping[str, np.ndarray]]


def _majority(train: np.ndarray, y: np.ndarray) -> float:
    classes, counts = np.unique(train, return_counts=True)
    return float(np.mean(y != classes[counts.argmax()]))


def _mean(train: np.ndarray, y: np.ndarray) -> float:
    return float(np.mean((y - train.mean()) ** 2))


_MEASURED: dict[str, tuple[str, Callable[[np.ndarray, np.ndarray], float]]] = {
    "error": ("the majority class", _majority),
    "mse": ("the mean target", _mean),
}


def constant_metrics(
    names: Sequence[str],
    seeds: Sequence[Parts],
    loss: Callable[[Any, Any], Any] | None = None,
    outputs: int = 1,
    constant: Callable[[Any], Any] | None = None,
) -> dict[str, np.ndarray]:
    """Errors of the constant on each part of the records, for the metrics that have one, by seed.

    With a ``loss`` of so many outputs, also the loss of the output that is best on training records: ``constant`` of
    their targets, or the best of a few.

    >>> parts = {"train": {"y": np.array([1, 1, 0])}, "test": {"y": np.array([0, 1, 0, 0])}}
    >>> constant_metrics(["error", "loss"], [parts])
    {'train_error': array([0.33333333]), 'test_error': array([0.75])}
    """
    measured = [part for part in seeds[0] if all(len(own[part]["y"]) for own in seeds)]
    found = {
        f"{part}_{name}": np.asarray([_MEASURED[name][1](own["train"]["y"], own[part]["y"]) for own in seeds])
        for name in names
        if name in _MEASURED
        for part in measured
    }
    if loss is not None:
        known = [None if constant is None else np.asarray(constant(own["train"]["y"])) for own in seeds]
        tried = zip(known, seeds, strict=True)
        best = [_best_output(loss, own["train"]["y"], outputs) if one is None else one for one, own in tried]
        for part in measured:
            pairs = zip(best, seeds, strict=True)
            found[f"{part}_loss"] = np.asarray([_loss(loss, output, own[part]["y"]) for output, own in pairs])
    return found


def _loss(loss: Callable[[Any, Any], Any], output: np.ndarray, y: np.ndarray) -> float:
    return float(np.mean(np.asarray(loss(np.tile(output, (len(y), 1)), y))))


def _best_output(loss: Callable[[Any, Any], Any], y: np.ndarray, outputs: int) -> np.ndarray:
    """The best of a few constants: log-frequencies of the classes; or log-odds, margins, mean and quantiles."""
    if outputs > 1:
        counts = np.bincount(y.astype(int), minlength=outputs) + 1.0
        return np.asarray(np.log(counts / counts.sum()), np.float32)
    mean = float(np.mean(y))
    tried = [-1.0, 0.0, 1.0, mean, *np.quantile(y, np.linspace(0.05, 0.95, 19))]
    if 0 < mean < 1:
        tried.append(float(np.log(mean / (1 - mean))))
    return min((np.asarray([output], np.float32) for output in tried), key=lambda output: _loss(loss, output, y))


def constant_label(result: Mapping[str, Any]) -> str | None:
    """What a table calls the constant; ``None`` where none was measured."""
    measured = result["baselines"].get("constant", {})
    words = next((words for name, (words, _) in _MEASURED.items() if f"test_{name}" in measured), None)
    return None if words is None else f"always {words}, no training"


def nothing_learnt(result: Mapping[str, Any], metric: str) -> str | None:
    """A sentence, with remedies, where the model is not better than the constant on test records.

    Better is by more than one deviation over seeds, and with no larger loss. What is not a number is not better.
    """
    measured, metrics = result["baselines"].get("constant", {}), result["metrics"]
    price = "" if result["silos"][0]["epsilon"] is None else " at this price"
    shared = [name for name in (metric, "test_loss") if name in measured and name in metrics]
    mean, std = {name: metrics[name]["mean"] for name in shared}, {name: metrics[name]["std"] for name in shared}
    constant = {name: measured[name]["mean"] for name in shared}
    if metric in shared and not mean[metric] + std[metric] < constant[metric]:
        name = metric.removeprefix("test_")
        words = _MEASURED.get(name, ("the best constant",))[0]
        spread = f" ± {number(std[metric], beside=mean[metric])}" if std[metric] else ""
        better = mean[metric] < constant[metric]
        verdict = "is not clearly better than a constant" if better else "has learnt nothing useful"
        return (
            f"The model {verdict}{price}: on test records its {name.replace('mse', 'mean squared error')} is "
            f"{number(mean[metric])}{spread}, and predicting {words} for every record has {number(constant[metric])}. "
            f"{_remedies(result)}"
        )
    if "test_loss" in shared and not mean["test_loss"] <= constant["test_loss"]:
        return (
            f"The model's scores are of no use{price}: on test records its loss is {mean['test_loss']:.3f}, and the "
            f"best constant score has {constant['test_loss']:.3f}; it has diverged or is far too sure of itself. "
            f"{_remedies(result)}"
        )
    return None


def _remedies(result: Mapping[str, Any]) -> str:
    """What may help, cheapest first."""
    if result["silos"][0]["epsilon"] is None:
        return "Try another algorithm.step_size, more rounds, or other columns."
    hidden = result.get("channel") == "shuffled-sum"
    ways = ["another algorithm.clip_norm or algorithm.step_size", "a larger privacy.epsilon", "fewer columns"]
    ways += [] if hidden else ["the shuffled sum (algorithm.channel=shuffled-sum), whose noise all silos share"]
    return f"Try {', '.join(ways[:-1])}, or {ways[-1]}."
