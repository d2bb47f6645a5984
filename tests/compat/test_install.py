"""Putting Kiln where torch's compiler is, in every way of importing it, and taking it away again without a trace."""

import importlib
import sys

import pytest
import torch

import kiln
from kiln.compat import is_installed
from kiln.compat.standins import ROOTS, is_below_roots


def names_loaded():
    return {name: id(module) for name, module in sys.modules.items() if is_below_roots(name)}


def world():
    """What installing changes."""
    places = [root.rpartition(".")[::2] for root in ROOTS] + [("torch", "compile")]
    places += [("torch._higher_order_ops", "__getattr__"), ("torch.fx.passes", "__getattr__")]
    attributes = {place: vars(sys.modules[place[0]]).get(place[1]) for place in places if place[0] in sys.modules}
    return names_loaded(), attributes, list(sys.meta_path), torch.nn.Module.__call__


@pytest.mark.parametrize("torch_first", [False, True], ids=["fresh", "torch's own loaded before"])
def test_everything_is_put_back(torch_first):
    if torch_first:
        importlib.import_module("torch._functorch.config")
        importlib.import_module("torch._dynamo.testing")
    importlib.import_module("functorch")
    importlib.import_module("kiln.compat.names")  # which loads torch's own settings that the rest of torch reads
    compiled = kiln.compile(lambda x: x)  # Kiln watches for the import of torch's compiler since
    before = world()
    kiln.install()
    importlib.import_module("torch._dynamo.testing")
    importlib.import_module("functorch.compile")
    torch.compile(lambda x: x + 1)(torch.ones(2))
    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1).step()
    assert names_loaded() != before[0] and torch.compile is not before[1]["torch", "compile"]
    kiln.uninstall()
    assert world() == before
    assert compiled(1) == 1


def test_torch_forgets_what_it_was_told_meanwhile():
    """Torch remembers on its own functions what its compiler has answered."""

    def function():
        return 1

    inner = torch._disable_dynamo(function)
    with kiln.install():
        assert inner() == 1
        assert vars(function)
    assert not vars(function)


def test_installing_twice_is_installing_once():
    kiln.install()
    before = world()
    kiln.install()
    assert world() == before
    kiln.uninstall()
    assert not is_installed()
    kiln.uninstall()
    assert not is_installed()


def test_an_error_while_installing_leaves_nothing(monkeypatch):
    from kiln.compat import counting

    def fail():
        raise MemoryError

    before = world()
    monkeypatch.setattr(counting, "start", fail)
    with pytest.raises(MemoryError):
        kiln.install()
    assert not is_installed() and world() == before


def test_blocks_nest():
    with kiln.install():
        with kiln.install():
            assert is_installed()
        assert is_installed()
    assert not is_installed()


def test_a_block_is_left_with_an_error():
    with pytest.raises(KeyError):
        with kiln.install():
            raise KeyError
    assert not is_installed()


def test_installing_again_gives_the_same_modules():
    with kiln.install():
        first = torch._inductor.metrics
    assert sys.modules.get("torch._inductor.metrics") is not first
    with kiln.install():
        assert torch._inductor.metrics is sys.modules["torch._inductor.metrics"] is first


def test_settings_last_over_installing_again():
    with kiln.install():
        first = importlib.import_module("torch._dynamo.config")
        first.some_setting_of_nobody = 3
    with kiln.install():
        assert importlib.import_module("torch._dynamo.config") is first
        assert first.some_setting_of_nobody == 3


MODULES = """
torch._dynamo torch._dynamo.testing torch._dynamo.test_case torch._dynamo.utils torch._dynamo.config torch._dynamo.exc
torch._dynamo.eval_frame torch._dynamo.convert_frame torch._dynamo.mutation_guard torch._dynamo.debug_utils
torch._dynamo.backends torch._dynamo.backends.registry torch._dynamo.compiled_autograd
torch._dynamo._trace_wrapped_higher_order_op torch._functorch.aot_autograd torch._functorch.config torch._inductor
torch._inductor.config torch._inductor.metrics torch._inductor.test_case torch._inductor.utils functorch.compile
torch.testing._internal.inductor_utils torch._dynamo.symbolic_convert torch._inductor.codegen.cpp
""".split()


@pytest.mark.parametrize("name", MODULES)
def test_every_way_of_importing(installed, name):
    parent, _, own = name.rpartition(".")
    namespace: dict = {}
    exec(f"import {name}\nimport {name} as a\nfrom {parent} import {own} as b\nc = {name}", namespace)
    module = importlib.import_module(name)
    assert namespace["a"] is namespace["b"] is namespace["c"] is module is sys.modules[name]
    assert module.__name__ == name and "Kiln" in module.__doc__ and module.__spec__.name == name


def test_attributes_without_an_import(installed):
    assert torch._dynamo.optimize and torch._dynamo.config.patch and torch._dynamo.utils.counters is not None
    assert torch._inductor.config.triton.cudagraphs is False and torch._inductor.metrics.generated_kernel_count >= 0


def test_what_nobody_has_is_not_there(installed):
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("torch._dynamo.no_such_module")
    with pytest.raises(ImportError):
        exec("from torch._dynamo import no_such_name")
    assert not hasattr(torch._dynamo, "no_such_name") and not hasattr(torch._dynamo.utils, "no_such_name")
    with pytest.raises(AttributeError):
        _ = torch._dynamo.config.no_such_setting
