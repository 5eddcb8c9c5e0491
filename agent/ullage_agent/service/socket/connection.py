"""One connection of the Unix socket: greeting, then requests one after the other, each with its answer.

HELLO -> WELCOME
RESOLVE_HANDLES, RESOLVE_CLAIMS -> FILES (with descriptors, none or several) -> RESOLVED
GIVE_BACK -> GIVEN_BACK
PUT -> STORED                     PUT_STREAM, DATA ..., END -> STORED
any of them -> PROBLEM            unasked: REVOKED, then the end of the stream
"""

from collections.abc import Callable
from typing import Final

import msgspec

from ullage_agent.engine.errors import LeaseLost
from ullage_agent.engine.model import Lifetime, ResourceClaim
from ullage_agent.engine.repository import Repository
from ullage_agent.service.access import Authenticator, Principal, Verb
from ullage_agent.service.batches import Terms, Writes, store_batch, store_stream
from ullage_agent.service.errors import BadRequest, ClientGone, Forbidden, TooMuch, Unauthenticated
from ullage_agent.service.limits import Limits
from ullage_agent.service.problems import is_expected, problem_of
from ullage_agent.service.socket import frames
from ullage_agent.service.socket.channel import Channel
from ullage_agent.service.socket.frames import FRAME_BYTES_MAX, BadFrame, Header, Kind, Place, ProblemText
from ullage_agent.service.socket.holding import Holding, close_all, fitting
from ullage_agent.service.socket.peers import Peer, PeerPolicy

Notice = Callable[[str, Exception], None]
"""Takes what the service should log: what happened, and the error."""

Attributes = dict[str, str] | list[dict[str, str]]

_attributes: Final = msgspec.json.Decoder(Attributes)


class Connection:
    """See the module's text. `serve` runs in a thread of its own; `revoke` may be called from any."""

    def __init__(
        self,
        channel: Channel,
        peer: Peer,
        repository: Repository,
        authenticator: Authenticator,
        policy: PeerPolicy,
        limits: Limits,
        on_failure: Notice,
    ) -> None:
        self.peer = peer
        self.holding = Holding(repository, str(peer), limits.socket_files)
        self._channel = channel
        self._repository = repository
        self._authenticator = authenticator
        self._policy = policy
        self._limits = limits
        self._on_failure = on_failure
        self._principal = Principal("")
        self._is_trusted = False
        self._given_up: int | None = None
        self._answers: dict[Kind, Callable[[Header, bytes], None]] = {
            Kind.RESOLVE_HANDLES: self._resolve_handles,
            Kind.RESOLVE_CLAIMS: self._resolve_claims,
            Kind.GIVE_BACK: self._give_back,
            Kind.PUT: self._put,
            Kind.PUT_STREAM: self._put_stream,
        }

    def serve(self) -> None:
        """Until the client has gone, or was told to go. Raises nothing; nothing is held afterwards."""
        try:
            if self._greet():
                self._converse()
        except BadFrame as error:
            self._refuse(0, BadRequest(str(error)))
        except (EOFError, OSError):
            pass  # the client is gone, or takes nothing: nobody is left to tell
        except Exception as error:  # noqa: BLE001 - one connection's failure is not the service's
            self._on_failure("a connection of the Unix socket failed", error)
        finally:
            self._end()

    def revoke(self, error: Exception) -> None:
        """Tell the client that what it holds is lost, and end the connection."""
        self._channel.try_send(Kind.REVOKED, 0, _problem(error))
        self._channel.interrupt()

    def _end(self) -> None:
        self._channel.close()
        try:
            self.holding.release()
        except Exception as error:  # noqa: BLE001 - the next start releases it; see `release_leftovers`
            self._on_failure("the lease of a connection could not be released", error)

    def _greet(self) -> bool:
        """Whether the client may stay."""
        received = self._channel.receive(frames.HELLO.size + frames.TOKEN_BYTES_MAX, waits=False)
        if received is None:
            return False
        header, body = received
        if header.kind != Kind.HELLO:
            raise BadFrame(f"a {header.kind.name} before the greeting")
        hello = frames.parse_hello(body)
        try:
            if not hello.version_min <= frames.VERSION <= hello.version_max:
                raise BadRequest(
                    f"versions {hello.version_min} to {hello.version_max} of the protocol: this is {frames.VERSION}"
                )
            self._principal = self._policy.admit(self.peer, hello.token, self._authenticator)
            self._is_trusted = hello.token is None
        except Exception as error:  # noqa: BLE001 - the client gets it
            self._refuse(header.request, error)
            return False
        welcome = frames.Welcome(
            frames.VERSION, FRAME_BYTES_MAX, frames.RESOLVE_MAX, self._limits.socket_files, self._limits.batch
        )
        self._channel.send(Kind.WELCOME, header.request, frames.pack_welcome(welcome))
        return True

    def _converse(self) -> None:
        while (received := self._channel.receive(FRAME_BYTES_MAX)) is not None:
            header, body = received
            if header.kind in (Kind.DATA, Kind.END) and header.request == self._given_up:
                continue  # the rest of a content that was refused
            answer = self._answers.get(header.kind)
            if answer is None:
                raise BadFrame(f"a {header.kind.name} is no request")
            try:
                answer(header, body)
            except (BadFrame, EOFError, OSError):
                raise
            except LeaseLost as error:
                self._channel.send(Kind.REVOKED, 0, _problem(error))
                return
            except Exception as error:  # noqa: BLE001 - the client gets it
                self._refuse(header.request, error)

    def _resolve_handles(self, header: Header, body: bytes) -> None:
        self._require(Verb.GET)
        self._resolved(header, self.holding.handles(frames.parse_uuids(body)))

    def _resolve_claims(self, header: Header, body: bytes) -> None:
        self._require(Verb.GET)
        self._resolved(header, self.holding.claims(frames.parse_claims(body)))

    def _resolved(self, header: Header, places: list[Place]) -> None:
        places = places[: fitting(places, FRAME_BYTES_MAX)]
        files = self.holding.new_files(places)
        for at in range(0, len(files), frames.FILES_MAX):
            self._pass(header, files[at : at + frames.FILES_MAX])
        self._channel.send(Kind.RESOLVED, header.request, *map(frames.pack_place, places))

    def _pass(self, header: Header, files: list[ResourceClaim]) -> None:
        descriptors: list[int] = []
        try:
            descriptors.extend(map(self.holding.open, files))  # one by one: those before a failure are closed
            body = frames.pack_files([(file.index, file.generation) for file in files])
            self._channel.send(Kind.FILES, header.request, body, descriptors=descriptors)
        finally:
            close_all(descriptors)

    def _give_back(self, header: Header, body: bytes) -> None:
        self.holding.give_back(frames.parse_numbers(body))
        self._channel.send(Kind.GIVEN_BACK, header.request)

    def _put(self, header: Header, body: bytes) -> None:
        self._require(Verb.CREATE)
        head, at = frames.parse_put(body, has_content=True)
        if len(head.lengths) > self._limits.batch:
            raise TooMuch(f"{len(head.lengths)} contents, at most {self._limits.batch} are allowed in one put")
        contents: list[bytes] = []
        for length in head.lengths:
            contents.append(body[at : at + length])
            at += length
        uuids = store_batch(self._repository, self._principal, contents, _terms(head))
        self._channel.send(Kind.STORED, header.request, *uuids)

    def _put_stream(self, header: Header, body: bytes) -> None:
        """The content comes in DATA frames up to END; after a refusal what is left of it is skipped."""
        self._given_up = header.request
        self._require(Verb.CREATE)
        head, _ = frames.parse_put(body, has_content=False)
        is_whole = False

        def write_to(sink: Writes) -> None:
            nonlocal is_whole
            limit = int(self._repository.spec.service.max_request_bytes)
            total = 0
            while (data := self._next_data(header.request)) is not None:
                total += len(data)
                if limit and total > limit:
                    raise TooMuch(f"more than spec.service.maxRequestBytes ({limit}): nothing was stored")
                sink.write(data)
            is_whole = True

        uuid = store_stream(self._repository, self._principal, write_to, _terms(head))
        if is_whole:
            self._given_up = None
        self._channel.send(Kind.STORED, header.request, uuid)

    def _next_data(self, request: int) -> bytes | None:
        received = self._channel.receive(FRAME_BYTES_MAX, waits=False)
        if received is None:
            raise EOFError("the client went away in the middle of a content")
        header, data = received
        if header.request != request or header.kind not in (Kind.DATA, Kind.END):
            raise BadFrame(f"a {header.kind.name} in the middle of a content")
        if header.kind == Kind.DATA:
            return data
        if data:
            # An END with a body gives the content up: the client could not read it to its end.
            self._given_up = None
            raise ClientGone("the client gave the content up: nothing was stored")
        return None

    def _require(self, verb: Verb) -> None:
        if not self._is_trusted:
            self._authenticator.authorize(self._principal, verb)

    def _refuse(self, request: int, error: Exception) -> None:
        if isinstance(error, Unauthenticated | Forbidden):
            self._on_failure(f"refused: {self.peer}", error)
        elif not is_expected(error):
            self._on_failure("a request of the Unix socket failed", error)
        try:
            self._channel.send(Kind.PROBLEM, request, _problem(error))
        except OSError:
            return  # the next receive finds the client gone


def _terms(head: frames.PutHead) -> Terms:
    try:
        attributes = _attributes.decode(head.attributes) if head.attributes else {}
        lifetime = Lifetime(head.lifetime) if head.lifetime else Lifetime.DEFAULT
    except (msgspec.DecodeError, ValueError) as error:
        raise BadRequest(f"attributes are a JSON object of strings, or a list of them: {error}") from error
    return Terms(attributes=attributes, ttl_millis=head.ttl_millis, lifetime=lifetime, key=head.key or None)


def _problem(error: Exception) -> bytes:
    problem = problem_of(error)
    return frames.pack_problem(
        ProblemText(problem.status, problem.slug, problem.detail, problem.retry_after_seconds or 0)
    )
