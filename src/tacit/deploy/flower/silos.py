"""Who is there: registered nodes, and what silos say of themselves in answers that they have signed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacit.deploy.flower.commands import read_control
from tacit.deploy.flower.leader import connected
from tacit.deploy.flower.private import Link
from tacit.deploy.permissions import read_secret
from tacit.deploy.server.transport import SignedTransport, response_in
from tacit.deploy.signing import Proposer, Signer
from tacit.deploy.wire import Hello, Welcome, frame
from tacit.errors import printable

_SILENT = (
    "online, but no answer that a pinned silo has signed: its daemon is away, its key is not in proposer.toml, or its "
    "policy does not name this proposer's key"
)
_SHORT = 16
_TWICE = "two nodes speak for silos of this name: stop one"


def silos_of(control: Path, proposer: str, key: Path, pins: Mapping[str, str], seconds: float) -> list[dict[str, Any]]:
    """A row for each registered node, with the public facts that its silo has signed."""
    with connected(control) as transport:
        with Link(read_control(control)) as link:
            nodes = link.nodes()
        signed = SignedTransport(transport, Proposer(proposer, Signer(read_secret(key))), pins)
        replies = signed.ask({str(row.node): [frame(Hello())] for row in nodes if row.online}, seconds)
    said = {at: response_in(found[0]) for at, found in replies.items() if found}
    rows = []
    for node in nodes:
        told = said.get(str(node.node))
        facts = told if isinstance(told, Welcome) else None
        rows.append(
            {
                "node": str(node.node),
                "name": printable(node.name, 64),
                "online": node.online,
                "silo": None if facts is None else facts.silo,
                "tacit": None if facts is None else facts.tacit,
                "records": None if facts is None else facts.records,
                # As long as in the errors about schemas that differ.
                "schema": None if facts is None else facts.schema_digest[:_SHORT],
                "note": _SILENT if node.online and facts is None else "",
            }
        )
    return _told_apart(rows)


def _told_apart(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same rows, with a note where two nodes speak for one silo, or a node speaks for a silo of another name."""
    times = Counter(row["silo"] for row in rows if row["silo"] is not None)
    for row in rows:
        if times[row["silo"]] > 1:
            row["note"] = _TWICE
        elif row["silo"] not in (None, row["name"]):
            row["note"] = f"registered as {row['name']}, but speaks for {row['silo']}"
    return sorted(rows, key=lambda row: (row["name"], row["node"]))
