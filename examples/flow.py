"""A flow of one step, for a pod of examples/kubernetes/quickstart.yaml.

One of ten FlowFiles of the queue `inbox` goes on to the queue `kept`, the nine others are done with.
"""

import os
from pathlib import Path

from ullage_agent.client import Client, Node

DONE_WITH = 9

node = Node(
    url=os.environ["ULLAGE_URL"],
    token=Path(os.environ["ULLAGE_TOKEN_FILE"]).read_text(encoding="utf-8").strip(),
    ca_file=os.environ["ULLAGE_CA"],
)
with Client(node) as client:
    client.queues.define("kept")
    while (one := client.queues.poll("inbox")).flow_files:
        client.queues.commit(one.session, rest_to="kept")
        client.queues.commit(client.queues.poll("inbox", DONE_WITH).session)
