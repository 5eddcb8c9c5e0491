from tests.e2e.story import story

__all__ = ["story"]
