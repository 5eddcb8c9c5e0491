"""Makes crds/ and deploy/install.yaml from the contract.

Types, bounds and defaults come from the Structs, descriptions from the strings below their fields, so that there is one
text. What joins fields is said again here, in CEL.
"""

import enum
import inspect
import types
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import yaml
from msgspec import Meta

from tools.crd_rules import NAMED, RULES
from ullage import contract
from ullage.contract import (
    ContainerSettings,
    Duration,
    Quantity,
    StorageSettings,
)
from ullage.wire.documents import field_texts
from ullage_operator.install import install_objects

TARGET: Final = Path(__file__).parents[1] / "crds"
INSTALL: Final = TARGET.parent / "deploy" / "install.yaml"
BYTES_MAX: Final = 256 * 1024
"""What `kubectl apply` can still keep in an annotation."""

TEXT_MAX: Final = 48
"""Characters of a quantity or a duration: the cost of rules on them is counted in these."""

HEADER: Final = "# Written by tools/crds.py from ullage.contract: change that, and run `make generate`.\n"


POSITIVE: Final = {
    ("ClaimSettings", "maxAppendableSize"),
    ("ClaimSettings", "maxBatchFile"),
    ("ClaimSettings", "largeClaim"),
    ("ContainerSettings", "capacity"),
    ("LocalPersistentVolume", "size"),
    ("DurabilitySettings", "interval"),
    ("ArchiveSettings", "cleanupFrequency"),
    ("FlowFileSettings", "checkpointInterval"),
    ("FlowFileSettings", "checkpointLogSize"),
    ("FlowFileSettings", "walMaxBytes"),
    ("TruncationSettings", "frequency"),
    ("CompactionSettings", "checkFrequency"),
    ("CompactionSettings", "outputSize"),
    ("PunchSettings", "minRun"),
    ("PlanningSettings", "activeDeadline"),
    ("LeaseSettings", "maxDuration"),
    *(("ProvenanceSettings", name) for name in ("rolloverTime", "rolloverSize", "maxStorageTime", "maxStorageSize")),
    ("ProvenanceSettings", "indexShardSize"),
}
KEYED: Final = {("StorageSettings", "containers"): "name", ("MaintenanceSettings", "windows"): "name"}
UNDEFAULTED: Final = {("StorageSettings", "hostPath")}
"""Defaults that the API server must not fill in: hostPath stands there unless there is a claim."""


def schema_of(kind: Any) -> dict[str, Any]:  # noqa: PLR0911 - one for each form of a type
    """The OpenAPI schema of a type."""
    if get_origin(kind) is Annotated:
        inner, *metas = get_args(kind)
        schema = schema_of(inner)
        for meta in metas:
            schema |= _bounds(meta)
        return schema
    if get_origin(kind) in {Union, types.UnionType}:
        return _union(kind)
    if get_origin(kind) is tuple:
        schema = {"type": "array", "items": schema_of(get_args(kind)[0])}
        return schema | {"x-kubernetes-list-type": "atomic"}
    if get_origin(kind) is Literal:
        return {"type": "string", "enum": list(get_args(kind))}
    if get_origin(kind) is dict:
        value = get_args(kind)[1]
        if value is Any:
            return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        return {"type": "object", "additionalProperties": schema_of(value)}
    return _plain(kind)


def _plain(kind: Any) -> dict[str, Any]:
    if kind is Quantity:
        return {
            "x-kubernetes-int-or-string": True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": r"^[0-9]+(\.[0-9]+)?(k|[KMGTPE]i|[MGTPE]|[eE][0-9]{1,2})?$",
            "maxLength": TEXT_MAX,
        }
    if kind is Duration:
        return {"type": "string", "pattern": r"^(0|([0-9]+(\.[0-9]+)?(ms|s|m|h))+)$", "maxLength": TEXT_MAX}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"type": "string", "enum": [str(member.value) for member in kind]}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return struct_schema(kind)
    simple: dict[Any, dict[str, Any]] = {
        bool: {"type": "boolean"},
        int: {"type": "integer", "format": "int64"},
        float: {"type": "number"},
        str: {"type": "string"},
    }
    return dict(simple[kind])


def _union(kind: Any) -> dict[str, Any]:
    present = [option for option in get_args(kind) if option is not type(None)]
    if len(present) == 1:
        schema = schema_of(present[0])
        return (
            schema
            if isinstance(present[0], type) and issubclass(present[0], msgspec.Struct)
            else {**schema, "nullable": True}
        )
    number, text = (schema_of(option) for option in present)
    choice = {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}
    bounds = {**number, **text}
    return choice | {key: bounds[key] for key in ("minimum", "pattern", "maxLength") if key in bounds}


def _bounds(meta: Meta) -> dict[str, Any]:
    bounds: dict[str, Any] = {}
    for name, word in (
        ("ge", "minimum"),
        ("le", "maximum"),
        ("pattern", "pattern"),
        ("min_length", "min"),
        ("max_length", "max"),
    ):
        if getattr(meta, name) is not None:
            bounds[word] = getattr(meta, name)
    if meta.gt is not None:
        bounds |= {"minimum": meta.gt, "exclusiveMinimum": True}
    if meta.lt is not None:
        bounds |= {"maximum": meta.lt, "exclusiveMaximum": True}
    return bounds


def _sized(schema: dict[str, Any]) -> dict[str, Any]:
    """Lengths have a name for each type."""
    suffix = {"array": "Items", "object": "Properties"}.get(schema.get("type", "string"), "Length")
    for word in ("min", "max"):
        if word in schema:
            schema[f"{word}{suffix}"] = schema.pop(word)
    for child in (schema.get("items"), schema.get("additionalProperties")):
        if isinstance(child, dict):
            _sized(child)
    return schema


def struct_schema(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """The schema of a Struct, with descriptions, defaults and rules."""
    hints = get_type_hints(struct, include_extras=True)
    texts = field_texts(struct)
    properties: dict[str, Any] = {}
    required = []
    for field in msgspec.structs.fields(struct):
        schema = _sized(schema_of(hints[field.name]))
        place = (struct.__name__, field.encode_name)
        if text := texts.get(field.name):
            schema["description"] = text
        if key := KEYED.get(place):
            schema |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
        if field.name == "conditions":
            schema |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
        if place in POSITIVE:
            schema["x-kubernetes-validations"] = [_positive(hints[field.name])]
        if field.required:
            required.append(field.encode_name)
        elif place not in UNDEFAULTED and issubclass(struct, contract_section()):
            schema |= _default(field, schema)
        properties[field.encode_name] = schema
    result: dict[str, Any] = {"type": "object", "description": " ".join(inspect.getdoc(struct).split())}  # type: ignore[union-attr]
    result["properties"] = properties
    if required:
        result["required"] = required
    if rules := RULES.get(struct.__name__):
        result["x-kubernetes-validations"] = rules
    return result


def contract_section() -> tuple[type, ...]:
    """Structs whose defaults the API server fills in: wishes, not reports."""
    return (StorageSettings.__mro__[1], contract.NodeSpec, contract.RunSpec, contract.BackupSpec, contract.RestoreSpec)


def _positive(kind: Any) -> dict[str, str]:
    if kind is Duration:
        return {"rule": "duration(self) > duration('0s')", "message": "must be above 0s"}
    return {"rule": "quantity(string(self)).isGreaterThan(quantity('0'))", "message": "must be above 0"}


def _default(field: Any, schema: dict[str, Any]) -> dict[str, Any]:
    """Whole objects: the API server checks a default before it fills in those below it."""
    default = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    if default is None:
        return {}
    if isinstance(default, msgspec.Struct):
        below = schema["properties"].items()
        return {"default": {name: part["default"] for name, part in below if "default" in part}}
    shown = msgspec.json.decode(msgspec.json.encode(default, enc_hook=str))
    for each, text in zip(default, shown, strict=True) if isinstance(default, tuple) else ():
        if isinstance(each, ContainerSettings):
            del text["localPersistentVolume"]  # a group is there or not, and never null
    return {"default": shown}


def column(name: str, path: str, kind: str = "string", description: str = "", priority: int = 0) -> dict[str, Any]:
    """What `kubectl get` shows."""
    made: dict[str, Any] = {"name": name, "type": kind, "jsonPath": path}
    return made | ({"description": description} if description else {}) | ({"priority": priority} if priority else {})


AGE: Final = column("Age", ".metadata.creationTimestamp", "date")
REASON: Final = '.status.conditions[?(@.type=="Ready")].reason'
CONDITION: Final = '.status.conditions[?(@.type=="{0}")].status'


def kinds() -> dict[str, dict[str, Any]]:
    """Each custom resource, by the name of its file."""
    return {
        "contentrepositories.yaml": definition(
            contract.ContentRepository,
            ("ContentRepository", "contentrepositories", "contentrepository", ["crepo"]),
            (contract.ContentRepositorySpec, contract.RepositoryStatus),
            [
                column("Nodes", ".status.nodes", "integer", "The number of nodes that should have an agent."),
                column("Ready", ".status.nodesReady", "integer", "The number of nodes whose agent serves."),
                column("Live", ".status.live", description="The bytes of content that something points at."),
                column("Dead", ".status.dead", description="The bytes of content that nothing points at."),
                column("Reclaimed", ".status.reclaimed", description="The bytes given back since the agents started."),
                column("Next Window", ".status.nextWindow", description="When reclamation may run, or Paused."),
                column("Accepted", CONDITION.format("Accepted"), priority=1),
                column("Degraded", CONDITION.format("Degraded"), priority=1),
                column("Oldest Dead", ".status.oldestDead", "date", "When the oldest dead byte died.", priority=1),
                column("Goal Missed", CONDITION.format("GoalMissed"), priority=1),
                column("Replicated", CONDITION.format("Replicated"), priority=1),
                column(
                    "Sole Copy", ".status.soleCopyBytes", "integer", "The bytes that only their node has.", priority=1
                ),
                column("Planned", ".status.planning.lastRun", "date", "When Spark last made a plan.", priority=1),
                column("Planning", ".status.planning.result", description="How the last planning ended.", priority=1),
                AGE,
            ],
        ),
        "contentrepositorynodes.yaml": definition(
            contract.ContentRepositoryNode,
            ("ContentRepositoryNode", "contentrepositorynodes", "contentrepositorynode", ["crnode"]),
            (contract.NodeSpec, contract.NodeStatus),
            [
                column("Repository", ".spec.repository"),
                column("Node", ".spec.nodeName"),
                column("Ready", CONDITION.format("Ready")),
                column("Free %", ".status.space.freePercentage", "number"),
                column("Replicated", CONDITION.format("Replicated"), priority=1),
                column("Drained", CONDITION.format("Drained"), priority=1),
                column("Ticket", ".spec.ticket.id"),
                column("State", ".status.ticket.state"),
                column("Heartbeat", ".status.heartbeat", "date"),
                AGE,
            ],
            selectable=[".spec.repository", ".spec.nodeName"],
        ),
        "reclamationruns.yaml": definition(
            contract.ReclamationRun,
            ("ReclamationRun", "reclamationruns", "reclamationrun", ["reclaim"]),
            (contract.RunSpec, contract.RunStatus),
            [
                column("Repository", ".spec.repository"),
                column("Phase", ".status.phase"),
                column("Done", ".status.nodesDone", "integer"),
                column("Nodes", ".status.nodes", "integer"),
                column("Freed", ".status.freed"),
                column("Dry Run", ".spec.dryRun", "boolean"),
                AGE,
            ],
            selectable=[".spec.repository"],
        ),
        "contentbackups.yaml": _backups(),
        "contentrestores.yaml": _restores(),
    }


def _backups() -> dict[str, Any]:
    return definition(
        contract.ContentBackup,
        ("ContentBackup", "contentbackups", "contentbackup", ["cbackup"]),
        (contract.BackupSpec, contract.BackupStatus),
        [
            column("Repository", ".spec.repository"),
            column("Phase", ".status.phase"),
            column("Current", CONDITION.format("BackupCurrent"), description="Whether it is whole, and not too old."),
            column("Verified", CONDITION.format("BackupVerified"), description="Whether it was read and is whole."),
            column("Nodes Done", ".status.nodesDone", "integer", "The nodes that are done with the last run."),
            column("Nodes", ".status.nodes", "integer", "The nodes that the last run is about."),
            column("Last Success", ".status.lastSuccess", "date", "When the last run was due that had every node."),
            column("Next Run", ".status.nextRun", description="When the next run is due, in UTC."),
            column("Reason", REASON, description="Why the backup waits, or how its last run ended.", priority=1),
            column("Schedule", ".spec.schedule", priority=1),
            column("Bucket", ".spec.bucket", priority=1),
            AGE,
        ],
        selectable=[".spec.repository"],
    )


def _restores() -> dict[str, Any]:
    return definition(
        contract.ContentRestore,
        ("ContentRestore", "contentrestores", "contentrestore", ["crestore"]),
        (contract.RestoreSpec, contract.RestoreStatus),
        [
            column("Repository", ".spec.repository"),
            column("Node", ".spec.node"),
            column("Phase", ".status.phase"),
            column("Reason", REASON, description="Why the restoration waits, or how it ended."),
            column("Progress", ".status.progress", description="How far the present step is: copying, then checking."),
            column(
                "Generation", ".status.generation", "integer", "The generation that was brought back, or 0.", priority=1
            ),
            column("Backup", ".spec.backup", description="The ContentBackup that wrote the backup.", priority=1),
            column("Place", ".status.place", description="Where the backup lies.", priority=1),
            AGE,
        ],
        selectable=[".spec.repository"],
    )


def definition(
    kind: type,
    names: tuple[str, str, str, list[str]],
    parts: tuple[type[msgspec.Struct], type[msgspec.Struct]],
    columns: list[dict[str, Any]],
    selectable: list[str] | None = None,
) -> dict[str, Any]:
    """One CustomResourceDefinition."""
    name, plural, singular, short = names
    spec, status = (struct_schema(part) for part in parts)
    if "required" not in spec:
        below = spec["properties"].items()
        spec["default"] = {name: part["default"] for name, part in below if "default" in part}
    schema: dict[str, Any] = {
        "type": "object",
        "description": " ".join(inspect.getdoc(kind).split()),  # type: ignore[union-attr]
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": status,
        },
    }
    if "required" in spec:
        schema["required"] = ["spec"]
    if kind is contract.ContentRepository:
        schema["x-kubernetes-validations"] = [NAMED]
    version: dict[str, Any] = {
        "name": contract.API_VERSION.rpartition("/")[2],
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": columns,
        "schema": {"openAPIV3Schema": schema},
    }
    if selectable:
        version["selectableFields"] = [{"jsonPath": path} for path in selectable]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{contract.GROUP}", "annotations": {"helm.sh/resource-policy": "keep"}},
        "spec": {
            "group": contract.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": name,
                "listKind": f"{name}List",
                "plural": plural,
                "singular": singular,
                "shortNames": short,
                "categories": ["ullage"],
            },
            "versions": [version],
        },
    }


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def text_of(document: dict[str, Any]) -> str:
    """The file of one definition."""
    text = HEADER + yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)
    assert len(text.encode()) < BYTES_MAX, f"{document['metadata']['name']} is larger than `kubectl apply` takes"
    return text


def texts() -> dict[Path, str]:
    """Every file that is made here: a definition each, and all that `kubectl apply` needs to install the operator."""
    made = {TARGET / file: text_of(document) for file, document in kinds().items()}
    rest = yaml.dump_all(install_objects(), Dumper=_Dumper, sort_keys=False, width=120)
    return {**made, INSTALL: "---\n".join([*made.values(), rest])}
