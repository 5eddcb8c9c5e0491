"""What the options of the sources reach, asked in SQL: whoever may write it need not be allowed to run Python."""

import json
import os
from base64 import b64encode
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pyspark_ullage import DefaultSource
from tests.spark.fleet import Fleet, fleet_at
from ullage.errors import NotFound
from ullage.wire.tickets import RENEW, SnapshotRenewal
from ullage_spark.addresses import addresses, of_kubernetes
from ullage_spark.errors import SparkSourceError
from ullage_spark.fleet import ask, discover
from ullage_spark.settings import CREDENTIALS, SourceOptions


class Attack:
    """Runs a command where it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self._trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self._trace}",)


def selected(spark: SparkSession, options: str, columns: str = "") -> None:
    """What whoever may write SQL alone can do."""
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW attack {columns} USING ullage OPTIONS ({options})")
    spark.sql("SELECT * FROM attack").collect()


@pytest.mark.parametrize("option", ["use", "groupBytes", "function", "pickled"])
def test_no_option_runs_code(spark: SparkSession, fleet: Fleet, option: str, tmp_path: Path) -> None:
    """A view with the undocumented option `use` ran a command as the executor's user. It is refused by its name."""
    trace = tmp_path / "trace"
    attack = b64encode(cloudpickle.dumps(Attack(trace))).decode()  # type: ignore[no-untyped-call]

    with pytest.raises(PySparkException, match=f"unknown option {option.lower()}"):
        selected(spark, f"endpoint '{fleet.endpoint}', {option} '{attack}'", "(x STRING)")

    assert not trace.exists()


@pytest.mark.parametrize("option", ["tokenFile", "caFile"])
def test_no_option_reads_a_file_beside_the_credentials(spark: SparkSession, option: str, tmp_path: Path) -> None:
    """Any file of the executor's went, as a token, to an endpoint that the same statement named."""
    secret = tmp_path / "secret"
    secret.write_text("what SQL may not read")

    with pytest.raises(PySparkException, match="lies in no folder of credentials"):
        selected(spark, f"endpoint 'grpc://127.0.0.1:1', {option} '{secret}'")


@pytest.mark.parametrize(
    "path", ["{folder}/../secret", "{folder}-of-others/secret", "{folder}", "secret", "/etc/passwd"]
)
def test_credentials_lie_in_their_folder(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a path says, not as it begins."""
    monkeypatch.setenv(CREDENTIALS, f"/nowhere:{tmp_path / 'folder'}")
    settings = SourceOptions.of({"endpoint": "x", "tokenFile": path.format(folder=tmp_path / "folder")})

    with pytest.raises(SparkSourceError, match="lies in no folder"):
        settings.bearer("grpc+tls://a:1")


def test_a_token_out_of_a_file_goes_to_nobody_without_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint is the author's of the statement, and the token is not."""
    monkeypatch.setenv(CREDENTIALS, str(tmp_path))
    (tmp_path / "token").write_text("mounted")
    settings = SourceOptions.of({"endpoint": "x", "tokenFile": str(tmp_path / "token")})
    own = SourceOptions.of({"endpoint": "x", "token": "own"})

    for url in ("grpc://10.0.0.1:1", "http://evil.example", "grpc://localhost.evil.example:1"):
        with pytest.raises(SparkSourceError, match="no endpoint with TLS"):
            settings.bearer(url)
        assert own.bearer(url) == "own"
    assert {settings.bearer(url) for url in ("grpc+tls://a:1", "https://a", "grpc://127.0.0.1:1")} == {"mounted"}


@pytest.mark.parametrize("name", ["../../../api/v1/secrets?x=/a", "a?b", "a/b%2F", "data/flows&limit=1", "a/../b"])
def test_the_name_of_a_repository_is_no_path_of_the_api_server(name: str) -> None:
    """It was asked with the pod's own account."""
    with pytest.raises(SparkSourceError, match="kubernetes:namespace/name"):
        of_kubernetes(name)


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("node-1.example:8481", "node-1.example:8481 is one"),
        ("node-1.example", "node-1.example:8481 is one"),
        ("https://node-1.example:8480", "node-1.example:8480 is one"),
        ("grpc://node-1.example", "node-1.example:8481 is one"),
        ("grpc://node-1.example:port", "node-1.example:8481 is one"),
        ("grpc://", "HOST:8481 is one"),
        ("[::1]:8481", r"grpc\+tls://\[::1\]:8481 is one"),
    ],
)
def test_an_address_of_no_node_is_refused_with_the_one_that_is_meant(url: str, meant: str) -> None:
    """Arrow said which character it did not expect."""
    for option, value in (("endpoint", url), ("nodes", json.dumps([{"name": "a", "flight": url}]))):
        with pytest.raises(SparkSourceError, match=f"option {option}: .* is no address of a node: .*{meant}"):
            addresses(SourceOptions.of({option: value}))


FLEET = {"endpoint": "grpc://127.0.0.1:1"}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"where": "size = 'abc'"}, "option where: column size is bigint, and 'abc' is string"),
        ({"where": "queue IN (1, 'a')"}, "option where: column queue is string, and 1 is bigint"),
        ({"where": f"size = {'9' * 30}"}, "option where: 9{30} is beyond bigint"),
        ({"where": "swapped = 1"}, "option where: column swapped is boolean, and 1 is bigint"),
        ({"columns": "uuid,uuid"}, "each column is named once"),
        ({"parts": "9" * 5_000}, "from 0 to 100000, not '9{100}...'$"),
        ({"parts": "1_0"}, "not '1_0'"),
        ({"Endpoint": "grpc://b:1"}, "option endpoint is given twice"),
        ({"endpoint": "grpc://u:secret@127.0.0.1:1"}, "^(?!.*secret).*grpc://127.0.0.1:1 without"),
        ({"endpoint": "grpc://127.0.0.1:1/path"}, "no address of a node"),
        ({"endpoint": "kubernetes:data/flows"}, "inside a pod"),
        ({"token": "secret\n"}, "^option token holds characters that no token has$"),
        ({"endpoint": " , "}, "no node in the fleet that the options name"),
        ({"endpoint": "", "nodes": "[]"}, "no node in the fleet"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_a_job_begins(options: dict[str, str], reason: str) -> None:
    """In a sentence of ours, without a secret; an empty fleet, which a mistyped name is too, gives no empty answer."""
    source = DefaultSource({**FLEET, **options})
    with pytest.raises(SparkSourceError, match=reason):
        source.reader(source.schema()).partitions()


def test_a_node_that_refuses_is_named(tmp_path: Path) -> None:
    """And the refusal keeps its kind."""
    with fleet_at(tmp_path, "a") as fleet:
        settings = SourceOptions.of({"endpoint": fleet.endpoint})
        (node,) = discover(settings)
        with pytest.raises(NotFound, match=r"^node a: there is no snapshot x"):
            ask(settings, node, RENEW, SnapshotRenewal(id="x", ttl_millis=1_000))
