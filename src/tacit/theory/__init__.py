"""The theorems with numbers put in: parameters, conditions, bounds and lower bounds, per algorithm."""

from tacit.theory.convex import (
    accelerated_mb_sgd_from_theory,
    mb_sgd_from_theory,
    one_pass_accelerated_from_theory,
)
from tacit.theory.fairness import (
    fermi_stationarity,
    sgda_from_theory,
    stationarity_bound,
    steffle_setting,
)
from tacit.theory.mu2 import mu2_sgd_from_theory
from tacit.theory.nonconvex import (
    NonconvexSetting,
    pl_svrg_from_theory,
    prox_sgd_from_theory,
    prox_spider_from_theory,
)
from tacit.theory.psgm import PsgmSetting, PsgmTheory, ce_psgm_from_theory, table_1
from tacit.theory.statement import ConvexSetting, Statement, TheoryError, conditions_text, is_convex, stated
from tacit.theory.stationarity import gradient_mapping, proximal_descent, risk

__all__ = [
    "ConvexSetting",
    "NonconvexSetting",
    "PsgmSetting",
    "PsgmTheory",
    "Statement",
    "TheoryError",
    "accelerated_mb_sgd_from_theory",
    "ce_psgm_from_theory",
    "conditions_text",
    "fermi_stationarity",
    "gradient_mapping",
    "is_convex",
    "mb_sgd_from_theory",
    "mu2_sgd_from_theory",
    "one_pass_accelerated_from_theory",
    "pl_svrg_from_theory",
    "prox_sgd_from_theory",
    "prox_spider_from_theory",
    "proximal_descent",
    "risk",
    "sgda_from_theory",
    "stated",
    "stationarity_bound",
    "steffle_setting",
    "table_1",
]
