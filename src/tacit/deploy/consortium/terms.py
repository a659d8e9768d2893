"""``consortium.toml``: who takes part, where, through which channels, and who may collude; and the parties it makes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, model_validator

from tacit.algorithm import SHUFFLED_CHANNELS
from tacit.deploy.sections import Count, Section, checked, read_toml
from tacit.deploy.wire import Name
from tacit.errors import TacitError

SERVER = "server"
"""What the server's party is called; no other one may be."""

Kind = Literal["silo", "server", "shuffler"]
Channel = Literal["direct", "pairwise", "shuffled-sum", "shuffled-reports"]
Port = Annotated[int, Field(ge=1, le=65535)]
Host = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._:-]{0,251}[A-Za-z0-9])?$")]
"""A name or an address, and nothing that means more to a unit or a shell: root installs what a kit says."""
_RESERVED = ("authority", SERVER)
_ALGORITHMS = ("mb-sgd", "accelerated-mb-sgd", "local-sgd", "statistics")


class ServerPart(Section):
    """Where couriers reach the server; ``control_port`` is the SuperLink's own, on loopback."""

    host: Host
    port: Port = 9092
    control_port: Port = 9093


class ShufflerPart(Section):
    """Where the server reaches a shuffler."""

    host: Host
    port: Port = 9400


class BudgetPart(Section):
    """The budget that policies start with; every owner may set another."""

    epsilon: Annotated[float, Field(gt=0)] = 4.0
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-6


class Consortium(Section):
    """What all parties agree on before there are keys.

    ``proposer`` leads studies from the server's machine. ``colluding`` is how many silos may work together with the
    server, at most. ``data_schema`` is the file that says what the columns of all silos mean, and ``study`` one that
    the proposer may start with; both lie beside this file. ``validation`` is the share of records that policies set
    aside to test models; they never train.
    """

    name: Name
    proposer: Name
    silos: Annotated[tuple[Name, ...], Field(min_length=2)]
    channels: Annotated[tuple[Channel, ...], Field(min_length=1)] = ("direct",)
    colluding: Annotated[int, Field(ge=0)] = 1
    min_silos: Count = 2
    algorithms: Annotated[tuple[str, ...], Field(min_length=1)] = _ALGORITHMS
    data_schema: Annotated[str, Field(alias="schema")]
    study: str | None = None
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.2
    budget: BudgetPart = BudgetPart()
    server: ServerPart
    shufflers: dict[Name, ShufflerPart] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits_together(self) -> Consortium:
        names = [*_RESERVED, *self.silos, *self.shufflers]
        users = [f"{account_name(SERVER)}-proposer", *(f"{account_name(name)}-courier" for name in self.silos)]
        users += [account_name(name) for name in names]
        if len(set(users)) < len(users):
            raise ValueError(
                f"expected other names for silos and shufflers than each other's and {' and '.join(_RESERVED)}, in "
                "their first 18 letters and digits too, and with -courier or -proposer: users and folders are named "
                "after them"
            )
        if self.shuffled and len(self.shufflers) < 2:
            raise ValueError("set [shufflers.NAME] at least twice where a shuffled channel is used")
        if self.shufflers and not self.shuffled:
            raise ValueError("name a shuffled channel in channels, or leave [shufflers] out")
        if self.validation and "shuffled-reports" in self.channels and "shuffled-sum" not in self.channels:
            raise ValueError(
                "name shuffled-sum in channels too, or set validation = 0: after shuffled reports, what silos say of a "
                "model leaves as a shuffled sum"
            )
        if self.colluding >= len(self.silos):
            raise ValueError(f"expected colluding={self.colluding} < {len(self.silos)}, the number of silos")
        if "pairwise" in self.channels and self.colluding < 1:
            raise ValueError("expected colluding >= 1 for pairwise sums: every silo knows its own share of the noise")
        return self

    @property
    def shuffled(self) -> bool:
        """Whether any channel goes through shufflers."""
        return bool(set(self.channels) & set(SHUFFLED_CHANNELS))

    @property
    def parties(self) -> dict[str, Kind]:
        """Every party and what it is: the server first."""
        found: dict[str, Kind] = {SERVER: "server"}
        found |= dict.fromkeys(self.silos, "silo")
        return found | dict.fromkeys(self.shufflers, "shuffler")

    def plain(self) -> dict[str, Any]:
        """The terms as plain values, as a TOML file has them."""
        return self.model_dump(mode="json", exclude_none=True, by_alias=True)


class ConsortiumError(TacitError):
    """A consortium that cannot be set up as it stands."""


def load_consortium(path: Path) -> Consortium:
    """The terms in ``consortium.toml``, or an error that names the field."""
    missing = f"No file at {path}; write one, as docs/deployment.md shows."
    return consortium_from(read_toml(path, ConsortiumError, missing))


def consortium_from(tree: dict[str, Any]) -> Consortium:
    """The terms from plain values."""
    return checked(Consortium, tree, ConsortiumError, "consortium.toml")


def account_name(party: str) -> str:
    """The user that a party's services run as, as systems allow names: 32 letters at most, with "-courier" behind it.

    >>> account_name("Clinic_1.Bergen")
    'tacit-clinic-1-bergen'
    """
    return "tacit-" + re.sub(r"[^a-z0-9]+", "-", party.lower()).strip("-")[:18]


class Service(NamedTuple):
    """A process of a party: its unit's name, its user, its command, its network, and what it may change.

    ``words`` follow ``tacit``. ``first`` is whether it runs as the first of the party's two users, who owns its files.
    A process that is ``local`` reaches this machine and no other; one that ``hides`` files cannot open them.
    """

    name: str
    user: str
    words: tuple[str, ...]
    network: Literal["none", "local", "any"]
    writes: tuple[Path, ...]
    about: str
    first: bool = True
    hides: tuple[Path, ...] = ()


def services(terms: Consortium, party: str, home: Path, listen: str = "0.0.0.0") -> list[Service]:
    """All that runs at a party. Units, compose files and trials start just this; a server listens at ``listen``."""
    kind, own = terms.parties[party], account_name(party)
    words: tuple[str, ...]
    if kind == "server":
        link, part = home / "link", terms.server
        words = (
            *("server", "link", str(link), "--host", listen, "--port", str(part.port)),
            *("--control-port", str(part.control_port)),
            *("--certificate", str(link / "link.pem"), "--key", str(link / "link.key")),
        )
        return [Service(own, own, words, "any", (link,), "the SuperLink and its front")]
    if kind == "shuffler":
        words = ("shuffler", "serve", str(home / "shuffler"))
        return [Service(own, own, words, "any", (home / "shuffler",), f"the shuffler {party}")]
    folder, courier = home / "silo", home / "courier"
    joins = (
        *("silo", "join", str(folder), "--superlink", f"{terms.server.host}:{terms.server.port}"),
        *("--authority", str(home / "ca.pem"), "--key", str(courier / "node.key")),
    )
    daemon, second = ("silo", "serve", str(folder), "--socket-mode", "660"), f"{own}-courier"
    return [
        Service(own, own, daemon, "none", (folder, home / "counter"), f"the daemon of the silo {party}"),
        Service(second, second, joins, "any", (), f"the courier of the silo {party}", first=False),
    ]


def watcher(terms: Consortium, party: str, home: Path) -> Service:
    """What watches a party's books from beside its services, where its owner wants that.

    It runs as the user who owns the books. Its unit lets it open neither records nor keys, and reach this machine only.
    """
    kind, own = terms.parties[party], account_name(party)
    books, *hidden = {
        "silo": ("silo", "silo/records.csv", "silo/sign.key"),
        "server": ("proposer/runs", "proposer/keys", "proposer/server.key", "proposer/control.toml"),
        "shuffler": ("shuffler", "shuffler/sign.key", "shuffler/seal.key", "shuffler/shuffler.key"),
    }[kind]
    user, words = f"{own}-proposer" if kind == "server" else own, (kind, "watch", str(home / books))
    hides = tuple(home / name for name in hidden)
    return Service(f"{own}-watch", user, words, "local", (home / books,), f"watching {party}", kind != "server", hides)
