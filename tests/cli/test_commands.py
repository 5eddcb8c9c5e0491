"""`ullage` as people and scripts use it: what goes in comes out, and every table has its JSON."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ullage.contract import ContentRepositorySpec, load_yaml
from ullage.engine.engine import Engine
from ullage_agent.cli.app import app
from ullage_agent.cli.output import size, visible

RUNNER = CliRunner(env={"ULLAGE_ROOT": None, "ULLAGE_CONFIG": None, "COLUMNS": "400"})
HEAD = "apiVersion: ullage.dev/v1alpha1\nkind: ContentRepository\nmetadata: {name: test}\n"


def ullage(*arguments: object, root: Path | None = None, stdin: bytes | None = None, expect: int = 0) -> Result:
    chosen = [] if root is None else ["--config", str(root.with_suffix(".yaml"))]
    result = RUNNER.invoke(app, [*map(str, arguments), *chosen], input=stdin)
    assert result.exit_code == expect, result.output
    return result


def ullage_json(*arguments: object, root: Path | None = None, expect: int = 0) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(ullage(*arguments, "--json", root=root, expect=expect).stdout)
    return document


def configure(root: Path, spec: str = "", capacity: str = "1Gi") -> Path:
    """Describe a repository with a quota, so that how full this machine's disk is decides nothing."""
    config = root.with_suffix(".yaml")
    config.write_text(
        f"{HEAD}spec:\n"
        f"  storage: {{hostPath: {{path: {root}}}, containers: [{{name: c1, subPath: c1, capacity: {capacity}}}]}}\n"
        f"{spec}"
    )
    return config


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    ullage("init", "--config", configure(root))
    return root


def spec_of(root: Path) -> ContentRepositorySpec:
    return load_yaml(root.with_suffix(".yaml").read_text()).spec


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Small files, an empty one, a large one, one with a name that is no UTF-8, and things that are no files."""
    top = tmp_path / "tree"
    (top / "sub").mkdir(parents=True)
    (top / "a.txt").write_bytes(b"a" * 100)
    (top / "b.txt").write_bytes(b"b" * 2_000)
    (top / "sub" / "a.txt").write_bytes(b"other")
    (top / "sub" / "empty").touch()
    (top / "sub" / "large.bin").write_bytes(os.urandom(3 << 20))
    Path(os.fsdecode(os.fsencode(top) + b"/caf\xe9")).write_bytes(b"latin")
    (top / "link").symlink_to(top / "a.txt")
    os.mkfifo(top / "pipe")
    return top


def put(root: Path, data: bytes, *options: object) -> str:
    """Store bytes through stdin; the uuid."""
    return ullage("put", "-", *options, root=root, stdin=data).stdout.split()[0]


def test_init_makes_a_repository_and_names_it(tmp_path: Path) -> None:
    """`init` says which repository it made, and a survey of it names the same one."""
    made = ullage_json("init", "--root", tmp_path / "new")

    assert made["root"] == str(tmp_path / "new")
    assert ullage_json("survey", "--root", tmp_path / "new")["repository"] == made["repository"]


def test_many_small_files_share_a_commit(root: Path, tmp_path: Path) -> None:
    """Fifty small files are one transaction, not fifty."""
    for number in range(50):
        (tmp_path / f"{number}.txt").write_text(str(number))

    stored = ullage_json("put", *sorted(tmp_path.glob("*.txt")), root=root)

    assert (stored["count"], stored["commits"]) == (50, 1)


def test_a_repository_below_the_tree_does_not_swallow_itself(root: Path) -> None:
    """The repository's own files are left out when the tree that holds it is put."""
    (root.parent / "one.txt").write_bytes(b"one")

    stored = ullage_json("put", root.parent, root=root)

    assert {Path(item["source"]).name for item in stored["items"]} == {"one.txt", "repository.yaml"}


def test_attributes_are_kept(root: Path) -> None:
    """What --attribute says is on the FlowFile, and wins over what the file says."""
    put(root, b"x", "-a", "filename=x.csv", "-a", "kind=a=b")

    listed = ullage_json("ls", "flowfiles", root=root)["flowfiles"]
    assert listed[0]["attributes"] == {"uuid": listed[0]["id"], "filename": "x.csv", "path": "./", "kind": "a=b"}


@pytest.mark.parametrize("length", [0, 1, 300_000, 3 << 20])
@pytest.mark.parametrize("option", ["--queue=q", "--handle"])
def test_content_of_any_size_reads_back(root: Path, length: int, option: str) -> None:
    """What came in by stdin is what `get` writes to stdout, for FlowFiles and handles alike."""
    data = os.urandom(length)
    uuid = put(root, data, option)

    assert ullage("get", uuid, root=root).stdout_bytes == data


@pytest.mark.parametrize("option", ["--queue=q", "--handle"])
def test_a_range_is_a_part_of_the_content(root: Path, option: str) -> None:
    """START:LENGTH reads exactly these bytes, START: to the end, also across the blocks of a large content."""
    data = os.urandom(2 << 20)
    uuid = put(root, data, option)

    assert ullage("get", uuid, "--range", "262100:1000", root=root).stdout_bytes == data[262_100:263_100]
    assert ullage("get", uuid, "--range", f"{len(data) - 5}:", root=root).stdout_bytes == data[-5:]
    assert ullage("get", uuid, "--range", f"{len(data)}:", root=root).stdout_bytes == b""
    assert ullage("get", uuid, "--range", f"{len(data)}:1", root=root, expect=2).stdout_bytes == b""


def test_a_file_gets_its_name_only_when_it_is_whole(root: Path, tmp_path: Path) -> None:
    """`get -o` leaves no file behind when the content turns out to be damaged."""
    uuid = put(root, b"content")
    file = next(path for path in root.glob("c1/*/*") if path.is_file())
    file.write_bytes(b"CONTENT")

    ullage("get", uuid, "-o", tmp_path / "out.bin", root=root, expect=4)

    assert not list(tmp_path.glob("out.bin*"))


def test_what_is_no_file_is_written_into_and_a_link_stays_one(root: Path, tmp_path: Path) -> None:
    """A rename would put a file in place of a device, of a pipe that somebody reads, or of a link."""
    uuid, pipe, link = put(root, b"content"), tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to("target")
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    ullage("get", uuid, "-o", pipe, root=root)
    ullage("get", uuid, "-o", link, root=root)
    ullage("get", uuid, "-o", tmp_path, root=root, expect=2)

    assert (os.read(reading, 100), pipe.is_fifo()) == (b"content", True)
    assert ((tmp_path / "target").read_bytes(), link.is_symlink()) == (b"content", True)
    os.close(reading)


def test_files_from_a_queue_never_leave_the_directory_nor_replace_others(root: Path, tmp_path: Path) -> None:
    """A FlowFile's path and filename cannot lead out of the directory, and a taken name gets the uuid behind it."""
    for path in ("../../", "/etc/", "./"):
        put(root, path.encode(), "-a", "filename=../same", "-a", f"path={path}")

    ullage("get", "--queue", "inbox", "--count", 3, "--output", tmp_path / "deep" / "out", root=root)

    found = [path for path in (tmp_path / "deep").rglob("*") if path.is_file()]
    assert sorted(path.read_bytes() for path in found) == [b"../../", b"./", b"/etc/"]
    assert {path.parent for path in found} == {tmp_path / "deep" / "out"}
    assert not (tmp_path / "same").exists()


def test_what_is_not_taken_stays_in_the_queue(root: Path, tmp_path: Path) -> None:
    """`get --queue` takes the first FlowFiles in order and leaves the others."""
    for data in (b"1", b"2", b"3"):
        put(root, data, "-a", f"filename={data.decode()}")

    taken = ullage_json("get", "-q", "inbox", "-n", 2, "-o", tmp_path / "out", root=root)

    assert [Path(item["file"]).name for item in taken["flow_files"]] == ["1", "2"]
    assert [item["attributes"]["filename"] for item in ullage_json("ls", "-q", "inbox", root=root)["flowfiles"]] == [
        "3"
    ]


def test_a_swapped_out_flow_file_is_listed_and_read(tmp_path: Path) -> None:
    """FlowFiles in swap files are counted, listed and found by uuid like those in memory, large ones too."""
    config = configure(tmp_path / "swapping", "  flowFile: {swapThreshold: 2, swapBatch: 2}\n")
    ullage("init", "--config", config)
    contents = [os.urandom(300_000) for _ in range(6)]
    uuids = [ullage("put", "-", "-c", config, stdin=data).stdout.split()[0] for data in contents]

    queue = ullage_json("ls", "-c", config)["queues"][0]
    listed = ullage_json("ls", "flowfiles", "-c", config)["flowfiles"]

    assert (queue["flow_files"], queue["swapped"] > 0) == (6, True)
    assert {item["id"] for item in listed} == set(uuids)
    for uuid, data in zip(uuids, contents, strict=True):
        assert ullage("get", uuid, "-c", config).stdout_bytes == data


def test_space_of_a_dead_tail_comes_back(root: Path, tree: Path) -> None:
    """Drop the large file behind small ones: the survey shows its bytes as a tail, `truncate` frees exactly these."""
    small = put(root, b"s" * 1_000, "-q", "small")
    (tree / "sub" / "large.bin").rename(tree / "large.bin")
    ullage("put", tree / "a.txt", "-q", "small", root=root)
    with Engine.open(spec_of(root)) as repository, repository.session() as session:
        session.ingest("small", [b"first"])
        large = session.write(session.create(), io.BytesIO(bytes(1 << 20)))
        session.transfer(large, "large")
        session.commit()
    ullage("drop", "large", "--yes", root=root)

    before = ullage_json("survey", root=root)["totals"]
    plan = ullage_json("truncate", "--dry-run", root=root)
    report = ullage_json("truncate", root=root)
    after = ullage_json("survey", root=root)["totals"]

    assert before["dead_tail_bytes"] == plan["frees_bytes"] == report["freed_bytes"] >= 1 << 20
    assert [step["action"] for step in plan["steps"]] == ["truncate"]
    assert after["disk_bytes"] == before["disk_bytes"] - report["freed_bytes"]
    assert after["live_bytes"] == before["live_bytes"]
    assert ullage("get", small, root=root).stdout_bytes == b"s" * 1_000


def test_truncation_can_wait_for_its_threshold(root: Path) -> None:
    """With --respect-threshold an almost empty container is left alone, and the reason is given."""
    with Engine.open(spec_of(root)) as repository, repository.session() as session:
        session.ingest("small", [b"first"])
        session.ingest("large", [bytes(200_000)])
        session.commit()
    ullage("drop", "large", "--yes", root=root)

    waiting = ullage_json("truncate", "--respect-threshold", "--dry-run", root=root)

    assert waiting["steps"] == []
    assert "threshold" in waiting["reason"]
    assert "1 dead tails" in waiting["notes"][0]
    assert "left for later" in ullage("truncate", "--respect-threshold", root=root).stdout


def test_clean_takes_away_what_nobody_uses(root: Path) -> None:
    """Content without claimants leaves the live directories: into the archive, or off the disk."""
    put(root, bytes(200_000))
    ullage("drop", "inbox", "--yes", root=root)

    assert ullage_json("survey", root=root)["totals"]["unused_bytes"] == 200_704

    cleaned = ullage_json("clean", root=root)

    assert cleaned["report"]["done"]["archive"] == 1
    assert ullage_json("survey", root=root)["totals"]["unused_bytes"] == 0


def test_clean_takes_orphans_only_when_asked(root: Path) -> None:
    """A content file that a crash left behind stays until --orphans, and then goes like other dead content."""
    put(root, b"content")
    orphan = root / "c1" / "2" / "1700000000000-2"
    orphan.parent.mkdir()
    orphan.write_bytes(b"never committed")

    assert ullage_json("clean", root=root)["adopted_orphans"] == 0
    assert ullage_json("check", root=root)["orphans"] == [str(orphan)]
    assert ullage_json("clean", "--orphans", root=root)["adopted_orphans"] == 1
    assert ullage_json("check", "--deep", root=root)["orphans"] == []


def test_check_reports_damage(root: Path) -> None:
    """A flipped byte is found by `check --deep`, with exit code 1; a stray file is an orphan and no problem."""
    put(root, b"content")
    file = next(path for path in root.glob("c1/*/*") if path.is_file())
    (file.parent / "1-999999").write_bytes(b"stray")

    clean = ullage_json("check", "--deep", root=root)
    file.write_bytes(b"cOntent")
    damaged = ullage_json("check", "--deep", root=root, expect=1)

    assert (clean["problems"], clean["flow_files"], clean["bytes_verified"]) == ([], 1, 7)
    assert clean["orphans"] == [str(file.parent / "1-999999")]
    assert len(damaged["problems"]) == 1
    assert "checksum" in ullage("check", "--deep", root=root, expect=1).stdout


def test_checkpoint_covers_everything(root: Path) -> None:
    """After a checkpoint the snapshot reaches the last transaction."""
    put(root, b"x")

    first = ullage_json("checkpoint", root=root)
    put(root, b"y")
    second = ullage_json("checkpoint", root=root)

    assert second["last_transaction"] > first["last_transaction"] > 0


@pytest.mark.parametrize("kind", ["queues", "flowfiles", "resource-claims", "handles"])
def test_every_listing_is_a_table_and_json(root: Path, kind: str) -> None:
    """Each kind is listed for people and as one document; --limit cuts both, and that is said."""
    for number in range(3):
        put(root, bytes(60_000), "-q", f"q{number}")
        put(root, bytes(60_000), "--handle")

    document = ullage_json("ls", kind, "--limit", 1, root=root)

    assert len(document[kind.replace("-", "_")]) == 1
    assert document["is_cut"]
    table = ullage("ls", kind, "--limit", 1, root=root)
    assert len(table.stdout.rstrip().splitlines()) == 3
    assert "--limit 0" in table.stderr


def test_names_from_outside_reach_no_terminal_as_commands(root: Path) -> None:
    """Markup and escape sequences in a file's name are shown as text."""
    put(root, b"x", "-a", "filename=[red]a\x1b[31m:smile:")

    shown = ullage("ls", "flowfiles", root=root).stdout

    assert "[red]a\N{REPLACEMENT CHARACTER}[31m:smile:" in shown
    assert visible("a\x07\nb") == "a\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}b"


def test_the_repository_can_be_chosen_by_environment(root: Path, tmp_path: Path) -> None:
    """ULLAGE_ROOT chooses a repository, and the command line wins over it."""
    environment = {"ULLAGE_ROOT": str(root)}

    assert RUNNER.invoke(app, ["ls"], env=environment).exit_code == 0
    assert RUNNER.invoke(app, ["ls", "--root", str(tmp_path / "none")], env=environment).exit_code == 4
    config = tmp_path / "nothing.yaml"
    config.write_text("kind: Nothing\n")
    assert RUNNER.invoke(app, ["ls", "--config", str(config)], env=environment).exit_code == 2


def test_an_unclean_end_is_mentioned_once(root: Path) -> None:
    """A command that has to recover says so on stderr; the next one has nothing to say."""
    writer = (
        "import os, sys\nfrom ullage.contract.repository import load_yaml\n"
        "from ullage.engine.engine import Engine\n"
        "session = Engine.open(load_yaml(open(sys.argv[1]).read()).spec).session()\n"
        "session.ingest('inbox', [b'x'])\nsession.commit()\nos._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", writer, str(root.with_suffix(".yaml"))], check=True)

    assert "recovered" in ullage("ls", root=root).stderr
    assert ullage("ls", root=root).stderr == ""


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (102_348, "99.9 KiB"),
        (102_400, "100 KiB"),
        (1_048_575, "1.0 MiB"),
        (1 << 60, "1.0 EiB"),
    ],
)
def test_sizes_are_short(count: int, text: str) -> None:
    """Sizes for people have three digits and a binary unit."""
    assert size(count) == text


def test_what_cannot_be_read_is_listed_retried_and_dropped(root: Path, tmp_path: Path) -> None:
    """Found by a deep check, known from then on; back after its file was mended; dropped with its loss accepted."""
    for name in ("first.txt", "second.txt"):
        (tmp_path / name).write_bytes(name.encode() * 10)
        ullage("put", "--queue", "in", tmp_path / name, root=root)
    files = {each: each.read_bytes() for each in root.glob("c1/*/*") if each.is_file()}

    def spoil() -> None:
        for path, whole in files.items():
            path.write_bytes(whole.replace(b"first", b"FIRST").replace(b"second", b"SECOND"))

    spoil()
    deep = ullage("check", "--deep", root=root, expect=1).stdout
    assert all(f"{name}') of queue in is unavailable" in deep for name in ("first.txt", "second.txt"))
    listed = ullage_json("ls", "--unavailable", root=root)["unavailable"]
    assert [(each["filename"], each["queue"]) for each in listed] == [("first.txt", "in"), ("second.txt", "in")]
    assert "do not match their checksum" in ullage("ls", "--unavailable", root=root).stdout

    for path, whole in files.items():
        path.write_bytes(whole)
    assert "0 contents and 0 swap files still unavailable" in ullage("unavailable", "retry", root=root).stdout
    assert ullage_json("ls", "--unavailable", root=root)["unavailable"] == []

    spoil()
    ids = [each["id"] for each in listed]
    assert "--accept-loss" in ullage("unavailable", "drop", *ids, root=root, expect=2).output
    assert ullage_json("unavailable", "drop", *ids, "--accept-loss", root=root) == {"dropped": 0}  # nobody has met it
    ullage("check", "--deep", root=root, expect=1)
    assert ullage_json("unavailable", "drop", *ids, "--accept-loss", root=root) == {"dropped": 2}
    ullage("check", "--deep", root=root)


def test_what_a_missing_file_took_is_named_at_once(root: Path, tmp_path: Path) -> None:
    """Without a deep check: that a file is gone takes no reading."""
    (tmp_path / "gone.txt").write_bytes(b"gone")
    ullage("put", "--queue", "in", tmp_path / "gone.txt", root=root)
    for path in root.glob("c1/*/*"):
        path.unlink()

    checked = ullage("check", root=root, expect=1).stdout
    assert "('gone.txt') of queue in is unavailable" in checked
    assert [each["filename"] for each in ullage_json("ls", "--unavailable", root=root)["unavailable"]] == ["gone.txt"]
