"""Payloads that no frame holds: both sides take them apart and put them together again.

A request's payload is handed over in parts, each in a signed frame of its own, before the request, which names all of
it by length and SHA-256. Of a reply the first part comes with the digest of all, and the rest is asked for. So whoever
carries frames sees no more of them than before, and the largest stays as it was.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from tacit.deploy.wire import (
    MOST_FRAMED,
    MOST_PART,
    Answer,
    Buffer,
    Error,
    Long,
    Part,
    Piece,
    RefusalError,
    Rest,
    Whole,
    frame,
    parse_request,
    parse_response,
    viewed,
)

_PATIENCE = 600.0
"""Seconds after which the parts of a payload that does not come on are forgotten."""

_WIDER = 8
"""Beyond a frame, a message has at most so many bytes for each of its broadcast: two numbers of 64 bits for one of 32
would be four."""

Reply = tuple[bytes, bytes]


class _Arrival(NamedTuple):
    """A payload on its way: whose study it is for, what it will be, and what has come."""

    study: str
    whole: Whole
    content: bytearray
    latest: float


class Arrivals:
    """Payloads that come in parts: one for each proposer, which another one of theirs replaces.

    Formal guarantee: of one proposer no more is kept than the parts that have come of one payload, in order and within
    the length that was said first; what is handed on has that length and digest. Whether so much may come at all is for
    the caller to say, before.
    """

    def __init__(self) -> None:
        self._own: dict[str, _Arrival] = {}

    def add(self, proposer: str, part: Part, payload: bytes) -> int:
        """Keep a part; how much has come. The last part may come again.

        One that does not fit ends its payload; one of another payload that is not its first leaves this one alone.
        """
        now = time.monotonic()
        if part.first == 0:
            self._own[proposer] = _Arrival(part.study, part.whole, bytearray(), now)
        found = self._own.get(proposer)
        if found is None or (found.study, found.whole) != (part.study, part.whole):
            raise RefusalError("parts", "expected the parts of one payload from the first one on, in order")
        del self._own[proposer]
        had, end = len(found.content), part.first + len(payload)
        is_next = part.first == had and had < end <= part.whole.size
        if not is_next and not (payload and end == had and found.content[part.first :] == payload):
            raise RefusalError("parts", f"expected the part from byte {had} on, within {part.whole.size}; begin anew")
        if is_next:
            found.content.extend(payload)
        self._own[proposer] = found._replace(latest=now)
        return end

    def take(self, proposer: str, study: str, whole: Whole) -> Buffer:
        """All of a payload, once; nothing of it is kept."""
        found = self._own.pop(proposer, None)
        if found is None or (found.study, found.whole) != (study, whole) or len(found.content) != whole.size:
            raise RefusalError("parts", "expected all parts of the payload before the request; begin anew")
        if hashlib.sha256(found.content).hexdigest() != whole.digest:
            raise RefusalError("parts", "the parts of the payload have another digest than was said; begin anew")
        return found.content

    def tidy(self) -> None:
        """Forget what does not come on."""
        late = time.monotonic() - _PATIENCE
        self._own = {proposer: own for proposer, own in self._own.items() if own.latest > late}


def said(study: str, round_index: int, header: str, payload: bytes) -> bytes:
    """A round's message as a frame, of its first part where it is longer than one."""
    if len(payload) <= MOST_FRAMED:
        return frame(header, payload)
    whole = Whole(size=len(payload), digest=hashlib.sha256(payload).hexdigest())
    return frame(Long(study=study, round=round_index, whole=whole, reply=header), memoryview(payload)[:MOST_PART])


def piece(request: Rest, payload: bytes) -> bytes:
    """The part of a message that is asked for, as a frame."""
    if request.first >= len(payload):
        raise RefusalError("parts", f"expected a part of {len(payload)} bytes, got one from {request.first} on")
    part = memoryview(payload)[request.first : request.first + MOST_PART]
    return frame(Piece(study=request.study, round=request.round, first=request.first), part)


def in_parts(raw: bytes) -> list[bytes]:
    """A request's frame, or where that is too long, the frames of its payload's parts and of the request after them."""
    header, payload = viewed(raw)
    if len(payload) <= MOST_FRAMED:
        return [raw]
    request = parse_request(header)
    whole = Whole(size=len(payload), digest=hashlib.sha256(payload).hexdigest())
    parts = [
        frame(Part(study=request.study, whole=whole, first=first), payload[first : first + MOST_PART])
        for first in range(0, len(payload), MOST_PART)
    ]
    return [*parts, frame(request.model_copy(update={"whole": whole}))]


def one_of(replies: Sequence[Reply]) -> Reply:
    """The reply to a request that was sent in parts: the first refusal, or what was said at last."""
    return next((own for own in replies[:-1] if isinstance(parse_response(own[0]), Error)), replies[-1])


def rest_of(raw: bytes, reply: Reply) -> list[bytes]:
    """The requests for what is missing of the reply to a request; none where it is whole.

    Formal guarantee: whatever a silo says, they are about the round that was asked for, and no more than a message of
    it may need; anything else is a `RefusalError`.
    """
    long: Any = parse_response(reply[0])
    if not isinstance(long, Long):
        return []
    header, payload = viewed(raw)
    asked: Any = parse_request(header)
    if not isinstance(asked, Answer) or (asked.study, asked.round) != (long.study, long.round):
        raise RefusalError("parts", "expected a long reply to nothing but the round that was asked for")
    most = MOST_FRAMED + _WIDER * (asked.whole.size if asked.whole is not None else len(payload))
    if not MOST_PART == len(reply[1]) < long.whole.size <= most:
        raise RefusalError("parts", f"expected a first part of {MOST_PART} bytes, and at most {most} in all")
    starts = range(MOST_PART, long.whole.size, MOST_PART)
    return [frame(Rest(study=asked.study, round=asked.round, first=first)) for first in starts]


def joined(reply: Reply, pieces: Sequence[Reply]) -> Reply:
    """A long reply with all of its payload, or a refusal where that is not what the silo said it would be."""
    long: Any = parse_response(reply[0])
    bodies = [reply[1], *(body for _, body in pieces)]
    if sum(map(len, bodies)) != long.whole.size:
        raise RefusalError("parts", "the parts of a reply are not as long as the silo has signed")
    content = b"".join(bodies)
    if hashlib.sha256(content).hexdigest() != long.whole.digest:
        raise RefusalError("parts", "the parts of a reply are not what the silo has signed")
    return long.reply.encode(), content
