"""The table of algorithms: what a study can name, and what each promises and assumes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from tacit.algorithm import Algorithm
from tacit.algorithms.accelerated_mb_sgd import accelerated_mb_sgd, one_pass_accelerated
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
from tacit.errors import TacitError, unknown


@dataclass(frozen=True)
class Entry:
    """One algorithm of the table."""

    name: str
    factory: Callable[..., Algorithm]
    paper: str
    guarantee: str
    assumes: str

    @property
    def can_protect_attribute(self) -> bool:
        """Whether it can protect the sensitive attribute alone; then it reads the field ``s`` of records."""
        return "protects" in self.parameters

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The keyword parameters of the factory."""
        found = inspect.signature(self.factory).parameters
        return {name: p for name, p in found.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}


ALGORITHMS: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            "mb-sgd",
            mb_sgd,
            "Lowy and Razaviyayn 2021 (arXiv:2106.09779), Algorithm 1",
            "ISRL-DP, exact Gaussian or subsampled accounting",
            "convex losses for its theorems; any differentiable loss in practice",
        ),
        Entry(
            "accelerated-mb-sgd",
            accelerated_mb_sgd,
            "Lowy and Razaviyayn 2021 (arXiv:2106.09779), Algorithm 2",
            "ISRL-DP, exact Gaussian or subsampled accounting",
            "smooth convex losses, or non-smooth ones smoothed; empirical risk",
        ),
        Entry(
            "one-pass-accelerated",
            one_pass_accelerated,
            "Lowy and Razaviyayn 2021 (arXiv:2106.09779), Algorithm 2 in one pass (Theorem 2.2)",
            "ISRL-DP, each record pays for one release",
            "smooth convex losses; population risk, silos may differ",
        ),
        Entry(
            "mu2-sgd",
            mu2_sgd,
            "Reshef and Levy 2024, Algorithms 1 (direct channel) and 2 (trusted channel)",
            "ISRL-DP through the direct channel, central DP through the trusted one; running sums in one pass",
            "smooth convex losses on a bounded set; every silo in every round",
        ),
        Entry(
            "prox-sgd",
            prox_sgd,
            "Lowy, Ghafelebashi and Razaviyayn 2022 (arXiv:2203.06735), Algorithm 6",
            "ISRL-DP, each record pays for one release",
            "smooth proximal-PL losses; population risk, silos may differ",
        ),
        Entry(
            "prox-svrg",
            prox_svrg,
            "Lowy, Ghafelebashi and Razaviyayn 2022 (arXiv:2203.06735), Algorithm 1",
            "ISRL-DP, exact Gaussian or subsampled accounting",
            "smooth losses plus any convex regulariser; empirical risk",
        ),
        Entry(
            "pl-svrg",
            pl_svrg,
            "Lowy, Ghafelebashi and Razaviyayn 2022 (arXiv:2203.06735), Algorithm 2",
            "ISRL-DP, exact Gaussian or subsampled accounting",
            "smooth proximal-PL losses; empirical risk",
        ),
        Entry(
            "prox-spider",
            prox_spider,
            "Lowy, Ghafelebashi and Razaviyayn 2022 (arXiv:2203.06735), Algorithm 3",
            "ISRL-DP, exact Gaussian or subsampled accounting",
            "smooth non-convex losses plus any convex regulariser; empirical risk",
        ),
        Entry(
            "alternate-spider",
            alternate_spider,
            "Lowy, Ghafelebashi and Razaviyayn 2022 (arXiv:2203.06735), Algorithm 11",
            "ISRL-DP, exact Gaussian or subsampled accounting",
            "as prox-spider",
        ),
        Entry(
            "ce-psgm",
            ce_psgm,
            "Efficient private federated non-convex optimization with shuffled model, Algorithm 1",
            "shuffle DP through shuffled reports, plus local steps of each silo's own; any other channel",
            "smooth non-convex losses; silos that differ little for local steps to help",
        ),
        Entry(
            "ce-psgm-fg",
            ce_psgm_fg,
            "the same, with full gradients (Theorem A.2)",
            "as ce-psgm",
            "as ce-psgm; full batches",
        ),
        Entry(
            "mb-psgm",
            mb_psgm,
            "the same, without local steps (Theorem A.3)",
            "shuffle DP through shuffled reports; any other channel",
            "smooth non-convex losses",
        ),
        Entry(
            "mb-psgm-fg",
            mb_psgm_fg,
            "the same, with full gradients and without local steps (Theorem A.4)",
            "as mb-psgm",
            "smooth non-convex losses; full batches",
        ),
        Entry(
            "diff2-gd",
            diff2_gd,
            "Murata and Suzuki 2023 (arXiv:2302.03884), DIFF2-GD",
            "central DP through the trusted channel",
            "smooth non-convex losses; a trusted server",
        ),
        Entry(
            "diff2-bvr-lsgd",
            diff2_bvr_lsgd,
            "Murata and Suzuki 2023 (arXiv:2302.03884), DIFF2-BVR-L-SGD",
            "central DP through the trusted channel, local steps noised by the silo",
            "as diff2-gd; silos that differ little",
        ),
        Entry(
            "sgda",
            fed_sgda,
            "Gupta, Poornash, Lowy and Razaviyayn 2024 (arXiv:2411.07889), Algorithm 2",
            "ISRL-DP, both messages of a round priced as one release",
            "smooth saddle problems, strongly concave in the duals; empirical risk",
        ),
        Entry(
            "steffle",
            steffle,
            "Gupta, Poornash, Lowy and Razaviyayn 2024 (arXiv:2411.07889), Algorithm 1, its privacy corrected",
            "ISRL-DP for the sensitive attribute alone, or for whole records (privacy.protects)",
            "classification with a discrete sensitive attribute; smooth losses for its theorem",
        ),
        Entry(
            "fedfdp",
            fedfdp,
            "Ling et al. 2024 (arXiv:2402.16028); baseline of arXiv:2411.07889",
            "ISRL-DP, gradients and losses priced as one release",
            "nothing; a baseline that balances losses between silos",
        ),
        Entry(
            "lagrangian-dual",
            lagrangian_dual,
            "Tran, Fioretto and Van Hentenryck 2021 (arXiv:2009.12562); baseline of arXiv:2411.07889",
            "DP of the sensitive attribute: central with one silo, ISRL-DP with several",
            "nothing; a baseline with fairness constraints",
        ),
        Entry(
            "local-sgd",
            local_sgd,
            "McMahan et al. 2017 (arXiv:1602.05629); private baseline of arXiv:2106.09779 and arXiv:2203.06735",
            "ISRL-DP, every local step is priced",
            "nothing; a baseline",
        ),
    )
}


def find(name: str) -> Entry:
    """The entry of this name, or an error that names the nearest one."""
    if name not in ALGORITHMS:
        raise TacitError(unknown("algorithm", name, ALGORITHMS))
    return ALGORITHMS[name]
