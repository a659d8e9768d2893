"""Requests to a silo's daemon and its replies: length-limited frames of strict JSON and raw arrays.

    frame    4 bytes: length of the rest | 4 bytes: length of the header | header (JSON) | payload (arrays)

Lengths are big-endian; arrays are little-endian, one after another in the order in which the header describes them.
Nothing is unpickled, evaluated or imported. What is not exactly one of the shapes below is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from tacit.errors import TacitError

REPORTS = "shuffled-reports"
VERSION = 3
MOST_HEADER = 1 << 16
MOST_FRAME = 1 << 26

MOST_FRAMED = MOST_FRAME - 2 * MOST_HEADER
"""How many bytes a payload may have that one frame holds; a longer one travels in parts."""

MOST_PART = 1 << 24
"""How many bytes one part of a payload has, but the last."""

MOST_WHOLE = 1 << 29
"""How many bytes a payload in parts may have; a ledger could not store one of twice as many."""

MOST_DESCRIPTION = 3 << 13
"""How many bytes a description may have that is sent; inside a signed header it may become twice as long."""

MOST_PEERS = 128
"""The most silos of a pairwise sum: a roster must fit a header."""

MOST_RANGES = 1000
"""The most columns that a plan has a range for."""

_MOST_NODES, _MOST_DEPTH, _MOST_TEXT, _LARGEST = 2048, 5, 64, 10**6

Buffer = Any
"""The type of bytes that are not copied: a ``bytearray`` or ``memoryview`` in the place of ``bytes``."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
StudyId = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
SealKey = Annotated[str, Field(max_length=2048)]
Width = Annotated[int, Field(ge=1, le=1 << 24)]


class RefusalError(TacitError):
    """A refusal: ``code`` is part of the protocol, ``numbers`` say by how much."""

    def __init__(self, code: str, text: str, numbers: dict[str, float] | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.numbers = {k: v for k, v in (numbers or {}).items() if math.isfinite(v)}


class Strict(BaseModel):
    """A header, or a part of one: unknown fields, converted types and numbers that are not finite are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ArraySpec(Strict):
    """Shape and type of one array of the payload."""

    shape: Annotated[tuple[Annotated[int, Field(ge=0, le=1 << 28)], ...], Field(max_length=8)]
    dtype: Literal["<f4", "<i4"] = "<f4"

    @property
    def size(self) -> int:
        """How many bytes the array takes."""
        return math.prod(self.shape) * 4


class ColumnDescription(Strict):
    """What one column means: a number's range, scale and unit, or a category's levels in order."""

    name: str
    kind: Literal["number", "category"]
    low: float | None = None
    high: float | None = None
    log: bool = False
    unit: str | None = None
    levels: tuple[str, ...] | None = None
    missing: bool = False


class TargetDescription(Strict):
    """What is predicted: classes in order, or a number with its range and unit.

    With ``event``, a column of two levels, the number is a time until the last of them, or until who was last seen.
    """

    column: str
    classes: tuple[str, ...] | None = None
    low: float | None = None
    high: float | None = None
    unit: str | None = None
    event: str | None = None
    event_levels: tuple[str, str] | None = None


class Description(Strict):
    """What the numbers in a silo's records mean, by its schema; public, like the schema.

    Without a schema only the first three fields are known. Then two descriptions may agree though classes, columns or
    units differ. ``backbone`` tells features of one frozen backbone, by its source and weights, from those of another.
    """

    features: tuple[int, ...]
    task: str
    classes: int | None = None
    encoding: int | None = None
    norm: float | Literal["box"] | None = None
    target: TargetDescription | None = None
    columns: tuple[ColumnDescription, ...] | None = None
    backbone: StudyId | None = None

    @property
    def digest(self) -> str:
        """The SHA-256 of the description as JSON: sorted keys, no spaces, nothing that is null."""
        tree = self.model_dump(mode="json", exclude_none=True)
        text = json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def sent(self) -> Description | None:
        """The description, if it is short enough to be sent."""
        return self if len(self.model_dump_json().encode()) <= MOST_DESCRIPTION else None


class Shuffle(Strict):
    """The anonymity set and the shufflers of a plan whose channel is shuffled.

    ``records`` counts the records of each silo, by index. At least ``min_silos`` silos are in a round, and the share
    ``honest`` of all silos keeps its noise secret. ``shufflers`` maps names to sealing keys, in the order of a cascade;
    ``server`` is the key that opens single reports. ``weights`` says what the objective weighs alike: silos or records.
    """

    records: Annotated[tuple[Annotated[int, Field(ge=1, le=10**9)], ...], Field(min_length=2, max_length=10_000)]
    min_silos: Annotated[int, Field(ge=2)]
    honest: Annotated[float, Field(gt=0, le=1)]
    shufflers: Annotated[dict[Name, SealKey], Field(min_length=1, max_length=16)]
    server: SealKey | None = None
    weights: Literal["equal", "records"] = "equal"

    def record_weights(self, batch_size: int | None) -> tuple[Any, Any]:
        """What a record of each silo counts, relative to the one that counts most, and what that one counts."""
        return _record_weights(self, batch_size)


class Pairwise(Strict):
    """The silos of a plan whose channel is pairwise, by index: names and numbers of records, and what is counted on.

    At most ``colluding`` silos work together with the server. At least ``min_silos`` silos are in a round, and up to
    ``spare_attempts`` rounds may be asked again. ``weights`` says what the objective weighs alike: silos or records.
    """

    silos: Annotated[tuple[Name, ...], Field(min_length=2, max_length=MOST_PEERS)]
    records: Annotated[tuple[Annotated[int, Field(ge=1, le=10**9)], ...], Field(min_length=2, max_length=MOST_PEERS)]
    colluding: Annotated[int, Field(ge=1)]
    min_silos: Annotated[int, Field(ge=2)]
    spare_attempts: Annotated[int, Field(ge=0, le=_LARGEST)]
    weights: Literal["equal", "records"] = "equal"

    @model_validator(mode="after")
    def _counted(self) -> Pairwise:
        if len(set(self.silos)) != len(self.silos) or len(self.silos) != len(self.records):
            raise ValueError("expected each silo once, and its number of records")
        if not self.colluding < self.min_silos <= len(self.silos):
            raise ValueError("expected colluding < min_silos <= the number of silos")
        return self

    def record_weights(self, batch_size: int | None) -> tuple[Any, Any]:
        """What a record of each silo counts, relative to the one that counts most, and what that one counts."""
        return _record_weights(self, batch_size)


def _record_weights(among: Shuffle | Pairwise, batch_size: int | None) -> tuple[Any, Any]:
    from tacit.privacy.anonymity import record_weights  # only sums of silos need it

    records = np.asarray(among.records)
    sizes = records if batch_size is None else np.full(len(records), batch_size)
    return record_weights(None if among.weights == "equal" else records / records.sum(), sizes)


class Plan(Strict):
    """A study as the server proposes it: plain data, from which a silo builds the algorithm with its own Tacit.

    ``objective`` and ``algorithm`` are sections of the study. ``everyone`` says that all silos take part in all rounds,
    so that rounds come without a gap. ``nonce`` tells apart two runs of one plan. ``schema_digest`` is that of the
    schema by which every silo reads its records; without it the plan is for records without a schema. ``proposer`` is
    who proposes it, so that nobody else can propose the same study; only plans of version 0.1 lack it. ``ranges`` of
    numbers are narrower than the schema's, and public: silos make features of their records by them. ``purpose`` is
    what it is for, in the proposer's words, which owners read before they approve.
    """

    version: Literal[1] = 1
    name: Name
    nonce: Annotated[str, Field(max_length=32, pattern=r"^[0-9a-f]*$")] = ""
    features: Annotated[tuple[Width, ...], Field(min_length=1, max_length=4)]
    task: Literal["binary", "multiclass", "regression"]
    classes: Annotated[int, Field(ge=2, le=10_000)] | None = None
    objective: dict[str, Any] = {}
    algorithm: dict[str, Any]
    epsilon: Annotated[float, Field(gt=0, le=40)]
    delta: Annotated[float, Field(gt=0, lt=1)]
    max_participations: Annotated[int, Field(ge=1)] | None = None
    silos: Annotated[int, Field(ge=1, le=100_000)]
    silo_index: Annotated[int, Field(ge=0)]
    everyone: bool = True
    shuffle: Shuffle | None = None
    schema_digest: StudyId | None = None
    proposer: Name | None = None
    pairwise: Pairwise | None = None
    ranges: Annotated[dict[str, tuple[float, float]], Field(max_length=MOST_RANGES)] | None = None
    purpose: Annotated[str, Field(max_length=500)] | None = None

    @model_serializer(mode="wrap")
    def _without_what_is_not_there(self, dump: Any) -> Any:
        """Plans without them look as they did before there were pairwise sums, ranges and purposes."""
        tree = dump(self)
        for name in ("pairwise", "ranges", "purpose"):
            if getattr(self, name) is None:
                tree.pop(name, None)
        return tree

    @field_validator("objective", "algorithm")
    @classmethod
    def _plain(cls, value: dict[str, Any]) -> dict[str, Any]:
        return plain_section(value)

    @model_validator(mode="after")
    def _index_exists(self) -> Plan:
        if self.silo_index >= self.silos:
            raise ValueError(f"expected silo_index={self.silo_index} < silos={self.silos}")
        if self.shuffle is not None and not self.shuffle.min_silos <= self.silos == len(self.shuffle.records):
            raise ValueError("expected shuffle.records for every silo, and shuffle.min_silos of them")
        if self.pairwise is not None and (self.shuffle is not None or len(self.pairwise.silos) != self.silos):
            raise ValueError("expected pairwise.silos to name every silo, and no shufflers besides")
        return self

    @property
    def study(self) -> str:
        """The study's identity at this silo: the SHA-256 of everything in the plan."""
        absent = {name for name in ("shuffle", "schema_digest", "proposer") if getattr(self, name) is None}
        return hashlib.sha256(self.model_dump_json(exclude=absent).encode()).hexdigest()

    @property
    def consortium(self) -> bytes:
        """The study's identity at all silos: a digest of everything but the silo's index."""
        return hashlib.sha256(self.model_dump_json(exclude={"silo_index"}).encode()).digest()

    @property
    def compared(self) -> str:
        """What owners compare of a study by telephone: 192 bits of its identity at all silos.

        So many because a proposer may look for two plans that agree in them, which takes half as many bits of work.
        """
        return spoken(self.consortium.hex()[:48])

    @property
    def described(self) -> Description:
        """What the plan itself says of records."""
        return Description(features=self.features, task=self.task, classes=self.classes)


def spoken(digits: str) -> str:
    """Digits to read out by telephone: groups of four, with a pause after every fourth.

    >>> spoken("0123456789abcdef0123")
    '0123 4567 89ab cdef, 0123'
    """
    groups = [digits[at : at + 4] for at in range(0, len(digits), 4)]
    return ", ".join(" ".join(groups[at : at + 4]) for at in range(0, len(groups), 4))


def plain_section(value: dict[str, Any]) -> dict[str, Any]:
    """A section of a plan as it is, if it holds plain values alone, short ones and not too many; else an error."""
    if _nodes(value, _MOST_DEPTH) > _MOST_NODES:
        raise ValueError("too large")
    return value


def _nodes(value: Any, depth: int) -> int:
    """How many plain values there are inside, each checked; anything else raises."""
    if depth < 0:
        raise ValueError("nested too deeply")
    if isinstance(value, dict):
        if not all(isinstance(key, str) and len(key) <= _MOST_TEXT for key in value):
            raise ValueError("expected short names")
        return 1 + sum(_nodes(part, depth - 1) for part in value.values())
    if isinstance(value, list | tuple):
        return 1 + sum(_nodes(part, depth - 1) for part in value)
    if isinstance(value, str):
        if len(value) > _MOST_TEXT:
            raise ValueError(f"expected a text of at most {_MOST_TEXT} characters")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if not (math.isfinite(value) and abs(value) <= _LARGEST):
            raise ValueError(f"expected numbers of magnitude at most {_LARGEST}")
    elif not (value is None or isinstance(value, bool)):
        raise ValueError("expected plain values")
    return 1


class Hello(Strict):
    """Asks for the silo's public facts."""

    type: Literal["hello"] = "hello"
    version: int = VERSION


class Propose(Strict):
    """Proposes a plan; with the study's ``description`` a silo whose schema is another one can say what differs."""

    type: Literal["propose"] = "propose"
    plan: Plan
    description: Description | None = None


class Status(Strict):
    """Asks for a study's state."""

    type: Literal["status"] = "status"
    study: StudyId


class Whole(Strict):
    """A payload that travels in parts: its number of bytes and their SHA-256."""

    size: Annotated[int, Field(ge=1, le=MOST_WHOLE)]
    digest: StudyId


_First = Annotated[int, Field(ge=0, lt=MOST_WHOLE)]
_Round = Annotated[int, Field(ge=0, le=10**9)]


class Part(Strict):
    """Hands over a part of the payload of a later request about the study: its bytes from ``first`` on."""

    type: Literal["part"] = "part"
    study: StudyId
    whole: Whole
    first: _First


class _WithPayload(Strict):
    """A request with a payload; where ``whole`` says so, that has come in parts before."""

    whole: Whole | None = None

    @model_serializer(mode="wrap")
    def _without_what_is_not_there(self, dump: Any) -> Any:
        """Requests whose payload comes with them look as they did before there were parts."""
        tree = dump(self)
        if self.whole is None:
            tree.pop("whole", None)
        return tree


class Answer(_WithPayload):
    """Asks for a round's message; the payload holds the arrays of the broadcast."""

    type: Literal["answer"] = "answer"
    study: StudyId
    round: _Round
    arrays: Annotated[tuple[ArraySpec, ...], Field(max_length=256)]


class Rest(Strict):
    """Asks for a part of the payload of a round's message, from ``first`` on."""

    type: Literal["rest"] = "rest"
    study: StudyId
    round: _Round
    first: _First


class Enrolment(Strict):
    """A silo's key for one study: its X25519 key as hexadecimal digits, signed with its identity key."""

    silo: Name
    identity: Annotated[str, Field(max_length=64)]
    key: StudyId
    signature: Annotated[str, Field(max_length=128)]


class AnswerTogether(Answer):
    """Asks for a round's message to a pairwise sum over the silos of a roster; later attempts have larger numbers."""

    type: Literal["answer-together"] = "answer-together"  # type: ignore[assignment]
    attempt: Annotated[int, Field(ge=0, le=_LARGEST)]
    roster: Annotated[tuple[Enrolment, ...], Field(min_length=2, max_length=MOST_PEERS)]


class Finish(Strict):
    """Ends a study; what was reserved and not used is given back."""

    type: Literal["finish"] = "finish"
    study: StudyId


class BundleFile(Strict):
    """One file of a bundle: no other names exist, so that no name leads anywhere."""

    name: Literal["model.safetensors", "model.json", "README.md"]
    size: Annotated[int, Field(ge=1, le=MOST_WHOLE)]
    digest: StudyId


class Bundle(_WithPayload):
    """Hands over the model of a study that has ended; the payload holds the files, one after another."""

    type: Literal["bundle"] = "bundle"
    study: StudyId
    files: Annotated[tuple[BundleFile, ...], Field(min_length=3, max_length=3)]

    @field_validator("files")
    @classmethod
    def _each_once(cls, files: tuple[BundleFile, ...]) -> tuple[BundleFile, ...]:
        if len({file.name for file in files}) < len(files):
            raise ValueError("expected model.safetensors, model.json and README.md, each once")
        return files


Request = Annotated[
    Hello | Propose | Status | Part | Answer | AnswerTogether | Rest | Finish | Bundle, Field(discriminator="type")
]


class Welcome(Strict):
    """The silo's public facts.

    ``description`` is that of its schema, unless it is too long to be sent. ``ledger`` says which ledger the silo
    keeps; later requests are for that one. ``records`` counts those that train, and ``validation`` those that are set
    aside to test models, where there are any. ``models`` are those of installed packages that its owner allows, each
    with the digest of its source.
    """

    type: Literal["welcome"] = "welcome"
    version: int
    tacit: str
    silo: str
    records: int
    features: tuple[int, ...]
    task: str
    classes: int | None
    noise: str
    schema_digest: StudyId
    description: Description | None = None
    ledger: str = ""
    validation: int | None = None
    models: dict[Name, StudyId] = {}

    @model_serializer(mode="wrap")
    def _without_what_is_not_there(self, dump: Any) -> Any:
        """Silos that set nothing aside and have no models of packages say what they said before there were any."""
        tree = dump(self)
        if self.validation is None:
            tree.pop("validation", None)
        if not self.models:
            tree.pop("models", None)
        return tree


class Consent(Strict):
    """A silo's yes (``pending`` while its owner has not approved), with two prices.

    ``epsilon`` and ``delta`` are the plan's own price. By the account's ``rule`` the study ``takes`` a share of the
    silo's account, and a share is ``left`` for all later studies. ``enrolment`` is the silo's key for pairwise sums,
    once it has consented to a plan of that channel.
    """

    type: Literal["consent"] = "consent"
    study: str
    state: Literal["consented", "pending"]
    epsilon: float
    delta: float
    rule: str
    takes: float
    left: float
    noise_multipliers: dict[str, float]
    next_round: int
    enrolment: Enrolment | None = None

    @model_serializer(mode="wrap")
    def _without_what_is_not_there(self, dump: Any) -> Any:
        """Consents of other channels look as they did before there were pairwise sums."""
        tree = dump(self)
        if self.enrolment is None:
            tree.pop("enrolment", None)
        return tree


class Standing(Strict):
    """A study's state at this silo."""

    type: Literal["standing"] = "standing"
    study: str
    state: Literal["consented", "pending", "finished"]
    next_round: int
    answers: int


class Message(Strict):
    """A silo's answer; the payload holds the message's arrays."""

    type: Literal["message"] = "message"
    study: str
    round: int
    arrays: tuple[ArraySpec, ...]


class Sealed(Strict):
    """A silo's answer through shufflers: the payload holds their frames, of these lengths, in order."""

    type: Literal["sealed"] = "sealed"
    study: str
    round: int
    silo: str
    deposits: dict[str, int]


class Masked(Strict):
    """A silo's message to a pairwise sum: the payload holds 64 bits for each coordinate.

    ``context`` is the digest of all that the silos of a roster must agree on; messages add up to something only where
    it is the same.
    """

    type: Literal["masked"] = "masked"
    study: str
    round: int
    attempt: int
    context: StudyId
    coordinates: int


class Held(Strict):
    """How many bytes of a payload in parts have come."""

    type: Literal["held"] = "held"
    study: str
    size: int


class Long(Strict):
    """A reply whose payload no frame holds: its header, what the whole payload is, and here the first part of it."""

    type: Literal["long"] = "long"
    study: str
    round: int
    whole: Whole
    reply: str


class Piece(Strict):
    """A part of the payload of a round's message, from ``first`` on."""

    type: Literal["piece"] = "piece"
    study: str
    round: int
    first: int


class Receipt(Strict):
    """A study has ended: how often the silo answered, what that cost, and the ledger's newest hash."""

    type: Literal["receipt"] = "receipt"
    study: str
    answers: int
    epsilon: float
    delta: float
    entry: int
    hash: str


class Kept(Strict):
    """The silo has the model of a study."""

    type: Literal["kept"] = "kept"
    study: str


class Error(Strict):
    """A refusal."""

    type: Literal["error"] = "error"
    code: str
    text: str
    numbers: dict[str, float] = {}


Response = Annotated[
    Welcome | Consent | Standing | Message | Sealed | Masked | Held | Long | Piece | Receipt | Kept | Error,
    Field(discriminator="type"),
]


class SignedRequest(Strict):
    """A request and who has signed it, for which silo; later requests of a proposer have larger counters.

    ``silo`` is the address: a silo's name, or ``shuffler/NAME``. ``ledger`` is the silo's, as `Welcome` tells it;
    shufflers have none.
    """

    type: Literal["signed-request"] = "signed-request"
    proposer: Name
    silo: Annotated[str, Field(max_length=80)]
    ledger: Annotated[str, Field(max_length=64)]
    counter: Annotated[int, Field(ge=0, lt=1 << 63)]
    request: str
    signature: Annotated[str, Field(max_length=128)]


class SignedReply(Strict):
    """A reply, the silo (or ``shuffler/NAME``) that has signed it, and the digest of the request that it answers."""

    type: Literal["signed-reply"] = "signed-reply"
    silo: Annotated[str, Field(max_length=80)]
    request: StudyId
    reply: str
    signature: Annotated[str, Field(max_length=128)]


def parse(messages: TypeAdapter[Any], header: bytes) -> Any:
    """The message in a header; a refusal repeats nothing of it but the names of fields."""
    try:
        return messages.validate_json(header)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part)[:32] for part in first["loc"][:6])
        raise RefusalError("bad-message", f"{where or 'message'}: {first['msg'][:200]}") from None
    except (ValueError, RecursionError, OverflowError):
        raise RefusalError("bad-message", "the header is not a message of this protocol") from None


parse_request = partial(parse, TypeAdapter(Request))
parse_response = partial(parse, TypeAdapter(Response))
_parse_signed_reply = partial(parse, TypeAdapter(SignedReply))
_parse_signed_request = partial(parse, TypeAdapter(SignedRequest))


def parse_signed_request(header: bytes) -> SignedRequest:
    """The signed request in a header; anything else is refused as unsigned, and another spelling as altered."""
    try:
        return _as_written(_parse_signed_request(header), header)
    except RefusalError as error:
        if error.code == "signature":
            raise
        raise RefusalError("unsigned", f"expected a signed request: {error}") from None


def parse_signed_reply(header: bytes) -> SignedReply:
    """The signed reply in a header; another spelling of one is refused."""
    return _as_written(_parse_signed_reply(header), header)


def _as_written(signed: Any, header: bytes) -> Any:
    """What was read, if this is how it is written: a signature is one of all bytes, in one spelling."""
    if signed.model_dump_json().encode() != header:
        raise RefusalError("signature", "expected JSON without spaces, and fields in the order of the protocol")
    return signed


def frame(header: Strict | str | bytes, payload: Buffer = b"") -> bytes:
    """A frame around a header and a payload."""
    text = header.model_dump_json() if isinstance(header, Strict) else header
    head = text.encode() if isinstance(text, str) else text
    return struct.pack(">II", 4 + len(head) + len(payload), len(head)) + head + payload


def unframed(raw: bytes) -> tuple[bytes, bytes]:
    """Header and payload of a frame that was made here."""
    head = 8 + _length(raw[4:8])
    return raw[8:head], raw[head:]


def viewed(raw: bytes) -> tuple[bytes, Buffer]:
    """As `unframed`, without a copy of the payload."""
    head = 8 + _length(raw[4:8])
    return raw[8:head], memoryview(raw)[head:]


def study_of(request: Any) -> str:
    """The study that a request is about; none of a `Hello`."""
    return str(request.plan.study if isinstance(request, Propose) else getattr(request, "study", ""))


def refuse(code: str, text: str, numbers: Mapping[str, float] | None = None) -> bytes:
    """A refusal as a frame."""
    finite = {k: float(v) for k, v in (numbers or {}).items() if math.isfinite(v)}
    return frame(Error(code=code, text=text[:500], numbers=finite))


def read_frame(read: Callable[[int], Buffer], most: int = MOST_FRAME) -> tuple[bytes, Buffer] | None:
    """Header and payload of the next frame; ``None`` where the connection was closed before it.

    ``read(n)`` returns exactly n bytes, or fewer at the end. A frame that is too long is refused before it is read.
    """
    prefix = read(4)
    if not prefix:
        return None
    length = _length(prefix)
    if not 4 <= length <= most:
        raise RefusalError("bad-frame", f"expected a frame of 4 to {most} bytes, got {length}")
    head = _length(read(4))
    if head > min(MOST_HEADER, length - 4):
        raise RefusalError(
            "bad-frame", f"expected a header of at most {MOST_HEADER} bytes inside the frame, got {head}"
        )
    header, payload = bytes(read(head)), read(length - 4 - head)
    if len(header) + len(payload) < length - 4:
        raise RefusalError("bad-frame", "the frame ended early")
    return header, payload


def _length(raw: bytes) -> int:
    if len(raw) < 4:
        raise RefusalError("bad-frame", "the frame ended early")
    return int(struct.unpack(">I", raw)[0])


def write_arrays(leaves: Sequence[Any]) -> tuple[tuple[ArraySpec, ...], Buffer]:
    """Arrays as descriptions and bytes; integers become 32 bits, everything else float32."""
    arrays = [np.asarray(leaf) for leaf in leaves]
    specs = tuple(ArraySpec(shape=a.shape, dtype="<i4" if a.dtype.kind in "iub" else "<f4") for a in arrays)
    payload = bytearray(sum(spec.size for spec in specs))
    for array, place in zip(arrays, read_arrays(specs, payload), strict=True):
        place[...] = array
    return specs, payload


def broadcast_digest(specs: Sequence[ArraySpec], payload: bytes) -> bytes:
    """A digest of a broadcast as it was sent; the deposits of its round are bound to it."""
    shapes = "".join(spec.model_dump_json() for spec in specs)
    digest = hashlib.sha256(shapes.encode() + b"\0")
    digest.update(payload)
    return digest.digest()


def read_arrays(specs: Sequence[ArraySpec], payload: Buffer) -> list[np.ndarray]:
    """The arrays in a payload, which must be exactly as long as they are."""
    if sum(spec.size for spec in specs) != len(payload):
        raise RefusalError("bad-message", "the payload is not as long as its arrays")
    arrays, at = [], 0
    for spec in specs:
        flat = np.frombuffer(payload, spec.dtype, math.prod(spec.shape), at)
        arrays.append(flat.reshape(spec.shape))
        at += spec.size
    return arrays
