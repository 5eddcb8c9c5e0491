"""Finding nodes, and reaching them with credentials that change."""

from pathlib import Path

import pytest

from ullage_spark.addresses import FleetNode, addresses_of, http_url_of
from ullage_spark.errors import SparkSourceError
from ullage_spark.fleet import flight_of
from ullage_spark.settings import SourceOptions

SLICE = {
    "metadata": {"namespace": "data", "labels": {"kubernetes.io/service-name": "flows-nodes"}},
    "ports": [{"name": "http", "port": 8480}, {"name": "flight", "port": 8481}],
    "endpoints": [
        {"hostname": "worker-1", "nodeName": "worker-1", "conditions": {"ready": True}, "addresses": ["10.0.0.1"]},
        {"hostname": "worker-2", "nodeName": "worker.2", "conditions": {"ready": True}, "addresses": ["10.0.0.2"]},
        {"hostname": "worker-3", "nodeName": "worker-3", "conditions": {"ready": False}, "addresses": ["10.0.0.3"]},
    ],
}


def test_nodes_of_a_headless_service_go_by_the_names_in_their_certificates() -> None:
    """A service without Flight is told."""
    assert [node for node in addresses_of([SLICE]) if not node.trouble] == [
        FleetNode(
            name=node,
            flight=f"grpc+tls://{host}.flows-nodes.data.svc:8481",
            url=f"https://{host}.flows-nodes.data.svc:8480",
        )
        for host, node in (("worker-1", "worker-1"), ("worker-2", "worker.2"))
    ]
    with pytest.raises(SparkSourceError, match="no port flight"):
        addresses_of([{**SLICE, "ports": []}])


def test_http_is_at_the_usual_port_unless_said_otherwise() -> None:
    """Runs of reclamation go over HTTP."""
    assert http_url_of(FleetNode(name="a", flight="grpc://10.0.0.1:9")) == "http://10.0.0.1:8480"
    assert http_url_of(FleetNode(name="a", flight="grpc+tls://a.b:9")) == "https://a.b:8480"
    assert http_url_of(FleetNode(name="a", flight="grpc://x:9", url="http://y:1")) == "http://y:1"


def test_a_renewed_token_makes_a_new_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A projected token is replaced every hour: each use reads the file again."""
    monkeypatch.setenv("ULLAGE_CREDENTIALS", str(tmp_path))
    file = tmp_path / "token"
    settings = SourceOptions.of({"endpoint": "grpc://127.0.0.1:1", "tokenFile": str(file)})
    node = FleetNode(name="a", flight="grpc://127.0.0.1:1")
    file.write_text("one\n", encoding="utf-8")
    first = flight_of(settings, node)
    assert (settings.bearer(node.flight), flight_of(settings, node)) == ("one", first)

    file.write_text("two\n", encoding="utf-8")
    assert settings.bearer(node.flight) == "two"
    assert flight_of(settings, node) is not first
