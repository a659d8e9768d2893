"""``make consortium``: four hospitals try their files as `tacit consortium try` does, through three channels.

Beside it stand simulations of the same study, and what each party saw of it.
"""

from __future__ import annotations

import argparse
import csv
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from experiments.parties import frames_in
from tacit.cli.consortium import show_accounts, show_validation
from tacit.data.heart_disease import HOSPITALS
from tacit.data.layout import described
from tacit.deploy.consortium.processes import TACIT
from tacit.deploy.consortium.trial import Trial
from tacit.plans.spec import Study

CHANNELS = ("direct", "pairwise", "shuffled-sum")
LEVELS = {"sex": "0,1", "cp": "1,2,3,4", "exang": "0,1", "slope": "1,2,3", "ca": "0,1,2,3", "thal": "3,6,7"}
"""Categories of the data set's manual."""


def main() -> None:
    """Train, show, stop; an interrupt stops everything too."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--simulations", type=int, default=8, help="seeds of the simulation beside it; 0: none")
    chosen = parser.parse_args()
    # A polite request to end is an interrupt, so that everything is stopped in order; a shell may have had it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    console = Console()
    with tempfile.TemporaryDirectory(prefix="tacit-", ignore_cleanup_errors=True) as root:
        trial = Trial(hospitals(Path(root) / "heart-disease", chosen.rounds), Path(root) / "c", CHANNELS)
        try:
            play(trial, chosen.out, chosen.simulations, console)
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            console.print("Stopping everything.")
            trial.stop()
    console.print(f"Stopped. Run folders with reports lie in {chosen.out}.")


def play(trial: Trial, out: Path, seeds: int, console: Console) -> None:
    """The study through every channel, and what came of it."""
    console.print("Starting four silo daemons with their couriers, two shufflers and a server.")
    trial.start_all()
    runs = []
    for study in trial.studies:
        console.rule(study.name)
        runs.append(trial.lead(study, out, "--record"))
        show_validation(runs[-1])
        if seeds:
            mean, std = simulated(study, seeds)
            console.print(f"Simulated test error: {mean:.3f} ± {std:.3f} over {seeds} seeds of the noise.")
    show_accounts(trial, console)
    show_sights(trial, runs, console)


def hospitals(folder: Path, rounds: int) -> Path:
    """The hospitals of the heart-disease data that ships with Tacit as CSV files, with a schema and a study."""
    tree, source = described("heart_disease"), resources.files("tacit.data") / "files" / "heart_disease"
    ranges = {row["columns"][0]: (row["low"], row["high"]) for row in tree["features"] if row["kind"] == "Bounded"}
    folder.mkdir()
    for name in HOSPITALS:
        lines = (source / f"processed.{name}.data").read_text(encoding="utf-8").splitlines()
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            rows = csv.writer(file)
            rows.writerow([*ranges, *LEVELS, "disease"])
            for cells in csv.reader(lines):
                found = dict(zip([*tree["columns"], "disease"], cells, strict=True))
                numbers = [_measured(found[column], tree["missing"].get(column, ())) for column in ranges]
                kinds = ["" if found[column] == "?" else f"{float(found[column]):.0f}" for column in LEVELS]
                rows.writerow([*numbers, *kinds, "yes" if float(found["disease"]) > 0 else "no"])
    known = [("--range", f"{column}={low}:{high}") for column, (low, high) in ranges.items()]
    known += [("--levels", f"{column}={levels}") for column, levels in {**LEVELS, "disease": "no,yes"}.items()]
    words = ["init", str(folder), "--target", "disease", *(word for pair in known for word in pair)]
    subprocess.run([*TACIT, *words], check=True, stdout=subprocess.DEVNULL)
    study = folder / "study.toml"
    study.write_text(study.read_text().replace("num_rounds = 30", f"num_rounds = {rounds}"), encoding="utf-8")
    return folder


def _measured(cell: str, missing: Sequence[float]) -> str:
    """A number's cell; empty where it was not measured."""
    return "" if cell == "?" or float(cell) in missing else cell


def simulated(study: Study, seeds: int) -> tuple[float, float]:
    """Mean and deviation over noise of the simulated test error, on the split that the silos hold."""
    import jax
    import numpy as np

    from tacit.silo import enrol
    from tacit.simulate.compiled import Seed, simulate_grid
    from tacit.studies.run import measured, pooled, prepare

    prepared = prepare(study.model_copy(update={"run": study.run.model_copy(update={"seeds": 1})}))
    federation = prepared.federations[0]
    silos = enrol([{k: v for k, v in silo.train.items() if k != "s"} for silo in federation.silos], prepared.names)
    objective = prepared.builder.problem.objective
    evaluation = {"test": pooled(federation, "test")}
    _, key = jax.random.split(jax.random.key(0))
    starts = [Seed(jax.random.key(1000 + i), objective.init(key), silos, evaluation) for i in range(seeds)]
    last = study.algorithm.num_rounds

    def build(**point: Any) -> Any:
        return prepared.builder.build(**prepared.plan.parameters, **point)

    measure = measured(objective)
    outcome = simulate_grid(build, {}, starts, who=prepared.who, measure=measure, measure_every=last)
    values = np.asarray(outcome.trace["test_error"])[:, 0, -1]
    return float(values.mean()), float(values.std(ddof=1))


def show_sights(trial: Trial, runs: Sequence[Path], console: Console) -> None:
    """What the server and the shufflers received, by kind."""
    places = {name: trial.homes[name] / "shuffler" / "received.bin" for name in trial.terms.shufflers}
    names = [f"server, {study.algorithm.channel}" for study in trial.studies]
    places |= {name: run / "received.bin" for name, run in zip(names, runs, strict=True)}
    meaning = {
        "message": "noisy means, private before they left",
        "masked": "masked sums: uniform numbers, of which only the sum over all silos can be read",
        "sealed": "parts of shares, sealed for the shufflers: opaque",
        "deposit": "one part of a silo's share: uniformly random to this shuffler",
        "collect": "the request to open a sum",
    }
    table = Table("party", "received", "how many", "bytes", "what it can read", title="what each party saw")
    for party, path in places.items():
        counts, sizes = Counter[str](), Counter[str]()
        for header, payload in frames_in(path):
            counts[header["type"]] += 1
            sizes[header["type"]] += len(payload)
        for kind in counts:
            table.add_row(party, kind, str(counts[kind]), str(sizes[kind]), meaning.get(kind, "public facts"))
    console.print(table)


if __name__ == "__main__":
    main()
