"""``tacit choose``: a few questions, the algorithms whose theorems apply, and a study that is ready to run."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tomli_w
import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from tacit.cli import Json, print_json, print_table
from tacit.cli.rehearse import shown
from tacit.errors import TacitError

if TYPE_CHECKING:
    from tacit.choosing import Candidate, FloorRow, Situation
    from tacit.choosing.candidates import Measure
    from tacit.plans.spec import PreprocessingSection

GOALS: dict[str, Measure] = {
    "population": "population excess risk",
    "empirical": "empirical excess risk",
    "gradient": "squared gradient",
}
Answers = dict[str, Any]
"""What is known so far, by the names of the options; None is still open."""


@dataclass(frozen=True)
class Own:
    """A study of one's own: what is kept of it, whether records were read without a price, and its statistics.

    ``practice`` are the settings that `tacit init` proposes, for a linear model and a channel whose noise is known.
    """

    tree: dict[str, Any]
    unpriced: bool
    preprocessing: PreprocessingSection | None
    practice: dict[str, Any] | None


@dataclass(frozen=True)
class Choice:
    """A situation, every algorithm held against it, what none can beat, the winner, and what was wanted."""

    situation: Situation
    rows: tuple[Candidate, ...]
    floors: tuple[FloorRow, ...]
    best: Candidate | None
    assumed: list[str]
    written: str | None
    goal: Measure | None
    can_tune: bool
    practice: dict[str, Any] | None = None

    @property
    def missed(self) -> str | None:
        """A sentence where the winner's promise is of another kind than was asked for."""
        if self.best is None or self.goal in (None, self.best.measure):
            return None
        return f"No promise on {self.goal} holds here: the winner's is on {self.best.measure}, which is another thing."


def somebody_answers() -> bool:
    """Whether a person is there to be asked."""
    return sys.stdin.isatty()


def choose_command(
    context: typer.Context,
    study: Annotated[
        str | None, typer.Option(help="Take records, model and what is known of them from this study.")
    ] = None,
    convex: Annotated[bool | None, typer.Option(help="Is each record's loss convex?")] = None,
    mu: Annotated[float | None, typer.Option(help="Strong convexity of each record's loss; 0 for none.")] = None,
    pl: Annotated[float | None, typer.Option(help="Proximal-PL constant, where there is one.")] = None,
    smooth: Annotated[bool | None, typer.Option(help="Is the loss smooth? Implied by --beta.")] = None,
    beta: Annotated[float | None, typer.Option(help="Smoothness of each record's loss.")] = None,
    squared: Annotated[
        bool | None, typer.Option(help="Is it half the squared error of a linear model, of targets in [0, 1]?")
    ] = None,
    heterogeneous: Annotated[
        bool | None, typer.Option("--heterogeneous/--alike", help="Do silos' records come from different sources?")
    ] = None,
    shuffler: Annotated[bool | None, typer.Option(help="Is there a shuffler that all trust?")] = None,
    trusted_server: Annotated[bool | None, typer.Option(help="Is the server trusted with raw messages?")] = None,
    peers: Annotated[
        bool | None, typer.Option(help="Do silos trust each other, but for one, to add noise (pairwise sums)?")
    ] = None,
    records: Annotated[
        str | None, typer.Option(help="Training records of each silo: one number for all, or 212,205,86,140.")
    ] = None,
    silos: Annotated[int | None, typer.Option(help="Number of silos, where one number of records is given.")] = None,
    dimension: Annotated[int | None, typer.Option("--dimension", "-d", help="Number of parameters.")] = None,
    lipschitz: Annotated[float | None, typer.Option(help="Bound on a record's gradient: the clip.")] = None,
    diameter: Annotated[
        float | None, typer.Option(help="Of a ball around the initial point that holds an optimum.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="Privacy budget of each record.")] = None,
    delta: Annotated[float | None, typer.Option(help="Probability with which the guarantee may fail.")] = None,
    fairness: Annotated[
        bool | None, typer.Option(help="Shall predictions not depend on a sensitive attribute?")
    ] = None,
    participants: Annotated[int | None, typer.Option(help="Silos that come to a round; all by default.")] = None,
    gap: Annotated[float | None, typer.Option(help="Excess risk of the initial point; by default L x radius.")] = None,
    max_rounds: Annotated[int, typer.Option(help="As many rounds as you are willing to make.")] = 1000,
    goal: Annotated[
        str | None, typer.Option(help="population, empirical or gradient: which promise decides, if there is one.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the winner's study to this TOML file.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that exists.")] = False,
    as_json: Json = False,
) -> None:
    """Choose an algorithm: which theorems apply, what they promise, and a study of the winner.

    Asks for what is missing if a person is there to answer; else it is assumed, and said.

    Example: tacit choose --convex --beta 0.5 --records 1000 --silos 20 -d 11 --epsilon 1 --out chosen.toml
    """
    from tacit.choosing import candidates, floors, winner
    from tacit.studies.bound import NO_BALL, left_for_training

    if out is not None and out.exists() and not force:
        raise TacitError(f"{out} exists; use --force to write over it, or another --out.")
    if goal is not None and goal not in GOALS:
        raise TacitError(f"Expected --goal to be one of {', '.join(GOALS)}, got {goal!r}.")
    answers = dict(context.params)
    own = None if study is None else _from_study(study, answers)
    assumed = _complete(answers, asking=somebody_answers() and not as_json)
    if study is not None:
        assumed = [f"{line} ({NO_BALL})" if line.startswith("diameter") else line for line in assumed]
    situation = _situation(answers)
    left = left_for_training(None if own is None else own.preprocessing, situation.epsilon, situation.delta)
    assumed += _consequences(situation, left)
    rows = candidates(replace(situation, epsilon=left))
    wanted = GOALS[goal] if goal else None
    best = winner(rows, wanted)
    written = None if out is None else _write(situation, best, None if own is None else own.tree, out)
    can_tune, practice = own is None or own.preprocessing is None, None if own is None else own.practice
    choice = Choice(situation, rows, floors(situation), best, assumed, written, wanted, can_tune, practice)
    unpriced = own is not None and own.unpriced
    if as_json:
        print_json(_as_data(choice) | {"preprocessing_private": unpriced})
        return
    _print_choice(choice)
    if unpriced:
        Console().print(
            f"[bold red]Not private:[/] preprocessing of {escape(str(study))} read private records and is not priced."
        )


def _from_study(name: str, answers: Answers) -> Own:
    """Fill in what a study's records and model tell; flags win."""
    import jax

    from tacit.objectives import start_risk
    from tacit.plans.assemble import problem_of
    from tacit.plans.spec import load_study
    from tacit.studies.bound import ball_and_strength
    from tacit.studies.federation import federation_of

    study = load_study(name)
    federation = federation_of(study, study.run.seed_list[0])
    problem = problem_of(study, federation)
    shapes = jax.eval_shape(problem.objective.init, jax.random.key(0))
    is_linear = problem.objective.model.linear is not None
    participants = study.run.participants
    epsilon = study.privacy.epsilon
    regulariser = ball_and_strength(study.objective.regulariser)
    known: dict[str, Any] = {
        "convex": is_linear,
        "mu": regulariser.strength if is_linear else None,
        "smooth": is_linear and problem.smoothness is not None,
        "squared": is_linear and problem.objective.cost.name == "squared",
        "beta": problem.smoothness,
        "lipschitz": problem.lipschitz or study.algorithm.clip_norm,
        "diameter": 2 * regulariser.radius if is_linear and regulariser.radius is not None else None,
        "records": ",".join(str(len(silo.train["y"])) for silo in federation.silos),
        "dimension": sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)),
        "gap": start_risk(problem.objective),
        "epsilon": min(epsilon) if isinstance(epsilon, tuple) else epsilon,
        "delta": study.privacy.delta,
        "participants": participants[0] if isinstance(participants, tuple) else participants,
    }
    answers.update({name: value for name, value in known.items() if answers[name] is None})
    tree = study.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    path = Path(name)
    if path.is_file() and "options" in tree["data"] and "folder" in tree["data"]["options"]:
        tree["data"]["options"]["folder"] = str(Path(tree["data"]["options"]["folder"]).resolve())
    kept = {key: value for key, value in tree.items() if key not in ("algorithm", "baseline")}
    return Own(kept, federation.touches_private_data, study.preprocessing, _practice(study, federation))


def _practice(study: Any, federation: Any) -> dict[str, Any] | None:
    """What `tacit init` would propose for the study's records, where it has a proposal."""
    from tacit.studies.starting import settings_for

    try:
        return settings_for(study, federation, [len(silo.train["y"]) for silo in federation.silos])._asdict()
    except TacitError:
        return None


def _usual_diameter(answers: Answers) -> float:
    """A linear model of features of norm one, as studies have them, often needs weights of about ten."""
    return 20.0 if answers["study"] is not None and answers["convex"] else 2.0


def _complete(answers: Answers, *, asking: bool) -> list[str]:
    """Ask for, or assume, whatever is open; what must be known raises."""
    assumed: list[str] = []

    def settle(name: str, question: str, default: Any, needed: bool = False) -> None:
        if answers[name] is not None:
            return
        flag = name.replace("_", "-")
        if asking and isinstance(default, bool):
            answers[name] = typer.confirm(question, default=default)
        elif asking:
            answers[name] = typer.prompt(question, default=default, type=type(default))
        elif needed:
            raise TacitError(f"Expected --{flag}: {question}; give it, or --study to read it from a study.")
        else:
            answers[name] = default
            assumed.extend([f"{flag} = {default}"] if default else [])

    if answers["beta"] is not None or answers["fairness"]:
        answers["smooth"] = True
    settle("convex", "Is each record's loss convex (logistic, squared, hinge on a linear model)?", True, needed=True)
    if answers["convex"]:
        settle("mu", "Strong convexity of each record's loss (0: none)", 0.0)
    settle("smooth", "Is each record's loss smooth?", True)
    if answers["smooth"]:
        settle("beta", "Its smoothness beta (0.25 x squared norm of a record for the logistic loss)", 0.5)
    # Asked of nobody: a study says it, and so may a flag.
    answers["squared"] = bool(answers["squared"])
    settle("heterogeneous", "Do silos' records come from different sources?", True)
    settle("shuffler", "Is there a shuffler that all trust?", False)
    settle("trusted_server", "Is the server trusted with messages without noise?", False)
    settle("peers", "Do silos trust each other, but for one, to add their shares of the noise?", False)
    settle("fairness", "Shall predictions not depend on a sensitive attribute?", False)
    settle("records", "Training records of each silo (one number, or 212,205,86,140)", "1000", needed=True)
    if "," not in answers["records"]:
        settle("silos", "Number of silos", 4, needed=True)
    settle("dimension", "Number of parameters", 11, needed=True)
    settle("lipschitz", "Bound L on the gradient of a record's loss", _usual_lipschitz(answers))
    settle("diameter", "Diameter of a ball around the initial point that holds an optimum", _usual_diameter(answers))
    settle("epsilon", "Privacy budget epsilon of each record", 1.0, needed=True)
    settle("delta", "delta", 1e-6)
    return assumed


def _usual_lipschitz(answers: Answers) -> float:
    """L of the logistic loss of a linear model that is as smooth as said; of the hinge loss with an intercept."""
    if not answers["convex"]:
        return 1.0
    beta = (answers["smooth"] and answers["beta"]) or 0.0
    exact = 2 * math.sqrt(beta) if beta > 0 else math.sqrt(2)
    return math.ceil(1e4 * exact - 1e-6) / 1e4


def _situation(answers: Answers) -> Situation:
    """What was answered; the squared norm that makes losses strongly convex counts as a part of each of them."""
    from tacit.choosing import Situation

    mu, diameter = answers["mu"] or 0.0, answers["diameter"]
    smooth = answers["smooth"] and answers["beta"] is not None
    given = {field.name: answers[field.name] for field in fields(Situation) if field.name in answers}
    return Situation(
        **given | {"lipschitz": answers["lipschitz"] + mu * diameter / 2},
        strong_convexity=mu,
        smoothness=answers["beta"] + mu if smooth else None,
        sizes=_sizes(answers["records"], answers["silos"]),
    )


def _consequences(situation: Situation, left: float) -> list[str]:
    """What follows from the answers without having been said; ``left`` is the epsilon of training."""
    lines, mu = [], situation.strong_convexity
    if mu > 0:
        beta = "" if situation.smoothness is None else f" and beta {situation.smoothness:g}"
        lines.append(
            f"objective = the study adds squared-l2:{mu:g}, which makes it strongly convex; with it L is "
            f"{situation.lipschitz:.5g}{beta}"
        )
    if left < situation.epsilon:
        lines.append(f"epsilon of training = {left:.4g}, which private statistics leave of {situation.epsilon:g}")
    return lines


def _sizes(text: str, silos: int | None) -> tuple[int, ...]:
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise TacitError(
            f"Expected --records as whole numbers, such as 1000 or 212,205,86,140, got {text!r}."
        ) from None
    if len(sizes) == 1:
        return sizes * (silos or 1)
    if silos not in (None, len(sizes)):
        raise TacitError(f"Expected --silos {len(sizes)}, as --records has, got {silos}; leave --silos out.")
    return sizes


def _write(situation: Situation, best: Candidate | None, own: dict[str, Any] | None, out: Path) -> str:
    """Write the winner's study, checked: it is assembled and priced as `tacit run` would."""
    from tacit.choosing import study_for
    from tacit.plans.spec import parse_study
    from tacit.studies.run import prepare

    if best is None:
        raise TacitError("No theorem applies, so there is no study to write; change the answers, see the reasons.")
    text = tomli_w.dumps(study_for(situation, best, own))
    text = re.sub(r"\[\n((?:    [^\n]*,\n)+)\]", lambda m: "[" + " ".join(m[1].split()).rstrip(",") + "]", text)
    prepare(parse_study(text))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(f"# Written by tacit choose: {best.source}.\n{text}", encoding="utf-8")
    return str(out)


def _as_data(choice: Choice) -> dict[str, Any]:
    same = ("algorithm", "applies", "reasons", "source", "channel", "measure", "bound", "rate", "rounds")
    rows = [
        {name: getattr(c, name) for name in same}
        | {"channel": c.channel if c.applies else None}
        | {"conditions_that_fail": c.failed, "sentence": c.sentence or None}
        for c in choice.rows
    ]
    return {
        "silos": choice.situation.silos,
        "records": choice.situation.sizes,
        "assumed": choice.assumed,
        "candidates": rows,
        "floors": [asdict(row) for row in choice.floors],
        "winner": None if choice.best is None else choice.best.algorithm,
        "goal_missed": choice.missed,
        "study": choice.written,
        "practice": choice.practice,
    }


def _print_choice(choice: Choice) -> None:
    """The theorems that apply, those that do not and why, what was assumed, and the winner."""
    console = Console()
    _print_theorems(choice, console)
    others = Table(Column("algorithm", no_wrap=True), "why not", title="theorems that do not apply")
    for c in choice.rows:
        if not c.applies:
            others.add_row(c.algorithm, escape("; ".join(c.reasons)))
    if others.row_count:
        print_table(others, console)
    console.print(
        f"At the smallest silo, {choice.situation.records} records. Bounds are on population or empirical excess risk, "
        "or on the squared gradient. A bound has all its constants; a rate has its constant set to one and compares, "
        "but promises nothing."
    )
    _print_floors(choice, console)
    for line in choice.assumed:
        console.print(f"assumed  {line}", highlight=False)
    _print_winner(choice, console)


def _print_theorems(choice: Choice, console: Console) -> None:
    from tacit.theory import conditions_text

    headings = ("algorithm", "channel", "bounds", "bound", "rate", "rounds")
    # Narrow enough for 80 columns, with the longest names.
    table = Table(*(Column(name, no_wrap=True) for name in headings), box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.title = "theorems that apply"
    short = {measure: goal for goal, measure in GOALS.items()}
    failures = []
    for c in choice.rows:
        if c.applies:
            name = f"[bold green]{c.algorithm}[/]" if c is choice.best else c.algorithm
            measure = "" if c.measure is None else short[c.measure]
            promise = ("" if value is None else f"{value:.3g}" for value in (c.bound, c.rate))
            table.add_row(name, c.channel, measure, *promise, str(c.rounds))
            failures += [f"{c.algorithm}: {conditions_text(c.failed)}"] if c.failed else []
    if table.row_count:
        print_table(table, console)
    for line in failures:
        console.print(escape(line), highlight=False)


def _print_floors(choice: Choice, console: Console) -> None:
    """What no protocol beats, or why there is no such number."""
    reasons = dict.fromkeys(reason for row in choice.floors for reason in row.reasons)
    if reasons:
        console.print(escape(f"No floor: {'; '.join(reasons)}."), highlight=False)
        return
    short = {measure: goal for goal, measure in GOALS.items()}
    headings = ("bounds", "of protocols with", "floor", "limited by")
    table = Table(*(Column(name, no_wrap=True) for name in headings), box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.title = "what no protocol beats for every such loss, however many its rounds"
    for row in choice.floors:
        table.add_row(short[row.measure], row.claim, f"{row.value:.3g}", row.limited_by)
    print_table(table, console)
    trust = "which may trust somebody" if choice.floors[0].trusts else "without trust in anybody"
    console.print(f"Floors of protocols {trust}, with all constants: {choice.floors[0].source}.", highlight=False)


def _print_winner(choice: Choice, console: Console) -> None:
    best, written = choice.best, choice.written
    if best is None:
        console.print("[bold red]No theorem applies.[/] See the reasons above.")
        return
    from tacit.theory import conditions_text

    console.print(f"Winner: [bold green]{best.algorithm}[/] ({best.source}), {best.rounds} rounds.")
    console.print(escape(best.sentence or conditions_text(best.failed)))
    if choice.missed is not None:
        console.print(f"[bold red]{choice.missed}[/]")
    if best.failed:
        console.print(
            "More records or silos, a larger epsilon, or fewer parameters would help; practice is often better than "
            "theory."
        )
    if choice.practice is not None:
        settings = ", ".join(f"{name} = {shown(value)}" for name, value in choice.practice.items())
        console.print(f"In practice mb-sgd starts from {settings}, as tacit init has it.", highlight=False)
    if written is None:
        console.print("A study of it: add --out FILE.toml")
        return
    console.print(f"Wrote {written}. Next: tacit plan {written}; tacit run {written}", highlight=False)
    step = best.parameters.get("step_size")
    if choice.can_tune and isinstance(step, int | float):
        longer = [float(f"{step * factor:.3g}") for factor in (1, 10, 100)]
        console.print(
            "Its step is the theorem's, safe for the worst records. This looks for a better one within the budget: "
            f'tacit tune {written} --grid "algorithm.step_size={longer}"',
            markup=False,
            highlight=False,
        )
