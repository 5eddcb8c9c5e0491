"""What `ullage` does when it cannot do what it was asked: an exit code, a line or two on stderr, no traceback."""

import errno
import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import Result

from tests.cli.test_commands import HEAD, RUNNER, configure, root as root  # the fixture
from ullage.contract import load_yaml
from ullage.engine.engine import Engine
from ullage.engine.session import ProcessSession
from ullage.errors import CommitOutcomeUnknown, UllageError
from ullage_agent.cli import main
from ullage_agent.cli.app import app
from ullage_agent.cli.exits import ExitCode
from ullage_agent.cli.failures import CODES, code_of
from ullage_agent.cli.interrupts import interrupts

ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("ULLAGE_")}
COMMAND = [sys.executable, "-m", "ullage_agent"]
README = Path(__file__).parents[2] / "README.md"


def run(*arguments: object, stdin: bytes | None = None) -> Result:
    return RUNNER.invoke(app, list(map(str, arguments)), input=stdin)


def assert_fails(result: Result, code: ExitCode, *words: str) -> None:
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr


def at(root: Path) -> list[str]:
    return ["--config", str(root.with_suffix(".yaml"))]


def test_every_error_of_a_repository_has_a_code() -> None:
    """No error that a repository raises on purpose, here or in a service, can reach people as a traceback."""
    assert all(issubclass(kind, tuple(CODES)) for kind in UllageError.__subclasses__())


def test_the_exit_codes_are_documented() -> None:
    """The help and the README list every exit code with its meaning."""
    shown = " ".join(run("--help").stdout.split())
    readme = README.read_text(encoding="utf-8")

    for code in ExitCode:
        assert f"{code:d} {code.meaning}" in shown
        assert f"| {code:d} | {code.meaning} |" in readme


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENOSPC, ExitCode.NO_ROOM),
        (errno.EDQUOT, ExitCode.NO_ROOM),
        (errno.EIO, ExitCode.REPOSITORY),
        (errno.EACCES, ExitCode.USAGE),
    ],
)
def test_errors_of_the_system_are_told_apart(number: int, code: ExitCode) -> None:
    """A full disk, a failing disk and a wrong path have different codes."""
    assert code_of(OSError(number, os.strerror(number))) == code


@pytest.mark.parametrize(
    "arguments",
    [
        ["frobnicate"],
        ["put"],
        ["ls"],
        ["ls", "--root", "r", "--config", "c"],
        ["ls", "everything", "--root", "r"],
        ["put", "-", "--attribute", "novalue", "--root", "r"],
        ["put", "-", "--attribute", "uuid=1", "--root", "r"],
        ["put", "-", "--handle", "--ttl", "soon", "--root", "r"],
        ["put", "-", "--ttl", "1h", "--root", "r"],
        ["get", "--root", "r"],
        ["get", "x", "--queue", "q", "--root", "r"],
        ["get", "x", "--range", "all", "--root", "r"],
        ["drop", "--root", "r"],
        ["ls", "handles", "--queue", "q", "--root", "r"],
    ],
)
def test_wrong_usage_is_code_2(arguments: list[str]) -> None:
    """What cannot be meant is refused before anything is opened."""
    assert_fails(run(*arguments), ExitCode.USAGE)


def test_an_attribute_that_is_no_text_is_code_2_and_nothing_is_stored(root: Path) -> None:
    """It is neither changed into one nor half applied."""
    put = run("put", "-", "--queue", "q", "--attribute", "name=\udcff\udcfe", *at(root), stdin=b"x")
    assert_fails(put, ExitCode.USAGE, "name", "Unicode")

    assert json.loads(run("ls", "--json", *at(root)).stdout)["queues"] == []  # not even the queue was made


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("a: [", "YAML"),
        ("- list", "ContentRepository"),
        ("kind: Pod\n", "apiVersion"),
        ("\xff", "repository.yaml"),
        (
            HEAD + "spec: {provenance: {journalCount: 4}}\n",
            "spec.provenance.journalCount",
        ),
        (
            HEAD + "spec: {claims: {largeClaim: 1K}}\n",
            "spec.claims.largeClaim",
        ),
    ],
)
def test_bad_configuration_is_code_2_and_names_file_and_field(tmp_path: Path, text: str, word: str) -> None:
    """A document that cannot be obeyed is refused, with the field that is wrong."""
    config = tmp_path / "repository.yaml"
    config.write_bytes(text.encode("latin-1"))

    assert_fails(run("ls", "--config", config), ExitCode.USAGE, "repository.yaml", word)


def test_unreadable_input_is_code_2_but_the_rest_is_stored(root: Path, tmp_path: Path) -> None:
    """A missing file is named on stderr; the other files are stored all the same."""
    (tmp_path / "there").write_bytes(b"x")

    result = run("put", tmp_path / "gone", tmp_path / "there", "--json", *at(root))

    assert result.exit_code == ExitCode.USAGE
    assert "gone" in result.stderr
    document = json.loads(result.stdout)
    assert (document["count"], len(document["skipped"])) == (1, 1)


def test_a_second_init_is_refused(root: Path) -> None:
    """An existing repository is never made anew."""
    assert_fails(run("init", *at(root)), ExitCode.USAGE, "already")


def test_a_repository_that_is_open_elsewhere_is_code_3(root: Path) -> None:
    """One process a repository: the second one is told so, and leaves."""
    with Engine.open(load_yaml(root.with_suffix(".yaml").read_text()).spec):
        result = subprocess.run(
            [*COMMAND, "ls", *at(root)], capture_output=True, text=True, env=ENVIRONMENT, check=False
        )

    assert (result.returncode, result.stdout) == (ExitCode.LOCKED, "")
    assert result.stderr.startswith("ullage: ")
    assert "another process" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_no_repository_is_code_4(tmp_path: Path) -> None:
    """A missing directory and an empty one are no repositories; the message says what to do."""
    (tmp_path / "empty").mkdir()

    assert_fails(run("ls", "--root", tmp_path / "none"), ExitCode.REPOSITORY, "ullage init")
    assert_fails(run("ls", "--root", tmp_path / "empty"), ExitCode.REPOSITORY, "ullage init")


def test_a_missing_container_is_code_4(root: Path) -> None:
    """A container whose volume is not mounted is named, not taken for an empty one."""
    (root / "c1").rename(root / "elsewhere")
    (root / "c1").mkdir()

    assert_fails(run("survey", *at(root)), ExitCode.REPOSITORY, "container c1", "mounted")


def test_a_foreign_container_is_code_4(root: Path, tmp_path: Path) -> None:
    """Another repository's container is refused with both names."""
    run("init", "--root", tmp_path / "other")
    (root / "c1").rename(root / "elsewhere")
    (tmp_path / "other" / "c1").rename(root / "c1")

    assert_fails(run("survey", *at(root)), ExitCode.REPOSITORY, "of repository")


def test_a_newer_format_is_code_4(root: Path) -> None:
    """Files of a newer format are left alone."""
    identity = root / "ullage.json"
    document = json.loads(identity.read_text())
    document["format"] += 1
    identity.write_text(json.dumps(document))

    assert_fails(run("ls", *at(root)), ExitCode.REPOSITORY, str(document["format"]))


def test_a_missing_ledger_is_code_4(root: Path) -> None:
    """A repository whose FlowFile repository is gone does not start empty."""
    (root / "flowfile").rename(root.parent / "flowfile")

    assert_fails(run("ls", *at(root)), ExitCode.REPOSITORY, "flowfile is missing")


def test_a_full_container_is_code_5_and_nothing_of_it_stays(tmp_path: Path) -> None:
    """Content beyond the capacity is refused as a whole, what was stored before stays, and reading goes on."""
    config = configure(tmp_path / "repository", capacity="1Mi")
    run("init", "-c", config)
    uuid = run("put", "-", "-c", config, stdin=b"first").stdout.split()[0]

    assert_fails(run("put", "-", "-c", config, stdin=bytes(2 << 20)), ExitCode.NO_ROOM, "capacity", "0 files")

    assert run("get", uuid, "-c", config).stdout == "first"
    assert run("check", "--deep", "-c", config).exit_code == ExitCode.OK


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A volume of 24 MiB; skipped where mounting is not allowed."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(path)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs the right to mount a tmpfs")
def test_a_full_disk_is_code_5_and_the_repository_lives_on(small_disk: Path) -> None:
    """Running out of space is a clear error; afterwards everything reads, and dropping makes room again."""
    root = small_disk / "repository"
    config = configure(root, "  archive: {backpressurePercentage: 100}\n", capacity="null")
    assert run("init", "-c", config).exit_code == 0
    uuid = run("put", "-", "-q", "kept", "-c", config, stdin=b"first").stdout.split()[0]

    assert_fails(run("put", "-", "-c", config, stdin=os.urandom(40 << 20)), ExitCode.NO_ROOM, "room")

    assert run("get", uuid, "-c", config).stdout == "first"
    assert run("put", "-", "-c", config, stdin=bytes(1 << 20)).exit_code == 0
    assert run("drop", "inbox", "--yes", "-c", config).exit_code == 0
    assert run("check", "--deep", "-c", config).exit_code == 0


def test_an_unknown_outcome_is_code_7(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script learns that it must look before it tries again."""

    def commit(session: ProcessSession, *also: object) -> None:
        raise CommitOutcomeUnknown("syncing the log failed")

    monkeypatch.setattr(ProcessSession, "commit", commit)

    assert_fails(run("put", "-", *at(root), stdin=b"x"), ExitCode.UNKNOWN, "syncing the log failed")


def test_dropping_asks_first(root: Path) -> None:
    """Without --yes and without a terminal nothing is dropped."""
    run("put", "-", *at(root), stdin=b"x")

    assert_fails(run("drop", "inbox", *at(root)), ExitCode.USAGE, "Drop 1 FlowFile (1 B)", "--yes")

    assert json.loads(run("ls", "--json", *at(root)).stdout)["queues"][0]["flow_files"] == 1


def test_the_question_shows_a_name_as_text(root: Path) -> None:
    """What would set the terminal's title is not obeyed by whoever asks on one."""
    name = "in\x1b]0;mine\x07box"
    run("put", "-", "--queue", name, *at(root), stdin=b"x")
    ours, theirs = pty.openpty()
    with open(ours, "r+b", buffering=0) as terminal, open(theirs, "rb") as stdin:
        terminal.write(b"n\n")
        asked = subprocess.run(
            [sys.executable, "-m", "ullage_agent", "drop", name, *map(str, at(root))],
            check=False,
            stdin=stdin,
            capture_output=True,
        )

    assert b"Drop 1 FlowFile" in asked.stdout + asked.stderr
    assert b"\x1b" not in asked.stdout + asked.stderr
    assert json.loads(run("ls", "--json", *at(root)).stdout)["queues"][0]["flow_files"] == 1


@pytest.fixture
def _takes_interrupts() -> Iterator[None]:
    """What a shell starts in the background ignores SIGINT, and so would its children: these tests want it heard."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_takes_interrupts")
def test_ctrl_c_ends_with_130_and_leaves_nothing_half_done(root: Path) -> None:
    """An interrupted put stores nothing of the file it was in, and the repository is closed properly."""
    with subprocess.Popen(
        [*COMMAND, "put", "-", *at(root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    ) as process:
        assert process.stdin is not None
        process.stdin.write(bytes(4 << 20))  # more than the pipe holds: it has begun to read when this returns
        process.stdin.flush()
        while process.returncode is None:  # one that comes right before the system call is only seen after it
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):  # then it is sent again; sooner it could meet Python's own end
                process.wait(10)
        assert process.returncode == ExitCode.INTERRUPTED
        assert process.stderr is not None
        assert process.stderr.read() == b"interrupted\n"

    assert run("check", *at(root)).stderr == ""
    assert json.loads(run("ls", "flowfiles", "--json", *at(root)).stdout)["flowfiles"] == []


def test_ctrl_c_while_a_command_is_still_imported_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    """Click would say 1, which is what `check` says when it finds problems."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ullage_agent.cli.app.import_module", interrupted)
    for arguments in (("survey",), ("survey", "--help")):
        ended_early = run(*arguments)
        assert (ended_early.exit_code, ended_early.stderr) == (ExitCode.INTERRUPTED, "interrupted\n")

    monkeypatch.setattr(sys, "argv", ["ullage", "survey"])
    monkeypatch.setattr(app, "main", interrupted)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == ExitCode.INTERRUPTED


def test_an_interrupt_waits_for_a_safe_point() -> None:
    """While a repository is open Ctrl-C is remembered, and raised where nothing is half done."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with interrupts.deferred():
            signal.raise_signal(signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                interrupts.check()
            interrupts.check()
            with pytest.raises(KeyboardInterrupt), interrupts.allowed():
                signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), interrupts.deferred():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_reader_that_goes_away_is_no_traceback(root: Path, tmp_path: Path) -> None:
    """`ullage get | head` ends quietly."""
    (tmp_path / "large").write_bytes(os.urandom(2 << 20))
    uuid = run("put", tmp_path / "large", *at(root)).stdout.split()[0]

    with subprocess.Popen(
        [*COMMAND, "get", uuid, *at(root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1000)
        process.stdout.close()
        assert process.wait(60) == ExitCode.BROKEN_PIPE
        assert process.stderr.read() == b""


def test_a_bug_keeps_its_traceback(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody foresaw is not dressed up as a user's mistake."""

    def commit(session: ProcessSession, *also: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(ProcessSession, "commit", commit)

    assert isinstance(run("put", "-", *at(root), stdin=b"x").exception, ZeroDivisionError)


FORGED = "a\nullage: all is well\x1b[2K"


@pytest.mark.parametrize(
    "arguments",
    [
        ("put", FORGED),
        ("put", "-", "--root", FORGED),
        ("put", "-", "--config", FORGED),
        ("get", "-q", FORGED),
        ("get", FORGED),
        ("get", "00000000-0000-4000-8000-000000000000", "-o", f"{FORGED}/x"),
        ("ls", FORGED),
        ("status", FORGED),
        ("ls", f"--{FORGED}"),
        (FORGED,),
        ("drop", FORGED, "--yes"),
        ("put", "-", "-a", FORGED),
        ("check", "--root", FORGED),
    ],
)
def test_a_name_writes_no_line_of_its_own(root: Path, arguments: tuple[str, ...]) -> None:
    """Whoever names a file, which a shell's * then types, tells nobody of a success that was none."""
    chosen = [] if FORGED in arguments[:1] or {"--root", "--config"} & {*arguments} else at(root)

    told = run(*arguments, *chosen, stdin=b"x")

    assert told.exit_code != ExitCode.OK
    assert "Traceback" not in told.output
    assert "\x1b" not in told.output
    assert not [line for line in told.output.splitlines() if line.startswith("ullage: all is well")], told.output


@pytest.fixture
def roomy_directory(tmp_path: Path) -> Iterator[Path]:
    """One on a volume below the default back-pressure, where there is one."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as directory:
        yield Path(directory)


def test_the_library_example_of_the_readme_works(roomy_directory: Path) -> None:
    """The README's Python example runs as it stands and prints what it says."""
    example = README.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]

    result = subprocess.run(
        [sys.executable, "-c", example],
        cwd=roomy_directory,
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=True,
    )

    assert result.stdout == "b'a,b\\n1,2\\n' report.csv\n"


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["ls", "--help"], ["init", "--root", "r"]])
def test_output_that_finds_no_room_is_told_in_a_line(tmp_path: Path, arguments: list[str]) -> None:
    """As of any other file: the system's words, an exit code of its own, and no traceback."""
    with open("/dev/full", "w", encoding="utf-8") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "ullage_agent", *arguments],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert ended.returncode == ExitCode.OUTPUT
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    assert os.strerror(errno.ENOSPC) in ended.stderr
