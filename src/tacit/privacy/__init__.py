"""From plan to price: differential-privacy events, accountants, calibration and conversions.

Adjacency is replace-one-record with public sizes. Nothing here imports jax, and dp_accounting is imported
only by the looser `rdp` accountant.
"""

from tacit.privacy.accountant import Accountant, Price, capped, colluding, price, spent
from tacit.privacy.calibration import calibrate
from tacit.privacy.conversions import SILO_SAMPLING, calibrate_user_level, user_level
from tacit.privacy.events import Event, PricingError, Sampling
from tacit.privacy.gaussian import gauss_delta, gdp_epsilon, gdp_mu
from tacit.privacy.plan import AnonymitySet, Budget, SiloPlan, events_of
from tacit.privacy.risk import risk, risk_of, risk_of_price
from tacit.privacy.schedule import gaussian_mu
from tacit.privacy.statements import Condition, PaperNoise, Setting

__all__ = [
    "SILO_SAMPLING",
    "Accountant",
    "AnonymitySet",
    "Budget",
    "Condition",
    "Event",
    "PaperNoise",
    "Price",
    "PricingError",
    "Sampling",
    "Setting",
    "SiloPlan",
    "calibrate",
    "calibrate_user_level",
    "capped",
    "colluding",
    "events_of",
    "gauss_delta",
    "gaussian_mu",
    "gdp_epsilon",
    "gdp_mu",
    "price",
    "risk",
    "risk_of",
    "risk_of_price",
    "spent",
    "user_level",
]
