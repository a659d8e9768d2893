"""``tacit silo`` (the daemon and its owner's decisions) and ``tacit ledger`` (what was spent, and what is left)."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Annotated, Any

import tomli_w
import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from tacit.cli import (
    AUTHORITY,
    Command,
    Json,
    Live,
    Metrics,
    Webhook,
    group,
    keep_looking,
    need_file,
    print_json,
    print_table,
    template,
)
from tacit.errors import TacitError, counted
from tacit.stopping import stops_at_once

silo_app = group(
    "silo",
    "A silo that defends itself: serve its records under a policy, approve studies, look at them."
    "\n\nExample: tacit silo status clinic",
)

_SHORT = 16
"""How much of a study's identity tables show; JSON has all of it."""

_VALIDATION = "validation = 0.2             # share of records that never train, drawn at the start; they test models\n"

Folder = Annotated[Path, typer.Argument(help="The silo's folder: policy.toml, ledger and socket.")]


@silo_app.command("init")
def init_command(
    folder: Folder,
    records: Annotated[Path | None, typer.Option(help="The silo's CSV file.")] = None,
    columns: Annotated[Path | None, typer.Option(help="schema.toml, as `tacit init` made it for all silos.")] = None,
    name: Annotated[
        str | None, typer.Option(help="The silo's name, unique in the consortium; by default the folder's.")
    ] = None,
) -> None:
    """Write a policy to start from; with a CSV file and its columns, one that reads them.

    The policy is readable by its owner alone, and so must the records be: the daemon refuses others. A folder that
    exists and lets others in is shut.

    Example: tacit silo init clinic --name bergen --records clinics/bergen.csv --columns clinics/schema.toml
    """
    from tacit.deploy.permissions import check_owner, mending, too_open, write_secret

    path = folder / "policy.toml"
    if folder.exists() and not folder.is_dir():
        raise TacitError(
            f"Expected a folder for the silo, got the file {folder}; to serve it: tacit silo init HOME "
            f"--records {folder} --columns schema.toml"
        )
    if path.exists():
        raise TacitError(f"{path} exists; edit it, or choose another folder.")
    if (records is None) != (columns is None):
        raise TacitError("Expected --records and --columns together: the file, and the schema that says what it holds.")
    check_owner(folder)
    called = _called(folder, name)
    text = template("policy.toml", folder, called)
    if records is not None and columns is not None:
        text = text.partition("[data]\n")[0] + _csv_section(records, columns)
    _private_folder(folder)
    write_secret(path, text)
    place = "put the records beside it, mode 600" if records is None else f"it points at {records}"
    typer.echo(f"Wrote {path}: edit it ({place}), then: tacit silo serve {folder}")
    typer.echo(f"The silo is called {called}; no other silo of the consortium may be (name in the policy).")
    wrong = too_open([folder / "records.npz", *(file for file in (records, columns) if file is not None)])
    if wrong:
        typer.echo(f"Others can read or change the records or their schema. First: {mending(wrong)}")


def _called(folder: Path, name: str | None) -> str:
    """The name of a new silo, its folder's by default, as messages can carry it."""
    called = folder.resolve().name if name is None else name
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", called):
        raise TacitError(f"Expected a name of letters, digits and . _ -, got {called!r}; use --name.")
    return called


def _private_folder(folder: Path) -> None:
    """Make the silo's folder for its owner alone, or shut it, saying so; a group may be left to pass through."""
    from tacit.deploy.permissions import FOLDER_MODE

    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for decisions in ("approved", "decided"):
        (folder / decisions).mkdir(mode=0o700, exist_ok=True)
    before = folder.stat().st_mode & 0o777
    if before & ~FOLDER_MODE:
        folder.chmod(before & FOLDER_MODE)
        typer.echo(f"{folder} was open to others (mode {before:o}); it has mode {before & FOLDER_MODE:o} now.")


def _csv_section(records: Path, columns: Path) -> str:
    """The policy's [data] for a CSV file; the file is read once, so that what is wrong with it is found now."""
    from tacit.data.csv_silos import silo_records
    from tacit.data.schema import read_schema

    schema = read_schema(columns)
    if schema.norm == "box":
        raise TacitError(
            f'{columns} has norm = "box", as tacit init --private writes it, but silos serve features of a '
            "bounded norm; make a schema with declared ranges, tacit init --range and without --private, and scale by "
            "what a study of statistics finds (tacit server run --statistics)."
        )
    silo_records(records, columns, tell=lambda line: typer.echo(f"warning: {line}", err=True))
    target = schema.target
    section = {"file": str(records.resolve()), "columns": str(columns.resolve()), "task": target.task}
    classes = {} if target.classes is None else {"classes": len(target.classes)}
    return tomli_w.dumps({"data": section | classes}) + _VALIDATION


@silo_app.command("serve")
def serve_command(
    folder: Folder,
    socket_mode: Annotated[str, typer.Option(help="Permissions of the socket, in octal.")] = "600",
    noise_off: Annotated[
        bool, typer.Option("--insecure-test-noise-off", hidden=True, help="A test build without noise: not private.")
    ] = False,
) -> None:
    """Serve the silo's records on a Unix socket until stopped; only this process ever reads them.

    It refuses to start where others could read or change the records, the policy, the ledger or the approvals.

    Example: tacit silo serve clinic
    """
    with stops_at_once():
        from tacit.deploy.silo.server import serve

    try:
        mode = int(socket_mode, 8)
    except ValueError:
        raise TacitError(f"Expected --socket-mode in octal, such as 660, got {socket_mode!r}.") from None
    if mode & 0o007 or mode > 0o777:
        raise TacitError(f"Expected --socket-mode={socket_mode} to shut out others; use 600 or 660.")
    serve(folder, noise_off=noise_off, socket_mode=mode)


@silo_app.command("keys")
def keys_command(folder: Folder) -> None:
    """Make the silo's keys, once, and print the public ones: `sign` for proposers and shufflers, `node` for the server.

    Other silos pin `sign` too, for pairwise sums (`[pairwise.peers]` in the policy). The fingerprint is for the
    telephone: owners compare it with that of the key that they were sent. Fingerprints of pinned peers follow.

    Example: tacit silo keys clinic
    """
    from tacit.deploy.flower.commands import node_key
    from tacit.deploy.permissions import check_owner, read_secret, write_secret
    from tacit.deploy.signing import Signer, fingerprint, new_signing_key
    from tacit.deploy.silo.policy import load_policy

    check_owner(folder)
    if not (folder / "sign.key").exists():
        write_secret(folder / "sign.key", new_signing_key())
    # The private half may have been moved to the courier; the public one stays.
    if not (folder / "node.key.pub").exists():
        node_key(folder / "node.key")
    own = Signer(read_secret(folder / "sign.key")).public
    typer.echo(f"sign  {own}")
    typer.echo(f"node  {folder / 'node.key.pub'}")
    typer.echo(f"fingerprint  {fingerprint(own)}")
    policy = load_policy(folder / "policy.toml") if (folder / "policy.toml").exists() else None
    for name, key in {} if policy is None or policy.pairwise is None else policy.pairwise.peers.items():
        typer.echo(f"peer  {name}  {fingerprint(key)}")


@silo_app.command("join")
def join_command(
    folder: Annotated[Path, typer.Argument(readable=False, help="The silo's folder; only its door is looked into.")],
    superlink: Annotated[str, typer.Option("--superlink", metavar="HOST:PORT", help="Where the SuperLink is.")],
    authority: Annotated[Path, typer.Option(help="PEM file of the authority of the SuperLink's certificate.")],
    key: Annotated[Path | None, typer.Option(help="The node's key; by default node.key in the folder.")] = None,
) -> None:
    """Join a consortium: a node that carries bytes between the server's SuperLink and the daemon, until stopped.

    It executes nothing that comes from the server, and needs no access to records. Run it as another user than the
    daemon's: it refuses to start where that user can read or change the silo's files, and warns where it is the owner.

    Example: tacit silo join clinic --superlink 10.0.0.5:9092 --authority ca.pem
    """
    from tacit.deploy.permissions import check_courier

    warning = check_courier(folder)
    key = folder / "node.key" if key is None else key
    need_file(authority, AUTHORITY)
    need_file(key, f"make it with: tacit silo keys {folder}, or give --key the place where node.key was moved")
    if warning is not None:
        typer.echo(f"warning: {warning}", err=True)
    if importlib.util.find_spec("flwr") is None:
        raise TacitError("flwr is not installed; install its extra: pip install 'TACIT_WHEEL[flower]'.")
    with stops_at_once():
        from tacit.deploy.flower.node import serve

    door = folder.resolve() / "door" / "silo.sock"
    serve(superlink, authority=authority, key=key, socket=door, say=lambda line: typer.echo(line, err=True))


@silo_app.command("status")
def status_command(folder: Folder, live: Live = False, as_json: Json = False) -> None:
    """Show whether the daemon runs, the studies that are open, and those that wait for approval.

    Of each waiting study: who proposes it, its own price, what it takes from this silo's account and what would be
    left, a number to compare with the owners of other silos, and the command that approves it.

    Example: tacit silo status clinic
    """
    if live:
        keep_looking(lambda: status_command(folder, live=False, as_json=as_json))
    from tacit.cli.status import account_words, described, status_of

    facts = status_of(folder)
    ran = facts.pop("ran")
    if as_json:
        print_json(facts)
        return
    stopped = f"The daemon is not running; start it with: tacit silo serve {folder}"
    typer.echo("The daemon is running." if facts["daemon"] else stopped)
    if facts["policy_problem"]:
        typer.echo(f"The policy on disk cannot be used, so everything is refused: {facts['policy_problem']}")
    if not ran:
        typer.echo("It has not run before: nothing has been spent.")
    typer.echo(account_words(facts["account"]))
    table = Table("name", Column("study", no_wrap=True), "answers", "until", title="open studies")
    for row in facts["open"]:
        table.add_row(*map(Text, (row["name"], row["study"][:_SHORT], str(row["answers"]), row["expires"])))
    if facts["open"]:
        print_table(table, Console())
    else:
        typer.echo("No studies are open.")
    for row in facts["pending"]:
        typer.echo(described(row, folder))
    if all(row["approved"] for row in facts["pending"]):
        typer.echo("No studies wait for approval.")
    for name in facts["decided"]:
        study, _, verb = name.partition(".")
        typer.echo(f"Decided: {verb} {study[:_SHORT]}; it counts, and is written down with the daemon's next request.")
    if facts["refusals"]:
        last = ", ".join(f"{row['code']} ({row['count']}, last {row['last']})" for row in facts["refusals"][:3])
        typer.echo(f"Last refusals: {last}.")


@silo_app.command("models")
def models_command(folder: Folder, as_json: Json = False) -> None:
    """List the models that this silo was given, each at the end of a study that it has answered.

    The price is this silo's own, by its ledger. Where a study makes a model for each silo, this one's is beside the
    model for everybody else. Use one by its name: tacit predict NAME new.csv --silo FOLDER

    Example: tacit silo models clinic
    """
    from tacit.deploy.silo.models import kept_models

    need_file(folder / "policy.toml", "give a silo's folder, which has a policy.toml")
    rows = kept_models(folder)
    if as_json:
        print_json(rows)
        return
    if not rows:
        typer.echo("No models yet: the server hands one over at the end of each study that this silo has answered.")
        return
    table = Table("name", "study", "epsilon", "delta", "received", "from", title="models")
    for row in rows:
        price = (f"{row['epsilon']:.4g}", f"{row['delta']:.1e}")
        shown = (row["name"], row["study"][:_SHORT], *price, row["received"], row["proposer"])
        table.add_row(*map(Text, shown))
    console = Console()
    print_table(table, console)
    for row in rows:
        note = "  with a model of this silo's own, which --silo uses" if row["personal"] else ""
        note = note if row["intact"] else "  DAMAGED: not as it was received; ask its proposer for tacit server deliver"
        console.print(Text(f"{row['path']}{note}"), soft_wrap=True)


@silo_app.command("installed")
def installed_command(as_json: Json = False) -> None:
    """List the models and backbones that installed packages register, with the lines by which a policy names them.

    A daemon trains such a model only if its policy lists it, with the version and the digest of the source that is
    installed. Read the source before you do: it runs on your records.

    Example: tacit silo installed
    """
    from tacit.objectives.installed import BACKBONES, MODELS, installed, installed_names

    groups = {MODELS: "model", BACKBONES: "backbone"}
    found = [(what, installed(name, group)) for group, what in groups.items() for name in installed_names(group)]
    if as_json:
        print_json([{"kind": what, **own._asdict()} for what, own in found if own is not None])
        return
    if not found:
        typer.echo('No installed package registers a model (entry point "tacit.models"); see docs/pytorch.md.')
        return
    for what, own in found:
        assert own is not None
        pinned = {"version": own.version, "digest": own.digest}
        listed: dict[str, Any] = {"allow": {"models": {own.name: pinned}}}
        if what == "backbone":
            listed = {"data": {"backbone": {"name": own.name, **pinned}}}
        typer.echo(tomli_w.dumps(listed).strip() + "\n")


Study = Annotated[str, typer.Argument(help="The study: its name, its identity, or how that begins.")]
Note = Annotated[str, typer.Option(help="Why, in a line: it goes into the ledger's chain, and to nobody else.")]


@silo_app.command("approve")
def approve_command(
    folder: Folder,
    study: Study,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    note: Note = "",
) -> None:
    """Approve a proposed study: it is reserved when the server next asks, if it still fits the account.

    Prints who proposes it, the study's own price and what it takes from this silo's account. A study that is not given
    by its whole identity is shown first: whoever proposes could have put another one of that name in its place. Run it
    as the user who owns the folder.

    Example: tacit silo approve clinic 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
    """
    from tacit.cli.status import approve, described, prices, waiting_study
    from tacit.deploy.permissions import check_owner

    check_owner(folder)
    row = waiting_study(folder, study)
    if row["study"] != study and not yes:
        typer.echo(described(row | {"approved": False}, folder))
        typer.confirm("Approve it?", abort=True)
    approve(folder, row["study"], note)
    typer.echo(f"Approved {row['plan']['name']} ({row['study']}), which {row['proposer']} proposes.")
    for name, text in prices(row).items():
        typer.echo(f"  {name:<10} {text}")


@silo_app.command("reject")
def reject_command(folder: Folder, study: Study, note: Note = "") -> None:
    """Reject a study that waits for approval: its proposer is told, and it is not considered again.

    Example: tacit silo reject clinic 9f86d081
    """
    _end(folder, study, "reject", note)


@silo_app.command("close")
def close_command(folder: Folder, study: Study, note: Note = "") -> None:
    """Close an open study for good: no more answers, and what it did not use goes back, where the rule is a filter.

    Example: tacit silo close clinic heart-disease
    """
    _end(folder, study, "close", note)


@silo_app.command("revoke")
def revoke_command(folder: Folder, study: Study, note: Note = "") -> None:
    """Withdraw an approval or a consent: no more answers, and the same terms are refused from now on, under any name.

    What was released stays released, and paid for.

    Example: tacit silo revoke clinic heart-disease
    """
    _end(folder, study, "revoke", note)


def _end(folder: Path, study: str, verb: str, note: str) -> None:
    from tacit.cli.status import end

    done = end(folder, study, verb, note)
    runs = "the daemon answers nothing more of it from its next request on"
    waits = "the daemon does not run; the ledger's entry is made when it starts, before anything is answered"
    typer.echo(f"{done['name']} ({done['study']}): {verb}. {(runs if done['daemon'] else waits).capitalize()}.")


@silo_app.command("watch")
def watch_command(folder: Folder, metrics: Metrics = None, webhook: Webhook = None, command: Command = None) -> None:
    """Watch a silo until stopped: Prometheus metrics, and word of what happens, by webhook or command.

    Events: a study waits for approval, ends or is refused, and the budget passes 50, 80 or 95%. A process of its own
    reads the books: the daemon does nothing for it, and no number depends on a record. Run it as the folder's owner.

    Example: tacit silo watch clinic --metrics 9464 --command "mail -s Tacit owner@example.org"
    """
    from functools import partial

    from tacit.cli.watch import look_at_silo, watch
    from tacit.deploy.permissions import check_owner

    check_owner(folder)
    told = folder / "told.json"
    watch(partial(look_at_silo, folder), told, metrics=metrics, webhook=webhook, command=command)


@silo_app.command("web")
def web_command(
    folder: Folder, port: Annotated[int, typer.Option(help="The port on 127.0.0.1; 0 takes a free one.")] = 0
) -> None:
    """Show what waits for your word as one page on this machine, with approve, reject, close and revoke.

    It prints an address with a token; a page that is opened without it sees nothing. There is no script on the page,
    it loads nothing, and only this machine reaches it. Run it as the user who owns the folder, until stopped.

    Example: tacit silo web clinic
    """
    from tacit.cli.web import serve

    serve(folder, port, typer.echo)


@silo_app.command("place")
def place_command(folder: Folder) -> None:
    """Print where this folder is, as `tacit silo move` takes it: a fingerprint of the machine and of the path.

    Example: tacit silo place clinic
    """
    from tacit.cli.moving import place

    found, counter = place(folder)
    typer.echo(found)
    typer.echo(f"It holds for the counter at {counter}; set `counter` in policy.toml before you use it.", err=True)


@silo_app.command("move")
def move_command(
    folder: Folder,
    to: Annotated[str | None, typer.Argument(metavar="PLACE", help="What `tacit silo place` prints there.")] = None,
    here: Annotated[
        bool, typer.Option("--here", help="Bind the ledger to this place: you vouch that no other one serves it.")
    ] = False,
) -> None:
    """Bind a silo's ledger to another machine or folder; from then on only that one serves it.

    Stop the daemon first, move, and copy the ledger and its counter afterwards. Where the old machine is gone but its
    newest ledger and counter are here, `--here` binds them to this one. If they may not be the newest: tacit silo
    write-off.

    Example: tacit silo move clinic 3f5a8c0d9b1e4726a0c3d5e7f9182b4c
    """
    from tacit.cli.moving import move

    typer.echo(move(folder, to, here=here))


@silo_app.command("write-off")
def write_off_command(
    folder: Folder,
    epsilon: Annotated[float | None, typer.Option(help="What was lost, if it had more than is known here.")] = None,
    delta: Annotated[float | None, typer.Option(help="The same for delta.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Begin a lost ledger anew: its whole budget counts as spent, since nobody knows what was released.

    Afterwards nothing is served until the owner raises budget.epsilon and budget.delta above what was written off. What
    is left of the old ledger is put aside. If this is cut off, run it again: until then nothing is served.

    Example: tacit silo write-off clinic
    """
    from tacit.cli.moving import loss_of, write_off

    lost = loss_of(folder, epsilon, delta)
    typer.echo(
        f"Everything that earlier ledgers of these records may have spent is written off: epsilon {lost['epsilon']:g} "
        f"at delta {lost['delta']:g} ({lost['known']}). This cannot be taken back."
    )
    if not yes:
        typer.confirm("Write it off?", abort=True)
    typer.echo(write_off(folder, lost))


def ledger_command(
    folder: Folder,
    rounds: Annotated[bool, typer.Option("--rounds", help="List every entry, with every debit.")] = False,
    report: Annotated[
        Path | None,
        typer.Option("--report", metavar="FILE", help="Write a page for a data-protection officer."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what a silo has spent, by study and round, and what is left; verify the ledger's chain.

    Of each study: who asked, who approved, who ended it, what its guarantee rests on, and two prices: the epsilon of
    its own releases, and the share of the account that it takes by its rule.

    Example: tacit ledger clinic --report clinic.html
    """
    from tacit.cli.books import account_of, write_page

    if report is not None:
        write_page(folder, report)
        typer.echo(f"Wrote {report}: one page, readable by you alone; print it, or pass it on as it is.")
        return
    found = account_of(folder)
    account = found["account"]
    if as_json:
        print_json(found)
        return
    if found["policy_problem"]:
        typer.echo(f"The policy on disk cannot be used, so everything is refused: {found['policy_problem']}")
    if not found["length"]:
        typer.echo(
            f"Nothing has been spent of epsilon {account['epsilon']:g} at delta {account['delta']:g}: the daemon "
            f"has not run yet, and makes the ledger when it does (tacit silo serve {folder})."
        )
        return
    _print_ledger(found, rounds=rounds)


def _print_ledger(found: dict[str, Any], *, rounds: bool) -> None:
    from tacit.cli.books import approved_words, ended_words, trust_words
    from tacit.cli.status import account_words, percent_of

    console, account = Console(), found["account"]
    table = Table("study", "asked and let in by", "stands", "answers", "own epsilon", "of the account")
    table.title = Text(f"ledger of {found['silo']}", style="table.title")
    for row in found["studies"]:
        who = f"{row['proposer'] or 'not known'}; {approved_words(row)}"
        shown = (str(row["answers"]), f"{row['own_epsilon']:.4f}", percent_of(row["takes_share"]))
        read = " (validation records)" if row["pool"] == "validation" else ""
        table.add_row(*map(Text, (f"{row['name']} {row['study'][:_SHORT]}{read}", who, ended_words(row), *shown)))
    print_table(table, console)
    if rounds:
        lines = Table("entry", "time", "what", "study", "round", "kind", "releases", "by", title="entries")
        for row in found["entries"]:
            # Rounds count from 1 where people look, and from 0 in the books.
            number = str(row["round"] + 1) if isinstance(row.get("round"), int) else ""
            detail = (number, *(str(row.get(key, "")) for key in ("kind", "releases", "who")))
            lines.add_row(*map(Text, (str(row["entry"]), row["time"], row["what"], row["study"][:_SHORT], *detail)))
        print_table(lines, console)
    for line in trust_words(found):
        console.print(Text(line))
    joint = found["epsilon_if_fixed_in_advance"]
    together = "could not be priced" if joint is None else f"would cost epsilon {joint:.4f}"
    console.print(
        "Own epsilon is of a study's releases alone; of the account is the share that it takes by the account's rule. "
        f"{account_words(account)} Had all plans and ends been fixed in advance, the releases made {together} "
        f"together. Refused: {counted(sum(row['count'] for row in found['refusals']), 'request')}. The chain of "
        f"{found['length']} entries holds.",
        highlight=False,
        markup=False,
    )
