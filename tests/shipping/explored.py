"""A simulated bucket, and every run of some writers against it.

A writer is a function of what it is answered. It is run anew up to its first request that has no answer yet, so that a
state of the whole is a value: the bucket's objects, the puts that are still on their way, and what each writer was
answered. All states are visited that some order of requests and some faults lead to.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from hashlib import blake2b
from typing import NamedTuple

from ullage.engine.shipping.shareplace import EPOCH, SharedObject, Taken
from ullage.errors import BucketUnavailable, UllageError

PUTS = ("put_new", "put_over")
OTHERS = ("ages", "read", "put_pieces", "delete")
FAULTS = ("lost", "unanswered", "late", "repeated")
"""Of a put: it never arrives; its answer does not; it arrives at any later moment, though its writer was told nothing;
it arrives twice, and the second time is answered, as by a client that asks again by itself.
"""


class Request(NamedTuple):
    """What a writer asks: of a put the key, the bytes and the tag that it is to replace, "" for none."""

    kind: str
    key: str
    data: bytes = b""
    tag: str = ""


class Answer(NamedTuple):
    """What it was told: a value, or which error."""

    value: object = None
    error: str = ""


class Pause(BaseException):
    """The writer has come to a request without an answer."""

    def __init__(self, request: Request) -> None:
        self.request = request


class Replayed:
    """A share's place that answers from a list."""

    name = "s3://simulated"

    def __init__(self, answers: tuple[Answer, ...]) -> None:
        self._answers = iter(answers)
        self._read: dict[str, bytes] = {}
        self._paused: Pause | None = None

    def _asked(self, request: Request) -> object:
        if self._paused is not None:  # what is asked on the way out was not asked
            raise self._paused
        answer = next(self._answers, None)
        if answer is None:
            self._paused = Pause(request)
            raise self._paused
        if answer.error == "taken":
            raise Taken
        if answer.error:
            raise BucketUnavailable("no answer came")
        return answer.value

    def get(self, key: str) -> SharedObject | None:
        found = self._asked(Request("get", key))
        assert found is None or isinstance(found, SharedObject)
        return found

    def put_new(self, key: str, data: bytes) -> None:
        self._asked(Request("put_new", key, data))

    def put_over(self, key: str, data: bytes, tag: str) -> None:
        self._asked(Request("put_over", key, data, tag))

    def lengths(self, directory: str) -> dict[str, int]:
        found = self._asked(Request("lengths", directory))
        assert isinstance(found, tuple)
        return dict.fromkeys(found, 1)

    def names(self) -> list[str]:
        raise NotImplementedError

    def ages(self, directory: str) -> dict[str, float]:
        found = self._asked(Request("ages", directory))
        assert isinstance(found, tuple)
        return dict.fromkeys(found, 0.0)

    def put_pieces(self, key: str, pieces: Iterable[bytes], length: int) -> None:
        self._asked(Request("put_pieces", key, b"".join(pieces)))

    def read(self, key: str, start: int, end: int) -> bytes:
        if start == 0:  # the rest is of the same answer
            found = self._asked(Request("read", key))
            assert isinstance(found, bytes)
            self._read[key] = found
        return self._read[key][start:end]

    def delete(self, keys: Collection[str]) -> None:
        self._asked(Request("delete", "", "\n".join(sorted(keys)).encode()))


class Still:
    """The objects of a state, to be read."""

    name = "s3://simulated"

    def __init__(self, objects: dict[str, bytes]) -> None:
        self._objects = objects

    def get(self, key: str) -> SharedObject | None:
        data = self._objects.get(key)
        return None if data is None else SharedObject(data, tag_of(data))

    def lengths(self, directory: str) -> dict[str, int]:
        return {key: len(data) for key, data in self._objects.items() if key.startswith(f"{directory}/")}

    def read(self, key: str, start: int, end: int) -> bytes:
        return self._objects.get(key, b"")[start:end]

    names = Replayed.names
    ages = Replayed.ages
    put_new = Replayed.put_new
    put_over = Replayed.put_over
    put_pieces = Replayed.put_pieces
    delete = Replayed.delete


def tag_of(data: bytes) -> str:
    """As S3 has it: a digest of the bytes."""
    return blake2b(data, digest_size=8).hexdigest()


Program = Callable[[Replayed, list[bytes]], None]
"""A writer: what it was told is there it appends to the list. An UllageError ends it."""


class State(NamedTuple):
    """See the module's text."""

    objects: tuple[tuple[str, bytes], ...]
    late: tuple[Request, ...]
    answers: tuple[tuple[Answer, ...], ...]
    faults: int


class Bucket:
    """How a bucket carries a request out; `ignores` says of a put whether its condition is not looked at."""

    def __init__(self, ignores: Callable[[Request], bool] = lambda _: False) -> None:
        self._ignores = ignores

    def carried_out(self, objects: dict[str, bytes], request: Request) -> Answer:
        if request.kind == "get":
            data = objects.get(request.key)
            return Answer(None if data is None else SharedObject(data, tag_of(data)))
        if request.kind == "lengths":
            return Answer(tuple(sorted(key for key in objects if key.startswith(f"{request.key}/"))))
        if request.kind in OTHERS:
            return self._other(objects, request)
        there = objects.get(request.key)
        if not self._ignores(request) and ("" if there is None else tag_of(there)) != request.tag:
            return Answer(error="taken")
        objects[request.key] = request.data
        return Answer()

    def _other(self, objects: dict[str, bytes], request: Request) -> Answer:
        """What asks for no condition."""
        if request.kind == "ages":
            return Answer(tuple(sorted(key for key in objects if key.startswith(f"{request.key}/"))))
        if request.kind == "read":
            return Answer(objects.get(request.key, b""))
        if request.kind == "put_pieces":
            objects[request.key] = request.data
        for key in request.data.decode().split("\n") if request.kind == "delete" else ():
            objects.pop(key, None)
        return Answer()


class Visited(NamedTuple):
    """How much was visited."""

    states: int
    ends: int


def explore(
    programs: list[Program],
    holds: Callable[[dict[str, bytes], list[list[bytes]]], None],
    faults: int,
    bucket: Bucket | None = None,
    begins: dict[str, bytes] | None = None,
    is_faulty: Callable[[Request], bool] = lambda request: request.kind in PUTS,
) -> Visited:
    """Visit every state; `holds` raises where the objects contradict what each writer was told. `begins`: the objects
    that there are at first; `is_faulty`: which requests the faults befall.
    """
    bucket = bucket or Bucket()
    first = State(_frozen(begins or {}), (), ((),) * len(programs), faults)
    seen, todo = {first}, [first]
    runs: dict[tuple[int, tuple[Answer, ...]], tuple[Request | None, list[bytes]]] = {}
    ends = 0
    while todo:
        state = todo.pop()
        asked, told = [], []
        for number, answers in enumerate(state.answers):
            if (number, answers) not in runs:
                runs[number, answers] = _run(programs[number], answers)
            request, acknowledged = runs[number, answers]
            asked.append(request)
            told.append(acknowledged)
        holds(dict(state.objects), told)
        ends += not any(asked)
        for after in _following(state, asked, bucket, is_faulty):
            if after not in seen:
                seen.add(after)
                todo.append(after)
    return Visited(len(seen), ends)


def _run(program: Program, answers: tuple[Answer, ...]) -> tuple[Request | None, list[bytes]]:
    told: list[bytes] = []
    try:
        program(Replayed(answers), told)
    except Pause as pause:
        return pause.request, told
    except UllageError:
        return None, told  # it has ended, which is an end as any other
    return None, told


def _following(
    state: State, asked: list[Request | None], bucket: Bucket, is_faulty: Callable[[Request], bool]
) -> Iterator[State]:
    for at, request in enumerate(state.late):
        objects = dict(state.objects)
        bucket.carried_out(objects, request)
        yield state._replace(objects=_frozen(objects), late=state.late[:at] + state.late[at + 1 :])
    for number, asks in enumerate(asked):
        if asks is None:
            continue
        for fault in ("", *(FAULTS if state.faults and is_faulty(asks) else ())):
            yield _answered(state, number, asks, fault, bucket)
        if asks.kind == "lengths" and state.faults:
            yield from _stale(state, number, asks, bucket)


def _answered(state: State, number: int, request: Request, fault: str, bucket: Bucket) -> State:
    """The state once a writer's request has its answer, or none."""
    objects, late, answer = dict(state.objects), state.late, Answer(error="unavailable")
    if fault in ("", "unanswered", "repeated"):
        done = bucket.carried_out(objects, request)
        if fault == "repeated":
            done = bucket.carried_out(objects, request)
        answer = answer if fault == "unanswered" else done
    if fault == "late":
        late = tuple(sorted((*late, request)))
    answers = list(state.answers)
    answers[number] = (*answers[number], answer)
    return State(_frozen(objects), late, tuple(answers), state.faults - bool(fault))


def _frozen(objects: dict[str, bytes]) -> tuple[tuple[str, bytes], ...]:
    return tuple(sorted(objects.items()))


def _stale(state: State, number: int, request: Request, bucket: Bucket) -> Iterator[State]:
    """A listing that lacks the newest object, as some servers give it for a while."""
    names = bucket.carried_out(dict(state.objects), request).value
    assert isinstance(names, tuple)
    if names:
        answers = list(state.answers)
        answers[number] = (*answers[number], Answer(names[:-1]))
        yield state._replace(answers=tuple(answers), faults=state.faults - 1)


def is_epoch(request: Request) -> bool:
    return request.key == EPOCH
