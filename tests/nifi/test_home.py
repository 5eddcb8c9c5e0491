import gzip
import json
from pathlib import Path

import pytest

from ullage.errors import InvalidArgument
from ullage.nifi.home import find_home, properties_of, queue_names
from ullage.nifi.trouble import NotSurveyable

PLAIN = (
    "nifi.flowfile.repository.directory=./flowfile_repository\nnifi.content.repository.directory.default=./content\n"
)


def unpacked_nifi(place: Path, properties: str) -> Path:
    (place / "conf").mkdir()
    (place / "conf" / "nifi.properties").write_text(properties, encoding="utf-8")
    return place


def test_the_directories_are_found_from_the_file_its_folder_or_nifis(tmp_path: Path) -> None:
    """Relative ones begin where NiFi was unpacked."""
    nifi = unpacked_nifi(
        tmp_path,
        PLAIN + "nifi.content.repository.directory.big=/data/big\n"
        "nifi.flow.configuration.file=./conf/flow.xml.gz\n"
        "nifi.flow.configuration.json.file=./conf/flow.json.gz\n"
        "nifi.content.repository.archive.enabled=false\n"
        "nifi.flowfile.repository.implementation=org.apache.nifi.controller.repository.WriteAheadFlowFileRepository\n",
    )

    for place in (nifi, nifi / "conf", nifi / "conf" / "nifi.properties"):
        home = find_home(str(place))
        assert home.flowfiles == f"{nifi}/./flowfile_repository"
        assert home.containers == {"default": f"{nifi}/./content", "big": "/data/big"}
        assert home.flow == f"{nifi}/./conf/flow.json.gz"
        assert not home.is_archiving


def test_properties_are_read_as_java_reads_them(tmp_path: Path) -> None:
    """Comments, continued lines, escapes, and the three ways to part a name from its value."""
    path = tmp_path / "nifi.properties"
    path.write_text(
        "# comment = no\n! neither\n\n  a=1\nb : two\nc three words\nd\\ e=f\\:g\\\\h\n"
        "long=one,\\\n    two,\\\n    three\nempty=\nu=gr\\u00f6\\u00dfe\neven=x\\\\\nlast",
        encoding="utf-8",
    )

    assert properties_of(str(path)) == {
        "a": "1",
        "b": "two",
        "c": "three words",
        "d e": "f:g\\h",
        "long": "one,two,three",
        "empty": "",
        "u": "größe",
        "even": "x\\",
        "last": "",
    }


@pytest.mark.parametrize(
    "line",
    [
        "nifi.repository.encryption.protocol.version=1",
        "nifi.content.repository.implementation=org.apache.nifi.controller.repository.crypto.EncryptedFileSystemRepository",
        "nifi.swap.manager.implementation=org.apache.nifi.controller.EncryptedFileSystemSwapManager",
        "nifi.flowfile.repository.wal.implementation=org.apache.nifi.wali.EncryptedSequentialAccessWriteAheadLog",
    ],
)
def test_encrypted_repositories_are_refused_by_name(line: str, tmp_path: Path) -> None:
    """The message has the property that says so."""
    nifi = unpacked_nifi(tmp_path, f"{PLAIN}{line}\n")

    with pytest.raises(NotSurveyable, match=f"{line.partition('=')[0]}.*(encrypts|key)"):
        find_home(str(nifi))


def test_repositories_that_are_not_on_disk_are_refused_by_name(tmp_path: Path) -> None:
    """There is nothing to read."""
    nifi = unpacked_nifi(
        tmp_path, f"{PLAIN}nifi.flowfile.repository.implementation=org.apache.nifi.VolatileFlowFileRepository\n"
    )

    with pytest.raises(NotSurveyable, match="VolatileFlowFileRepository"):
        find_home(str(nifi))


def test_what_is_no_nifi_is_refused(tmp_path: Path) -> None:
    """No file, no repositories in it, or far too much."""
    with pytest.raises(InvalidArgument, match=r"no nifi\.properties"):
        find_home(str(tmp_path))
    path = tmp_path / "nifi.properties"
    path.write_text("a=b\n")
    with pytest.raises(InvalidArgument, match="no FlowFile repository"):
        find_home(str(path))
    path.write_bytes(b"a" * (5 << 20))
    with pytest.raises(InvalidArgument, match="bytes"):
        find_home(str(path))


def test_queues_are_called_what_people_call_them(tmp_path: Path) -> None:
    """Their name if they have one, their ends, and the groups that they are in; by the identifier that NiFi uses."""
    flow = {
        "rootGroup": {
            "name": "NiFi Flow",
            "connections": [
                {
                    "identifier": "a",
                    "instanceIdentifier": "A",
                    "name": "",
                    "source": {"name": "GetFile"},
                    "destination": {"type": "FUNNEL"},
                }
            ],
            "processGroups": [
                {"name": "Ingest", "processGroups": [], "connections": [{"identifier": "b", "name": "failures"}]}
            ],
        },
        "encodingVersion": {"majorVersion": 2},
    }
    path = tmp_path / "flow.json.gz"
    path.write_bytes(gzip.compress(json.dumps(flow).encode()))

    assert queue_names(str(path)) == ({"A": "GetFile -> funnel", "b": "Ingest / failures: ? -> ?"}, [])


CONTENTS = {"empty": b"", "no gzip": b"no gzip", "torn": gzip.compress(b"{"), "deep": gzip.compress(b"[" * 100_000)}


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_a_flow_that_cannot_be_read_costs_the_names_only(content: bytes, tmp_path: Path) -> None:
    """The survey goes on with identifiers."""
    path = tmp_path / "flow.json.gz"
    path.write_bytes(content)

    names, (damage,) = queue_names(str(path))

    assert names == {}
    assert not damage.loses_flowfiles
    assert queue_names(str(tmp_path / "nowhere"))[1]


def test_files_that_are_too_large_are_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flow that unpacks to more than any costs the names; properties that are longer than any are none."""
    flow = tmp_path / "flow.json.gz"
    whole = json.dumps({"rootGroup": {"connections": [{"identifier": "A"}]}}).encode()
    flow.write_bytes(gzip.compress(whole))
    properties = tmp_path / "nifi.properties"
    properties.write_bytes(b"a=b\n" * (1 << 20) + b"a=c")
    monkeypatch.setattr("ullage.nifi.home.FLOW_BYTES_MAX", len(whole) - 1)

    names, (damage,) = queue_names(str(flow))

    assert (names, damage.loses_flowfiles) == ({}, False)
    with pytest.raises(InvalidArgument, match="4,194,304"):
        properties_of(str(properties))
