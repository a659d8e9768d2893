"""Attacks on our own guarantees: an empirical lower bound on epsilon beside every claimed upper bound."""

from tacit.audit.bounds import Counts, epsilon_lower_bound, mu_lower_bound
from tacit.audit.mechanism import AuditError, AuditResult, audit_mechanism
from tacit.audit.one_run import one_run_epsilon, one_run_mu
from tacit.audit.sensitivity import SensitivityResult, audit_extremes, audit_hostile_points, audit_sensitivity
from tacit.audit.simulated import Seat, SimulatedTarget
from tacit.audit.transcript import DoorTarget
from tacit.audit.worst_case import CANARIES, Canary, attackers_problem

__all__ = [
    "CANARIES",
    "AuditError",
    "AuditResult",
    "Canary",
    "Counts",
    "DoorTarget",
    "Seat",
    "SensitivityResult",
    "SimulatedTarget",
    "attackers_problem",
    "audit_extremes",
    "audit_hostile_points",
    "audit_mechanism",
    "audit_sensitivity",
    "epsilon_lower_bound",
    "mu_lower_bound",
    "one_run_epsilon",
    "one_run_mu",
]
