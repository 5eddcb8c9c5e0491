"""What kopf remembers of our objects: it tells a new one from a changed one and from one of an earlier process."""

from typing import Any

import kopf
import pytest

from ullage_operator.persistence import HandledSpecs, UnfinishedProgress


def body(spec: int, **status: Any) -> kopf.Body:
    metadata: Any = {"uid": "u", "name": "flows"}
    return kopf.Body({"metadata": metadata, "spec": {"partitions": spec}, "status": status})


def test_an_object_is_new_until_it_was_handled_and_again_when_it_is_forgotten() -> None:
    """Kopf creates it once, sees its changes after that, and keeps nothing of one that is gone."""
    handled = HandledSpecs()
    first = body(1)
    assert handled.fetch(body=first) is None

    handled.store(body=first, patch=kopf.Patch(), essence=handled.build(body=first))
    assert handled.fetch(body=body(2, observedGeneration=1)) == handled.build(body=first)

    handled.forget("u")
    assert handled.fetch(body=body(2)) is None


def test_what_an_earlier_process_has_looked_at_is_not_new_and_its_next_change_is_seen() -> None:
    """It is resumed as it stands, and updated when somebody changes it later."""
    handled = HandledSpecs()
    first = body(1, observedGeneration=1)
    assert handled.fetch(body=first) == handled.build(body=first)
    assert handled.fetch(body=body(2, observedGeneration=1)) == handled.build(body=first)


@pytest.mark.parametrize("is_done", [True, False])
def test_progress_stands_on_an_object_only_while_its_handler_will_be_called_again(is_done: bool) -> None:
    """One that has ended leaves no annotation on what people keep in git."""
    patch = kopf.Patch()
    record: Any = {"success": is_done, "retries": 1}
    UnfinishedProgress(prefix="a.b").store(key=kopf.HandlerId("remove"), record=record, body=body(1), patch=patch)

    assert bool(patch) is not is_done
