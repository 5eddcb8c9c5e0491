"""A flow of one step, for a pod of examples/kubernetes/quickstart.yaml.

One of ten FlowFiles of the queue `inbox` goes on to the queue `kept`, the nine others are done with.
"""

import os
from pathlib import Path

import ullage

BATCH = 10

token = Path(os.environ["ULLAGE_TOKEN_FILE"]).read_text(encoding="utf-8").strip()
with ullage.connect(os.environ["ULLAGE_URL"], token=token, ca_file=os.environ["ULLAGE_CA"]) as repository:
    repository.queues.define("kept")
    with repository.session("flow") as session:
        while found := session.get_many("inbox", BATCH):
            session.transfer(found[0], "kept")
            session.remove(found[1:])
            session.commit()
