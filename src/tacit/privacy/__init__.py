"""From plan to price: differential-privacy events, accountants, calibration and conversions.

Adjacency is replace-one-record with public sizes. Nothing here imports jax, and dp_accounting is imported
only by the looser `rdp` accountant.
"""

from tacit.privacy.accountant import Accountant, Price, capped, colluding, price, spent
from tacit.privacy.calibration import calibrate, split_budget
from tacit.privacy.conversions import (
    SILO_SAMPLING,
    Guarantee,
    add_remove_multiplier,
    calibrate_user_level,
    record_budget_for_user_level,
    replace_from_add_remove,
    to_central,
    to_user_level,
    user_level,
    user_level_mu,
)
from tacit.privacy.discrete import grid_width, mu_one
from tacit.privacy.events import Event, Mechanism, PricingError, Protects, Sampling, joint_multiplier
from tacit.privacy.gaussian import gauss_delta, gdp_epsilon, gdp_mu, gdp_tpr
from tacit.privacy.lemma import lemma_conditions, lemma_epsilon
from tacit.privacy.plan import AnonymitySet, Budget, SiloPlan, events_of
from tacit.privacy.reports import closed_form_epsilon, shuffled_profile
from tacit.privacy.risk import Risk, risk, risk_of, risk_of_price
from tacit.privacy.schedule import gaussian_mu
from tacit.privacy.statements import Condition, PaperNoise, PaperRelease, Setting
from tacit.privacy.views import rdp_epsilon, zcdp_epsilon, zcdp_rho

__all__ = [
    "SILO_SAMPLING",
    "Accountant",
    "AnonymitySet",
    "Budget",
    "Condition",
    "Event",
    "Guarantee",
    "Mechanism",
    "PaperNoise",
    "PaperRelease",
    "Price",
    "PricingError",
    "Protects",
    "Risk",
    "Sampling",
    "Setting",
    "SiloPlan",
    "add_remove_multiplier",
    "calibrate",
    "calibrate_user_level",
    "capped",
    "closed_form_epsilon",
    "colluding",
    "events_of",
    "gauss_delta",
    "gaussian_mu",
    "gdp_epsilon",
    "gdp_mu",
    "gdp_tpr",
    "grid_width",
    "joint_multiplier",
    "lemma_conditions",
    "lemma_epsilon",
    "mu_one",
    "price",
    "rdp_epsilon",
    "record_budget_for_user_level",
    "replace_from_add_remove",
    "risk",
    "risk_of",
    "risk_of_price",
    "shuffled_profile",
    "spent",
    "split_budget",
    "to_central",
    "to_user_level",
    "user_level",
    "user_level_mu",
    "zcdp_epsilon",
    "zcdp_rho",
]
