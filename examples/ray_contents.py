"""Handles of a repository through Ray Data: each worker reads contents from the node's own disk, a batch at a time.

    python examples/ray_contents.py URL SOCKET [TOKEN_FILE]

It prints how many contents there are, how many bytes they have together, and how many of them are different. Ray's
workers must run on the node itself, where the socket is; `pip install 'ray[data]'` beside Ullage.
"""

import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import ray

import ullage
from ullage.client.dataset import ContentDataset

BATCH = 256
WORKERS = 2
CORES = 0.25
"""Of each worker, which mostly waits: whole ones would leave none on a small machine for what gives them their work."""


class Read:
    """A worker: it has a connection of its own, over which it asks for all contents of a batch at once."""

    def __init__(self, contents: ContentDataset[bytes]) -> None:
        self._contents = contents

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Of each number of a content its size and digest."""
        found = self._contents.__getitems__(batch["id"].tolist())
        return {
            "size": np.array([len(content) for content in found], dtype=np.int64),
            "digest": np.array([hashlib.sha256(content).hexdigest() for content in found]),
        }


def main(url: str, socket: str, token_file: str = "") -> None:
    """See the module's text."""
    token = Path(token_file).read_text(encoding="utf-8").strip() if token_file else None
    with ullage.connect(url, token=token) as repository:
        handles = [each.handle for each in repository.handles.all()]
    contents: ContentDataset[bytes] = ContentDataset(socket, handles, token=token)
    numbers = ray.data.range(len(contents))
    workers = ray.data.ActorPoolStrategy(size=WORKERS)
    read = numbers.map_batches(Read, fn_constructor_args=(contents,), batch_size=BATCH, compute=workers, num_cpus=CORES)
    seen = read.take_all()
    different = len({row["digest"] for row in seen})
    print(f"{len(seen)} contents, {sum(int(row['size']) for row in seen)} bytes, {different} of them different")


if __name__ == "__main__":
    main(*sys.argv[1:])
