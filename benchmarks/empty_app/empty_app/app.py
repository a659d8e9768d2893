"""Rounds in which a server asks every client something and each answers at once; prints what each round took."""

import time

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

server = ServerApp()
client = ClientApp()


def content(number: int) -> RecordDict:
    """As little as a message can say."""
    return RecordDict({"empty": ConfigRecord({"number": number})})


@client.query()
def answer(message: Message, context: Context) -> Message:
    """Nothing, at once."""
    return Message(content(0), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Wait for everybody, then play the rounds."""
    while len(nodes := list(grid.get_node_ids())) < int(context.run_config["silos"]):
        time.sleep(0.2)
    for number in range(int(context.run_config["rounds"])):
        began = time.monotonic()
        asked = [Message(content(number), dst_node_id=node, message_type="query") for node in nodes]
        answers = list(grid.send_and_receive(asked))
        print(f"round {number}: {len(answers)} answers in {time.monotonic() - began:.4f} s", flush=True)
