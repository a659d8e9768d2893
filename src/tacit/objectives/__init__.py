"""Public mathematics of what is learnt: models with taps, losses for each record, structured queries."""

from tacit.objectives.losses import logistic, softmax, squared
from tacit.objectives.models import linear, mlp
from tacit.objectives.objective import Loss, Model, Objective, Tap, untapped
from tacit.objectives.problem import Problem
from tacit.objectives.query import GradientQuery, gradient_at, gradient_difference

__all__ = [
    "GradientQuery",
    "Loss",
    "Model",
    "Objective",
    "Problem",
    "Tap",
    "gradient_at",
    "gradient_difference",
    "linear",
    "logistic",
    "mlp",
    "softmax",
    "squared",
    "untapped",
]
