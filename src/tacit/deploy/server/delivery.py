"""Hand the model of a study to every silo that has answered it: a priced model is public to its consortium."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tacit.deploy.server.checkpoint import Checkpoint
from tacit.deploy.server.coordinator import Tell
from tacit.deploy.server.ending import ASK, SECONDS, STRANGER, finish_request, journal, led_study, reach
from tacit.deploy.server.transport import Transport
from tacit.deploy.wire import MOST_WHOLE, Bundle, BundleFile, Error, Kept, frame
from tacit.errors import TacitError
from tacit.models.bundle import CARD, DESCRIPTION, FOLDER, WEIGHTS

HAS_IT = "has the model"

_PACE = 1e6
"""Bytes of a model that reach a silo in a second, at least; a large one is waited for longer."""

_REFUSED = {*STRANGER, "model", "full", "bad-message", "bad-frame", "unknown-study"}
"""Codes by which a silo does not take a model; asking again would not help."""


def deliver(
    folder: Path,
    point: Checkpoint,
    transport: Transport,
    tell: Tell,
    addresses: Mapping[str, str] | None = None,
    seconds: float = SECONDS,
) -> dict[str, str]:
    """Send the bundle of a run folder to every silo of its study; what each said, by name.

    It takes at most ``seconds``, and those that its bytes need besides. The study is ended there first. A silo that has
    the model says so again, so that this can be repeated.
    """
    files, payload = _bundle(folder / FOLDER)
    said, refused = dict[str, str](), dict[str, str]()

    def hear(name: str, replies: Sequence[Any]) -> bool:
        last = replies[-1]
        if isinstance(last, Kept):
            said[name] = HAS_IT
        elif isinstance(last, Error):
            refused[name] = f"{last.code}: {last.text}"
        return name in said or (isinstance(last, Error) and last.code in _REFUSED)

    requests = {}
    for i, name in enumerate(point.silos):
        study = point.plan.model_copy(update={"silo_index": i}).study
        requests[name] = [finish_request(point, i), frame(Bundle(study=study, files=files), payload)]
    longer = len(payload) / _PACE
    reach(requests, transport, hear, addresses or {}, seconds + longer, each=ASK + longer)
    refused = {name: text for name, text in refused.items() if name not in said}
    unreached = sorted(set(requests) - {*said, *refused})
    tell("delivered", {"silos": sorted(said), "refused": refused, "unreached": unreached})
    told = {name: f"does not take it ({text})" for name, text in refused.items()}
    return {**said, **told, **dict.fromkeys(unreached, "not reached; deliver it again when it is there")}


def _bundle(place: Path) -> tuple[tuple[BundleFile, ...], bytes]:
    """What a bundle's files are called, how long they are and their digests; and their contents."""
    contents = {name: (place / name).read_bytes() for name in (WEIGHTS, DESCRIPTION, CARD) if (place / name).exists()}
    if len(contents) < len((WEIGHTS, DESCRIPTION, CARD)):
        raise TacitError(f"{place} is no whole bundle; a study has one once it is through.")
    payload = b"".join(contents.values())
    if len(payload) > MOST_WHOLE:
        raise TacitError(
            f"The model of {place} has {len(payload)} bytes, and silos take at most {MOST_WHOLE}; hand the folder over "
            "by other means."
        )
    files: Any = (
        BundleFile.model_validate({"name": name, "size": len(raw), "digest": hashlib.sha256(raw).hexdigest()})
        for name, raw in contents.items()
    )
    return tuple(files), payload


def deliver_again(folder: Path, transport: Transport) -> dict[str, str]:
    """Send the bundle of a run folder to the silos of its study, whether they have it or not; what each said."""
    point, _, signed = led_study(folder, transport)
    if not point.finished:
        raise TacitError(f"The study of {folder} is not through; go on with it: tacit server run ... --resume {folder}")
    return deliver(folder, point, signed, partial(journal, folder))
