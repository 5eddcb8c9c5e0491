"""A pod's `affinity`, as far as spec.affinity may say it: read as strictly as the API server reads it in a pod.

The field is handed on as it is. It is read here so that a slip is refused by its path, and not by the API server when
the pods are made.
"""

import enum
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from ullage.contract.settings import LabelKey, LabelValue, Settings

NODE_NAME: Final = "metadata.name"
"""The one field of a node that a term can ask for."""

_WHOLE: Final = re.compile(r"-?[0-9]+")
_Weight = Annotated[int, Meta(ge=1, le=100)]


class _Operator(enum.StrEnum):
    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"


_ORDERED: Final = (_Operator.GT, _Operator.LT)
_LISTED: Final = (_Operator.IN, _Operator.NOT_IN)


class _Expression(Settings, frozen=True, kw_only=True):
    key: LabelKey
    operator: _Operator
    values: tuple[LabelValue, ...] = ()


class _Field(Settings, frozen=True, kw_only=True):
    key: str
    operator: _Operator
    values: tuple[str, ...] = ()


class _Labels(Settings, frozen=True, kw_only=True):
    match_labels: dict[LabelKey, LabelValue] = msgspec.field(default_factory=dict)
    match_expressions: tuple[_Expression, ...] = ()


class _NodeTerm(Settings, frozen=True, kw_only=True):
    match_expressions: tuple[_Expression, ...] = ()
    match_fields: tuple[_Field, ...] = ()


class _NodeTerms(Settings, frozen=True, kw_only=True):
    node_selector_terms: Annotated[tuple[_NodeTerm, ...], Meta(min_length=1)]


class _PreferredNodes(Settings, frozen=True, kw_only=True):
    weight: _Weight
    preference: _NodeTerm


class _PodTerm(Settings, frozen=True, kw_only=True):
    topology_key: LabelKey
    label_selector: _Labels | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: _Labels | None = None
    match_label_keys: tuple[LabelKey, ...] = ()
    mismatch_label_keys: tuple[LabelKey, ...] = ()


class _PreferredPods(Settings, frozen=True, kw_only=True):
    weight: _Weight
    pod_affinity_term: _PodTerm


class _NodeAffinity(Settings, frozen=True, kw_only=True):
    required_during_scheduling_ignored_during_execution: _NodeTerms | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[_PreferredNodes, ...] = ()


class _PodAffinity(Settings, frozen=True, kw_only=True):
    required_during_scheduling_ignored_during_execution: tuple[_PodTerm, ...] = ()
    preferred_during_scheduling_ignored_during_execution: tuple[_PreferredPods, ...] = ()


class _Affinity(Settings, frozen=True, kw_only=True):
    node_affinity: _NodeAffinity | None = None
    pod_affinity: _PodAffinity | None = None
    pod_anti_affinity: _PodAffinity | None = None


def affinity_problems(affinity: Mapping[str, Any]) -> Iterator[str]:
    """What a pod could not have as its affinity, each with its path."""
    try:
        read = msgspec.convert(affinity, _Affinity)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$")
        yield f"spec.affinity{path.removesuffix('`')}: {reason[:1].lower()}{reason[1:]}"
    else:
        yield from _expression_problems("spec.affinity", read)


def _expression_problems(path: str, value: Any) -> Iterator[str]:
    """Of all expressions, wherever they stand: an operator and its values that do not go together."""
    if isinstance(value, _Expression | _Field):
        yield from (f"{path}.{words}" for words in _misfits(value, is_ordered="nodeAffinity" in path))
    elif isinstance(value, msgspec.Struct):
        for field in msgspec.structs.fields(value):
            yield from _expression_problems(f"{path}.{field.encode_name}", getattr(value, field.name))
    elif isinstance(value, tuple):
        for index, each in enumerate(value):
            yield from _expression_problems(f"{path}[{index}]", each)


def _misfits(expression: _Expression | _Field, *, is_ordered: bool) -> Iterator[str]:
    """`is_ordered`: of nodes, whose labels can be compared as numbers."""
    operator, values = expression.operator, expression.values
    if isinstance(expression, _Field):
        if expression.key != NODE_NAME:
            yield f"key: a field must be {NODE_NAME}"
        if operator not in _LISTED or len(values) != 1:
            yield "values: must be one, with operator In or NotIn"
    elif operator in _LISTED and not values:
        yield f"values: must not be empty where operator is {operator}"
    elif operator in _ORDERED and not is_ordered:
        yield f"operator: {operator} compares labels of nodes only"
    elif operator in _ORDERED and (len(values) != 1 or not _WHOLE.fullmatch(values[0])):
        yield f"values: must be one whole number where operator is {operator}"
    elif operator not in (*_LISTED, *_ORDERED) and values:
        yield f"values: must be empty where operator is {operator}"
