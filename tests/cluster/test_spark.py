import secrets
from collections.abc import Iterator

import pytest

from tests.cluster import images
from tests.cluster.node import Cluster
from tests.cluster.spark import ANSWER, install_operator, run_application, spark_account, submit


@pytest.fixture
def spark_namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace whose account may run Spark, on nodes that have the image."""
    cluster.load(images.archive("spark"))
    with cluster.namespace(f"spark-{secrets.token_hex(4)}") as namespace:
        cluster.apply(*spark_account(namespace))
        yield namespace


def test_a_job_runs_in_cluster_mode(cluster: Cluster, spark_namespace: str) -> None:
    """spark-submit makes a driver, the driver two executors; they agree on a sum, and find the source in the image."""
    printed = submit(cluster, spark_namespace)

    assert ANSWER in printed, printed[-8000:]


def test_the_kubeflow_operator_runs_an_application(cluster: Cluster, spark_namespace: str) -> None:
    """The same job as a SparkApplication: the operator submits it and sees it complete."""
    install_operator(cluster, spark_namespace)

    state, printed = run_application(cluster, spark_namespace)

    assert state == "COMPLETED", printed[-8000:]
    assert ANSWER in printed, printed[-8000:]
