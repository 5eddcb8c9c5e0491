"""What charts/ullage holds that has its place elsewhere: CRDs, rules, dashboards, README."""

# ruff: noqa: E501 - panels are a table
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from ullage_operator.rbac import (
    CLIENT_ROLES,
    JOB_RULES,
    NODE_RULES,
    OPERATOR_CLUSTER_RULES,
    OPERATOR_NAMESPACED_RULES,
    OPERATOR_OWN_RULES,
    PLANNER_RULES,
    SPARK_RULES,
    admission_policy,
)

ROOT: Final = Path(__file__).parents[1]
CHART: Final = ROOT / "charts/ullage"

AGENT: Final = 'job=~"$job",instance=~"$instance"'
OPERATOR: Final = 'job="ullage-operator"'
RATE: Final = "[$__rate_interval]"

# Title, unit, what it says, expression with %s for the selector, legend.
NODE: Final = (
    ("Space in use", "bytes", "Live content.", "ullage_container_live_bytes{%s}", "{{container}}"),
    (
        "Dead space",
        "bytes",
        "Content that may be reclaimed.",
        "ullage_container_dead_bytes{%s}",
        "{{container}} {{kind}}",
    ),
    ("Archive", "bytes", "Content kept for replay.", "ullage_container_archived_bytes{%s}", "{{container}}"),
    ("Tombstones", "bytes", "Kept for an undelete.", "ullage_container_tombstone_bytes{%s}", "{{container}}"),
    ("Free", "bytes", "What the volumes have left.", "ullage_volume_free_bytes{%s}", "{{container}}"),
    ("Write amplification", "none", "Written to stored.", "ullage_write_amplification_ratio{%s}", "{{instance}}"),
    ("Reclaimed", "Bps", "Blocks given back.", f"rate(ullage_reclaim_freed_bytes_total{{%s}}{RATE})", "{{instance}}"),
    (
        "Reclaim actions",
        "ops",
        "By action.",
        f"sum by (action) (rate(ullage_reclaim_actions_total{{%s}}{RATE}))",
        "{{action}}",
    ),
    ("Windows", "bool", "1 if allowed now.", "ullage_window_open{%s}", "{{operation}}"),
    (
        "Commit p99",
        "s",
        "Encoding to sync.",
        f"histogram_quantile(0.99, sum by (le, instance) (rate(ullage_commit_seconds_bucket{{%s}}{RATE})))",
        "{{instance}}",
    ),
    ("Log", "bytes", "Write-ahead log.", "ullage_log_bytes{%s}", "{{instance}}"),
    ("Age of checkpoint", "s", "Since the last.", "ullage_checkpoint_age_seconds{%s}", "{{instance}}"),
    ("Provenance waiting", "short", "Events in no file yet.", "ullage_provenance_waiting_events{%s}", "{{instance}}"),
    ("Not shipped for", "s", "The oldest transaction.", "ullage_replication_lag_seconds{%s}", "{{instance}}"),
    ("Not shipped", "bytes", "Log and content.", "ullage_replication_lag_bytes{%s}", "{{instance}}"),
    ("Shipping fails", "bool", "1 while it does.", "ullage_replication_failing{%s}", "{{instance}}"),
    ("Errors", "ops", "Refusals and failures.", f"sum by (slug) (rate(ullage_errors_total{{%s}}{RATE}))", "{{slug}}"),
    ("Poisoned", "bool", "1 after a failed sync.", "ullage_container_poisoned{%s}", "{{container}}"),
    ("Ready", "bool", "1 if commits can succeed.", "ullage_ready{%s}", "{{instance}}"),
    ("On disk", "bytes", "Blocks of content files.", "ullage_container_disk_bytes{%s}", "{{container}}"),
    ("Kept by leases", "bytes", "Files that stay as they are.", "ullage_container_leased_bytes{%s}", "{{container}}"),
    ("Orphans", "bytes", "Of transactions that never came.", "ullage_container_orphan_bytes{%s}", "{{container}}"),
    ("Oldest dead byte", "s", "0 without a goal.", "ullage_goal_oldest_dead_seconds{%s}", "{{instance}}"),
    ("Goal missed", "bool", "1 if it is, or is foreseen to be.", "ullage_goal_missed{%s}", "{{instance}}"),
    ("Back-pressure", "bool", "1 if writers wait.", "ullage_container_back_pressure{%s}", "{{container}}"),
    ("Away", "bool", "1 while the volume is not there.", "ullage_container_away{%s}", "{{container}}"),
    ("FlowFiles", "short", "In all queues.", "ullage_flow_files{%s}", "{{instance}}"),
    (
        "Stream backlog",
        "short",
        "Not read yet, by stream.",
        "ullage_stream_backlog{%s}",
        "{{instance}} {{stream}} {{queue}}",
    ),
    (
        "Stream lag",
        "s",
        "Since when the first of it waits.",
        "time() - ullage_stream_oldest_unread_timestamp_seconds{%s}",
        "{{instance}} {{stream}} {{queue}}",
    ),
    ("Full queues", "short", "At their limits.", "ullage_queues_full{%s}", "{{instance}}"),
    ("Unavailable contents", "short", "Damaged or missing.", "ullage_unavailable_contents{%s}", "{{instance}}"),
    ("Unavailable swap files", "short", "The same.", "ullage_unavailable_swap_files{%s}", "{{instance}}"),
    ("Records set aside", "short", "Kept for a person.", "ullage_records_set_aside{%s}", "{{instance}}"),
    ("Unproved files", "short", "To be read after an unclean end.", "ullage_unproved_files{%s}", "{{instance}}"),
    ("Clock offset", "s", "0 if it is plausible.", "ullage_clock_offset_seconds{%s}", "{{instance}}"),
    ("Leases", "short", "That stand.", "ullage_leases{%s}", "{{instance}}"),
    ("Sessions", "short", "Of remote clients.", "ullage_sessions{%s}", "{{instance}}"),
    ("Audit lines lost", "ops", "0 is right.", f"rate(ullage_audit_lost_lines_total{{%s}}{RATE})", "{{instance}}"),
)
FLEET: Final = (
    ("Live", "bytes", "Live content of all nodes.", "sum(ullage_container_live_bytes{%s})", "live"),
    ("Dead by kind", "bytes", "What may be reclaimed.", "sum by (kind) (ullage_container_dead_bytes{%s})", "{{kind}}"),
    ("Reclaimed", "Bps", "Blocks given back.", f"sum(rate(ullage_reclaim_freed_bytes_total{{%s}}{RATE}))", "freed"),
    (
        "Copied",
        "Bps",
        "Bytes that rewrites copied.",
        f"sum(rate(ullage_reclaim_copied_bytes_total{{%s}}{RATE}))",
        "copied",
    ),
    (
        "Fullest",
        "percentunit",
        "The ten fullest containers.",
        "topk(10, ullage_container_used_ratio{%s})",
        "{{instance}} {{container}}",
    ),
    ("Errors", "ops", "All nodes.", f"sum by (slug) (rate(ullage_errors_total{{%s}}{RATE}))", "{{slug}}"),
)
FLEET_OPERATOR: Final = (
    ("Nodes", "short", "By state.", "ullage_operator_nodes{%s}", "{{namespace}}/{{repository}} {{state}}"),
    ("Windows open", "bool", "1 while tickets may be given.", "ullage_operator_window_open{%s}", "{{namespace}}/{{repository}}"),
    ("Tickets", "short", "Nodes that hold one.", "ullage_operator_tickets{%s}", "{{namespace}}/{{repository}}"),
    ("Deferrals", "short", "Nodes that wait.", "ullage_operator_deferred_nodes{%s}", "{{namespace}}/{{repository}}"),
    ("Wanting", "short", "Nodes with something to give back.", "ullage_operator_wanting_nodes{%s}", "{{namespace}}/{{repository}}"),
    ("Overdue", "short", "Waited longer than maxDefer.", "ullage_operator_overdue_nodes{%s}", "{{namespace}}/{{repository}}"),
    ("Certificates end in", "s", "The first of an agent's.", "ullage_operator_certificate_expiry_timestamp_seconds{%s} - time()", "{{namespace}}/{{repository}}"),
    ("Backups current", "bool", "0 for one that is too old.", "ullage_operator_backup_current{%s}", "{{namespace}}/{{backup}}"),
    ("Backups damaged", "bool", "1 while damage stands.", "ullage_operator_backup_damaged{%s}", "{{namespace}}/{{backup}}"),
    ("Backups verified", "bool", "0 if that failed or is too old.", "ullage_operator_backup_verified{%s}", "{{namespace}}/{{backup}}"),
    ("Conditions", "bool", "1 while one is True.", 'ullage_operator_condition{%s,status="True"}', "{{namespace}}/{{repository}} {{type}}"),
    ("Operators at work", "short", "1 is right; others stand by.", "sum(ullage_operator_working{%s})", "working"),
    ("Reconciliations", "ops", "By outcome.", f"sum by (outcome) (rate(ullage_operator_reconciles_total{{%s}}{RATE}))", "{{outcome}}"),
)  # fmt: skip

NIFI: Final = (
    ("Content repository", "bytes", "All its files, by use.", "ullage_nifi_content_bytes{%s}", "{{instance}} {{use}}"),
    ("Dead share", "percentunit", "Of all files, what no FlowFile has.", 'sum by (instance) (ullage_nifi_content_bytes{%s,use=~"dead_.*"}) / sum by (instance) (ullage_nifi_content_bytes{%s})', "{{instance}}"),
    ("Disk to live", "none", "Bytes on the disk for each live one.", 'sum by (instance) (ullage_nifi_content_allocated_bytes{%s}) / sum by (instance) (ullage_nifi_content_bytes{%s,use="live"} > 0)', "{{instance}}"),
    ("Free", "bytes", "What the volumes have left.", "ullage_nifi_volume_free_bytes{%s}", "{{instance}} {{container}}"),
    ("Used", "percentunit", "Of the volumes.", "1 - ullage_nifi_volume_free_bytes{%s} / ullage_nifi_volume_size_bytes{%s}", "{{instance}} {{container}}"),
    ("Full in", "s", "At the pace of the last hour; nothing where it does not fill.", "ullage_nifi_volume_free_bytes{%s} / (- deriv(ullage_nifi_volume_free_bytes{%s}[1h]) > 0)", "{{instance}} {{container}}"),
    ("Comes back if emptied", "bytes", "What no other queue holds, live and dead.", "ullage_nifi_queue_alone_bytes{%s}", "{{instance}} {{queue}}"),
    ("Dead bytes pinned", "bytes", "In the files of each queue; others may hold them too.", "ullage_nifi_queue_dead_bytes{%s}", "{{instance}} {{queue}}"),
    ("Content waiting", "bytes", "Of the FlowFiles of each queue.", "ullage_nifi_queue_bytes{%s}", "{{instance}} {{queue}}"),
    ("FlowFiles waiting", "short", "By queue.", "ullage_nifi_queue_flowfiles{%s}", "{{instance}} {{queue}}"),
    ("Waiting since", "s", "How long the first of a queue waits.", "time() - ullage_nifi_queue_oldest_timestamp_seconds{%s}", "{{instance}} {{queue}}"),
    ("Pinned by age", "bytes", "Dead bytes by the FlowFile that waits longest in a file.", "ullage_nifi_waiting_dead_bytes{%s}", "{{instance}} {{waiting}}"),
    ("Pinned by size", "bytes", "Dead bytes by the largest FlowFile in a file.", "ullage_nifi_size_dead_bytes{%s}", "{{instance}} {{size}}"),
    ("Content files", "short", "On the disk.", "ullage_nifi_content_files{%s}", "{{instance}}"),
    ("FlowFiles", "short", "In all queues.", "ullage_nifi_flowfiles{%s}", "{{instance}}"),
    ("Content not on the disk", "short", "FlowFiles that NiFi will fail to read: 0 is right.", "ullage_nifi_unreadable_flowfiles{%s}", "{{instance}}"),
    ("Survey succeeded", "bool", "0 if the last one failed.", "ullage_nifi_survey_success{%s}", "{{instance}}"),
    ("Age of the survey", "s", "Values are of this moment.", "time() - ullage_nifi_survey_timestamp_seconds{%s}", "{{instance}}"),
    ("Survey takes", "s", "The last one, or that which goes on.", "ullage_nifi_survey_duration_seconds{%s}", "{{instance}}"),
    ("Files not readable", "short", "Damaged or missing files of NiFi's: 0 is right.", "ullage_nifi_survey_damages{%s}", "{{instance}}"),
)  # fmt: skip


def variable(name: str, of: str) -> dict[str, Any]:
    """One that Grafana fills from the label of a series."""
    query = f"label_values({of}, {name})"
    source = {"type": "prometheus", "uid": "${datasource}"}
    rest = {"includeAll": True, "multi": True, "allValue": ".+", "refresh": 2, "label": name, "sort": 1}
    return {"name": name, "type": "query", "datasource": source, "query": query, **rest}


def panel(number: int, row: tuple[str, str, str, str, str], selector: str) -> dict[str, Any]:
    """One graph, two side by side."""
    title, unit, description, expression, legend = row
    source = {"type": "prometheus", "uid": "${datasource}"}
    target = {"datasource": source, "expr": expression.replace("%s", selector), "legendFormat": legend, "refId": "A"}
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "description": description,
        "datasource": source,
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "gridPos": {"h": 8, "w": 12, "x": 12 * (number % 2), "y": 8 * (number // 2)},
        "targets": [target],
    }


def dashboard(name: str, panels: list[dict[str, Any]], *, title: str = "", of: str = "ullage_build_info") -> str:
    """A whole one, in Grafana's JSON. `of`: a metric that each instance has which is to be chosen from."""
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}
    templates = [source, variable("job", of), variable("instance", f'{of}{{job=~"$job"}}')]
    made = {
        "uid": f"ullage-{name}",
        "title": title or f"Ullage / {name}",
        "editable": False,
        "schemaVersion": 39,
        "tags": ["ullage"],
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "1m",
        "templating": {"list": templates},
        "panels": panels,
    }
    return json.dumps(made, indent=2) + "\n"


def values_table(text: str, prefix: str = "") -> list[str]:
    """A row for each value that has a comment of its own."""
    rows, comment, parent = [], "", ""
    for line in text.splitlines():
        if found := re.fullmatch(r"( {0,2})# (.*)", line):
            comment = found[2]
        elif found := re.match(r"( {0,2})(\w+):(.*)", line):
            name = f"{parent}.{found[2]}" if found[1] else found[2]
            parent = parent if found[1] else found[2]
            if comment:
                rows.append(f"| `{prefix}{name}` | {f'`{found[3].strip()}`' if found[3].strip() else ''} | {comment} |")
            comment = ""
        elif not line:
            comment = ""
    return rows


README_HEAD: Final = """# Ullage's chart

    helm install ullage charts/ullage --namespace ullage-system --create-namespace

`helm upgrade` upgrades the CRDs too; `helm uninstall` leaves them, and refuses while a ContentRepository exists
(`uninstall.repositories`). The operator's namespace may be `restricted`; that of agents with `hostPath` may not.

| Value | Default | |
|-|-|-|
"""


def texts(definitions: Mapping[Path, str]) -> dict[Path, str]:
    """Every file that is made here, the CRDs among them."""
    made = {
        CHART / "files/crds" / path.name: text for path, text in definitions.items() if path.parent == ROOT / "crds"
    }
    rules = {
        "namespaced": OPERATOR_NAMESPACED_RULES,
        "own": OPERATOR_OWN_RULES,
        "nodes": NODE_RULES,
        "cluster": OPERATOR_CLUSTER_RULES,
        "spark": SPARK_RULES,
        "planner": PLANNER_RULES,
        "job": JOB_RULES,
        "clients": CLIENT_ROLES,
    }
    made[CHART / "files/rbac.yaml"] = yaml.safe_dump(rules, sort_keys=False)
    for document in admission_policy():
        path = CHART / "files/admission" / f"{document['metadata']['name']}-{document['kind'].lower()}.yaml"
        made[path] = yaml.safe_dump(document, sort_keys=False, width=120)
    node = [panel(i, row, AGENT) for i, row in enumerate(NODE)]
    fleet = [panel(i, row, AGENT if row in FLEET else OPERATOR) for i, row in enumerate(FLEET + FLEET_OPERATOR)]
    made[CHART / "files/dashboards/node.json"] = dashboard("node", node)
    made[CHART / "files/dashboards/fleet.json"] = dashboard("fleet", fleet)
    nifi = [panel(i, row, AGENT) for i, row in enumerate(NIFI)]
    title = "NiFi content repository: what pins it"
    made[CHART / "files/dashboards/nifi.json"] = dashboard("nifi", nifi, title=title, of="ullage_nifi_survey_success")
    rows = values_table((CHART / "values.yaml").read_text(encoding="utf-8"))
    made[CHART / "README.md"] = README_HEAD + "\n".join(rows) + "\n"
    return made
