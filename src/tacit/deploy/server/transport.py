"""How the server reaches silos, which it does not trust: frames to each, and checked replies that came in time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from tacit.channel import weighted_mean
from tacit.deploy.client import Client
from tacit.deploy.parts import in_parts, joined, one_of, rest_of
from tacit.deploy.signing import Proposer, digest_of, opened_reply
from tacit.deploy.wire import (
    Error,
    Message,
    RefusalError,
    Sealed,
    Welcome,
    frame,
    parse_response,
    read_arrays,
    unframed,
)
from tacit.errors import printable

NONSENSE = "nonsense"
"""The code of a reply that cannot be what the plan asked for."""

Frames = Sequence[bytes]
Replies = list[tuple[bytes, bytes]]
Enough = Callable[[Mapping[str, Replies]], bool]


class Transport(Protocol):
    """A way to reach silos; addresses are whatever the transport calls them."""

    def present(self) -> list[str]:
        """Addresses that can be reached now."""
        ...

    def ask(self, requests: Mapping[str, Frames], seconds: float, enough: Enough | None = None) -> dict[str, Replies]:
        """Send frames; return the replies that are there once all have come, ``enough`` is true, or time is up."""
        ...


class SocketTransport:
    """Daemons on this machine, over their sockets; for tests and for machines that hold several silos."""

    def __init__(self, sockets: Sequence[Path]) -> None:
        self._sockets = {str(path): path for path in sockets}
        self._pool = ThreadPoolExecutor(max_workers=max(1, len(sockets)))

    def present(self) -> list[str]:
        """Sockets that exist."""
        return [name for name, path in self._sockets.items() if path.exists()]

    def ask(self, requests: Mapping[str, Frames], seconds: float, enough: Enough | None = None) -> dict[str, Replies]:
        """One connection for each silo and request, in threads."""
        deadline = time.monotonic() + seconds
        waiting: dict[Future[Replies], str] = {
            self._pool.submit(self._one, self._sockets[name], frames): name for name, frames in requests.items()
        }
        replies: dict[str, Replies] = {}
        while waiting and time.monotonic() < deadline:
            done, _ = wait(waiting, timeout=max(0.0, deadline - time.monotonic()), return_when=FIRST_COMPLETED)
            for future in done:
                name = waiting.pop(future)
                if future.exception() is None:
                    replies[name] = future.result()
            if enough is not None and enough(replies):
                break
        return replies

    @staticmethod
    def _one(path: Path, frames: Frames) -> Replies:
        with contextlib.closing(Client(path)) as client:
            return [client.exchange(raw) for raw in frames]

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class SignedTransport:
    """Signs what goes to silos, and lets through only what pinned silos have signed in reply.

    ``silos`` pins each silo's public key to its name. Which silo is at which address is known once it has answered, and
    which ledger it keeps once it has said so in a `Welcome`. A silo that moves has a new address, and answers there to
    a new hello.

    Formal guarantee: all replies from one address are signed by one silo, and facts that a silo tells are its own. So a
    silo can keep itself out of a study, and speak for no other.
    """

    def __init__(self, inner: Transport, proposer: Proposer, silos: Mapping[str, str]) -> None:
        self._inner, self._proposer, self._silos = inner, proposer, silos
        self._names: dict[str, str] = {}
        self._ledgers: dict[str, str] = {}

    def present(self) -> list[str]:
        """As the transport inside."""
        return self._inner.present()

    def ask(self, requests: Mapping[str, Frames], seconds: float, enough: Enough | None = None) -> dict[str, Replies]:
        """As the transport inside, with signed frames; replies that no pinned silo has signed count as none.

        What is too long for a frame goes in parts, and comes in parts; a reply that does not come whole counts as none.
        """
        deadline = time.monotonic() + seconds
        parts = {at: [in_parts(raw) for raw in own] for at, own in requests.items()}
        found = self._heard({at: [raw for own in asked for raw in own] for at, asked in parts.items()}, seconds, enough)
        for at, replies in found.items():
            each = iter(replies)
            found[at] = [one_of([next(each) for _ in own]) for own in parts[at]]
        return self._completed(requests, found, deadline, enough)

    def _completed(
        self, requests: Mapping[str, Frames], found: dict[str, Replies], deadline: float, enough: Enough | None
    ) -> dict[str, Replies]:
        """The replies with what is missing of long ones; who says of one what cannot be has not replied."""
        rests: dict[str, list[list[bytes]]] = {}
        for at, replies in list(found.items()):
            try:
                rests[at] = [rest_of(raw, own) for raw, own in zip(requests[at], replies, strict=True)]
            except RefusalError:
                del found[at]
        missing = {at: [raw for rest in own for raw in rest] for at, own in rests.items() if any(own)}
        if not missing:
            return found
        long = {at: found.pop(at) for at in missing}
        # Whoever announces a long reply and is silent then keeps nobody waiting for longer than others would.
        ready = None if enough is None else lambda came: enough({**found, **{at: long[at] for at in came}})
        pieces = self._heard(missing, max(0.0, deadline - time.monotonic()), ready)
        for at, replies in long.items():
            each = iter(pieces.get(at, ()))
            with contextlib.suppress(RefusalError):
                whole = [[next(each, (b"", b"")) for _ in rest] for rest in rests[at]]
                found[at] = [joined(own, more) if more else own for own, more in zip(replies, whole, strict=True)]
        return found

    def _heard(self, requests: Mapping[str, Frames], seconds: float, enough: Enough | None) -> dict[str, Replies]:
        signed = {at: [self._signed(at, raw) for raw in frames] for at, frames in requests.items()}
        heard: dict[str, Replies] = {}

        def believed(replies: Mapping[str, Replies]) -> dict[str, Replies]:
            for at in [at for at in replies if at in signed and at not in heard]:
                heard[at] = []
                with contextlib.suppress(RefusalError, ValueError):
                    heard[at] = [self._opened(at, *pair) for pair in zip(signed[at], replies[at], strict=True)]
            return {at: own for at, own in heard.items() if own}

        # What nobody has signed is not enough for anything.
        ready = None if enough is None else lambda replies: enough(believed(replies))
        return believed(self._inner.ask(signed, seconds, ready))

    def _signed(self, at: str, raw: bytes) -> bytes:
        header, payload = unframed(raw)
        silo, ledger = self._names.get(at, ""), self._ledgers.get(at, "")
        return self._proposer.request(header.decode(), payload, silo=silo, ledger=ledger)

    def _opened(self, at: str, raw: bytes, reply: tuple[bytes, bytes]) -> tuple[bytes, bytes]:
        silo, header = opened_reply(*reply, request=digest_of(*unframed(raw)), silos=self._silos)
        if self._names.setdefault(at, silo) != silo:
            raise RefusalError("silo", f"{silo} answers at the address of {self._names[at]}")
        response = parse_response(header)
        if isinstance(response, Welcome) and response.silo != silo:
            raise RefusalError("silo", f"{silo} says that it is another silo")
        if isinstance(response, Welcome):
            self._ledgers[at] = response.ledger
        if isinstance(response, Error) and response.code == "addressed":
            # The silo may keep another ledger by now; it tells when it is greeted again.
            self._ledgers.pop(at, None)
        if isinstance(response, Error) and response.code == "replayed":
            # Another request of this proposer has overtaken this one, which may be asked anew.
            raise RefusalError(response.code, response.text)
        return header, reply[1]


class Recorder:
    """A transport that stores every reply: all that a server sees."""

    def __init__(self, inner: Transport, path: Path) -> None:
        self._inner, self._path = inner, path

    def present(self) -> list[str]:
        """As the transport inside."""
        return self._inner.present()

    def ask(self, requests: Mapping[str, Frames], seconds: float, enough: Enough | None = None) -> dict[str, Replies]:
        """As the transport inside."""
        replies = self._inner.ask(requests, seconds, enough)
        with self._path.open("ab") as file:
            file.writelines(frame(*reply) for own in replies.values() for reply in own)
        return replies


def response_in(reply: tuple[bytes, bytes]) -> Any:
    """The response in a reply; one that cannot be read counts as an error. Texts that it tells are `printable`."""
    try:
        response = parse_response(reply[0])
    except RefusalError as error:
        return Error(code=NONSENSE, text=str(error))
    if isinstance(response, Error):
        return response.model_copy(update={"code": printable(response.code, 40), "text": printable(response.text)})
    if isinstance(response, Welcome):
        return response.model_copy(update={"tacit": printable(response.tacit, 40)})
    return response


def fitting(response: Message | Sealed, body: bytes, shape: Any) -> Message | Sealed | Error:
    """A message whose arrays have the plan's shapes and finite entries, or what is wrong with it.

    Without a shape it must be sealed: shufflers check what is inside.
    """
    if isinstance(response, Sealed) != (shape is None):
        return Error(code=NONSENSE, text="expected the answer on the plan's channel")
    if isinstance(response, Sealed):
        return response
    try:
        arrays = read_arrays(response.arrays, body)
    except RefusalError as error:
        return Error(code=NONSENSE, text=str(error))
    wanted = [(leaf.shape, leaf.dtype.kind == "i") for leaf in jax.tree.leaves(shape)]
    if [(a.shape, a.dtype.kind == "i") for a in arrays] != wanted:
        return Error(code=NONSENSE, text="expected a message of the plan's shapes")
    if not all(np.isfinite(a).all() for a in arrays):
        return Error(code=NONSENSE, text="expected a message of finite numbers")
    return response


def mean_of(answers: Mapping[str, tuple[Any, bytes]], shape: Any, weights: Mapping[str, float]) -> Any:
    """The weighted mean of messages that fit, in the form of ``shape``."""
    names = sorted(answers)
    columns = zip(*(read_arrays(answers[name][0].arrays, answers[name][1]) for name in names), strict=True)
    stacked = [jnp.stack([jnp.asarray(leaf) for leaf in column]) for column in columns]
    own = jnp.asarray([weights[name] / len(names) for name in names], jnp.float32)
    return weighted_mean(jax.tree.unflatten(jax.tree.structure(shape), stacked), own)
