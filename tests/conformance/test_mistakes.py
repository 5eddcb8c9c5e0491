"""What is passed by mistake is refused in the same words whichever way it goes, and changes nothing."""

import io
import re
from pathlib import Path
from typing import Any

import pytest

import ullage
from tests.conformance.conftest import opened
from ullage import Repository
from ullage.errors import (
    FlowFileNotFound,
    HandleNotFound,
    InvalidArgument,
    QueueNotFound,
    RepositoryClosed,
    RequestTooLarge,
    SessionMisuse,
)


def test_what_is_no_content_is_told(repository: Repository) -> None:
    """Text, numbers and None in place of bytes, by every verb that stores."""
    handles: Any = repository.handles
    queues: Any = repository.queues
    with repository.session() as held:
        session: Any = held
        made = session.create()
        for make, message in (
            (lambda: 7, "content is bytes, a file opened with 'rb', or pieces of bytes, not int"),
            (lambda: None, "or pieces of bytes, not NoneType"),
            (lambda: "text", "or pieces of bytes, not text: encode it first"),
            (lambda: ["text"], "a piece of a content is bytes, not text: encode it first"),
            (lambda: [1, 2], "a piece of a content is bytes, not int"),
            (lambda: io.StringIO("text"), "what the file reads is bytes, not text: encode it first"),
        ):
            verbs = ((handles.put,), (queues.put, "in"), (session.write, made), (session.append, made))
            for verb, *before in verbs:
                with pytest.raises(TypeError, match=message):
                    verb(*before, make())
        for contents, message in (
            (["text"], "each content of a batch is bytes, not str"),
            ([None], "each content of a batch is bytes, not NoneType"),
            (b"one", "contents are a list of bytes, not one bytes"),
        ):
            for verb, *before in ((handles.put_many,), (queues.put_many, "in"), (session.ingest, "in")):
                with pytest.raises(TypeError, match=message):
                    verb(*before, contents)
        assert session.write(made, b"good").size == 4

    assert list(handles.all()) == []
    assert [queue.name for queue in queues.all() if queue.flow_files] == []


def test_whatever_holds_bytes_is_content(repository: Repository) -> None:
    """Buffers too, which iterate as numbers; and an iterator of contents is a batch."""
    handles: Any = repository.handles
    for content in (bytearray(b"abc"), memoryview(b"abc"), [bytearray(b"a"), b"bc"], io.BytesIO(b"abc")):
        assert handles.get(handles.put(content)) == b"abc"
    assert handles.get_many(handles.put_many(content for content in (b"one", b"two"))) == [b"one", b"two"]


def test_what_is_no_attribute_name_number_or_id_is_told(repository: Repository) -> None:
    """Before anything is sent, so that a session is as good as before."""
    handles: Any = repository.handles
    queues: Any = repository.queues
    handle = handles.put(b"kept")
    with repository.session() as held:
        session: Any = held
        made = session.create()
        for attributes, message in (
            ({"a": None}, "the attribute a is a text, not NoneType"),
            ({1: "a"}, "an attribute's name is a text, not int"),
            (7, "attributes are a mapping of texts, not int"),
        ):
            for verb, *before in ((handles.put, b"x"), (session.create, ()), (session.put_attributes, made)):
                with pytest.raises(TypeError, match=message):
                    verb(*before, attributes)
        refused: list[tuple[type[Exception], str, Any, list[Any], dict[str, Any]]] = [
            (InvalidArgument, "ttl_millis is 0 or more, not -1", handles.put, [b"x"], {"ttl_millis": -1}),
            (InvalidArgument, "ttl_millis is 0 or more, not -1", handles.set_ttl, [handle, -1], {}),
            (TypeError, "ttl_millis is a whole number, not str", handles.put, [b"x"], {"ttl_millis": "1h"}),
            (InvalidArgument, "'short' is none of", handles.put, [b"x"], {"lifetime": "short"}),
            (TypeError, "a key is a text, not int", handles.put, [b"x"], {"key": 7}),
            (InvalidArgument, "without blanks around them", handles.put, [b"x"], {"key": " a"}),
            (InvalidArgument, "1 to 255 printable", handles.put_many, [[]], {"key": ""}),
            (InvalidArgument, "1 to 255 printable", queues.put, ["in", b"x"], {"key": ""}),
            (InvalidArgument, "1 to 255 printable", queues.put_many, ["in", []], {"key": ""}),
            (InvalidArgument, "1 to 255 characters", queues.put_many, ["", []], {}),
            (TypeError, "a handle is a text, not NoneType", handles.get, [None], {}),
            (TypeError, "a handle is a text, not NoneType", session.import_handle, [None], {}),
            (HandleNotFound, "is not a handle", handles.get, [""], {}),
            (TypeError, "a queue's name is a text, not NoneType", session.get, [None], {}),
            (TypeError, "a queue's name is a text, not NoneType", session.transfer, [made, None], {}),
            (InvalidArgument, "1 to 255 characters", queues.define, [""], {}),
            (QueueNotFound, "", queues.find, [""], {}),
            (InvalidArgument, "no Unicode text", queues.define, ["\ud800"], {}),
            (InvalidArgument, "limit is 1 to 1000, not 0", queues.flow_files, ["in", 0], {}),
            (InvalidArgument, "limit is 1 to 1000, not 1001", handles.page, [], {"limit": 1_001}),
            (InvalidArgument, "count is 1 to 10000, not 0", session.get_many, ["in", 0], {}),
            (InvalidArgument, "millis is 0 or more, not -1", session.penalize, [made, -1], {}),
            (TypeError, "delta is a whole number, not str", session.adjust_counter, ["n", "1"], {}),
            (TypeError, "a FlowFile, or its id, is a text, not NoneType", session.transfer, [None, "in"], {}),
            (TypeError, "a FlowFile, or its id, is a text, not int", session.write, [7, b"x"], {}),
            (TypeError, "a provenance event says is a text", session.provenance.receive, [made, None], {}),
            (TypeError, "is an EventType, such as EventType.RECEIVE", session.provenance.report, ["RECEIVE", made], {}),
            (FlowFileNotFound, "", repository.content, [""], {}),
            (InvalidArgument, "", repository.provenance.lineage, [""], {}),
        ]
        for kind, message, verb, arguments, named in refused:
            with pytest.raises(kind, match=re.escape(message) or None):
                verb(*arguments, **named)
        session.transfer(made, "in")
        session.commit()

    assert queues.find("in").flow_files == 1


def test_what_could_be_logged_and_never_be_read_again_is_told(repository: Repository) -> None:
    """`size / 2`, True, a text where bytes belong, a moment beyond 64 bits: the next start would find no record."""
    handles: Any = repository.handles
    queues: Any = repository.queues
    leases: Any = repository.leases
    handle = handles.put(b"kept")
    with repository.session() as held:
        session: Any = held
        made = session.create()
        refused: list[tuple[type[Exception], str, Any, list[Any], dict[str, Any]]] = [
            (TypeError, "a size is a whole number, not float", session.split, [made, [0.0]], {}),
            (TypeError, "a size is a whole number, not bool", session.split, [made, [False]], {}),
            (TypeError, "start is a whole number, not float", session.clone, [made, 0.0], {}),
            (TypeError, "size is a whole number, not float", session.clone, [made, 0, 0.0], {}),
            (TypeError, "header is bytes, not str", session.merge, [[made]], {"header": "aGVsbG8="}),
            (InvalidArgument, "a header of 65537 bytes", session.merge, [[made]], {"header": bytes(65537)}),
            (InvalidArgument, "a demarcator of 1025 bytes", session.merge, [[made]], {"demarcator": bytes(1025)}),
            (InvalidArgument, "a footer of 65537 bytes", session.merge, [[made]], {"footer": bytes(65537)}),
            (TypeError, "a relationship is a text, not int", session.transfer, [made, "in", 5], {}),
            (InvalidArgument, "a relationship is no Unicode", session.transfer, [made, "in", "\udc80"], {}),
            (TypeError, "a queue's name is a text, not bytes", session.require_room, [b"in"], {}),
            (TypeError, "component is a text, not int", repository.session, [5], {}),
            (TypeError, "component_type is a text, not int", repository.session, ["a", 5], {}),
            (InvalidArgument, "ttl_millis is 0 to", handles.put, [b"x"], {"ttl_millis": 2**63}),
            (InvalidArgument, "ttl_millis is 0 to", handles.set_ttl, [handle, 2**63], {}),
            (InvalidArgument, "Expected `int | null`, got `float`", queues.define, ["in"], {"count_max": 1.5}),
            (InvalidArgument, "Expected `int | null`, got `bool`", queues.define, ["in"], {"count_max": True}),
            (InvalidArgument, "`int", queues.define, ["in"], {"bytes_max": float("nan")}),
            (InvalidArgument, "`int", queues.define, ["in"], {"expiration_millis": 2**63}),
            (InvalidArgument, "Expected `str | null`, got `int`", queues.define, ["in"], {"priority_attribute": 5}),
            (TypeError, "duration_millis is a whole number", leases.acquire, [1000.5], {}),
            (TypeError, "a resource is a whole number, not bool", leases.acquire, [1000, [True]], {}),
            (TypeError, "purpose is a text, not bytes", leases.acquire, [1000], {"purpose": b"x"}),
            (TypeError, "is a whole number", session.provenance.modify_content, [made], {"duration_millis": True}),
            (InvalidArgument, "_millis is 0 to", session.provenance.send, [made, "u"], {"duration_millis": 2**63}),
        ]
        for kind, message, verb, arguments, named in refused:
            with pytest.raises(kind, match=re.escape(message)):
                verb(*arguments, **named)
        session.transfer(made, "in")
        session.commit()

    assert queues.find("in").flow_files == 1


def test_a_closed_session_says_so(repository: Repository) -> None:
    """Rather than take FlowFiles that nobody would give back."""
    repository.queues.put("in", b"content")
    session = repository.session()
    session.close()
    session.close()

    for ask in (lambda: session.get("in"), session.create, lambda: session.ingest("in", [b"more"])):
        with pytest.raises(SessionMisuse, match="the session is closed"):
            ask()
    with repository.session() as other:
        assert other.get("in") is not None


def test_attributes_that_no_head_of_a_request_holds_are_told(tmp_path: Path, short_path: Path) -> None:
    """The node would hang up. What is stored in a batch has its attributes in the body."""
    large = {"a": "b" * 60_000}
    with opened("all transports", tmp_path / "r", short_path) as repository:
        with pytest.raises(RequestTooLarge, match="at most 57344 go with a content"):
            repository.queues.put("in", b"content", large)
        repository.queues.put_many("in", [b"content"], large)


def test_a_directory_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty variable does not stand for the working directory."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgument, match="has a name"):
        ullage.open("", create=True)
    with ullage.open("r", create=True) as repository, pytest.raises(InvalidArgument, match="has a name"):
        repository.backup("")

    assert [path.name for path in tmp_path.iterdir()] == ["r"]


@pytest.mark.parametrize("way", ["embedded", "all transports"])
def test_a_closed_repository_says_so(tmp_path: Path, short_path: Path, way: str) -> None:
    """And makes no connection anew. A session that outlives it can still be left."""
    with opened(way, tmp_path / "r", short_path) as repository:
        session = repository.session()
        session.create()
        other = repository.session()
        other.ingest("in", [b"content"])
        handle = repository.handles.put(b"content")
        repository.handles.get_many([handle] * 20)
        repository.queues.put("in", b"content")
        held = repository.handles, repository.queues, repository.provenance, repository.reclamation, repository.leases
        handles, queues, provenance, reclamation, leases = held
        repository.close()
        repository.close()
        for ask in (
            repository.state,
            repository.checkpoint,
            lambda: repository.handles.get(handle),
            lambda: repository.handles.get_many([handle] * 20),
            lambda: repository.handles.put(b"content"),
            lambda: list(repository.queues.all()),
            lambda: repository.session().get("in"),
            lambda: repository.content(handle),
            lambda: handles.get(handle),
            lambda: handles.put(b"content" * 10_000),
            lambda: handles.put_many([b"content"] * 20),
            lambda: handles.page(limit=1),
            lambda: handles.delete(handle),
            lambda: list(queues.all()),
            lambda: queues.put("in", b"content" * 10_000),
            lambda: provenance.search(None),
            lambda: reclamation.reclaim(policy="CompactAll"),
            lambda: reclamation.clean(adopts_orphans=True),
            lambda: leases.acquire(1_000),
            lambda: session.ingest("in", [b"content" * 10_000]),
            other.commit,
        ):
            with pytest.raises(RepositoryClosed, match="the repository is closed"):
                ask()
        session.close()
        other.close()


@pytest.mark.parametrize("url", ["", "localhost:8480", "ftp://node", "http://", "http://node:port", "http://node:0"])
def test_what_is_no_address_is_told_before_anything_is_sent(url: str) -> None:
    """Rather than tried again and again."""
    with pytest.raises(InvalidArgument, match="no address of a service, such as http://"):
        ullage.connect(url)


@pytest.mark.parametrize("token", ["secret\n", "", "two words", "schlüssel"])
def test_a_token_that_cannot_be_one_is_not_quoted(token: str) -> None:
    """Messages are logged."""
    with pytest.raises(InvalidArgument) as refused:
        ullage.connect("http://127.0.0.1:1", token=token)
    assert "secret" not in str(refused.value)
