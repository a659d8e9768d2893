"""`tacit price` and `tacit calibrate`: what noise costs and what noise a budget needs, from numbers alone."""

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.console import Console
from rich.table import Column, Table

from tacit.cli import print_json, print_table
from tacit.privacy import (
    SILO_SAMPLING,
    Accountant,
    Event,
    Price,
    PricingError,
    Sampling,
    calibrate,
    capped,
    price,
    risk_of_price,
)
from tacit.privacy.allocation import batches_of

_MEANING = {
    "gdp": "Gaussian composition, as if every record were in every batch",
    "pld": "privacy loss distributions, rounded to the private side",
    "pure": "the sum of the local randomisers' epsilons",
    "rdp": "Renyi DP (a looser bound)",
    "zcdp": "zero-concentrated DP (a looser bound)",
    "none": "no noise, no privacy",
}

Records = Annotated[int, typer.Option(help="Records of the silo; this number is public.")]
Rounds = Annotated[int, typer.Option(help="Rounds of the plan.")]
Batch = Annotated[int | None, typer.Option(help="Records per round; all of them by default.")]
Scheme = Annotated[
    Sampling,
    typer.Option(help="How a batch is drawn: fresh and secret each round, or in one pass over the records."),
]
Delta = Annotated[float, typer.Option(help="Probability with which the guarantee may fail.")]
Participations = Annotated[
    int | None, typer.Option(help="Rounds the silo takes part in at most; sampling silos amplifies nothing.")
]
Capacity = Annotated[
    int | None, typer.Option(help="Poisson, allocation: physical batch limit; above it a random subset is kept.")
]
Method = Annotated[Accountant, typer.Option(help="tight, or a looser view that papers state.")]
Plot = Annotated[Path | None, typer.Option(help="Draw epsilon against rounds and against noise to this PNG file.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object; an infinite epsilon is null.")]


def price_command(
    records: Records,
    rounds: Rounds,
    noise_multiplier: Annotated[
        float, typer.Option(help="Noise standard deviation over the replace-one sensitivity 2C/batch.")
    ],
    batch: Batch = None,
    sampling: Scheme = "full",
    delta: Delta = 1e-6,
    max_participations: Participations = None,
    capacity: Capacity = None,
    accountant: Method = "tight",
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Price a plan: the epsilon that this much noise buys for each record.

    Example: tacit price --records 1234 --rounds 50 --batch 87 --sampling poisson --noise-multiplier 2.2
    """
    event = _event(records, rounds, batch, sampling, capacity, noise_multiplier)
    paid = price(capped([event], max_participations), delta=delta, accountant=accountant)
    _report(paid, max_participations, plot, as_json)


def calibrate_command(
    records: Records,
    rounds: Rounds,
    epsilon: Annotated[float, typer.Option(help="Privacy budget to stay within.")],
    batch: Batch = None,
    sampling: Scheme = "full",
    delta: Delta = 1e-6,
    max_participations: Participations = None,
    capacity: Capacity = None,
    accountant: Method = "tight",
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Calibrate a plan: the least noise that keeps each record within a budget.

    Example: tacit calibrate --records 1234 --rounds 50 --batch 87 --sampling poisson --epsilon 1
    """
    event = _event(records, rounds, batch, sampling, capacity, 1.0)
    plan = capped([event], max_participations)
    tuned = calibrate(plan, epsilon=epsilon, delta=delta, accountant=accountant)
    _report(price(tuned, delta=delta, accountant=accountant), max_participations, plot, as_json)


def _event(
    records: int, rounds: int, batch: int | None, sampling: Sampling, capacity: int | None, multiplier: float
) -> Event:
    if batch is None and sampling != "full":
        raise PricingError(f'Expected --batch for sampling "{sampling}"; give the records per round.')
    size = records if batch is None else batch
    return Event(
        kind="round",
        noise_multiplier=multiplier,
        count=rounds,
        records=records,
        batch=size,
        sampling=sampling,
        capacity=capacity,
        passes=_epochs(sampling, rounds, records, size),
    )


def _epochs(sampling: Sampling, rounds: int, records: int, batch: int) -> int:
    """How many epochs these rounds begin; one where there are none."""
    return max(1, -(-rounds // batches_of(max(records, 1), max(batch, 1)))) if sampling == "allocation" else 1


def _report(paid: Price, max_participations: int | None, plot: Path | None, as_json: bool) -> None:
    if plot is not None:
        draw(paid, plot)
    [event] = paid.events
    records = f"{event.records} records"
    if as_json:
        numbers = {"epsilon": paid.epsilon, "delta": paid.delta, "noise_multiplier": event.noise_multiplier}
        numbers["sigma_over_clip"] = _sigma_over_clip(event)
        print_json({**numbers, "accountant": paid.accountant, "events": [asdict(event)]})
        return
    meaning = "exact Gaussian composition" if paid.accountant == "gdp" and paid.exact else _MEANING[paid.accountant]
    rows = {
        "epsilon": f"{paid.epsilon:.6g}",
        "delta": f"{paid.delta:.3g}",
        "noise multiplier": f"{event.noise_multiplier:.6g} (sigma / replace-one sensitivity)",
        "sigma / clip": f"{_sigma_over_clip(event):.6g}",
        "releases": f"{event.count} of {event.batch} records, sampling {event.sampling}, out of {records}",
        "accountant": f"{paid.accountant}: {meaning}",
        "in plain words": risk_of_price(paid).sentence,
        "participation": None if max_participations is None else SILO_SAMPLING,
        "picture": None if plot is None else str(plot),
    }
    table = Table(Column(style="bold"), Column(overflow="fold"), title="Price per record", show_header=False)
    for name, text in rows.items():
        if text is not None:
            table.add_row(name, text)
    print_table(table, Console())


def _sigma_over_clip(event: Event) -> float:
    return event.noise_multiplier * 2 / event.batch


def draw(paid: Price, path: Path) -> None:
    """Draw epsilon against rounds and against noise for every sampling scheme, around this price.

    All schemes get the same noise per release, sigma / clip, so the curves show what sampling is worth. Mini-batches
    have the priced batch, or a tenth of the records if that is all of them.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    [event] = paid.events
    small = event.batch if event.batch < event.records else max(1, event.records // 10)
    sigma = _sigma_over_clip(event)
    rounds = sorted({max(1, round(event.count * 2.0**k)) for k in range(-3, 4)})
    noises = [sigma * 2.0 ** (k / 2) for k in range(-3, 4)]
    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    by_rounds, by_noise = figure.subplots(1, 2)
    for scheme in get_args(Sampling):
        batch = event.records if scheme == "full" else small
        for axes, ticks, variants in (
            (by_rounds, rounds, [(count, sigma) for count in rounds]),
            (by_noise, noises, [(event.count, noise) for noise in noises]),
        ):
            epsilons = [_epsilon(event, scheme, batch, count, noise, paid.delta) for count, noise in variants]
            if not all(map(math.isnan, epsilons)):
                axes.plot(ticks, epsilons, marker=".", label=f"{scheme}, K={batch}")
    by_rounds.set(xlabel="rounds", ylabel=f"epsilon at delta={paid.delta:g}", xscale="log", yscale="log")
    by_noise.set(xlabel="sigma / clip", xscale="log", yscale="log")
    for axes, ticks in ((by_rounds, rounds), (by_noise, noises)):
        axes.set_xticks(ticks, [f"{x:.3g}" for x in ticks])
        axes.xaxis.minorticks_off()
    by_rounds.set_title(f"{event.records} records, sigma / clip = {sigma:.3g}")
    by_noise.set_title(f"{event.records} records, {event.count} rounds")
    by_rounds.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _epsilon(event: Event, scheme: Sampling, batch: int, rounds: int, sigma: float, delta: float) -> float:
    """The price of a variant of an event; nan, which is not drawn, where one pass has too few records."""
    multiplier = sigma * batch / 2
    try:
        passes = _epochs(scheme, rounds, event.records, batch)
        drawn = replace(event, sampling=scheme, batch=batch, capacity=None, count=rounds, passes=passes)
        variant = replace(drawn, noise_multiplier=multiplier)
        epsilon = price([variant], delta=delta).epsilon
    except PricingError:
        return math.nan
    return epsilon if 0 < epsilon < math.inf else math.nan
