"""The gallery: every committed figure and table, the paper's claim, what is found here, and how to make it again."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tacit.errors import TacitError, unknown

CONVEX = "arXiv:2106.09779"
NONCONVEX = "arXiv:2203.06735"
MU2 = "Reshef and Levy 2024"
FAIR = "arXiv:2411.07889"
SHUFFLED = "CE-PSGM"


@dataclass(frozen=True)
class Exhibit:
    """One result folder.

    ``differs`` says where we find something else than the paper, ``found`` our number; both are empty until a result is
    there to speak of, and then the page itself has to be read.
    """

    name: str
    source: str
    claim: str
    minutes: int
    found: str = ""
    differs: str = ""
    data: str = "none"
    arguments: tuple[str, ...] = ()
    page: str = "README.md"

    @property
    def call(self) -> tuple[str, ...]:
        """The module to run and its arguments; ``{out}`` is the folder to write."""
        module = f"tacit.studies.papers.{self.name.replace('-', '_')}"
        return self.arguments or (module, "--out", "{out}")


_FAIR_CLAIM = "parity violation 52.9% below FedFDP and 75.5% below Tran et al. at equal error, averaged over data sets"
_LAUNCH = """
import runpy, sys
from tacit.errors import TacitError
sys.argv = sys.argv[1:]
try:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
except TacitError as error:
    sys.exit(f"error: {error}")
"""
EXHIBITS: dict[str, Exhibit] = {
    exhibit.name: exhibit
    for exhibit in (
        Exhibit(
            "accounting",
            "all five papers",
            "the noise of every theorem buys its epsilon",
            2,
            "what multi-pass SGD's noise really buys is 0.025 where 1 is claimed",
            "multi-pass SGD adds 7 to 31 times too much noise and the shuffled vector sum 430 to 500 times; SteFFLe "
            "adds too little: its epsilon 1 is really 5.3 to 7.1",
            arguments=("tacit.privacy.paper_table", "--folder", "{out}"),
            page="papers_table.md",
        ),
        Exhibit(
            "audit",
            "none: our own prices, attacked",
            "no attack proves more than is priced",
            60,
            "no violation; tightness at least 0.95 for single Gaussian releases, 0.90 for full-batch schedules, 0.40 "
            "with subsampling",
            f"the noise of {CONVEX}'s experiments provably exceeds its claims of 6, 12 and 18",
            arguments=("tacit.audit", "--trials", "1000000", "--seed", "0", "--folder", "{out}"),
            page="audit.md",
        ),
        Exhibit(
            "convex-rates",
            f"{CONVEX}, Theorems 2.1 to 3.1",
            "slopes of excess risk in rounds, n, N, d and epsilon",
            5,
            "-1.00 and -1.97 in rounds (theory -1 and -2), and within 0.16 of theory in the others",
        ),
        Exhibit(
            "insurance-linear",
            f"{CONVEX}, Figure 2",
            "private MB-SGD beats private Local SGD at every epsilon",
            1,
            "MB-SGD is clearly ahead in 2 of 16 cases",
            "level in 13 cases when both are priced exactly and tuned alike, and behind in one",
            data="insurance",
        ),
        Exhibit(
            "mnist-logistic-parity",
            f"{CONVEX}, MNIST",
            "the same, also when only some silos come",
            5,
            "ahead on average in 11 of 12 cases, clearly in 6",
            "within the 90% interval in the other 6",
            data="mnist",
        ),
        Exhibit(
            "mnist-mu2",
            f"{MU2}, Tables 1 and 2",
            "65% to 70% accuracy for rho = 4 to 16",
            13,
            "within 0.001 in loss and 1.4 points in accuracy; 89% to 92% at the same rho with bounded features",
            "those rho are epsilon 24 to 195, hardly private; at epsilon 1 to 8 it is 69% to 91%",
            data="mnist",
        ),
        Exhibit(
            "nonconvex-rates",
            f"{NONCONVEX}, Theorem 3.1",
            "the squared gradient norm falls with power 4/3 for SPIDER and 1 for MB-SGD",
            7,
            "1.29 (SVRG 1.27) and 1.06",
        ),
        Exhibit(
            "sdp-against-central",
            f"{NONCONVEX}, shuffle DP",
            "shuffle DP reaches the rate of central DP",
            12,
            "within 12% of its error on ridge regression for five algorithms",
            "one lasso cell is 23% above",
        ),
        Exhibit(
            "support-recovery",
            "none: a use of proximal steps",
            "none",
            13,
            "lasso and group lasso find the exact support from epsilon 1 (ISRL-DP) and 0.25 (SDP)",
        ),
        Exhibit(
            "mnist-parity-mlp",
            f"{NONCONVEX}, MNIST",
            "SPIDER's test error is 1.7 points below MB-SGD's, and MB-SGD never wins",
            45,
            "with all 25 silos SPIDER is at most 0.73 points behind MB-SGD, and 0.45 ahead at epsilon 12 in 25 rounds; "
            "with 12 silos a round it is 0.7 to 3.2 points behind",
            "the paper's gain does not appear under an honest protocol; the page says why",
            data="mnist",
        ),
        Exhibit(
            "breast-cancer-mlp",
            f"{NONCONVEX}, breast cancer",
            "SPIDER ahead of both baselines at most epsilons",
            4,
            "level with MB-SGD within the intervals",
            "no clear winner among four methods",
            data="breast-cancer (with scikit-learn)",
        ),
        Exhibit(
            "cifar10-cnn",
            f"{NONCONVEX}, CIFAR-10",
            "SPIDER ahead of MB-SGD",
            50,
            "SPIDER is 4.0 to 7.6 points behind MB-SGD at equal epsilon and 3.2 to 4.7 ahead of Local SGD in 50 rounds",
            "the paper's gain does not appear; without privacy SPIDER is 0.8 to 2.3 points ahead",
            data="cifar10",
        ),
        Exhibit(
            "california-housing-mlp",
            f"{SHUFFLED}, its only experiment",
            "local steps help at equal epsilon (figures only)",
            100,
            "through the shuffled sum MB-PSGM-FG ends within 5% of its loss without privacy at epsilon 0.4, 0.8 and "
            "1.6; through reports 12 to 16% above the sum at 0.4, 1 to 5% above it at 0.8 and 1.6",
            "CE-PSGM's loss is 31 to 76% above MB-PSGM-FG's at certified epsilons; with full gradients and a trusted "
            "server local steps win, by 4 to 8% with privacy and 35% without, however records are sorted by target, "
            "which moves Hessians little",
            data="california-housing",
        ),
        Exhibit(
            "credit-card-fair",
            f"{FAIR}, Credit Card",
            _FAIR_CLAIM,
            10,
            "7.7% above and 0.4% above at certified epsilons, with baselines tuned alike; equalized odds 1.9% above "
            "FedFDP (the paper: 95.4% below)",
            "level within the intervals; the printed noise for epsilon 1, 3, 9 is really 7, 28, 147",
            data="credit-card",
        ),
        Exhibit(
            "adult-fair",
            f"{FAIR}, Adult",
            _FAIR_CLAIM,
            10,
            "64.9% below and 7.2% below",
            "far less ahead of Tran et al., which is central DP, than the paper's average",
            data="adult",
        ),
        Exhibit(
            "acs-income-fair",
            f"{FAIR}, in place of Retired Adult",
            _FAIR_CLAIM,
            10,
            "48.0% below and 44.8% above; over the three data sets 35.1% below FedFDP and 12.7% above Tran et al.",
            "Tran et al. is central DP, and where both run with the same step their curves coincide",
            data="acs-income",
        ),
        Exhibit(
            "heart-disease",
            "none: the demo",
            "none",
            1,
            "four hospitals at epsilon 1: test error 0.206 against 0.182 without privacy",
            data="heart-disease (ships)",
            arguments=("tacit", "run", "heart-disease", "--out", "{out}/runs"),
        ),
        Exhibit(
            "benchmarks",
            "none: our own speed",
            "none",
            5,
            "a private round takes 1.05 to 1.11 times a non-private one",
            arguments=("benchmarks.rounds",),
        ),
    )
}


def find_exhibit(name: str) -> Exhibit:
    """The exhibit of this name, or an error that names the nearest one."""
    if name not in EXHIBITS:
        raise TacitError(unknown("result", name, EXHIBITS) + " `tacit reproduce --list` shows all.")
    return EXHIBITS[name]


def reproduce(
    exhibit: Exhibit, results: Path, call: Callable[[Sequence[str]], int] = lambda command: subprocess.call(command)
) -> int:
    """Make one exhibit again under ``results``, in a process of its own; returns its exit code."""
    folder = results / exhibit.name
    folder.mkdir(parents=True, exist_ok=True)
    return call([sys.executable, "-c", _LAUNCH, *(part.format(out=folder) for part in exhibit.call)])


def index(results: Path) -> str:
    """The text of ``results/README.md``: one row for every folder that is there."""
    here = sorted(path.name for path in results.iterdir() if path.is_dir())
    strangers = [name for name in here if name not in EXHIBITS]
    if strangers:
        raise TacitError(f"{results / strangers[0]} is not in the gallery; describe it in tacit/studies/gallery.py.")
    rows = [_row(exhibit) for name, exhibit in EXHIBITS.items() if name in here]
    missing = [name for name in EXHIBITS if name not in here]
    later = f"\nNot run yet: {', '.join(missing)}.\n" if missing else ""
    figures = [text for name in EXHIBITS if name in here for text in _figures(results / name)]
    return _HEAD + "\n".join(rows) + "\n" + later + "\n## Figures\n\n" + "\n\n".join(figures) + "\n"


def _figures(folder: Path) -> list[str]:
    """A result's pictures, each a link to its page."""
    name, page = folder.name, EXHIBITS[folder.name].page
    pictures = sorted(folder.glob("*.png"))
    return [f"**{name}**, {p.stem}\n\n[![{name}, {p.stem}]({name}/{p.name})]({name}/{page})" for p in pictures]


def _row(exhibit: Exhibit) -> str:
    found = exhibit.found or "see its page"
    differs = exhibit.differs or ("nowhere" if exhibit.found else "see its page")
    if exhibit.claim == "none":
        differs = exhibit.differs or "nothing to compare with"
    link = f"[{exhibit.name}]({exhibit.name}/{exhibit.page})"
    command = f"`tacit reproduce {exhibit.name}`"
    cells = (link, exhibit.source, exhibit.claim, found, differs, command, str(exhibit.minutes), exhibit.data)
    return "| " + " | ".join(cells) + " |"


_HEAD = """# Results

What the papers claim, what we find, where the two differ, and the command that makes it again from scratch. A folder
names its seeds, machine and date. Minutes are of one CPU core or two, roughly. Data sets are looked for in `TACIT_DATA`
and fetched from their public source where there is internet. `tacit reproduce --gallery` writes this page.

| result | paper | its claim | here | where they differ | command | minutes | data |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""
