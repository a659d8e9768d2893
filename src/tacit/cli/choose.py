"""``tacit choose``: a few questions, the algorithms whose theorems apply, and a study that is ready to run."""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import tomli_w
import typer
from rich.console import Console
from rich.markup import escape

from tacit.cli.choice import GOALS, Choice, print_choice
from tacit.errors import TacitError

if TYPE_CHECKING:
    from tacit.choosing import Candidate, Situation
    from tacit.plans.spec import PreprocessingSection


def somebody_answers() -> bool:
    """Whether a person is there to be asked."""
    return sys.stdin.isatty()


@dataclass
class Answers:
    """What is known so far; ``None`` is still open."""

    convex: bool | None
    mu: float | None
    pl: float | None
    beta: float | None
    smooth: bool | None
    heterogeneous: bool | None
    shuffler: bool | None
    trusted_server: bool | None
    records: str | None
    silos: int | None
    dimension: int | None
    lipschitz: float | None
    diameter: float | None
    epsilon: float | None
    delta: float | None
    fairness: bool | None
    participants: int | None
    gap: float | None


def choose_command(
    study: Annotated[
        str | None, typer.Option(help="Take records, model and what is known of them from this study.")
    ] = None,
    convex: Annotated[bool | None, typer.Option(help="Is each record's loss convex?")] = None,
    mu: Annotated[float | None, typer.Option(help="Strong convexity of each record's loss; 0 for none.")] = None,
    pl: Annotated[float | None, typer.Option(help="Proximal-PL constant, where there is one.")] = None,
    smooth: Annotated[bool | None, typer.Option(help="Is the loss smooth? Implied by --beta.")] = None,
    beta: Annotated[float | None, typer.Option(help="Smoothness of each record's loss.")] = None,
    heterogeneous: Annotated[
        bool | None, typer.Option("--heterogeneous/--alike", help="Do silos' records come from different sources?")
    ] = None,
    shuffler: Annotated[bool | None, typer.Option(help="Is there a shuffler that all trust?")] = None,
    trusted_server: Annotated[bool | None, typer.Option(help="Is the server trusted with raw messages?")] = None,
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
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Choose an algorithm: which theorems apply, what they promise, and a study of the winner.

    Asks for what is missing if a person is there to answer; else it is assumed, and said.

    Example: tacit choose --convex --beta 0.5 --records 1000 --silos 20 -d 11 --epsilon 1 --out chosen.toml
    """
    from tacit.choosing import candidates, winner

    if out is not None and out.exists() and not force:
        raise TacitError(f"{out} exists; use --force to write over it, or another --out.")
    if goal is not None and goal not in GOALS:
        raise TacitError(f"Expected --goal to be one of {', '.join(GOALS)}, got {goal!r}.")
    answers = Answers(
        convex, mu, pl, beta, smooth, heterogeneous, shuffler, trusted_server, records, silos, dimension, lipschitz,
        diameter, epsilon, delta, fairness, participants, gap,
    )  # fmt: skip
    own = None if study is None else _from_study(study, answers)
    assumed = _complete(answers, asking=somebody_answers() and not as_json)
    if study is not None:
        assumed = [f"{line} ({_no_ball()})" if line.startswith("diameter") else line for line in assumed]
    situation = _situation(answers, max_rounds)
    for_theorems = _for_theorems(situation, own)
    assumed += _consequences(situation, for_theorems.epsilon)
    found = candidates(for_theorems)
    wanted = GOALS[goal] if goal else None
    best = winner(found, wanted)
    written = None if out is None else _write(situation, best, None if own is None else own.tree, out)
    told = Choice(situation, found, best, assumed, written, wanted, can_tune=own is None or own.preprocessing is None)
    unpriced = own is not None and own.unpriced
    if as_json:
        typer.echo(json.dumps(_as_data(told) | {"preprocessing_private": unpriced}))
        return
    print_choice(told)
    if unpriced:
        Console().print(
            f"[bold red]Not private:[/] preprocessing of {escape(str(study))} read private records and is not priced."
        )


def _no_ball() -> str:
    """In the words of `tacit plan`, which has no bound then."""
    from tacit.studies.bound import NO_BALL

    return NO_BALL


class Own(NamedTuple):
    """A study of one's own: what is kept of it, whether records were read without a price, and its statistics."""

    tree: dict[str, Any]
    unpriced: bool
    preprocessing: PreprocessingSection | None


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
    for field, value in known.items():
        if getattr(answers, field) is None and value is not None:
            setattr(answers, field, value)
    tree = study.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    path = Path(name)
    if path.is_file() and "options" in tree["data"] and "folder" in tree["data"]["options"]:
        tree["data"]["options"]["folder"] = str(Path(tree["data"]["options"]["folder"]).resolve())
    kept = {key: value for key, value in tree.items() if key not in ("algorithm", "baseline")}
    return Own(kept, federation.touches_private_data, study.preprocessing)


def _complete(answers: Answers, *, asking: bool) -> list[str]:
    """Ask for, or assume, whatever is open; what must be known raises."""
    assumed: list[str] = []

    def settle(field: str, question: str, default: Any, needed: bool = False) -> None:
        if getattr(answers, field) is not None:
            return
        if asking:
            kind = type(default)
            is_yes_or_no = kind is bool
            setattr(
                answers,
                field,
                typer.confirm(question, default=default)
                if is_yes_or_no
                else typer.prompt(question, default=default, type=kind),
            )
            return
        flag = field.replace("_", "-")
        if needed:
            raise TacitError(f"Expected --{flag}: {question}; give it, or --study to read it from a study.")
        setattr(answers, field, default)
        if default not in (False, None, 0.0):
            assumed.append(f"{flag} = {default}")

    if answers.beta is not None or answers.fairness:
        answers.smooth = True
    settle("convex", "Is each record's loss convex (logistic, squared, hinge on a linear model)?", True, needed=True)
    if answers.convex:
        settle("mu", "Strong convexity of each record's loss (0: none)", 0.0)
    settle("smooth", "Is each record's loss smooth?", True)
    if answers.smooth:
        settle("beta", "Its smoothness beta (0.25 x squared norm of a record for the logistic loss)", 0.5)
    settle("heterogeneous", "Do silos' records come from different sources?", True)
    settle("shuffler", "Is there a shuffler that all trust?", False)
    settle("trusted_server", "Is the server trusted with messages without noise?", False)
    settle("fairness", "Shall predictions not depend on a sensitive attribute?", False)
    settle("records", "Training records of each silo (one number, or 212,205,86,140)", "1000", needed=True)
    if "," not in str(answers.records):
        settle("silos", "Number of silos", 4, needed=True)
    settle("dimension", "Number of parameters", 11, needed=True)
    settle("lipschitz", "Bound L on the gradient of a record's loss", _usual_lipschitz(answers))
    settle("diameter", "Diameter of a ball around the initial point that holds an optimum", 2.0)
    settle("epsilon", "Privacy budget epsilon of each record", 1.0, needed=True)
    settle("delta", "delta", 1e-6)
    return assumed


def _usual_lipschitz(answers: Answers) -> float:
    """L of the logistic loss of a linear model that is as smooth as said; of the hinge loss with an intercept."""
    if not answers.convex:
        return 1.0
    exact = 2 * math.sqrt(answers.beta) if answers.smooth and answers.beta and answers.beta > 0 else math.sqrt(2)
    return math.ceil(1e4 * exact - 1e-6) / 1e4


def _situation(answers: Answers, max_rounds: int) -> Situation:
    """What was answered; the squared norm that makes losses strongly convex counts as a part of each of them."""
    from tacit.choosing import Situation

    mu, diameter = answers.mu or 0.0, float(answers.diameter or 0.0)
    return Situation(
        convex=bool(answers.convex),
        strong_convexity=mu,
        pl=answers.pl,
        smoothness=answers.beta + mu if answers.smooth and answers.beta is not None else None,
        heterogeneous=bool(answers.heterogeneous),
        shuffler=bool(answers.shuffler),
        trusted_server=bool(answers.trusted_server),
        sizes=_sizes(str(answers.records), answers.silos),
        dimension=int(answers.dimension or 0),
        lipschitz=float(answers.lipschitz or 0.0) + mu * diameter / 2,
        diameter=diameter,
        epsilon=float(answers.epsilon or 0.0),
        delta=float(answers.delta or 0.0),
        fairness=bool(answers.fairness),
        participants=answers.participants,
        gap=answers.gap,
        max_rounds=max_rounds,
    )


def _for_theorems(situation: Situation, own: Own | None) -> Situation:
    """The situation with the epsilon that private statistics leave for training."""
    from tacit.studies.bound import left_for_training

    preprocessing = None if own is None else own.preprocessing
    return replace(situation, epsilon=left_for_training(preprocessing, situation.epsilon, situation.delta))


def _consequences(situation: Situation, left: float) -> list[str]:
    """What follows from the answers without having been said; ``left`` is the epsilon of training."""
    said, mu = [], situation.strong_convexity
    if mu > 0:
        beta = "" if situation.smoothness is None else f" and beta {situation.smoothness:g}"
        said.append(
            f"objective = the study adds squared-l2:{mu:g}, which makes it strongly convex; with it L is "
            f"{situation.lipschitz:.5g}{beta}"
        )
    if left < situation.epsilon:
        said.append(f"epsilon of training = {left:.4g}, which private statistics leave of {situation.epsilon:g}")
    return said


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


def _as_data(told: Choice) -> dict[str, Any]:
    rows = [
        {
            "algorithm": c.algorithm,
            "applies": c.applies,
            "reasons": list(c.reasons),
            "source": c.source,
            "channel": c.channel if c.applies else None,
            "measure": c.measure,
            "bound": c.bound,
            "rate": c.rate,
            "rounds": c.rounds,
            "conditions_that_fail": list(c.failed),
            "sentence": c.sentence or None,
        }
        for c in told.found
    ]
    return {
        "silos": told.situation.silos,
        "records": list(told.situation.sizes),
        "assumed": told.assumed,
        "candidates": rows,
        "winner": None if told.best is None else told.best.algorithm,
        "goal_missed": told.missed,
        "study": told.written,
    }
