import pytest

from ullage_agent.cli.output import console, print_rows, say, tell

COLUMNS = ["node", ">live_bytes", "container"]
ROWS = [["worker-0.some.where", "1.0 MiB", "content-1"], ["w1", "7 B", "content-20"]]


def shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    print_rows(COLUMNS, ROWS)
    return [line.rstrip() for line in capsys.readouterr().out.splitlines()]


def test_rows_that_fit_are_a_table_and_others_blocks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line a row; or no word is broken, however narrow the screen is."""
    lines = shown(capsys, monkeypatch, 60)

    assert lines[0].split() == ["node", "live_bytes", "container"]
    assert lines[2].split("  ")[0] == "worker-0.some.where"
    assert len(lines) == 4
    first = ["node        worker-0.some.where", "live_bytes  1.0 MiB", "container   content-1", ""]
    second = ["node        w1", "live_bytes  7 B", "container   content-20", ""]
    for width in (20, 41):
        assert shown(capsys, monkeypatch, width) == [*first, *second]


def test_what_is_said_of_a_name_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """On stdout and on stderr, in sentences as in tables."""
    console().print("a\nb\x1b", soft_wrap=True)
    console().print("a", "b")
    tell("a\nb")
    say("a\nb", "c")

    told = capsys.readouterr()
    assert told.out == "a\ufffdb\ufffd\na b\na\ufffdb\n"
    assert told.err == "a\ufffdb\nc\n"
