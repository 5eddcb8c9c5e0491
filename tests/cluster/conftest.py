from tests.cluster.operator_process import operator, place

__all__ = ["operator", "place"]
