"""A mapping by identity: equal objects are two keys, what has no hash is one, and none of them is let go."""

import gc
import weakref

import numpy as np
import pytest

from untrace._identity import IdentityMap


def test_equal_objects_are_two_keys():
    one, other = [1.0], [1.0]
    found = IdentityMap([(one, "one"), (other, "other")])
    assert found[one] == "one" and found[other] == "other" and [1.0] not in found
    assert list(found.values()) == ["one", "other"] and len(found) == 2
    assert found.setdefault(one, "again") == "one" and found.get([1.0], "none") == "none"
    with pytest.raises(KeyError):
        found[[1.0]]


def test_an_array_is_a_key():
    array = np.arange(3)
    found = IdentityMap([(array, 1)])
    found[array] += 1
    assert found.pop(array) == 2 and array not in found and not found


def test_a_key_lives_as_long_as_its_map():
    class Key:
        pass

    key = Key()
    gone = weakref.ref(key)
    found = IdentityMap([(key, 0)])
    del key
    gc.collect()
    assert gone() is next(iter(found))
    found.clear()
    gc.collect()
    assert gone() is None
