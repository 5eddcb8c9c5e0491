import re
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import given, strategies as st

from ullage.contract import (
    ArchiveSettings,
    ClaimSettings,
    ContainerSettings,
    ContentRepository,
    ContentRepositorySpec,
    ContractError,
    DurabilityMode,
    Duration,
    Metadata,
    Quantity,
    QueuePriority,
    StorageSettings,
    TruncationMode,
    dump,
    load_yaml,
)

DEFAULTS = Path(__file__).with_name("defaults.yaml")
HEAD = "apiVersion: ullage.dev/v1alpha1\nkind: ContentRepository\nmetadata: {name: flows}\n"

sizes = st.integers(0, Quantity.MAX).map(Quantity)
times = st.integers(0, Duration.MAX).map(Duration)


def refusal(spec: str) -> str:
    with pytest.raises(ContractError) as caught:
        load_yaml(f"{HEAD}spec: {spec}")
    return str(caught.value)


def test_every_default_is_the_one_of_the_contract() -> None:
    """A repository that sets nothing has every field of the contract, with the contract's default."""
    expected = yaml.safe_load(DEFAULTS.read_text())

    actual = dump(ContentRepository(metadata=Metadata(name="flows", namespace="data")))

    assert expected == actual


def test_the_contract_s_own_yaml_is_read() -> None:
    """The document that spells out every default is the same as one that sets nothing."""
    assert ContentRepositorySpec() == load_yaml(DEFAULTS.read_text()).spec
    assert ContentRepositorySpec() == load_yaml(HEAD).spec


def test_settings_are_read_into_typed_fields() -> None:
    """Sizes become bytes, times milliseconds, and modes enums."""
    spec = load_yaml(
        HEAD + "spec: {claims: {maxAppendableSize: 1Ki, maxBatchFile: 4096}, archive: {maxRetentionPeriod: 1h30m},"
        " durability: {mode: Interval}, truncation: {mode: Eager},"
        " flowFile: {queueDefaults: {priority: OldestFirst}},"
        " storage: {containers: [{name: fast, subPath: disks/a, capacity: 10G}]}}"
    ).spec

    assert Quantity(1024) == spec.claims.max_appendable_size
    assert Quantity(4096) == spec.claims.max_batch_file
    assert spec.archive.max_retention_period.seconds == 5400
    assert spec.durability.mode is DurabilityMode.INTERVAL
    assert spec.truncation.mode is TruncationMode.EAGER
    assert spec.flow_file.queue_defaults.priority is QueuePriority.OLDEST_FIRST
    assert spec.storage.containers[0].capacity == 10**10
    assert isinstance(spec.claims.max_appendable_size, Quantity)


def test_an_embedded_repository_lies_in_the_folder_it_is_given(tmp_path: Path) -> None:
    """The embedded spec is the defaults, with the root made absolute."""
    spec = ContentRepositorySpec.embedded(tmp_path / "a" / ".." / "b")

    assert str(tmp_path / "b") == spec.storage.host_path.path
    assert ContentRepositorySpec().storage.containers == spec.storage.containers


@given(
    appendable=st.integers(1, 2**40).map(Quantity),
    large=st.integers(1, 2**62).map(Quantity),
    retention=times,
    usage=st.integers(0, 99),
    capacity=st.none() | st.integers(1, 2**62).map(Quantity),
)
def test_a_dumped_repository_reads_back_equal(
    appendable: Quantity, large: Quantity, retention: Duration, usage: int, capacity: Quantity | None
) -> None:
    """Writing a repository as YAML and reading it again changes nothing."""
    container = ContainerSettings(name="c1", sub_path="c1", capacity=capacity)
    spec = ContentRepositorySpec(
        storage=StorageSettings(containers=(container,)),
        claims=ClaimSettings(max_appendable_size=appendable, max_batch_file=Quantity(2**40), large_claim=large),
        archive=ArchiveSettings(
            max_retention_period=retention, max_usage_percentage=usage, backpressure_percentage=100
        ),
    )
    repository = ContentRepository(metadata=Metadata(name="flows"), spec=spec)

    assert repository == load_yaml(yaml.safe_dump(dump(repository)))


@given(sizes | times)
def test_a_written_unit_reads_back_equal(value: Quantity | Duration) -> None:
    """The canonical text of a size or a time is exact."""
    assert value == type(value).parse(str(value))


NOTATIONS: dict[type[Quantity | Duration], list[tuple[str, int, str]]] = {
    Quantity: [
        *(("50Ki", 51_200, "50Ki"), ("64M", 64_000_000, "64M"), ("1Gi", 2**30, "1Gi"), ("1.5Gi", 3 << 29, "1536Mi")),
        *(("1024Mi", 2**30, "1Gi"), ("1e3", 1000, "1k"), ("2E", 2 * 10**18, "2E"), ("4000m", 4, "4")),
        *(("+7", 7, "7"), ("0", 0, "0"), ("1025", 1025, "1025")),
    ],
    Duration: [
        *(("5ms", 5, "5ms"), ("2m", 120_000, "2m"), ("1h30m", 5_400_000, "1h30m"), ("90m", 5_400_000, "1h30m")),
        *(("168h", 604_800_000, "168h"), ("1.5s", 1500, "1s500ms"), ("2000us", 2, "2ms"), ("2000µs", 2, "2ms")),
        *(("500us500000ns", 1, "1ms"), ("0s", 0, "0s"), ("0", 0, "0s")),
    ],
}
NONE_OF_IT: dict[type[Quantity | Duration], list[str]] = {
    Quantity: [
        *("", "Ki", "-1", "-1Ki", "0.5", "1.1Ki", "100m", "1n", "8Ei", "1 Ki", "50KB", "50ki", "1e99", "1_000", "٣"),
        "9" * 41,
    ],
    Duration: ["", "5", "-5ms", "1us", "0.5ms", "1d", "m", "1h 30m", "5MS", "9999999h", "٣s"],
}


@pytest.mark.parametrize(("unit", "notation"), [(unit, each) for unit, found in NOTATIONS.items() for each in found])
def test_notations_are_those_of_kubernetes(unit: type[Quantity | Duration], notation: tuple[str, int, str]) -> None:
    """Every notation of Kubernetes' quantities and of Go's durations is read, and written back in its shortest form."""
    text, number, canonical = notation

    assert (number, canonical) == (unit.parse(text), str(unit.parse(text)))


@pytest.mark.parametrize(("unit", "text"), [(unit, each) for unit, found in NONE_OF_IT.items() for each in found])
def test_what_is_no_number_of_bytes_or_milliseconds_is_refused(unit: type[Quantity | Duration], text: str) -> None:
    """Negative, finer, too large and unreadable ones are errors that quote the text."""
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        unit.parse(text)


@pytest.mark.parametrize("unit", [Quantity, Duration])
def test_a_negative_unit_cannot_be_built(unit: type[Quantity | Duration]) -> None:
    """A size or a time below zero, or above what Kubernetes holds, does not exist in Python either."""
    with pytest.raises(ValueError, match="is not a"):
        unit(-1)
    with pytest.raises(ValueError, match="is not a"):
        unit(unit.MAX + 1)


REFUSALS = [
    ("{claims: {maxAppendable: 1Ki}}", "claims.maxAppendable: unknown field"),
    ("{clams: {}}", "clams: unknown field"),
    ("{provenance: {journalCount: 1}}", "provenance.journalCount is not supported by this version: remove it"),
    ("{storage: {containers: [{name: a}]}}", "storage.containers[0].subPath: required field is missing"),
    (
        "{storage: {containers: [{name: a, subPath: a, evacuate: true}]}}",
        "storage.containers: one must stay where content can go",
    ),
    ("{storage: {containers: []}}", "storage.containers: expected `array` of length >= 1"),
    ("{storage: {sections: 0}}", "storage.sections: expected `int` >= 1"),
    ("{storage: {sections: 1025}}", "storage.sections: expected `int` <= 1024"),
    ("{archive: {maxUsagePercentage: 101}}", "archive.maxUsagePercentage: expected `int` <= 100"),
    ("{archive: {enabled: 'yes'}}", "archive.enabled: expected `bool`, got `str`"),
    ("{truncation: {mode: eager}}", "truncation.mode: invalid enum value 'eager', expected one of Pressure, Eager"),
    ("{durability: {mode: Never}}", "durability.mode: invalid enum value 'Never', expected one of Commit, Interval"),
    ("{durability: {interval: 5}}", "durability.interval: 5 is not a duration"),
    ("{claims: {maxAppendableSize: 1.5}}", "claims.maxAppendableSize: 1.5 is not a quantity"),
    ("{claims: {maxAppendableSize: true}}", "claims.maxAppendableSize: true is not a quantity"),
    ("{claims: {maxAppendableSize: lots}}", "claims.maxAppendableSize: 'lots' is not a quantity"),
    ("{claims: {maxAppendableSize: -1}}", "claims.maxAppendableSize: -1 is not a size"),
    ("{archive: {maxUsagePercentage: 90}}", "archive.backpressurePercentage: "),
    ("{claims: {maxAppendableSize: 65Mi}}", "claims.maxAppendableSize: "),
    ("{claims: {largeClaim: 0}}", "claims.largeClaim: "),
    ("{durability: {interval: 0s}}", "durability.interval: "),
    ("{archive: {cleanupFrequency: 0s}}", "archive.cleanupFrequency: "),
    ("{truncation: {frequency: 0s}}", "truncation.frequency: "),
    ("{flowFile: {checkpointInterval: 0s}}", "flowFile.checkpointInterval: "),
    ("{flowFile: {swapBatch: 20001}}", "flowFile.swapBatch: "),
    ("{flowFile: {checkpointLogSize: 5Gi}}", "flowFile.checkpointLogSize: "),
    ("{storage: {hostPath: {path: data}}}", "storage.hostPath.path: "),
    ("{storage: {hostPath: {path: /data/../etc}}}", "storage.hostPath.path: "),
    ("{storage: {containers: [{name: a, subPath: a}, {name: a, subPath: b}]}}", "storage.containers[1].name: "),
    ("{storage: {containers: [{name: a, subPath: a}, {name: b, subPath: ./a}]}}", "storage.containers[1].subPath: "),
    ("{storage: {containers: [{name: a, subPath: a}, {name: b, subPath: a/b}]}}", "storage.containers[1].subPath: "),
    ("{storage: {containers: [{name: a, subPath: ../a}]}}", "storage.containers[0].subPath: "),
    ("{storage: {containers: [{name: a, subPath: /a}]}}", "storage.containers[0].subPath: "),
    ("{storage: {containers: [{name: a, subPath: .}]}}", "storage.containers[0].subPath: "),
    ("{storage: {containers: [{name: a, subPath: swap/a}]}}", "storage.containers[0].subPath: "),
    ("{storage: {containers: [{name: a, subPath: a, capacity: 0}]}}", "storage.containers[0].capacity: "),
    ("{service: {address: 0.0.0.0}, tls: {mode: None}, auth: {mode: TokenFile}}", "service.address: 0.0.0.0 can"),
    ("{service: {address: 192.0.2.1}, auth: {mode: None}}", "service.address: 192.0.2.1 can be reached"),
    ("{service: {address: '::'}, tls: {mode: None}, auth: {mode: None}}", "service.address: :: can be reached"),
    ("{service: {address: flows.example}}", "service.address: 'flows.example' is no IP address"),
    ("{service: {httpPort: 8481}}", "service: httpPort, flightPort, metricsPort and healthPort must differ"),
    ("{service: {socketPath: run/x.sock}}", "service.socketPath: 'run/x.sock' is not an absolute path"),
    ("{tls: {directory: /etc/../x}}", "tls.directory: '/etc/../x' is not an absolute path"),
]
OF_A_WINDOW = [
    ("duration: 59s999ms", "duration: 59s999ms is not between 1m and 168h"),
    ("duration: 169h", "duration: 169h is not between 1m and 168h"),
    ("duration: 1h, startCutoff: 1h", "startCutoff: 1h must be below the duration (1h)"),
    ("duration: 1h, startCutoff: 1ms, kind: Deny", "startCutoff: a Deny window has none"),
    ("duration: 1h, operations: [Delete, Delete]", "operations: one is listed twice"),
    ("duration: 1h, kind: Maybe", "kind: invalid enum value 'Maybe', expected one of Allow, Deny"),
    (
        "duration: 1h, operations: [Compact]",
        "operations[0]: invalid enum value 'Compact', expected one of Delete, Truncate, Punch, Rewrite",
    ),
    ("duration: 1h, overrun: Never", "overrun: invalid enum value 'Never', expected one of Finish, Stop"),
    ("duration: 1h, operations: []", "operations: expected `array` of length >= 1"),
    ("duration: 1h, zone: UTC", "zone: unknown field"),
]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        *REFUSALS,
        *(
            (f"{{maintenance: {{windows: [{{name: a, schedule: x, {fields}}}]}}}}", f"maintenance.windows[0].{message}")
            for fields, message in OF_A_WINDOW
        ),
    ],
)
def test_what_is_wrong_is_refused_with_its_full_path(spec: str, message: str) -> None:
    """Unknown fields, wrong types, values out of bounds, and values that are fine alone and wrong beside another."""
    assert refusal(spec).startswith(f"spec.{message}")


def test_rules_that_join_fields_hold_in_python_too() -> None:
    """A spec that contradicts itself cannot be built, nor made from one that does not."""
    with pytest.raises(ContractError, match=r"spec\.archive\.backpressurePercentage"):
        ContentRepositorySpec(archive=ArchiveSettings(max_usage_percentage=95))
    with pytest.raises(ContractError, match=r"spec\.claims\.maxBatchFile"):
        msgspec.structs.replace(ContentRepositorySpec(), claims=ClaimSettings(max_batch_file=Quantity(0)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a ContentRepository document"),
        ("[1, 2]", "expected a ContentRepository document"),
        ("{", "not a YAML document"),
        ("? [a]\n: 1", "not a YAML document"),
        ("when: 2024-13-45", "not a YAML document"),
        (HEAD + "---\na: 1", "not a YAML document"),
        (HEAD + "spec: {archive: {partial: true, partial: false}}", "key 'partial' is given twice"),
        (HEAD.replace("v1alpha1", "v2"), "apiVersion: expected ullage.dev/v1alpha1, got 'ullage.dev/v2'"),
        (HEAD.replace("kind: ", "kind: X"), "kind: expected ContentRepository, got 'XContentRepository'"),
        (HEAD.replace("{name: flows}", "{}"), "metadata.name: required field is missing"),
        (HEAD.replace("flows", "Flows_1"), "metadata.name: expected `str` matching"),
        (HEAD + "spek: {}", "spek: unknown field"),
    ],
)
def test_a_document_of_another_kind_is_refused(text: str, message: str) -> None:
    """Bad YAML, other kinds and other versions give one clear message."""
    with pytest.raises(ContractError) as caught:
        load_yaml(text)

    assert message in str(caught.value)


def test_what_a_cluster_adds_to_an_object_is_accepted() -> None:
    """An object as the API server returns it is read, without its status and the rest of its metadata."""
    metadata = "{name: flows, uid: x, generation: 3, labels: {a: b}}"
    text = f"{HEAD.replace('{name: flows}', metadata)}status: {{ready: true}}"

    assert Metadata(name="flows") == load_yaml(text).metadata
