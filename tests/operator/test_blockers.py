from typing import Any

import pytest

from ullage_operator.node.blockers import by_node


def pod(labels: dict[str, str], phase: str = "Running") -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "namespace": "jobs", "labels": labels},
        "spec": {"nodeName": "n"},
        "status": {"phase": phase},
    }


EXECUTOR = {"spark-role": "executor", "spark-app-selector": "spark-1", "spark-app-name": "etl"}


@pytest.mark.parametrize(
    ("labels", "name"),
    [
        (EXECUTOR, "jobs/etl"),
        ({"spark-role": "driver", "spark-app-selector": "spark-1"}, "jobs/spark-1"),
        ({**EXECUTOR, "sparkoperator.k8s.io/app-name": "nightly"}, "jobs/nightly"),
        ({**EXECUTOR, "spark.operator/spark-app-name": "daily"}, "jobs/daily"),
        ({"ullage.dev/blocks-reclamation": "true"}, "jobs/p"),
    ],
)
def test_an_application_has_the_name_that_people_gave_it(labels: dict[str, str], name: str) -> None:
    """Plain spark-submit, both operators, and pods that opted in."""
    assert by_node([pod(labels)]) == {"n": (name,)}


@pytest.mark.parametrize(
    "gone",
    [
        pod({**EXECUTOR, "spark-exec-inactive": "true"}),
        pod(EXECUTOR, "Succeeded"),
        pod(EXECUTOR, "Failed"),
        pod({**EXECUTOR, "ullage.dev/ignored": "true"}),
    ],
)
def test_who_reads_nothing_any_more_is_not_waited_for(gone: dict[str, Any]) -> None:
    """Finished executors that are kept, ended pods, and applications that nobody is to wait for."""
    assert by_node([gone]) == {}
