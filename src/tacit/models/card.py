"""What a model is, in words: ten lines for a screen, and the model card of a bundle."""

from __future__ import annotations

from tacit.errors import counted
from tacit.models.description import Description
from tacit.objectives.losses import SURVIVAL

_SHOWN = 8  # names in a line of a summary


def summary(about: Description) -> list[str]:
    """A model in at most ten lines."""
    made, privacy, target = about.training, about.privacy, about.target
    names = list(about.columns) or list(about.features.names)
    shape = " x ".join(map(str, about.features.shape))
    lines = [
        f"TrainedModel: {target.column}, {about.task}",
        f"  model      {_model(about)}, loss {about.loss or 'own'}",
        f"  predicts   {_predicts(about)}",
        f"  features   {shape}" + (f", from {_some(names)}" if names else ", encoded by you"),
        f"  training   {made.algorithm}, {counted(made.rounds, 'round')}, seed {made.seed}"
        + (f", study {made.study}" if made.study else ""),
        f"  silos      {len(privacy.silos)}, {sum(s.records for s in privacy.silos)} training records",
        f"  price      {_price(about)}",
        f"  rests on   {privacy.guarantee}",
    ]
    if privacy.not_covered:
        lines.append(f"  NOT PRIVATE  {' '.join(privacy.not_covered)}")
    return lines


def _model(about: Description) -> str:
    return "of its author's own" if about.model is None else about.model.name


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _predicts(about: Description) -> str:
    target = about.target
    if about.task != "regression":
        return f"one of {_some(list(target.classes))}"
    unit = f" {target.unit}" if target.unit else ""
    if about.loss == SURVIVAL:
        until = "" if target.range is None else f" up to {target.range[1]:g}{unit}"
        return f"relative risk, and survival{until}; the event is {target.event or target.column}"
    return (
        "a number" if target.range is None else f"a number; trained on {target.range[0]:g} to {target.range[1]:g}{unit}"
    )


def _price(about: Description) -> str:
    priced = [silo for silo in about.privacy.silos if silo.epsilon is not None]
    if not priced:
        return "none: not private"
    worst = max(priced, key=lambda silo: silo.epsilon or 0.0)
    return f"epsilon at most {worst.epsilon:.3g} at delta {worst.delta:.1e} for each record of each silo"


def card(about: Description, personal: int = 0) -> str:
    """The model card, in Markdown; so many silos have models of their own in the bundle."""
    made, privacy, target = about.training, about.privacy, about.target
    parts = [f"# Model: {target.column}" + (f" ({made.study})" if made.study else "")]
    if privacy.not_covered:
        parts.append("**Not private:** " + " ".join(privacy.not_covered))
    parts.append(
        f"A {about.task} model ({_model(about)}) of `{target.column}`. It predicts {_predicts(about)}. Made by Tacit "
        f"{made.tacit} with {made.algorithm} in {counted(made.rounds, 'round')}"
        + (", simulated in one process." if made.simulated else ", among silos of their own.")
    )
    if personal:
        parts.append(
            f"{counted(personal, 'silo')} with a model of its own in `personal.safetensors`, each used by its name: "
            "`tacit predict FOLDER new.csv --silo NAME`. `model.safetensors` is for everybody else."
        )
    parts += ["## Use", _use(about), "## Price", _prices(about), "## What it takes", _takes(about)]
    if about.preprocessing:
        steps = "\n".join(f"- {step.name}: {step.detail}" for step in about.preprocessing)
        parts += ["## How records became features", steps]
    parts += ["## Limits", _limits(about)]
    return "\n\n".join(parts) + "\n"


def _use(about: Description) -> str:
    loading = "tacit.load_model(FOLDER)" if about.model else "tacit.load_model(FOLDER, model=YOUR_MODEL)"
    lines = ["```text", "tacit predict FOLDER new.csv", f"{loading}.predict(rows)", "```"]
    if not about.columns:
        lines.insert(0, "Rows are arrays of features that are encoded as they were for training.\n")
    return "\n".join(lines)


def _prices(about: Description) -> str:
    privacy = about.privacy
    what = "record" if privacy.protects == "record" else "record's sensitive attribute"
    rows = [f"| {s.name} | {s.records} | {_number(s.epsilon)} | {_number(s.delta)} |" for s in privacy.silos]
    table = "\n".join(["| silo | records | epsilon | delta |", "| --- | --- | --- | --- |", *rows])
    return f"What each {what} paid, channel `{privacy.channel}`: {privacy.guarantee}.\n\n{table}"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def _takes(about: Description) -> str:
    if not about.columns:
        return f"Arrays of features of shape (rows, {', '.join(map(str, about.features.shape))})."
    rows, ranges = [], _ranges(about)
    for name, column in about.columns.items():
        kind = ranges.get(name, "a number") if column.levels is None else f"one of {_some(list(column.levels))}"
        rows.append(f"| {name} | {kind}{f' ({column.unit})' if column.unit else ''} |")
    return "\n".join(["| column | values |", "| --- | --- |", *rows])


def _ranges(about: Description) -> dict[str, str]:
    """The range of every column that is clipped to one."""
    columns = [column for stage in about.encoding for column in stage.get("columns", ())]
    bounded = [column for column in columns if column["kind"] == "Bounded"]
    return {column["column"]: f"a number from {column['low']:g} to {column['high']:g}" for column in bounded}


def _limits(about: Description) -> str:
    lines = ["The price covers the records that trained this model, not the rows that it is used on."]
    if about.training.simulated and any(silo.epsilon is not None for silo in about.privacy.silos):
        lines.append("Noise of a simulation is float32 and does not withstand attacks on floating point.")
    lines.append("`tacit evaluate` measures it on labelled rows, exactly: no epsilon covers that.")
    return " ".join(lines)
