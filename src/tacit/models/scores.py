"""What people read of a model: error and calibration by class and silo, or residuals in the target's own unit.

All is exact, by scikit-learn, on records without noise: no epsilon covers it. Where something is not defined, such as
the area under the curve of one class, it is ``None``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from scipy.special import softmax as normalised

from tacit.algorithm import Params
from tacit.data.federation import Federation
from tacit.objectives import Model, Objective, untapped

BINS = 10
CALIBRATION = f"expected calibration error: {BINS} bins of equal width of the predicted class's probability"
TITLES = {
    "records": "records",
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "auc": "AUC",
    "log_loss": "log loss",
    "calibration_error": "calibration error",
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R²",
    "concordance": "concordance",
}
"""The numbers of a model, in order, as people call them."""
LOG_LOSSES = ("logistic", "softmax")
"""The losses whose outputs are logarithms of odds: they give probabilities."""


_BLOCK = 64  # rows


def outputs_of(model: Model, params: Params, x: np.ndarray) -> np.ndarray:
    """The model's outputs, in parts: layers of a network may hold many times as many numbers.

    A part is filled up to whole blocks of rows, so that a row's outputs are the same whatever rows are beside it.
    """
    size = _BLOCK * max(1, 2**22 // max(1, _BLOCK * math.prod(x.shape[1:])))
    parts = []
    for part in (x[i : i + size] for i in range(0, len(x), size)):
        filled = np.concatenate([part, np.zeros((-len(part) % _BLOCK, *part.shape[1:]), part.dtype)])
        parts.append(np.asarray(model.apply(params, jnp.asarray(filled), untapped), np.float64)[: len(part)])
    return np.concatenate(parts) if parts else np.empty((0, 1))


def logits_of(outputs: np.ndarray) -> np.ndarray:
    """One logit for each class: a single output is that of the second of two."""
    return np.column_stack([np.zeros(len(outputs)), outputs[:, 0]]) if outputs.shape[1] == 1 else outputs


def numbers_of(outputs: np.ndarray, loss: str | None) -> np.ndarray:
    """The numbers that outputs predict: themselves, or the mean count whose logarithm an output is."""
    return np.exp(outputs[:, 0].astype(np.float64)) if loss == "poisson" else outputs[:, 0]


def in_unit(values: np.ndarray, scale: tuple[float, float] | None) -> np.ndarray:
    """Values that were scaled from ``scale`` to [0, 1], in their own unit."""
    low, high = scale or (0.0, 1.0)
    return np.asarray(low + (high - low) * np.asarray(values, np.float64))


def class_scores(outputs: np.ndarray, y: np.ndarray, classes: Sequence[str], probable: bool) -> dict[str, Any]:
    """Numbers, numbers by class, the confusion matrix (rows: true classes) and the bins of the calibration error.

    ``majority_accuracy`` is that of one class for all records, the best there is.
    """
    from sklearn import metrics

    if not np.isfinite(outputs).all():
        return {"records": len(y)}
    logits = logits_of(outputs)
    labels, guess = np.arange(len(classes)), logits.argmax(axis=1)
    likely = normalised(logits, axis=1) if probable else None
    precision, recall, f1, support = metrics.precision_recall_fscore_support(y, guess, labels=labels, zero_division=0)
    present = support > 0
    found: dict[str, Any] = {
        "records": len(y),
        "accuracy": float(metrics.accuracy_score(y, guess)),
        "balanced_accuracy": float(recall[present].mean()),
        "majority_accuracy": float(support.max() / len(y)),
        "auc": _auc(logits, y, labels),
        "confusion": metrics.confusion_matrix(y, guess, labels=labels).tolist(),
    }
    if likely is not None:
        found["log_loss"] = float(metrics.log_loss(y, likely, labels=labels))
        found["reliability"] = _reliability(likely.max(axis=1), guess == y)
        found["calibration_error"] = _calibration_error(found["reliability"])
    rows = zip(classes, precision, recall, f1, support, strict=True)
    found["classes"] = {
        name: {
            "records": int(n),
            "precision": float(p),
            "recall": float(r) if n else None,
            "f1": float(f) if n else None,
            "auc": _auc_of(logits, y, k),
        }
        for k, (name, p, r, f, n) in enumerate(rows)
    }
    return found


def _auc_of(logits: np.ndarray, y: np.ndarray, k: int) -> float | None:
    """The area under the curve of one class against all others."""
    from sklearn.metrics import roc_auc_score

    own = y == k
    if own.all() or not own.any():
        return None
    others = np.delete(logits, k, axis=1)
    scores = logits[:, k] - np.logaddexp.reduce(others, axis=1)
    return float(roc_auc_score(own, scores)) if np.isfinite(scores).all() else None


def _auc(logits: np.ndarray, y: np.ndarray, labels: np.ndarray) -> float | None:
    """The area under the curve; of several classes the mean over those that occur, each against all others."""
    if len(labels) == 2:
        return _auc_of(logits, y, 1)
    areas = [area for k in labels if (area := _auc_of(logits, y, int(k))) is not None]
    return float(np.mean(areas)) if areas else None


def _reliability(sure: np.ndarray, right: np.ndarray) -> list[dict[str, float]]:
    """By bin of the predicted class's probability: records, mean probability, and the share that was right."""
    places = np.minimum((sure * BINS).astype(int), BINS - 1)
    rows = [(places == b) for b in range(BINS)]
    return [
        {
            "from": b / BINS,
            "to": (b + 1) / BINS,
            "records": int(own.sum()),
            "probability": float(sure[own].mean()),
            "right": float(right[own].mean()),
        }
        for b, own in enumerate(rows)
        if own.any()
    ]


def _calibration_error(bins: Sequence[Mapping[str, float]]) -> float:
    total = sum(row["records"] for row in bins)
    return float(sum(row["records"] * abs(row["probability"] - row["right"]) for row in bins) / total)


def number_scores(found: np.ndarray, wanted: np.ndarray) -> dict[str, Any]:
    """Residuals of predictions, in the target's own unit; ``mean_rmse`` is that of the mean for all records."""
    from sklearn import metrics

    finite = bool(np.isfinite(found).all())
    return {
        "records": len(wanted),
        "rmse": float(metrics.root_mean_squared_error(wanted, found)) if finite else None,
        "mean_rmse": float(np.std(wanted)),
        "mae": float(metrics.mean_absolute_error(wanted, found)) if finite else None,
        "r2": float(metrics.r2_score(wanted, found)) if finite and np.ptp(wanted) > 0 else None,
    }


def scores_of(
    objective: Objective,
    params: Params,
    records: Mapping[str, np.ndarray],
    *,
    classes: Sequence[str] = (),
    scale: tuple[float, float] | None = None,
) -> dict[str, Any]:
    """The scores of a model on some records: joint ones where its loss has such, of classes, or of numbers."""
    if not len(records["y"]):
        return {"records": 0}
    outputs = outputs_of(objective.model, params, np.asarray(records["x"]))
    return _scores(objective, outputs, np.asarray(records["y"]), classes, scale)


def _scores(
    objective: Objective,
    outputs: np.ndarray,
    y: np.ndarray,
    classes: Sequence[str],
    scale: tuple[float, float] | None,
) -> dict[str, Any]:
    if objective.cost.joint:
        found = {
            name: float(metric(jnp.asarray(outputs), jnp.asarray(y))) for name, metric in objective.cost.joint.items()
        }
        return {"records": len(y)} | {name: value if math.isfinite(value) else None for name, value in found.items()}
    if not classes:
        return number_scores(in_unit(numbers_of(outputs, objective.cost.name), scale), in_unit(y, scale))
    return class_scores(outputs, y.astype(int), classes, objective.cost.name in LOG_LOSSES)


def scores_by_silo(
    objective: Objective,
    params: Params,
    parts: Mapping[str, Mapping[str, np.ndarray]],
    classes: Sequence[str],
    scale: tuple[float, float] | None,
    personal: Mapping[str, Params],
) -> dict[str, Any]:
    """Scores on records by the name of their silo, each by the model that it has: of ``all`` silos and by silo."""
    some = {name: part for name, part in parts.items() if len(part["y"])}
    outputs = {n: outputs_of(objective.model, personal.get(n, params), np.asarray(p["x"])) for n, p in some.items()}
    by = {n: _scores(objective, outputs[n], np.asarray(p["y"]), classes, scale) for n, p in some.items()}
    silos = {name: by.get(name, {"records": 0}) for name in parts}
    if not some:
        return {"all": {"records": 0}, "silos": silos}
    y = np.concatenate([np.asarray(part["y"]) for part in some.values()])
    return {"all": _scores(objective, np.concatenate(list(outputs.values())), y, classes, scale), "silos": silos}


def classes_of(federation: Federation) -> tuple[str, ...]:
    """The names of the classes; none in regression."""
    if federation.task == "regression":
        return ()
    return federation.class_names or tuple(str(k) for k in range(federation.num_classes or 2))


def averaged(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Scores of several seeds as one: means and deviations of numbers, sums of counts of records."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: _averaged([row.get(name) for row in rows]) for name in names}


def _averaged(values: Sequence[Any]) -> Any:
    known = [value for value in values if value is not None]
    if not known:
        return None
    if isinstance(known[0], dict):
        return averaged(known)
    if isinstance(known[0], list) and isinstance(known[0][0], dict):
        return _joined(known)
    if isinstance(known[0], list):
        return np.sum([np.asarray(one) for one in known], axis=0).tolist()
    array = np.asarray(known, float)
    return {"mean": float(array.mean()), "std": float(array.std(ddof=1)) if len(array) > 1 else 0.0}


def _joined(tables: Sequence[Sequence[Mapping[str, float]]]) -> list[dict[str, float]]:
    """The bins of several seeds as those of all their records."""
    found = []
    for b in range(BINS):
        rows = [row for table in tables for row in table if row["from"] == b / BINS]
        if rows:
            weights = [row["records"] for row in rows]
            mean = {
                name: float(np.average([r[name] for r in rows], weights=weights)) for name in ("probability", "right")
            }
            found.append({"from": b / BINS, "to": (b + 1) / BINS, "records": sum(weights), **mean})
    return found


def flat(scores: Mapping[str, Any]) -> dict[str, float | int]:
    """The numbers of one model on some records by dotted name: of all of them, and of each class."""
    rows: dict[str, float | int] = {}
    for name, value in scores.items():
        if name == "classes":
            for label, own in value.items():
                rows |= {f"{label}.{part}": number for part, number in own.items() if number is not None}
        elif name == "confusion":
            counts = {(i, j): n for i, row in enumerate(value) for j, n in enumerate(row)}
            rows |= {f"confusion.{i}.{j}": n for (i, j), n in counts.items()}
        elif isinstance(value, int | float):
            rows[name] = value
    return rows
