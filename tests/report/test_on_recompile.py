"""kiln.on_recompile: told of every miss with the reason, until removed."""

import pytest
import torch

import kiln


def scaled(x, how):
    return x * 2 if how == "double" else x + 1


def test_told_of_each_miss():
    told = []
    compiled = kiln.compile(scaled)
    x = torch.ones(3)
    with kiln.on_recompile(lambda function, reason: told.append((function, reason))):
        compiled(x, "double")
        assert told == []
        compiled(x, "more")
        compiled(x, "more")
        assert [function for function, _ in told] == [scaled]
        assert "L['how'] == 'double', 'more' seen" in told[0][1]
        compiled(x.double(), "more")
        assert len(told) == 2 and "dtype" in told[1][1]
    compiled(x.int(), "more")
    assert len(told) == 2


def test_removed_twice():
    told = []
    subscription = kiln.on_recompile(lambda *miss: told.append(miss))
    subscription.remove()
    subscription.remove()
    compiled = kiln.compile(scaled)
    compiled(torch.ones(1), "a")
    compiled(torch.ones(1), "b")
    assert told == []


def test_an_error_in_the_callback_is_the_users():
    def fail(function, reason):
        raise ValueError(reason)

    compiled = kiln.compile(scaled)
    x = torch.ones(2)
    compiled(x, "double")
    with kiln.on_recompile(fail), pytest.raises(ValueError, match="'other' seen"):
        compiled(x, "other")
    assert torch.equal(compiled(x, "other"), x + 1)


def test_not_callable():
    with pytest.raises(kiln.exc.NotCallable):
        kiln.on_recompile(3)
