"""The trusted layer: the only code that touches a record. It never imports an algorithm."""

from tacit.silo.clipping import SLACK, sensitivity
from tacit.silo.gradients import clipped_sum, is_tapped, plain_sum
from tacit.silo.noise import add_gaussian, standard_deviation
from tacit.silo.records import RecordsError, Silos, check_records, enrol, rows_of
from tacit.silo.release import SiloView, view_of
from tacit.silo.sampling import Batch, draw, pass_order, slots_needed
from tacit.silo.shuffled import AnonymityCounts
from tacit.silo.simulated import (
    Previous,
    Sampled,
    add_cumulative,
    answer,
    exact_statistic,
    is_poolable,
    parted_statistic,
    pooled_mean,
    privatise,
    sampled,
    step_keys,
)
from tacit.silo.stored import StoredSilos, open_silos

__all__ = [
    "SLACK",
    "AnonymityCounts",
    "Batch",
    "Previous",
    "RecordsError",
    "Sampled",
    "SiloView",
    "Silos",
    "StoredSilos",
    "add_cumulative",
    "add_gaussian",
    "answer",
    "check_records",
    "clipped_sum",
    "draw",
    "enrol",
    "exact_statistic",
    "is_poolable",
    "is_tapped",
    "open_silos",
    "parted_statistic",
    "pass_order",
    "plain_sum",
    "pooled_mean",
    "privatise",
    "rows_of",
    "sampled",
    "sensitivity",
    "slots_needed",
    "standard_deviation",
    "step_keys",
    "view_of",
]
