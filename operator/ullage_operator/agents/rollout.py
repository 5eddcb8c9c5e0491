"""A change of the engine's format is rolled inside windows only, and by the operator itself. Pure.

What a newer agent has written no older one opens: such a roll has no way back. The DaemonSet's own roll knows no
windows, so it is set to OnDelete meanwhile, and pods are deleted here, as many at a time as may be away.

    agents write format 1, those to come write 2 ── window opens ── pods go one after the other ── all write 2
    DaemonSet: OnDelete ─────────────────────────────────────────────────────────────────────── RollingUpdate
"""

from collections.abc import Iterable, Sequence

import msgspec

from ullage.contract import Calendar, MaintenanceOperation, UpdateType, nodes_at_once
from ullage_operator.agents import pods
from ullage_operator.objects import Object, covers
from ullage_operator.observation import AgentPod, Observation
from ullage_operator.settings import OperatorSettings


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """`is_gated`: agents must not be rolled by anybody else. `may_go`: a window is open, or nothing is gated.

    `replaced`: the pods of the DaemonSet that shall go now; `waiting`: nodes whose agent has yet to change; `template`:
    what its pods are made from then.
    """

    is_gated: bool = False
    may_go: bool = True
    replaced: tuple[AgentPod, ...] = ()
    waiting: tuple[str, ...] = ()
    template: str = ""
    next_millis: int | None = None


def rollout(seen: Observation, settings: OperatorSettings, hosts: Iterable[str]) -> Rollout:
    """What may be rolled now."""
    repository = seen.repository
    spec = repository.spec
    older = [node for node, found in seen.objects.items() if 0 < found.status.format < settings.agent_format]
    if not older or spec.update_strategy.type == UpdateType.ON_DELETE:
        return Rollout()
    window = Calendar(spec.maintenance).status(MaintenanceOperation.REWRITE, seen.now_millis)
    wakes = window.closes_millis if window.may_start else window.opens_millis
    if wakes is not None and wakes <= seen.now_millis:
        wakes = window.closes_millis  # open, and nothing starts any more
    gated = Rollout(is_gated=True, may_go=window.may_start, next_millis=wakes)
    if spec.storage.local_persistent_volume is not None:
        return msgspec.structs.replace(gated, waiting=tuple(sorted(older)))
    nodes = sorted(hosts)
    template = pods.template_digest(pods.template(repository, settings.agent_image, pods=settings.pods))
    outdated = [a for node in nodes if (a := seen.agents.get(node)) is not None and a.template != template]
    room = _room(seen, nodes)
    chosen = [a for a in outdated if not a.is_ready] + [a for a in outdated if a.is_ready][:room]
    return msgspec.structs.replace(
        gated,
        replaced=tuple(chosen) if gated.may_go else (),
        waiting=tuple(agent.node for agent in outdated),
        template=template,
    )


def stateful_sets(seen: Observation, nodes: Sequence[str], rolls: Rollout, settings: OperatorSettings) -> list[Object]:
    """New ones at once; changed ones as many at a time as may be away, those whose pod is not ready first."""
    found = {name: each for (_, name), each in seen.owned["StatefulSet"].items()}
    settled: list[Object] = []
    changed: list[tuple[str, Object]] = []
    for node in nodes:
        made = pods.stateful_set(seen.repository, settings.agent_image, node, pods=settings.pods)
        before = found.get(made["metadata"]["name"])
        if before is None or covers(before, made):
            settled.append(made)
        else:
            changed.append((node, made))
    room = _room(seen, nodes) if rolls.may_go else 0
    unready = [made for node, made in changed if seen.is_away(node) and rolls.may_go]
    others = [made for node, made in changed if not (seen.is_away(node) and rolls.may_go)]
    kept = [_as_found(found[made["metadata"]["name"]], made) for made in others[room:]]
    return [*settled, *unready, *others[:room], *kept]


def _room(seen: Observation, nodes: Sequence[str]) -> int:
    """How many agents more may be away."""
    strategy = seen.repository.spec.update_strategy
    most = 0 if strategy.type == UpdateType.ON_DELETE else nodes_at_once(strategy.max_unavailable, len(nodes))
    return max(0, most - sum(seen.is_away(node) for node in nodes))


def _as_found(found: Object, made: Object) -> Object:
    """A set whose turn has not come: named, so that it is kept; as it is, so that nothing is written."""
    return {**found, "apiVersion": made["apiVersion"], "kind": made["kind"]}  # lists leave them out of their items
