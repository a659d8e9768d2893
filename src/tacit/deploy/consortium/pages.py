"""The files of a kit that people read or machines start from: units, compose file, image, policy, README."""

from __future__ import annotations

import os
import re
import shlex
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from tacit import __version__
from tacit.deploy.consortium.terms import (
    SERVER,
    Consortium,
    ConsortiumError,
    Service,
    account_name,
    services,
    watcher,
)

HOMES = Path("/srv/tacit")
"""Where parties live, unless they are told otherwise."""

INSTALLED = "/opt/tacit/bin/tacit"
WHEEL = f"tacit-{__version__}-py3-none-any.whl"
"""What everybody installs: a file, because the public index has another package of this name."""

WATCH = "watch.env"
"""What a party's watcher does beside its log."""

CONTAINER_USERS = (10001, 10002)
"""The users of a party's containers, by number."""


_PLAIN = re.compile(r"[A-Za-z0-9._:/@+-]+")


def installed() -> str:
    """The command as services call it: that of this environment."""
    found = Path(sys.executable).with_name("tacit")
    return str(found) if found.exists() else INSTALLED


def rendered(name: str, **values: Any) -> str:
    """A template of this folder, filled in."""
    settings = {"undefined": jinja2.StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    environment = jinja2.Environment(autoescape=False, keep_trailing_newline=True, **settings)  # type: ignore[arg-type]
    text = (resources.files("tacit.deploy.consortium") / "templates" / f"{name}.jinja").read_text(encoding="utf-8")
    return environment.from_string(text).render(**values)


def board() -> str:
    """The Grafana board of what `tacit silo watch`, `server watch` and `shuffler watch` export."""
    return (resources.files("tacit.deploy.consortium") / "templates" / "grafana.json").read_text(encoding="utf-8")


def units(terms: Consortium, party: str, home: Path, tacit: str = INSTALLED) -> dict[str, str]:
    """The systemd units of a party, by the name of their files.

    Formal guarantee: no word of a command, and no path, is more to systemd than that word: all others raise.
    """
    watches = watcher(terms, party, home)
    own = [*services(terms, party, home), watches]
    words = [tacit, *(str(word) for service in own for word in (*service.words, *service.writes))]
    strange = [word for word in words if not _PLAIN.fullmatch(word)]
    if strange:
        listed = ", ".join(map(repr, strange))
        raise ConsortiumError(
            f"Expected letters, digits and any of ._:/@+- in what units say, got {listed}; choose another --home, or "
            "join with --containers."
        )
    settings = {watches: home / WATCH}
    return {
        f"{service.name}.service": rendered("service", service=service, tacit=tacit, settings=settings.get(service))
        for service in own
    }


def by_hand(terms: Consortium, party: str, home: Path, *, apart: bool = True) -> list[str]:
    """What root types, or a supervisor of its own starts, where no unit does; each runs until it is stopped.

    Where the party's users are not ``apart``, all of it runs as whoever types it.
    """
    own = [(f"runuser -u {service.user} -- " * apart, service.words) for service in services(terms, party, home)]
    return [f"{user}{shlex.join([installed(), *words])}" for user, words in own]


def containers(terms: Consortium, party: str, home: Path) -> dict[str, str]:
    """The compose file and the image of a party, by the names of their files."""
    return {"compose.yaml": _compose(terms, party, home), "Containerfile": rendered("Containerfile", wheel=WHEEL)}


def _compose(terms: Consortium, party: str, home: Path) -> str:
    """The compose file of a party: the commands of its units, in containers."""
    kind = terms.parties[party]
    own = [_mounted(service, home) for service in services(terms, party, home)]
    ports = terms.shufflers[party].port if kind == "shuffler" else None
    facts = {"party": party, "kind": kind, "home": home, "account": account_name(party), "version": __version__}
    return rendered("compose.yaml", services=own, ports=ports, users=CONTAINER_USERS, **facts)


def _mounted(service: Service, home: Path) -> dict[str, Any]:
    """A service and the folders that its container sees; modes let a courier pass to the door and no further."""
    seen = list(service.writes) or [home / "silo", home / "courier", home / "ca.pem"]
    return {**service._asdict(), "mounts": seen}


def run_command(terms: Consortium, home: Path) -> str:
    """The command that leads a first study."""
    own = home / "proposer"
    words = ["tacit", "server", "run", str(own / "study.toml"), "--control", str(own / "control.toml")]
    words += ["--silos", str(len(terms.silos)), "--keys", str(own / "keys"), "--out", str(own / "runs")]
    words += ["--shufflers", str(own / "shufflers.toml")] * terms.shuffled
    return " ".join(words)


def readme(terms: Consortium, party: str, home: Path) -> str:
    """A party's own page: its five commands."""
    run = run_command(terms, home) if party == SERVER else ""
    facts = {"party": party, "kind": terms.parties[party], "account": account_name(party), "version": __version__}
    own = {"services": services(terms, party, home), "watches": watcher(terms, party, home)}
    return rendered("README.md", terms=terms, home=home, run=run, **own, **facts)


def watching(terms: Consortium, party: str, home: Path) -> str:
    """The settings of a party's watcher, all of them off."""
    return rendered(WATCH, unit=watcher(terms, party, home).name, kind=terms.parties[party])


def policy(terms: Consortium, party: str, *, data: str, approval: str = "manual") -> str:
    """A policy to start from, all but its pinned keys."""
    algorithms = [*terms.algorithms, *(["validation"] if terms.validation else [])]
    facts = {"party": party, "data": data.strip(), "approval": approval, "algorithms": algorithms}
    return rendered("policy.toml", terms=terms, **facts)


def shuffler_terms(terms: Consortium, party: str) -> str:
    """A shuffler's terms, all but its pinned keys; shufflers are a cascade in the order of ``consortium.toml``."""
    layer = list(terms.shufflers).index(party)
    return rendered("shuffler.toml", terms=terms, party=party, port=terms.shufflers[party].port, layer=layer)


def coordinator(terms: Consortium, folder: Path) -> str:
    """The coordinator's page."""
    return rendered("coordinator.md", terms=terms, folder=os.path.relpath(folder))
