"""Whole trees: `put --tree` keeps them, `get --tree` brings them back equal, and none leads out of its directory."""

import email
import os
import re
import shutil
import stat
import subprocess
from contextlib import closing, suppress
from pathlib import Path

import pytest
from click.testing import Result

from tests.cli.test_commands import configure, put, root as root, ullage, ullage_json
from ullage.beneath import opened_folder
from ullage_agent.cli.exits import ExitCode
from ullage_agent.cli.filefacts import MODIFIED, PERMISSIONS, FileType, attributes_of, facts_of
from ullage_agent.cli.get import BATCH_FLOW_FILES
from ullage_agent.cli.interrupts import interrupts
from ullage_agent.cli.newfiles import TreeFiles, TreeSoFar, tree_place_of
from ullage_agent.cli.sources import SourceUnreadable, Target, pieces_of_source
from ullage_agent.cli.trees import WantedOfTree, walk

OLD_NANOS = 981_173_106_123_456_789


def raw(directory: Path, name: bytes) -> Path:
    """A path with a name of any bytes."""
    return Path(os.fsdecode(os.fsencode(directory) + b"/" + name))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A real tree of programs, with all that a tree may have besides."""
    top = tmp_path / "source"
    shutil.copytree(Path(email.__file__).parent, top)
    (top / "deep" / "er").mkdir(parents=True)
    (top / "empty").mkdir()
    (top / ".hidden").write_bytes(b"hidden")
    raw(top, b"caf\xe9\n").write_bytes(b"no UTF-8, and a line's end")
    raw(top, b"dir\xff").mkdir()
    (raw(top, b"dir\xff") / "below").write_bytes(b"below")
    (top / "link").symlink_to("deep/nowhere")
    (top / "round").symlink_to(".")
    (top / "program").write_bytes(b"#!/bin/sh\n")
    (top / "program").chmod(0o4751)
    os.utime(top / "program", ns=(OLD_NANOS, OLD_NANOS))
    os.utime(top / "link", ns=(OLD_NANOS, OLD_NANOS), follow_symlinks=False)
    (top / "deep" / "er").chmod(0o500)
    for directory in (top / "deep" / "er", top / "deep", top / "empty", top):
        os.utime(directory, ns=(OLD_NANOS, OLD_NANOS))
    return top


def listed(top: Path) -> dict[str, tuple[object, ...]]:
    """Everything below a directory, and itself: what two trees must have alike."""
    found: dict[str, tuple[object, ...]] = {}
    for path in (top, *top.rglob("*")):
        status = path.lstat()
        held: object = None
        if stat.S_ISLNK(status.st_mode):
            held = os.readlink(path)
        elif stat.S_ISREG(status.st_mode):
            held = path.read_bytes()
        shown = (stat.filemode(status.st_mode), status.st_mtime_ns, status.st_uid, status.st_gid, held)
        found[str(path.relative_to(top))] = shown
    return found


def test_a_tree_comes_back_as_it_was(root: Path, source: Path, tmp_path: Path) -> None:
    """Contents, names of any bytes, links, empty directories, permissions, times to the nanosecond, owners."""
    ullage("put", "--tree", "-q", "tree", source, root=root)

    ullage("get", "--tree", "-q", "tree", "-o", tmp_path / "back", root=root)

    assert listed(tmp_path / "back") == listed(source)
    assert len(listed(source)) > 30


if shutil.which("rsync"):  # tools/ci-packages installs it

    def test_rsync_finds_nothing_to_do_between_a_tree_and_what_came_back(
        root: Path, source: Path, tmp_path: Path
    ) -> None:
        """The judge that others use: it would name each file that differs in content, kind, time, mode or owner."""
        ullage("put", "--tree", "-q", "tree", source, root=root)
        ullage("get", "--tree", "-q", "tree", "-o", tmp_path / "back", root=root)

        compare = ["rsync", "--archive", "--checksum", "--delete", "--dry-run", "--itemize-changes"]
        told = subprocess.run([*compare, f"{source}/", f"{tmp_path / 'back'}/"], capture_output=True, check=True)

        assert told.stdout == b""


def test_without_tree_links_and_special_files_are_refused_by_name(root: Path, tmp_path: Path) -> None:
    """What is not stored is said, and is the exit code: nobody believes that it is safe."""
    top = tmp_path / "top"
    top.mkdir()
    (top / "file").write_bytes(b"kept")
    (top / "link").symlink_to("file")
    os.mkfifo(top / "pipe")

    found = ullage_json("put", top, root=root, expect=ExitCode.USAGE)
    followed = ullage_json("put", "--follow", "-q", "followed", top, root=root, expect=ExitCode.USAGE)

    assert found["count"] == 1
    assert [each.partition(": ")[0] for each in found["skipped"]] == [str(top / "link"), str(top / "pipe")]
    assert "--follow" in found["skipped"][0]
    assert [Path(each["source"]).name for each in followed["items"]] == ["file", "link"]


def test_many_reasons_are_counted_rather_than_all_told(root: Path, tmp_path: Path) -> None:
    """Twenty are named on stderr, and how many more there are; JSON names each."""
    (tmp_path / "top").mkdir()
    for number in range(30):
        (tmp_path / "top" / f"{number}").symlink_to("nowhere")

    result = ullage("put", tmp_path / "top", "--json", root=root, expect=ExitCode.USAGE)

    assert result.stderr.count("a symbolic link") == 20
    assert "10 more, 30 in all" in result.stderr
    assert result.stdout.count("a symbolic link") == 30


def test_links_that_are_followed_in_a_circle_end(root: Path, tmp_path: Path) -> None:
    """Each directory is walked into once on a way down, and the link that leads back up is told."""
    (tmp_path / "top" / "below").mkdir(parents=True)
    (tmp_path / "top" / "below" / "up").symlink_to("..")

    found = ullage_json("put", "--follow", "--tree", tmp_path / "top", root=root, expect=ExitCode.USAGE)

    assert found["skipped"] == [f"{tmp_path / 'top/below/up'}: a link that leads to a directory above it"]


def test_sync_puts_only_what_is_new_or_has_changed(root: Path, source: Path, tmp_path: Path) -> None:
    """By path, size, time, permissions and owner; and of two versions the later one comes back."""
    everything = ullage_json("put", "--tree", "-q", "tree", source, root=root)["count"]
    before = (source / "header.py").stat()
    (source / "header.py").write_bytes(b"x" * before.st_size)  # of the same size: its time tells
    (source / "new").write_bytes(b"new")
    os.utime(source, ns=(OLD_NANOS, OLD_NANOS))

    result = ullage("put", "--tree", "--sync", "-q", "tree", source, "--json", root=root)
    again = ullage_json("put", "--tree", "--sync", "-q", "tree", source, root=root)
    ullage("get", "--tree", "-q", "tree", "-o", tmp_path / "back", root=root)

    assert "1 file had changed" in result.stderr
    assert '"count": 2,' in result.stdout
    assert (again["count"], again["unchanged"]) == (0, everything + 1)
    assert listed(tmp_path / "back") == listed(source)


def test_a_put_that_is_interrupted_says_what_was_stored_and_goes_on_with_sync(
    root: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C after the first commit: its files are named by number, and the next put adds the others."""
    monkeypatch.setattr("ullage_agent.cli.sources.BATCH_FILES", 10)
    note = Target._note

    def noted(target: Target, stored: list[object]) -> None:
        interrupts.is_pending = True
        note(target, stored)  # type: ignore[arg-type]

    with monkeypatch.context() as pressed:
        pressed.setattr(Target, "_note", noted)
        result = ullage("put", "--tree", "-q", "tree", source, root=root, expect=ExitCode.INTERRUPTED)
    again = ullage_json("put", "--tree", "--sync", "-q", "tree", source, root=root)

    assert "10 files had been stored before and stay" in result.stderr
    assert again["unchanged"] == 10
    assert again["count"] + 10 == len(listed(source))


def test_a_queue_without_room_for_all_gets_nothing(tmp_path: Path) -> None:
    """The limit is told before the work: not after some thousand files, to be sorted out by hand."""
    root = tmp_path / "repository"
    ullage("init", "--config", configure(root, "  flowFile: {queueDefaults: {maxCount: 3, maxSize: 1Ki}}\n"))
    for number in range(5):
        (tmp_path / f"{number}.txt").write_bytes(b"x" * 400)

    def told(*arguments: object) -> Result:
        return ullage("put", *arguments, root=root, expect=ExitCode.NO_ROOM)

    many, large = told(*tmp_path.glob("*.txt")), [tmp_path / f"{number}.txt" for number in (0, 1, 2)]
    assert "room for 3 FlowFiles more" in many.stderr
    assert ullage_json("ls", root=root)["queues"][0]["flow_files"] == 0

    ullage("put", *large, root=root)
    assert "--force" in told(tmp_path / "4.txt").stderr
    assert ullage_json("put", "--force", *tmp_path.glob("*.txt"), root=root)["count"] == 5


def entry(root: Path, content: bytes, **attributes: str) -> str:
    """A FlowFile of queue `inbox` with these attributes, `_` for a dot in their names."""
    options = [part for name, value in attributes.items() for part in ("-a", f"{name.replace('_', '.')}={value}")]
    return put(root, content, *options)


def test_what_strangers_put_leads_nowhere(root: Path, tmp_path: Path) -> None:
    """Neither `..`, nor an absolute path, nor a link that came first: all lands in the directory."""
    out, outside = tmp_path / "out", tmp_path / "outside"
    outside.mkdir()
    entry(root, str(outside).encode(), filename="way", file_type="link")
    for attributes in (
        {"filename": "x", "path": "./way/"},
        {"filename": "x", "path": "../outside/"},
        {"filename": "x", "path": str(outside)},
        {"filename": "y", "file.path.encoded": "..%2Foutside%2Fy"},
        {"filename": "y", "file.path.encoded": "%2Ftmp%2Fy%00"},
        {"filename": "way", "file.type": "directory", "file.permissions": "rwxrwxrwx"},
        {"filename": "..", "file.type": "directory", "file.permissions": "---------"},
        {"filename": "z", "file.owner": "9" * 5_000},
        {"filename": "", "file.type": "device"},
        {"filename": "long" * 100, "path": "./" + "d/" * 2_000},
    ):
        entry(root, b"" if "directory" in attributes.values() else b"hostile", **attributes)
    mode = outside.stat().st_mode

    ullage("get", "--tree", "-q", "inbox", "-o", out, root=root)

    assert list(outside.iterdir()) == []
    assert outside.stat().st_mode == mode
    assert tmp_path.stat().st_mode & 0o700 == 0o700
    assert (out / "way").is_symlink()
    assert all(path.parent == out for path in out.rglob("*"))


def test_a_get_that_was_killed_goes_on_without_copies(root: Path, source: Path, tmp_path: Path) -> None:
    """Its last files are there, and their FlowFiles still in the queue: what is the same is not kept twice."""
    ullage("put", "--tree", "-q", "tree", source, root=root)
    (tmp_path / "back").mkdir()
    for name in ("header.py", "parser.py"):
        shutil.copy2(source / name, tmp_path / "back" / name)
    (tmp_path / "back" / "round").symlink_to(".")

    ullage("get", "--tree", "-q", "tree", "-o", tmp_path / "back", root=root)

    assert listed(tmp_path / "back") == listed(source)


def test_of_two_trees_in_a_queue_both_files_stay(root: Path, tmp_path: Path) -> None:
    """A name that both have is no later version of the other's; nor are files that came from nowhere."""
    for tree in ("one", "two"):
        (tmp_path / tree).mkdir()
        (tmp_path / tree / "same").write_bytes(tree.encode())
    ullage("put", "--tree", tmp_path / "one", tmp_path / "two", root=root)
    for content in (b"three", b"four"):
        entry(root, content, filename="alone")

    ullage("get", "--tree", "-q", "inbox", "-o", tmp_path / "out", root=root)

    found = sorted(path.read_bytes() for path in (tmp_path / "out").iterdir())
    assert found == [b"four", b"one", b"three", b"two"]


def test_sync_compares_with_the_newest_version(root: Path, source: Path, tmp_path: Path) -> None:
    """What was changed and changed back is put again: what stands last in the queue is what comes back."""
    for mode in (0o600, 0o640, 0o600):
        (source / "header.py").chmod(mode)
        ullage("put", "--tree", "--sync", "-q", "tree", source, root=root)

    ullage("get", "--tree", "-q", "tree", "-o", tmp_path / "back", root=root)

    assert listed(tmp_path / "back") == listed(source)


def test_what_others_made_there_before_stays(root: Path, source: Path, tmp_path: Path) -> None:
    """A file with other bytes, a link and a directory of a file's name: the new ones have their uuid behind it."""
    back = tmp_path / "back"
    (back / "parser.py").mkdir(parents=True)
    (back / "header.py").write_bytes(b"theirs")
    (back / "utils.py").symlink_to(tmp_path / "elsewhere")
    ullage("put", "--tree", "-q", "tree", source, root=root)

    ullage("get", "--tree", "-q", "tree", "-o", back, root=root)

    assert (back / "header.py").read_bytes() == b"theirs"
    assert not (tmp_path / "elsewhere").exists()
    for name in ("header.py", "parser.py", "utils.py"):
        (found,) = back.glob(f"{name}.*")
        assert found.read_bytes() == (source / name).read_bytes()


def test_what_others_made_there_of_the_same_bytes_stays_theirs(root: Path, source: Path, tmp_path: Path) -> None:
    """Its permissions, its time and its other names: one that differs in these has the tree's beside it."""
    back = tmp_path / "back"
    back.mkdir()
    for name in ("header.py", "parser.py"):
        shutil.copy2(source / name, back / name)
        os.link(back / name, tmp_path / name)
    (back / "header.py").chmod(0o604)
    (back / "round").symlink_to(".")
    names = ["header.py", "parser.py"]
    if os.geteuid() == 0:
        os.chown(back / "round", 12, 12, follow_symlinks=False)
        names.append("round")
    before = {name: os.lstat(back / name) for name in names}
    ullage("put", "--tree", "-q", "tree", source, root=root)
    (source / "parser.py").write_bytes(b"a later version")
    ullage("put", "--tree", "--sync", "-q", "tree", source, root=root)

    ullage("get", "--tree", "-q", "tree", "-o", back, root=root)

    for name, found in before.items():
        now = os.lstat(back / name)
        assert (now.st_ino, now.st_mode, now.st_mtime_ns, now.st_uid, now.st_nlink) == (
            found.st_ino,
            found.st_mode,
            found.st_mtime_ns,
            found.st_uid,
            found.st_nlink,
        )
    for name in ("header.py", "parser.py"):
        (beside,) = back.glob(f"{name}.*")
        assert beside.read_bytes() == (source / name).read_bytes()


def test_what_became_a_directory_between_two_puts_is_one(root: Path, tmp_path: Path) -> None:
    """The file that it was is an earlier version of it: its place is free, and nothing lands elsewhere."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "x").write_bytes(b"file")
    (source / "y").write_bytes(b"file")
    ullage("put", "--tree", "-q", "tree", source, root=root)
    for name in "xy":
        (source / name).unlink()
        (source / name).mkdir()
    (source / "x" / "below").write_bytes(b"content")
    for number in range(BATCH_FLOW_FILES):  # the file has lost its name by now, and its number may be the directory's
        (source / "w" / str(number)).mkdir(parents=True)
    (source / "x" / "last").write_bytes(b"content")
    ullage("put", "--tree", "--sync", "-q", "tree", source, root=root)

    ullage("get", "--tree", "-q", "tree", "-o", tmp_path / "back", root=root)

    assert listed(tmp_path / "back") == listed(source)


def test_sync_knows_what_was_put_with_attributes_of_its_own(root: Path, source: Path) -> None:
    """A name that was given instead of the file's own is where it comes back, the next time, too."""
    for count in (1, 0):
        told = ullage_json("put", "--sync", source / "header.py", "-a", "filename=given", root=root)
        assert (told["count"], told["unchanged"]) == (count, 1 - count)


def test_a_tree_is_as_deep_as_a_path_can_be() -> None:
    """Linux takes 4,096 bytes: a directory for every two of them."""
    path = "d/" * 2_047
    assert tree_place_of({"filename": "f", "path": path}, "id") == (("d",) * 2_047, "f")


def test_a_file_that_is_a_link_or_a_pipe_by_now_is_skipped(tmp_path: Path) -> None:
    """Where others write into the tree that is put, what one found is not what one opens."""
    for name in ("swapped", "pipe"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "secret").write_bytes(b"secret")
    found = {Path(each.path).name: each for each in walk(str(tmp_path), "", [])}
    (tmp_path / "swapped").unlink()
    (tmp_path / "swapped").symlink_to("secret")
    (tmp_path / "pipe").unlink()
    os.mkfifo(tmp_path / "pipe")

    for name in ("swapped", "pipe"):
        with pytest.raises(SourceUnreadable, match=name):
            list(pieces_of_source(found[name], lambda count: None))


@pytest.mark.parametrize("said", ["{}", ".", "./", "../top", "../top/../top/"])
def test_a_directory_that_is_a_link_by_now_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    """Above a file that was found, and where a directory was: what is read lies below the top, or is named."""
    top, outside = tmp_path / "top", tmp_path / "outside"
    for directory in (top / "a", top / "b", outside):
        directory.mkdir(parents=True)
        (directory / "file").write_bytes(directory.name.encode())
        (directory / "link").symlink_to("file")
    monkeypatch.chdir(top)
    said, skipped = said.format(top), list[str]()
    walking = walk(said, "", skipped, WantedOfTree(whole=True))
    found = [next(walking), next(walking)]
    assert [b"".join(pieces_of_source(each, lambda count: None)) for each in found] == [b"a", b"file"]
    for name in ("a", "b"):
        (top / name).rename(top / f"was {name}")
        (top / name).symlink_to(outside)

    left = list(walking)

    assert [each.path for each in left] == [os.path.join(said, "a"), said]
    assert skipped == [f"{os.path.join(said, 'b')}: a link or a file lies where a folder should be"]
    for each in found:
        with pytest.raises(SourceUnreadable, match=f"{re.escape(each.path)}: a link or a file lies"):
            list(pieces_of_source(each, lambda count: None))


def test_a_directory_that_was_there_keeps_its_permissions(root: Path, source: Path, tmp_path: Path) -> None:
    """It may be /srv, or shared by many. One that get makes is the tree's top."""
    source.chmod(0o2750)
    for name in ("there", "new"):
        ullage("put", "--tree", "-q", "tree", source, root=root)
        if name == "there":
            (tmp_path / name).mkdir(mode=0o711)
        ullage("get", "--tree", "-q", "tree", "-o", tmp_path / name, root=root)

    assert stat.S_IMODE((tmp_path / "there").stat().st_mode) == 0o711
    assert listed(tmp_path / "new") == listed(source)


def test_directories_that_a_get_has_closed_are_filled_further_by_their_owner(tmp_path: Path) -> None:
    """One that nobody may write into, with a later version of its file in the next batch; and one of no FlowFile."""

    def get() -> None:
        known = TreeSoFar()
        known.make_top("out")
        with opened_folder("out") as folder:
            for content in (b"old", b"new"):
                with closing(TreeFiles(folder, "out", known)) as files:
                    for path in ("./d/e", "./f"):
                        said = {"path": path, "filename": "x", "absolute.path": "/from/"}
                        files.take(said, content.hex(), 3, [content])
                    assert stat.S_IMODE(os.stat("out/f").st_mode) == 0o700
                    for name in ("d/e", "d", "."):
                        said = {"filename": name, "file.type": "directory", "file.permissions": "r-xr-xr-x"}
                        files.take({"path": "", **said}, "id", 0, [])
                    files.sync_names()
                assert stat.S_IMODE(os.stat("out/d/e").st_mode) == 0o555
            known.end(folder)

    tmp_path.chmod(0o777)
    if (child := os.fork()) == 0:
        with suppress(BaseException):  # the parent tells
            os.chdir(tmp_path)
            os.umask(0o022)
            with suppress(PermissionError):  # who is not root already is bound by permissions
                os.setuid(4_242)
            get()
            os._exit(0)
        os._exit(1)

    assert os.waitpid(child, 0)[1] == 0
    assert (tmp_path / "out" / "d" / "e" / "x").read_bytes() == b"new"
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "out").iterdir()} == {
        "d": 0o555,
        "f": 0o700,  # nothing is known of it
    }


def test_sync_of_a_tree_takes_what_was_put_of_a_part_of_it(root: Path, source: Path, tmp_path: Path) -> None:
    """It would come back at the wrong place."""
    ullage("put", "--tree", "-q", "tree", source / "deep", root=root)
    ullage("put", "--tree", "--sync", "-q", "tree", source, root=root)

    ullage("get", "--tree", "-q", "tree", "-o", tmp_path / "back", root=root)

    assert {*listed(tmp_path / "back")} == {*listed(source), "er"}


def test_a_link_that_can_be_none_is_a_file(root: Path, tmp_path: Path) -> None:
    """A target with a zero byte, an empty one, and one that is too long."""
    for name, target in (("zero", b"a\0b"), ("empty", b""), ("long", b"x" * 5_000)):
        entry(root, target, filename=name, file_type="link")

    ullage("get", "--tree", "-q", "inbox", "-o", tmp_path / "out", root=root)

    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == {
        "zero": b"a\0b",
        "empty": b"",
        "long": b"x" * 5_000,
    }


def test_a_program_of_nobody_known_comes_back_without_setuid(root: Path, tmp_path: Path) -> None:
    """Whoever brings it back would lend it his own rights."""
    entry(root, b"#!/bin/sh\n", filename="program", file_permissions="rwsr-sr-x", file_owner="nobody-has-this-name")

    ullage("get", "--tree", "-q", "inbox", "-o", tmp_path / "out", root=root)

    assert stat.S_IMODE((tmp_path / "out" / "program").stat().st_mode) == 0o755


def test_every_mode_and_time_is_said_and_read_back(tmp_path: Path) -> None:
    """All 4,096 permissions, and times from the year 1 to 9999."""
    (tmp_path / "file").touch()
    found = (tmp_path / "file").stat()
    said = attributes_of(found)

    assert facts_of(said) == (FileType.FILE, stat.S_IMODE(found.st_mode), found.st_mtime_ns, *list(said.values())[1:3])
    for mode in range(0o10000):
        assert facts_of({PERMISSIONS: stat.filemode(stat.S_IFREG | mode)[1:]}).mode == mode
    for text, nanos in (("1969-12-31T23:59:59.999999999+0000", -1), ("1970-01-01T01:00:00+0100", 0)):
        assert facts_of({MODIFIED: text}).modified_nanos == nanos
    for text in ("", "yesterday", "0000-01-01T00:00:00+0000", "2026-13-01T00:00:00+0000", "9" * 400):
        assert facts_of({MODIFIED: text, PERMISSIONS: text})[1:3] == (None, None)
