"""The table that compares every theorem's noise with what is needed.

`python -m experiments.paper_table` writes it to `results/accounting/papers_table.{md,json}`.
"""

import argparse
import dataclasses
import datetime
import json
import math
import os
import platform
import sys
from pathlib import Path

import tacit
from experiments.vector_sums import calibrate_sum, cheu_sum, large_sum_epsilon
from tacit.privacy import theorems
from tacit.privacy.accountant import price
from tacit.privacy.calibration import calibrate
from tacit.privacy.events import Event, Sampling
from tacit.privacy.gaussian import gdp_mu
from tacit.privacy.statements import PaperNoise, Setting

RECORDS, ROUNDS, EPSILON = 1234, 50, 1.0
SUM_DELTA = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table: a theorem at n = 1234, R = 50, epsilon = 1, delta = 1/n^2."""

    label: str
    noise: PaperNoise

    def as_dict(self) -> dict[str, object]:
        """The row as plain data; sigmas are in units of the clip bound, multipliers are per message."""
        noise = self.noise
        return {
            "label": self.label,
            "source": noise.source,
            "sampling": [r.sampling for r in noise.releases],
            "counts": [r.count for r in noise.releases],
            "batches": [r.batch for r in noise.releases],
            "sigma_paper": list(noise.sigma_over_clip),
            "multiplier_paper": [r.noise_multiplier * r.messages**0.5 for r in noise.releases],
            "epsilon_certified": noise.epsilon_certified,
            "epsilon_corrected_certified": noise.epsilon_corrected,
            "sigma_tight": list(noise.tight_sigma_over_clip),
            "multiplier_tight": [
                e.noise_multiplier * r.messages**0.5 for e, r in zip(noise.tight, noise.releases, strict=True)
            ],
            "ratio": noise.ratio,
            "conditions": [{"text": c.text, "holds": c.holds} for c in noise.conditions],
            "correction": noise.correction,
        }


def table() -> tuple[Row, ...]:
    """Every theorem at n = 1234, R = 50, epsilon = 1, delta = 1/n^2."""
    base = Setting(records=RECORDS, num_rounds=ROUNDS, batch_size=RECORDS, epsilon=EPSILON, delta=1 / RECORDS**2)

    def at(**changes: object) -> Setting:
        return dataclasses.replace(base, **changes)  # type: ignore[arg-type]

    schemes: tuple[Sampling, ...] = ("wr", "wor", "poisson")
    rows = [
        (f"multi-pass, K={k}, {how}", theorems.multi_pass(at(batch_size=k, sampling=how)))
        for k in (8, 87)
        for how in schemes
    ]
    rows.append(("multi-pass, full batch", theorems.multi_pass(at(sampling="full"))))
    rows += [
        (f"experiments, K=87, {how}", theorems.multi_pass_experiments(at(batch_size=87, sampling=how)))
        for how in schemes
    ]
    rows += [
        ("one-pass accelerated, K=1", theorems.one_pass_accelerated(at(batch_size=1, num_rounds=RECORDS))),
        ("Prox-SGD, K=24", theorems.prox_sgd(at(batch_size=24))),
        ("Prox-SVRG, E=5, Q=10, K=123", theorems.prox_svrg(at(batch_size=123))),
        ("Prox-SPIDER, q=5", theorems.prox_spider(at(phase_length=5))),
        ("DP-mu^2, T=n", theorems.mu2_sgd(at(batch_size=1, num_rounds=RECORDS))),
        ("SteFFLe, m=88, epochs", theorems.steffle(at(batch_size=88))),
        ("SteFFLe, m=88, iid batches", theorems.steffle(at(batch_size=88, sampling="wor"))),
        ("CE-PSGM local, J=50, b=123", theorems.psgm(at(batch_size=123, local_steps=10, silos=10))),
    ]
    return tuple(Row(label=label, noise=noise) for label, noise in rows)


def sums() -> list[dict[str, float]]:
    """The shuffled vector sum at epsilon = 1, delta = 1e-6: noise of a mean per coordinate, in units of the clip."""
    found = []
    for dimension in (10, 100, 1000):
        for contributors in (1_000, 10_000, 100_000):
            terms = {"epsilon": EPSILON, "delta": SUM_DELTA, "dimension": dimension, "contributors": contributors}
            printed, needed = cheu_sum(**terms), calibrate_sum(**terms)  # type: ignore[arg-type]
            found.append(
                {
                    "dimension": dimension,
                    "contributors": contributors,
                    "deviation_paper": printed.deviation_of_mean,
                    "epsilon_certified": large_sum_epsilon(printed, SUM_DELTA),
                    "deviation_tight": needed.deviation_of_mean,
                    "deviation_gaussian": 2 / (contributors * gdp_mu(EPSILON, SUM_DELTA)),
                    "ratio": printed.deviation_of_mean / needed.deviation_of_mean,
                }
            )
    return found


def server() -> dict[str, float]:
    """CE-PSGM's reports: M = 10 silos of full batches, epsilon_0 = 1, 2R - 1 shuffles, by the paper's form and tightly.

    The paper's form is Renyi: alpha 1536 e^{epsilon_0} / (reports) a shuffle, alpha >= 2. Its Lemma 2.7 does not apply.
    """
    silos, local, shuffles, delta = 10, 1.0, 2 * ROUNDS - 1, 1 / RECORDS**2
    event = Event(
        kind="reports",
        noise_multiplier=1 / local,
        count=shuffles,
        records=RECORDS,
        batch=RECORDS,
        sampling="full",
        mechanism="reports",
        reports=silos * RECORDS,
        streams=(1.0,),
    )
    slope = shuffles * 1536 * math.exp(local) / (silos * RECORDS)
    alpha = max(2.0, 1 + math.sqrt(-math.log(delta) / slope))
    [allowed] = calibrate([event], epsilon=EPSILON, delta=delta)
    return {
        "silos": silos,
        "shuffles": shuffles,
        "local_epsilon": local,
        "epsilon_paper": slope * alpha - math.log(delta) / (alpha - 1),
        "epsilon_certified": price([event], delta=delta).epsilon,
        "local_epsilon_allowed": 1 / allowed.noise_multiplier,
    }


def sums_as_markdown(rows: list[dict[str, float]]) -> str:
    """The table of sums as Markdown."""
    head = ("d", "contributors", "printed", "its certified epsilon", "needed", "central Gaussian", "printed / needed")
    lines = [f"| {' | '.join(head)} |", "| --- | --- | --- | --- | --- | --- | --- |"]
    lines += [
        f"| {r['dimension']} | {r['contributors']} | {r['deviation_paper']:.3g} | {r['epsilon_certified']:.2g} | "
        f"{r['deviation_tight']:.3g} | {r['deviation_gaussian']:.3g} | {r['ratio']:.0f} |"
        for r in rows
    ]
    return "\n".join(lines)


def as_markdown(rows: tuple[Row, ...]) -> str:
    """The table as Markdown."""
    lines = [
        "| theorem | batches | sigma, printed | its certified epsilon | sigma, needed | printed / needed |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        noise = row.noise
        drawn = "; ".join(f"{r.count} x {r.batch} {r.sampling}" for r in noise.releases)
        printed = "; ".join(f"{s:.4g}" for s in noise.sigma_over_clip)
        needed = "; ".join(f"{s:.4g}" for s in noise.tight_sigma_over_clip)
        cells = [row.label, drawn, printed, f"{noise.epsilon_certified:.3g}", needed, f"{noise.ratio:.3g}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def write(folder: Path) -> None:
    """Write the table with the command, machine and date that produced it."""
    rows = table()
    made = {
        "command": "python -m experiments.paper_table",
        "version": tacit.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    setting = {"records": RECORDS, "rounds": ROUNDS, "epsilon": EPSILON, "delta": 1 / RECORDS**2}
    folder.mkdir(parents=True, exist_ok=True)
    added, shuffled = sums(), server()
    body = {"made": made, "setting": setting, "rows": [r.as_dict() for r in rows], "sums": added, "server": shuffled}
    (folder / "papers_table.json").write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
    header = "\n".join(
        [
            "# The papers' noise, and what it buys",
            "",
            f"n = {RECORDS}, R = {ROUNDS}, epsilon = {EPSILON:g}, delta = 1/n^2. Sigmas are in units of the "
            "clip bound (SteFFLe: joint, in units of 1/sqrt(rho)). A ratio above 1 is noise wasted; below 1 "
            "the printed noise does not give the epsilon it claims.",
            "",
            "; ".join(f"{name}: {value}" for name, value in made.items()),
            "",
        ]
    )
    notes = [f"- {row.label}: {row.noise.source}. {row.noise.correction}" for row in rows]
    title = [
        "## The shuffled vector sum",
        "",
        "Parameters that Cheu et al. print (arXiv:2106.09805; used by Algorithms 4 and 5 of Lowy, Ghafelebashi, "
        f"Razaviyayn) at epsilon = {EPSILON:g}, delta = {SUM_DELTA:g}: standard deviation of the mean per coordinate, "
        "in units of the clip.",
        "",
    ]
    reports = [
        "",
        "## Shuffled reports",
        "",
        f"CE-PSGM's server, {shuffled['silos']} silos, {shuffled['shuffles']} shuffles of {shuffled['silos'] * RECORDS}"
        f" reports at a local epsilon of {shuffled['local_epsilon']:g}: the paper's Renyi form gives epsilon = "
        f"{shuffled['epsilon_paper']:.1f}, tight accounting {shuffled['epsilon_certified']:.3f}. Epsilon = {EPSILON:g} "
        f"allows a local epsilon of {shuffled['local_epsilon_allowed']:.2f}.",
        "",
    ]
    text = "\n".join([header, as_markdown(rows), "", *notes, "", *title, sums_as_markdown(added), *reports])
    (folder / "papers_table.md").write_text(text, encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """Entry point of `python -m experiments.paper_table`."""
    parser = argparse.ArgumentParser(description="Write the table of the papers' noise.")
    parser.add_argument("--folder", type=Path, default=Path("results/accounting"))
    folder = parser.parse_args(arguments).folder
    write(folder)
    sys.stdout.write(f"Wrote {folder / 'papers_table.md'} and {folder / 'papers_table.json'}.\n")


if __name__ == "__main__":
    main()
