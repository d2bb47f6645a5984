"""kiln.config: typed, patchable, and quick to say what is wrong."""

from __future__ import annotations

import threading

import pytest

from kiln.config import Config, config, log_from_environment
from kiln.exc import KilnError, UnknownSetting


@pytest.fixture
def settings():
    return Config()


def test_assignment(settings):
    settings.recompile_limit = 4
    assert settings.recompile_limit == 4
    assert settings.as_dict()["recompile_limit"] == 4
    settings.reset("recompile_limit")
    assert settings.recompile_limit == 8


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("recompile_limit", "4"),
        ("recompile_limit", True),
        ("automatic_dynamic", 1),
        ("break_every", 3),
        ("log", "graph"),
        ("log", [1]),
        ("max_inline_depth", 2.0),
    ],
)
def test_wrong_types(settings, name, value):
    with pytest.raises(TypeError, match=name):
        setattr(settings, name, value)
    with pytest.raises(TypeError, match=name):
        settings.patch(**{name: value})


@pytest.mark.parametrize(("name", "value"), [("break_every", "word"), ("log", {"grph"}), ("recompile_limit", -1)])
def test_wrong_values(settings, name, value):
    with pytest.raises(ValueError, match=name):
        setattr(settings, name, value)


def test_unknown_names(settings):
    for go in (
        lambda: settings.recompile_limt,
        lambda: setattr(settings, "recompile_limt", 3),
        lambda: settings.patch(recompile_limt=3),
        lambda: settings.reset("recompile_limt"),
        lambda: settings.describe("recompile_limt"),
    ):
        with pytest.raises(UnknownSetting, match="did you mean 'recompile_limit'"):
            go()
    assert issubclass(UnknownSetting, (KilnError, AttributeError))
    assert not hasattr(settings, "nothing_like_it")
    with pytest.raises(AttributeError, match="cannot be deleted"):
        del settings.log


def test_patch_as_context_manager(settings):
    with settings.patch(recompile_limit=1, break_every="line") as inner:
        assert inner is settings
        assert (settings.recompile_limit, settings.break_every) == (1, "line")
        with settings.patch({"recompile_limit": 2}):
            assert settings.recompile_limit == 2
        assert settings.recompile_limit == 1
    assert (settings.recompile_limit, settings.break_every) == (8, None)


def test_patch_restores_after_errors(settings):
    with pytest.raises(KeyError):
        with settings.patch(suppress_errors=True):
            raise KeyError
    assert settings.suppress_errors is False


def test_patch_as_decorator(settings):
    @settings.patch(recompile_limit=3)
    def recursive(depth):
        """Its own text."""
        assert settings.recompile_limit == 3
        return recursive(depth - 1) if depth else settings.recompile_limit

    assert recursive(2) == 3
    assert settings.recompile_limit == 8
    assert recursive.__doc__ == "Its own text."


def test_one_patch_entered_twice(settings):
    patch = settings.patch(recompile_limit=3)
    with patch:
        with patch:
            pass
        assert settings.recompile_limit == 3
    assert settings.recompile_limit == 8


def test_threads_leave_it_whole(settings):
    def work():
        for _ in range(200):
            settings.recompile_limit = 8
            assert isinstance(settings.recompile_limit, int)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert settings.recompile_limit == 8


def test_log_from_environment():
    assert log_from_environment("") == frozenset()
    assert log_from_environment("graph, code") == {"graph", "code"}
    with pytest.warns(UserWarning, match="unknown artefact 'gaurds', did you mean 'guards'"):
        assert log_from_environment("gaurds,code") == {"code"}


def test_each_setting_is_described():
    for name in config.as_dict():
        assert config.describe(name).endswith(".")
    assert "recompile_limit = " in repr(config)
