"""A change of the engine's format is rolled inside windows only, and by the operator itself. Pure.

What a newer agent has written no older one opens: such a roll has no way back. The DaemonSet's own roll knows no
windows, so it is set to OnDelete meanwhile, and pods are deleted here, as many at a time as may be away.

    agents write format 1, those to come write 2 ── window opens ── pods go one after the other ── all write 2
    DaemonSet: OnDelete ─────────────────────────────────────────────────────────────────────── RollingUpdate
"""

from collections.abc import Iterable

import msgspec

from ullage_agent.contract import MaintenanceOperation, UpdateType
from ullage_agent.windows import Calendar
from ullage_operator import build
from ullage_operator.observe import Agent, Observation
from ullage_operator.settings import Settings


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """`is_gated`: agents must not be rolled by anybody else. `may_go`: a window is open, or nothing is gated.

    `replaced`: the pods of the DaemonSet that shall go now; `waiting`: nodes whose agent has yet to change; `template`:
    what its pods are made from then.
    """

    is_gated: bool = False
    may_go: bool = True
    replaced: tuple[Agent, ...] = ()
    waiting: tuple[str, ...] = ()
    template: str = ""
    next_millis: int | None = None


def rollout(seen: Observation, settings: Settings, hosts: Iterable[str]) -> Rollout:
    """What may be rolled now."""
    wish = seen.wish
    assert wish.document is not None
    spec = wish.document.spec
    older = [node for node, found in seen.objects.items() if 0 < found.status.format < settings.agent_format]
    if not older or spec.update_strategy.type == UpdateType.ON_DELETE:
        return Rollout()
    verdict = Calendar(spec.maintenance).verdict(MaintenanceOperation.REWRITE, seen.now_millis)
    wakes = verdict.closes_millis if verdict.may_start else verdict.opens_millis
    if wakes is not None and wakes <= seen.now_millis:
        wakes = verdict.closes_millis  # open, and nothing starts any more
    gated = Rollout(is_gated=True, may_go=verdict.may_start, next_millis=wakes)
    if spec.storage.local_persistent_volume is not None:
        return msgspec.structs.replace(gated, waiting=tuple(sorted(older)))
    nodes = sorted(hosts)
    template = build.template_digest(build.template(wish, settings.agent_image))
    outdated = [a for node in nodes if (a := seen.agents.get(node)) is not None and a.template != template]
    away_count = sum(seen.is_away(node) for node in nodes)
    room = max(0, build.unavailable_max(wish, len(nodes)) - away_count)
    chosen = [a for a in outdated if not a.is_ready] + [a for a in outdated if a.is_ready][:room]
    return msgspec.structs.replace(
        gated,
        replaced=tuple(chosen) if gated.may_go else (),
        waiting=tuple(agent.node for agent in outdated),
        template=template,
    )
