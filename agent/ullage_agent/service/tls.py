"""A certificate that can change while connections stand.

New handshakes use what is in the files now; connections that stand go on with what they began with. Files that do not
fit together, because only one of the two has arrived, change nothing.
"""

import os
import ssl

from ullage_agent.service.errors import CannotListen
from ullage_agent.service.listening import TlsFiles


class Certificate:
    """The server's side of TLS 1.2 and 1.3. CannotListen if the files cannot be used at first."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._seen: tuple[object, ...] = ()
        self._refused: tuple[object, ...] = ()
        self.generation = -1
        """0 for what the files held at first, and one more each time that they were taken over."""

        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        if problem := self.refresh():
            raise CannotListen(f"spec.tls.directory: {problem}")

    def refresh(self) -> str:
        """Take over changed files; what is wrong with them, told once, or nothing."""
        stamp: tuple[object, ...] = ()
        try:
            stamp = self._stamp()
            if stamp in (self._seen, self._refused):
                return ""
            # First into a context that nobody uses: half a pair must not get into the one that serves.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._files.certificate, self._files.key)
            self.context.load_cert_chain(self._files.certificate, self._files.key)
        except (OSError, ssl.SSLError) as error:
            self._refused = stamp
            return f"{self._files.certificate} and {self._files.key} cannot be used: {error}"
        self._seen, self._refused = stamp, ()
        self.generation += 1
        return ""

    def _stamp(self) -> tuple[object, ...]:
        found = [os.stat(path) for path in (self._files.certificate, self._files.key)]
        return tuple((each.st_ino, each.st_size, each.st_mtime_ns) for each in found)
