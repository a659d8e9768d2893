"""Losses, one number per record, with the metrics that people read beside them.

Hinge, absolute and pinball loss are the largest of the lines ``s r`` for slopes ``s`` in an interval, where the
residual ``r`` is affine in the output. Their Moreau envelope in the parameters ``w`` of a linear model is

    f_b(w) = min_v f(v) + b/2 ||v - w||^2 = s r - s^2 ||a||^2 / (2b),      s = clip(b r / ||a||^2, interval),

for features ``a``: b-smooth, as Lipschitz as ``f``, and below ``f`` by at most L^2/(2b). Smoothing buys the rates of
smooth optimisation (Lowy and Razaviyayn, arXiv:2106.09779); privacy does not need it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from tacit.errors import TacitError, unknown
from tacit.objectives.objective import Loss, Metric, Smoothing

_FLOOR = 1e-30


def logistic(class_weights: Sequence[float] | None = None) -> Loss:
    """Binary cross-entropy of one logit; targets are 0 or 1, each weighed by the weight of its class.

    Weights are public: choose them without looking at records, or pay for the numbers that they come from.

    >>> round(float(logistic().value(jnp.zeros((1, 1)), jnp.ones(1))[0]), 4)
    0.6931
    >>> round(float(logistic((1.0, 2.0)).value(jnp.zeros((1, 1)), jnp.ones(1))[0]), 4)
    1.3863
    """
    weigh, most = _weights(class_weights, 2)

    def value(outputs: Array, targets: Array) -> Array:
        logit = outputs[:, 0]
        return weigh(jnp.logaddexp(0.0, logit) - targets * logit, targets)

    return Loss(value, {"error": _wrong_side}, slope=most, curvature=0.25 * most, name="logistic")


def softmax(class_weights: Sequence[float] | None = None) -> Loss:
    """Cross-entropy of the softmax of the outputs; targets are classes 0, 1, ..., weighed as in `logistic`."""
    weigh, most = _weights(class_weights)

    def value(outputs: Array, targets: Array) -> Array:
        if class_weights is not None and len(class_weights) != outputs.shape[1]:
            raise TacitError(
                f"Expected class_weights={tuple(class_weights)} to be one positive weight for each class, "
                f"{outputs.shape[1]} of them."
            )
        # Not by indices: the derivative of that is a scatter.
        own = jnp.arange(outputs.shape[1]) == targets[:, None].astype(jnp.int32)
        return weigh(jax.nn.logsumexp(outputs, axis=1) - jnp.sum(jnp.where(own, outputs, 0.0), axis=1), targets)

    def error(outputs: Array, targets: Array) -> Array:
        return (outputs.argmax(axis=1) != targets).astype(jnp.float32)

    return Loss(value, {"error": error}, slope=2**0.5 * most, curvature=0.5 * most, name="softmax")


def _weights(given: Sequence[float] | None, classes: int | None = None) -> tuple[Metric, float]:
    """What weighs the loss of each record by its class, and the largest weight."""
    if given is None:
        return lambda losses, targets: losses, 1.0
    weights = tuple(float(weight) for weight in given)
    if not weights or min(weights) <= 0 or max(weights) == float("inf") or len(weights) != (classes or len(weights)):
        wanted = "one positive weight for each class" + ("" if classes is None else f", {classes} of them")
        raise TacitError(f"Expected class_weights={weights} to be {wanted}.")

    def weigh(losses: Array, targets: Array) -> Array:
        own = jnp.arange(len(weights)) == targets[:, None].astype(jnp.int32)
        return losses * jnp.sum(jnp.where(own, jnp.asarray(weights), 0.0), axis=1)

    return weigh, max(weights)


Smooth = Literal["moreau", "convolution"]
"""How a loss with a bend is smoothed, over the parameters, to a smoothness b.

``"moreau"`` is the Moreau envelope, between f - L^2/(2b) and f. ``"convolution"`` is the mean of f over a uniform
kernel along the record's features, which keeps strong convexity. It lies between f and f + (h - l)^2 |x|^2/(8b), where
h and l are the slopes at the two sides of the bend: never further off than the envelope may be, and for the hinge a
quarter of that.
"""


def squared() -> Loss:
    """Half the squared residual; the metric is the mean squared error. Its slope grows with the residual."""

    def value(outputs: Array, targets: Array) -> Array:
        return 0.5 * (outputs[:, 0] - targets) ** 2

    def steepest(output: float, target: float) -> float:
        return output + target

    return Loss(value, {"mse": _squared_error}, slope=steepest, curvature=1.0, name="squared")


def huber(bend: float = 1.0) -> Loss:
    """Half the squared residual up to ``bend``, and a line of that slope beyond: large residuals pull no harder.

    >>> huber(1.0).value(jnp.array([[0.5], [3.0]]), jnp.zeros(2)).tolist()
    [0.125, 2.5]
    """
    if not 0 < bend < float("inf"):
        raise TacitError(f"Expected 0 < bend={bend} < infinity: the residual where the square becomes a line.")

    def value(outputs: Array, targets: Array) -> Array:
        size = jnp.abs(outputs[:, 0] - targets)
        near = jnp.minimum(size, bend)
        return 0.5 * near**2 + bend * (size - near)

    return Loss(value, {"mse": _squared_error}, slope=float(bend), curvature=1.0, name="huber")


def poisson() -> Loss:
    """The negative log likelihood of a count whose mean is the exponential of the output; targets are at least 0.

    Records with a negative target are refused where they are loaded; here one counts as 0, since no record may make an
    answer fail.

    >>> round(float(poisson().value(jnp.log(jnp.array([[3.0]])), jnp.array([3.0]))[0]), 4)
    -0.2958
    """

    def value(outputs: Array, targets: Array) -> Array:
        return jnp.exp(outputs[:, 0]) - jnp.maximum(targets, 0.0) * outputs[:, 0]

    def error(outputs: Array, targets: Array) -> Array:
        return (jnp.exp(outputs[:, 0]) - targets) ** 2

    return Loss(value, {"mse": error}, name="poisson", constant=lambda y: jnp.log(jnp.maximum(jnp.mean(y), _FLOOR)))


def hinge(smoothness: float | None = None, smoothing: Smooth = "moreau") -> Loss:
    """``max(0, 1 - y output)``, the loss of support vector machines; targets are 0 or 1, read as y = -1 or 1.

    >>> hinge().value(jnp.array([[0.25], [0.25]]), jnp.array([1, 0])).tolist()
    [0.75, 1.25]
    """

    def residual(outputs: Array, targets: Array) -> Array:
        return 1.0 - jnp.where(targets > 0, 1.0, -1.0) * outputs[:, 0]

    return _largest_line("hinge", residual, 0.0, 1.0, (smoothness, smoothing), {"error": _wrong_side})


def absolute(smoothness: float | None = None, smoothing: Smooth = "moreau") -> Loss:
    """``|output - y|``; its smoothing is the Huber loss with a bend that depends on the features' norm."""

    def residual(outputs: Array, targets: Array) -> Array:
        return outputs[:, 0] - targets

    return _largest_line("absolute", residual, -1.0, 1.0, (smoothness, smoothing), {"mse": _squared_error})


def pinball(quantile: float, smoothness: float | None = None, smoothing: Smooth = "moreau") -> Loss:
    """``quantile (y - output)`` above the output and ``(1 - quantile) (output - y)`` below: least at that quantile.

    >>> pinball(0.75).value(jnp.zeros((2, 1)), jnp.array([1.0, -1.0])).tolist()
    [0.75, 0.25]
    """
    if not 0 < quantile < 1:
        raise TacitError(f"Expected 0 < quantile={quantile} < 1; the median is 0.5.")

    def residual(outputs: Array, targets: Array) -> Array:
        return targets - outputs[:, 0]

    def below(outputs: Array, targets: Array) -> Array:
        return (targets <= outputs[:, 0]).astype(jnp.float32)

    return _largest_line("pinball", residual, quantile - 1.0, quantile, (smoothness, smoothing), {"coverage": below})


SURVIVAL = "piecewise-exponential"
"""The loss of `tacit.objectives.survival`, whose targets are signed times."""

FITTING: dict[str, tuple[str, ...]] = {
    "binary": ("logistic", "softmax", "hinge"),
    "multiclass": ("softmax",),
    "regression": ("squared", "absolute", "pinball", "huber", "poisson", SURVIVAL),
}
"""The losses that ship with Tacit by the kind of target, the default first; a silo's daemon builds no others."""
LOSSES = tuple(dict.fromkeys(name for names in FITTING.values() for name in names))

OPTIONS: dict[str, tuple[str, ...]] = {
    "logistic": ("class_weights",),
    "softmax": ("class_weights",),
    "hinge": ("smoothness", "smoothing"),
    "absolute": ("smoothness", "smoothing"),
    "pinball": ("quantile", "smoothness", "smoothing"),
    "huber": ("bend",),
    SURVIVAL: ("bins",),
}
"""What may be chosen of a loss of Tacit's: public numbers, which a study says beside its name or in loss_options."""


class OwnLoss(NamedTuple):
    """A registered loss: how it is made, for which targets, and whether it has one output per class."""

    make: Callable[..., Loss]
    tasks: tuple[str, ...]
    per_class: bool


OWN_LOSSES: dict[str, OwnLoss] = {}


def register_loss(name: str, make: Callable[..., Loss], *, tasks: Sequence[str], per_class: bool = False) -> None:
    """Let studies name a loss of your own: ``make(**options)`` returns it, for targets of these ``tasks``.

    Tasks are ``binary``, ``multiclass`` and ``regression``; ``options`` is the study's table
    ``objective.loss_options``. A model has one output, or one for each class where ``per_class``. Real silos load no
    foreign code: such a study is simulated, not deployed.
    """
    if name in LOSSES or not name:
        raise TacitError(f"Expected a name for a loss of your own, got {name!r}, which Tacit has; choose another.")
    for task in tasks:
        if task not in FITTING:
            raise TacitError(unknown("task", task, FITTING))
    OWN_LOSSES[name] = OwnLoss(make, tuple(tasks), per_class)


def _wrong_side(outputs: Array, targets: Array) -> Array:
    return ((outputs[:, 0] > 0) != (targets > 0)).astype(jnp.float32)


def _squared_error(outputs: Array, targets: Array) -> Array:
    return (outputs[:, 0] - targets) ** 2


def _largest_line(
    name: str, residual: Metric, low: float, high: float, how: tuple[float | None, Smooth], metrics: dict[str, Metric]
) -> Loss:
    """The loss ``max over s in [low, high] of s residual``, smoothed as ``how`` says: to which smoothness, by what."""
    steepest = max(abs(low), abs(high))
    smoothness, kind = how

    def value(outputs: Array, targets: Array) -> Array:
        r = residual(outputs, targets)
        return jnp.maximum(low * r, high * r)

    if smoothness is None:
        return Loss(value, metrics, slope=steepest, name=name)
    bend = float(smoothness)
    if not 0 < bend < float("inf"):
        raise TacitError(f"Expected 0 < smoothness={smoothness} < infinity; use None for the loss itself.")

    def envelope(outputs: Array, targets: Array, squared_norms: Array) -> Array:
        r = residual(outputs, targets)
        # Without features the loss is constant, which is what the floor makes of it.
        slope = jnp.clip(r * (bend / jnp.maximum(squared_norms, _FLOOR)), low, high)
        return slope * r - slope**2 * squared_norms / (2.0 * bend)

    def convolved(outputs: Array, targets: Array, squared_norms: Array) -> Array:
        r = residual(outputs, targets)
        # Where the kernel reaches across the bend; the curvature in the residual is (high - low) / (2 reach).
        reach = (high - low) * jnp.maximum(squared_norms, _FLOOR) / (2.0 * bend)
        across = (high * (r + reach) ** 2 - low * (r - reach) ** 2) / (4.0 * reach)
        return jnp.where(jnp.abs(r) < reach, across, jnp.maximum(low * r, high * r))

    if kind not in ("moreau", "convolution"):
        raise TacitError(f'Expected smoothing="moreau" or "convolution", got {kind!r}.')
    smoothed = Smoothing(bend, envelope if kind == "moreau" else convolved)
    return Loss(value, metrics, slope=steepest, smoothing=smoothed, name=name)
