"""What the gallery says of the audit, from its own numbers."""

from __future__ import annotations

from typing import Any

from experiments.folder import Finding


def card(found: dict[str, Any]) -> Finding:
    """Violations, attacks at the door, and the least tightness of each setting that must be tight."""
    rows, refuted = found["mechanisms"], found["violations"]
    door = [row for row in rows if row["path"] == "door"]
    least: dict[str, float] = {}
    for row in door:
        if row["required"] is not None:
            setting = row["label"].split(", ", 1)[1]
            least[setting] = min(row["tightness"], least.get(setting, float("inf")))
    tight = ", ".join(f"{value:.2f} ({setting})" for setting, value in sorted(least.items(), key=lambda own: -own[1]))
    said = f"{len(refuted)} violation(s)" if refuted else "no violation"
    printed = "; ".join(f"{row['source']} at {row['epsilon_claimed']:g}" for row in found["papers"] if row["violated"])
    return Finding(
        f"{said} in {len(rows)} attacks on releases, {len(door)} of them at the door of real silos, and in "
        f"{len(found['sensitivity'])} searches for the worst record; of what is claimed, at least so much is proven: "
        f"{tight}. Printed claims that are provably exceeded: {printed or 'none'}",
        "differs" if refuted else "reproduced",
    )
