"""A trained model: predictions in the target's own words, and exact evaluation."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import softmax

import tacit
from tacit.algorithm import Channel, Params, Protects
from tacit.data.encode import Columns, signed_times
from tacit.data.federation import Encoding, Federation, RawColumn, Stage, Target, Task
from tacit.errors import counted, unknown
from tacit.models.bundle import write_bundle
from tacit.models.card import summary
from tacit.models.description import BundleError, Description, Features, Privacy, SiloPrice, Training, plain_stages
from tacit.models.rows import Encoded, Rows, RowsWarning, encoded, labels_of, rows_of
from tacit.models.scores import LOG_LOSSES, class_scores, in_unit, logits_of, number_scores, numbers_of, outputs_of
from tacit.objectives import Model, Objective, untapped
from tacit.objectives.losses import FITTING, SURVIVAL
from tacit.objectives.models import built
from tacit.objectives.survival import concordance
from tacit.privacy.plan import SiloPlan

_BINARY, _NUMBERS = ("logistic", "hinge"), FITTING["regression"]

EXACT = "Exact, on these records: no epsilon covers it, so it is for those who may see them."
"""What every evaluation says of itself."""


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """Weights, the model that they belong to, and everything that ``model.json`` says of them.

    Rows are columns by name (a mapping, a pandas data frame, the path of a CSV file) that are encoded as training
    encoded its records, or an array of features that are encoded already. ``personal`` has the weights of silos that
    have a model of their own, by name; ``params`` are then for everybody else.
    """

    description: Description
    params: Params
    model: Model
    stages: tuple[Stage, ...]
    personal: Mapping[str, Params] = field(default_factory=dict)

    def of(self, silo: str) -> TrainedModel:
        """The model of one silo's own, in place of the one that all share."""
        if not self.personal:
            raise BundleError(f"Expected a model with a part for {silo!r}, but all silos share this one; leave it out.")
        if silo not in self.personal:
            raise BundleError(unknown("silo with a model of its own", silo, self.personal))
        return replace(self, params=self.personal[silo], personal={})

    @property
    def classes(self) -> np.ndarray:
        """The classes in order: their names, or 0, 1, ... where they have none. Empty in regression."""
        return np.array(_named(self.description.target.classes))

    def encode(self, rows: Any) -> Encoded:
        """Features of rows, as training made them, and what was done to cells that did not fit."""
        return encoded(rows, self.description, self.stages)

    def predict(self, rows: Any) -> np.ndarray:
        """One prediction per row: the name of a class, or a number in the target's own unit.

        Of survival it is the relative risk: how many times the hazard is that of a row whose features are all zero, in
        the middle of their ranges. `predict_survival` says how likely each is to live how long.

        A warning (`RowsWarning`) counts the cells that were missing, unknown or outside their range.
        """
        return self.predictions(self.outputs(self._features(rows)))

    def predict_proba(self, rows: Any) -> np.ndarray:
        """The probability of each class, (rows, classes), in the order of ``classes``."""
        return self.probabilities(self.outputs(self._features(rows)))

    def predict_survival(self, rows: Any) -> tuple[np.ndarray, np.ndarray]:
        """The ends of the bins of time, in the target's unit, and each row's chance to be without the event until then.

        Times are shares of the horizon where the bundle does not know it. Chances have the axes (rows, times).
        """
        return self.survival(self.outputs(self._features(rows)))

    @property
    def survives(self) -> bool:
        """Whether this is a model of survival."""
        return self.description.loss == SURVIVAL

    def survival(self, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `predict_survival`, of outputs: logarithms of the hazard in each bin."""
        if not self.survives:
            raise BundleError(f"Expected a model of loss {SURVIVAL!r} for survival, got {self.description.loss}.")
        bins, (_, horizon) = outputs.shape[1], self.description.target.range or (0.0, 1.0)
        return horizon * np.arange(1, bins + 1) / bins, np.exp(-np.cumsum(np.exp(outputs) / bins, axis=1))

    def evaluate(self, rows: Any, labels: Sequence[Any] | None = None) -> dict[str, Any]:
        """Scores on labelled rows, with labels in the target's own words; a file or columns may hold them.

        They are those of `Fit.scores` and of reports, and exact: no epsilon covers them. ``majority_accuracy`` and
        ``mean_rmse`` are those of one prediction for all rows, the best there is.
        """
        found, target = rows_of(rows), self.description.target
        if labels is None:
            if found is None or target.column not in found.cells:
                raise BundleError(f"Expected labels, or a column {target.column!r} that has them; give one of the two.")
            labels = found.cells[target.column]
        outputs = self.outputs(self._features(rows))
        if self.survives:
            return self._concordance(outputs, found, labels)
        place = Rows({}, 0, lambda index: f"row {index}").place if found is None else found.place
        wanted = labels_of(list(labels), target, place)
        if len(wanted) != len(outputs):
            raise BundleError(f"Expected one label per row, got {len(wanted)} for {len(outputs)} rows.")
        if self.description.task == "regression":
            return number_scores(self.predictions(outputs), wanted)
        return class_scores(outputs, wanted.astype(int), target.classes, self.has_probabilities)

    def _concordance(self, outputs: np.ndarray, found: Rows | None, times: Sequence[Any]) -> dict[str, Any]:
        """How often, of two rows of which the earlier had the event, that one has the higher risk."""
        target = self.description.target
        if target.event is None or target.range is None or found is None or target.event not in found.cells:
            named = target.event or "of the event, which this bundle does not know"
            raise BundleError(
                f"Expected rows with the times and a column {named} to measure survival; give a table or file with "
                "both. `tacit run` and `tacit server evaluate` tell concordance too."
            )
        values = labels_of(list(times), target, found.place)
        seen = labels_of(found.cells[target.event], Target(target.event, target.event_levels or ()), found.place) == 1
        signed = signed_times(values, seen, target.range[1])
        value = float(concordance(jnp.asarray(outputs), jnp.asarray(signed)))
        return {"records": len(values), "concordance": value if math.isfinite(value) else None}

    def outputs(self, x: np.ndarray) -> np.ndarray:
        """What the model says of encoded features, (rows, outputs), before it is read as a prediction."""
        return outputs_of(self.model, self.params, x)

    @property
    def has_probabilities(self) -> bool:
        """Whether outputs can be read as probabilities."""
        return self.description.loss in LOG_LOSSES

    def positions(self, outputs: np.ndarray) -> np.ndarray:
        """The most likely class of each row as a position among ``classes``."""
        return np.asarray(logits_of(outputs).argmax(axis=1))

    def predictions(self, outputs: np.ndarray) -> np.ndarray:
        """Outputs in the target's own words or unit."""
        if self.description.task != "regression":
            return self.classes[self.positions(outputs)]
        if self.survives:
            return np.asarray(np.exp(outputs[:, 0] - np.asarray(self.params["linear"]["b"], np.float64)[0]))
        return in_unit(numbers_of(outputs, self.description.loss), self.description.target.range)

    def probabilities(self, outputs: np.ndarray) -> np.ndarray:
        """Outputs as probabilities of the classes."""
        if not self.has_probabilities:
            loss = self.description.loss or "a loss of one's own"
            raise BundleError(
                f"Expected a model of logistic or softmax loss for probabilities, got {loss}; predict without them."
            )
        return np.asarray(softmax(logits_of(outputs), axis=1))

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write a bundle: ``model.safetensors``, ``model.json`` and a model card; nothing is written over unasked."""
        parts = (self.description, self.params, self.stages, self.personal)
        return write_bundle(Path(folder), *parts, overwrite=overwrite)

    def _features(self, rows: Any) -> np.ndarray:
        x, notes = self.encode(rows)
        if notes:
            warnings.warn(RowsWarning("; ".join(notes)), stacklevel=3)
        return x

    def __reduce__(self) -> tuple[Any, ...]:
        # Functions are not pickled: the model is made again by its name.
        if self.description.model is None:
            raise BundleError("Expected a model that Tacit knows to be pickled; save one of your own as a bundle.")
        return _restored, (self.description, self.params, self.stages, self.personal)

    def __repr__(self) -> str:
        own = [f"  personal   {counted(len(self.personal), 'silo')} with a model of its own: .of(NAME)"]
        return "\n".join([*summary(self.description), *(own if self.personal else [])])


def _restored(
    description: Description, params: Params, stages: tuple[Stage, ...], personal: Mapping[str, Params]
) -> TrainedModel:
    assert description.model is not None
    return TrainedModel(description, params, built(description.model), stages, personal)


def with_personal(model: TrainedModel, names: Sequence[str], personal: Params | None) -> TrainedModel:
    """A trained model with those of silos of their own, which have a leading axis of silos."""
    if personal is None:
        return model
    own = jax.tree.map(np.asarray, personal)
    return replace(model, personal={n: jax.tree.map(lambda leaf, i=i: leaf[i], own) for i, n in enumerate(names)})


def _named(classes: Sequence[str]) -> Sequence[str] | Sequence[int]:
    """Classes that are just their positions are numbers, as they were in the records."""
    return range(len(classes)) if list(classes) == [str(i) for i in range(len(classes))] else list(classes)


def trained(
    objective: Objective,
    params: Params,
    *,
    features: Features,
    training: Training,
    privacy: Privacy,
    encoding: Encoding | None = None,
    target: Target | None = None,
    task: Task | None = None,
) -> TrainedModel:
    """A trained model from what training knows; a target without a name is called ``y``."""
    model, loss = objective.model, objective.cost.name
    params = jax.tree.map(np.asarray, params)
    one = jax.ShapeDtypeStruct((1, *features.shape), jnp.float32)
    outputs = jax.eval_shape(lambda p, x: model.apply(p, x, untapped), params, one).shape[-1]
    kind: Task = task or ("regression" if loss in _NUMBERS else "binary" if loss in _BINARY else "multiclass")
    if kind != "regression" and (target is None or not target.classes):
        count = max(2, outputs)
        target = Target("y" if target is None else target.column, tuple(str(i) for i in range(count)))
    stages, columns = ((), {}) if encoding is None else _needed(encoding)
    description = Description(
        task=kind,
        model=model.architecture,
        loss=loss,
        target=target or Target("y"),
        features=features,
        columns=columns,
        encoding=plain_stages(stages)[0],
        preprocessing=() if encoding is None else encoding.steps,
        tensors={},
        training=training,
        privacy=privacy,
    )
    return TrainedModel(description, params, model, stages)


def trained_on(
    federation: Federation,
    objective: Objective,
    params: Params,
    training: Training,
    channel: Channel,
    protects: Protects,
    silos: Sequence[SiloPrice],
) -> TrainedModel:
    """A model that was trained on a federation, with its encoding and target."""
    uncovered = [step.detail for step in federation.steps if not step.public and not step.priced]
    return trained(
        objective,
        params,
        features=Features(shape=federation.feature_shape, names=federation.feature_names, norm=federation.feature_norm),
        training=training,
        privacy=privacy_of(channel, protects, silos, uncovered),
        encoding=federation.encoding,
        target=federation.target,
        task=federation.task,
    )


def _needed(encoding: Encoding) -> tuple[tuple[Stage, ...], dict[str, RawColumn]]:
    """The stages and the raw columns that features are made of; a table may have more."""
    first, columns = encoding.stages[0], dict(encoding.columns)
    if not isinstance(first, Columns):
        return encoding.stages, columns
    read = {column.column for column in first.columns}
    names = tuple(name for name in first.names if name in read)
    return (Columns(names, first.columns), *encoding.stages[1:]), {name: columns[name] for name in names}


def training_of(*, study: str | None, algorithm: str, rounds: int, seed: int | None, simulated: bool) -> Training:
    """How a model was made, by this Tacit."""
    return Training(
        study=study, algorithm=algorithm, rounds=rounds, seed=seed, simulated=simulated, tacit=tacit.__version__
    )


def privacy_of(
    channel: Channel, protects: Protects, silos: Sequence[SiloPrice], not_covered: Sequence[str] = ()
) -> Privacy:
    """The price by silo; without any the channel counts as open."""
    unpriced = all(silo.epsilon is None for silo in silos)
    return Privacy(
        channel="open" if unpriced else channel, protects=protects, silos=tuple(silos), not_covered=tuple(not_covered)
    )


def silo_prices(silos: Sequence[SiloPlan]) -> list[SiloPrice]:
    """What each silo pays by its plan."""
    return [
        SiloPrice(
            name=silo.name,
            records=silo.records,
            epsilon=None if silo.price is None else silo.price.epsilon,
            delta=None if silo.price is None else silo.price.delta,
        )
        for silo in silos
    ]
