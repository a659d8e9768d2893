"""End a study at every silo, so that none of them holds a place and a reservation for a run that is over."""

from __future__ import annotations

import datetime
import json
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tacit.deploy.permissions import read_secret
from tacit.deploy.server.checkpoint import Checkpoint, load_checkpoint
from tacit.deploy.server.coordinator import StalledError, Tell, fresh_state, is_final, newcomers
from tacit.deploy.server.deployment import deployment_from
from tacit.deploy.server.transport import SignedTransport, Transport, response_in
from tacit.deploy.signing import Proposer, Signer
from tacit.deploy.wire import Error, Finish, Receipt, frame
from tacit.errors import TacitError

SECONDS = 60.0
"""How long silos are looked for and asked; one that cannot be reached closes the study when it expires there."""

ASK, _PAUSE = 10.0, 0.2
# Codes by which a silo says that it does not obey this proposer; asking again would not help.
STRANGER = ("proposer", "unsigned", "signature")
# Codes that a silo gives to the end of a study that is not open there.
_OVER = ("unknown-study", "rejected", "finished", "closed", "revoked")


def should_end(error: BaseException, point: Checkpoint) -> bool:
    """Whether a run that failed like this is over for good.

    It is if the same would happen again, or if something else than absent silos stopped it before its first round was
    through. Later a run can be taken up, and what silos have spent on it is worth keeping.
    """
    if isinstance(error, StalledError):
        return error.final
    return point.round == 0 or (isinstance(error, Exception) and is_final(error))


def end_everywhere(
    point: Checkpoint,
    path: Path,
    transport: Transport,
    tell: Tell,
    addresses: Mapping[str, str] | None = None,
    seconds: float = SECONDS,
) -> dict[str, str]:
    """Ask every silo of a study to end it, for at most ``seconds``; what each said, by name.

    Proposals that wait for approval are withdrawn. Once a silo has confirmed its end, the checkpoint says that the
    study is over; where none has, it can go on.
    """
    said, refused = dict[str, str](), dict[str, str]()

    def hear(name: str, replies: Sequence[Any]) -> bool:
        _hear(name, replies[0], said, refused)
        return name in said or refused.get(name, "").split(":")[0] in STRANGER

    requests = {name: [finish_request(point, i)] for i, name in enumerate(point.silos)}
    reach(requests, transport, hear, addresses or {}, seconds)
    refused = {name: text for name, text in refused.items() if name not in said}
    unreached = sorted(set(requests) - {*said, *refused})
    if said:
        point.finished = True
        point.save(path)
    tell("ended" if said else "not-ended", {"silos": said, "refused": refused, "unreached": unreached})
    told = {name: f"refused, and still open there ({text})" for name, text in refused.items()}
    return {**said, **told, **dict.fromkeys(unreached, "not reached; it closes the study when that expires there")}


def reach(
    requests: Mapping[str, Sequence[bytes]],
    transport: Transport,
    hear: Callable[[str, Sequence[Any]], bool],
    addresses: Mapping[str, str],
    seconds: float,
    *,
    each: float = ASK,
) -> None:
    """Ask silos by name, wherever they are, until ``hear`` says of each one that it is settled, or time is up.

    Who has not answered after ``each`` seconds is asked anew.
    """
    known, left = dict(addresses), set(requests)
    deadline = time.monotonic() + seconds
    while True:
        asked = {known[name]: name for name in left if name in known}
        frames = {at: requests[name] for at, name in asked.items()}
        for at, replies in transport.ask(frames, min(each, deadline - time.monotonic())).items():
            if replies and hear(asked[at], [response_in(reply) for reply in replies]):
                left.discard(asked[at])
        if not left or time.monotonic() >= deadline:
            return
        found = newcomers(
            transport, set(known.values()), min(ASK, max(0.0, deadline - time.monotonic())), left.issubset
        )
        known |= {name: at for name, (at, _) in found.items()}
        time.sleep(_PAUSE)


def _hear(name: str, response: Any, said: dict[str, str], refused: dict[str, str]) -> None:
    """Note what a silo says to the end of a study: that it is over there, or why it does not end it."""
    if isinstance(response, Receipt):
        said[name] = f"ended after {response.answers} answers, epsilon {response.epsilon:.4g}"
    elif isinstance(response, Error) and response.code in _OVER:
        said[name] = f"not open: {response.text}"
    elif isinstance(response, Error):
        refused[name] = f"{response.code}: {response.text}"


def finish_request(point: Checkpoint, silo_index: int) -> bytes:
    """What ends a study at one of its silos."""
    return frame(Finish(study=point.plan.model_copy(update={"silo_index": silo_index}).study))


def journal(folder: Path, event: str, facts: Mapping[str, Any]) -> None:
    """Add an event to the journal of a run folder."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    with (folder / "progress.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"time": now, "event": event, **facts}) + "\n")


def abort(folder: Path, transport: Transport) -> dict[str, str]:
    """End the study of a run folder at every silo, whether a server still leads it or not; what each silo said."""
    point, path, signed = led_study(folder, transport)
    return end_everywhere(point, path, signed, partial(journal, folder))


def led_study(folder: Path, transport: Transport) -> tuple[Checkpoint, Path, Any]:
    """The checkpoint of a run folder, where it is, and a transport that signs as the study's proposer."""
    path = folder / "checkpoint.npz"
    if not path.exists():
        raise TacitError(f"{folder} holds no study that was proposed; there is nothing to end or to deliver.")
    terms = deployment_from(tomllib.loads((folder / "deployment.toml").read_text(encoding="utf-8")))
    proposer = Proposer(terms.proposer, Signer(read_secret(Path(terms.key))))
    return load_checkpoint(path, fresh_state), path, SignedTransport(transport, proposer, terms.pins)
