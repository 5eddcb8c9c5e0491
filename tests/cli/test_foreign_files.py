"""`ullage get` and what strangers chose: attributes of FlowFiles, and what lies in the directory already."""

import os
import zlib
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from tests.cli.test_commands import put, root as root, ullage, ullage_json
from ullage.beneath import opened_folder, walk
from ullage_agent.cli import newfiles as module
from ullage_agent.cli.newfiles import place_of
from ullage_agent.cli.partfiles import part_name


def taken(root: Path, out: Path, *options: object) -> list[str]:
    """The queue's FlowFiles as files: their paths below the directory."""
    found = ullage_json("get", "-q", "inbox", "-n", 0, "-o", out, *options, root=root)["flow_files"]
    return [str(Path(each["file"]).relative_to(out)) for each in found]


def named(root: Path, data: bytes, filename: str, path: str = "") -> str:
    return put(root, data, "-a", f"filename={filename}", "-a", f"path={path}")


def test_links_in_the_directory_are_not_followed(root: Path, tmp_path: Path) -> None:
    """Neither as a folder on the way nor as the file: contents went wherever they led."""
    outside, out = tmp_path / "outside", tmp_path / "out"
    outside.mkdir()
    out.mkdir()
    (out / "folder").symlink_to(outside)
    (out / "file").symlink_to(outside / "new")
    (out / "old").symlink_to(outside / "old")
    (outside / "old").write_bytes(b"theirs")
    one, other, third = named(root, b"1", "x", "folder"), named(root, b"2", "file"), named(root, b"3", "old")

    assert taken(root, out) == ["x", f"file.{other}", f"old.{third}"]

    assert one
    assert [path.name for path in outside.iterdir()] == ["old"]
    assert (outside / "old").read_bytes() == b"theirs"


def test_a_folder_swapped_for_a_link_meanwhile_is_not_followed(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is held by its descriptor: what has its name by the time of writing does not matter."""
    outside, out = tmp_path / "outside", tmp_path / "out"
    outside.mkdir()
    named(root, b"content", "x", "folder")

    def swapped(folder: int, names: tuple[str, ...], *, make: bool = False) -> int:
        descriptor = walk(folder, names, make=make)
        (out / "folder").rename(out / "was")
        (out / "folder").symlink_to(outside)
        return descriptor

    monkeypatch.setattr(module, "walk", swapped)
    taken(root, out)

    assert list(outside.iterdir()) == []
    assert (out / "was" / "x").read_bytes() == b"content"


def test_what_is_hidden_is_written_only_when_asked_for(root: Path, tmp_path: Path) -> None:
    """`.ssh/authorized_keys`, `.bashrc` and `.git/hooks/…` run something or let somebody in."""
    first = named(root, b"1", "authorized_keys", ".ssh")
    second = named(root, b"2", ".bashrc")
    named(root, b"3", "post-checkout", "a/.git/hooks")
    assert first

    assert taken(root, tmp_path / "plain") == ["authorized_keys", second, "post-checkout"]

    named(root, b"1", "authorized_keys", ".ssh")
    named(root, b"2", ".bashrc")
    assert taken(root, tmp_path / "all", "--hidden") == [".ssh/authorized_keys", ".bashrc"]


def test_existing_files_and_what_is_in_the_way_stay_as_they_are(root: Path, tmp_path: Path) -> None:
    """A file where a folder should be stopped the queue for good."""
    (tmp_path / "file").write_bytes(b"theirs")
    named(root, b"1", "x", "file")
    second = named(root, b"2", "file")

    assert taken(root, tmp_path) == ["x", f"file.{second}"]

    assert (tmp_path / "file").read_bytes() == b"theirs"


def test_a_partial_file_that_is_a_link_is_not_written_through(root: Path, tmp_path: Path) -> None:
    """In a directory of many, somebody may have put it there. A file that is only called partial is somebody's."""
    uuid = put(root, b"content")
    (tmp_path / "theirs").write_bytes(b"theirs")
    (tmp_path / "mine.partial").write_bytes(b"theirs")
    part = part_name(f"{uuid}-{zlib.crc32(b'mine'):08x}")
    (tmp_path / part).symlink_to(tmp_path / "theirs")

    ullage("get", uuid, "-o", tmp_path / "mine", root=root)

    assert (tmp_path / "mine").read_bytes() == b"content"
    assert (tmp_path / "theirs").read_bytes() == b"theirs"
    assert (tmp_path / "mine.partial").read_bytes() == b"theirs"
    assert not list(tmp_path.glob(".ullage-*"))


@given(
    st.dictionaries(st.sampled_from(["path", "filename"]), st.text(st.sampled_from("ab./\\\0\n\x1b\x9b\u202eé \ud800")))
)
def test_no_attributes_lead_out_of_the_directory(attributes: dict[str, str]) -> None:
    """Whatever they hold, each name is a plain one."""
    below, name = place_of(attributes, "id", hidden=False)

    for each in (*below, name):
        assert each
        assert not each.startswith(".")
        assert not set(each) & set("/\0\n\x1b\x9b\u202e\ud800")
    assert len(below) <= module.FOLDERS_MAX


@pytest.mark.parametrize("name", ["..", ".", "", "a/b"])
def test_a_walk_takes_plain_names_alone(tmp_path: Path, name: str) -> None:
    """None leads up, or through two folders at once."""
    (tmp_path / "a" / "b").mkdir(parents=True)

    with opened_folder(str(tmp_path)) as folder, pytest.raises(OSError, match="leads out"):
        os.close(walk(folder, [name]))
