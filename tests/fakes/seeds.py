"""Courses of chance: a few in `make test`, and many in `make slow`."""

import pytest


def seeds(few: int, many: int) -> pytest.MarkDecorator:
    rest = (pytest.param(seed, marks=pytest.mark.slow) for seed in range(few, many))
    return pytest.mark.parametrize("seed", [*range(few), *rest])
