"""What fields of a kind must hold together, as the CEL of its definition: the API server checks it before anybody."""

from typing import Final

from ullage.contract import REPOSITORY_NAME, REPOSITORY_NAME_MAX, RunSpec


def at_most(one: str, other: str) -> dict[str, str]:
    """One quantity must not exceed the other."""
    rule = f"quantity(string(self.{one})).compareTo(quantity(string(self.{other}))) <= 0"
    return {"rule": rule, "message": f"{one} must be at most {other}"}


HOST_PATH: Final = "(has({0}.hostPath) ? {0}.hostPath.path : '/var/lib/ullage')"
KEPT_REPOSITORY: Final = {
    "rule": "self.repository == oldSelf.repository",
    "message": "repository is immutable: make a new repository",
}

NAMED: Final = {
    "rule": f"self.metadata.name.matches('{REPOSITORY_NAME}') && size(self.metadata.name) <= {REPOSITORY_NAME_MAX}",
    "message": f"metadata.name must be a label of DNS of at most {REPOSITORY_NAME_MAX} characters that begins with a "
    "letter: Services are named after it",
}

RULES: Final[dict[str, list[dict[str, str]]]] = {
    "ArchiveSettings": [
        {
            "rule": "self.maxUsagePercentage < self.backpressurePercentage",
            "message": "backpressurePercentage must be above maxUsagePercentage",
        }
    ],
    "ClaimSettings": [at_most("maxAppendableSize", "maxBatchFile")],
    "ContentSettings": [KEPT_REPOSITORY],
    "FlowFileSettings": [
        KEPT_REPOSITORY,
        at_most("checkpointLogSize", "walMaxBytes"),
        {"rule": "self.swapBatch <= self.swapThreshold", "message": "swapBatch must be at most swapThreshold"},
    ],
    "ProvenanceSettings": [KEPT_REPOSITORY],
    "StorageSettings": [
        {
            "rule": "!(has(self.hostPath) && has(self.localPersistentVolume))",
            "message": "hostPath and localPersistentVolume exclude each other",
        },
        {
            "rule": "has(self.localPersistentVolume) == has(oldSelf.localPersistentVolume)",
            "message": "hostPath and localPersistentVolume cannot be changed into each other: make a new repository",
        },
        {
            "rule": f"{HOST_PATH.format('self')} == {HOST_PATH.format('oldSelf')}",
            "message": "hostPath.path is immutable: make a new repository",
        },
        {"rule": "self.sections == oldSelf.sections", "message": "sections is immutable: make a new repository"},
        {
            "rule": "oldSelf.containers.all(old, self.containers.exists(c, c.name == old.name) ? "
            "self.containers.exists(c, c.name == old.name && c.subPath == old.subPath "
            "&& has(c.localPersistentVolume) == has(old.localPersistentVolume)) : old.evacuate)",
            "message": "containers may be appended, never moved to another path or volume, and removed only once they "
            "had evacuate: true",
        },
        {
            "rule": "has(self.localPersistentVolume) || self.containers.all(c, !has(c.localPersistentVolume))",
            "message": "containers[].localPersistentVolume needs localPersistentVolume, for what is no content",
        },
    ],
    "HostPath": [
        {
            "rule": "self.path.startsWith('/') && !self.path.contains('..')",
            "message": "path must be absolute and without '..'",
        }
    ],
    "ContainerSettings": [
        {
            "rule": "!self.subPath.startsWith('/') && !self.subPath.contains('..')",
            "message": "subPath must lie below the root",
        },
        {
            "rule": "!has(self.localPersistentVolume) || !self.subPath.contains('/')",
            "message": "subPath must be one name where localPersistentVolume is mounted",
        },
    ],
    "LocalPersistentVolume": [
        {"rule": "self.storageClassName == oldSelf.storageClassName", "message": "storageClassName is immutable"},
        {
            "rule": "quantity(string(self.size)).compareTo(quantity(string(oldSelf.size))) >= 0",
            "message": "size may grow, never shrink",
        },
    ],
    "Window": [
        {
            "rule": "duration(self.duration) >= duration('1m') && duration(self.duration) <= duration('168h')",
            "message": "duration must be between 1m and 168h",
        },
        {
            "rule": "self.kind != 'Deny' || duration(self.startCutoff) == duration('0s')",
            "message": "a Deny window has no startCutoff: make it begin earlier",
        },
        {
            "rule": "duration(self.startCutoff) < duration(self.duration)",
            "message": "startCutoff must be below duration",
        },
    ],
    "PlanningSettings": [
        {"rule": "duration(self.activeDeadline) <= duration('168h')", "message": "activeDeadline must be at most 168h"}
    ],
    "ContentRepositorySpec": [
        {
            "rule": "self.planning.schedule == '' || (self.tls.mode != 'None' && self.auth.mode == 'Kubernetes')",
            "message": "planning.schedule needs auth.mode Kubernetes, and a tls.mode that is not None",
        },
        {
            "rule": "self.planning.schedule == '' || (has(self.service.flightPort) && self.service.flightPort != 0)",
            "message": "planning.schedule needs service.flightPort",
        },
    ],
    "SparkPodSettings": [
        {"rule": "duration(self.maxDefer) <= duration('720h')", "message": "maxDefer must be at most 720h"}
    ],
    "Toleration": [
        {
            "rule": "self.operator != 'Exists' || self.value == ''",
            "message": "value must be empty where operator is Exists",
        },
        {
            "rule": "self.operator != 'Equal' || self.key != ''",
            "message": "key must not be empty where operator is Equal",
        },
        {
            "rule": "!has(self.tolerationSeconds) || (has(self.effect) && self.effect == 'NoExecute')",
            "message": "tolerationSeconds needs effect NoExecute",
        },
    ],
    "ServiceSettings": [
        {
            "rule": "self.httpPort == 0 || [has(self.flightPort) ? self.flightPort : -1, "
            "has(self.metricsPort) ? self.metricsPort : -2, has(self.healthPort) ? self.healthPort : -3]"
            ".all(port, port != self.httpPort)",
            "message": "httpPort, flightPort, metricsPort and healthPort must differ",
        },
        {
            "rule": "!has(self.flightPort) || !has(self.metricsPort) || self.flightPort == 0 || "
            "self.flightPort != self.metricsPort",
            "message": "httpPort, flightPort, metricsPort and healthPort must differ",
        },
        {
            "rule": "!has(self.healthPort) || self.healthPort == 0 || [has(self.flightPort) ? self.flightPort : -1, "
            "has(self.metricsPort) ? self.metricsPort : -2].all(port, port != self.healthPort)",
            "message": "httpPort, flightPort, metricsPort and healthPort must differ",
        },
    ],
    "NodeSpec": [
        {
            "rule": "self.repository == oldSelf.repository && self.nodeName == oldSelf.nodeName",
            "message": "repository and nodeName are immutable",
        }
    ],
    "BackupSpec": [
        {
            "rule": "self.repository == oldSelf.repository && self.bucket == oldSelf.bucket",
            "message": "repository and bucket are immutable: make another ContentBackup",
        }
    ],
    "RestoreSpec": [
        {"rule": "self == oldSelf", "message": "a ContentRestore is immutable: make a new one"},
        {
            "rule": "(self.backup == '') != (self.place == '')",
            "message": "either backup or place says what is brought back",
        },
        {"rule": "self.fromNode == '' || self.backup != ''", "message": "fromNode needs backup"},
        {"rule": "!has(self.at) || !has(self.generation)", "message": "at and generation both say of when"},
    ],
    "RunSpec": [
        {
            "rule": " && ".join(
                f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})"
                for name in RunSpec.__struct_encode_fields__
                if name != "suspend"
            ),
            "message": "a ReclamationRun is immutable, but for suspend: make a new one",
        },
    ],
}
