"""The trusted layer: the only code that touches a record. It never imports an algorithm."""

from tacit.silo.gradients import SLACK, clipped_sum
from tacit.silo.records import RecordsError, Silos, StoredSilos, check_records, enrol, open_silos, rows_of
from tacit.silo.release import SiloView, view_of
from tacit.silo.sampling import draw, pass_order
from tacit.silo.shuffled import AnonymityCounts
from tacit.silo.simulated import (
    Previous,
    Sampled,
    add_cumulative,
    add_gaussian,
    answer,
    exact_statistic,
    is_poolable,
    parted_statistic,
    pooled_mean,
    privatise,
    sampled,
    step_keys,
)

__all__ = [
    "SLACK",
    "AnonymityCounts",
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
    "open_silos",
    "parted_statistic",
    "pass_order",
    "pooled_mean",
    "privatise",
    "rows_of",
    "sampled",
    "step_keys",
    "view_of",
]
