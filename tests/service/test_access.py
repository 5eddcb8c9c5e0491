"""Who gets in: tokens, rights, and what is answered to the others."""

import os
from pathlib import Path

import pytest

from tests.support import ManualClock
from ullage.contract import Right
from ullage.errors import Forbidden, Unauthenticated
from ullage_agent.service.access import Principal, bearer
from ullage_agent.service.errors import CannotListen
from ullage_agent.service.tokens import TokenFile, add_line, line_of, new_token


@pytest.mark.parametrize("header", ["Basic dXNlcg==", "Bearer", "Bearer  ", "token"])
def test_another_scheme_is_refused(header: str) -> None:
    """Only `Bearer TOKEN` is understood."""
    with pytest.raises(Unauthenticated):
        bearer(header)


def test_a_bearer_token_is_found_in_its_header() -> None:
    """The scheme's case does not matter, as RFC 9110 has it."""
    assert bearer("bearer abc") == "abc"
    assert bearer(None) is None


def test_a_token_of_the_file_has_its_name_and_rights(tmp_path: Path) -> None:
    """What the line does not name is forbidden."""
    token, digest = new_token()
    path = tmp_path / "tokens"
    path.write_text("# who\n\n" + line_of("ingest", ("content:get", "leases"), None, digest))
    tokens = TokenFile(str(path), ManualClock())

    who = tokens.authenticate(token)

    assert who == Principal("ingest", rights=(Right.READ, Right.LEASE, Right.REVOKE))
    tokens.authorize(who, Right.REVOKE)
    with pytest.raises(Forbidden, match="content:delete"):
        tokens.authorize(who, Right.DELETE)


@pytest.mark.parametrize("expires", ["1970-01-01T00:00:00Z", "1969-12-31T23:59:59Z", "0001-01-01T00:00:00Z"])
def test_no_moment_that_is_over_is_for_ever(tmp_path: Path, expires: str) -> None:
    """Whoever ends a token may write the oldest moment that comes to their mind."""
    token, digest = new_token()
    (tmp_path / "tokens").write_text(f"old content:get {expires} {digest}\n")

    with pytest.raises(Unauthenticated, match="expired"):
        TokenFile(str(tmp_path / "tokens"), ManualClock()).authenticate(token)


def test_a_line_is_added_behind_one_without_an_end(tmp_path: Path) -> None:
    """Else both tokens would be unknown, and the next start would fail."""
    path = tmp_path / "tokens"
    (first, first_digest), (second, second_digest) = new_token(), new_token()
    path.write_text(line_of("first", ("*",), None, first_digest).rstrip("\n"))

    add_line(str(path), line_of("second", ("*",), None, second_digest))

    tokens = TokenFile(str(path), ManualClock())
    assert [tokens.authenticate(token).name for token in (first, second)] == ["first", "second"]


def test_no_line_is_added_to_a_file_of_something_else(tmp_path: Path) -> None:
    """The file stays as it was."""
    path = tmp_path / "hosts"
    path.write_text("127.0.0.1 localhost\n")

    with pytest.raises(ValueError, match="line 1 has 2 fields"):
        add_line(str(path), line_of("x", ("*",), None, new_token()[1]))
    assert path.read_text() == "127.0.0.1 localhost\n"


def test_unknown_missing_and_expired_tokens_are_refused_without_being_quoted(tmp_path: Path) -> None:
    """No message holds a token."""
    clock = ManualClock()
    token, digest = new_token()
    path = tmp_path / "tokens"
    path.write_text(line_of("ingest", ("content:get",), clock.now_millis() + 1_000, digest))
    tokens = TokenFile(str(path), clock)

    messages = []
    for wrong in (None, "", "ullage_other", digest):
        with pytest.raises(Unauthenticated) as caught:
            tokens.authenticate(wrong)
        messages.append(str(caught.value))
    tokens.authenticate(token)
    clock.advance(2)
    with pytest.raises(Unauthenticated, match="expired") as caught:
        tokens.authenticate(token)

    assert not any(secret in str(caught.value) + "".join(messages) for secret in (token, digest, "ullage_other"))


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    """A new token gets in, a removed one does not, and a broken file changes nothing but is told."""
    clock = ManualClock()
    (old, old_digest), (new, new_digest) = new_token(), new_token()
    path = tmp_path / "tokens"
    path.write_text(line_of("a", ("content:get",), None, old_digest))
    told: list[str] = []
    tokens = TokenFile(str(path), clock, told.append)

    (tmp_path / "next").write_text(line_of("a", ("content:get",), None, new_digest))
    os.replace(tmp_path / "next", path)
    clock.advance(2)

    assert tokens.authenticate(new).name == "a"
    with pytest.raises(Unauthenticated):
        tokens.authenticate(old)
    path.write_text("half a li")
    clock.advance(2)
    assert tokens.authenticate(new).name == "a"
    assert "line 1" in told[0]


def test_what_is_put_in_the_place_of_the_file_keeps_nobody_waiting(tmp_path: Path) -> None:
    """A pipe to which nobody writes is opened by who reads once somebody does."""
    clock, told = ManualClock(), list[str]()
    token, digest = new_token()
    path = tmp_path / "tokens"
    path.write_text(line_of("a", ("content:get",), None, digest))
    tokens = TokenFile(str(path), clock, told.append)
    path.unlink()
    os.mkfifo(path)
    clock.advance(2)

    assert tokens.authenticate(token).name == "a"
    assert "no regular file" in told[0]


@pytest.mark.parametrize(
    "text",
    [
        "a content never",
        "a fly never " + "0" * 64,
        "a content tomorrow " + "0" * 64,
        "a content never 0123",
        "../a\x00 content never " + "0" * 64,
    ],
)
def test_a_file_that_cannot_be_read_stops_the_start(tmp_path: Path, text: str) -> None:
    """And the line is named."""
    path = tmp_path / "tokens"
    path.write_text(text)

    with pytest.raises(CannotListen, match="line 1"):
        TokenFile(str(path), ManualClock())


def test_a_name_that_could_be_read_as_something_else_is_no_name() -> None:
    """A line is fields between blanks: a name has none."""
    with pytest.raises(ValueError, match="is no name"):
        line_of("a b", ("content:get",), None, "0" * 64)
