"""``tacit server``: lead a study among real silos over Flower."""

from __future__ import annotations

import os
import tempfile
import tomllib
from pathlib import Path
from typing import Annotated, Any

import tomli_w
import typer
from rich.console import Console

from tacit.cli import AUTHORITY, Out, group, need_file, template
from tacit.errors import TacitError

server_app = group(
    "server",
    "The server of a consortium: a SuperLink, and studies that run over it."
    "\n\nExample: tacit server run heart-disease --superlink 10.0.0.5:9092 --authority ca.pem --silos 4",
)

Link = Annotated[str, typer.Option("--superlink", metavar="HOST:PORT", help="Where the SuperLink is.")]
Authority = Annotated[
    Path, typer.Option("--authority", help="PEM file of the authority that signed the SuperLink's certificate.")
]


@server_app.command("link")
def link_command(
    folder: Annotated[Path, typer.Argument(help="Where the SuperLink keeps its state.")],
    authority: Authority,
    certificate: Annotated[Path, typer.Option(help="The SuperLink's certificate, PEM.")],
    key: Annotated[Path, typer.Option(help="The key of its certificate, PEM.")],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(help="The port to listen on.")] = 9092,
) -> None:
    """Start a SuperLink with TLS and authentication of SuperNodes.

    Example: tacit server link state --authority ca.pem --certificate link.pem --key link.key
    """
    from tacit.deploy.flower.commands import environment, superlink_command

    need_file(authority, AUTHORITY)
    need_file(certificate, "give --certificate the SuperLink's link.pem, see Certificates in docs/deployment.md")
    need_file(key, "give --key the SuperLink's link.key, see Certificates in docs/deployment.md")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    database = folder.resolve() / "superlink.sqlite"
    paths = {"authority": authority, "certificate": certificate, "key": key, "database": database}
    command = superlink_command(host=host, port=port, **paths)
    os.execve(command[0], command, environment(folder.resolve()))


@server_app.command("register")
def register_command(
    name: Annotated[str, typer.Argument(help="The silo's name.")],
    public_key: Annotated[Path, typer.Argument(help="Its SuperNode's public key, as `tacit silo keys` makes it.")],
    superlink: Link,
    authority: Authority,
) -> None:
    """Let a silo's SuperNode in.

    Example: tacit server register clinic clinic.pub --superlink 10.0.0.5:9092 --authority ca.pem
    """
    from tacit.deploy.flower.commands import register, write_connection

    need_file(public_key, f"give the public key that {name}'s owner made with: tacit silo keys (node.key.pub)")
    need_file(authority, AUTHORITY)
    with tempfile.TemporaryDirectory() as home:
        write_connection(Path(home), superlink=superlink, authority=authority)
        register(Path(home), public_key, name)
    typer.echo(f"{name} may join.")


@server_app.command("keys")
def keys_command(
    folder: Annotated[Path, typer.Argument(help="Where the key is kept; of the user who leads studies alone.")],
    name: Annotated[str, typer.Option(help="The name by which silos' policies know this proposer.")],
) -> None:
    """Make a proposer's key, once, and print the line for silos' policies.

    proposer.toml beside it lists the silos' public keys: write into it what their owners print with `tacit silo keys`.

    Example: tacit server keys proposer --name university
    """
    from tacit.deploy.permissions import read_secret, write_secret
    from tacit.deploy.signing import Signer, new_signing_key

    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (folder / "proposer.key").exists():
        write_secret(folder / "proposer.key", new_signing_key())
    if not (folder / "proposer.toml").exists():
        text = template("proposer.toml", folder).replace("{proposer}", name)
        (folder / "proposer.toml").write_text(text, encoding="utf-8")
    typer.echo("For each silo's policy.toml:\n\n[proposers]")
    typer.echo(f'{name} = "{Signer(read_secret(folder / "proposer.key")).public}"')


@server_app.command("run")
def run_command(
    study: Annotated[str, typer.Argument(help="Name of a study, or a path to a TOML file.")],
    superlink: Link,
    authority: Authority,
    silos: Annotated[int, typer.Option(help="How many silos take part.")],
    keys: Annotated[Path, typer.Option(help="The folder of the proposer's key, from `tacit server keys`.")],
    shufflers: Annotated[
        Path | None, typer.Option(help="TOML file with [[shufflers]]; see docs/deployment.md.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override a field; may be repeated.")
    ] = None,
    out: Out = Path("runs"),
    resume: Annotated[Path | None, typer.Option(help="Go on with the study of this run folder.")] = None,
    round_seconds: Annotated[float, typer.Option(help="How long a round waits for silos it may go without.")] = 120.0,
    patience: Annotated[float, typer.Option(help="How long anything waits for a silo that is needed.")] = 3600.0,
    evaluate: Annotated[bool, typer.Option("--evaluate", help="Measure on the study's own, public data set.")] = False,
    record: Annotated[bool, typer.Option("--record", help="Keep everything that silos send, to look at.")] = False,
) -> None:
    """Lead a study, on the SuperLink's machine: propose it to the silos, train, and write a run folder.

    Example: tacit server run heart-disease --superlink 10.0.0.5:9092 --authority ca.pem --silos 4 --keys proposer
    """
    need_file(authority, AUTHORITY)
    proposer = _read_proposer(keys)
    listed = [] if shufflers is None else _read_shufflers(shufflers)

    from tacit.deploy.flower.commands import write_connection
    from tacit.deploy.flower.watch import follow
    from tacit.deploy.server.deployment import deployment_from
    from tacit.studies.folder import typed_command

    terms = {
        "silos": silos,
        "folder": "",
        "round_seconds": round_seconds,
        "patience": patience,
        "evaluate": evaluate,
        "record": record,
        "shufflers": listed,
        "proposer": proposer["name"],
        "key": str((keys / "proposer.key").resolve()),
        "pins": proposer["silos"],
        # The process that writes the report is Flower's child, whose own arguments hold a secret.
        "command": typed_command(),
    }
    deployment_from(terms)
    folder = _run_folder(study, overrides or [], len(listed), out) if resume is None else resume.resolve()
    if not (folder / "study.toml").is_file():
        raise TacitError(f"{folder} is not a run folder; leave --resume out to start anew.")
    terms["folder"] = str(folder)
    (folder / "deployment.toml").write_text(tomli_w.dumps(terms), encoding="utf-8")
    write_connection(folder / "flower", superlink=superlink, authority=authority)
    follow(folder, Console())
    typer.echo(f"Report: {folder / 'report.html'}")


@server_app.command("abort")
def abort_command(
    folder: Annotated[Path, typer.Argument(help="The run folder of the study.")], superlink: Link, authority: Authority
) -> None:
    """End the study of a run folder at every silo, within a minute, whether a server still leads it or not.

    What silos have not used goes back to them. The run cannot be resumed afterwards.

    Example: tacit server abort runs/heart-disease --superlink 10.0.0.5:9092 --authority ca.pem
    """
    need_file(authority, AUTHORITY)
    need_file(folder / "checkpoint.npz", "give the run folder of a study that was proposed")
    from tacit.deploy.flower.commands import write_connection
    from tacit.deploy.flower.watch import follow
    from tacit.deploy.server.study import ABORT

    (folder / ABORT).touch()
    write_connection(folder.resolve() / "flower", superlink=superlink, authority=authority)
    follow(folder.resolve(), Console())
    typer.echo(f"Ended; what each silo said: {folder / 'progress.jsonl'}")


def _run_folder(study: str, overrides: list[str], shufflers: int, out: Path) -> Path:
    """A new run folder with the study in it, once it is known to be one that can be deployed."""
    from tacit.deploy.server.deployment import check_study
    from tacit.plans.spec import load_study
    from tacit.studies.folder import new_folder, write_study

    resolved = load_study(study, overrides)
    check_study(resolved, shufflers)
    folder = new_folder(out, resolved).resolve()
    write_study(folder, resolved)
    return folder


def _read_proposer(keys: Path) -> dict[str, Any]:
    """The proposer's name, and the silos whose keys are pinned."""
    need_file(keys / "proposer.key", f"make it with: tacit server keys {keys} --name NAME")
    from tacit.deploy.sections import read_toml

    path = keys / "proposer.toml"
    tree = read_toml(path, TacitError, f"No file at {path}; make it with: tacit server keys {keys} --name NAME")
    if not isinstance(tree.get("name"), str) or not tree.get("silos"):
        raise TacitError(f"{path}: expected name, and [silos] with the key of each silo.")
    return tree


def _read_shufflers(path: Path) -> list[Any]:
    """The shufflers that a file lists; what each entry must hold is checked with the deployment."""
    need_file(path, "give --shufflers a TOML file with [[shufflers]], see docs/deployment.md")
    try:
        listed = tomllib.loads(path.read_text(encoding="utf-8")).get("shufflers", [])
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TacitError(f"--shufflers: {path} is not valid TOML: {error}.") from None
    if not isinstance(listed, list):
        raise TacitError(f"--shufflers: expected [[shufflers]] in {path}, with two brackets, once for each shuffler.")
    return listed
