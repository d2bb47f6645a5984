"""``OptimizedModule``: the compiled module is the module to everybody who reads, sets, walks, saves or copies it."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
import types

import pytest
import torch
from torch import nn

import kiln
from kiln.modules import OptimizedModule
from kiln.testing import CompileCounter, same

X = torch.arange(20.0).reshape(5, 4) / 9


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.full((4,), 2.0))
        self.register_buffer("shift", torch.arange(4.0))
        self.mode = "plain"

    def forward(self, x):
        y = torch.relu(self.inner(x) + self.shift) * self.scale
        return y if self.mode == "plain" else -y

    def helper(self):
        return self.mode.upper()


class Ring(nn.Module):
    """A module without parameters, to see what is compiled how often."""

    def __init__(self):
        super().__init__()
        self.activation = nn.ReLU()

    def forward(self, x):
        return self.activation(x.cos().sin())


def compiled_module(make=Small, **options):
    torch.manual_seed(0)
    module, counter = make(), CompileCounter()
    return module, kiln.compile(module, backend=counter, **options), counter


@pytest.mark.covers("test_modules::test_nn_module", "test_modules::test_attr")
def test_is_the_module():
    module, compiled, counter = compiled_module()
    assert isinstance(compiled, OptimizedModule) and isinstance(compiled, nn.Module)
    assert same(module(X), compiled(X)) and counter.frame_count == 1
    for name in ("parameters", "buffers"):
        assert all(a is b for a, b in zip(getattr(module, name)(), getattr(compiled, name)(), strict=True))
    assert compiled.inner is module.inner and compiled.helper() == "PLAIN" and compiled.training is True
    assert list(compiled.modules())[1:] == list(module.modules())
    assert compiled.get_submodule("inner") is module.inner and compiled.get_parameter("scale") is module.scale
    with pytest.raises(AttributeError, match="Small.*nothing"):
        compiled.nothing


@pytest.mark.covers("test_modules::test_attr")
def test_walked_by_compiled_code():
    def dtype_of(module):
        return next(itertools.chain(module.parameters(), module.buffers())).dtype

    module, compiled, _ = compiled_module()
    function = kiln.compile(dtype_of, backend="eager", fullgraph=True)
    assert function(module) is torch.float32 and function(compiled) is torch.float32
    module.double()
    assert function(module) is torch.float64 and function(compiled) is torch.float64


@pytest.mark.covers("test_modules::test_dir")
def test_dir():
    module, compiled, _ = compiled_module()
    assert set(dir(module)) <= set(dir(compiled))
    assert {"inner", "scale", "shift", "mode", "helper"} <= set(dir(compiled))


@pytest.mark.covers("test_modules::test_setattr_on_compiled_module")
def test_attributes_are_set_on_the_module():
    module, compiled, counter = compiled_module()
    assert same(compiled(X), module(X))
    compiled.mode = "negative"
    assert module.mode == "negative" and same(compiled(X), module(X)) and counter.frame_count == 2
    compiled.scale = nn.Parameter(torch.full((4,), 3.0))
    assert module.scale is compiled.scale and same(compiled(X), module(X)) and counter.frame_count == 2
    compiled.extra = torch.ones(1)
    assert module.extra is compiled.extra
    del compiled.extra
    assert not hasattr(module, "extra") and not hasattr(compiled, "extra")
    compiled.forward = types.MethodType(lambda self, x: x + 1, module)
    assert same(compiled(X), X + 1)


@pytest.mark.covers("test_modules::test_setattr_on_compiled_module")
def test_attribute_that_forward_sets():
    class Keeps(Small):
        def forward(self, x):
            self.last = self.inner(x)
            return self.last * 2

    module, compiled, counter = compiled_module(Keeps)
    compiled.last = torch.tensor([100.0, 200.0])
    compiled(X)
    assert same(compiled.last, module.inner(X)) and module.last is compiled.last
    compiled(X)
    assert counter.frame_count <= 2  # at first another shape is overwritten, which nobody reads


def test_registered_on_it_belongs_to_the_module():
    module, compiled, _ = compiled_module()
    compiled.register_buffer("late", torch.ones(4))
    compiled.register_parameter("weight", nn.Parameter(torch.ones(4)))
    compiled.add_module("child", nn.Linear(4, 4))
    compiled.register_module("other", nn.Identity())
    assert list(module._buffers) == ["shift", "late"] and "weight" in module._parameters
    assert module.child is compiled.child and module.other is compiled.other

    def forward(x):
        return module.child(x) + module.late + module.weight

    module.forward = forward
    assert same(compiled(X), forward(X))


@pytest.mark.covers("test_modules::test_to")
def test_to_and_reset():
    module, compiled, counter = compiled_module()
    for _ in range(2):
        assert same(compiled(X), module(X))
    assert counter.frame_count == 1
    assert compiled.to(device="cpu").to(torch.float64) is compiled and module.scale.dtype is torch.float64
    for _ in range(2):
        assert same(compiled(X.double()), module(X.double()))
    assert counter.frame_count == 2
    kiln.reset()
    compiled(X.double())
    assert counter.frame_count == 3


def test_train_eval_and_gradients():
    module, compiled, counter = compiled_module(lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)))
    assert compiled.eval() is compiled and not module.training and not module[1].training
    assert same(compiled(X), module[0](X))
    compiled.train()
    assert module.training and module[1].training
    torch.manual_seed(1)
    expected = module(X)
    torch.manual_seed(1)
    assert same(compiled(X), expected) and counter.frame_count == 2
    compiled(X).sum().backward()
    assert module[0].weight.grad is not None
    compiled.zero_grad()
    assert module[0].weight.grad is None
    compiled.requires_grad_(False)
    assert not module[0].weight.requires_grad and not compiled(X).requires_grad


def test_containers_stay_containers():
    module, compiled, _ = compiled_module(lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    assert len(compiled) == 2 and compiled[1] is module[1] and list(compiled) == list(module) and bool(compiled)
    table = kiln.compile(nn.ModuleDict({"a": nn.ReLU()}), backend="eager")
    assert "a" in table and "b" not in table and list(table.keys()) == ["a"]


def test_state_dict():
    module, compiled, _ = compiled_module()
    state = compiled.state_dict()
    assert list(state) == [f"_orig_mod.{name}" for name in module.state_dict()]
    other = kiln.compile(Small(), backend="eager")
    other.load_state_dict(state)
    assert same(other(X), module(X))
    other = kiln.compile(Small(), backend="eager")
    assert not other.load_state_dict(module.state_dict()).missing_keys  # the module's own names are welcome, too
    assert same(other(X), module(X))
    with pytest.raises(RuntimeError, match="Missing key"):
        other.load_state_dict({"_orig_mod.scale": module.scale})


def saved_and_loaded(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.covers("test_modules::test_save_and_load_all_backends", "test_modules::test_save_and_load_inductor")
@pytest.mark.parametrize("backend", kiln.list_backends())
@pytest.mark.parametrize("again", [saved_and_loaded, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_saved_copied_pickled(backend, again):
    module = Small()
    compiled = kiln.compile(module, backend=backend)
    expected = compiled(X)
    loaded = again(compiled)
    assert isinstance(loaded, OptimizedModule) and loaded.scale is not module.scale
    assert same(loaded(X), expected, atol=1e-5) and same(module(X), expected, atol=1e-5)
    kiln.reset()
    assert same(loaded(X), expected, atol=1e-5)
    with torch.no_grad():
        loaded.scale.zero_()
    assert not same(loaded(X), expected) and same(compiled(X), expected, atol=1e-5)


def test_copies_are_compiled_by_the_same_backend_and_share_what_is_compiled():
    module, compiled, counter = compiled_module()
    compiled(X)
    deep, shallow = copy.deepcopy(compiled), copy.copy(compiled)
    assert same(deep(X), module(X)) and same(shallow(X), module(X))
    assert shallow.scale is module.scale and deep.scale is not module.scale
    assert counter.frame_count == 1


def test_copies_keep_hooks():
    calls = []

    def hook(module, args, output):
        calls.append(type(module).__name__)
        return output + 1

    module, compiled, _ = compiled_module()
    compiled.register_forward_hook(hook)
    expected = compiled(X)
    assert same(copy.deepcopy(compiled)(X), expected) and same(copy.copy(compiled)(X), expected)
    assert calls == ["OptimizedModule"] * 3 and same(module(X) + 1, expected)


def test_copied_where_the_module_knows_its_wrapper():
    module, compiled, _ = compiled_module()
    module.__dict__["wrapper"] = compiled
    made = copy.deepcopy(compiled)
    assert made._orig_mod.wrapper is made and made._orig_mod is not module


# -- nesting, and how often what is compiled --------------------------------------------------------------------------


@pytest.mark.covers("test_modules::test_recursion")
def test_compiled_again_and_again():
    module, compiled, counter = compiled_module()
    for _ in range(5):
        compiled = kiln.compile(compiled, backend=counter)
    assert same(compiled(X), module(X)) and counter.frame_count == 1 and compiled._orig_mod is module


@pytest.mark.covers("test_modules::test_composition", "test_modules::test_composition_with_opt_mod")
@pytest.mark.parametrize("compile_inner", [False, True])
def test_module_inside_a_module(compile_inner):
    counter = CompileCounter()

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.ring = kiln.compile(Ring(), backend=counter) if compile_inner else Ring()

        def forward(self, x):
            return self.ring(x * 2)

    outer = Outer()
    compiled = kiln.compile(outer, backend=counter)
    for _ in range(2):
        assert same(compiled(X), outer(X))
    # Called by eager code the inner one is compiled alone; called by the outer one it is part of its graph.
    assert counter.frame_count == (2 if compile_inner else 1)


@pytest.mark.covers(
    "test_modules::test_no_recompile_on_nn_guarded_modules", "test_modules::test_inline_inbuilt_nn_modules"
)
def test_instances_share_what_is_compiled():
    counter, recompiles = CompileCounter(), []
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Tanh(), nn.Linear(4, 4)) for _ in range(4)]
    compiled = [kiln.compile(layer, backend=counter) for layer in layers]
    strict = kiln.config.patch(recompile_limit=1, error_on_recompile=True)
    with strict, kiln.on_recompile(lambda *reason: recompiles.append(reason)):
        for one, layer in zip(compiled, layers, strict=True):
            assert same(one(X), layer(X))
    assert counter.frame_count == 1 and not recompiles


@pytest.mark.covers("test_modules::test_cache_size_limit_on_guarded_nn_modules")
def test_limit_counts_what_an_instance_has_used():
    """Three ranks under a limit of two: the third runs in eager for every instance, whoever compiled the others."""
    counter = CompileCounter()
    rings = [kiln.compile(Ring(), backend=counter) for _ in range(4)]
    with kiln.config.patch(recompile_limit=2), pytest.warns(kiln.exc.RecompileWarning) as caught:
        for shape in [(4,), (4, 4), (4, 4, 4)]:
            for ring in rings:
                x = torch.randn(shape)
                assert same(ring(x), ring._orig_mod(x))
    assert counter.frame_count == 2 and {warning.filename for warning in caught} == {__file__}


def test_limit_leaves_other_instances_alone():
    """Instances that are set up differently use entries of their own, and none of them runs out."""

    class Power(nn.Module):
        def __init__(self, mode):
            super().__init__()
            self.mode = mode

        def forward(self, x):
            return x.sin() + len(self.mode)

    counter = CompileCounter()
    powers = [kiln.compile(Power("x" * number), backend=counter) for number in range(5)]
    with kiln.config.patch(recompile_limit=2):
        for power in powers * 2:
            assert same(power(X), power._orig_mod(X))
    assert counter.frame_count == 5


@pytest.mark.covers("test_modules::test_no_guard_on_torch_nn_modules")
def test_a_number_on_a_module_is_noticed():
    class Times(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.factor = nn.Linear(4, 4), 10

        def forward(self, x):
            return self.inner(x) * self.factor

    module, counter = Times(), CompileCounter()

    @kiln.compile(backend=counter)
    def program(x, name):
        return module(x) + len(name)

    for _ in range(3):
        for name in ("a", "bc"):
            assert same(program(X, name), module(X) + len(name))
    assert counter.frame_count == 2
    module.factor = 11
    assert same(program(X, "a"), module(X) + 1) and counter.frame_count == 3
