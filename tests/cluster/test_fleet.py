from tests.cluster.fleet import Fleet


def test_a_fleet_runs_pods_on_all_its_nodes(fleet: Fleet) -> None:
    """A DaemonSet on fifty played nodes has fifty ready pods."""
    names = fleet.add_nodes(50)
    labels = {"app": "everywhere"}
    with fleet.namespace("everywhere") as namespace:
        pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
        fleet.apply(
            {
                "apiVersion": "apps/v1",
                "kind": "DaemonSet",
                "metadata": {"name": "everywhere", "namespace": namespace},
                "spec": {"selector": {"matchLabels": labels}, "template": pod},
            }
        )

        def ready() -> int:
            status = fleet.get("daemonset/everywhere", "--namespace", namespace)["status"]
            return int(status.get("numberReady", 0))

        fleet.wait_until("fifty pods are ready", lambda: ready() == 50)
    fleet.kubectl("delete", "nodes", *names, "--wait=false")
