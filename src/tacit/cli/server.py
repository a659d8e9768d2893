"""``tacit server``: lead a study among real silos over Flower."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Annotated, Any

import tomli_w
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tacit.cli import (
    Command,
    Json,
    Live,
    Metrics,
    Out,
    Webhook,
    group,
    keep_looking,
    need_file,
    print_json,
    print_table,
    template,
)
from tacit.errors import TacitError, printable

server_app = group(
    "server",
    "The server of a consortium: a SuperLink, and studies that run over it."
    "\n\nExample: tacit server run heart-disease --control state/control.toml --silos 4 --keys proposer",
)

ControlFile = Annotated[
    Path,
    typer.Option("--control", help="control.toml of the SuperLink's folder, or your copy; used on its machine only."),
]
Keys = Annotated[Path, typer.Option(help="The folder of the proposer's key, from `tacit server keys`.")]
_NOTHING = 1e-6  # an end of an interval below this is shown as zero
_Only = Annotated[str | None, typer.Option(metavar="A,B,...", help="The names of these silos, where more are online.")]
_Shufflers = Annotated[Path | None, typer.Option(help="TOML file with [[shufflers]]; see docs/deployment.md.")]
_Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override a field; may be repeated.")
]


@server_app.command("link")
def link_command(
    folder: Annotated[Path, typer.Argument(help="Where the SuperLink keeps its state; of its user alone.")],
    certificate: Annotated[Path, typer.Option(help="The certificate that nodes see, PEM.")],
    key: Annotated[Path, typer.Option(help="The key of the certificate, PEM.")],
    host: Annotated[
        str, typer.Option(help="The address for nodes; 0.0.0.0 is every address of this machine.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port for nodes.")] = 9092,
    control_port: Annotated[int, typer.Option(help="The SuperLink's own port, on 127.0.0.1 always.")] = 9093,
) -> None:
    """Start a SuperLink that executes nothing, and a front that lets registered nodes reach it and nobody else.

    The network reaches only the front, with TLS, and only what nodes need. Studies are started on this machine, with
    control.toml of the folder.

    Example: tacit server link state --certificate link.pem --key link.key --host 0.0.0.0
    """
    need_file(certificate, "give --certificate the front's link.pem, see Certificates in docs/deployment.md")
    need_file(key, "give --key the front's link.key, see Certificates in docs/deployment.md")
    if port == control_port:
        raise TacitError(f"Expected two ports, got --port={port} and --control-port={control_port}.")

    from tacit.deploy.flower.commands import flower, link_files
    from tacit.deploy.permissions import check_silo

    flower("flower-superlink")
    from tacit.deploy.flower.front import serve
    from tacit.deploy.flower.private import check_flower

    check_flower()
    if host in ("127.0.0.1", "localhost", "::1"):
        typer.echo(
            f"Only this machine reaches {host}:{port}. For the network: --host ADDRESS, or --host 0.0.0.0", err=True
        )
    files = link_files(folder, control_port)
    because = "whoever reads or changes them can lead runs at this SuperLink"
    check_silo(folder.resolve(), [files.key, files.secret, files.control, files.database], because=because)
    serve(files, host=host, port=port, control_port=control_port, certificate=certificate, key=key)


@server_app.command("register")
def register_command(
    name: Annotated[str, typer.Argument(help="The silo's name.")],
    public_key: Annotated[Path, typer.Argument(help="Its node's public key, as `tacit silo keys` makes it.")],
    control: ControlFile,
) -> None:
    """Let a silo's node in.

    Example: tacit server register clinic clinic.pub --control state/control.toml
    """
    need_file(public_key, f"give the public key that {name}'s owner made with: tacit silo keys (node.key.pub)")
    from tacit.deploy.flower.commands import read_control

    found = read_control(control)
    from tacit.deploy.flower.private import Link, check_flower

    check_flower()
    with Link(found) as link:
        if any(row.name == name for row in link.nodes()):
            raise TacitError(
                f"A node of the name {name} is registered; shut it out first: tacit server unregister {name}"
            )
        _register(link, name, public_key)
    typer.echo(f"{name} may join.")


def _register(link: Any, name: str, public_key: Path) -> None:
    """Register a node's key; the SuperLink takes no key twice, not even one that was shut out."""
    from tacit.deploy.flower.private import FlowerError

    try:
        link.register(name, public_key.read_bytes())
    except FlowerError as error:
        if "already in use" not in str(error):
            raise
        raise TacitError(
            f"The SuperLink has had the key {public_key} before, and takes no key twice, not even one that was shut "
            f"out. {name}'s owner makes a new one: see Certificates in docs/deployment.md."
        ) from None


@server_app.command("unregister")
def unregister_command(
    name: Annotated[str, typer.Argument(help="The name that a node was registered by.")],
    control: ControlFile,
) -> None:
    """Shut a silo's node out; its key can never be registered again, so make it a new one.

    Example: tacit server unregister clinic --control state/control.toml
    """
    from tacit.deploy.flower.commands import read_control

    found = read_control(control)
    from tacit.deploy.flower.private import Link, check_flower

    check_flower()
    with Link(found) as link:
        nodes = [row.node for row in link.nodes() if row.name == name]
        if not nodes:
            raise TacitError(f"No node of the name {name} is registered; see: tacit server silos")
        for node in nodes:
            link.unregister(node)
    typer.echo(f"{name} is shut out.")


@server_app.command("silos")
def silos_command(
    control: ControlFile,
    keys: Keys,
    seconds: Annotated[float, typer.Option(help="How long to wait for the silos' answers.")] = 10.0,
    as_json: Json = False,
) -> None:
    """List the nodes: registered names, who is online, and what silos say of themselves in signed answers.

    Example: tacit server silos --control state/control.toml --keys proposer
    """
    proposer = _read_proposer(keys)
    from tacit.deploy.flower.silos import silos_of

    rows = silos_of(control, proposer["name"], keys / "proposer.key", proposer["silos"], seconds)
    if as_json:
        print_json(rows)
        return
    table = Table("node", "online", "silo", "Tacit", "records", "schema", "note", title="nodes")
    for row in rows:
        said = [str(row[key]) if row[key] is not None else "–" for key in ("silo", "tacit", "records", "schema")]
        # Names and versions are what others say.
        table.add_row(*map(Text, (row["name"], "yes" if row["online"] else "no", *said, row["note"])))
    Console().print(table if rows else "No nodes are registered; register them with: tacit server register")


@server_app.command("keys")
def keys_command(
    folder: Annotated[Path, typer.Argument(help="Where the key is kept; of the user who leads studies alone.")],
    name: Annotated[str, typer.Option(help="The name by which silos' policies know this proposer.")],
) -> None:
    """Make a proposer's key, once, and print the line for silos' policies and shufflers' terms.

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
    line = f'{name} = "{Signer(read_secret(folder / "proposer.key")).public}"'
    typer.echo(f"For each silo's policy.toml:\n\n[proposers]\n{line}")
    typer.echo(f"\nFor each shuffler's shuffler.toml:\n\n[callers]\n{line}")


@server_app.command("run")
def run_command(
    study: Annotated[str, typer.Argument(help="Name of a study, or a path to a TOML file.")],
    control: ControlFile,
    silos: Annotated[int, typer.Option(help="How many silos take part.")],
    keys: Keys,
    only: _Only = None,
    shufflers: _Shufflers = None,
    overrides: _Overrides = None,
    out: Out = Path("runs"),
    resume: Annotated[Path | None, typer.Option(help="Go on with the study of this run folder.")] = None,
    round_seconds: Annotated[float, typer.Option(help="How long a round waits for silos it may go without.")] = 120.0,
    patience: Annotated[float, typer.Option(help="How long anything waits for a silo that is needed.")] = 3600.0,
    evaluate: Annotated[bool, typer.Option("--evaluate", help="Measure on the study's own, public data set.")] = False,
    record: Annotated[bool, typer.Option("--record", help="Keep everything that silos send, to look at.")] = False,
    statistics: Annotated[
        Path | None, typer.Option(help="The run folder of statistics: features are scaled by what they say.")
    ] = None,
) -> None:
    """Lead a study, on the SuperLink's machine: propose it to the silos, train, and write a run folder.

    It runs as your user, and needs no other right than to read control.toml and the proposer's key.

    Example: tacit server run heart-disease --control state/control.toml --silos 4 --keys proposer
    """
    from tacit.deploy.flower.commands import read_control

    proposer = _read_proposer(keys)
    waits = {"round_seconds": round_seconds, "patience": patience, "evaluate": evaluate, "record": record}
    terms = {**_terms(proposer, keys, silos, only, shufflers), **waits}
    read_control(control)
    overrides = [*(overrides or []), *([] if statistics is None else [_ranges(statistics)])]
    _lead(terms, study, overrides, out, resume, control)


def _ranges(folder: Path) -> str:
    """An override of a study: ranges of numbers, as the statistics of a run folder say them."""
    need_file(folder / "statistics.json", "give --statistics the run folder of a study of statistics")
    from tacit.counting.ranges import ranges_of

    found = ranges_of(json.loads((folder / "statistics.json").read_text(encoding="utf-8")))
    for name, (low, high) in found.items():
        typer.echo(f"{name}: {low:g} to {high:g}, by {folder}")
    listed = ", ".join(f"{json.dumps(name)} = [{low!r}, {high!r}]" for name, (low, high) in found.items())
    return f"data.options.ranges={{{listed}}}"


def _lead(
    terms: dict[str, Any], study: str, overrides: list[str], out: Path, resume: Path | None, control: Path
) -> None:
    """Lead a study in a new run folder, or go on in one; ``terms`` become the folder's deployment."""
    from tacit.deploy.flower.watch import follow
    from tacit.deploy.server.deployment import check_proposer, deployment_from, locked
    from tacit.studies.folder import typed_command

    # Another process writes the report.
    terms["command"] = typed_command()
    deployment_from(terms)
    folder = _run_folder(study, overrides, len(terms["shufflers"]), out) if resume is None else resume.resolve()
    if not (folder / "study.toml").is_file():
        raise TacitError(f"{folder} is not a run folder; leave --resume out to start anew.")
    terms["folder"] = str(folder)
    with locked(folder) as make_room:
        check_proposer(folder, terms["proposer"])
        (folder / "deployment.toml").write_text(tomli_w.dumps(terms), encoding="utf-8")
        make_room()
        follow(folder, control.resolve(), Console())
    said = folder / "statistics.json"
    if said.is_file():
        from tacit.cli.statistics import print_statistics

        print_statistics(json.loads(said.read_text(encoding="utf-8")))
    typer.echo(f"Report: {said if said.is_file() else folder / 'report.html'}")


@server_app.command("status")
def status_command(
    folder: Annotated[Path, typer.Argument(help="The run folder of the study.")],
    live: Live = False,
    as_json: Json = False,
) -> None:
    """Show how a study stands: rounds, who was missing, epsilon spent, whom it waits for, and the last refusals.

    Example: tacit server status runs/heart-disease --live
    """
    need_file(folder / "study.toml", "give the run folder of a study")
    if live:
        keep_looking(lambda: status_command(folder, live=False, as_json=as_json))
    from tacit.deploy.flower.watch import View

    view = View(folder / "progress.jsonl")
    rows = view.read()
    refused = [row for row in rows if row["event"] == "refusal"][-3:]
    if as_json:
        last = view.rows[-1] if view.rows else {}
        shown = {"missed": last.get("missed", []), "epsilon": last.get("epsilon"), "seconds_left": view.left}
        print_json({**view.facts, **shown, "refusals": refused})
        return
    console = Console()
    console.print(view.table())
    for row in refused:
        console.print(Text(f"refused by {row['silo']} ({row['code']}): {row['text']}"), soft_wrap=True)


@server_app.command("watch")
def watch_command(
    runs: Annotated[Path, typer.Argument(help="The folder that run folders are made in.")],
    metrics: Metrics = None,
    webhook: Webhook = None,
    command: Command = None,
) -> None:
    """Watch the newest runs until stopped: Prometheus metrics, and word of what happens, by webhook or command.

    Events: a run waits for an owner's approval, ends, or is refused by a silo.

    Example: tacit server watch runs --metrics 9466 --webhook http://127.0.0.1:8080/tacit
    """
    from functools import partial

    from tacit.cli.watch import look_at_server, watch

    watch(partial(look_at_server, runs), runs / "told.json", metrics=metrics, webhook=webhook, command=command)


@server_app.command("abort")
def abort_command(
    folder: Annotated[Path, typer.Argument(help="The run folder of the study.")], control: ControlFile
) -> None:
    """End the study of a run folder at every silo, within a minute, whether a server still leads it or not.

    What silos have not used goes back to them. The run cannot be resumed afterwards, unless no silo could be reached
    or all refused.

    Example: tacit server abort runs/heart-disease --control state/control.toml
    """
    need_file(folder / "checkpoint.npz", "give the run folder of a study that was proposed")
    from tacit.deploy.flower.commands import read_control

    read_control(control)
    from tacit.deploy.flower import leader
    from tacit.deploy.server import ending

    with leader.connected(control) as transport:
        said = ending.abort(folder, transport)
    for name, text in said.items():
        typer.echo(f"{name}: {text}")


@server_app.command("deliver")
def deliver_command(
    folder: Annotated[Path, typer.Argument(help="The run folder of a study that is through.")], control: ControlFile
) -> None:
    """Send the model of a study to its silos, for a minute; `tacit server run` did so for those that were there.

    A silo that has the model says so again. The owners list theirs with: tacit silo models

    Example: tacit server deliver runs/heart-disease --control state/control.toml
    """
    need_file(folder / "checkpoint.npz", "give the run folder of a study that is through")
    from tacit.deploy.flower.commands import read_control

    read_control(control)
    from tacit.deploy.flower import leader
    from tacit.deploy.server.delivery import deliver_again

    with leader.connected(control) as transport:
        said = deliver_again(folder, transport)
    for name, text in said.items():
        typer.echo(f"{name}: {text}")


@server_app.command("evaluate")
def evaluate_command(
    model: Annotated[Path, typer.Argument(help="A run folder of `tacit server run` or `evaluate`, or any bundle.")],
    control: ControlFile,
    epsilon: Annotated[
        float | None, typer.Option(help="Of the records set aside, at each silo; by default what the model had.")
    ] = None,
    group: Annotated[
        list[str] | None, typer.Option(help="A category by whose levels it is told too; may be repeated.")
    ] = None,
    threshold: Annotated[float | None, typer.Option(help="The probability from which a class is predicted.")] = None,
    residual: Annotated[
        float | None, typer.Option(help="The largest error of a number that counts, as a share of its range.")
    ] = None,
    own: Annotated[
        bool | None,
        typer.Option(help="Count silos' own models too, at the same epsilon; by default where the study made such."),
    ] = None,
    keys: Annotated[Path | None, typer.Option(help="For a bundle: the folder of the proposer's key.")] = None,
    silos: Annotated[int | None, typer.Option(help="For a bundle: how many silos are asked.")] = None,
    only: _Only = None,
    shufflers: _Shufflers = None,
    delta: Annotated[float | None, typer.Option(help="For a bundle: by default what the model had.")] = None,
    out: Out = Path("runs"),
    again: Annotated[
        bool, typer.Option("--again", help="Ask once more, at the same price, what was answered before.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Ask silos how a finished model does on records that they have set aside, and show it with 95% intervals.

    Silos count their records by score and truth, with noise, and pay from the account of records set aside: training
    is not touched. `tacit server run` ends with it; this goes on where owners had to approve, or asks something else.
    Models of silos' own (mr-mtl) are counted there, in the same release, and compared with the shared one.
    It says whom it waits for. Answers that were paid for are shown again, and cost nothing, unless --again is given.
    A bundle alone, wherever it was trained, needs --keys and --silos too; a new run folder keeps what is said.

    Example: tacit server evaluate runs/heart-disease --control state/control.toml --group sex
    """
    from tacit.deploy.flower.commands import read_control

    read_control(control)
    folder = model
    _check_writable(folder if (model / "deployment.toml").is_file() else out)
    if not (model / "deployment.toml").is_file():
        folder = _bundle_folder(model, out, keys, silos, only, shufflers, epsilon, delta)
    elif keys is not None or silos is not None or only is not None or shufflers is not None or delta is not None:
        raise TacitError(f"{model} knows its silos, keys, shufflers and delta; leave these options out.")
    from tacit.deploy.flower import leader
    from tacit.deploy.server.study import evaluate_again
    from tacit.plans.spec import load_study

    given = {"epsilon": epsilon, "groups": tuple(group or ()) or None, "threshold": threshold, "residual": residual}
    given |= {"own": own}
    section = load_study(folder / "study.toml").validation.model_dump()
    section |= {key: value for key, value in given.items() if value is not None}

    def tell(event: str, facts: dict[str, Any]) -> None:
        if event == "met":
            typer.echo(f"met {facts['silo']}", err=True)
        elif event in ("warning", "validating"):
            typer.echo("warning: " * (event == "warning") + printable(facts["text"]), err=True)

    try:
        with leader.connected(control) as transport:
            facts = evaluate_again(folder, transport, section, tell=tell, again=again)
    except TacitError:
        if folder != model:
            typer.echo(f"To go on later: tacit server evaluate {folder} --control {control}", err=True)
        raise
    if as_json:
        print_json(facts)
        return
    print_validation(facts)
    report = folder / "report.html"
    typer.echo(f"Report: {report if report.is_file() else folder / 'validation.json'}")


def _check_writable(folder: Path) -> None:
    """Refuse what could not be kept before anybody is asked, and paid: a folder of another user, or a file of it."""
    from tacit.deploy.permissions import other_owner

    for path in (folder, *sorted(folder.glob("validation.*"))):
        owner = other_owner(path)
        if owner is not None or (path.exists() and not os.access(path, os.W_OK)):
            whose = "cannot be written" if owner is None else f"belongs to {owner}"
            raise TacitError(
                f"{path} {whose}: what silos say could not be kept, and they would have paid for it. Run this as the "
                "user who led the study."
            )


def _bundle_folder(
    bundle: Path,
    out: Path,
    keys: Path | None,
    silos: int | None,
    only: str | None,
    shufflers: Path | None,
    epsilon: float | None,
    delta: float | None,
) -> Path:
    """A new run folder around a bundle, with all that a deployment needs."""
    if keys is None or silos is None:
        raise TacitError(
            f"{bundle} is no run folder that `tacit server run` has led. For a bundle give --keys and --silos too: "
            f"tacit server evaluate {bundle} --control CONTROL --keys FOLDER --silos N"
        )
    proposer = _read_proposer(keys)
    from tacit.deploy.server.deployment import deployment_from
    from tacit.deploy.server.validation import bundle_run

    terms = _terms(proposer, keys, silos, only, shufflers)
    deployment_from(terms)
    folder = bundle_run(bundle, out, epsilon=epsilon, delta=delta)
    terms["folder"] = str(folder)
    (folder / "deployment.toml").write_text(tomli_w.dumps(terms), encoding="utf-8")
    return folder


def _terms(
    proposer: dict[str, Any], keys: Path, silos: int, only: str | None, shufflers: Path | None
) -> dict[str, Any]:
    """What every deployment says: who takes part, who leads it, and which shufflers there are."""
    return {
        "silos": silos,
        "only": [name.strip() for name in (only or "").split(",") if name.strip()],
        "folder": "",
        "shufflers": [] if shufflers is None else _read_shufflers(shufflers),
        "proposer": proposer["name"],
        "key": str((keys / "proposer.key").resolve()),
        "pins": proposer["silos"],
    }


def print_validation(facts: dict[str, Any]) -> None:
    """Show what silos say of a model, by silo and overall; and of their own models, where they were asked."""
    from tacit.counting.validated import own_verdict, verdict

    console = Console()
    total = sum(silo["records"] for silo in facts["silos"])
    parts = [{"name": "all", "records": total, **facts}, *facts["silos"]]
    _print_numbers(f"{facts['study']}, 95% intervals", [(part, part["numbers"]) for part in parts], console)
    console.print(Text(verdict(facts)))
    if (words := own_verdict(facts)) is not None:
        own = [(part, part["own"] and part["own"]["numbers"]) for part in parts]
        _print_numbers("each silo's own model", own, console)
        console.print(Text(words))
    console.print(f"Epsilon {facts['epsilon']:.4g} at delta {facts['delta']:g}, of records set aside.", highlight=False)


def _print_numbers(title: str, parts: list[tuple[Any, Any]], console: Console) -> None:
    """A table of what is known of all silos, which come first, and of each."""
    from tacit.counting.validated import MAIN, main_row

    measures = [name for name in MAIN if main_row(parts[0][1] or (), name)]
    table = Table("silo", "records", *measures, title=title)
    for part, rows in parts:
        # Sums tell of all silos together, and of none alone.
        shown = ["–" if rows is None else _interval(main_row(rows, name)) for name in measures]
        table.add_row(Text(part["name"]), str(part["records"]), *shown)
    print_table(table, console)


def _interval(row: Any) -> str:
    if row is None or row["value"] is None:
        return "too few"
    ends = [row[key] for key in ("low", "high")]
    return " to ".join("?" if end is None else f"{0.0 if abs(end) < _NOTHING else end:.3g}" for end in ends)


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
