"""Private training as scikit-learn estimators: ``fit(X, y, silo=...)``, ``predict``, ``score``.

Everything that is not declared is read from the records, and no epsilon covers that: name ``classes`` or
``target_range``, which are public knowledge, and a fit is private in all that it says.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data

from tacit.algorithm import Channel
from tacit.data import Federation, SiloData, Step
from tacit.data.encode import Bounded, Columns, Norm, columns_step, norm_step, scaled_target, target_step
from tacit.data.federation import Encoding, RawColumn, Stage, Target, Task
from tacit.errors import TacitError
from tacit.fitting import fit
from tacit.models import TrainedModel
from tacit.objectives import Loss, Objective, Problem, linear, logistic, mlp, softmax, squared
from tacit.privacy import Budget

_SEEDS = 2**31 - 1


@dataclass(kw_only=True, eq=False, repr=False)
class _Private(BaseEstimator):  # type: ignore[misc]
    """What classifier and regressor share: encoding, silos, training. Fields are the parameters of scikit-learn."""

    epsilon: float | None
    delta: float
    feature_range: tuple[Any, Any] | None = None
    feature_norm: float = 1.0
    hidden: Sequence[int] = ()
    algorithm: Any = None
    clip_norm: float | None = None
    batch_size: int | None = None
    channel: Channel = "direct"
    random_state: Any = None

    def save(self, folder: str | Path) -> Path:
        """Write a bundle, which `tacit.load_model` reads and ``tacit predict`` uses."""
        check_is_fitted(self)
        return self.model_.save(folder)

    def _train(
        self, X: np.ndarray, y: np.ndarray, silo: Any, target: Target, task: Task, steps: list[Step]
    ) -> TrainedModel:
        """Train on encoded records, silo by silo."""
        federation = self._federation(X, y, silo, target, task, steps)
        outputs = len(target.classes) if task == "multiclass" else 1
        loss: Loss = {"binary": logistic, "multiclass": softmax, "regression": squared}[task]()
        width = federation.feature_shape[0]
        model = mlp((width, *self.hidden, outputs)) if self.hidden else linear(width, outputs)
        return fit(
            Problem(Objective(model, loss)),
            federation,
            self.algorithm,
            budget=None if self.epsilon is None else Budget(epsilon=self.epsilon, delta=self.delta),
            clip_norm=self.clip_norm,
            batch_size=self.batch_size,
            channel=self.channel,
            weights=[len(silo.train["y"]) for silo in federation.silos],
            seed=int(check_random_state(self.random_state).randint(_SEEDS)),
            measure_every=0,
        ).model

    def _federation(
        self, X: np.ndarray, y: np.ndarray, silo: Any, target: Target, task: Task, steps: list[Step]
    ) -> Federation:
        names = np.zeros(len(X), int) if silo is None else column_or_1d(silo)
        check_consistent_length(X, names)
        encoding = self._encoding(X.shape[1])
        self.encoding_, x = encoding, encoding.apply(X)
        silos = []
        for name in np.unique(names):
            own = {"x": x[names == name], "y": y[names == name]}
            none = {key: values[:0] for key, values in own.items()}
            silos.append(SiloData("silo" if silo is None else str(name), own, none, none))
        return Federation(
            name="records",
            silos=tuple(silos),
            task=task,
            num_classes=len(target.classes) or None,
            feature_shape=x.shape[1:],
            feature_norm=encoding.norm,
            steps=(*steps, *encoding.steps),
            citation="",
            feature_names=encoding.names,
            class_names=target.classes,
            encoding=encoding,
            target=target,
        )

    def _encoding(self, width: int) -> Encoding:
        """The public map of every row by itself: into the range, if there is one, and into a ball."""
        names = tuple(getattr(self, "feature_names_in_", [f"x{i}" for i in range(width)]))
        stages: list[Stage] = []
        steps: list[Step] = []
        if self.feature_range is not None:
            lows, highs = (np.broadcast_to(np.asarray(end, float), width) for end in self.feature_range)
            if not (lows < highs).all():
                raise TacitError(f"Expected feature_range={self.feature_range} to be low < high for every feature.")
            ends = zip(names, lows.tolist(), highs.tolist(), strict=True)
            columns = tuple(Bounded(name, low, high) for name, low, high in ends)
            stages, steps = [Columns(names, columns)], [columns_step(columns)]
        return Encoding(
            stages=(*stages, Norm(self.feature_norm)),
            steps=(*steps, norm_step(self.feature_norm)),
            norm=self.feature_norm,
            names=names,
            columns={name: RawColumn() for name in names},
        )

    def _outputs(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        rows = validate_data(self, X, reset=False)
        return self.model_.outputs(self.encoding_.apply(rows))

    def _read(self, what: str, cure: str) -> Step:
        """The step of something that was read from the records; a private fit says so."""
        if self.epsilon is not None:
            warnings.warn(f"{what} read from the records, which no epsilon covers; {cure}.", stacklevel=4)
        return Step("read from records", False, f"{what} read from the records.")


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateClassifier(ClassifierMixin, _Private):  # type: ignore[misc]
    """A linear model or network of classes, trained so that every silo's messages are private for each record.

    Args:
        epsilon: the budget of each silo; ``None`` trains without privacy. There is no default, nor for ``delta``.
        delta: the probability with which the guarantee may fail.
        feature_range: public ``(low, high)`` of the features, numbers or one per feature; values are clipped to it.
        feature_norm: rows are shrunk to this l2 norm, each by itself.
        classes: all classes, as is known to the public; ``None`` reads them from ``y``, which no epsilon covers.
        hidden: widths of a network's hidden layers; a linear model without.
        algorithm: a recipe such as ``tacit.mb_sgd(...)``; by default what `tacit init` proposes for as many records.
        clip_norm: the bound on each record's part; needed with an algorithm of yours and a budget.
        batch_size: of Poisson batches; by default all records.
        channel: how messages reach the server; ``direct`` unless it is given.
        random_state: of noise and initial weights; the same number gives the same model.

    >>> x = np.array([[-1.0, 0.0], [1.0, 0.2], [-0.8, 0.1], [0.9, 0.0]] * 5)
    >>> model = PrivateClassifier(epsilon=None, delta=1e-5, classes=["no", "yes"], random_state=0)
    >>> model.fit(x, ["no", "yes"] * 10, silo=["a"] * 10 + ["b"] * 10).predict(x[:4]).tolist()
    ['no', 'yes', 'no', 'yes']
    """

    classes: Sequence[Any] | None = None

    def fit(self, X: Any, y: Any, silo: Any = None) -> PrivateClassifier:
        """Train; ``silo`` has the name of each record's silo, and without it all records are of one."""
        X, y = validate_data(self, X, y)
        check_classification_targets(y)
        steps = []
        if self.classes is None:
            self.classes_ = np.unique(y)
            steps.append(self._read("The classes were", "give classes=[...]"))
        else:
            self.classes_ = np.asarray(self.classes)
        if len(self.classes_) < 2:
            raise TacitError(f"Expected at least two classes, got one class, {self.classes_.tolist()}.")
        places = {name: place for place, name in enumerate(self.classes_.tolist())}
        strange = [label for label in np.unique(y).tolist() if label not in places]
        if strange:
            raise TacitError(f"Expected labels among classes={self.classes_.tolist()}, got {strange[0]!r}; name it.")
        codes = np.array([places[label] for label in y.tolist()], np.int32)
        task: Task = "binary" if len(places) == 2 else "multiclass"
        self.model_ = self._train(X, codes, silo, Target("y", tuple(map(str, places))), task, steps)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The most likely class of each row."""
        outputs = self._outputs(X)
        return np.asarray(self.classes_[self.model_.positions(outputs)])

    def predict_proba(self, X: Any) -> np.ndarray:
        """The probability of each class, in the order of ``classes_``."""
        outputs = self._outputs(X)
        return self.model_.probabilities(outputs)

    def decision_function(self, X: Any) -> np.ndarray:
        """What the model says before it is read as a class: one number per row for two classes, else one per class."""
        outputs = self._outputs(X)
        return outputs[:, 0] if outputs.shape[1] == 1 else outputs


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateRegressor(RegressorMixin, _Private):  # type: ignore[misc]
    """A linear model or network of a number, trained so that every silo's messages are private for each record.

    Args:
        target_range: public ``(low, high)`` of the target, which is clipped to it and scaled; ``None`` reads it from
            ``y``, which no epsilon covers.

    The others are those of `PrivateClassifier`.

    >>> x = np.linspace(-1, 1, 16)[:, None]
    >>> model = PrivateRegressor(epsilon=None, delta=1e-5, target_range=(0, 10), random_state=0)
    >>> bool(abs(model.fit(x, 5 + 3 * x[:, 0]).predict(x) - (5 + 3 * x[:, 0])).max() < 1)
    True
    """

    target_range: tuple[float, float] | None = None

    def fit(self, X: Any, y: Any, silo: Any = None) -> PrivateRegressor:
        """Train; ``silo`` has the name of each record's silo, and without it all records are of one."""
        X, y = validate_data(self, X, y, y_numeric=True)
        steps = []
        if self.target_range is None:
            low, high = float(y.min()), float(y.max())
            high = high if high > low else low + 1.0
            steps.append(self._read("The range of the target was", "give target_range=(low, high)"))
        else:
            low, high = map(float, self.target_range)
        if not low < high:
            raise TacitError(f"Expected target_range={self.target_range} to be low < high.")
        scaled = scaled_target(y.astype(float), low, high)
        target = Target("y", (), (low, high))
        self.model_ = self._train(X, scaled, silo, target, "regression", [*steps, target_step("target", low, high)])
        return self

    def predict(self, X: Any) -> np.ndarray:
        """A number for each row, in the target's own unit."""
        outputs = self._outputs(X)
        return self.model_.predictions(outputs)
