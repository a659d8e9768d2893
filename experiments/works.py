"""A few lines on whether private federated learning works, every number of them read from the committed results."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np

from experiments.folder import PROTOCOL, Data
from experiments.real_silos import SETS, compared


def lines(results: Path) -> list[str]:
    """One line for each result that is there."""
    makers = (_hospitals, _together, _silos, _digits, _images, _houses, _sums, _bounded, _fair, _attacked)
    found = [make(results) for make in makers]
    return [line for line in found if line]


def _data(results: Path, name: str, file: str = "data.json") -> Data | None:
    path = results / name / file
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _dated(said: str, data: Data) -> str:
    """A line of a study that has a newer protocol than these numbers says so."""
    return said if data.get("protocol") == PROTOCOL else f"{said} (Earlier numbers: the study is to be run again.)"


def _hospitals(results: Path) -> str | None:
    page = results / "heart-disease" / "README.md"
    if not page.exists():
        return None
    rows = dict(re.findall(r"\| (all four[^|]*?) \| ([\d.]+) ", page.read_text(encoding="utf-8")))
    private, plain = (next(v for k, v in rows.items() if word in k) for word in ("epsilon = 1", "without privacy"))
    said = f"Four hospitals with few patients: at epsilon 1 the test error is {private}"
    return f"{said}, in as many rounds without privacy {plain}."


def _together(results: Path) -> str | None:
    data = _data(results, "channels")
    if data is None:
        return None
    own = data["studies"]["heart-disease"]
    private, plain = (float(np.mean(scores)) for scores in (own["pairwise"]["1"]["test"], own["converged"]))
    return (
        "The same four with one noise that they share (pairwise sums) and few steps of adam: "
        f"{private:.3f} at epsilon 1; a model that has converged without privacy has {plain:.3f}."
    )


def _curve(cell: Data, line: str) -> tuple[dict[float, float], float]:
    """Test errors by epsilon and without privacy, of either protocol."""
    if "shown" in cell:
        return {row["epsilon"]: row["test_error"]["mean"] for row in cell["shown"][line]}, cell["floors"][line]
    rows = cell["curves"]["validation"][line]
    return {row["epsilon"]: row["test_error"]["mean"] for row in rows}, cell["not_private"][line]["test_error"]["mean"]


def _digits(results: Path) -> str | None:
    data = _data(results, "mnist-parity-mlp")
    if data is None:
        return None
    errors, floor = _curve(next(iter(data["settings"].values())), "MB-SGD")
    said = ", ".join(f"{errors[e]:.1f}% at epsilon {e:g}" for e in (1.0, 3.0, 18.0) if e in errors)
    return _dated(
        f"25 silos of two digits each, a small network: test error {said}, {floor:.1f}% without privacy.", data
    )


def _images(results: Path) -> str | None:
    data = _data(results, "cifar10-cnn")
    if data is None:
        return None
    if data.get("protocol") == PROTOCOL:
        errors, floor = _curve(next(iter(data["settings"].values())), "MB-SGD")
    else:
        first = next(iter(data["curves"]))
        errors = {row["epsilon"]: row["test_error"]["mean"] for row in data["curves"][first]["MB-SGD"]}
        floor = data["non_private"][first]["MB-SGD"]
    most = max(errors)
    said = (
        f"Harder: ten silos of one class of images each, test error {errors[most]:.0f}% at epsilon {most:g}; without "
        f"noise or clip {floor:.0f}% in as many rounds (clipping helps here)."
    )
    return _dated(said, data)


def _houses(results: Path) -> str | None:
    data = _data(results, "california-housing-mlp")
    if data is None:
        return None
    sums, plain = data["curves"]["MB-PSGM-FG, shuffled sum"], data["curves"]["not private"]["none"]["final"]
    least = min(sums, key=float)
    over = 100 * (sums[least]["final"]["train_loss"]["mean"] / plain["train_loss"]["mean"] - 1)
    said = f"Ten silos of houses through a shuffler: at epsilon {least} the training loss is {over:.0f}% above that "
    return _dated(f"{said}without privacy.", data)


def _sums(results: Path) -> str | None:
    data = _data(results, "sdp-against-central")
    if data is None:
        return None
    cells = [c["mean"] for own in data["ridge"]["algorithms"].values() for c in own["sdp_over_central"]]
    return (
        "Who need not be trusted decides the price: a sum that only shufflers open has "
        f"{min(cells):.2f} to {max(cells):.2f} times the excess error of a trusted server (ridge regression)."
    )


def _bounded(results: Path) -> str | None:
    data = _data(results, "mnist-mu2")
    if data is None:
        return None
    cells = {m: data["ours"][f"direct {m}"]["epsilon=1"]["accuracy"]["mean"] for m in (10, 100)}
    said = f"Records are what counts: 60,000 images at epsilon 1 give {cells[10]:.0f}% accuracy in 10 silos that trust "
    return _dated(f"{said}nobody, {cells[100]:.0f}% in 100.", data)


def _fair(results: Path) -> str | None:
    data = _data(results, "adult-fair")
    if data is None:
        return None
    cell = data["curves"]["demographic-parity"]["0.0"]["SteFFLe"]["1.0"]
    error, violation = ([float(np.mean(row)) for row in cell[k]] for k in ("error", "violation"))
    near = [(v, e) for e, v in zip(error, violation, strict=True) if e <= error[0] + 0.02]
    said = (
        f"Fair as well: on Adult at epsilon 1 for the sensitive attribute alone, parity violation falls from "
        f"{violation[0]:.2f} to {min(near)[0]:.2f} as the error rises from {error[0]:.3f} to {min(near)[1]:.3f}."
    )
    return _dated(said, data)


def _attacked(results: Path) -> str | None:
    """What the audit found, once it has attacked the door of a real silo; that of version 0.1 did not."""
    data = _data(results, "audit", "audit.json")
    if data is None or not any(row.get("path") == "door" for row in data["mechanisms"]):
        return None
    number = len(data["violations"]) if isinstance(data["violations"], list) else int(data["violations"])
    return f"The promises were attacked: {number or 'no'} violation{'s' if number > 1 else ''} of a price was found."


def _silos(results: Path) -> str | None:
    data = _data(results, "real-silos")
    if data is None:
        return None
    said = []
    for name, own in data["sets"].items():
        row, plain = own["rows"].get("direct 4"), own["references"]["same rounds"]
        if row is not None:
            without = f"{np.mean(plain):.3f} without privacy"
            said.append(f"{name} {SETS[name]['metric']} {np.mean(row['by_seed']):.3f} ({without}{_alone(name, own)})")
    return f"Real organisations at epsilon 4, trusting nobody: {'; '.join(said)}." if said else None


def _alone(name: str, own: Data) -> str:
    """The score of silos alone where a mean over silos is compared."""
    alone = compared(name, own)["alone"]
    return f", {np.mean(alone):.3f} each alone" if alone else ""
