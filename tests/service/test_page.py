"""The page at `/` in a real Chromium, against a running server. Pictures of it are left in .pictures."""

import html.parser
import json
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.browser import Browser
from tests.service.running import Running, document_at, rest, until
from tests.support import committing
from ullage.contract import AuthMode, Duration as Time, MaintenanceOperation, Window
from ullage.engine.reclaim.policies import POLICIES
from ullage.enums import EventType
from ullage_agent.service.http import page
from ullage_agent.service.tokens import line_of, new_token

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / ".pictures"
FILES = Path(page.__file__).parent
MB = 1 << 20
SEED = 20261121
NO_ARCHIVE = {"archive": {"enabled": False}}
CLOSED = Window(name="never", schedule="0 0 29 2 *", duration=Time(3_600_000), operations=tuple(MaintenanceOperation))
PHONE = (390, 844)
DESKTOP = (1280, 900)
IS_FULL = "document.querySelector('#containers .container')"
IS_IDLE = IS_FULL + " && document.querySelector('#board').ariaBusy === 'false'"


@pytest.fixture(scope="module")
def axe() -> str:
    """The source of axe-core."""
    found = subprocess.run([ROOT / "tools" / "axe"], check=True, capture_output=True, text=True).stdout.strip()
    return Path(found).read_text(encoding="utf-8")


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    """A browser of its own; when the test ends, no script may have failed and the CSP refused nothing."""
    PICTURES.mkdir(exist_ok=True)
    with Browser(tmp_path / "profile") as made:
        made.view(*DESKTOP)
        yield made
        assert made.errors == []


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Running]:
    """A server with content that lives, dead tails, dead middles, files that nobody uses, and a lease."""
    with Running(document_at(tmp_path / "repository", **NO_ARCHIVE)) as running:
        rest(running.server.host.repository)  # it would give back what the test is about to look at
        fill(running)
        yield running


def fill(running: Running) -> None:
    """Each commit is one file: some small contents, in the middle of them a doomed one, and a large one at the end."""
    chance = random.Random(SEED)
    for number in range(30):
        with committing(running.repository) as session:
            for place in range(6):
                flow_file = session.create(attributes={"filename": f"order-{number}-{place}.csv"})
                session.write(flow_file, chance.randbytes(chance.randrange(8_000, 40_000)))
                session.transfer(flow_file, "orders" if place % 3 and number % 6 else "doomed")
            tail = session.create(attributes={"filename": f"scan-{number}.tiff"})
            session.write(tail, chance.randbytes(MB * chance.choice((1, 2, 3))))
            session.transfer(tail, "scans" if number % 5 == 0 else "doomed")
    resources = running.client.get("/v1/reclamation/resources").json()["resources"]
    held = [each["resource"] for each in resources][1:4]  # a lease keeps what dies from then on
    running.client.post("/v1/leases", json={"duration_millis": 600_000, "resources": held}).raise_for_status()
    running.client.delete("/v1/queues/doomed/flowfiles").raise_for_status()


def violations(browser: Browser, axe: str) -> list[Any]:
    """What axe-core has against the page as it is now."""
    browser.ask(f"{axe}; 0")
    told = "v.id, v.help, v.nodes.map((n) => n.html.slice(0, 200) + n.failureSummary)"
    found: list[Any] = browser.ask(f"axe.run(document).then((r) => r.violations.map((v) => [{told}]))")
    return found


def too_wide(browser: Browser) -> list[Any]:
    """What reaches over the right edge, or can be scrolled sideways."""
    found: list[Any] = browser.ask(
        "[document.documentElement, ...document.body.querySelectorAll('*')].filter((e) => e.checkVisibility()"
        " && !e.closest('.hidden, thead, svg') && (e.getBoundingClientRect().right > innerWidth + 1"
        " || (e.scrollWidth > e.clientWidth + 1 && ['auto', 'scroll'].includes(getComputedStyle(e).overflowX))))"
        ".map((e) => e.outerHTML.slice(0, 120))"
    )
    scrolls = browser.ask("document.documentElement.scrollWidth > innerWidth")
    return [*found, *(["the document"] if scrolls else [])]


def open_everything(browser: Browser) -> None:
    """One claim, a plan, an event and its lineage."""
    browser.until(IS_FULL)
    browser.click("#map [role=option].half, #map [role=option].low")
    browser.until("document.querySelector('#claim .strip')")
    browser.click("#dry-run")
    browser.until("document.querySelector('#plan-frees')")
    browser.click("#search")
    show_lineage(browser)


def show_lineage(browser: Browser, item: str = "li") -> None:
    """Of an event that was found."""
    browser.click(f"#events {item} button")
    browser.click("#show-lineage")
    browser.until("document.querySelector('.graph')")


def exact(browser: Browser, selector: str) -> int:
    """The exact bytes behind a size that is shown."""
    return int(browser.ask(f"document.querySelector({json.dumps(selector + ' data')}).value"))


def shown_unchanged(running: Running, browser: Browser) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A container and its resource claims, shown while they stayed as they were."""
    browser.until(IS_IDLE)
    browser.click("#follow")

    def figures() -> tuple[dict[str, Any], list[dict[str, Any]]]:
        survey = running.client.get("/v1/reclamation/survey").json()
        return survey["containers"][0], running.client.get("/v1/reclamation/resources").json()["resources"]

    before, after = None, figures()
    while before != after:
        before = after
        browser.until(IS_IDLE)
        browser.click("#refresh")
        browser.until(IS_IDLE)
        after = figures()
    return after


def test_the_page_comes_with_a_policy_that_lets_nothing_in(running: Running) -> None:
    """Each file is served as what it is, under a policy without exceptions; other names are not found."""
    for path, kind in {"/": "text/html", **{f"/page/{name}": kind for name, kind in page.TYPES.items()}}.items():
        answer = running.client.get(path)
        policy = answer.headers["content-security-policy"]

        assert (answer.status_code, answer.headers["content-type"].removesuffix("; charset=utf-8")) == (200, kind)
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy
        assert ":" not in policy
    for name in ("__init__.py", "..%2Fapp.py", "%2e%2e%2fapp.py", "index.html"):
        assert running.client.get(f"/page/{name}").status_code == 404


def test_the_page_has_no_script_or_style_inside_and_nothing_from_elsewhere() -> None:
    """What the policy would refuse is not there in the first place, and every file is served."""

    class Found(html.parser.HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.wrong: list[str] = []

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            names = dict(attrs)
            if tag == "style" or (tag == "script" and "src" not in names):
                self.wrong.append(f"<{tag}>")
            self.wrong += [f"{tag} {name}" for name in names if name == "style" or name.startswith("on")]
            links = [value or "" for name, value in attrs if name in ("src", "href")]
            self.wrong += [link for link in links if ":" in link or link.startswith("/")]

    found = Found()
    found.feed((FILES / "index.html").read_text(encoding="utf-8"))

    assert found.wrong == []


def test_every_type_of_event_can_be_chosen(running: Running, browser: Browser) -> None:
    """The search offers what the engine records, no more and no less; no file of the page has a list of its own."""
    browser.open(running.url)

    offered = browser.ask("[...document.querySelectorAll('#search-type option')].map((each) => each.value)")

    assert offered == ["", *EventType.__members__]
    assert not [name for name in EventType.__members__ if f">{name}<" in (FILES / "index.html").read_text()]


def test_policies_of_other_packages_can_be_chosen(
    running: Running, browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the entry points say; one that cannot be loaded is told as such, and the page goes on."""
    package = tmp_path / "other-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(
        f"[{POLICIES.group}]\nOldestFirst = ullage.engine.reclaim.policies:CompactAll\nBroken = nowhere:Nothing\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    browser.open(running.url)
    browser.until("document.querySelectorAll('#policy option').length > 1")
    offered = browser.ask("[...document.querySelectorAll('#policy option')].map((o) => o.textContent)")
    assert offered == ["As configured: StatsBased", "StatsBased", "CompactAll", "Broken", "OldestFirst"]
    choose = "((s) => {{ s.value = '{}'; s.dispatchEvent(new Event('change')); }})(document.querySelector('#policy'))"
    browser.ask(choose.format("OldestFirst"))
    browser.click("#dry-run")
    browser.until("document.querySelector('#plan').textContent.includes('nothing to do')")
    browser.ask(choose.format("Broken"))
    browser.click("#dry-run")
    browser.until("document.querySelector('#plan').textContent.includes('cannot be loaded')")


def test_the_figures_are_those_of_the_survey(filled: Running, browser: Browser) -> None:
    """Every part of a container is shown to the byte, and every resource claim is on the map with its live fraction."""
    browser.open(filled.url)
    container, resources = shown_unchanged(filled, browser)
    kinds = ("live", "tail", "unused", "archive", "leased")
    shown = {kind: exact(browser, f"[data-kind={kind}]") for kind in kinds}
    middle = exact(browser, "[data-kind=middle]")
    tiles = browser.ask(
        "[...document.querySelectorAll('#map [role=option]')].map((each) => [each.id, each.dataset.live])"
    )

    assert shown == {
        "live": container["live_bytes"],
        "tail": container["dead_tail_bytes"],
        "unused": container["unused_bytes"],
        "archive": container["archived_bytes"],
        "leased": container["leased_bytes"],
    }
    assert all(shown[kind] > 0 for kind in ("live", "tail", "unused", "leased"))
    assert middle > 0
    assert shown["live"] + shown["tail"] + shown["unused"] + middle == container["disk_bytes"]
    assert tiles == [
        [f"claim-{each['resource']}", f"{each['live_bytes'] / min(each['allocated_bytes'], each['length']):.3f}"]
        for each in resources
    ]
    browser.picture(PICTURES / "figures.png")


def test_fill_drop_dry_run_reclaim_search_lineage_replay(tmp_path: Path, browser: Browser) -> None:
    """A person follows content from its arrival to the space it gave back, and is told why its past cannot return."""
    with Running(document_at(tmp_path / "repository", **NO_ARCHIVE)) as running:
        rest(running.server.host.repository)  # as above
        browser.open(running.url)
        browser.until("document.querySelector('#map-empty').checkVisibility()")

        running.client.post("/v1/queues/inbox/flowfiles", content=b"d" * (8 * MB)).raise_for_status()
        browser.click("#refresh")
        browser.until("document.querySelectorAll('#map .full').length === 1")
        running.client.delete("/v1/queues/inbox/flowfiles").raise_for_status()
        browser.click("#refresh")
        browser.until("document.querySelectorAll('#map .none').length === 1")

        browser.click("#dry-run")
        browser.until("document.querySelector('#plan-frees')")
        promised = exact(browser, "#plan-frees")
        assert running.client.get("/v1/reclamation/runs").json() == []
        browser.click("#reclaim")
        browser.until("document.querySelector('#run-freed')")
        freed = exact(browser, "#run-freed")
        browser.until("document.querySelector('#map-empty').checkVisibility()")

        browser.ask("document.querySelector('#search-type').value = 'DROP'")
        browser.click("#search")
        browser.until("document.querySelectorAll('#events li').length === 1")
        browser.click("#events li button")
        browser.click("#replay")
        browser.until("document.querySelector('#replay-answer .problem')")
        refusal = running.client.get("/v1/provenance/events?type=DROP").json()["events"][0]["id"]
        verdict = running.client.get(f"/v1/provenance/events/{refusal}/replay").json()
        browser.click("#show-lineage")
        browser.until("document.querySelector('.graph')")
        drawn = browser.ask("[...document.querySelectorAll('.graph li b')].map((each) => each.textContent)")
        browser.picture(PICTURES / "journey.png")

        assert promised >= 8 * MB
        assert freed == promised
        assert not verdict["is_possible"]
        assert verdict["message"] in browser.text("#replay-answer")
        assert drawn[-1] == "DROP"
        assert browser.ask("document.querySelectorAll('.graph circle').length") == len(drawn) >= 2
        assert browser.ask("document.querySelectorAll('.graph path.link').length") >= 1


def test_an_event_shows_its_attributes_and_gives_its_content(
    running: Running, browser: Browser, tmp_path: Path
) -> None:
    """Before and after, with what changed; the download is the content, and a replay puts it back."""
    content = b"id,total\n7,42\n"
    with committing(running.repository) as session:
        flow_file = session.create(attributes={"filename": "order.csv"})
        session.write(flow_file, content)
        session.transfer(flow_file, "inbox")
    with committing(running.repository) as session:
        (arrived,) = session.get_many("inbox", 1)
        session.put_attribute(arrived, "checked", "yes")
        session.transfer(arrived, "inbox")
    browser.downloads(tmp_path)
    browser.open(running.url)

    browser.ask("document.querySelector('#search-type').value = 'ATTRIBUTES_MODIFIED'")
    browser.click("#search")
    browser.until("document.querySelectorAll('#events li').length === 1")
    browser.click("#events li button")
    cells = "[...row.children].map((cell) => cell.innerText)"
    rows = browser.ask(f"[...document.querySelectorAll('#event tbody tr')].map((row) => {cells})")
    browser.click("#event .contents > :last-child button")
    until(lambda: any(each.read_bytes() == content for each in tmp_path.glob("*order.csv")), "the download")
    browser.click("#replay")
    browser.until("document.querySelector('#replay-answer .good')")

    assert ["checked", "\N{EN DASH}", "yes", "added"] in rows
    assert ["filename", "order.csv", "order.csv", "same"] in rows
    assert running.client.get("/v1/queues/inbox").json()["flow_files"] == 2


def test_a_fork_is_drawn_as_one(running: Running, browser: Browser) -> None:
    """Each child has a lane of its own, and a line to it from the event that made it."""
    with committing(running.repository) as session:
        whole = session.create(attributes={"filename": "batch.zip"})
        session.write(whole, b"abc")
        session.transfer(whole, "inbox")
    with committing(running.repository) as session:
        (whole,) = session.get_many("inbox", 1)
        parts = [session.clone(whole, start, 1) for start in range(3)]
        for part in parts:
            session.transfer(part, "parts")
        session.remove(whole)
    with committing(running.repository) as session:
        for part in session.get_many("parts", 3):
            session.remove(part)
    graph = running.client.get(f"/v1/provenance/lineage/{whole.id}").json()
    browser.open(running.url)

    browser.click("#search")
    show_lineage(browser, "li:last-child")
    lanes = browser.ask("[...document.querySelectorAll('.graph circle')].map((each) => each.getAttribute('cx'))")

    events = sorted(graph["events"], key=lambda event: event["sequence"])
    files = [event["flow_file"] for event in events]
    assert len(set(files)) > 1
    assert len(set(zip(files, lanes, strict=True))) == len(set(files)) == len(set(lanes))
    assert browser.ask("document.querySelectorAll('.graph path.link').length") == len(graph["links"])


def test_the_keyboard_alone_completes_a_dry_run_and_a_reclaim(filled: Running, browser: Browser) -> None:
    """Tab and Enter from the top of the page; the map is one stop, whatever its size."""
    browser.open(filled.url)
    browser.until(IS_FULL)
    first = browser.ask("document.querySelector('#map [role=option]').id")

    browser.tab_to(first)
    browser.key("ArrowRight")
    browser.key("Enter")
    browser.until("document.querySelector('#claim .strip')")
    browser.tab_to("dry-run")
    browser.key("Enter")
    browser.until("document.querySelector('#plan-frees')")
    browser.tab_to("reclaim")
    browser.key("Enter")
    browser.until("document.querySelector('#run-freed')")

    run = filled.client.get("/v1/reclamation/runs").json()[-1]
    assert run["report"]["freed_bytes"] == exact(browser, "#run-freed") > 0
    browser.until("document.activeElement.id === 'reclaim'")


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("view", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_nothing_keeps_people_from_using_it(
    filled: Running, browser: Browser, axe: str, view: tuple[int, int], is_dark: bool
) -> None:
    """axe-core finds no violation with everything open, and nothing is to be scrolled sideways."""
    browser.view(*view, dark=is_dark)
    browser.open(filled.url)
    open_everything(browser)
    browser.picture(PICTURES / f"{'phone' if view == PHONE else 'desktop'}-{'dark' if is_dark else 'light'}.png")

    assert violations(browser, axe) == []
    assert too_wide(browser) == []


def test_names_of_any_length_fit_on_a_phone(running: Running, browser: Browser) -> None:
    """The longest queue name and a long attribute without a space break; markup in them stays text."""
    name = "q" * 200
    with committing(running.repository) as session:
        flow_file = session.create(attributes={"filename": "<img src=x onerror=alert(1)>", "a" * 200: "v" * 4_000})
        session.write(flow_file, b"x")
        session.transfer(flow_file, name)
    browser.view(*PHONE)
    browser.open(running.url)
    browser.until(IS_FULL)
    browser.click("#search")
    show_lineage(browser)

    assert too_wide(browser) == []
    assert "<img src=x onerror=alert(1)>" in browser.text("#event")
    assert name in browser.text("#queues")


def test_outside_of_the_windows_the_page_says_so_and_can_override(tmp_path: Path, browser: Browser) -> None:
    """The refusal names the window; with the box ticked the run goes through."""
    document = document_at(tmp_path / "repository", **NO_ARCHIVE, maintenance={"windows": (CLOSED,)})
    with Running(document) as running:
        running.client.post("/v1/queues/dead/flowfiles", content=os.urandom(4 * MB))
        running.client.delete("/v1/queues/dead/flowfiles")
        browser.open(running.url)
        browser.until(IS_FULL)
        assert "never" in browser.text("#windows")
        browser.click("#dry-run")
        browser.click("#reclaim")
        browser.until("document.querySelector('#run .problem')")
        assert "window never" in browser.text("#run")

        browser.click("#override")
        browser.click("#reclaim")
        browser.until("document.querySelector('#run-freed')")

        browser.until("document.querySelector('#windows').innerText.includes('Last override')")


def test_a_token_is_asked_for_and_kept_in_memory_only(tmp_path: Path, browser: Browser, axe: str) -> None:
    """A wrong one is refused with the reason; the right one shows everything, and is gone after loading again."""
    token, digest = new_token()
    tokens = tmp_path / "tokens"
    tokens.write_text(line_of("operator", ("*",), None, digest), encoding="utf-8")
    auth = {"mode": AuthMode.TOKEN_FILE, "token_file": str(tokens)}
    with Running(document_at(tmp_path / "repository", auth=auth)) as running:
        browser.open(running.url)
        browser.until("document.activeElement.id === 'token'")
        assert violations(browser, axe) == []
        browser.type("ullage_wrong")
        browser.key("Enter")
        browser.until("document.querySelector('#trouble').checkVisibility()")
        assert not browser.ask("Boolean(document.querySelector('#board').checkVisibility())")
        browser.click("#token")
        browser.type(token)
        browser.key("Enter")
        browser.until(IS_FULL)
        kept = browser.ask("JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href])")

        assert token not in kept
        assert token not in browser.ask("document.documentElement.outerHTML")
        browser.open(running.url)
        browser.until("document.querySelector('#sign-in').checkVisibility()")
