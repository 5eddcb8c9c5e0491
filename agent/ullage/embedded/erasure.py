"""Looking for a subject in a repository of this machine that nobody has open."""

from collections.abc import Callable, Mapping

from ullage.contract import ContentRepository
from ullage.embedded.repository import open_embedded
from ullage.engine.erasure.finder import cost_of, find_subject
from ullage.errors import InvalidArgument
from ullage.wire.erasure import ErasureCost, ErasureSurvey
from ullage.wire.upkeep import RecoveryReport


def survey_subject(
    document: ContentRepository,
    where: Mapping[str, str],
    *,
    on_cost: Callable[[ErasureCost], None],
    on_step: Callable[[int], None],
    on_recovery: Callable[[RecoveryReport], None] | None = None,
) -> ErasureSurvey:
    """All that a repository has of a subject: whatever has all these attributes. Opening it does what each start does;
    nothing else is changed.

    `on_cost` is told what will be read before the look begins, and ends it by raising. `on_step` is told how many more
    records were looked at. Errors are those of `ullage.open`.
    """
    if not where:
        raise InvalidArgument("say at least one attribute: without one everything would be the subject")
    with open_embedded(None, document, create=False, maintain=False, on_recovery=on_recovery) as repository:
        cost = cost_of(repository.engine)
        on_cost(cost)
        return find_subject(repository.engine, where, cost, on_step)
