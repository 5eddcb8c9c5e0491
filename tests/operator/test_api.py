"""What the operator sends."""

import yaml
from hypothesis import given, strategies as st

from ullage_operator.cluster.api import yaml_of


@given(st.dictionaries(st.text(max_size=4), st.text(max_size=20), max_size=4))
def test_any_words_are_sent_as_yaml(words: dict[str, str]) -> None:
    """The API server reads what is applied as YAML, and what is no character of it ends the whole request."""
    assert yaml.safe_load(yaml_of(words)) == words


def test_half_a_character_is_sent_as_none() -> None:
    """No API server tells one: it would be a bug of ours, and is no reason to tell nothing."""
    assert yaml.safe_load(yaml_of({"a": "\ud83d"})) == {"a": "\ufffd"}
