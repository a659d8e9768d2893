"""One file per algorithm, silo half and server half side by side. Nothing here sees a record."""

from tacit.algorithms.accelerated_mb_sgd import accelerated_mb_sgd, one_pass_accelerated
from tacit.algorithms.catalogue import ALGORITHMS, Entry, find
from tacit.algorithms.ce_psgm import ce_psgm, ce_psgm_fg, diff2_bvr_lsgd, diff2_gd, mb_psgm, mb_psgm_fg
from tacit.algorithms.fed_sgda import fed_sgda
from tacit.algorithms.fedfdp import fedfdp
from tacit.algorithms.lagrangian_dual import lagrangian_dual
from tacit.algorithms.local_sgd import local_sgd
from tacit.algorithms.mb_sgd import mb_sgd, prox_sgd
from tacit.algorithms.mu2_sgd import mu2_sgd
from tacit.algorithms.prox_spider import alternate_spider, prox_spider
from tacit.algorithms.prox_svrg import pl_svrg, prox_svrg
from tacit.algorithms.steffle import steffle

__all__ = [
    "ALGORITHMS",
    "Entry",
    "accelerated_mb_sgd",
    "alternate_spider",
    "ce_psgm",
    "ce_psgm_fg",
    "diff2_bvr_lsgd",
    "diff2_gd",
    "fed_sgda",
    "fedfdp",
    "find",
    "lagrangian_dual",
    "local_sgd",
    "mb_psgm",
    "mb_psgm_fg",
    "mb_sgd",
    "mu2_sgd",
    "one_pass_accelerated",
    "pl_svrg",
    "prox_sgd",
    "prox_spider",
    "prox_svrg",
    "steffle",
]
