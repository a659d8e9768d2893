"""A consortium of made-up clinics, set up as its members would, with everything in folders of this user."""

from __future__ import annotations

from pathlib import Path

import tomli_w
from typer.main import get_command

from tacit.cli import app
from tacit.deploy.consortium.accepting import accept
from tacit.deploy.consortium.joining import join, reply_text
from tacit.deploy.consortium.kits import init
from tacit.deploy.consortium.roster import Roster, admit, roster_text

SILOS = ("bergen", "oslo", "tromso")


def consortium_file(root: Path, **changes) -> Path:
    """The clinics that ship with Tacit, and a consortium.toml beside them; without a value a key is left out."""
    folder = root / "clinics"
    get_command(app).main(["init", str(folder), "--example", "clinics"], standalone_mode=False)
    tree = {
        "name": "clinics",
        "proposer": "university",
        "silos": list(SILOS),
        "channels": ["direct", "pairwise", "shuffled-sum"],
        "schema": "schema.toml",
        "study": "study.toml",
        "server": {"host": "server.example.org"},
        "shufflers": {"a": {"host": "a.example.org"}, "b": {"host": "b.example.org", "port": 9401}},
    }
    tree = {key: value for key, value in (tree | changes).items() if value is not None}
    path = folder / "consortium.toml"
    path.write_text(tomli_w.dumps(tree), encoding="utf-8")
    return path


def joined(root: Path, **changes) -> tuple[dict[str, Path], dict[str, Path]]:
    """Kits and homes of all parties, whose replies lie in ``root / "replies"``."""
    kits = init(consortium_file(root, **changes), root / "kits")
    (root / "replies").mkdir()
    homes = {}
    for party in [name for name in kits if name != "authority"]:
        records = root / "clinics" / f"{party}.csv" if party in SILOS else None
        homes[party], reply = join(kits[party], root / "homes" / party, records, whose="mine")
        (root / "replies" / f"{party}.reply.toml").write_text(reply_text(reply), encoding="utf-8")
    return kits, homes


def admitted(root: Path, kits: dict[str, Path]) -> tuple[Path, Roster]:
    """The roster, and its file."""
    roster = admit([root / "replies"], kits["authority"])
    path = root / "roster.toml"
    path.write_text(roster_text(roster), encoding="utf-8")
    return path, roster


def set_up(root: Path, **changes) -> dict[str, Path]:
    """The homes of a consortium in which everybody has accepted everybody."""
    kits, homes = joined(root, **changes)
    path, roster = admitted(root, kits)
    for home in homes.values():
        accept(path, home, roster.fingerprint)
    return homes
