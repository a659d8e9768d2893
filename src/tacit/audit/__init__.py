"""Attacks on our own guarantees: an empirical lower bound on epsilon beside every claimed upper bound."""

from tacit.audit.bounds import Counts, epsilon_lower_bound, mu_lower_bound
from tacit.audit.mechanism import AuditError, AuditResult, audit_mechanism, claim_of
from tacit.audit.one_run import one_run_epsilon, one_run_mu
from tacit.audit.sensitivity import SensitivityResult, audit_extremes, audit_sensitivity
from tacit.audit.transcript import Seat
from tacit.audit.worst_case import CANARIES, Canary, attackers_problem

__all__ = [
    "CANARIES",
    "AuditError",
    "AuditResult",
    "Canary",
    "Counts",
    "Seat",
    "SensitivityResult",
    "attackers_problem",
    "audit_extremes",
    "audit_mechanism",
    "audit_sensitivity",
    "claim_of",
    "epsilon_lower_bound",
    "mu_lower_bound",
    "one_run_epsilon",
    "one_run_mu",
]
