"""What may be said to a shuffler, and what it says back: the frames of the silo's protocol, with other headers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from tacit.channel.sealing import Binding, Signer, check_signature
from tacit.deploy.wire import Error, Name, parse_with

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Number = Annotated[int, Field(ge=0, le=10**9)]
Count = Annotated[int, Field(ge=1, le=10**7)]
Mode = Literal["reports", "sum"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class _Bound(_Strict):
    """Everything about reports names the study, the round and the broadcast that they belong to."""

    consortium: Digest
    round: Number
    broadcast: Digest

    @property
    def binding(self) -> Binding:
        """As sealing knows it."""
        return Binding(bytes.fromhex(self.consortium), self.round, bytes.fromhex(self.broadcast))


class _Signed(_Bound):
    signature: Annotated[str, Field(max_length=128)] = ""

    def unsigned(self) -> bytes:
        """The bytes of the header that the signature covers."""
        return self.model_copy(update={"signature": ""}).model_dump_json().encode()

    def check(self, public: str, payload: bytes) -> None:
        """Raise unless this and the payload were signed with the key."""
        check_signature(public, self.signature, self.unsigned(), payload)


class Deposit(_Signed):
    """All of one silo's reports of a round, or its share of a sum: ``count`` sealed blobs of ``size`` bytes.

    ``min_silos`` is how many distinct silos this silo asks to have contributed before anything is released.
    ``silo_index`` is the silo's own in the plan; a round takes one deposit for each index.
    """

    type: Literal["deposit"] = "deposit"
    mode: Mode
    silo: Name
    shuffler: Name
    silo_index: Annotated[int, Field(ge=0, le=10**6)]
    min_silos: Annotated[int, Field(ge=2, le=10**6)]
    count: Count
    size: Annotated[int, Field(ge=1, le=1 << 26)]

    @property
    def binding(self) -> Binding:
        """As sealing knows it, with the sender."""
        return super().binding._replace(sender=sender_of(self.mode, self.silo, self.silo_index, self.shuffler))


def sender_of(mode: str, silo: str, silo_index: int, shuffler: str) -> str:
    """What the outermost layer of a deposit is bound to."""
    return f"{mode}/{silo_index}/{silo}/{shuffler}"


class Collect(_Bound):
    """Release what these silos have contributed to a round."""

    type: Literal["collect"] = "collect"
    mode: Mode
    silos: Annotated[tuple[Name, ...], Field(max_length=100_000)]


class Relay(_Signed):
    """A shuffled batch, signed by the shuffler that made it: the answer to `Collect`, and what the next one takes."""

    type: Literal["relay"] = "relay"
    silos: Count
    min_silos: Count
    count: Count
    size: Annotated[int, Field(ge=1, le=1 << 26)]
    layer: Annotated[int, Field(ge=0, le=64)]
    by: Name


class Total(_Signed):
    """The sum of the shares of the silos named, modulo 2^64; the payload holds 64-bit integers."""

    type: Literal["total"] = "total"
    silos: tuple[Name, ...]
    by: Name


class Hello(_Strict):
    """Who are you?"""

    type: Literal["hello"] = "hello"
    version: Literal[1] = 1


class Welcome(_Strict):
    """The shuffler's public facts."""

    type: Literal["welcome"] = "welcome"
    name: Name
    seal: str
    sign: str
    layer: int
    min_silos: int
    silos: tuple[Name, ...]


class Accepted(_Strict):
    """A deposit lies in the shuffler's hands; how many distinct silos there are in its round."""

    type: Literal["accepted"] = "accepted"
    silos: int


Request = Annotated[Deposit | Collect | Relay | Hello, Field(discriminator="type")]
Response = Annotated[Accepted | Relay | Total | Welcome | Error, Field(discriminator="type")]
_REQUESTS: TypeAdapter[Any] = TypeAdapter(Request)
_RESPONSES: TypeAdapter[Any] = TypeAdapter(Response)


def parse_request(header: bytes) -> Any:
    """The request in a header, or a refusal."""
    return parse_with(_REQUESTS, header)


def parse_response(header: bytes) -> Any:
    """The response in a header."""
    return parse_with(_RESPONSES, header)


def signed(message: Any, signer: Signer, payload: bytes) -> Any:
    """A message with its signature."""
    return message.model_copy(update={"signature": signer.sign(message.unsigned(), payload)})
