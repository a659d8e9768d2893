"""``tacit consortium``: set a consortium up, party by party, or try one on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tacit.cli import Json, Out, group, print_json, print_table
from tacit.errors import TacitError

if TYPE_CHECKING:
    from tacit.deploy.consortium.roster import Roster
    from tacit.deploy.consortium.trial import Trial

consortium_app = group(
    "consortium",
    "A consortium from one file: kits for all parties, keys that stay where they are made, checks."
    "\n\nExample: tacit consortium init consortium.toml",
)

Home = Annotated[Path | None, typer.Option(help="The party's home; /srv/tacit/NAME by default.")]


@consortium_app.command("init")
def init_command(
    terms: Annotated[Path, typer.Argument(help="consortium.toml: names, addresses, channels, schema, proposer.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The new folder for kits and authority.")] = Path("kits"),
) -> None:
    """Make one kit per party, each a folder to hand over, and the consortium's authority, which stays here.

    No kit holds a secret: every party makes its keys itself, with `tacit consortium join`.

    Example: tacit consortium init consortium.toml --out kits
    """
    from tacit.deploy.consortium.kits import init

    folders = init(terms, out)
    kits = ", ".join(str(path) for name, path in folders.items() if name != "authority")
    typer.echo(f"Hand over: {kits}. Each has a README with its party's commands.")
    typer.echo(f"Keep {folders['authority']} to yourself: whoever has its key can pass for the server.")
    typer.echo(f"When the replies are here: tacit consortium admit REPLIES --authority {folders['authority']}")


@consortium_app.command("join")
def join_command(
    kit: Annotated[Path, typer.Argument(help="The kit that was handed over.")],
    records: Annotated[Path | None, typer.Option(help="A silo's CSV file; a copy is served.")] = None,
    home: Home = None,
    reply: Annotated[Path | None, typer.Option(help="The reply to write; NAME.reply.toml here by default.")] = None,
    containers: Annotated[
        bool, typer.Option("--containers", help="Files for containers' users; no users and no units are made.")
    ] = False,
    trial: Annotated[
        bool, typer.Option("--trial", help="All files are yours; no users and no units are made.")
    ] = False,
) -> None:
    """Join with a kit: users, folders and private keys are made here, and a reply of public keys to send back.

    It makes users for the services and installs their units, so run it as root; on trial everything is yours.

    Example: tacit consortium join . --records records.csv
    """
    from tacit.deploy.consortium.accounts import Whose
    from tacit.deploy.consortium.joining import join, reply_text, starting

    whose: Whose = "containers" if containers else "mine" if trial else "users"
    place, told = join(kit, home, records, whose=whose, tell=lambda line: typer.echo(f"warning: {line}", err=True))
    path = Path(f"{told['party']}.reply.toml") if reply is None else reply
    path.write_text(reply_text(told), encoding="utf-8")
    typer.echo(f"{told['party']} lives in {place}. Send {path} to the coordinator; it holds public keys only.")
    for line in starting(place, whose):
        typer.echo(line)
    if told["kind"] == "silo":
        typer.echo(f"Look at {place / 'silo' / 'policy.toml'}: the budget and what is allowed are your decision.")


@consortium_app.command("admit")
def admit_command(
    replies: Annotated[list[Path], typer.Argument(help="The parties' replies, or a folder of them.")],
    authority: Annotated[Path, typer.Option(help="The authority's folder, from `tacit consortium init`.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The roster to write.")] = Path("roster.toml"),
) -> None:
    """Sign the certificates that parties ask for, and write the roster of everybody's public keys.

    Send it to all, and read its fingerprint out by telephone: each party types it to accept the roster.

    Example: tacit consortium admit replies --authority kits/authority
    """
    from tacit.deploy.consortium.certificates import write_public
    from tacit.deploy.consortium.roster import admit, roster_text

    roster = admit(replies, authority)
    write_public(out, roster_text(roster))
    typer.echo(f"Send {out} to {', '.join(roster.members)}. Signing again makes another roster, which all accept anew.")
    _read_out(roster)


@consortium_app.command("accept")
def accept_command(
    roster: Annotated[Path, typer.Argument(help="roster.toml, as the coordinator sent it.")],
    home: Home = None,
    fingerprint: Annotated[
        str | None, typer.Option(help="Its fingerprint, as it was read out by telephone; asked for by default.")
    ] = None,
) -> None:
    """Pin everybody's keys, once the roster's fingerprint was compared; it is refused if your own keys are not in it.

    Example: tacit consortium accept roster.toml
    """
    from tacit.deploy.consortium.accepting import accept
    from tacit.deploy.consortium.kits import only_home
    from tacit.deploy.consortium.roster import read_roster

    place = only_home() if home is None else home
    if fingerprint is None:
        fingerprint = _heard(len(read_roster(roster).rows))
    accepted = accept(roster, place.resolve(), fingerprint)
    typer.echo(
        f"Pinned the keys of {', '.join(accepted.members)}. Next: start the services (or restart them), then: tacit "
        f"consortium check {place}"
    )


def _heard(rows: int) -> str:
    """The fingerprint as somebody types it: row by row, or all of it at once."""
    typer.echo(f"By telephone the coordinator reads you {rows} rows of four groups. Type what you hear, nothing else.")
    said, whole = list[str](), 16 * rows
    while len(said) < rows and sum(letter.isalnum() for row in said for letter in row) < whole:
        said.append(str(typer.prompt(f"Row {len(said) + 1}")))
    return " ".join(said)


@consortium_app.command("show")
def show_command(roster: Annotated[Path, typer.Argument(help="roster.toml, as `admit` wrote it.")]) -> None:
    """Print who is in a roster, and its fingerprint, to read out by telephone.

    Whoever accepts a roster types what is read out, and not what this prints there: that is what the mail brought.

    Example: tacit consortium show roster.toml
    """
    from tacit.deploy.consortium.roster import read_roster

    found = read_roster(roster)
    for name, member in found.members.items():
        typer.echo(f"{name}: {member.kind}, Tacit {member.tacit}")
    _read_out(found)


def _read_out(roster: Roster) -> None:
    """The fingerprint of a roster as the coordinator reads it out."""
    listed = ", ".join(roster.members)
    typer.echo(f"Coordinator: call {listed}, and read them these rows, which each types into `accept`:")
    for row in roster.rows:
        typer.echo(f"    {row}")


@consortium_app.command("check")
def check_command(
    home: Annotated[Path | None, typer.Argument(help="The party's home; the only one of this machine.")] = None,
    as_json: Json = False,
) -> None:
    """Check clock, permissions, ports, versions, schema, keys, entropy and disk; says what to do.

    The exit code is 1 if something is wrong. Run it as root, or as the user who owns the party's files.

    Example: tacit consortium check /srv/tacit/bergen
    """
    from tacit.deploy.consortium.checking import check
    from tacit.deploy.consortium.kits import only_home

    found = check((only_home() if home is None else home).resolve())
    wrong = [row for row in found if row.state == "wrong"]
    if as_json:
        print_json({"good": not wrong, "findings": [row._asdict() for row in found]})
    else:
        table = Table("looked at", "", "found")
        for row in found:
            table.add_row(Text(row.what), Text(row.state), Text(row.text))
        print_table(table, Console())
        typer.echo("Everything is as it should be." if not wrong else f"Wrong: {len(wrong)}; see above what to do.")
    if wrong:
        raise typer.Exit(1)


@consortium_app.command("leave")
def leave_command(
    home: Annotated[Path | None, typer.Argument(help="The party's home; the only one of this machine.")] = None,
    note: Annotated[str, typer.Option(help="Why, in a line: it goes into the ledger's chain, to nobody else.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Leave the consortium: nobody is heard here any more, open studies are closed, units are stopped and removed.

    Records, ledger, counter and models stay, and what was spent stays spent. It says what remains and what the others
    must do. Run it as root. `tacit consortium join` with a kit takes part again, with the same ledger.

    Example: tacit consortium leave /srv/tacit/bergen
    """
    from tacit.deploy.consortium.kits import only_home, read_kit
    from tacit.deploy.consortium.leaving import leave

    place = (only_home() if home is None else home).resolve()
    kit = read_kit(place)
    if not yes:
        typer.confirm(f"Shall {kit.party} leave {kit.terms.name}?", abort=True)
    left = leave(place, note)
    for title, lines in (("Done", left.done), ("What remains here", left.remains), ("What others do", left.others)):
        typer.echo(f"{title}:")
        for line in lines:
            typer.echo(f"  - {line}")


@consortium_app.command("try")
def try_command(
    folder: Annotated[Path, typer.Argument(help="One CSV file per silo, with schema.toml and study.toml.")],
    out: Out = Path("runs"),
    channel: Annotated[
        list[str] | None, typer.Option(help="Train through this channel; may be repeated. By default the study's own.")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(help="Keep all parties' files in this new folder, to look at; else none.")
    ] = None,
) -> None:
    """Try your own CSV files as a real consortium on this machine: every party is a process of its own.

    Keys, certificates, policies and ledgers are made as for real silos; the study of the folder (from `tacit init`) is
    proposed, priced and answered by daemons, and its model is handed to every silo, which test it on a fifth of their
    records that they have set aside. In the end everything is stopped. Policies consent by themselves here; real
    owners approve.

    Example: tacit consortium try clinics
    """
    import signal
    import tempfile

    from tacit.deploy.consortium.trial import Trial

    # A polite request to end is an interrupt, so that everything is stopped in order; a shell may have had it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))

    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise TacitError(f"{keep} is not empty; name a new folder with --keep.")
    console = Console()
    with tempfile.TemporaryDirectory(prefix="tacit-", ignore_cleanup_errors=True) as made:
        trial = Trial(folder, Path(made) / "c" if keep is None else keep.resolve(), channel or ())
        try:
            parties = ", ".join(f"{name} ({kind})" for name, kind in trial.terms.parties.items())
            typer.echo(f"Starting {parties}; each is a process of its own.")
            trial.start_all()
            for study in trial.studies:
                run = trial.lead(study, out)
                show_validation(run)
            show_accounts(trial, console)
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            typer.echo("Stopping everything.")
            trial.stop()
    if (run / "statistics.json").is_file():
        typer.echo(f"Stopped. What silos said: {run / 'statistics.json'}")
        return
    typer.echo(f"Stopped. The model: {run / 'model'}. Predict with: tacit predict {run / 'model'} NEW.csv")


def show_validation(run: Path) -> None:
    """How silos say that the model of a run folder does, on records that they have set aside."""
    from tacit.cli.server import print_validation
    from tacit.deploy.server.validation import RESULT

    found = run / RESULT
    if found.exists():
        print_validation(json.loads(found.read_text(encoding="utf-8")))
    else:
        typer.echo("The model was not validated; see above why.")


def show_accounts(trial: Trial, console: Console) -> None:
    """What every silo has spent and was given, and that the model predicts, from the silos' own folders."""
    from tacit.cli.books import account_of
    from tacit.deploy.silo.models import kept_models
    from tacit.models import load_model

    table = Table("silo", "study", "records", "answers", "own epsilon", "of its account", title="by the silos' ledgers")
    for name in trial.files:
        for study in account_of(trial.homes[name] / "silo")["studies"]:
            own = (f"{study['own_epsilon']:.4f}", f"{100 * study['takes_share']:.1f}%")
            read = (f"of {study['pool']}" if study["pool"] else "all", str(study["answers"]))
            table.add_row(*map(Text, (name, study["name"], *read, *own)))
    print_table(table, console)
    models = kept_models(trial.homes[name] / "silo")
    if models:
        model = load_model(models[0]["path"])
        x, _ = model.encode(trial.files[name])
        first = ", ".join(str(one) for one in model.predictions(model.outputs(x[:5])).tolist())
        target = model.description.target.column
        typer.echo(f"The model that {name} was given predicts {target} of its first records: {first}.")
