"""A place in a bucket, as people name it."""

import os
import re
from typing import Final
from urllib.parse import urlsplit

import msgspec

from ullage.errors import InvalidArgument

SCHEME: Final = "s3://"

KMS: Final = "aws:kms"
ENCRYPTIONS: Final = ("AES256", KMS)
"""What a server may be asked to encrypt with."""

KEY_BYTES_MAX: Final = 512
"""Of a prefix: what lies below it needs as much again, and S3 takes 1,024."""

AUTHORITIES: Final = "ca.crt"
"""The key of a bucket's Secret, and the file beside its credentials that it becomes."""

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


class Bucket(msgspec.Struct, frozen=True, kw_only=True):
    """A prefix of a bucket of S3, or of a server that speaks its protocol. Nothing in it is a secret: the credentials
    come from the environment (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`), from a file, or from
    the identity of the machine. What is empty is taken from the environment too, where that says it.

    >>> ullage.Bucket(url="s3://flows/node-1", endpoint="https://s3.example.com").prefix
    'node-1'
    """

    url: str
    """`s3://BUCKET/PREFIX`; other things may lie in the bucket beside the prefix, and none below it."""

    endpoint: str = ""
    """The URL of a server that is not Amazon's (`AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`). It is asked by path, not by
    host name. Over http:// everybody on the way reads what is sent, though nobody learns the credentials.
    """

    region: str = ""
    """The bucket's region (`AWS_REGION`, `AWS_DEFAULT_REGION`; else us-east-1)."""

    ca_file: str = ""
    """A file with the certificates of further authorities that are believed, as PEM (`AWS_CA_BUNDLE`)."""

    credentials_file: str = ""
    """A file as Amazon's tools have it, read anew while it is used, so that it may be rotated; its section is `default`
    or what `AWS_PROFILE` says (`AWS_SHARED_CREDENTIALS_FILE`).
    """

    encryption: str = ""
    """How the server is asked to encrypt what is put there: `AES256`, with keys of its own, or `aws:kms`. Empty leaves
    it to the rule of the bucket. What is read needs nothing said.
    """

    encryption_key: str = ""
    """With `aws:kms` the id of the key; empty takes the one of the account."""

    patience_seconds: float = 120.0
    """How long a request that fails for a reason which may pass is tried again: no answer, 500, 503 SlowDown."""

    @property
    def name(self) -> str:
        """The bucket's."""
        return self.url.removeprefix(SCHEME).partition("/")[0]

    @property
    def prefix(self) -> str:
        """What the names of all objects begin with, without the slash that follows it; may be empty."""
        return self.url.removeprefix(SCHEME).partition("/")[2].rstrip("/")


def checked_bucket(place: str | Bucket) -> Bucket:
    """The bucket that a URL means, or the same, if it can be one: InvalidArgument."""
    if isinstance(place, str):
        place = Bucket(url=place)
    if not place.url.startswith(SCHEME) or not _BUCKET.fullmatch(place.name):
        raise InvalidArgument(f"{place.url!r} names no bucket: say s3://BUCKET/PREFIX")
    names = place.prefix.split("/") if place.prefix else []
    if not place.prefix.isprintable() or any(name in ("", ".", "..") for name in names):
        raise InvalidArgument(f"{place.url!r} has a prefix that no object's name begins with: say s3://BUCKET/PREFIX")
    if len(place.prefix.encode()) > KEY_BYTES_MAX:
        raise InvalidArgument(f"the prefix of {place.name} is longer than {KEY_BYTES_MAX} bytes")
    _require_endpoint(place.endpoint)
    if place.encryption not in ("", *ENCRYPTIONS):
        raise InvalidArgument(f"{place.encryption!r} is no encryption of a bucket's server: {', '.join(ENCRYPTIONS)}")
    if place.encryption_key and place.encryption != KMS:
        raise InvalidArgument(f"an encryption_key is of {KMS} alone")
    if not place.patience_seconds > 0:
        raise InvalidArgument("patience_seconds is more than 0: a request is tried once at least")
    return place


def _require_endpoint(endpoint: str) -> None:
    parts = urlsplit(endpoint)
    if endpoint and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise InvalidArgument(f"{endpoint!r} is no endpoint: say https://HOST:PORT")
    if parts.username is not None or parts.query or parts.fragment:
        raise InvalidArgument("an endpoint is https://HOST:PORT and no more: credentials do not belong in it")


def authorities_beside(credentials_file: str) -> str:
    """The authorities that came with the credentials, as a Secret has both; empty if none did. They may come later, and
    are looked for anew each time.
    """
    path = os.path.join(os.path.dirname(credentials_file), AUTHORITIES) if credentials_file else ""
    return path if path and os.path.exists(path) else ""
