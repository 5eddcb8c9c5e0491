"""A web crawler as a data flow, after the example flow that Apache NiFi's documentation tells its story with.

    python -m examples.webcrawler DIRECTORY      runs it over a small web that it makes up

    GetHTTP -> [pages] -> RouteText -> [matches] -> PutEmail
                              `------> [lines] -> SplitText -> ExtractText -> DetectDuplicate -> InvokeHTTP
                                                                                                     |
        .----------------- RouteOnAttribute <- [named] <- UpdateAttribute <- [responses] <-----------'
        |  200 to 202; else dropped
        |-> [found] -> funnel -> [pages]
        `-> [successes] -> funnel -> [log] -> LogAttribute
                              `----> [bundle] -> MergeContent -> CompressContent -> PutFile

Every component is a function that takes what its queue holds, works, and commits: content, attributes, queues and the
history of it all in one transaction. None of them writes history by hand, but for what only it can know: where data
came from, where it went, and why it was dropped.
"""

import gzip
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import ullage
from ullage import EventQuery, FlowFile, Repository, Session

SEED = "https://site.example/"
KEYWORD = "nifi"
BUNDLE = 3
"""Pages in one archive."""


class Response(NamedTuple):
    """What a server says."""

    status: int
    body: bytes


Fetch = Callable[[str], Response]

WEB = {
    SEED: Response(
        200,
        b"welcome\nnifi moves data\nhttps://site.example/docs\nmore about nifi\nhttps://site.example/gone\n"
        b"https://site.example/made\nhttps://site.example/docs\n",
    ),
    "https://site.example/docs": Response(200, b"the guide\nhttps://site.example/\nhttps://site.example/later\n"),
    "https://site.example/gone": Response(404, b"not here\n"),
    "https://site.example/made": Response(201, b"a nifi page, just made\n"),
    "https://site.example/later": Response(202, b"come back\n"),
}
"""A small web, with a duplicate, a page that is gone, and each kind of success."""


def fetch_made_up(url: str) -> Response:
    """A server for the web above."""
    return WEB.get(url, Response(404, b"not here\n"))


class Crawler:
    """The flow over one repository. `known` are the addresses it has asked for, `mails` what it would have sent."""

    def __init__(self, repository: Repository, fetch: Fetch, target: Path) -> None:
        self._repository = repository
        self._fetch = fetch
        self._target = target
        self.known: set[str] = set()
        self.mails: list[bytes] = []
        self.logged: list[str] = []

    def run(self, seed: str) -> None:
        """Start at a page, and go on until every queue is empty."""
        self._get_http(seed)
        steps = (
            self._route_text,
            self._put_email,
            self._split_text,
            self._extract_text,
            self._detect_duplicate,
            self._invoke_http,
            self._update_attribute,
            self._route_on_attribute,
            self._funnel,
            self._quiet_funnel,
            self._log_attribute,
        )
        is_done = False
        while not is_done:
            is_done = not sum(step() for step in steps)  # every step has its turn in every round
        while self._merge_content():
            self._compress_content()
            self._put_file()

    def _get_http(self, url: str) -> None:
        """The seed page enters the flow: data from outside is received, not created."""
        response = self._fetch(url)
        with self._repository.session("get-seed", "GetHTTP") as session:
            page = session.write(session.create(attributes={"filename": "seed.html", "url": url}), response.body)
            session.provenance.receive(page, url, details=f"HTTP {response.status}")
            session.transfer(page, "pages")
            session.commit()
        self.known.add(url)

    def _route_text(self) -> bool:
        """Lines with the keyword go on as one FlowFile: they are not side by side, so they are copied.

        The page itself goes on to be looked through for addresses.
        """

        def work(session: Session, page: FlowFile) -> None:
            with session.read(page) as content:
                lines = content.read().splitlines(keepends=True)
            found = [line for line in lines if KEYWORD.encode() in line]
            if found:
                match = session.write(session.create([page]), b"".join(found))
                session.transfer(match, "matches", KEYWORD)
            session.transfer(page, "lines", "original")

        return self._each("pages", "route-text", "RouteText", work)

    def _put_email(self) -> bool:
        """One mail a page, however many lines matched."""

        def work(session: Session, match: FlowFile) -> None:
            with session.read(match) as content:
                self.mails.append(content.read())
            session.provenance.send(match, "smtp://mail.example/ops", details="keyword found")
            session.remove(match)

        return self._each("matches", "mail-keywords", "PutEmail", work)

    def _split_text(self) -> bool:
        """A FlowFile a line; they point into the page's content, nothing is copied."""

        def work(session: Session, page: FlowFile) -> None:
            with session.read(page) as content:
                sizes = [len(line) for line in content.read().splitlines(keepends=True)]
            session.transfer(session.split(page, sizes), "candidates")
            session.remove(page)

        return self._each("lines", "split-lines", "SplitText", work)

    def _extract_text(self) -> bool:
        """What is an address becomes an attribute; other lines are of no further use."""

        def work(session: Session, line: FlowFile) -> None:
            with session.read(line) as content:
                address = re.search(r"https?://\S+", content.read().decode())
            if address is None:
                session.provenance.drop(line, details="no address in this line")
                session.remove(line)
            else:
                session.transfer(session.put_attributes(line, {"url": address[0]}), "addresses")

        return self._each("candidates", "extract-url", "ExtractText", work)

    def _detect_duplicate(self) -> bool:
        """Each address is asked for once."""

        def work(session: Session, address: FlowFile) -> None:
            url = address.attributes["url"]
            if url in self.known:
                session.provenance.drop(address, details=f"duplicate of {url}")
                session.remove(address)
            else:
                self.known.add(url)
                session.transfer(address, "requests", "non-duplicate")

        return self._each("addresses", "seen-before", "DetectDuplicate", work)

    def _invoke_http(self) -> bool:
        """Ask; the answer replaces the line, its status becomes an attribute."""

        def work(session: Session, request: FlowFile) -> None:
            url = request.attributes["url"]
            response = self._fetch(url)
            answer = session.write(request, response.body)
            answer = session.put_attributes(answer, {"invokehttp.status.code": str(response.status)})
            session.provenance.fetch(answer, url, details=f"HTTP {response.status}")
            session.transfer(answer, "responses")

        return self._each("requests", "ask", "InvokeHTTP", work)

    def _update_attribute(self) -> bool:
        """A name that says what it is; a later system knows the page by its address."""

        def work(session: Session, answer: FlowFile) -> None:
            url = answer.attributes["url"]
            name = url.rstrip("/").rpartition("/")[2] + ".html"
            changed = session.put_attributes(answer, {"filename": name, "alternate.identifier": url})
            session.transfer(changed, "named")

        return self._each("responses", "name", "UpdateAttribute", work)

    def _route_on_attribute(self) -> bool:
        """Success goes two ways, so it is cloned; everything else is dropped."""

        def work(session: Session, answer: FlowFile) -> None:
            if answer.attributes["invokehttp.status.code"] not in ("200", "201", "202"):
                session.provenance.drop(answer, details="auto-terminated relationship unmatched")
                session.remove(answer)
                return
            session.transfer(session.clone(answer), "successes", "success")
            session.transfer(answer, "found", "success")

        return self._each("named", "by-status", "RouteOnAttribute", work)

    def _funnel(self) -> bool:
        """Two outputs: the FlowFile goes one way, its clone the other."""

        def work(session: Session, page: FlowFile) -> None:
            session.transfer(session.clone(page), "log")
            session.transfer(page, "bundle")

        return self._each("successes", "funnel-1", "Funnel", work)

    def _quiet_funnel(self) -> bool:
        """One output: it leaves nothing behind, and is not in the picture."""

        def work(session: Session, page: FlowFile) -> None:
            session.transfer(page, "pages")

        return self._each("found", "funnel-2", "Funnel", work)

    def _log_attribute(self) -> bool:
        """Every success is logged, and done with."""

        def work(session: Session, page: FlowFile) -> None:
            self.logged.append(page.attributes["url"])
            session.remove(page)

        return self._each("log", "log", "LogAttribute", work)

    def _merge_content(self) -> bool:
        """Several pages become one: their contents are copied together, and a JOIN names them."""
        with self._repository.session("bundle", "MergeContent") as session:
            pages = session.get_many("bundle", BUNDLE)
            if not pages:
                return False
            merged = session.merge(pages, demarcator=b"\n---\n")
            session.transfer(session.put_attributes(merged, {"filename": "pages.txt"}), "merged", "merged")
            session.remove(pages)
            session.commit()
        return True

    def _compress_content(self) -> None:
        """Copy on write: the bundle's bytes stay for whoever asks for the past."""

        def work(session: Session, bundle: FlowFile) -> None:
            with session.read(bundle) as content:
                packed = gzip.compress(content.read(), mtime=0)
            changed = session.put_attributes(session.write(bundle, packed), {"filename": "pages.txt.gz"})
            session.provenance.modify_content(changed, details="gzip")
            session.transfer(changed, "archive")

        self._each("merged", "compress", "CompressContent", work)

    def _put_file(self) -> None:
        """Out of the flow, and out of the repository."""

        def work(session: Session, bundle: FlowFile) -> None:
            path = self._target / f"{bundle.id}-{bundle.attributes['filename']}"
            with session.read(bundle) as content:
                path.write_bytes(content.read())
            session.provenance.send(bundle, f"file://archive/{path.name}")
            session.remove(bundle)

        self._each("archive", "archive", "PutFile", work)

    def _each(self, queue: str, name: str, kind: str, work: Callable[[Session, FlowFile], None]) -> bool:
        """Let a component work on what its queue holds, one commit a FlowFile; whether there was any."""
        worked = False
        while True:
            with self._repository.session(name, kind) as session:
                flow_file = session.get(queue)
                if flow_file is None:
                    return worked
                work(session, flow_file)
                session.commit()
            worked = True


def main(directory: Path) -> None:
    """Run the flow in a directory, and say what draws where one page came from and what became of it."""
    root, target = directory / "repository", directory / "archive"
    target.mkdir(parents=True)
    with ullage.open(root, create=True) as repository:
        crawler = Crawler(repository, fetch_made_up, target)
        crawler.run(SEED)
        made = EventQuery(attributes={"invokehttp.status.code": "201"}, limit=1)
        page = repository.provenance.search(made).events[0].flow_file
        found = repository.provenance.lineage(page)
    print(f"asked for {len(crawler.known)} pages, logged {len(crawler.logged)}, sent {len(crawler.mails)} mails")
    print(f"{len(found.events)} events in the lineage of the page that was just made; this draws it:")
    print(f"ullage provenance lineage {page} --root {root} -f svg -o lineage.svg")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
