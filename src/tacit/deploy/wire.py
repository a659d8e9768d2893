"""What may be said to a silo's daemon, and what it says back: length-limited frames of strict JSON and raw arrays.

    frame    4 bytes: length of the rest | 4 bytes: length of the header | header (JSON) | payload (arrays)

Lengths are big-endian; arrays are little-endian, one after another in the order in which the header describes them.
Nothing is unpickled, evaluated or imported. A request that is not exactly one of the shapes below is refused.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator, model_validator

from tacit.errors import TacitError
from tacit.privacy.anonymity import record_weights

VERSION = 2
MOST_HEADER = 1 << 16
MOST_FRAME = 1 << 26

_DTYPES = {"<f4": np.dtype("<f4"), "<i4": np.dtype("<i4")}
_MOST_NODES, _MOST_DEPTH, _MOST_TEXT, _LARGEST = 2048, 4, 64, 10**6

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
StudyId = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
SealKey = Annotated[str, Field(max_length=2048)]
Width = Annotated[int, Field(ge=1, le=1 << 24)]


class RefusalError(TacitError):
    """A typed refusal: ``code`` is part of the protocol, ``numbers`` say by how much."""

    def __init__(self, code: str, text: str, numbers: dict[str, float] | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.numbers = {k: v for k, v in (numbers or {}).items() if math.isfinite(v)}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ArraySpec(_Strict):
    """Shape and type of one array of the payload."""

    shape: Annotated[tuple[Annotated[int, Field(ge=0, le=1 << 28)], ...], Field(max_length=8)]
    dtype: Literal["<f4", "<i4"] = "<f4"

    @property
    def size(self) -> int:
        """How many bytes the array takes."""
        return math.prod(self.shape) * 4


class Shuffle(_Strict):
    """How contributions travel that are private only in a crowd.

    ``records`` are the numbers of records of all silos, by place; ``min_silos`` is how many of them come at least, and
    ``honest`` the share of all silos that keeps its noise secret. ``shufflers`` maps names to sealing keys, in the
    order of the way; ``server`` is the server's sealing key, where it opens single reports. ``weights`` says what the
    objective weighs alike: silos, or records.
    """

    records: Annotated[tuple[Annotated[int, Field(ge=1, le=10**9)], ...], Field(min_length=2, max_length=10_000)]
    min_silos: Annotated[int, Field(ge=2)]
    honest: Annotated[float, Field(gt=0, le=1)]
    shufflers: Annotated[dict[Name, SealKey], Field(min_length=1, max_length=16)]
    server: SealKey | None = None
    weights: Literal["equal", "records"] = "equal"

    def record_weights(self, batch_size: int | None) -> tuple[Any, Any]:
        """What a record of each silo counts in a sum, beside the one that counts most, and what that counts."""
        records = np.asarray(self.records)
        sizes = records if batch_size is None else np.full(len(records), batch_size)
        return record_weights(None if self.weights == "equal" else records / records.sum(), sizes)


class Plan(_Strict):
    """What the server proposes: plain data, from which a silo builds the algorithm with its own copy of Tacit.

    ``objective`` and ``algorithm`` are the sections of a study. ``everyone`` says that all silos take part in all
    rounds, so that rounds must come without a gap. ``nonce`` tells apart two runs of the same plan.
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

    @field_validator("objective", "algorithm")
    @classmethod
    def _plain(cls, value: dict[str, Any]) -> dict[str, Any]:
        if _nodes(value, _MOST_DEPTH) > _MOST_NODES:
            raise ValueError("too large")
        return value

    @model_validator(mode="after")
    def _place_exists(self) -> Plan:
        if self.silo_index >= self.silos:
            raise ValueError(f"expected silo_index={self.silo_index} < silos={self.silos}")
        if self.shuffle is not None and not self.shuffle.min_silos <= self.silos == len(self.shuffle.records):
            raise ValueError("expected shuffle.records for every silo, and shuffle.least of them")
        return self

    @property
    def study(self) -> str:
        """The study's identity at this silo: the SHA-256 of everything in the plan."""
        unsaid = {"shuffle"} if self.shuffle is None else set()
        return hashlib.sha256(self.model_dump_json(exclude=unsaid).encode()).hexdigest()

    @property
    def consortium(self) -> bytes:
        """What all silos of the study share: a digest of everything but the place."""
        return hashlib.sha256(self.model_dump_json(exclude={"silo_index"}).encode()).digest()


def _nodes(value: Any, depth: int) -> int:
    """The number of plain values inside, each checked; anything odd raises."""
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


class Hello(_Strict):
    """Who are you?"""

    type: Literal["hello"] = "hello"
    version: int = VERSION


class Propose(_Strict):
    """Would you take part in this?"""

    type: Literal["propose"] = "propose"
    plan: Plan


class Status(_Strict):
    """How far are we?"""

    type: Literal["status"] = "status"
    study: StudyId


class Answer(_Strict):
    """The broadcast of a round; the payload holds its arrays."""

    type: Literal["answer"] = "answer"
    study: StudyId
    round: Annotated[int, Field(ge=0, le=10**9)]
    arrays: Annotated[tuple[ArraySpec, ...], Field(max_length=256)]


class Finish(_Strict):
    """We are done; give back what was reserved and not used."""

    type: Literal["finish"] = "finish"
    study: StudyId


Request = Annotated[Hello | Propose | Status | Answer | Finish, Field(discriminator="type")]


class Welcome(_Strict):
    """The silo's public facts."""

    type: Literal["welcome"] = "welcome"
    version: int
    tacit: str
    silo: str
    records: int
    features: tuple[int, ...]
    task: str
    classes: int | None
    noise: str


class Consent(_Strict):
    """Whether the silo takes part (``consented``, or ``pending`` its owner's approval), and two prices.

    ``epsilon`` and ``delta`` are the plan's own price. ``takes`` is the share of this silo's account that the study
    takes by the account's ``rule``, and ``left`` the share that is left then for all later studies.
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


class Standing(_Strict):
    """A study's state at this silo."""

    type: Literal["standing"] = "standing"
    study: str
    state: Literal["consented", "pending", "finished"]
    next_round: int
    answers: int


class Message(_Strict):
    """A silo's answer; the payload holds the message's arrays."""

    type: Literal["message"] = "message"
    study: str
    round: int
    arrays: tuple[ArraySpec, ...]


class Sealed(_Strict):
    """A silo's answer through shufflers: the payload holds a frame for each of them, of these lengths, in order."""

    type: Literal["sealed"] = "sealed"
    study: str
    round: int
    silo: str
    deposits: dict[str, int]


class Receipt(_Strict):
    """A study is closed: how often the silo answered, what that cost, and the ledger's newest hash."""

    type: Literal["receipt"] = "receipt"
    study: str
    answers: int
    epsilon: float
    delta: float
    entry: int
    hash: str


class Error(_Strict):
    """No, and why."""

    type: Literal["error"] = "error"
    code: str
    text: str
    numbers: dict[str, float] = {}


Response = Annotated[Welcome | Consent | Standing | Message | Sealed | Receipt | Error, Field(discriminator="type")]
_REQUESTS: TypeAdapter[Any] = TypeAdapter(Request)
_RESPONSES: TypeAdapter[Any] = TypeAdapter(Response)


def parse_request(header: bytes) -> Any:
    """The request in a header, or a refusal that repeats nothing of what was sent but the fields' names."""
    return parse_with(_REQUESTS, header)


def parse_response(header: bytes) -> Any:
    """The response in a header."""
    return parse_with(_RESPONSES, header)


def parse_with(adapter: TypeAdapter[Any], header: bytes) -> Any:
    """What a header says, by this table of messages; a refusal repeats nothing of it but the fields' names."""
    try:
        return adapter.validate_json(header)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part)[:32] for part in first["loc"][:6])
        raise RefusalError("bad-message", f"{where or 'message'}: {first['msg'][:200]}") from None
    except (ValueError, RecursionError, OverflowError):
        raise RefusalError("bad-message", "the header is not a message of this protocol") from None


def frame(header: str | bytes, payload: bytes = b"") -> bytes:
    """A frame around a header and a payload."""
    head = header.encode() if isinstance(header, str) else header
    return struct.pack(">II", 4 + len(head) + len(payload), len(head)) + head + payload


def refuse(code: str, text: str, numbers: Mapping[str, float] | None = None) -> bytes:
    """A refusal as a frame."""
    finite = {k: float(v) for k, v in (numbers or {}).items() if math.isfinite(v)}
    return frame(Error(code=code, text=text[:500], numbers=finite).model_dump_json())


def read_frame(read: Callable[[int], bytes], most: int = MOST_FRAME) -> tuple[bytes, bytes] | None:
    """Header and payload of the next frame; ``None`` where the other side has closed before a new one.

    ``read(n)`` returns exactly n bytes, or fewer at the end. A frame that is too long is refused before it is read.
    """
    prefix = read(4)
    if not prefix:
        return None
    length = _number(prefix)
    if not 4 <= length <= most:
        raise RefusalError("bad-frame", f"expected a frame of 4 to {most} bytes, got {length}")
    head = _number(read(4))
    if head > min(MOST_HEADER, length - 4):
        raise RefusalError(
            "bad-frame", f"expected a header of at most {MOST_HEADER} bytes inside the frame, got {head}"
        )
    body = read(length - 4)
    if len(body) < length - 4:
        raise RefusalError("bad-frame", "the frame ended early")
    return body[:head], body[head:]


def _number(raw: bytes) -> int:
    if len(raw) < 4:
        raise RefusalError("bad-frame", "the frame ended early")
    return int(struct.unpack(">I", raw)[0])


def write_arrays(leaves: Sequence[Any]) -> tuple[tuple[ArraySpec, ...], bytes]:
    """Arrays as descriptions and bytes; integers become 32 bits, everything else float32."""
    arrays = [np.asarray(leaf) for leaf in leaves]
    kept = [np.ascontiguousarray(a, "<i4" if a.dtype.kind in "iub" else "<f4") for a in arrays]
    specs = tuple(ArraySpec(shape=a.shape, dtype=_code(k)) for a, k in zip(arrays, kept, strict=True))
    return specs, b"".join(k.tobytes() for k in kept)


def broadcast_digest(specs: Sequence[ArraySpec], payload: bytes) -> bytes:
    """What a round's contributions are bound to: a digest of the broadcast as it was sent."""
    shapes = "".join(spec.model_dump_json() for spec in specs)
    return hashlib.sha256(shapes.encode() + b"\0" + payload).digest()


def _code(array: np.ndarray) -> Literal["<f4", "<i4"]:
    return "<i4" if array.dtype.kind == "i" else "<f4"


def read_arrays(specs: Sequence[ArraySpec], payload: bytes) -> list[np.ndarray]:
    """The arrays that a payload holds, or a refusal where it is too long or too short."""
    if sum(spec.size for spec in specs) != len(payload):
        raise RefusalError("bad-message", "the payload is not as long as its arrays")
    arrays, at = [], 0
    for spec in specs:
        flat = np.frombuffer(payload, _DTYPES[spec.dtype], math.prod(spec.shape), at)
        arrays.append(flat.reshape(spec.shape))
        at += spec.size
    return arrays
