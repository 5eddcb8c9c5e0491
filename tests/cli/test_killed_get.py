"""A get that is killed at any moment leaves whole files under their names, and the next one leaves nothing else."""

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.test_commands import RUNNER, put, root as root, ullage, ullage_json
from tests.cli.test_errors import at
from tests.cli.test_trees import listed
from tests.service.running import Running, document_at
from ullage.beneath import opened_folder
from ullage_agent.cli import partfiles
from ullage_agent.cli.app import app
from ullage_agent.cli.exits import ExitCode
from ullage_agent.cli.filefacts import FileFacts, FileType, give
from ullage_agent.cli.newfiles import MADE, NewFiles, TreeFiles, TreeSoFar
from ullage_agent.cli.partfiles import name_beside, own_descriptor, part_name, usual_mode

LONG = "ä" * 127 + "x"
CONTENTS = {name: name.encode() * 9 for name in ("taken", LONG, "open")}
THEIRS = b"theirs"
CHANGES = ("write", "fsync", "link", "symlink", "rename", "unlink")


def flow_files() -> Iterator[tuple[str, dict[str, str], bytes]]:
    """What a queue has: id, attributes and content."""
    for number, (name, content) in enumerate(CONTENTS.items()):
        said = {"file.lastModifiedTime": f"2001-02-03T04:05:0{number}+0000", "absolute.path": "/from/"}
        if name != "open":
            said["file.permissions"] = "rw-r-----"
        yield f"{number:08}-0000-4000-8000-000000000000", {"filename": name, "path": "./d/", **said}, content
    yield f"{9:036}", {"filename": "link", "path": "./d/", "file.type": "link"}, b"open"


def get(top: Path, is_tree: bool, commit: Callable[[], None] = lambda: None) -> None:
    """What one batch does, without a repository."""
    known = TreeSoFar()
    files: NewFiles
    with opened_folder(str(top)) as folder:
        files = TreeFiles(folder, str(top), known) if is_tree else NewFiles(folder, str(top), hidden=True)
        with closing(files):
            for id, attributes, content in flow_files():
                files.take(attributes, id, len(content), (content[:5], content[5:]))
            files.sync_names()
            commit()
            files.settle()
        known.end(folder)


def directory(path: Path) -> Path:
    """With files of somebody's own where two of the FlowFiles want to be."""
    (path / "d").mkdir(parents=True)
    for name in ("taken", LONG):
        (path / "d" / name).write_bytes(THEIRS)
        os.utime(path / "d" / name, ns=(1, 1))
    return path


def killed_at(step: int, top: Path, is_tree: bool) -> bool:
    """A process that is killed before its change of this number to the disk; whether there was such a one."""
    if (child := os.fork()) == 0:
        left = [step]

        def counted(call: Callable[..., object]) -> Callable[..., object]:
            def counting(*arguments: object, **options: object) -> object:
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return call(*arguments, **options)

            return counting

        for name in CHANGES:
            setattr(os, name, counted(getattr(os, name)))
        try:
            get(top, is_tree, commit=(top.parent / "committed").touch)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def seen(top: Path) -> dict[str, tuple[object, ...]]:
    """Modes and contents of what is in it; and of the directory that it is there."""
    return {name: (found[0], found[4]) for name, found in listed(top).items()}


@pytest.mark.parametrize("is_tree", [False, True])
def test_a_get_that_is_killed_at_any_step_and_goes_on_is_as_one_that_was_not(tmp_path: Path, is_tree: bool) -> None:
    """No file is torn at any moment, what others have stays, and after the next get nothing is left over."""
    get(directory(tmp_path / "expected"), is_tree)
    expected = seen(tmp_path / "expected")
    whole = {*CONTENTS.values(), THEIRS, b"open"}
    steps = 0
    while killed_at(steps, top := directory(tmp_path / f"{steps}" / "top"), is_tree):
        assert {path.read_bytes() for path in (top / "d").iterdir() if not path.name.startswith(".ullage-")} <= whole
        if not (top.parent / "committed").exists():
            get(top, is_tree)
        elif not is_tree:  # they are other names of files that are whole, and their FlowFiles are gone
            for path in (top / "d").glob(".ullage-*"):
                assert path.stat().st_nlink == 2
                path.unlink()
        assert seen(top) == expected, steps
        steps += 1
    assert steps > 15
    assert len([name for name in expected if "taken" in name or "ä" in name]) == 3 + is_tree


def test_a_client_that_is_killed_within_a_file_leaves_it_to_the_next(root: Path, tmp_path: Path) -> None:
    """With SIGKILL, over a real service: half of the content lay on the disk, under no name of a file."""
    source, back = tmp_path / "source", tmp_path / "back"
    source.mkdir()
    (source / "large").write_bytes(os.urandom(300_000))
    (source / "large").chmod(0o640)
    ullage("put", "--tree", "-q", "tree", source, root=root)
    program = (
        "import os, signal\nwrite = os.write\n"
        "def torn(file, piece):\n"
        "    if '.part' not in os.readlink(f'/proc/self/fd/{file}'): return write(file, piece)\n"
        "    write(file, piece[: len(piece) // 2]); os.kill(os.getpid(), signal.SIGKILL)\n"
        "os.write = torn\n"
        "from ullage_agent.cli import main\nmain()\n"
    )
    with Running(document_at(root)) as running:
        command = [sys.executable, "-c", program, "get", "--tree", "-q", "tree", "-o", str(back), "--url", running.url]
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    (left,) = back.glob(".ullage-*-*")
    assert {path.name for path in back.iterdir()} == {left.name, MADE}
    assert left.stat().st_mode & 0o777 == 0o600
    assert 0 < left.stat().st_size < 300_000

    ullage("get", "--tree", "-q", "tree", "-o", back, root=root)

    assert listed(back) == listed(source)


def test_what_a_full_disk_does_not_take_is_named_and_stays_in_the_queue(root: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands for it. What stood there before and is the same is not taken back."""
    put(root, b"same", "-a", "filename=first")
    put(root, bytes(3 << 20), "-a", "filename=second")
    (tmp_path / "first").write_bytes(b"same")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 << 20, hard))
    try:
        told = ullage("get", "--tree", "-q", "inbox", "-o", tmp_path, root=root, expect=ExitCode.USAGE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert str(tmp_path / "second") in told.stderr
    assert os.strerror(errno.EFBIG) in told.stderr
    assert "the same command goes on" in told.stderr
    assert (tmp_path / "first").read_bytes() == b"same"
    assert not list(tmp_path.glob("second*")) + list(tmp_path.glob(".ullage-*"))
    assert ullage_json("ls", root=root)["queues"][0]["flow_files"] == 2


def test_a_name_that_is_no_shorter_with_a_uuid_loses_its_end(tmp_path: Path) -> None:
    """In whole characters, so that it is one that a filesystem takes; two of one beginning stay two."""
    ids = [id for id, _, _ in flow_files()][:2]

    found = [name_beside(LONG, id) for id in ids]

    assert len({*found}) == 2
    assert all(len(each.encode()) in (254, 255) and each.endswith(id) for each, id in zip(found, ids, strict=True))
    assert name_beside(os.fsdecode(b"\xe9" * 255), ids[0]).endswith(ids[0])


@pytest.mark.parametrize("renames", [True, False])
def test_a_filesystem_without_hard_links_keeps_what_others_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: bool
) -> None:
    """FAT has none: a rename that replaces nothing gives the name at once, so that no get that is killed leaves an
    empty file of it. Where there is no such rename either, the name is taken first.
    """
    opened = []
    called = os.open

    def noted(path: str, flags: int, *arguments: int, **where: int) -> int:
        if flags & os.O_CREAT:
            opened.append(path)
        return called(path, flags, *arguments, **where)

    def refused(*arguments: object, **options: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    top = directory(tmp_path / "top")
    monkeypatch.setattr(os, "link", refused)
    monkeypatch.setattr(os, "open", noted)
    if not renames:
        monkeypatch.setattr(partfiles, "rename_to_free", lambda *_: False)

    get(top, is_tree=True)

    assert (top / "d" / "taken").read_bytes() == THEIRS
    assert (top / "d" / "open").read_bytes() == CONTENTS["open"]
    assert not list((top / "d").glob(".ullage-*"))
    assert all(path.startswith(".ullage-") for path in opened) is renames


def test_a_flow_file_with_the_name_of_a_part_gets_another(root: Path, tmp_path: Path) -> None:
    """The next get of that FlowFile would take it for its own, and it would be lost."""
    id = f"{9:036}"
    put(root, b"content", "-a", f"filename={part_name(id)}")

    ullage("get", "--tree", "-q", "inbox", "-o", tmp_path / "out", root=root)

    (found,) = (tmp_path / "out").iterdir()
    assert found.name.startswith(f"{part_name(id)}.")


def test_what_somebody_wrote_after_a_kill_stays(tmp_path: Path) -> None:
    """A file of the next get is beside it, whole."""
    top = directory(tmp_path / "top")
    if os.fork() == 0:
        get(top, False, commit=lambda: os.kill(os.getpid(), signal.SIGKILL))
    os.wait()
    with (top / "d" / "open").open("ab") as file:
        file.write(b"mine")

    get(top, False)

    assert (top / "d" / "open").read_bytes() == CONTENTS["open"] + b"mine"
    assert (top / "d" / f"open.{2:08}-0000-4000-8000-000000000000").read_bytes() == CONTENTS["open"]


def test_a_file_that_is_written_anew_keeps_its_permissions(root: Path, tmp_path: Path) -> None:
    """Whoever closed it to others means what comes next, too; a new one has those of any new file."""
    id = put(root, b"content")
    (tmp_path / "closed").write_bytes(b"before")
    (tmp_path / "closed").chmod(0o600)

    for name in ("closed", "new"):
        ullage("get", id, "-o", tmp_path / name, root=root)

    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file() and path.suffix == ""} == {
        "closed": b"content",
        "new": b"content",
    }
    assert stat.S_IMODE((tmp_path / "closed").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == usual_mode()


@pytest.mark.parametrize("place", ["/dev/stdout", "/dev/fd/1", "link"])
@pytest.mark.parametrize("is_pipe", [False, True])
def test_what_the_process_has_open_is_written_as_it_stands(
    root: Path, tmp_path: Path, place: str, is_pipe: bool
) -> None:
    """A pipe has no name beside which a file could stand; and what is written after `>>` is appended."""
    id = put(root, b"content")
    (tmp_path / "link").symlink_to("/dev/stdout")
    (tmp_path / "out").write_bytes(b"before ")
    options = ["get", id, "-o", str(tmp_path / place), "--root", str(root)]
    command = [sys.executable, "-m", "ullage_agent", *options]
    with (tmp_path / "out").open("ab") as file:
        ended = subprocess.run(command, check=True, stdout=subprocess.PIPE if is_pipe else file)

    assert ended.stdout == (b"content" if is_pipe else None)
    assert (tmp_path / "out").read_bytes() == (b"before " if is_pipe else b"before content")


def test_what_nobody_gave_to_the_process_is_not_written(tmp_path: Path) -> None:
    """A number without its redirection is what the process has opened by itself, such as a log, or nothing."""
    with (tmp_path / "log").open("wb") as file:
        number = file.fileno()
        with pytest.raises(OSError, match="Bad file descriptor"):
            own_descriptor(f"/dev/fd/{number}")
        os.set_inheritable(number, True)
        assert own_descriptor(f"/dev/fd/{number}") == number
    with pytest.raises(OSError, match="Bad file descriptor"):
        own_descriptor(f"/dev/fd/{number}")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("options", [["-q", "inbox"], ["-q", "inbox", "--tree"], []])
@pytest.mark.parametrize("call", ["fsync", "mkdir", "open", "write"])
def test_an_output_that_fails_is_told_from_the_repository(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, options: list[str], call: str
) -> None:
    """Another disk helps, and nothing is wrong with what is stored: code 4 would have somebody restore a backup."""
    id = put(root, b"content", "-a", "path=below", "-a", "filename=name")
    out = tmp_path / "out"
    if not options:
        tmp_path.joinpath("out").mkdir()
        out = out / "name"
    called = getattr(os, call)

    def failing(what: str | int, *arguments: object, **where: object) -> object:
        place = f"/proc/self/fd/{what}" if isinstance(what, int) else what
        top = os.readlink(f"/proc/self/fd/{where['dir_fd']}") if where.get("dir_fd") is not None else ""
        is_new = call != "open" or ".part" in str(what)
        if is_new and str(tmp_path / "out") in os.path.join(top, os.path.realpath(place) if not top else place):
            raise OSError(number, os.strerror(number))
        return called(what, *arguments, **where)

    monkeypatch.setattr(os, call, failing)
    made = RUNNER.invoke(app, ["get", *(options or [id]), "-o", str(out), *at(root)])
    monkeypatch.undo()

    if call == "mkdir" and not options:
        assert made.exit_code == ExitCode.OK
        return
    assert made.exit_code == ExitCode.OUTPUT, made.output
    assert f"{tmp_path / 'out'}" in made.stderr
    assert f"it can't be written: {os.strerror(number)}" in made.stderr
    assert ullage_json("ls", root=root)["queues"][0]["flow_files"] == 1


def test_a_link_that_leads_to_itself_is_told_in_a_line_and_stays(root: Path, tmp_path: Path) -> None:
    """As of any other path that nothing can be written to."""
    id = put(root, b"content")
    (tmp_path / "a").symlink_to("a")

    told = ullage("get", id, "-o", tmp_path / "a", root=root, expect=ExitCode.USAGE)

    assert told.stderr == f"ullage: {tmp_path / 'a'}: {os.strerror(errno.ELOOP)}\n"
    assert (tmp_path / "a").is_symlink()


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_part_of_somebody_else_is_in_nobodys_way(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_folder: bool
) -> None:
    """In a directory such as /tmp only owners remove files: there the part gets another name."""
    id = put(root, b"content", "-a", "filename=name")
    theirs = tmp_path / part_name(id)
    theirs.mkdir() if is_folder else theirs.write_bytes(THEIRS)
    unlink = os.unlink

    def sticky(name: str, **where: int) -> None:
        if name == theirs.name:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), name)
        unlink(name, **where)

    if not is_folder:
        monkeypatch.setattr(os, "unlink", sticky)

    ullage("get", "-q", "inbox", "-o", tmp_path, root=root)

    assert (tmp_path / "name").read_bytes() == b"content"
    assert [path.name for path in tmp_path.glob(".ullage-*")] == [theirs.name]


def test_who_may_give_no_file_away_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root in a container without that capability: the tree comes back, and nobody's program gets its setuid."""
    path = tmp_path / "program"
    path.touch()

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "not here")

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "chown", refuse)
    facts = FileFacts(FileType.FILE, 0o4755, None, "nobody", "nogroup")

    give(str(path), facts)

    assert stat.S_IMODE(path.stat().st_mode) == 0o755
