"""Asking the cluster: TokenReview says who a token stands for, SubjectAccessReview what they may do.

Rights are verbs on subresources of `contentrepositories`, for the one object that is served. Tokens are those that were
made for this repository, by their audience: no agent needs to see one that is good for the API server. Answers are kept
for a short while, because each costs a round trip. While the API server cannot be reached, what it allowed before still
holds for some minutes: a lost API server must not stop a node from serving.
"""

import base64
import hashlib
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from urllib.parse import urlsplit

from ullage.clock import Clock
from ullage.contract import GROUP, Right, audience_of
from ullage.errors import AccessUnknown, Unauthenticated
from ullage_agent.service.access import Principal, forbidden
from ullage_agent.service.errors import CannotListen
from ullage_agent.service.patience import Patience

if TYPE_CHECKING:
    from urllib3 import HTTPResponse

ACCOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where the kubelet puts this pod's token and the cluster's certificate authority."""

RESOURCE: Final = "contentrepositories"

KEPT_SECONDS: Final = 30.0
"""How long an answer is believed: what a revoked permission lives on."""

GRACE_SECONDS: Final = 300.0
"""How long a yes is believed while the API server cannot be asked."""

ENTRIES_MAX: Final = 10_000
"""Answers of each kind that are kept."""

ANSWER_BYTES_MAX: Final = 1 << 20
REQUEST_SECONDS: Final = 5.0

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class ApiServer:
    """Asks with this pod's token, by the client of the package `kubernetes`, which is loaded with the first question:
    only an agent in a cluster has it. The token and the authority's certificate are read anew each time: they rotate.
    """

    def __init__(self, url: str, token_path: str, authority_path: str) -> None:
        split = urlsplit(url)
        if split.scheme != "https" or not split.hostname:
            raise CannotListen(f"the API server's address {url!r} is no https URL")
        self._url = url
        self._token_path, self._authority_path = token_path, authority_path

    @classmethod
    def of_this_pod(cls, environment: Mapping[str, str], account: str = ACCOUNT) -> "ApiServer":
        """The cluster this process runs in; CannotListen outside of one."""
        host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise CannotListen(
                "spec.auth.mode Kubernetes: this process runs in no cluster. Alone, say TokenFile, or None for both "
                "spec.auth.mode and spec.tls.mode to serve this machine only"
            )
        if find_spec("kubernetes") is None:
            raise CannotListen(
                "an agent in a cluster needs the package kubernetes, which is missing: install ullage with "
                "[agent,kubernetes] behind its name"
            )
        address = f"[{host}]" if ":" in host else host
        return cls(f"https://{address}:{port}", os.path.join(account, "token"), os.path.join(account, "ca.crt"))

    @contextmanager
    def answering(
        self, method: str, path: str, document: object = None, *, kind: str = "application/json", seconds: float
    ) -> Iterator["HTTPResponse"]:
        """The answer to a request, whatever its status. TimeoutError: nothing was heard for that long; any other
        OSError: there is none.
        """
        # Loading them costs an agent that is alone 25 MiB and half a second, and it may not have them.
        from kubernetes import client  # noqa: PLC0415
        from urllib3.exceptions import HTTPError, TimeoutError as NothingHeard  # noqa: PLC0415

        with open(self._token_path, encoding="ascii") as file:
            key = {"BearerToken": f"Bearer {file.read().strip()}"}
        # Whoever asks decides when to ask again.
        own = client.Configuration(self._url, api_key=key, ssl_ca_cert=self._authority_path, retries=False)
        asking = client.ApiClient(own)
        try:
            headers = {"Content-Type": kind}
            request = asking.param_serialize(
                method, path, header_params=headers, body=document, auth_settings=["BearerToken"]
            )
            yield asking.call_api(*request, _request_timeout=(seconds, seconds)).response
        except NothingHeard as error:
            raise TimeoutError(f"nothing was heard for {seconds:g} s") from error
        except (HTTPError, client.ApiException) as error:
            first = _first_of(error)
            raise ConnectionError(f"{type(first).__name__}: {first}") from first
        finally:
            asking.rest_client.close()

    def review(self, path: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
        """The status of a review; AccessUnknown if there is none."""
        group = path.removeprefix("/apis/").rpartition("/")[0]
        document = {"apiVersion": group, "kind": kind, "spec": spec}
        try:
            with self.answering("POST", path, document, seconds=REQUEST_SECONDS) as answer:
                body = answer.read(ANSWER_BYTES_MAX)
            if answer.status not in (200, 201):
                raise AccessUnknown(f"the API server answered {answer.status} to a review")
            status: dict[str, Any] = json.loads(body).get("status") or {}
            return status
        except (OSError, ValueError) as error:
            # The error may quote what was sent; its kind is enough for whoever asked.
            kind_of_error = type(error.__cause__ or error).__name__
            raise AccessUnknown(f"the API server cannot be asked: {kind_of_error}") from error


def _first_of(error: BaseException) -> BaseException:
    """What went wrong first: the client wraps the network's errors in its own, twice."""
    while (earlier := error.__cause__ or error.__context__) is not None:
        error = earlier
    return error


class KubernetesReview:
    """Authenticates and authorizes by reviews. Thread-safe."""

    may_block = True

    def __init__(self, api: ApiServer, namespace: str, name: str, clock: Clock) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self._audience = audience_of(namespace, name)
        self._patience = Patience(clock)
        self._principals: _Kept[bytes, Principal | None] = _Kept(clock)
        self._permissions: _Kept[tuple[Principal, Right], bool] = _Kept(clock)

    def authenticate(self, token: str | None, peer: str = "") -> Principal:
        """Who this token stands for, as TokenReview has it; `peer` waits once it has brought too many bad ones."""
        if token is None:
            raise Unauthenticated("a bearer token is needed")
        if self._audience not in _audiences_in(token):  # no review would vouch for it, so that none is needed
            raise Unauthenticated(
                f"the bearer token is not for this repository: it must be one of a service account, made for the "
                f"audience {self._audience}"
            )
        digest = hashlib.sha256(token.encode()).digest()
        ask = partial(self._review_token, token, digest, peer)
        found = self._principals.get(digest, ask, lambda principal: principal is not None)
        if found is None:
            raise Unauthenticated("the cluster does not vouch for the bearer token")
        return found

    def authorize(self, principal: Principal, right: Right) -> None:
        """Whether SubjectAccessReview allows it on the object that is served."""
        if not self._permissions.get((principal, right), lambda: self._review_access(principal, right), bool):
            raise forbidden(principal, right)

    def _review_token(self, token: str, digest: bytes, peer: str) -> Principal | None:
        if (
            self._principals.last(digest) is None
        ):  # one that was good is asked about again, whoever else comes from there
            self._patience.take(peer)
        spec = {"token": token, "audiences": [self._audience]}
        try:
            status = self._api.review("/apis/authentication.k8s.io/v1/tokenreviews", "TokenReview", spec)
        except AccessUnknown:
            self._patience.give_back(peer)
            raise
        user = status.get("user") or {}
        # An API server that does not know of audiences says nothing of them, and has looked at none.
        if self._audience not in (status.get("audiences") or ()):
            return None
        if status.get("authenticated") is not True or not user.get("username"):
            return None
        self._patience.give_back(peer)
        return _principal_of(user)

    def _review_access(self, principal: Principal, right: Right) -> bool:
        about = {"group": GROUP, "resource": RESOURCE, "subresource": right.subresource, "verb": right.verb}
        about |= {"namespace": self._namespace, "name": self._name}
        # All that the cluster said of them: a webhook or a bound token's authorizer may decide by uid or extra.
        spec = {
            "user": principal.name,
            "uid": principal.uid,
            "groups": list(principal.groups),
            "extra": {name: list(values) for name, values in principal.extra},
            "resourceAttributes": about,
        }
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        status = self._api.review(path, "SubjectAccessReview", spec)
        return status.get("allowed") is True and status.get("denied") is not True


def _principal_of(user: Mapping[str, Any]) -> Principal:
    """As a TokenReview describes them."""
    extra = user.get("extra") or {}
    return Principal(
        str(user["username"]),
        tuple(map(str, user.get("groups") or ())),
        uid=str(user.get("uid") or ""),
        extra=tuple((str(name), tuple(map(str, extra[name]))) for name in sorted(extra)),
    )


def _audiences_in(token: str) -> tuple[str, ...]:
    """For whom it says that it was made. Nobody has vouched for it: of use only to refuse what cannot be good."""
    parts = token.split(".")
    if len(parts) != 3:
        return ()
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        said = claims.get("aud") if isinstance(claims, dict) else None
    except (ValueError, RecursionError):  # not Base64, not UTF-8, not JSON
        return ()
    several = said if isinstance(said, list) else [said]
    return tuple(each for each in several if isinstance(each, str))


class _Kept(Generic[Key, Value]):
    """Answers with their age; the least recently used go first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: OrderedDict[Key, tuple[float, Value]] = OrderedDict()

    def get(self, key: Key, ask: Callable[[], Value], is_yes: Callable[[Value], bool]) -> Value:
        """The answer, asked for anew when it is old. AccessUnknown if it cannot be, unless it was a yes lately."""
        now = self._clock.monotonic()
        with self._lock:
            kept = self._entries.get(key)
            if kept is not None:
                self._entries.move_to_end(key)
        if kept is not None and now - kept[0] < KEPT_SECONDS:
            return kept[1]
        try:
            answer = ask()
        except AccessUnknown:
            if kept is not None and is_yes(kept[1]) and now - kept[0] < GRACE_SECONDS:
                return kept[1]
            raise
        with self._lock:
            self._entries[key] = (now, answer)
            self._entries.move_to_end(key)
            while len(self._entries) > ENTRIES_MAX:
                self._entries.popitem(last=False)
        return answer

    def last(self, key: Key) -> Value | None:
        """The answer that was given last, however old; None if it is not known any more."""
        with self._lock:
            kept = self._entries.get(key)
        return None if kept is None else kept[1]
