"""The table of algorithms: what a study can name, what each promises and assumes, and what its paper prints.

A row leads to everything about an algorithm: the function that people call (`tacit.NAME`), its theorem, its paper's
letters and noise.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from tacit.algorithm import Algorithm, Channel, Recipe, Terms
from tacit.errors import TacitError, unknown
from tacit.objectives import Problem

if TYPE_CHECKING:
    from tacit.algorithms.accelerated_mb_sgd import accelerated_mb_sgd as accelerated_mb_sgd
    from tacit.algorithms.accelerated_mb_sgd import one_pass_accelerated as one_pass_accelerated
    from tacit.algorithms.ce_psgm import ce_psgm as ce_psgm
    from tacit.algorithms.ce_psgm import ce_psgm_fg as ce_psgm_fg
    from tacit.algorithms.ce_psgm import diff2_bvr_lsgd as diff2_bvr_lsgd
    from tacit.algorithms.ce_psgm import diff2_gd as diff2_gd
    from tacit.algorithms.ce_psgm import mb_psgm as mb_psgm
    from tacit.algorithms.ce_psgm import mb_psgm_fg as mb_psgm_fg
    from tacit.algorithms.fedfdp import fedfdp as fedfdp
    from tacit.algorithms.lagrangian_dual import lagrangian_dual as lagrangian_dual
    from tacit.algorithms.local_sgd import local_sgd as local_sgd
    from tacit.algorithms.localised_mb_sgd import localised_mb_sgd as localised_mb_sgd
    from tacit.algorithms.mb_sgd import dp_ftrl as dp_ftrl
    from tacit.algorithms.mb_sgd import mb_sgd as mb_sgd
    from tacit.algorithms.mb_sgd import prox_sgd as prox_sgd
    from tacit.algorithms.mr_mtl import mr_mtl as mr_mtl
    from tacit.algorithms.mu2_sgd import mu2_sgd as mu2_sgd
    from tacit.algorithms.preconditioned_sgd import preconditioned_sgd as preconditioned_sgd
    from tacit.algorithms.prox_spider import alternate_spider as alternate_spider
    from tacit.algorithms.prox_spider import prox_spider as prox_spider
    from tacit.algorithms.prox_svrg import pl_svrg as pl_svrg
    from tacit.algorithms.prox_svrg import prox_svrg as prox_svrg
    from tacit.algorithms.quantile_clip import quantile_clip as quantile_clip
    from tacit.algorithms.ridge import ridge as ridge
    from tacit.algorithms.sgda import sgda as sgda
    from tacit.algorithms.steffle import steffle as steffle
    from tacit.algorithms.warm_spider import warm_spider as warm_spider
    from tacit.privacy.statements import PaperNoise

_LETTERS = re.compile(r"^ {4}paper +here\n {4}-+ +-+\n((?: {4}\S.*\n)+)", re.MULTILINE)
_ROW = re.compile(r"^ {4}(\S.*?) {2,}(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Entry:
    """One algorithm of the table.

    ``name`` is typed in a study. The function has underscores for hyphens and lies in ``file`` of `tacit.algorithms`.
    Files load when they are used: a daemon loads no algorithm but that of its study. ``noise`` names the function of
    `tacit.privacy.theorems` with the noise that its paper prints, ``through`` the channel that it is printed for
    (``None``: any). ``theorem`` names the function of `tacit.theory` with its conditions and bound. ``reads_attribute``
    says that it reads the field ``s`` of records, and can protect it alone; ``personal`` that it makes a model for each
    silo beside the one for everybody else.
    """

    name: str
    file: str
    paper: str
    guarantee: str
    assumes: str
    noise: str | None = None
    through: Channel | None = None
    theorem: str | None = None
    reads_attribute: bool = False
    personal: bool = False

    @property
    def recipe(self) -> Callable[..., Recipe]:
        """The function that people call."""
        module = importlib.import_module(f"tacit.algorithms.{self.file}")
        return getattr(module, self.name.replace("-", "_"))

    @property
    def theory(self) -> Callable[..., Any] | None:
        """The theorem's parameters, conditions and bound."""
        return None if self.theorem is None else getattr(importlib.import_module("tacit.theory"), self.theorem)

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The algorithm's own parameters; the terms of release are no part of them."""
        return inspect.signature(self.recipe).parameters

    @property
    def letters(self) -> dict[str, str]:
        """The paper's letters, each with the name that it has here, from the docstring of the algorithm's file."""
        found = _LETTERS.search(getattr(sys.modules.get(self.recipe.__module__), "__doc__", None) or "")
        return {} if found is None else dict(_ROW.findall(found[1]))

    def build(self, problem: Problem, **given: Any) -> Algorithm:
        """The algorithm from parameters and terms of release side by side, as a study names them."""
        terms, own = Terms.split(given)
        server = own.pop("server", "sgd")
        return self.recipe(**own).with_server(server)(problem, terms)

    def paper_noise(
        self, given: Mapping[str, Any], *, records: int, epsilon: float, delta: float, silos: int = 1
    ) -> PaperNoise | None:
        """The noise that the theorem prints for these parameters and terms, or ``None`` if no paper prints any."""
        if self.noise is None or self.through not in (None, given.get("channel", self.through)):
            return None
        from tacit.privacy.statements import Setting

        names = {field.name for field in fields(Setting)}
        own = {name: value for name, value in given.items() if name in names and value is not None}
        budget = {"records": records, "epsilon": epsilon, "delta": delta, "silos": silos}
        printed = getattr(importlib.import_module("tacit.privacy.theorems"), self.noise)
        return printed(Setting(**{"batch_size": records, **own, **budget}))


_PSGM: dict[str, Any] = {
    "noise": "shuffled_reports",
    "theorem": "ce_psgm_from_theory",
    "through": "shuffled-reports",
}
ALGORITHMS: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            "mb-sgd",
            file="mb_sgd",
            paper="Lowy and Razaviyayn 2021 (arXiv:2106.09779), Algorithm 1",
            guarantee="ISRL-DP, exact Gaussian or subsampled accounting",
            assumes="convex losses for its theorems; any differentiable loss in practice",
            noise="multi_pass",
            theorem="mb_sgd_from_theory",
        ),
        Entry(
            "accelerated-mb-sgd",
            file="accelerated_mb_sgd",
            paper="Lowy and Razaviyayn 2021 (arXiv:2106.09779), Algorithm 2",
            guarantee="ISRL-DP, exact Gaussian or subsampled accounting",
            assumes="smooth convex losses, or non-smooth ones smoothed; empirical risk",
            noise="multi_pass",
            theorem="accelerated_mb_sgd_from_theory",
        ),
        Entry(
            "one-pass-accelerated",
            file="accelerated_mb_sgd",
            paper="Lowy and Razaviyayn 2021 (arXiv:2106.09779), Algorithm 2 in one pass (Theorem 2.2)",
            guarantee="ISRL-DP, each record pays for one release",
            assumes="smooth convex losses; population risk, silos may differ",
            noise="one_pass_accelerated",
            theorem="one_pass_accelerated_from_theory",
        ),
        Entry(
            "localised-mb-sgd",
            file="localised_mb_sgd",
            paper="Gao, Lowy, Zhou and Wright 2024 (arXiv:2407.09690)",
            guarantee="ISRL-DP, each record pays for the rounds of one phase",
            assumes="smooth convex losses; population risk, silos may differ",
            theorem="localised_mb_sgd_from_theory",
        ),
        Entry(
            "mu2-sgd",
            file="mu2_sgd",
            paper="Reshef and Levy 2024, Algorithms 1 (direct channel) and 2 (trusted channel)",
            guarantee="ISRL-DP through the direct channel, central DP through the trusted; running sums in one pass",
            assumes="smooth convex losses on a bounded set; every silo in every round",
            noise="mu2_sgd",
            theorem="mu2_sgd_from_theory",
        ),
        Entry(
            "prox-sgd",
            file="mb_sgd",
            paper="Lowy, Ghafelebashi and Razaviyayn 2022 (arXiv:2203.06735), Algorithm 6",
            guarantee="ISRL-DP, each record pays for one release",
            assumes="smooth proximal-PL losses; population risk, silos may differ",
            noise="prox_sgd",
            theorem="prox_sgd_from_theory",
        ),
        Entry(
            "dp-ftrl",
            file="mb_sgd",
            paper="Kairouz et al. 2021 (arXiv:2103.00039), with the noise of Denisov et al. 2022 (arXiv:2202.08312)",
            guarantee="ISRL-DP, noise that remembers, priced for the passes over the batches",
            assumes="any differentiable loss; small batches, every silo in every round",
        ),
        Entry(
            "quantile-clip",
            file="quantile_clip",
            paper="Andrew, Thakkar, McMahan and Ramaswamy 2021 (arXiv:1905.03871), Algorithm 1, for records",
            guarantee="ISRL-DP, gradients and counts priced as one release",
            assumes="nothing; any differentiable loss whose gradients have unknown size",
        ),
        Entry(
            "preconditioned-sgd",
            file="preconditioned_sgd",
            paper="after Li, Zaheer, Reddi and Smith 2022 (arXiv:2202.05963), with released second moments",
            guarantee="ISRL-DP, moments and gradients priced together",
            assumes="any differentiable loss; helps where features or layers differ in scale",
        ),
        Entry(
            "prox-svrg",
            file="prox_svrg",
            paper="Lowy, Ghafelebashi and Razaviyayn 2022 (arXiv:2203.06735), Algorithm 1",
            guarantee="ISRL-DP, exact Gaussian or subsampled accounting",
            assumes="smooth losses plus any convex regulariser; empirical risk",
            noise="prox_svrg",
        ),
        Entry(
            "pl-svrg",
            file="prox_svrg",
            paper="Lowy, Ghafelebashi and Razaviyayn 2022 (arXiv:2203.06735), Algorithm 2",
            guarantee="ISRL-DP, exact Gaussian or subsampled accounting",
            assumes="smooth proximal-PL losses; empirical risk",
            noise="prox_svrg",
            theorem="pl_svrg_from_theory",
        ),
        Entry(
            "prox-spider",
            file="prox_spider",
            paper="Lowy, Ghafelebashi and Razaviyayn 2022 (arXiv:2203.06735), Algorithm 3",
            guarantee="ISRL-DP, exact Gaussian or subsampled accounting",
            assumes="smooth non-convex losses plus any convex regulariser; empirical risk",
            noise="prox_spider",
            theorem="prox_spider_from_theory",
        ),
        Entry(
            "alternate-spider",
            file="prox_spider",
            paper="Lowy, Ghafelebashi and Razaviyayn 2022 (arXiv:2203.06735), Algorithm 11",
            guarantee="ISRL-DP, exact Gaussian or subsampled accounting",
            assumes="as prox-spider",
        ),
        Entry(
            "warm-spider",
            file="warm_spider",
            paper="Lowy, Ullman and Wright 2024 (arXiv:2402.11173), minibatch SGD before SPIDER",
            guarantee="ISRL-DP, both parts priced together",
            assumes="as prox-spider; helps where a point of small risk is easier found than one of small gradient",
        ),
        Entry(
            "ce-psgm",
            file="ce_psgm",
            paper="Efficient private federated non-convex optimization with shuffled model, Algorithm 1",
            guarantee="shuffle DP through shuffled reports, plus local steps of each silo's own; any other channel",
            assumes="smooth non-convex losses; silos that differ little for local steps to help",
            **_PSGM,
        ),
        Entry(
            "ce-psgm-fg",
            file="ce_psgm",
            paper="the same, with full gradients (Theorem A.2)",
            guarantee="as ce-psgm",
            assumes="as ce-psgm; full batches",
            **_PSGM,
        ),
        Entry(
            "mb-psgm",
            file="ce_psgm",
            paper="the same, without local steps (Theorem A.3)",
            guarantee="shuffle DP through shuffled reports; any other channel",
            assumes="smooth non-convex losses",
            **_PSGM,
        ),
        Entry(
            "mb-psgm-fg",
            file="ce_psgm",
            paper="the same, with full gradients and without local steps (Theorem A.4)",
            guarantee="as mb-psgm",
            assumes="smooth non-convex losses; full batches",
            **_PSGM,
        ),
        Entry(
            "diff2-gd",
            file="ce_psgm",
            paper="Murata and Suzuki 2023 (arXiv:2302.03884), DIFF2-GD",
            guarantee="central DP through the trusted channel",
            assumes="smooth non-convex losses; a trusted server",
        ),
        Entry(
            "diff2-bvr-lsgd",
            file="ce_psgm",
            paper="Murata and Suzuki 2023 (arXiv:2302.03884), DIFF2-BVR-L-SGD",
            guarantee="central DP through the trusted channel, local steps noised by the silo",
            assumes="as diff2-gd; silos that differ little",
        ),
        Entry(
            "sgda",
            file="sgda",
            paper="Gupta, Poornash, Lowy and Razaviyayn 2024 (arXiv:2411.07889), Algorithm 2",
            guarantee="ISRL-DP, both messages of a round priced as one release",
            assumes="smooth saddle problems, strongly concave in the duals; empirical risk",
            theorem="sgda_from_theory",
        ),
        Entry(
            "steffle",
            file="steffle",
            paper="Gupta, Poornash, Lowy and Razaviyayn 2024 (arXiv:2411.07889), Algorithm 1, its privacy corrected",
            guarantee="ISRL-DP for the sensitive attribute alone, or for whole records (privacy.protects)",
            assumes="classification with a discrete sensitive attribute; smooth losses for its theorem",
            noise="steffle",
            theorem="sgda_from_theory",
            reads_attribute=True,
        ),
        Entry(
            "fedfdp",
            file="fedfdp",
            paper="Ling et al. 2024 (arXiv:2402.16028); baseline of arXiv:2411.07889",
            guarantee="ISRL-DP, gradients and losses priced as one release",
            assumes="nothing; a baseline that balances losses between silos",
        ),
        Entry(
            "lagrangian-dual",
            file="lagrangian_dual",
            paper="Tran, Fioretto and Van Hentenryck 2021 (arXiv:2009.12562); baseline of arXiv:2411.07889",
            guarantee="DP of the sensitive attribute: central with one silo, ISRL-DP with several",
            assumes="nothing; a baseline with fairness constraints",
            reads_attribute=True,
        ),
        Entry(
            "local-sgd",
            file="local_sgd",
            paper="McMahan et al. 2017 (arXiv:1602.05629); private baseline of arXiv:2106.09779 and arXiv:2203.06735",
            guarantee="ISRL-DP, every local step is priced",
            assumes="nothing; a baseline",
            noise="multi_pass",
        ),
        Entry(
            "mr-mtl",
            file="mr_mtl",
            paper="Liu, Hu, Wu and Smith 2022 (arXiv:2206.07902), MR-MTL",
            guarantee="ISRL-DP, exact Gaussian or subsampled accounting; a silo's own model costs nothing more",
            assumes="any differentiable loss; every silo in every round",
            personal=True,
        ),
    )
}

QUESTIONS: dict[str, Entry] = {
    "statistics": Entry(
        "statistics",
        file="statistics",
        paper="counts with Gaussian noise, many tables in one release",
        guarantee="ISRL-DP, one release in which replacing a record moves a table's counts by sqrt(2)",
        assumes="columns, ranges, levels and edges that are declared",
    ),
    "validation": Entry(
        "validation",
        file="validation",
        paper="counts by score and truth with Gaussian noise, of a finished model",
        guarantee="ISRL-DP, one release of records that were set aside",
        assumes="a model of classes or numbers",
    ),
}
"""What a study can ask without training anything; silos answer it as they answer an algorithm."""

SOLVERS: dict[str, Entry] = {
    "ridge": Entry(
        "ridge",
        file="ridge",
        paper="Sheffet 2015 (arXiv:1507.02482), with Gaussian noise",
        guarantee="ISRL-DP, one release",
        assumes="a linear model and squared loss; few features",
    )
}
"""What is solved in one round, without steps."""


def shipped() -> dict[str, Entry]:
    """All that a silo's daemon builds."""
    return {**ALGORITHMS, **SOLVERS, **QUESTIONS}


@dataclass(frozen=True)
class OwnEntry(Entry):
    """A registered algorithm, of somebody's own."""

    made: Callable[..., Recipe] | None = None

    @property
    def recipe(self) -> Callable[..., Recipe]:
        """The function that people call."""
        assert self.made is not None
        return self.made


_OWN: dict[str, OwnEntry] = {}


def register_algorithm(made: Callable[..., Recipe], *, reads_attribute: bool = False) -> Callable[..., Recipe]:
    """Let studies name an algorithm of your own, by its function's name with hyphens; also a decorator.

    ``made`` is what `tacit.algorithm.recipe` returns. Give its file the shape of those in `tacit.algorithms`: only
    ``query`` reads a record, and all noise is in the `Release` that its terms make. Real silos load no foreign code:
    such a study is simulated, not deployed. ``reads_attribute`` says that it reads the field ``s`` of records.
    """
    if not callable(made) or inspect.signature(made).return_annotation is not Recipe:
        raise TacitError(f"Expected a function made by tacit.algorithm.recipe, got {made!r}; decorate it with @recipe.")
    name = made.__name__.replace("_", "-")
    if name in shipped():
        raise TacitError(
            f"Expected a name for an algorithm of your own, got {name!r}, which Tacit has; choose another."
        )
    what = (made.__doc__ or "").strip().splitlines()
    _OWN[name] = OwnEntry(
        name,
        file=made.__module__,
        paper="an algorithm of your own",
        guarantee="that of its releases, priced as they are",
        assumes=what[0] if what else "what its author says",
        reads_attribute=reads_attribute,
        made=made,
    )
    return made


def known_algorithms() -> dict[str, Entry]:
    """The algorithms that a study may name: those of the tables, and those that were registered here."""
    return {**shipped(), **_OWN}


def find(name: str) -> Entry:
    """The entry of this name, or an error that names the nearest one."""
    known = known_algorithms()
    if name not in known:
        raise TacitError(unknown("algorithm", name, known))
    return known[name]


def paper_noise(
    name: str, *, records: int, epsilon: float, delta: float, silos: int = 1, **given: Any
) -> PaperNoise | None:
    """The noise that a paper's theorem prints for an algorithm, or ``None`` if no paper states one.

    ``given`` are the algorithm's parameters and terms by name: ``num_rounds``, ``batch_size`` (default: every record),
    ``sampling`` (default: what the theorem assumes), ``phase_length``, ``restarts``, ``local_steps``.

    >>> noise = paper_noise("mb-sgd", records=1234, num_rounds=50, epsilon=1.0, delta=1 / 1234**2, sampling="full")
    >>> round(noise.sigma_over_clip[0], 3), round(noise.ratio)
    (1.547, 31)
    >>> paper_noise("sgda", records=9, num_rounds=5, epsilon=1.0, delta=1e-5) is None
    True
    """
    return find(name).paper_noise(given, records=records, epsilon=epsilon, delta=delta, silos=silos)
