"""What nodes push to a SuperLink."""

from __future__ import annotations

from flwr.proto import fleet_pb2, message_pb2, node_pb2


def pushed(*, node=7, records=(0,), **changes):
    """The body of a push of one message; by default a reply of the node to the server."""
    fields = {"reply_to_message_id": "m", "src_node_id": 7, "dst_node_id": 1, **changes}
    head = message_pb2.Message(metadata=message_pb2.Metadata(**fields))
    request = fleet_pb2.PushMessagesRequest(node=node_pb2.Node(node_id=node), messages_list=[head])
    request.message_object_trees.append(tree_of(*records))
    return request.SerializeToString()


def tree_of(*records):
    """A message, its records by name, and so many records, each with so many objects below it."""
    leaf = message_pb2.ObjectTree(object_id="leaf")
    own = [message_pb2.ObjectTree(object_id=str(count), children=[leaf] * count) for count in records]
    named = message_pb2.ObjectTree(object_id="named", children=own)
    return message_pb2.ObjectTree(object_id="message", children=[named])
