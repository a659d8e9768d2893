"""Public mathematics of what is learnt: models with taps, losses for each record, fairness, structured queries."""

from tacit.objectives.constants import Constants, constants, start_risk
from tacit.objectives.convolution import cnn
from tacit.objectives.fairness import Ermi, Frequencies, Notion, ermi
from tacit.objectives.losses import absolute, hinge, logistic, pinball, softmax, squared
from tacit.objectives.models import linear, mlp
from tacit.objectives.objective import Loss, Model, Objective, Tap, untapped
from tacit.objectives.problem import Problem
from tacit.objectives.query import GradientQuery, gradient_at, gradient_difference, gradients
from tacit.objectives.saddle import Saddle, SaddleQuery, lifted, saddle

__all__ = [
    "Constants",
    "Ermi",
    "Frequencies",
    "GradientQuery",
    "Loss",
    "Model",
    "Notion",
    "Objective",
    "Problem",
    "Saddle",
    "SaddleQuery",
    "Tap",
    "absolute",
    "cnn",
    "constants",
    "ermi",
    "gradient_at",
    "gradient_difference",
    "gradients",
    "hinge",
    "lifted",
    "linear",
    "logistic",
    "mlp",
    "pinball",
    "saddle",
    "softmax",
    "squared",
    "start_risk",
    "untapped",
]
