"""What people read of predictions: exact metrics on labelled records."""

from __future__ import annotations

import numpy as np
from scipy.stats import rankdata

_LEAST = np.finfo(np.float64).tiny


def classification(
    found: np.ndarray, wanted: np.ndarray, likely: np.ndarray | None, outputs: np.ndarray
) -> dict[str, float]:
    """Metrics of classes: predicted and true positions, probabilities where there are any, and the model's outputs.

    >>> classification(np.array([0, 1]), np.array([0, 0]), None, np.array([[-1.0], [1.0]]))
    {'records': 2, 'accuracy': 0.5, 'balanced_accuracy': 0.5, 'majority_accuracy': 1.0}
    """
    present = np.unique(wanted)
    metrics = {
        "records": len(wanted),
        "accuracy": float((found == wanted).mean()),
        "balanced_accuracy": float(np.mean([(found[wanted == one] == one).mean() for one in present])),
        "majority_accuracy": float(np.bincount(wanted).max() / len(wanted)),
    }
    if likely is not None:
        own = likely[np.arange(len(wanted)), wanted]
        metrics["log_loss"] = float(-np.log(np.maximum(own, _LEAST)).mean())
    if outputs.shape[1] <= 2 and set(present.tolist()) == {0, 1}:
        metrics["auc"] = auc(outputs[:, -1] - (outputs[:, 0] if outputs.shape[1] == 2 else 0), wanted)
    return metrics


def auc(scores: np.ndarray, wanted: np.ndarray) -> float:
    """The chance that a record of class 1 has a higher score than one of class 0; a tie counts half.

    >>> auc(np.array([0.1, 0.4, 0.4, 0.8]), np.array([0, 0, 1, 1]))
    0.875
    """
    positive = wanted == 1
    count = int(positive.sum())
    above = rankdata(scores)[positive].sum() - count * (count + 1) / 2
    return float(above / (count * (len(wanted) - count)))


def regression(found: np.ndarray, wanted: np.ndarray) -> dict[str, float]:
    """Metrics of numbers, in their own unit.

    >>> regression(np.array([1.0, 2.0]), np.array([1.0, 4.0]))["mae"]
    1.0
    """
    residual, spread = found - wanted, float(wanted.std())
    rmse = float(np.sqrt((residual**2).mean()))
    metrics = {"records": len(wanted), "rmse": rmse, "mae": float(np.abs(residual).mean()), "mean_rmse": spread}
    return metrics | ({"r2": 1 - (rmse / spread) ** 2} if spread > 0 else {})
