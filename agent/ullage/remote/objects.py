"""Objects of a bucket, by obstore: settings, credentials, and what goes wrong in words.

Who sent a request once more after an answer that was lost is told what the first one did: so whatever is put has a name
of its own, or a condition whose failure is settled by reading what lies there. This is the only module that knows
obstore.
"""

import configparser
import functools
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from ullage.errors import BucketRefused, BucketUnavailable, InvalidArgument, UnknownPlugin
from ullage.interface.buckets import Bucket

if TYPE_CHECKING:
    from obstore.store import S3Store

T = TypeVar("T")

REQUEST_SECONDS: Final = 300
"""A request may take so long, a part of a large object and its answer included."""

SILENCE_SECONDS: Final = 60
"""A connection on which nothing comes for so long is given up."""

DELETED_AT_ONCE: Final = 1_000

_SAID = re.compile(r"<Code>([^<]*)</Code>(?:.*?<Message>([^<]*)</Message>)?", re.DOTALL)
_STATUS = re.compile(r"status code: (\d{3})")
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w+)")
_MACHINE_IDENTITY = ("/latest/api/token", "/latest/meta-data")
"""What a machine of Amazon's is asked for its credentials, where there are no others."""

_PASSING = frozenset(
    {
        *("SlowDown", "InternalError", "ServiceUnavailable", "RequestTimeout", "OperationAborted"),
        "ConditionalRequestConflict",  # two puts on a condition at once: Amazon's wants the loser to ask again
    }
)


class Found(NamedTuple):
    """An object's bytes, and what tells them from those of any other put under its name."""

    data: bytes
    tag: str


class Conflict(Exception):
    """The object is not as the condition of the put has it."""


class ObjectNotThere(Exception):
    """There is no such object, in a bucket that there is."""


class Objects:
    """The objects below the prefix of a bucket; keys are relative to it. BucketRefused, BucketUnavailable."""

    def __init__(self, bucket: Bucket) -> None:
        """UnknownPlugin without obstore; InvalidArgument for a file that can't be read."""
        self._bucket = bucket
        self._store = _store(bucket)

    def at(self, key: str) -> str:
        """What messages call an object."""
        return "/".join(part for part in (f"s3://{self._bucket.name}", self._bucket.prefix, key) if part)

    def get(self, key: str) -> Found | None:
        """A small object, whole; None if there is none."""
        import obstore

        def asked() -> Found:
            result = obstore.get(self._store, key)
            return Found(bytes(result.bytes()), str(result.meta["e_tag"]))

        try:
            return self._asked(key, asked)
        except ObjectNotThere:
            return None

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """Bytes of an object; fewer only at its end. ObjectNotThere."""
        import obstore

        try:
            return self._asked(key, lambda: bytes(obstore.get_range(self._store, key, start=start, end=end)))
        except BucketRefused as error:
            if "InvalidRange" in str(error):
                return b""
            raise

    def length(self, key: str) -> int | None:
        """Of an object; None if there is none."""
        import obstore

        try:
            return int(self._asked(key, lambda: obstore.head(self._store, key)["size"]))
        except ObjectNotThere:
            return None

    def names(self) -> list[str]:
        """What lies directly below the prefix, what has more below it included."""
        import obstore

        found = self._asked("", lambda: obstore.list_with_delimiter(self._store))
        return sorted([*found["common_prefixes"], *(each["path"] for each in found["objects"])])

    def lengths(self, prefix: str) -> dict[str, int]:
        """The objects whose keys begin with a prefix and a slash."""
        import obstore

        def asked() -> dict[str, int]:
            return {
                each["path"]: each["size"]
                for chunk in obstore.list(self._store, prefix, chunk_size=1_000)
                for each in chunk
            }

        return self._asked(prefix, asked)

    def changed(self, key: str) -> datetime:
        """When an object was last put, by the server's clock. ObjectNotThere."""
        import obstore

        return self._asked(key, lambda: obstore.head(self._store, key)["last_modified"])

    def changes(self, prefix: str) -> dict[str, datetime]:
        """The same of those whose keys begin with a prefix and a slash."""
        import obstore

        def asked() -> dict[str, datetime]:
            return {each["path"]: each["last_modified"] for some in obstore.list(self._store, prefix) for each in some}

        return self._asked(prefix, asked)

    def put(self, key: str, data: bytes) -> None:
        """One that nobody else puts; sent again it is the same."""
        import obstore

        self._asked(key, lambda: obstore.put(self._store, key, data, use_multipart=False))

    def put_parts(
        self,
        key: str,
        begin: Callable[[], Iterable[bytes]],
        part_bytes: int,
        parallel: int,
        is_repeatable: Callable[[], bool],
    ) -> None:
        """One that nobody else puts, in parts of which so many are under way and in memory. What an error leaves of
        them the server forgets when it is told to, or by the rule of the bucket's life cycle.

        Each part is sent again by itself. All of it is, of the pieces that `begin` gives then, while that is possible:
        obstore does not repeat the request that begins it where its answer was cut.
        """
        import obstore

        self._asked(
            key,
            lambda: obstore.put(
                self._store, key, begin(), use_multipart=True, chunk_size=part_bytes, max_concurrency=parallel
            ),
            is_repeatable,
        )

    def put_if(self, key: str, data: bytes, tag: str | None) -> None:
        """Put an object in the place of the one that has this tag, or of none. Conflict."""
        import obstore

        mode: Any = "create" if tag is None else {"e_tag": tag}
        self._asked(key, lambda: obstore.put(self._store, key, data, mode=mode, use_multipart=False))

    def delete(self, keys: Collection[str]) -> None:
        """Those that are there."""
        import obstore

        ordered = sorted(keys)
        for first in range(0, len(ordered), DELETED_AT_ONCE):
            some = ordered[first : first + DELETED_AT_ONCE]
            self._asked(some[0], functools.partial(obstore.delete, self._store, some))

    def _asked(self, key: str, ask: Callable[[], T], is_repeatable: Callable[[], bool] = lambda: True) -> T:
        """The answer. An answer that was cut, which obstore takes for no failure of the request, is asked for again."""
        from obstore.exceptions import BaseError

        ends = time.monotonic() + self._bucket.patience_seconds
        pauses = _pauses()
        while True:
            try:
                return ask()
            except (BaseError, FileNotFoundError, PermissionError) as error:
                told = self._told(key, error)
                if not isinstance(told, BucketUnavailable) or not is_repeatable() or time.monotonic() >= ends:
                    raise told from None  # its own text holds what was signed, and a page of the library's inner life
                time.sleep(next(pauses))

    def _told(self, key: str, error: Exception) -> Exception:
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        text = str(error)
        said = _SAID.search(text)
        code, message = (said[1], said[2] or "") if said else ("", "")
        status = _STATUS.search(text)
        where, name = self.at(key), self._bucket.name
        if isinstance(error, AlreadyExistsError | PreconditionError) and code not in {"NoSuchBucket", *_PASSING}:
            return Conflict(where)
        if isinstance(error, FileNotFoundError) and code in ("", "NoSuchKey", "NotFound"):
            return ObjectNotThere(where)
        if code == "NoSuchBucket":
            return BucketRefused(f"there is no bucket {name!r} to be had for {where}: make it, or say another one")
        if any(path in text for path in _MACHINE_IDENTITY):
            return BucketRefused(
                f"bucket {name!r} wants credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name "
                "a file with them; this machine has no identity of its own"
            )
        if code in _PASSING or not status or status[1].startswith("5"):
            reason = f"{code}: {message}" if code else text.partition("\n")[0].rpartition(" - ")[2]
            if unbelieved := _CERTIFICATE.search(text):
                reason = f"its certificate is not believed, {unbelieved[1]}: name the authority that signed it"
            return BucketUnavailable(
                f"bucket {name!r} did not serve {where} in {self._bucket.patience_seconds:g} s ({reason}): nothing is "
                "lost, try again when it answers"
            )
        return BucketRefused(
            f"bucket {name!r} refused {where} ({code or status[1]}: {message or 'no reason given'}): look at the "
            "credentials, what they may do, and the region"
        )


def _pauses() -> Iterator[float]:
    pause = 0.1
    while True:
        yield pause
        pause = min(2 * pause, 5.0)


def require_obstore(bucket: Bucket) -> None:
    """UnknownPlugin without it."""
    try:
        import obstore.store  # noqa: F401 - whether it is there
    except ImportError as error:
        raise UnknownPlugin(
            f"{bucket.url} needs the package obstore, which is not installed here: install ullage with its extra bucket"
        ) from error


def _store(bucket: Bucket) -> "S3Store":
    require_obstore(bucket)
    from obstore.store import S3Store

    endpoint = bucket.endpoint or _from_environment("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    config: Any = {
        "region": bucket.region or _from_environment("AWS_REGION", "AWS_DEFAULT_REGION") or "us-east-1",
        "virtual_hosted_style_request": not endpoint,
    }
    if endpoint:
        config["endpoint"] = endpoint
    if bucket.encryption:
        config["server_side_encryption"] = bucket.encryption
    if bucket.encryption_key:
        config["sse_kms_key_id"] = bucket.encryption_key
    seconds = timedelta(seconds=min(SILENCE_SECONDS, bucket.patience_seconds))
    options: Any = {
        "allow_http": endpoint.startswith("http://"),
        "timeout": timedelta(seconds=REQUEST_SECONDS),
        "read_timeout": seconds,
        "connect_timeout": min(seconds, timedelta(seconds=5)),
    }
    if ca_file := bucket.ca_file or _from_environment("AWS_CA_BUNDLE"):
        options["root_certificate"] = _read(ca_file)
    file = bucket.credentials_file or _from_environment("AWS_SHARED_CREDENTIALS_FILE")
    return S3Store(
        bucket.name,
        prefix=bucket.prefix or None,
        config=config,
        client_options=options,
        retry_config={
            "max_retries": 1_000,
            "retry_timeout": timedelta(seconds=bucket.patience_seconds),
            "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 2},
        },
        credential_provider=_credentials_of(file) if file else None,
    )


def _credentials_of(path: str) -> Callable[[], Any]:
    """Reads the file now, and for each request."""

    def read() -> dict[str, object]:
        profile = _from_environment("AWS_PROFILE") or "default"
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(_read(path).decode())
            section = parser[profile]
            return {
                "access_key_id": section["aws_access_key_id"],
                "secret_access_key": section["aws_secret_access_key"],
                "token": section.get("aws_session_token"),
                "expires_at": datetime.now(UTC),  # so that the next request asks again
            }
        except (configparser.Error, KeyError, UnicodeDecodeError):
            # Not chained: the parser's message quotes the line, which may be the secret.
            raise InvalidArgument(
                f"{path} has no credentials: section [{profile}] with aws_access_key_id and aws_secret_access_key"
            ) from None

    read()  # a file that can't be used is told before anything is sent
    return read


def _from_environment(*names: str) -> str:
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise InvalidArgument(f"{path} can't be read: {error.strerror}") from error
