"""Whether a ContentRepository can be obeyed, and may be. Pure.

Who may create a ContentRepository has the operator make pods with directories of nodes in them. So what such a pod
runs, and which directory it has, is never the author's choice alone: images and directories are those that the
operator's settings allow, and one repository's directory never overlaps another's.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from ullage.contract import POLICIES, Calendar, TlsMode
from ullage_operator.agents import pods
from ullage_operator.objects import RepositoryObject, normal
from ullage_operator.observation import ClusterNode, Observation
from ullage_operator.planning.decide import timetable
from ullage_operator.repository.placement import places
from ullage_operator.repository.reach import is_heard
from ullage_operator.settings import VERSION, OperatorSettings

MEMORY: Final = "memory"
"""A repository that every agent has beside its default."""

TOLD_MAX: Final = 128
"""Characters of a value that are told again."""

VALID: Final = "Valid"
"""The reason of who is accepted."""

PENDING: Final = "PluginUnheard"
"""The reason of who is started, so that its agents can say what is not known without them."""


def acceptance_of(seen: Observation, settings: OperatorSettings) -> tuple[str, str]:
    """Whether it can be done, as reason and message: of what is in the way, the first."""
    return next(_problems(seen, settings), (VALID, "Every field can be obeyed."))


def _problems(seen: Observation, settings: OperatorSettings) -> Iterator[tuple[str, str]]:
    repository = seen.repository
    if repository.document is None:
        newer = f": this operator ({VERSION}) is older than the definitions: remove the field, or run a newer operator"
        yield "Invalid", repository.problem + (newer if repository.problem.endswith("unknown field") else "")
        return
    for problem in unseen("spec", msgspec.to_builtins(repository.spec, enc_hook=str)):
        yield "Invalid", problem
    if problem := path_problem(repository, settings):
        yield "PathNotAllowed", problem
    if problem := image_problem(repository, settings):
        yield "ImageNotAllowed", problem
    if problem := conflict(repository, seen.others, seen.cluster_nodes, settings):
        yield "PathConflict", problem
    if repository.spec.tls.mode == TlsMode.CERT_MANAGER and not seen.has_cert_manager:
        problem = "spec.tls.mode is CertManager, and the cluster does not serve cert-manager.io/v1: "
        yield "NoCertManager", problem + "install cert-manager, or choose Operator or Secret"
    if problems := Calendar(repository.spec.maintenance).problems:
        yield "InvalidWindow", "; ".join(problems)
    if repository.spec.planning.schedule and (problem := timetable(repository.spec).problem):
        yield "InvalidSchedule", problem
    yield from _plugin_problems(seen, settings)


def unseen(path: str, value: Any) -> Iterator[str]:
    """Where characters stand that nobody sees, such as an end of line or U+202E: what is asked for would read as
    something else in every answer, and a path with them is hardly typed again.
    """
    if isinstance(value, str) and not value.isprintable():
        code = next(ord(each) for each in value if not each.isprintable())
        yield f"{path}: has the character U+{code:04X}, which nobody sees: remove it from {ascii(value)[:TOLD_MAX]}"
    elif isinstance(value, Mapping):
        for key, below in value.items():
            yield from unseen(path, key)
            yield from unseen(f"{path}.{key}", below)
    elif isinstance(value, list | tuple):
        for index, below in enumerate(value):
            yield from unseen(f"{path}[{index}]", below)


def _plugin_problems(seen: Observation, settings: OperatorSettings) -> Iterator[tuple[str, str]]:
    """What the spec names of other packages: an agent says which policies it has, and one that serves has its
    repositories. What it said before its pod was last replaced counts for nothing: another image has others.
    """
    spec, policy = seen.repository.spec, seen.repository.spec.compaction.policy
    named = {
        "content.repository": spec.content.repository,
        "flowFile.repository": spec.flow_file.repository,
        "provenance.repository": spec.provenance.repository,
    }
    foreign = [f"spec.{field} {name!r}" for field, name in named.items() if name not in ("", MEMORY)]
    foreign += [] if policy in POLICIES else [f"spec.compaction.policy {policy!r}"]
    if not foreign:
        return
    hosts = [each.name for each in seen.cluster_nodes if places(spec, each)]
    heard = _heard_now(seen, hosts, settings)
    if policy not in POLICIES:
        lacking = [node for node in heard if policy not in seen.objects[node].status.policies]
        if lacking:
            known = ", ".join(seen.objects[lacking[0]].status.policies or POLICIES)
            problem = f"spec.compaction.policy: the agent on {lacking[0]} has no policy {policy!r}: choose"
            yield "UnknownPlugin", f"{problem} one of {known}, or an image that has it"
    if len(heard) < len(hosts) or not hosts:
        waits = f"on {len(hosts) - len(heard)} nodes no agent has said whether it has"
        yield PENDING, f"{waits} {', '.join(foreign)}: until then nothing is compacted"


def _heard_now(seen: Observation, hosts: Iterable[str], settings: OperatorSettings) -> list[str]:
    """Nodes where an agent of the pods that are to be has said anything."""
    repository, image = seen.repository, settings.agent_image
    is_local = repository.spec.storage.local_persistent_volume is not None
    made_of = partial(pods.template, repository, image, pods=settings.pods)
    common = "" if is_local else pods.template_digest(made_of())
    heard = []
    for node in hosts:
        agent, found = seen.agents.get(node), seen.objects.get(node)
        if agent is None or not agent.is_ready or found is None or not is_heard(seen, found):
            continue
        if agent.template == (common or pods.template_digest(made_of(node))):
            heard.append(node)
    return heard


def path_problem(repository: RepositoryObject, settings: OperatorSettings) -> str:
    """Why its directory is not allowed; empty if it is, or if it has none."""
    if not repository.root:
        return ""
    path, roots = repository.spec.storage.host_path.path, sorted(map(normal, settings.roots))
    if normal(path) in roots:
        return ""
    return (
        f"spec.storage.hostPath.path: {path} is none of the directories that the operator allows "
        f"({', '.join(roots) or 'none'}): choose one of these, or have it added to the operator's setting "
        "ULLAGE_OPERATOR_ROOTS (hostPathRoots of the chart)"
    )


def image_problem(repository: RepositoryObject, settings: OperatorSettings) -> str:
    """Which image is not allowed; empty if each is."""
    spec = repository.spec
    for field, image, own in (
        ("image", spec.image, settings.agent_image),
        ("planning.image", spec.planning.image, settings.spark_image),
    ):
        if image and image != own and image not in settings.images:
            return (
                f"spec.{field}: {image} is not an image that the operator allows: leave the field empty for {own}, or "
                "have it added to the operator's setting ULLAGE_OPERATOR_IMAGES (allowedImages of the chart)"
            )
    return ""


def conflict(
    repository: RepositoryObject,
    others: Iterable[RepositoryObject],
    cluster_nodes: Iterable[ClusterNode],
    settings: OperatorSettings,
) -> str:
    """The older repository whose directory overlaps with this one's on some node, and where; empty if there is none."""
    for other in others:
        is_older = (other.created_millis, other.uid) < (repository.created_millis, repository.uid)
        # One that is not allowed has no directory, and must not keep others out of theirs. One that is going has.
        if not is_older or path_problem(other, settings) or not overlap(repository, other):
            continue
        shared = [each for each in cluster_nodes if places(repository.spec, each) and places(other.spec, each)]
        if shared:
            return (
                f"{repository.root} and {other.root} of the older {other.namespace}/{other.name} overlap on node "
                f"{shared[0].name}: choose another spec.storage.hostPath.path"
            )
    return ""


def overlap(one: RepositoryObject, other: RepositoryObject) -> bool:
    """Whether one's directory is the other's, or lies in it."""
    if not (one.root and other.root) or one.key == other.key:
        return False
    return f"{one.root}/".startswith(f"{other.root}/") or f"{other.root}/".startswith(f"{one.root}/")
