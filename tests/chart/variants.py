"""The chart's objects as people install them: by default, by each profile, and with everything on."""

from pathlib import Path

import yaml

from tests.chart.test_chart import CHART, EVERYTHING, helm

REPOSITORY = yaml.safe_load((CHART.parents[1] / "examples/kubernetes/repository.yaml").read_text(encoding="utf-8"))
ALL_ON = {
    "imagePullSecrets": [{"name": "registry"}],
    "namespaces": ["data", "more"],
    "sparkNamespaces": ["spark"],
    "spark": {"accounts": [{"namespace": "data", "account": "etl", "accountNamespace": "spark"}]},
    "podLabels": {"team": "flows"},
    "podAnnotations": {"told": "why"},
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "affinity": {"nodeAffinity": {}},
    "tolerations": [{"operator": "Exists"}],
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
    "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {"matchLabels": {"team": "watch"}}}]},
    "sample": {"enabled": True, "spec": REPOSITORY["spec"]},
}
"""Each value that adds an object or a part of one, but for those of `EVERYTHING`."""

EVERYTHING_ON = "everything"


def rendered_variants(chart: Path, folder: Path) -> list[Path]:
    """A file for each in a folder, named by what was chosen. `chart`: a folder or a package."""
    everything = folder / "values.json"
    everything.write_text(yaml.safe_dump(ALL_ON), encoding="utf-8")
    flags = [word for value in EVERYTHING for word in ("--set", value)]
    chosen = {"default": [], EVERYTHING_ON: ["--values", str(everything), *flags]}
    chosen |= {path.stem: ["--values", str(path)] for path in sorted(CHART.glob("profiles/*.yaml"))}
    written = []
    for name, words in chosen.items():
        done = helm("template", "ullage", str(chart), "--namespace", "ullage-system", *words)
        assert done.returncode == 0, done.stderr
        written.append(folder / f"{name}.yaml")
        written[-1].write_text(done.stdout, encoding="utf-8")
    return written
