"""``tacit consortium init``: one kit per party, a folder to hand over. No kit holds a secret, its party's included."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from tacit import __version__
from tacit.data.schema import Schema, public_schema
from tacit.deploy.consortium import pages
from tacit.deploy.consortium.certificates import Authority, write_public
from tacit.deploy.consortium.terms import SERVER, Consortium, ConsortiumError, consortium_from, load_consortium
from tacit.deploy.sections import read_toml
from tacit.deploy.wire import Description

LEFT = "left.toml"
"""What says that a party has left, in its home."""


class Kit(NamedTuple):
    """What a party is told before it has keys: its name, everybody's terms, and the authority's certificate."""

    party: str
    terms: Consortium
    authority: str
    schema_digest: str


def init(path: Path, out: Path) -> dict[str, Path]:
    """Make the kits of a consortium, and its authority, in a new folder; returns the folders that were made.

    In a folder that has its authority, kits are made for the parties that have none yet.
    """
    terms, beside = load_consortium(path), path.parent
    schema = beside / terms.data_schema
    found = _servable(schema)
    study = None if terms.study is None else _study(beside / terms.study)
    _check_place(out, terms, description(found).digest)
    out.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority = Authority(out / "authority", f"authority of {terms.name}")
    folders = {"authority": out / "authority"}
    digest = description(found).digest
    for party in [name for name in terms.parties if not (out / name).exists()]:
        kit = Kit(party, terms, authority.certificate.read_text(encoding="ascii"), digest)
        folders[party] = _write(out / party, kit, schema, study)
    own = tomli_w.dumps({**terms.plain(), "schema": "schema.toml"})
    write_public(out / "authority" / "consortium.toml", own)
    write_public(out / "authority" / "schema.toml", schema.read_bytes())
    write_public(out / "authority" / "README.md", pages.coordinator(terms, out / "authority"))
    return folders


def _check_place(out: Path, terms: Consortium, digest: str) -> None:
    """Refuse a folder of anything but this consortium's kits."""
    if not out.exists() or not any(out.iterdir()):
        return
    if not (out / "authority" / "ca.key").exists():
        raise ConsortiumError(f"{out} is not empty; name a new folder with --out, or that of this consortium's kits.")
    before = load_consortium(out / "authority" / "consortium.toml")
    kept = description(public_schema(out / "authority" / "schema.toml")).digest
    if before.name != terms.name or kept != digest:
        raise ConsortiumError(
            f"{out} has the kits of {before.name}, and of its schema; another consortium, or another schema, needs a "
            "new folder (--out) and a new authority."
        )


def _servable(path: Path) -> Schema:
    """A schema that real silos can serve."""
    schema = public_schema(path)
    if schema.norm == "box":
        raise ConsortiumError(
            f'{path} has norm = "box", as tacit init --private writes it, but private statistics are not released in '
            "deployments yet; make a schema with declared ranges, tacit init --range and without --private."
        )
    return schema


def description(schema: Schema) -> Description:
    """What a schema means, as silos tell it."""
    return Description.model_validate(schema.description())


def data_section(schema: Schema, validation: float) -> str:
    """The policy's [data] for records of a schema, without its heading."""
    target = schema.target
    section: dict[str, Any] = {"file": "records.csv", "columns": "schema.toml", "task": target.task}
    section |= {} if target.classes is None else {"classes": len(target.classes)}
    return tomli_w.dumps(section | ({"validation": validation} if validation else {}))


def _study(path: Path) -> dict[str, Any]:
    """A study for the proposer: what it says, with the schema that lies beside it there."""
    tree = read_toml(path, ConsortiumError, f"No study at {path}; leave `study` out of consortium.toml, or name one.")
    return {**tree, "data": {"name": "csv", "options": {"folder": "schema"}}}


def _write(folder: Path, kit: Kit, schema: Path, study: dict[str, Any] | None) -> Path:
    """One kit: public files, readable by all."""
    folder.mkdir(mode=0o755)
    home, terms, party = pages.HOMES / kit.party, kit.terms, kit.party
    files = {
        "kit.toml": tomli_w.dumps(plain(kit)),
        "ca.pem": kit.authority,
        "schema.toml": schema.read_text(encoding="utf-8"),
        **pages.containers(terms, party, home),
        "README.md": pages.readme(terms, party, home),
        "grafana.json": pages.board(),
    }
    if terms.parties[party] == "silo":
        data = data_section(public_schema(schema), terms.validation)
        files["policy.toml"] = pages.policy(terms, party, data=data)
    if terms.parties[party] == "shuffler":
        files["shuffler.toml"] = pages.shuffler_terms(terms, party)
    if party == SERVER and study is not None:
        files["study.toml"] = tomli_w.dumps(study)
    for name, text in files.items():
        write_public(folder / name, text)
    (folder / "units").mkdir(mode=0o755)
    for name, text in pages.units(terms, party, home).items():
        write_public(folder / "units" / name, text)
    return folder


def plain(kit: Kit) -> dict[str, Any]:
    """A kit as plain values."""
    facts = {"party": kit.party, "tacit": __version__, "schema_digest": kit.schema_digest}
    return {**facts, "authority": kit.authority, "consortium": kit.terms.plain()}


def read_kit(path: Path) -> Kit:
    """The kit in a folder that was handed over, or of a party that has joined with it."""
    missing = f"No kit at {path}; give the folder that the coordinator has handed over (it holds kit.toml)."
    tree = read_toml(path / "kit.toml", ConsortiumError, missing)
    try:
        terms = consortium_from(tree["consortium"])
        kit = Kit(str(tree["party"]), terms, str(tree["authority"]), str(tree["schema_digest"]))
    except (KeyError, TypeError) as error:
        raise ConsortiumError(f"{path / 'kit.toml'} is not as `tacit consortium init` writes it: {error}.") from None
    if kit.party not in terms.parties:
        raise ConsortiumError(f"{path / 'kit.toml'} is for {kit.party}, which is no party of its consortium.")
    return kit


def read_text(path: Path, what: str) -> str:
    """A text file of a kit."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConsortiumError(f"{what} cannot be read at {path}: {error}.") from None


def homes(below: Path = pages.HOMES) -> list[Path]:
    """The parties that live on this machine in the usual place."""
    return sorted(path.parent for path in below.glob("*/kit.toml")) if below.is_dir() else []


def only_home() -> Path:
    """The one party of this machine; an error that names them where there are several."""
    found = homes()
    if len(found) != 1:
        listed = ", ".join(map(str, found)) or f"none in {pages.HOMES}"
        raise ConsortiumError(f"Expected one party on this machine, found: {listed}. Name its home.")
    return found[0]
