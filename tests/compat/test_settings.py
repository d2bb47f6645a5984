"""The ``config`` modules: Kiln's settings under torch's names, and the rest kept without effect."""

import unittest
from unittest import mock

import pytest
import torch

import kiln

pytestmark = pytest.mark.usefixtures("installed")

KNOWN = [
    ("cache_size_limit", "recompile_limit", 3, 3),
    ("recompile_limit", "recompile_limit", 3, 3),
    ("error_on_recompile", "error_on_recompile", True, True),
    ("suppress_errors", "suppress_errors", 1, True),
    ("automatic_dynamic_shapes", "automatic_dynamic", False, False),
    ("skip_nnmodule_hook_guards", "guard_module_hooks", True, False),
]


def patch_call(name, value):
    return torch._dynamo.config.patch(**{name: value})


def patch_pair(name, value):
    return torch._dynamo.config.patch(name, value)


def patch_dict(name, value):
    return torch._dynamo.config.patch({name: value})


def mock_text(name, value):
    return mock.patch(f"torch._dynamo.config.{name}", value)


def mock_object(name, value):
    return mock.patch.object(torch._dynamo.config, name, value)


WAYS = [patch_call, patch_pair, patch_dict, mock_text, mock_object]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize(("name", "own", "value", "meant"), KNOWN, ids=lambda value: str(value))
def test_known_names_are_kilns(way, name, own, value, meant):
    before = kiln.config.as_dict()
    with way(name, value):
        assert getattr(kiln.config, own) == meant and getattr(torch._dynamo.config, name) == value
        with way(name, value):
            assert getattr(kiln.config, own) == meant
    assert kiln.config.as_dict() == before
    way(name, value)(lambda: None)()
    assert kiln.config.as_dict() == before


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_other_names_are_kept(way):
    config = torch._dynamo.config
    before = config.verbose
    with way("verbose", "loud"):
        assert config.verbose == "loud"
    assert config.verbose is before
    config.own_name = 1
    with way("own_name", 2):
        assert config.own_name == 2
    assert config.own_name == 1 and config.get_config_copy()["own_name"] == 1
    with config.patch(made_up=3):
        assert config.made_up == 3
    assert not hasattr(config, "made_up")


def test_what_is_restored_after_an_error():
    with pytest.raises(KeyError):
        with torch._dynamo.config.patch(cache_size_limit=2, verbose=5):
            raise KeyError
    assert kiln.config.recompile_limit == 8 and torch._dynamo.config.verbose is not 5  # noqa: F632


def test_defaults_are_torchs():
    config = torch._dynamo.config
    assert config.fake_tensor_cache_enabled is True and config.error_on_nested_fx_trace is True
    assert config.raise_on_ctx_manager_usage is True and config.inline_inbuilt_nn_modules is True
    assert config.traceable_tensor_subclasses == set() and "verbose" in dir(config)
    with pytest.raises(AttributeError):
        _ = config.no_such_setting


def test_groups():
    config = torch._inductor.config
    assert config.triton.cudagraphs is False and config.fallback_random is False
    with config.patch({"triton.cudagraphs": True}), config.patch(fallback_random=True):
        assert config.triton.cudagraphs is True and config.fallback_random is True
        with mock.patch("torch._inductor.config.triton.cudagraphs", 7):
            assert config.triton.cudagraphs == 7
    assert config.triton.cudagraphs is False and config.fallback_random is False


def test_settings_that_the_rest_of_torch_reads_are_torchs():
    import torch._functorch.config as config
    from torch._subclasses.fake_tensor import FakeTensorMode

    assert FakeTensorMode().allow_meta is config.fake_tensor_allow_meta
    with config.patch(fake_tensor_allow_meta=not config.fake_tensor_allow_meta):
        assert FakeTensorMode().allow_meta is config.fake_tensor_allow_meta
    with mock.patch("torch._functorch.config.debug_assert", True):
        assert config.debug_assert is True
    with config.patch(unknown_to_torch=1):
        assert config.unknown_to_torch == 1


def test_a_test_class_under_a_patch():
    seen = []

    @torch._dynamo.config.patch(cache_size_limit=2)
    class Tests(unittest.TestCase):
        def test_it(self):
            seen.append(kiln.config.recompile_limit)

    assert Tests("test_it").run().wasSuccessful() and seen == [2] and kiln.config.recompile_limit == 8


def test_settings_in_captured_code():
    def program(x):
        return x * 2 if torch._dynamo.config.suppress_errors else x * 3

    compiled = torch.compile(program)
    assert compiled(torch.ones(1)).item() == 3
    with torch._dynamo.config.patch(suppress_errors=True):
        assert compiled(torch.ones(1)).item() == 2
    assert compiled(torch.ones(1)).item() == 3
