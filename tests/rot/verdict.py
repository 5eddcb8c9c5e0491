"""What an engine makes of one damaged file: caught where, provably harmless, or the one loss nobody can tell."""

import os
from collections import Counter

from tests.rot.oracle import damage
from tests.rot.specimen import Specimen, abandon, reopen, shown
from ullage.engine.engine import Engine
from ullage.errors import AnswerUnknown, UllageError

OPENING = "caught at opening"
CHECKING = "caught by check"
HARMLESS = "harmless"
UNTOLD = "torn tail, untold"

IDENTITY = "ullage.json"


def verdict(whole: Specimen, path: str, data: bytes) -> str:
    """Open, check and read the specimen with `data` in the place of one file.

    AssertionError for wrong data, for damage that only a read finds, for a message without a place, and for a silent
    loss that the rest of the log disproves. Errors that are no UllageError pass through.
    """
    try:
        repository = reopen(whole.with_file(path, data), whole.spec)
    except UllageError as error:
        return _refused(path, str(error))
    try:
        return _judge(whole, path, data, repository)
    finally:
        abandon(repository)


def _refused(path: str, message: str) -> str:
    # A log that lost its end promises content of files which what it lost had taken away.
    is_end_told = path.endswith(".wal") and "has lost its end" in message
    assert names_place(path, message) or is_end_told, f"does not name {path}: {message}"
    return OPENING


def names_place(path: str, message: str) -> bool:
    """Whether a message says which file; what one identity says is held against the other, so either is named."""
    return path in message or (os.path.basename(path) == IDENTITY and os.path.dirname(path) in message)


def _judge(whole: Specimen, path: str, data: bytes, repository: Engine) -> str:
    report = repository.check(deep=True)
    found, refused = shown(repository)
    assert all(path in message for message in refused), refused
    assert not refused or report.problems, f"only a read found: {refused}"
    last_id, expected = whole.last_id, whole.truth.after[whole.last_id]
    loss = damage(whole, path, data) if path.endswith(".wal") else None
    if loss is not None and loss.first_lost:
        assert not loss.is_provable, f"acknowledged transaction {loss.first_lost} is gone, and the log proves it"
        last_id, expected = loss.first_lost - 1, whole.truth.after[loss.first_lost - 1]
    assert repository.restored.last_id == last_id
    wrong = [uuid.hex() for uuid, record in found.items() if expected.get(uuid) != record]
    assert wrong == [], "wrong data"
    _judge_answers(whole, path, repository, last_id)
    if report.problems:
        assert loss is not None or all(names_place(path, problem) for problem in report.problems), report.problems
        return CHECKING
    assert found.keys() == expected.keys(), "FlowFiles are gone"
    assert whole.orphans.issuperset(report.orphans) or (loss is not None and loss.first_lost), report.orphans
    return UNTOLD if loss is not None and loss.first_lost else HARMLESS


def _judge_answers(whole: Specimen, path: str, repository: Engine, last_id: int) -> None:
    """Every request that was answered gets its answer again, or is refused with the name of a damaged run."""
    for transaction, answer in whole.truth.answers:
        if transaction <= last_id:
            found = said = None
            try:
                found = repository.idempotency.first(answer.key, answer.request)
            except AnswerUnknown as error:
                said = str(error)
            assert found == answer.answer or (said is not None and kind_of(path) == "run" and path in said), said


def table(counts: Counter[tuple[str, str]]) -> str:
    """Verdicts by kind of file, a line each."""
    kinds = sorted({kind for kind, _ in counts})
    verdicts = (OPENING, CHECKING, HARMLESS, UNTOLD)
    return "\n".join(
        f"{kind:20} " + ", ".join(f"{counts[kind, what]:,} {what}" for what in verdicts if counts[kind, what])
        for kind in kinds
    )


def kind_of(path: str) -> str:
    """The format of a file, by its name."""
    name = os.path.basename(path)
    if name == IDENTITY:
        return "root identity" if path.count("/") == 2 else "container identity"
    if "." in name:
        return {"wal": "log", "swap": "swap file", "run": "run", "parquet": "event file"}[name.rsplit(".", 1)[1]]
    if "-" in name:
        return "archive" if "/archive/" in path else "content"
    return name
