"""A server with TLS and tokens, as tests of transports and refusals want it."""

import ssl
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import httpx
from cryptography import x509

from tests.certificates import Authority
from tests.service.running import Running, document_at
from ullage.client.node import Node
from ullage.client.proof import Identity
from ullage.client.socket import SocketClient
from ullage.contract import AuthMode, Right, TlsMode
from ullage.wire.needs import needs
from ullage_agent.service.limits import DEFAULTS, Limits
from ullage_agent.service.tokens import line_of, new_token

HOUR: Final = 3_600_000


def known(file: Path, *names: str) -> dict[str, str]:
    """A file of tokens that may do everything, one of each name; the tokens."""
    made = {name: new_token() for name in names}
    file.write_text("".join(line_of(name, ("*",), None, digest) for name, (_, digest) in made.items()))
    return {name: secret for name, (secret, _) in made.items()}


class Secured:
    """`tokens`: one for each right and for what an operation needs, one for all `but` each right, one for `all`, and
    one that has `expired`. `running` is to be entered.
    """

    def __init__(self, path: Path, *, socket: bool = False, limits: Limits = DEFAULTS, **sections: Any) -> None:
        self.tls, self.token_file = path / "tls", path / "tokens"
        self.socket = f"{tempfile.mkdtemp(prefix='u-')}/s"
        self.authority = Authority(path / "authority")
        self.ca_file = str(self.authority.certificate)
        self.authority.issue(self.tls)
        self.tokens: dict[str, str] = {}
        rights: dict[str, tuple[str, ...]] = {"all": ("*",), "expired": ("*",)}
        for right in Right:
            rights[right] = (right,)
            rights[f"but {right}"] = tuple(other for other in Right if other != right)
        for need in needs():
            rights[self.only(need.rights)] = need.rights or (Right.METRICS,)
        with self.token_file.open("w") as file:
            for name, allowed in rights.items():
                self.tokens[name], digest = new_token()
                until_millis = int(time.time() * 1000) - HOUR if name == "expired" else None
                file.write(line_of(name.replace(" ", "-"), allowed, until_millis, digest))
        self.running = Running(
            document_at(
                path / "r",
                service={"flight_port": 0, "metrics_port": 0, "socket_path": self.socket if socket else ""},
                tls={"mode": TlsMode.SECRET, "directory": str(self.tls)},
                auth={"mode": AuthMode.TOKEN_FILE, "token_file": str(self.token_file), **sections.pop("auth", {})},
                **sections,
            ),
            limits,
        )

    def admit(self, name: str, *rights: str) -> str:
        """A token of somebody new, before the server runs."""
        self.tokens[name], digest = new_token()
        with self.token_file.open("a") as file:
            file.write(line_of(name, rights, None, digest))
        return self.tokens[name]

    @staticmethod
    def only(rights: Sequence[Right] | None) -> str:
        """The name of the token with just these rights; with one that is of no use here if there are none."""
        return "_".join(rights or (Right.METRICS,))

    def url(self, name: str = "http") -> str:
        """Where one of its listeners is reached."""
        return self.running.server.urls[name].replace("0.0.0.0", "127.0.0.1").rstrip("/")

    def node(self, token: str = "all") -> Node:
        """All of them, for a client with one of the tokens."""
        return Node(url=self.url(), flight=self.url("flight"), token=self.tokens[token], ca_file=self.ca_file)

    def client(self, token: str = "") -> httpx.Client:
        """Plain HTTP with one of the tokens, another one, or none."""
        headers = {"authorization": f"Bearer {self.tokens.get(token, token)}"} if token else {}
        context = ssl.create_default_context(cafile=self.ca_file)
        return httpx.Client(base_url=self.url(), verify=context, headers=headers)

    def local(self, token: str) -> SocketClient:
        """The Unix socket with one of the tokens, after the agent has proved itself."""
        return SocketClient(self.socket, self.tokens.get(token, token), identity=Identity("127.0.0.1", self.ca_file))

    def renew(self) -> int:
        """A new certificate, taken over; its serial number."""
        serial = self.authority.issue(self.tls)
        assert self.running.server.reload_certificate() == ""
        return serial

    def refuses(self) -> bool:
        """Whether the service has refused what its files hold now: it says so once, to whoever looked first, which may
        have been itself.
        """
        server = self.running.server
        assert server._certificate is not None
        return server.reload_certificate() != "" or server._certificate._refused != ()

    def serial(self, name: str = "http") -> int:
        """Of the certificate that a new connection gets."""
        host, port = self.url(name).rpartition("//")[2].split(":")
        return x509.load_pem_x509_certificate(ssl.get_server_certificate((host, int(port))).encode()).serial_number
