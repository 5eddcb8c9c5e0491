from tests.cluster.fleet import Fleet
from tests.cluster.workloads import made


def test_a_fleet_runs_pods_on_all_its_nodes(fleet: Fleet) -> None:
    """A DaemonSet has a ready pod on each of fifty played nodes, and on whatever others there are."""
    names = fleet.add_nodes(50)
    labels = {"app": "everywhere"}
    with fleet.namespace("everywhere") as namespace:
        pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
        spec = {"selector": {"matchLabels": labels}, "template": pod}
        fleet.apply(made("apps/v1", "DaemonSet", "everywhere", namespace, spec=spec))

        def ready() -> int:
            status = fleet.get("daemonset/everywhere", "--namespace", namespace)["status"]
            return int(status.get("numberReady", 0))

        def nodes() -> int:
            return len(fleet.get("nodes")["items"])  # other tests have some of their own

        fleet.wait_until("each node has a pod that is ready", lambda: 50 <= nodes() == ready())
    fleet.kubectl("delete", "nodes", *names, "--wait=false")
