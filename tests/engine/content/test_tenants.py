"""Isolated tenants: a file holds the content of one of them alone, from its first byte to its last rewrite."""

import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.service.running import UNGUARDED
from tests.support import Workshop, content_sizes, spec_at
from ullage.contract import Isolation, Quantity
from ullage.embedded.acting import Acting
from ullage.embedded.bulk import sink_of
from ullage.embedded.repository import EmbeddedRepository
from ullage.engine.content import claims
from ullage.engine.engine import Engine
from ullage.engine.ledger import placement
from ullage.engine.model import Action, ResourceClaim
from ullage.engine.salvaging import salvage
from ullage.enums import Lifetime
from ullage.uuids import parse_handle
from ullage.wire.tickets import PutCommand

TENANTS = ("ann", "bob", "cay")
ISOLATED: dict[str, Any] = {
    "isolation": Isolation.PER_TENANT,
    "claims": {"max_appendable_size": Quantity(1 << 20), "max_flow_files": 20},
    "archive": {"enabled": False},
    "compaction": UNGUARDED | {"bytes_per_second": Quantity(0)},
}


def content_of(tenant: str, number: int) -> bytes:
    """Recognizable wherever it lies."""
    return f"<{tenant}:{number}>".encode() * 1_000


def put(repository: Engine, tenant: str, number: int) -> str:
    return repository.handles.put_many([content_of(tenant, number)], by=tenant)[0]


def file_of(repository: Engine, handle: str) -> ResourceClaim:
    """The file in which the content of a handle lies now."""
    record = repository.handles.record(parse_handle(handle))
    assert record.claim is not None
    return placement.locate(repository.ledger, record.claim).file


def open_files(path: Path) -> int:
    """Content files below a repository that this process has open for writing."""
    found = 0
    for each in Path("/proc/self/fdinfo").iterdir():
        try:
            target = os.readlink(f"/proc/self/fd/{each.name}")
            flags = int(each.read_text().split("flags:")[1].split()[0], 8)
        except FileNotFoundError:
            continue  # it was closed meanwhile
        found += target.startswith(f"{path}/c") and bool(flags & os.O_ACCMODE)
    return found


def require_apart(workshop: Workshop) -> None:
    """Each file holds bytes of one tenant, whom its record names."""
    for entry in workshop.repository.ledger.entries():
        if entry.relocation is None:
            data = workshop.content_file(entry.claim.index).read_bytes()
            assert {tenant for tenant in TENANTS if f"<{tenant}:".encode() in data} <= {entry.claim.tenant}
            assert not data or entry.claim.tenant


@pytest.mark.parametrize("seed", range(2))
def test_a_file_holds_one_tenants_content_whatever_happens(workshop: Workshop, seed: int) -> None:
    """Puts in turns, deletes, rewrites, crashes and restarts: no file ever has bytes of two."""
    chooser = random.Random(seed)
    workshop.make(**ISOLATED)
    handles: dict[str, bytes] = {}
    for number in range(60):
        tenant = chooser.choice(TENANTS)
        handles[put(workshop.repository, tenant, number)] = content_of(tenant, number)
        what = chooser.random()
        if what < 0.3 and handles:
            gone = chooser.choice(sorted(handles))
            workshop.repository.handles.delete(gone)
            del handles[gone]
        elif what < 0.4:
            workshop.clock.advance(1)
            workshop.repository.handles.purge()
            compactor = workshop.repository.compactor
            compactor.execute(compactor.plan(policy="CompactAll"))
        elif what < 0.45:
            workshop.restart(chooser.choice(["clean", "crash", "checkpoint"]))
        else:
            continue
        require_apart(workshop)

    for handle, content in handles.items():
        assert workshop.repository.handles.get(handle).read() == content


def worth_rewriting(workshop: Workshop) -> list[str]:
    """A file of each tenant in which every second content is dead for good; the handles of the others."""
    repository = workshop.make(**ISOLATED)
    handles = [put(repository, tenant, number) for number in range(20) for tenant in TENANTS]
    dead = [handle for number, handle in enumerate(handles) if number // len(TENANTS) % 2]
    for handle in dead:
        repository.handles.delete(handle)
    repository.content.retire_idle()
    repository.checkpoint()
    workshop.clock.advance(1)
    repository.handles.purge()
    return [handle for handle in handles if handle not in dead]


def test_what_survives_a_rewrite_stays_its_tenants(workshop: Workshop) -> None:
    """Files that would share an output for their container and age do not where tenants are isolated."""
    handles = worth_rewriting(workshop)
    repository = workshop.repository

    plan = repository.compactor.plan(policy="CompactAll")
    rewrites = [step for step in plan.steps if step.action == Action.REWRITE]
    repository.compactor.execute(plan)

    assert len({step.group for step in rewrites}) == len(TENANTS)
    require_apart(workshop)
    assert {file_of(repository, handles[at]).tenant for at in range(3)} == set(TENANTS)


def test_a_plan_from_elsewhere_mixes_no_tenants(workshop: Workshop) -> None:
    """One whose group joins them is carried out for one tenant, and the others are left."""
    handles = worth_rewriting(workshop)
    repository = workshop.repository
    plan = repository.compactor.plan(policy="CompactAll")
    forged = plan._replace(steps=tuple(msgspec.structs.replace(step, group=1) for step in plan.steps))

    report = repository.compactor.execute(forged)

    assert (report.done[Action.REWRITE], report.skipped) == (1, 2)
    require_apart(workshop)
    assert {file_of(repository, handles[at]).tenant for at in range(3)} == set(TENANTS)


def test_without_isolation_tenants_share_files(workshop: Workshop) -> None:
    """And then a file is nobody's."""
    repository = workshop.make(**ISOLATED | {"isolation": Isolation.NONE})

    files = {file_of(repository, put(repository, tenant, 1)).index for tenant in TENANTS}

    assert len(files) == 1
    assert {entry.claim.tenant for entry in repository.ledger.entries()} == {""}


def test_isolation_holds_from_the_moment_it_is_set(workshop: Workshop) -> None:
    """What is open then belongs to everybody, and gets nothing of a tenant; what a tenant has open stays that one's."""
    repository = workshop.make(**ISOLATED | {"isolation": Isolation.NONE})
    shared = file_of(repository, put(repository, "ann", 1)).index

    repository.adopt(msgspec.structs.replace(repository.spec, isolation=Isolation.PER_TENANT))
    own = file_of(repository, put(repository, "ann", 2)).index
    assert own != shared
    repository.adopt(msgspec.structs.replace(repository.spec, isolation=Isolation.NONE))

    assert file_of(repository, put(repository, "ann", 3)).index == shared
    assert file_of(repository, put(repository, "bob", 4)).index == shared
    assert repository.ledger.entry(own).claim.tenant == "ann"  # type: ignore[union-attr]


def test_every_way_in_knows_whose_content_it_is(workshop: Workshop) -> None:
    """Sessions, puts into queues, handles and staged writes, whole or in pieces, each for whom they act."""
    served = EmbeddedRepository(workshop.make(**ISOLATED))
    for tenant in TENANTS:
        acting = served.acting_for(Acting(tenant, by=tenant))
        acting.handles.put(content_of(tenant, 1))
        acting.handles.put(iter([content_of(tenant, 2)]))
        acting.queues.put("q", content_of(tenant, 3))
        acting.queues.put("q", iter([content_of(tenant, 4)]))
        with acting.session() as session:
            session.write(flow_file := session.create(), content_of(tenant, 5))
            session.transfer(flow_file, "q")
            session.ingest("q", [content_of(tenant, 6)])
            session.commit()
        sink = sink_of(acting, PutCommand())
        sink.batch([content_of(tenant, 7)], {})
        sink.stream([content_of(tenant, 8)], {})

    require_apart(workshop)
    found = Counter(entry.claim.tenant for entry in workshop.repository.ledger.entries())
    assert set(found) == set(TENANTS)


def test_a_tenant_has_files_of_each_lifetime(workshop: Workshop) -> None:
    """A class that dies together is still apart from the others."""
    repository = workshop.make(**ISOLATED)
    for tenant in TENANTS:
        for lifetime in Lifetime:
            repository.handles.put_many([content_of(tenant, 1)], lifetime=lifetime, by=tenant)

    kinds = Counter((entry.claim.tenant, entry.claim.lifetime) for entry in repository.ledger.entries())
    assert kinds == Counter({(tenant, lifetime): 1 for tenant in TENANTS for lifetime in Lifetime})


def test_so_many_tenants_files_stay_open_and_no_more(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of whoever wrote longest ago is sealed, so that tenants who come and go hold no descriptors."""
    monkeypatch.setattr(claims, "POOLS_MAX", 4)
    repository = workshop.make(**ISOLATED)
    before = open_files(workshop.path)
    first = file_of(repository, put(repository, "t0", 0)).index

    handles = []
    for number in range(1, 40):
        put(repository, f"t{number}", number)
        handles.append(put(repository, "busy", number))

    repository.reclamation.clean()
    assert repository.ledger.entry(first).claim.sealed  # type: ignore[union-attr]
    spares = len(list(workshop.path.glob("c1/**/*-*"))) - len(content_sizes(workshop.path))
    assert open_files(workshop.path) - before - spares <= 4
    assert len({file_of(repository, handle).index for handle in handles}) <= 4  # who writes all the while keeps its own


def test_what_was_salvaged_is_everybodys(workshop: Workshop, tmp_path: Path) -> None:
    """A salvage writes anew, for all of them together: so nobody is passed a file of it for being its tenant."""
    repository = workshop.make(**ISOLATED)
    for tenant in TENANTS:
        put(repository, tenant, 1)
    workshop.close()

    spec = spec_at(tmp_path / "salvaged", isolation=Isolation.PER_TENANT)
    salvage(str(workshop.path), spec)

    with Engine.open(spec) as salvaged:
        assert {entry.claim.tenant for entry in salvaged.ledger.entries()} == {""}
