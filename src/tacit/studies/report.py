"""One self-contained HTML page about a run: what was trained, who sees what, at what price, how well."""

from __future__ import annotations

import base64
import csv
import itertools
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, cast

import jinja2
import numpy as np

from tacit.algorithm import GUARANTEES, Channel
from tacit.counting.validated import MAIN, main_row, own_verdict
from tacit.counting.validated import verdict as gained_words
from tacit.errors import TacitError, counted
from tacit.models.scores import TITLES
from tacit.plans.catalogue import known_algorithms
from tacit.plans.spec import Study, load_study
from tacit.privacy import risk
from tacit.privacy.parties import parties
from tacit.privacy.risks import Risk
from tacit.studies.charts import Bar, bars, curves, number, trust_drawing
from tacit.studies.constant import constant_label, nothing_learnt
from tacit.studies.folder import NOT_PRIVATE, metrics_path, read_result, stages_of, unmeasured
from tacit.studies.plan import counts_on
from tacit.studies.stages import NO_NOISE

VALIDATION = "validation.json"
_FILES = ("result.json", "provenance.json", "preprocessing.json", "study.toml")
_FAIR = {
    "parity_violation": "Demographic parity: how far a group's rate of a prediction is from everybody's, at most",
    "parity_gap": "Demographic parity: the largest difference of that rate between two groups",
    "odds_gap": "Equalized odds: the largest difference between groups of a rate among records of the same class",
    "opportunity_gap": "Equal opportunity: the same among records of the favourable class alone",
    "divergence": "Chi-squared divergence between prediction and group, which the fairness term makes small",
}
_MANY = 12  # silos that fit on a page
_COLUMNS, _LETTERS = 10, 60  # of a table, and of its headings, that fit beside each other


def write_report(folder: Path, *, publish: bool = False) -> Path:
    """Write the report of a run folder and return its path.

    ``report.html`` lies with what was measured on records without noise, where there is such. ``published.html`` is for
    others: it has nothing of that, and says what it leaves out.
    """
    missing = [name for name in _FILES if not (folder / name).is_file()]
    if missing and (folder / "tuned.json").is_file():
        raise TacitError(
            f"{folder} is of `tacit tune`, which trains once for each candidate and has no report; tuned.json has the "
            "price, the candidates and the choice. `tacit run` on its study.toml would train, and spend, again."
        )
    if missing:
        cure = f"tacit run --resume {folder}" if stages_of(folder).is_dir() else "tacit run STUDY"
        raise TacitError(f"{folder} is not a complete run folder (no {missing[0]}); make one with `{cure}`.")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["number"] = number
    environment.filters["percent"] = lambda value, digits=1: "–" if value is None else f"{100 * value:.{digits}f}%"
    environment.filters["title"] = metric_title
    template = resources.files("tacit.studies") / "report.html.jinja"
    page = environment.from_string(template.read_text(encoding="utf-8")).render(**contents(folder, publish))
    home = folder / NOT_PRIVATE if (folder / NOT_PRIVATE).is_dir() else folder
    path = folder / "published.html" if publish else home / "report.html"
    path.write_text(_labelled(page), encoding="utf-8")
    return path


def _labelled(page: str) -> str:
    """The page with every cell of a table knowing its heading: a narrow screen shows rows as lists."""

    def table(found: re.Match[str]) -> str:
        heads = [re.sub(r"<[^>]+>", "", head).strip() for head in re.findall(r"<th[^>]*>(.*?)</th>", found[1], re.S)]
        rows = "".join(_row(row, heads) for row in re.split(r"(?=<tr)", found[1]))
        return f'<div class="scroll{" many" * (len(heads) > _COLUMNS)}">{rows}'

    return re.sub(r'<div class="scroll">(<table.*?</table>)', table, page, flags=re.S)


def _row(row: str, heads: list[str]) -> str:
    places = itertools.count()

    def cell(found: re.Match[str]) -> str:
        place = next(places)
        return f'<td data-head="{heads[place]}"{found[1]}>' if place < len(heads) else found[0]

    return re.sub(r"<td([^>]*)>", cell, row)


def contents(folder: Path, publish: bool = False) -> dict[str, Any]:
    """Everything that the page shows; to publish, nothing that was measured on records without noise."""
    result = unmeasured(_read(folder / "result.json")) if publish else read_result(folder)
    study = load_study(folder / "study.toml")
    channel = cast(Channel, result["channel"])
    silos = [_with_risk(silo) for silo in result["silos"]]
    priced = [silo for silo in silos if silo["epsilon"] is not None]
    worst = max(priced, key=lambda silo: silo["epsilon"], default=None)
    metrics, metric = result["metrics"], main_metric(result["metrics"])
    plain = [name for name in metrics if name.partition("_")[2] not in _FAIR and not name.endswith("_stationarity")]
    return {
        "result": result,
        "silos": silos,
        "worst": worst,
        "reading": Risk(**worst["risk"]).sentence if worst else None,
        "left": max((s["epsilon_without_shuffler"] for s in silos if s.get("epsilon_without_shuffler")), default=None),
        "many": len(silos) > _MANY,
        "metric": metric,
        "facts": _facts(study, result),
        "protected": _protected(study),
        "guarantee": GUARANTEES[channel],
        "parties": parties(channel, int(study.algorithm.own.get("local_steps", 1))),
        "counts_on": counts_on(study, len(silos)),
        "drawing": trust_drawing(channel, [silo["name"] for silo in silos]),
        "risks": _risk_chart(priced),
        "verdict": verdict(result, metric),
        "nothing": nothing_learnt(result, metric),
        "warnings": result.get("warnings", []),
        **_labels(result),
        "scores": _score_chart(result, metric),
        "tests": [name for name in plain if name.startswith("test_")],
        "others": [name for name in plain if not name.startswith("test_")],
        "charts": _charts(metrics_path(folder), metric, "train_loss") if metrics else [],
        "publish": publish,
        **score_tables(result),
        **_fairness(folder, metrics),
        "provenance": _provenance(_read(folder / "provenance.json")),
        "steps": _read(folder / "preprocessing.json"),
        "study": study,
        "study_text": (folder / "study.toml").read_text(encoding="utf-8"),
        **_findings(folder),
    }


def _validated(folder: Path) -> dict[str, Any] | None:
    """How the model does on records that silos have set aside, where that was asked."""
    path = folder / VALIDATION
    if not path.is_file():
        return None
    facts = _read(path)
    parts = [{"name": "all", "records": sum(s["records"] for s in facts["silos"]), **facts}, *facts["silos"]]
    measures, rows = _measured(parts, parts)
    compared = facts.get("own") and _measured(parts, [part["own"] for part in parts])
    more = [row for row in facts["numbers"] if row["group"] or row["cell"] or row["measure"] not in measures]
    unit = facts["unit"] and f" in {facts['unit']}"
    words = {"verdict": gained_words(facts), "own_verdict": own_verdict(facts), "in": unit or ""}
    return {**facts, "measures": measures, "rows": rows, "compared": compared, "more": more, **words}


def _measured(
    parts: Sequence[Mapping[str, Any]], found: Sequence[Mapping[str, Any] | None]
) -> tuple[list[str], list[dict[str, Any]]]:
    """What is measured of all silos, which come first, and a row for each part with what was found there."""
    measures = [name for name in MAIN if main_row((found[0] or {}).get("numbers") or (), name)]
    words = {True: "yes", False: "no", None: "not clear"}
    rows = [
        {
            "name": part["name"],
            "records": part["records"],
            "gained": words[own["gained"]] if own and own["numbers"] else "–",
            "numbers": [main_row(own["numbers"], name) for name in measures] if own and own["numbers"] else [],
        }
        for part, own in zip(parts, found, strict=True)
    ]
    return measures, rows


def _labels(result: dict[str, Any]) -> dict[str, str | None]:
    """What the baselines are called."""
    return {
        "constant_label": constant_label(result),
        "open_label": open_label(result),
        "converged_label": converged_label(result),
    }


def _fairness(folder: Path, metrics: dict[str, Any]) -> dict[str, Any]:
    """The notions of fairness that were measured, and a curve."""
    return {
        "fair": [(name, text) for name, text in _FAIR.items() if f"test_{name}" in metrics],
        "fair_charts": _charts(metrics_path(folder), "test_parity_violation") if metrics else [],
    }


def score_tables(result: dict[str, Any]) -> dict[str, Any]:
    """The scores of every model, and of the first by silo and by class."""
    scores = result.get("scores") or {}
    models = scores.get("models", {})
    names = {"private": "all silos, private", "not private": "all silos, not private"}
    names |= {"non_private": f"all silos, {open_label(result)}", "converged": f"all silos, {converged_label(result)}"}
    first: dict[str, Any] = next(iter(models.values()), {"all": {}, "silos": {}})
    told = [name for name in TITLES if name != "records" and name in first["all"]]
    classes = first["all"].get("classes", {})
    return {
        "score_names": [(name, TITLES[name]) for name in told],
        "score_models": [(names[model], rows["all"]) for model, rows in models.items()],
        "score_silos": list(first["silos"].items()),
        "score_classes": list(classes.items()),
        # Long names do not fit beside each other; of more classes every row is a list, with names.
        "by_number": len("".join(classes)) > _LETTERS and len(classes) < _COLUMNS,
        "confusion": first["all"].get("confusion"),
        "reliability": first["all"].get("reliability"),
        "score_target": scores.get("target"),
        "calibration": scores.get("calibration"),
    }


def _findings(folder: Path) -> dict[str, Any]:
    """What an audit of the run found, with its picture, and what a validation did."""
    audit, picture = folder / "audit.json", folder / "reconstruction.png"
    return {
        "audit": _read(audit) if audit.is_file() else None,
        "picture": base64.b64encode(picture.read_bytes()).decode() if picture.is_file() else None,
        "validation": _validated(folder),
    }


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _with_risk(silo: dict[str, Any]) -> dict[str, Any]:
    """A silo with its risk; where its schedule is not known, that of its epsilon and delta."""
    if silo["epsilon"] is None or silo["risk"] is not None:
        return silo
    return {**silo, "risk": vars(risk(epsilon=silo["epsilon"], delta=silo["delta"]))}


def _facts(study: Study, result: dict[str, Any]) -> list[tuple[str, str]]:
    section, objective = study.algorithm, study.objective
    records = [silo["records"] for silo in result["silos"]]
    layers = "-".join(str(width) for width in objective.hidden)
    batch = "all records" if section.batch_size is None else f"{section.batch_size} records ({section.scheme})"
    entry = known_algorithms().get(section.name)
    come = study.run.participants
    spread = f" ({min(records):,} to {max(records):,})" if len(records) > 1 else ""
    facts = [
        ("Who", f"{counted(len(records), 'silo')} with {sum(records):,} training records{spread}"),
        ("Data", study.data.name),
        ("Model", f"{objective.model}{f' ({layers} hidden)' if layers else ''}, {objective.loss or 'default'} loss"),
        ("Algorithm", section.name if entry is None else f"{section.name}: {entry.paper}"),
        ("Rounds", f"{section.num_rounds}, {batch} of a silo in each" + (f", {come} silos come" if come else "")),
    ]
    if study.privacy.private:
        facts.append(("Protected", f"{_protected(study)} of each record of each silo"))
    return facts


def _protected(study: Study) -> str:
    return "the sensitive attribute" if study.privacy.protects == "sensitive-attribute" else "every field"


Values = dict[str, float]  # a mean and its deviation; empty where nothing was measured


def verdict(result: dict[str, Any], metric: str) -> list[str]:
    """What noise costs, what clip and schedule cost, and whether working together paid: a sentence or two for each."""
    private = result["silos"][0]["epsilon"] is not None
    if not result["metrics"] or not result["baselines"]["non_private"]:
        return []
    title, mine, rounds, best = _compared(result, metric)
    found = [_noise_cost(mine, rounds, title)] if private else []
    if best:
        found.append(_schedule_cost(rounds, best, title, result["reference"]["rule"], private))
    if result.get("gains"):
        found.append(_gain(result["gains"], _words(metric), private))
    return found


def _compared(result: dict[str, Any], metric: str) -> tuple[str, Values, Values, Values]:
    """The metric's name; and its value of the model, of the same rounds without noise, and of the reference.

    A number to predict is told in its own unit.
    """
    scores, baselines = result.get("scores") or {}, result["baselines"]
    models = scores.get("models", {})
    if metric == "test_mse" and all("rmse" in rows["all"] for rows in models.values()) and models:
        mine = models.get("private") or models["not private"]
        others = (models.get(name) for name in ("non_private", "converged"))
        told = [mine["all"]["rmse"], *({} if rows is None else rows["all"]["rmse"] for rows in others)]
        return f"the RMSE of {scores['target']}", told[0], told[1] or told[0], told[2]
    best = baselines.get("converged") or {}
    return _words(metric), result["metrics"][metric], baselines["non_private"][metric], best.get(metric, {})


def _noise_cost(mine: dict[str, float], rounds: dict[str, float], title: str) -> str:
    """The cost in the metric; a negative one is no gain of privacy, but a schedule that could be better."""
    cost, spread = mine["mean"] - rounds["mean"], _spread(mine, rounds)
    values = number(mine["mean"]), number(rounds["mean"])
    if cost >= 0:
        return (
            f"Noise costs {number(cost, beside=mine['mean'])} of {title} here: {values[0]} with it, {values[1]} in the "
            f"same rounds without{spread}."
        )
    text = (
        f"Noise costs nothing that shows here: {title} is {values[0]} with it, and {values[1]} in the same rounds "
        f"without{spread}."
    )
    if -cost > max(mine["std"], rounds["std"]):
        text += " These rounds do better with noise than without: another step size or clip may lower both."
    return text


def _schedule_cost(rounds: dict[str, float], best: dict[str, float], title: str, rule: str, private: bool) -> str:
    """What these rounds cost, with their clip if they have one, beside training to convergence without privacy."""
    cost, spread = rounds["mean"] - best["mean"], _spread(rounds, best)
    until = f"trained on all records without privacy {rule}"
    what = "Clip and schedule cost" if private else "The schedule costs"
    values = number(rounds["mean"]), number(best["mean"])
    if cost >= 0:
        return (
            f"{what} {number(cost, beside=best['mean'])} of {title}: {values[0]} after these rounds without noise, "
            f"{values[1]} {until}{spread}."
        )
    return (
        f"{what} nothing that shows: {title} is {values[0]} after these rounds without noise, and {values[1]} "
        f"{until}{spread}; stopping early can help on records that were not trained on."
    )


def _spread(*values: dict[str, float]) -> str:
    deviation = max(value["std"] for value in values)
    return f" (one standard deviation over splits is {number(deviation)})" if deviation else ""


def _gain(gains: dict[str, Any], title: str, private: bool) -> str:
    """Which silos gained by training together, on their own test records."""
    better = [name for name, row in gains.items() if row["gain"]["mean"] > 0]
    model = "the private model of all silos" if private else "the model of all silos"
    worse = [name for name in gains if name not in better]
    names = f" Not better: {', '.join(worse)}." if 0 < len(worse) <= 5 else ""
    return (
        f"On its own test records, {model} has a lower {title.removeprefix('test ')} than the silo's own model, "
        f"trained alone to convergence without noise, at {len(better)} of {counted(len(gains), 'silo')}.{names}"
    )


def open_label(result: dict[str, Any]) -> str:
    """The name of the same rounds with their clip, without noise; released statistics keep their noise."""
    return f"{NO_NOISE}{_kept_noise(result)}"


def converged_label(result: dict[str, Any]) -> str:
    """The name of the reference: trained to convergence without privacy."""
    return f"without privacy{_kept_noise(result)}"


def _kept_noise(result: dict[str, Any]) -> str:
    priced = "statistics" in result["silos"][0]["noise_multiplier"]
    return " in training (statistics are private)" if priced else ""


def alone_label(name: str, private: bool) -> str:
    """The name of a silo that trains by itself to convergence: nothing leaves it, so nothing is noised."""
    return f"{name} alone{', no noise' * private}"


def main_metric(metrics: dict[str, Any]) -> str:
    """The test metric that people look at first."""
    return next((name for name in ("test_error", "test_mse") if name in metrics), "test_loss")


def metric_title(name: str) -> str:
    """The name of a metric as people say it.

    >>> metric_title("test_parity_gap")
    'Test parity gap'
    """
    words = _words(name)
    return words[:1].upper() + words[1:]


def _words(name: str) -> str:
    return name.replace("_", " ").replace("mse", "mean squared error")


def _risk_chart(silos: list[dict[str, Any]]) -> str:
    """The best accuracy of an attacker at each silo; of many silos, at the five that pay most."""
    shown = sorted(silos, key=lambda silo: -silo["risk"]["advantage"])[:5] if len(silos) > _MANY else silos
    rows = [Bar(silo["name"], (1 + silo["risk"]["advantage"]) / 2, look="private") for silo in shown]
    return bars(rows, name="Best accuracy of an attacker, from 50% (a coin)", start=0.5, end=1.0, percent=True)


def _score_chart(result: dict[str, Any], metric: str) -> str:
    """Private, not private and alone, side by side."""
    if not result["metrics"]:
        return ""
    private = result["silos"][0]["epsilon"] is not None
    label, baselines = "all silos, private" if private else "all silos, not private", result["baselines"]
    shown = [(label, result["metrics"], "private" if private else "open")]
    if private and baselines["non_private"]:
        shown.append((f"all silos, {open_label(result)}", baselines["non_private"], "open"))
    if baselines.get("converged"):
        shown.append((f"all silos, {converged_label(result)}", baselines["converged"], "converged"))
    shown += [
        (alone_label(name, private), values, "alone") for name, values in list(baselines["alone"].items())[:_MANY]
    ]
    constant = constant_label(result)
    if constant is not None and metric in baselines["constant"]:
        shown.append((constant, baselines["constant"], "constant"))
    rows = [Bar(label, values[metric]["mean"], values[metric]["std"], look) for label, values, look in shown]
    return bars(rows, name=f"{metric_title(metric)}, by who trains")


def _charts(path: Path, *metrics: str) -> list[tuple[str, str]]:
    """Titles and curves by round with error bars over seeds, private and not."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    charts = []
    for name in metrics:
        if not rows or name not in rows[0]:
            continue
        values: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for row in rows:
            values[row["run"]][int(row["round"])].append(float(row[name]))
        lines = {
            look: (np.asarray(list(values[label])), np.asarray(list(values[label].values())))
            for label, look in (("non_private", "open"), ("private", "private"))
            if label in values
        }
        charts.append((metric_title(name), curves(lines, across="round", up=metric_title(name))))
    return charts


def _provenance(stored: dict[str, Any]) -> list[tuple[str, str]]:
    versions = ", ".join(f"{name} {version}" for name, version in stored["versions"].items())
    rows = {**stored, "versions": versions, "devices": ", ".join(stored["devices"])}
    return [(name.replace("_", " "), str(value or "unknown")) for name, value in rows.items()]
