"""``tacit consortium``: set a consortium up, party by party, or try one on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tacit.cli import Json, group, print_json, print_table

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
    from tacit.deploy.consortium.joining import join, reply_text

    whose: Whose = "containers" if containers else "mine" if trial else "users"
    place, told = join(kit, home, records, whose=whose, tell=lambda line: typer.echo(f"warning: {line}", err=True))
    path = Path(f"{told['party']}.reply.toml") if reply is None else reply
    path.write_text(reply_text(told), encoding="utf-8")
    typer.echo(f"{told['party']} lives in {place}. Send {path} to the coordinator; it holds public keys only.")
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
    typer.echo(f"Send {out} to {', '.join(roster.members)}.")
    typer.echo(f"Its fingerprint, for the telephone: {roster.fingerprint}")


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

    place = only_home() if home is None else home
    if fingerprint is None:
        fingerprint = str(typer.prompt("The roster's fingerprint, as the coordinator reads it out by telephone"))
    accepted = accept(roster, place.resolve(), fingerprint)
    typer.echo(
        f"Pinned the keys of {', '.join(accepted.members)}. Next: start the services, then tacit consortium check"
    )


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
