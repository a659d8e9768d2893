"""The baseline that learns nothing: one prediction for every record, from the targets of all training records.

The majority class where the metric is an error, the mean target where it is a squared one; no feature is looked at and
nothing is private. A model that is not better is not worth its price.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

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


def constant_metrics(names: Sequence[str], seeds: Sequence[Parts]) -> dict[str, np.ndarray]:
    """Errors of the constant on each part of the records, for those of the metrics that have one; axis: seeds.

    >>> parts = {"train": {"y": np.array([1, 1, 0])}, "test": {"y": np.array([0, 1, 0, 0])}}
    >>> constant_metrics(["error", "loss"], [parts])
    {'train_error': array([0.33333333]), 'test_error': array([0.75])}
    """
    return {
        f"{part}_{name}": np.asarray([_MEASURED[name][1](own["train"]["y"], own[part]["y"]) for own in seeds])
        for name in names
        if name in _MEASURED
        for part in seeds[0]
        if all(len(own[part]["y"]) for own in seeds)
    }


def constant_label(result: Mapping[str, Any]) -> str | None:
    """Who predicts so, as a table says it; none where no constant was measured."""
    measured = result["baselines"].get("constant", {})
    said = [words for name, (words, _) in _MEASURED.items() if f"test_{name}" in measured]
    return f"always {said[0]}, no training" if said else None


def nothing_learnt(result: Mapping[str, Any], metric: str) -> str | None:
    """A plain sentence where the model is not better than the constant on test records."""
    measured = result["baselines"].get("constant", {})
    if metric not in measured or metric not in result["metrics"]:
        return None
    mine, constant = result["metrics"][metric]["mean"], measured[metric]["mean"]
    if mine < constant:
        return None
    private = result["silos"][0]["epsilon"] is not None
    name = metric.removeprefix("test_")
    said, words = name.replace("mse", "mean squared error"), _MEASURED[name][0]
    return (
        f"The model has learnt nothing useful{' at this price' if private else ''}: on test records its {said} is "
        f"{mine:.3f}, and predicting {words} for every record has {constant:.3f}."
    )
