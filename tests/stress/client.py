"""A process that uses a repository through its service until that is killed: `python -m tests.stress.client TASK`.

Says what it does as the workers do. Queues and handles are its own, so that what several of them say need not be put
in order.
"""

import random
import sys

import msgspec

import ullage
from tests.kill.protocol import DELETED, HANDLE, Change, Line, sha_of, tell
from ullage.errors import HandleNotFound, UllageError

SIZES = (0, 1, 300, 9_000, 70_000, 400_000)
HANDLES_MAX = 12


class ClientTask(msgspec.Struct, frozen=True):
    """A client's argument. Without a socket it talks HTTP alone."""

    url: str
    socket: str
    seed: int
    number: int


class Client:
    """One thing after the other."""

    def __init__(self, task: ClientTask) -> None:
        self._repository = ullage.connect(task.url, socket=task.socket or None, retries=ullage.Retries(attempts=1))
        self._random = random.Random(f"client {task.seed}/{task.number}")
        self._name = f"client{task.number}"
        self._seed = task.seed
        self._ops = 0
        self._handles: dict[str, bool] = {}

    def run(self) -> None:
        """Until an answer fails to come."""
        self._repository.state()
        tell(Line("ready"))
        while True:
            self._random.choice((self._ingest, self._work, self._work, self._put, self._change, self._define))()

    def _op(self) -> str:
        self._ops += 1
        return f"{self._name}.{self._seed}.{self._ops}"

    def _contents(self, count: int) -> list[bytes]:
        return [self._random.randbytes(self._random.choice(SIZES)) for _ in range(self._random.randrange(1, count))]

    def _queue(self) -> str:
        return f"{self._name}-{self._random.choice('ab')}"

    def _ingest(self) -> None:
        queue, contents = self._queue(), self._contents(20)
        shas = [sha_of(content) for content in contents]
        with self._repository.session() as session:
            ids = session.ingest(queue, contents, [{"sha256": sha} for sha in shas])
            self._commit(session, {id: Change(queue, sha) for id, sha in zip(ids, shas, strict=True)})

    def _work(self) -> None:
        changes: dict[str, Change | None] = {}
        with self._repository.session() as session:
            for flow_file in session.get_many(self._queue(), self._random.randrange(1, 15)):
                with session.read(flow_file) as stream:
                    content = stream.read()
                if sha_of(content) != flow_file.attributes["sha256"]:
                    raise AssertionError(f"FlowFile {flow_file.id} reads as something else")
                match self._random.randrange(4):
                    case 0:
                        target = self._queue()
                        session.transfer(flow_file, target)
                        changes[flow_file.id] = Change(target)
                    case 1:
                        target, content = self._queue(), self._random.randbytes(500)
                        session.write(flow_file, content)
                        session.put_attributes(flow_file, {"sha256": sha_of(content)})
                        session.transfer(flow_file, target)
                        changes[flow_file.id] = Change(target, sha_of(content))
                    case _:
                        session.remove(flow_file)
                        changes[flow_file.id] = None
            if self._random.random() < 0.8:
                self._commit(session, changes)

    def _commit(self, session: ullage.Session, changes: dict[str, Change | None]) -> None:
        op = self._op()
        tell(Line("intend", op, changes))
        session.commit()
        tell(Line("done", op))

    def _put(self) -> None:
        if len(self._handles) >= HANDLES_MAX:
            self._change()
            return
        contents, op = self._contents(4), self._op()
        tell(Line("intend", op, puts=[sha_of(content) for content in contents]))
        ids = self._repository.handles.put_many(contents, {"op": op})
        made: dict[str, Change | None] = {
            _uuid(id): Change(HANDLE, sha_of(content)) for id, content in zip(ids, contents, strict=True)
        }
        tell(Line("done", op, made))
        self._handles.update(dict.fromkeys(ids, True))

    def _change(self) -> None:
        """Delete a handle, or bring a deleted one back, if it was not purged."""
        if not self._handles:
            return
        id, op = self._random.choice(list(self._handles)), self._op()
        is_live = self._handles[id]
        tell(Line("intend", op, {_uuid(id): Change(DELETED if is_live else HANDLE)}))
        try:
            (self._repository.handles.delete if is_live else self._repository.handles.undelete)(id)
        except HandleNotFound:
            tell(Line("refused", op))
            del self._handles[id]
            return
        tell(Line("done", op))
        self._handles[id] = not is_live

    def _define(self) -> None:
        self._repository.queues.define(self._queue(), priority=self._random.choice(("NewestFirst", "LargestFirst")))


def _uuid(handle: str) -> str:
    return handle.partition("@")[0]


if __name__ == "__main__":
    try:
        Client(msgspec.json.decode(sys.argv[1], type=ClientTask)).run()
    except (UllageError, OSError) as error:
        tell(Line("gone", text=repr(error)))
