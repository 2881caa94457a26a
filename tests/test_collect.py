"""Rare garbage collections: inside only, however blocks overlap, and never more often."""

import gc

import pytest

from jaxswap import _collect
from jaxswap._collect import rare_collections


@pytest.fixture
def thresholds():
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize("own", [(700, 10, 10), (701, 11, 12)])
def test_the_collector_comes_rarely_inside_and_as_before_outside(thresholds, own):
    gc.set_threshold(*own)
    seen = []

    @rare_collections()
    def fail():
        seen.append(gc.get_threshold())
        raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert seen == [(_collect._OBJECTS, *own[1:])]
    assert gc.get_threshold() == own


def test_blocks_that_overlap_end_with_the_last(thresholds):
    gc.set_threshold(700, 10, 10)
    first, second = rare_collections(), rare_collections()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold()[0] == _collect._OBJECTS
    second.__exit__(None, None, None)
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("own", [0, 10**6])
def test_who_wants_it_even_less_often_is_left_alone(thresholds, own):
    gc.set_threshold(own, 10, 10)
    with rare_collections():
        assert gc.get_threshold() == (own, 10, 10)
