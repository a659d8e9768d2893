"""``make consortium``: three studies among four hospitals on one machine, and what each party saw of them."""

from __future__ import annotations

import argparse
import io
import json
import signal
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomli_w
from rich.console import Console
from rich.table import Table

from experiments.parties import Consortium, Silo
from tacit.algorithm import SHUFFLED_CHANNELS
from tacit.data import load
from tacit.data.heart_disease import HOSPITALS
from tacit.deploy.flower.watch import follow
from tacit.deploy.wire import read_frame
from tacit.plans.spec import Study, load_study
from tacit.studies.folder import new_folder, write_study


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
        consortium = Consortium(Path(root) / "c", [hospital(name) for name in HOSPITALS])
        try:
            _start(consortium, console)
            for channel in ("direct", "pairwise", "shuffled-sum"):
                study = demo_study(channel, chosen.rounds)
                console.rule(f"{study.name}: {study.title}")
                folder = train(consortium, study, chosen.out, console)
                show_result(folder, study, chosen.simulations, console)
            show_ledgers(consortium, console)
            show_sights(consortium, chosen.out, console)
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        finally:
            console.print("Stopping everything.")
            _undisturbed(consortium.stop)
    console.print(f"Stopped. Run folders with reports lie in {chosen.out}.")


def _undisturbed(act: Any) -> None:
    """Do something to its end, whatever keys are pressed."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    act()


def hospital(name: str) -> Silo:
    """A hospital of the heart-disease data that ships with Tacit."""
    [records] = [silo.train for silo in load("heart-disease").silos if silo.name == name]
    own = {column: records[column] for column in ("x", "y")}
    return Silo(name, {"file": "records.npz", "task": "binary", "classes": 2}, records=own)


def demo_study(channel: str, rounds: int) -> Study:
    """The heart-disease study with few rounds, through one of the channels."""
    own = [f"algorithm.num_rounds={rounds}", f"algorithm.channel={channel}", f"name=heart-disease-{channel}"]
    return load_study("heart-disease", own)


def _start(consortium: Consortium, console: Console) -> None:
    console.print("Starting four silo daemons, two shufflers, a SuperLink and four nodes.")
    consortium.start_all()


def train(consortium: Consortium, study: Study, out: Path, console: Console, **changes: Any) -> Path:
    """Run a study over the consortium and return its run folder."""
    folder = new_folder(out, study).resolve()
    write_study(folder, study)
    shuffled = study.algorithm.channel in SHUFFLED_CHANNELS
    terms = {
        "silos": len(consortium.silos),
        "folder": str(folder),
        "round_seconds": 120.0,
        "patience": 300.0,
        "evaluate": True,
        "record": True,
        "shufflers": consortium.shuffler_entries() if shuffled else [],
        "command": "python -m experiments.consortium",
        **consortium.proposer_entries,
        **changes,
    }
    (folder / "deployment.toml").write_text(tomli_w.dumps(terms), encoding="utf-8")
    follow(folder, consortium.control, console, consortium.check)
    return folder


def show_result(folder: Path, study: Study, seeds: int, console: Console) -> None:
    """The deployed result beside simulations of the same study, with other noise."""
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    rounds = [row["seconds"] for row in result["deployment"]["rounds"]]
    found = result["metrics"]["test_error"]["mean"]
    line = f"test error {found:.3f}, {sum(rounds) / len(rounds):.1f} s a round"
    if seeds:
        mean, std = simulated(study, seeds)
        apart = abs(found - mean) / max(std, 1e-9)
        line += f"; simulated {mean:.3f} ± {std:.3f} over {seeds} seeds of the noise ({apart:.1f} deviations apart)"
    console.print(line)


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


def show_ledgers(consortium: Consortium, console: Console) -> None:
    """What every silo has spent, from its own books."""
    from tacit.cli.books import account_of

    table = Table(
        "silo", "study", "answers", "own epsilon", "of the account", "account left", title="the silos' ledgers"
    )
    for silo in consortium.silos:
        found = account_of(consortium.folder(silo.name))
        for i, row in enumerate(found["studies"]):
            left = f"{100 * found['account']['left_share']:.1f}%" if i == len(found["studies"]) - 1 else ""
            name = silo.name if i == 0 else ""
            prices = f"{row['own_epsilon']:.3f}", f"{100 * row['takes_share']:.1f}%"
            table.add_row(name, row["study"][:12], str(row["answers"]), *prices, left)
    console.print(table)


def frames_in(path: Path) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Header and payload of every frame that was kept in a file."""
    stream = io.BytesIO(path.read_bytes()) if path.exists() else io.BytesIO()
    while (found := read_frame(stream.read)) is not None:
        yield json.loads(found[0]), found[1]


def show_sights(consortium: Consortium, out: Path, console: Console) -> None:
    """What the server and the shufflers received, by kind."""
    places = {f"shuffler {n}": consortium.folder(f"shuffler-{n}") / "received.bin" for n in consortium.shufflers}
    latest = sorted(out.glob("heart-disease-*/received.bin"), key=lambda path: path.stat().st_mtime)[-3:]
    places |= {f"server, {path.parent.name}": path for path in latest}
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
