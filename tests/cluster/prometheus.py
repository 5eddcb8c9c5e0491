"""A real Prometheus, Debian's."""

import json
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.cluster.control_plane import ControlPlane
from tests.cluster.debian import program
from tests.cluster.errors import ClusterError


def scraping(
    agents: list[str], operator: str, *, tls: dict[str, str], token: str, every: str, alerts: str
) -> dict[str, Any]:
    """The configuration by which agents are scraped over TLS with a token, and the operator as it is."""
    mine = {
        "job_name": "ullage-agent",
        "scheme": "https",
        "tls_config": tls,
        "authorization": {"credentials_file": token},
        "static_configs": [{"targets": agents}],
    }
    theirs = {"job_name": "ullage-operator", "honor_labels": True, "static_configs": [{"targets": [operator]}]}
    paces = dict.fromkeys(("scrape_interval", "scrape_timeout", "evaluation_interval"), every)
    return {"global": paces, "scrape_configs": [mine, theirs], "rule_files": [alerts]}


class Sample(NamedTuple):
    """One series at one moment."""

    labels: dict[str, str]
    value: float


class Series(NamedTuple):
    """One over a stretch of time: moments, in seconds since 1970, and values."""

    labels: dict[str, str]
    points: list[tuple[float, float]]


class Answers:
    """What a running Prometheus answers."""

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expression: str, at: float | None = None) -> list[Sample]:
        """An instant query; `at`: seconds since 1970, else now."""
        given = {"query": expression} | ({} if at is None else {"time": f"{at:.3f}"})
        found = self._answer("query", given)
        return [Sample(each["metric"], float(each["value"][1])) for each in found]

    def query_stretch(self, expression: str, begin: float, end: float, step: float) -> list[Series]:
        """A range query; all times in seconds."""
        given = {"query": expression, "start": f"{begin:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}
        found = self._answer("query_range", given)
        return [Series(each["metric"], [(float(at), float(value)) for at, value in each["values"]]) for each in found]

    def _answer(self, path: str, given: dict[str, str]) -> list[Any]:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(given)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                result: list[Any] = json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise ClusterError(f"{given['query']}: {error.read().decode()}") from error
        return result

    def is_ready(self) -> bool:
        """Whether it serves."""
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


class Prometheus(Answers):
    """Scrapes until the cluster ends, or `end`."""

    def __init__(self, cluster: ControlPlane, folder: Path, config: dict[str, Any]) -> None:
        port = cluster.instance.free_port()
        super().__init__(f"http://127.0.0.1:{port}")
        self._instance, self._name = cluster.instance, f"prometheus-{port}"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "prometheus.yml"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        flags = [f"--config.file={path}", f"--storage.tsdb.path={folder / 'data'}", "--log.level=warn"]
        flags.append(f"--web.listen-address=127.0.0.1:{port}")
        cluster.instance.start(self._name, [program("prometheus", "prometheus"), *flags])
        cluster.wait_until("Prometheus is ready", self.is_ready)

    def end(self) -> None:
        self._instance.end(self._name)
