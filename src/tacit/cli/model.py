"""``tacit predict``, ``evaluate`` and ``export``: using the model of a bundle."""

from __future__ import annotations

import csv
import io
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tacit.cli import JsonObject, need_file, print_json, print_table
from tacit.errors import TacitError, unknown

if TYPE_CHECKING:
    from tacit.models import TrainedModel

Bundle = Annotated[
    str, typer.Argument(metavar="MODEL", help="A bundle, or a run folder that holds one; with --silo a model's name.")
]
Silo = Annotated[
    Path | None,
    typer.Option(
        metavar="SILO",
        help="A silo's folder, whose `tacit silo models` has MODEL by name; or the name of a silo that has a model of "
        "its own in MODEL.",
    ),
]
Schema = Annotated[
    Path | None, typer.Option(help="The silos' schema file, for the model of a deployed study without columns.")
]


def predict_command(
    bundle: Bundle,
    rows: Annotated[Path, typer.Argument(metavar="NEW.csv", help="A CSV file with the model's columns; no label.")],
    out: Annotated[Path | None, typer.Option(help="The CSV file to write; by default standard output.")] = None,
    proba: Annotated[bool, typer.Option("--proba", help="Also the probability of every class.")] = False,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="A column of the new rows to write beside predictions; may be repeated."),
    ] = None,
    silo: Silo = None,
    schema: Schema = None,
    as_json: JsonObject = False,
) -> None:
    """Predict the target of new rows, one line for each, in the target's own words or unit.

    Columns may stand in any order; what was done to cells that are missing, unknown or outside their range is said.
    Of survival it is the relative risk, beside the chance to be without the event at the end of each bin of time.

    Example: tacit predict runs/clinics-20260101-120000 new.csv --out predicted.csv --proba
    """
    if out is not None and not out.parent.is_dir():
        raise TacitError(f"--out: there is no folder {out.parent}; make it, or name a file in one that exists.")
    model = _model(bundle, rows, silo, schema)
    x, notes = model.encode(rows)
    outputs = model.outputs(x)
    found = model.predictions(outputs).tolist()
    likely = model.probabilities(outputs) if proba else None
    lives = model.survival(outputs) if model.survives else None
    classes = [str(name) for name in model.classes.tolist()]
    if as_json:
        shares = {} if likely is None else {"classes": classes, "probabilities": likely.tolist()}
        shares |= {} if lives is None else {"times": lives[0].tolist(), "survival": lives[1].tolist()}
        target = model.description.target.column
        print_json({"target": target, "records": len(found), "predictions": found, **shares, "notes": list(notes)})
        if out is None:
            return
    table = _kept(rows, keep or []) | {"prediction": [_short(one) for one in found]}
    if likely is not None:
        table |= {f"probability {name}": map(_short, likely[:, i].tolist()) for i, name in enumerate(classes)}
    if lives is not None:
        table |= {f"survival at {t:g}": map(_short, own.tolist()) for t, own in zip(lives[0], lives[1].T, strict=True)}
    lines = [table, *zip(*table.values(), strict=True)]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    if out is not None:
        out.write_text(text.getvalue(), encoding="utf-8")
    else:
        typer.echo(text.getvalue(), nl=False)
    _tell(notes, None if out is None else f"{len(found)} predictions in {out}.")


def _kept(rows: Path, names: list[str]) -> dict[str, Any]:
    """Columns of the new rows, as they stand there."""
    from tacit.models.rows import rows_of

    found = rows_of(rows)
    cells = {} if found is None else found.cells
    for name in names:
        if name not in cells:
            raise TacitError(f"--keep: {unknown('column', name, cells)}")
    return {name: cells[name] for name in names}


def _short(value: Any) -> Any:
    """A number to seven digits, which is what float32 holds."""
    return f"{value:.7g}" if isinstance(value, float) else value


def evaluate_command(
    bundle: Bundle,
    rows: Annotated[
        Path, typer.Argument(metavar="LABELLED.csv", help="A CSV file with the model's columns and target.")
    ],
    silo: Silo = None,
    schema: Schema = None,
    as_json: JsonObject = False,
) -> None:
    """Measure a model on labelled rows: here and exactly, so that no epsilon covers what it prints.

    Example: tacit evaluate runs/clinics-20260101-120000 labelled.csv
    """
    from tacit.models.rows import RowsWarning, labels_of, rows_of
    from tacit.models.scores import TITLES
    from tacit.models.trained import EXACT

    model = _model(bundle, rows, silo, schema)
    found, target = rows_of(rows), model.description.target
    if found is None or target.column not in found.cells:
        raise TacitError(
            f"{rows}: expected a column {target.column!r}, the label; add it, or use `tacit predict` for rows without."
        )
    labels_of(found.cells[target.column], target, found.place)  # a wrong one is told with its line
    x, notes = model.encode(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RowsWarning)  # its words are notes here
        metrics = model.evaluate(rows) if model.survives else model.evaluate(x, found.cells[target.column])
    if as_json:
        facts = {"target": target.column, "metrics": metrics, "private": False, "says": EXACT, "notes": list(notes)}
        print_json(facts)
        return
    table = Table("metric", "value")
    titles = {**TITLES, "majority_accuracy": "accuracy of one class for all", "mean_rmse": "RMSE of the mean for all"}
    for name, value in metrics.items():
        if not isinstance(value, dict | list):
            table.add_row(titles.get(name, name.replace("_", " ")), "–" if value is None else f"{value:.4g}")
    console = Console()
    console.print(f"{escape(target.column)} on {escape(str(rows))}", highlight=False, soft_wrap=True)
    print_table(table, console)
    console.print(escape(EXACT), highlight=False, soft_wrap=True)
    _tell(notes, None)


def export_command(
    bundle: Bundle,
    onnx: Annotated[Path, typer.Option(help="The ONNX file to write (extra onnx).")],
    silo: Silo = None,
) -> None:
    """Write a model as an ONNX graph from encoded features to predictions, for use without Tacit.

    Example: tacit export runs/clinics-20260101-120000 --onnx model.onnx
    """
    from tacit.models import export_onnx

    export_onnx(_loaded(bundle, silo, None), onnx)
    typer.echo(f"Wrote {onnx}: features that are encoded as model.json says, to predictions.")


def _model(bundle: str, rows: Path, silo: Path | None, schema: Path | None) -> TrainedModel:
    need_file(rows, "give a CSV file with a header line and one line per row")
    return _loaded(bundle, silo, schema)


def _loaded(bundle: str, silo: Path | None, schema: Path | None) -> TrainedModel:
    """A model by the path of its bundle, or by its name among those of a silo; the silo's own where it has one."""
    from tacit.models import load_model

    if silo is None or not silo.is_dir():
        model = load_model(Path(bundle), schema=schema)
        return model if silo is None else model.of(str(silo))
    from tacit.deploy.silo.models import find_model

    model = load_model(find_model(silo, bundle), schema=schema)
    return model.of(next(iter(model.personal))) if model.personal else model


def _tell(notes: tuple[str, ...], last: str | None) -> None:
    """What was done on the way, apart from what was asked for."""
    for line in (*(f"note: {note}" for note in notes), *([] if last is None else [last])):
        print(line, file=sys.stderr)
