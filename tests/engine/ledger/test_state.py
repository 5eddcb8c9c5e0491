import ast
from collections.abc import Iterator
from pathlib import Path

import ullage.engine
from ullage.engine.ledger.state import LedgerState

ENGINE = Path(ullage.engine.__file__).parent
FIELDS = set(vars(LedgerState())) - {"lock"}
CHANGING = {"add", "append", "clear", "discard", "extend", "pop", "popitem", "remove", "setdefault", "update"}
CHANGING |= {"forget", "set", "settle"}  # of the answers and staged writes in it


def changes(source: str) -> Iterator[str]:
    """Statements that change a field of a ledger, but for those of the ledger itself."""
    for node in ast.walk(ast.parse(source)):
        changed: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            changed = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            changed = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGING:
            changed = [node.func.value]
        for target in changed:
            field = target.value if isinstance(target, ast.Subscript) else target
            if isinstance(field, ast.Attribute) and field.attr in FIELDS:
                if ast.unparse(field.value).rpartition(".")[2].lstrip("_") == "ledger":
                    yield ast.unparse(node)


def test_only_the_ledger_changes_what_it_holds() -> None:
    """Everybody else reads its fields, and asks it for the few changes that are no transactions."""
    modules = [path for path in ENGINE.rglob("*.py") if path.parent.name != "ledger"]

    assert [found for path in modules for found in changes(path.read_text(encoding="utf-8"))] == []
    assert list(changes("self._ledger.taken |= x\nledger.answers.forget(1)\ndel ledger.leases[id]\nledger.pin(x)")) == [
        "self._ledger.taken |= x",
        "del ledger.leases[id]",
        "ledger.answers.forget(1)",
    ]
