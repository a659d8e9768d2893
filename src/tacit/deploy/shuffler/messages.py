"""Requests to a shuffler and its replies: the frames of the silo's protocol, with other headers."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Literal, Self

from pydantic import Field, TypeAdapter

from tacit.channel.sealing import Binding
from tacit.deploy.signing import Signer, check_signature
from tacit.deploy.wire import Error, Name, Strict, parse

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=1, le=10**7)]
Size = Annotated[int, Field(ge=1, le=1 << 26)]
Mode = Literal["reports", "sum"]


class _Bound(Strict):
    """Names the study, the round and the broadcast."""

    consortium: Digest
    round: Annotated[int, Field(ge=0, le=10**9)]
    broadcast: Digest

    @property
    def binding(self) -> Binding:
        """What sealed layers are bound to."""
        return Binding(bytes.fromhex(self.consortium), self.round, bytes.fromhex(self.broadcast))


def fields_of(binding: Binding) -> dict[str, Any]:
    """The fields of a header that name what it is bound to."""
    return {"consortium": binding.consortium.hex(), "round": binding.round, "broadcast": binding.broadcast.hex()}


class _Signed(_Bound):
    signature: Annotated[str, Field(max_length=128)] = ""

    def unsigned(self) -> bytes:
        """The bytes of the header that the signature covers."""
        return self.model_copy(update={"signature": ""}).model_dump_json().encode()

    def signed(self, signer: Signer, payload: bytes) -> Self:
        """This header with a signature over it and the payload."""
        return self.model_copy(update={"signature": signer.sign(self.unsigned(), payload)})

    def check(self, public: str, payload: bytes) -> None:
        """Raise unless this and the payload were signed with the key."""
        check_signature(public, self.signature, self.unsigned(), payload)


class Deposit(_Signed):
    """All of one silo's reports of a round, or its share of a sum: ``count`` sealed blobs of ``size`` bytes.

    The silo asks that ``min_silos`` distinct silos contribute before anything is released. ``silo_index`` is its index
    in the plan; a round takes one deposit for each index.
    """

    type: Literal["deposit"] = "deposit"
    mode: Mode
    silo: Name
    shuffler: Name
    silo_index: Annotated[int, Field(ge=0, le=10**6)]
    min_silos: Annotated[int, Field(ge=2, le=10**6)]
    count: Count
    size: Size

    @property
    def binding(self) -> Binding:
        """What sealed layers are bound to; the outermost also to the sender."""
        return super().binding._replace(sender=sender_of(self.mode, self.silo, self.silo_index, self.shuffler))


def sender_of(mode: str, silo: str, silo_index: int, shuffler: str) -> str:
    """The sender that the outermost layer of a deposit is bound to."""
    return f"{mode}/{silo_index}/{silo}/{shuffler}"


class Collect(_Bound):
    """Asks for the release of what these silos have contributed to a round."""

    type: Literal["collect"] = "collect"
    mode: Mode
    silos: Annotated[tuple[Name, ...], Field(max_length=100_000)]


class Relay(_Signed):
    """A shuffled batch, signed by its shuffler: the answer to `Collect`, and what the next shuffler takes."""

    type: Literal["relay"] = "relay"
    silos: Count
    min_silos: Count
    count: Count
    size: Size
    layer: Annotated[int, Field(ge=0, le=64)]
    by: Name


class Total(_Signed):
    """The sum of the shares of the silos named, modulo 2^64; the payload holds 64-bit integers."""

    type: Literal["total"] = "total"
    silos: tuple[Name, ...]
    by: Name


class Hello(Strict):
    """Asks for the shuffler's public facts."""

    type: Literal["hello"] = "hello"
    version: Literal[1] = 1


class Welcome(Strict):
    """The shuffler's public facts."""

    type: Literal["welcome"] = "welcome"
    name: Name
    seal: str
    sign: str
    layer: int
    min_silos: int
    silos: tuple[Name, ...]


class Accepted(Strict):
    """A deposit was taken; ``silos`` have contributed to its round so far."""

    type: Literal["accepted"] = "accepted"
    silos: int


Request = Annotated[Deposit | Collect | Relay | Hello, Field(discriminator="type")]
Response = Annotated[Accepted | Relay | Total | Welcome | Error, Field(discriminator="type")]
parse_request = partial(parse, TypeAdapter(Request))
parse_response = partial(parse, TypeAdapter(Response))
