"""One self-contained HTML page about a run: what was trained, at what price, how well."""

from __future__ import annotations

import base64
import csv
import io
import json
from collections import defaultdict
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from tacit.errors import TacitError

_FILES = ("result.json", "provenance.json", "preprocessing.json", "study.toml", "metrics.csv")


def write_report(folder: Path) -> Path:
    """Write ``report.html`` into a run folder and return its path."""
    missing = [name for name in _FILES if not (folder / name).is_file()]
    if missing:
        raise TacitError(f"{folder} is not a complete run folder (no {missing[0]}); make one with `tacit run STUDY`.")
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters["number"] = lambda value, digits=3: "–" if value is None else f"{value:.{digits}f}"
    template = resources.files("tacit.studies") / "report.html.jinja"
    page = environment.from_string(template.read_text(encoding="utf-8")).render(
        result=result,
        metric=main_metric(result["metrics"]),
        provenance=json.loads((folder / "provenance.json").read_text(encoding="utf-8")),
        steps=json.loads((folder / "preprocessing.json").read_text(encoding="utf-8")),
        study=(folder / "study.toml").read_text(encoding="utf-8"),
        audit=_read_if_there(folder / "audit.json"),
        picture=_embedded(folder / "reconstruction.png"),
        charts=[(title, _chart(folder / "metrics.csv", name)) for title, name in _chart_names(result["metrics"])]
        if result["metrics"]
        else [],
    )
    path = folder / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


def _read_if_there(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _embedded(path: Path) -> str | None:
    return base64.b64encode(path.read_bytes()).decode() if path.is_file() else None


def main_metric(metrics: dict[str, Any]) -> str:
    """The test metric that people look at first."""
    return next((name for name in ("test_error", "test_mse") if name in metrics), "test_loss")


def _chart_names(metrics: dict[str, Any]) -> list[tuple[str, str]]:
    main = main_metric(metrics)
    return [(main.replace("_", " ").capitalize(), main), ("Training loss", "train_loss")]


def _chart(path: Path, metric: str) -> str:
    """An SVG of one metric against rounds, mean and one standard deviation over seeds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    curves: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            curves[row["run"]][int(row["round"])].append(float(row[metric]))
    figure, axes = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
    for (name, curve), colour in zip(sorted(curves.items()), ("#888888", "#1a73c8"), strict=False):
        rounds = np.asarray(sorted(curve))
        values = np.asarray([curve[r] for r in rounds])
        mean, std = values.mean(axis=1), values.std(axis=1)
        axes.plot(rounds, mean, color=colour, label=name.replace("_", "-"))
        axes.fill_between(rounds, mean - std, mean + std, color=colour, alpha=0.18, linewidth=0)
    axes.set_xlabel("round")
    axes.set_ylabel(metric.replace("_", " "))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    plt.close(figure)
    svg = text.getvalue()
    return svg[svg.index("<svg") :]
