"""All that Tacit uses of Flower's private functions: in this file, and for one version of Flower.

`Fleet` is a silo's side of a SuperLink, `Link` and `Run` are the server's. Nothing that arrives here is executed: apps
that a SuperLink ships are never fetched, and messages are data.
"""

from __future__ import annotations

import base64
import datetime
import functools
import hashlib
import importlib
import inspect
import io
import random
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import flwr
import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from tacit.deploy.flower.commands import Control
from tacit.errors import TacitError, printable

NEEDED = "1.41"
RECORD, FRAMES = "tacit", "frames"
FLEET_PATHS = frozenset(
    f"/v1/fleet/{name}"
    for name in (
        *("activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages"),
        *("pull-object", "push-object", "confirm-message-received"),
    )
)
"""What a silo's node asks of a SuperLink. Fetching an app is not among it."""

PUSH_PATH, PULL_PATH = "/v1/fleet/push-messages", "/v1/fleet/pull-messages"

HEARTBEAT = 10.0
"""Seconds; the least that Flower allows. A node that was killed may join again after two of them."""

_FLEET = "flwr.supernode.fleet_http_client:FleetHttpClient"
_RUNTIME = "flwr.supercore.runtime.runtime_http_client:RuntimeHttpClient"
_CONTROL = "flwr.supercore.control.control_http_client:ControlHttpClient"
_OBJECTS = "flwr.supercore.inflatable.inflatable_object"
_CALLS = {
    _FLEET: ("ActivateNode", "DeactivateNode", "SendNodeHeartbeat", "PullMessages", "PushMessages", "PullObject"),
    _RUNTIME: ("AcquireTask", "PullTaskInput", "PushTaskOutput", "SendTaskHeartbeat", "GetNodes", "PullMessages"),
    _CONTROL: ("StartRun", "RegisterNode", "UnregisterNode", "ListNodes"),
}
_EXPECTED = {
    "flwr.supercore.protobuf.client:ProtobufClient.from_server_address": (
        "server_address insecure root_certificates interceptors retry_invoker"
    ),
    "flwr.supernode.node_auth_http_interceptor:NodeAuthHttpInterceptor": "private_key public_key",
    "flwr.supercore.interceptors:RuntimeVersionHttpInterceptor": "component_name",
    "flwr.supercore.interceptors:RuntimeTokenHttpInterceptor": "token",
    "flwr.supercore.interceptors:SuperExecAuthHttpInterceptor": "master_secret protected_methods",
    "flwr.supercore.primitives.asymmetric:verify_signature": "public_key message signature",
    f"{_OBJECTS}:get_all_nested_objects": "obj",
    f"{_OBJECTS}:get_object_tree": "obj",
    f"{_OBJECTS}:no_object_id_recompute": "",
    "flwr.app:ConfigRecord.inflate": "object_content children",
    "flwr.app.message:make_message": "metadata content error",
    "flwr.app.message:remove_content_from_message": "message",
    "flwr.common.serde:message_from_proto": "message_proto",
    "flwr.common.serde:message_to_proto": "message",
} | {f"{client}.{name}": "self request" for client, names in _CALLS.items() for name in names}
"""Names of Flower's that Tacit relies on, and the names of their parameters."""

_APP = b"""\
[project]
name = "tacit"
version = "1.0.0"
dependencies = []

[tool.flwr.app]
publisher = "tacit"

[tool.flwr.app.components]
serverapp = "none:app"
clientapp = "none:app"
"""
"""Flower wants an app for every run; this one has no code."""

_OBJECT_SECONDS = 60.0
"""How long a SuperLink may be away, and how long what is in a message may come after its head."""

_MOST_COMING = 16
"""How many messages a node remembers that have not come as a whole."""

_MOST_HEADS, _MOST_OBJECT = 1 << 20, 80 << 20
"""Bytes of what a SuperLink tells a node, and of what is in a message."""

_PAUSE, _MOST_PAUSE = 0.05, 2.0
_BEGIN_SECONDS = 60.0
_AWAY = (502, 503, 504)
_GONE = (401, 403)


class FlowerError(TacitError):
    """The SuperLink does not do what was asked."""


class EndedError(FlowerError):
    """The SuperLink knows nothing of the run any more: somebody has stopped it, or it was away for too long."""


def check_flower() -> None:
    """Raise unless the installed Flower has all that is used here, as it is used here."""
    wrong = []
    for name, parameters in _EXPECTED.items():
        module, _, path = name.partition(":")
        try:
            found: Any = importlib.import_module(module)
            for part in path.split("."):
                found = getattr(found, part)
            if " ".join(inspect.signature(found).parameters) != parameters:
                wrong.append(name)
        except (ImportError, AttributeError):
            wrong.append(name)
    if wrong:
        raise FlowerError(
            f"Expected flwr=={NEEDED}.*, but flwr {flwr.__version__} is installed, without {', '.join(wrong[:3])} as "
            f"Tacit uses it; run: pip install 'flwr=={NEEDED}.*'"
        )


def claimed_node(headers: Mapping[str, str]) -> bytes | None:
    """The public key that the headers of a node's request name; anybody can write it there."""
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER

    try:
        return base64.b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
    except (KeyError, ValueError):
        return None


def is_signed_by(key: bytes, headers: Mapping[str, str]) -> bool:
    """Whether the holder of a node's key has signed these headers, a few minutes ago at most."""
    from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
    from flwr.supercore.constant import FLEET_HTTP_SIGNATURE_HEADER
    from flwr.supercore.date import now
    from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature

    try:
        signed = headers[TIMESTAMP_HEADER]
        age = (now() - datetime.datetime.fromisoformat(signed)).total_seconds()
        signature = base64.b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER], validate=True)
        is_recent = abs(age) < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
        return is_recent and verify_signature(bytes_to_public_key(key), signed.encode(), signature)
    except (KeyError, ValueError, TypeError):
        return False


def is_reply(body: bytes) -> bool:
    """Whether a node pushes one reply to the server, as itself, with one record, and nothing else.

    Flower would take more from any node: messages to other nodes, in the server's name, and any number of records.
    """
    from flwr.common.constant import SUPERLINK_NODE_ID
    from flwr.proto.fleet_pb2 import PushMessagesRequest

    try:
        pushed = PushMessagesRequest.FromString(body)
    except Exception:
        # Nothing that can be read is nothing to pass on.
        return False
    if not len(pushed.messages_list) == len(pushed.message_object_trees) == 1:
        return False
    to_server = (pushed.node.node_id, SUPERLINK_NODE_ID)
    head = pushed.messages_list[0].metadata
    is_own = bool(head.reply_to_message_id) and (head.src_node_id, head.dst_node_id) == to_server
    return is_own and _is_small(pushed.message_object_trees[0])


def _is_small(tree: Any) -> bool:
    """Whether a tree of objects is no more than a message, its records by name, and one record."""
    for _ in range(2):
        if len(tree.children) > 1:
            return False
        tree = tree.children[0] if tree.children else tree
    return not tree.children


def is_away(error: Exception) -> bool:
    """Whether the other side may be back soon."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in _AWAY
    return isinstance(error, httpx.TransportError) and "CERTIFICATE_VERIFY_FAILED" not in str(error)


class Parcel(NamedTuple):
    """Frames for the daemon, and the head of their message; ``frames`` is None where they could not be read."""

    message: Any
    frames: list[bytes] | None


class _Coming(NamedTuple):
    """The head of a message, whose frames may be on their way until then."""

    head: Any
    tree: Any
    until: float


class Fleet:
    """A silo's side of a SuperLink: the node fetches messages for the daemon and brings its replies.

    A message may never come as a whole, so nothing is waited for while something else is there. No more is taken from a
    SuperLink at once than fits: replies are bounded in bytes, and never unpacked.
    """

    def __init__(self, superlink: str, authority: Path, key: Path) -> None:
        from flwr.proto import fleet_pb2, heartbeat_pb2, message_pb2, node_pb2
        from flwr.supernode.fleet_http_client import FleetHttpClient
        from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

        own: Any = serialization.load_ssh_private_key(key.read_bytes(), None)
        self._fleet, self._heartbeat, self._messages, self._node_type = fleet_pb2, heartbeat_pb2, message_pb2, node_pb2
        self._public = public_pem(own.public_key())
        self._client = FleetHttpClient.from_server_address(
            superlink, False, authority.read_bytes(), [NodeAuthHttpInterceptor(own, own.public_key())]
        )
        _stay(self._client)
        _bound(self._client)
        self.node: int | None = None
        self._coming: list[_Coming] = []

    def join(self) -> None:
        """Say that this node is here; once it was, a heartbeat is enough."""
        if self.node is not None:
            if self.beat():
                return
            self.node = None
        request = self._fleet.ActivateNodeRequest(public_key=self._public, heartbeat_interval=HEARTBEAT)
        self.node = int(self._client.ActivateNode(request).node_id)

    def beat(self) -> bool:
        """Send a heartbeat; false where the SuperLink does not know this node."""
        request = self._heartbeat.SendNodeHeartbeatRequest(node=self._self, heartbeat_interval=HEARTBEAT)
        try:
            return bool(self._client.SendNodeHeartbeat(request).success)
        except httpx.HTTPStatusError as error:
            if error.response.status_code in _GONE:
                return False
            raise

    def leave(self) -> None:
        """Say goodbye."""
        if self.node is not None:
            self._client.DeactivateNode(self._fleet.DeactivateNodeRequest(node_id=self.node))

    def close(self) -> None:
        """Hang up."""
        self._client.close()

    @property
    def _self(self) -> Any:
        return self._node_type.Node(node_id=self.node or 0)

    def receive(self) -> Parcel | None:
        """The next message for this node that is there as a whole, if there is any."""
        from flwr.common.serde import message_from_proto

        found = self._insist(self._client.PullMessages, self._fleet.PullMessagesRequest(node=self._self))
        if found.messages_list:
            until = time.monotonic() + _OBJECT_SECONDS
            head, tree = message_from_proto(found.messages_list[0]), found.message_object_trees[0]
            self._coming = [*self._coming[1 - _MOST_COMING :], _Coming(head, tree, until)]
        for coming in reversed(self._coming):
            frames = self._taken(coming)
            if frames is not _LATER:
                return Parcel(coming.head, frames)
        return None

    @property
    def expects(self) -> bool:
        """Whether a message is on its way."""
        return bool(self._coming)

    def _taken(self, coming: _Coming) -> Any:
        """The frames of a message, which is then off the list, or `_LATER`."""
        run, number = coming.head.metadata.run_id, coming.head.metadata.message_id

        def pull(part: str) -> Any:
            request = self._messages.PullObjectRequest(node=self._self, run_id=run, object_id=part)
            return self._insist(self._client.PullObject, request)

        is_over = True
        try:
            frames = _frames(coming.tree, pull)
            is_over = frames is not _LATER or time.monotonic() > coming.until
        finally:
            if is_over:
                self._coming = [other for other in self._coming if other is not coming]
        if not is_over:
            return _LATER
        confirm = self._messages.ConfirmMessageReceivedRequest(node=self._self, run_id=run, message_object_id=number)
        self._insist(self._client.ConfirmMessageReceived, confirm)
        return None if frames is _LATER else frames

    def answer(self, parcel: Parcel, replies: Sequence[bytes]) -> None:
        """Bring the daemon's replies to a message."""
        from flwr.app import ConfigRecord, Message, RecordDict

        content = RecordDict({RECORD: ConfigRecord({FRAMES: list(replies)})})
        reply = Message(content, reply_to=parcel.message)
        run = reply.metadata.run_id

        def push(head: Any, tree: Any) -> Any:
            request = self._fleet.PushMessagesRequest(
                node=self._self, messages_list=[head], message_object_trees=[tree], clientapp_runtime_list=[0.0]
            )
            return self._insist(self._client.PushMessages, request)

        def push_object(session: str, part: str, raw: bytes) -> Any:
            request = self._messages.PushObjectRequest(
                node=self._self, run_id=run, session_id=session, object_id=part, object_content=raw
            )
            return self._insist(self._client.PushObject, request)

        with _deflated([reply]) as (heads, trees, objects):
            found = push(heads[0], trees[0])
            _push_missing(found, objects, push_object)

    def _insist(self, call: Callable[[Any], Any], request: Any) -> Any:
        """Ask again for a while if the SuperLink is away: a reply is worth it."""
        deadline, pause = time.monotonic() + _OBJECT_SECONDS, _PAUSE
        while True:
            try:
                return call(request)
            except httpx.HTTPError as error:
                if not is_away(error) or time.monotonic() > deadline:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, _MOST_PAUSE)


def registered_key(public_key: bytes) -> bytes:
    """A node's public key as OpenSSH writes it, in the form that a SuperLink keeps."""
    try:
        return public_pem(serialization.load_ssh_public_key(public_key))
    except (ValueError, NotImplementedError, UnsupportedAlgorithm) as error:
        raise FlowerError(f"Expected a public key as `tacit silo keys` makes it: {error}.") from None


class Registered(NamedTuple):
    """A node that was registered."""

    node: int
    name: str
    online: bool
    key: bytes


class Link:
    """The server's side of a SuperLink, over its loopback port."""

    def __init__(self, control: Control) -> None:
        from flwr.proto import control_pb2, runtime_pb2
        from flwr.supercore.control.control_http_client import ControlHttpClient
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor

        self._to = control
        self._control_types, self._runtime_types = control_pb2, runtime_pb2
        version = RuntimeVersionHttpInterceptor(component_name="SuperExec")
        self._control = ControlHttpClient.from_server_address(
            control.address, False, control.certificate.encode(), [version]
        )
        _stay(self._control)
        proof = SuperExecAuthHttpInterceptor(
            master_secret=control.secret, protected_methods={"/flwr.proto.Runtime/AcquireTask"}
        )
        self._executor = _runtime_client(control, version, proof)

    def register(self, name: str, public_key: bytes) -> None:
        """Let a silo's node in, by its public key as OpenSSH writes it."""
        public = registered_key(public_key)
        self._ask(self._control.RegisterNode, self._control_types.RegisterNodeRequest(public_key=public, name=name))

    def unregister(self, node: int) -> None:
        """Shut a node out, for good."""
        self._ask(self._control.UnregisterNode, self._control_types.UnregisterNodeRequest(node_id=node))

    def nodes(self) -> list[Registered]:
        """The nodes that are registered."""
        found = self._ask(self._control.ListNodes, self._control_types.ListNodesRequest())
        rows = [info for info in found.nodes_info if info.status != "unregistered"]
        return [Registered(int(i.node_id), str(i.name), i.status == "online", bytes(i.public_key)) for i in rows]

    def begin(self) -> Run:
        """Start a run and become the one who executes it.

        Whoever reaches the SuperLink can start runs. Those of others are never executed, but ended; they cost no more
        than the time for that. Where two processes begin at once, one may end the other's run, which then starts anew.
        """
        from flwr.proto.fab_pb2 import Fab

        fab = Fab(hash_str=hashlib.sha256(_app()).hexdigest(), content=_app())
        deadline = time.monotonic() + _BEGIN_SECONDS
        while time.monotonic() < deadline:
            own = self._ask(self._control.StartRun, self._control_types.StartRunRequest(fab=fab)).run_id
            while time.monotonic() < deadline and (found := self._acquired()) is not None:
                task, token = found
                run = Run(self._to, int(task.run_id), int(task.task_id), token)
                if task.run_id == own:
                    run.start()
                    return run
                run.end("Nobody executes the runs of others.")
            time.sleep(random.uniform(0.0, 0.5))
        raise FlowerError("Expected the SuperLink to start a run; too many runs of others wait there. Restart it.")

    def _acquired(self) -> tuple[Any, str] | None:
        from flwr.supercore.constant import TaskType

        request = self._runtime_types.AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
        found = self._ask(self._executor.AcquireTask, request)
        return (found.task, str(found.token)) if found.HasField("task") and found.token else None

    def _ask(self, call: Callable[[Any], Any], request: Any) -> Any:
        try:
            return call(request)
        except httpx.HTTPStatusError as error:
            said = printable(error.response.text, 300) or error.response.status_code
            raise FlowerError(f"The SuperLink refuses: {said}") from None
        except ValueError as error:
            raise FlowerError(f"The SuperLink at {self._to.address} answers nonsense: {error}.") from None
        except httpx.TransportError as error:
            raise FlowerError(
                f"No SuperLink at {self._to.address} ({error}); start it with: tacit server link, and run this on its "
                "machine."
            ) from None

    def close(self) -> None:
        """Hang up."""
        self._control.close()
        self._executor.close()

    def __enter__(self) -> Link:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Hang up."""
        self.close()


class Run:
    """A run that this process executes: messages to nodes, and their replies."""

    def __init__(self, control: Control, run: int, task: int, token: str) -> None:
        from flwr.proto import message_pb2, node_pb2, runtime_pb2
        from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, RuntimeVersionHttpInterceptor

        self._types, self._messages = runtime_pb2, message_pb2
        self._run, self._task = run, task
        self._coming: dict[str, _Coming] = {}
        self._self = node_pb2.Node(node_id=1)
        version = RuntimeVersionHttpInterceptor(component_name="flwr-serverapp")
        self._client = _runtime_client(control, version, RuntimeTokenHttpInterceptor(token=token))

    def start(self) -> None:
        """Tell the SuperLink that the run is executed."""
        self._ask(self._client.PullTaskInput, self._types.PullTaskInputRequest())

    def beat(self) -> None:
        """Tell the SuperLink that the run goes on."""
        if not self._ask(self._client.SendTaskHeartbeat, self._types.SendTaskHeartbeatRequest()).success:
            raise EndedError("The run has ended.")

    def end(self, details: str = "") -> None:
        """Finish the run, as failed where there are ``details``, and hang up."""
        status = "failed" if details else "completed"
        request = self._types.PushTaskOutputRequest(sub_status=status, details=details)
        try:
            self._client.PushTaskOutput(request)
        except (httpx.HTTPError, ValueError):
            pass
        finally:
            self.close()

    def close(self) -> None:
        """Hang up."""
        self._client.close()

    def nodes(self) -> list[int]:
        """Nodes that are connected."""
        found = self._ask(self._client.GetNodes, self._types.GetNodesRequest())
        return [int(node.node_id) for node in found.nodes]

    def push(self, frames: Mapping[int, Sequence[bytes]], seconds: float) -> dict[str, int]:
        """Send frames to nodes; nodes by the id of the message that was sent there."""
        messages = [self._message(node, own, seconds) for node, own in frames.items()]

        def push_object(session: str, part: str, raw: bytes) -> Any:
            request = self._messages.PushObjectRequest(
                node=self._self, run_id=self._run, session_id=session, object_id=part, object_content=raw
            )
            return self._ask(self._client.PushObject, request)

        with _deflated(messages) as (heads, trees, objects):
            request = self._types.PushAppMessagesRequest(messages_list=heads, message_object_trees=trees)
            found = self._ask(self._client.PushMessages, request)
            _push_missing(found, objects, push_object)
        return {str(sent): node for sent, node in zip(found.message_ids, frames, strict=True) if sent}

    def pull(self, ids: Sequence[str]) -> dict[str, list[bytes] | None]:
        """Frames of the replies that are there as a whole, by the message that they answer; None is nonsense.

        Nobody waits for a reply that is on its way.
        """
        asked = [number for number in ids if number not in self._coming]
        if asked:
            found = self._ask(self._client.PullMessages, self._types.PullAppMessagesRequest(message_ids=asked))
            until = time.monotonic() + _OBJECT_SECONDS
            for head, tree in zip(found.messages_list, found.message_object_trees, strict=True):
                answers = str(head.metadata.reply_to_message_id)
                if answers in asked:
                    self._coming[answers] = _Coming(head, tree, until)
        replies: dict[str, list[bytes] | None] = {}
        for answers, coming in list(self._coming.items()):
            # Whatever happens to it keeps no other reply back for long.
            del self._coming[answers]
            frames = _frames(coming.tree, self._pull_object)
            if frames is _LATER and time.monotonic() <= coming.until:
                self._coming[answers] = coming
                continue
            self._confirm(coming.head.metadata.message_id)
            replies[answers] = None if frames is _LATER else frames
        return replies

    def _pull_object(self, part: str) -> Any:
        request = self._messages.PullObjectRequest(node=self._self, run_id=self._run, object_id=part)
        return self._ask(self._client.PullObject, request)

    def _confirm(self, number: str) -> None:
        request = self._messages.ConfirmMessageReceivedRequest(
            node=self._self, run_id=self._run, message_object_id=number
        )
        self._ask(self._client.ConfirmMessageReceived, request)

    def _message(self, node: int, frames: Sequence[bytes], seconds: float) -> Any:
        from flwr.app import ConfigRecord, Metadata, RecordDict
        from flwr.app.message import make_message
        from flwr.supercore.date import now

        about = Metadata(
            run_id=self._run,
            message_id="",
            src_node_id=self._self.node_id,
            dst_node_id=node,
            reply_to_message_id="",
            group_id="",
            created_at=now().timestamp(),
            ttl=max(1.0, seconds),
            message_type="query",
            src_task_id=self._task,
        )
        return make_message(metadata=about, content=RecordDict({RECORD: ConfigRecord({FRAMES: list(frames)})}))

    def _ask(self, call: Callable[[Any], Any], request: Any) -> Any:
        try:
            return call(request)
        except httpx.HTTPStatusError as error:
            if error.response.status_code in _GONE:
                raise EndedError("The run has ended.") from None
            raise


@functools.cache
def _app() -> bytes:
    """Flower's form of an app: a ZIP archive."""
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        archive.writestr(zipfile.ZipInfo("pyproject.toml"), _APP)
    return raw.getvalue()


def public_pem(key: Any) -> bytes:
    """A public key as Flower stores it."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return bytes(key.public_bytes(serialization.Encoding.PEM, form))


def _runtime_client(control: Control, *interceptors: Any) -> Any:
    from flwr.supercore.runtime.runtime_http_client import RuntimeHttpClient

    client = RuntimeHttpClient.from_server_address(
        control.address, False, control.certificate.encode(), list(interceptors)
    )
    _stay(client)
    return client


def _stay(client: Any) -> None:
    """Follow no redirects: a SuperLink must not send what is meant for it to other machines."""
    client._client.follow_redirects = False


def _bound(client: Any) -> None:
    """Take no more than so many bytes from a SuperLink, as they come: what is packed could be any number."""
    inner = client._client
    inner.headers["accept-encoding"] = "identity"
    inner._transport = _Bounded(inner._transport)
    inner._mounts = {at: own and _Bounded(own) for at, own in inner._mounts.items()}


class _Bounded(httpx.BaseTransport):
    def __init__(self, inner: httpx.BaseTransport) -> None:
        self._inner = inner

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = self._inner.handle_request(request)
        if response.headers.get("content-encoding", "identity") != "identity":
            response.close()
            raise httpx.DecodingError("Expected a reply that is not packed.", request=request)
        most = _MOST_OBJECT if request.url.path.endswith("/pull-object") else _MOST_HEADS
        response.stream = _Counted(response.stream, most)
        return response

    def close(self) -> None:
        self._inner.close()


class _Counted(httpx.SyncByteStream):
    def __init__(self, inner: Any, most: int) -> None:
        self._inner, self._most = inner, most

    def __iter__(self) -> Iterator[bytes]:
        taken = 0
        for part in self._inner:
            taken += len(part)
            if taken > self._most:
                raise httpx.DecodingError(f"Expected a reply of at most {self._most} bytes.")
            yield part

    def close(self) -> None:
        self._inner.close()


_LATER: Any = object()
"""In the place of frames that may be on their way."""


def _frames(tree: Any, pull: Callable[[str], Any]) -> Any:
    """The frames in a message of one record; None where it is something else, `_LATER` where it has not come yet.

    Of the tree of objects (message, records by name, record) only the record is fetched: the rest says nothing new.
    """
    from flwr.app import ConfigRecord

    for _ in range(2):
        if len(tree.children) != 1:
            return None
        tree = tree.children[0]
    found = pull(tree.object_id)
    if not found.object_available:
        return _LATER if found.object_found else None
    try:
        frames: Any = ConfigRecord.inflate(found.object_content)[FRAMES]
    except Exception:
        # Whatever was sent, a node and a server go on.
        return None
    good = isinstance(frames, list) and all(isinstance(raw, bytes) for raw in frames)
    return list(frames) if good else None


@contextmanager
def _deflated(messages: Sequence[Any]) -> Iterator[tuple[list[Any], list[Any], dict[str, Any]]]:
    """Heads, trees of objects, and objects by id."""
    from flwr.app.message import remove_content_from_message
    from flwr.common.serde import message_to_proto
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_tree,
        no_object_id_recompute,
    )

    with no_object_id_recompute():
        objects: dict[str, Any] = {}
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
            objects |= get_all_nested_objects(message)
        heads = [message_to_proto(remove_content_from_message(message)) for message in messages]
        yield heads, [get_object_tree(message) for message in messages], objects


def _push_missing(found: Any, objects: Mapping[str, Any], push: Callable[[str, str, bytes], Any]) -> None:
    """Push objects: the record last, because the other side waits for it, and then has the others deleted."""
    from flwr.app import ConfigRecord

    for part in sorted(found.objects_to_push, key=lambda part: isinstance(objects[part], ConfigRecord)):
        push(found.session_id, part, objects[part].deflate())
