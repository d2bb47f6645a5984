"""The public functions: what can be compiled, how it looks afterwards, and the switches around it."""

import copy
import functools
import inspect
import operator
import pickle

import pytest
import torch

import kiln
from kiln.modules import OptimizedModule
from kiln.testing import CompileCounter, same

X = torch.arange(6.0).reshape(2, 3)


@pytest.fixture
def counter():
    return CompileCounter()


def double(x, scale=2, *, bias=0):
    """Twice."""
    return x * scale + bias


compiled_double = kiln.compile(double, backend="eager")


@kiln.compile
def decorated(x):
    return x + 1


# -- callables ------------------------------------------------------------------------------------------------------


class Scaler:
    factor = 3

    def __init__(self, bias=1):
        self.bias = bias

    def method(self, x):
        return x * self.factor + self.bias

    @classmethod
    def of_class(cls, x):
        return x * cls.factor

    @staticmethod
    def static(x):
        return x * 5

    def __call__(self, x, target=0):
        return x + self.bias + target


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * g * x


class Holder:
    def __init__(self, x):
        self.value = x + 1


CALLABLES = {
    "function": double,
    "lambda": lambda x: x + 1,
    "bound method": Scaler(2).method,
    "method of a class": Scaler.of_class,
    "static method": Scaler.static,
    "callable object": Scaler(4),
    "partial": functools.partial(double, scale=5, bias=2),
    "partial of a method": functools.partial(Scaler(7).method),
    "torch function": torch.sin,
    "operator": operator.neg,
    "operator object": operator.methodcaller("sum", 0),
    "autograd function": Square.apply,
    "tensor method": torch.Tensor.exp,
    "module": torch.nn.Linear(3, 2),
    "forward": torch.nn.Linear(3, 2).forward,
    "builtin": len,
    "builtin type": list,
}


@pytest.mark.parametrize("target", CALLABLES.values(), ids=CALLABLES)
def test_whatever_can_be_called(target, counter):
    compiled = kiln.compile(target, backend=counter)
    for _ in range(2):
        assert same(compiled(X), target(X))
    assert counter.frame_count <= 1


def test_gradients_of_an_autograd_function(counter):
    x = X.clone().requires_grad_()
    kiln.compile(Square.apply, backend=counter)(x).sum().backward()
    assert same(x.grad, 3 * X)


def test_class(counter):
    assert same(kiln.compile(Holder, backend=counter)(X).value, X + 1)


def test_keyword_arguments_of_any_name(counter):
    compiled = kiln.compile(Scaler(1), backend=counter)
    assert same(compiled(X, target=4), X + 5)

    class Odd(torch.nn.Module):
        def forward(self, x, target, module, self_):
            return x + target + module + self_

    assert same(kiln.compile(Odd(), backend=counter)(x=X, target=1, module=2, self_=3), X + 6)


def test_callable_objects_do_not_share_an_allowance(counter):
    with kiln.config.patch(recompile_limit=2):
        for number in range(6):
            assert same(kiln.compile(functools.partial(torch.add, other=number), backend=counter)(X), X + number)
            assert same(kiln.compile(Scaler(number), backend=counter)(X), X + number)


# -- decorators -----------------------------------------------------------------------------------------------------


def test_decorator_with_and_without_arguments(counter):
    @kiln.compile
    def one(x):
        return x + 1

    @kiln.compile(backend=counter)
    def two(x):
        return x + 2

    @kiln.compile()
    def three(x):
        return x + 3

    assert same([one(X), two(X), three(X)], [X + 1, X + 2, X + 3])
    assert counter.frame_count == 1


def test_in_a_class_body(counter):
    class Model:
        def __init__(self, bias):
            self.bias = bias

        @kiln.compile(backend=counter)
        def method(self, x):
            return x + self.bias

        @classmethod
        @kiln.compile(backend=counter)
        def inner(cls, x):
            return x + len(cls.__name__)

        @kiln.compile(backend=counter)
        @classmethod
        def outer(cls, x):
            return x - len(cls.__name__)

        @staticmethod
        @kiln.compile(backend=counter)
        def static(x):
            return x * 2

        @kiln.compile(backend=counter)
        @staticmethod
        def static_outer(x):
            return x * 3

        @property
        @kiln.compile(backend=counter)
        def prop(self):
            return X * self.bias

    one = Model(X + 1)
    assert same(one.method(X), X + X + 1)
    assert same(Model.method(one, X), X + X + 1)
    assert same(Model(X + 2).method(X), X + X + 2)
    assert counter.frame_count == 1
    assert same([one.inner(X), Model.outer(X), one.static(X), Model.static_outer(X)], [X + 5, X - 5, X * 2, X * 3])
    assert same(one.prop, X * (X + 1))


# -- compiled things ------------------------------------------------------------------------------------------------


def test_compiling_twice_changes_nothing(counter):
    once = kiln.compile(double, backend=counter)
    assert kiln.compile(once, backend=counter) is once
    module = kiln.compile(torch.nn.ReLU(), backend=counter)
    assert kiln.compile(module, backend=counter) is module
    bound = kiln.compile(Scaler(2).method, backend=counter)
    assert kiln.compile(bound, backend=counter) == bound


def test_compiling_anew_with_other_options(counter):
    once = kiln.compile(double)
    again = kiln.compile(once, backend=counter)
    assert again is not once and again.__wrapped__ is double
    assert same(again(X), X * 2) and counter.frame_count == 1
    module = kiln.compile(torch.nn.ReLU())
    other = kiln.compile(module, backend=counter)
    assert other._orig_mod is module._orig_mod
    assert same(other(X), X.relu()) and counter.frame_count == 2
    strict = kiln.compile(kiln.compile(lambda x: x.item()), fullgraph=True)
    with pytest.raises(kiln.exc.Unsupported):
        strict(torch.ones(()))


def test_nested(counter):
    inner = kiln.compile(lambda x: x + 1, backend="eager")
    outer = kiln.compile(lambda x: inner(x) * 2, backend=counter, fullgraph=True)
    assert same(outer(X), (X + 1) * 2)
    assert counter.frame_count == 1 and counter.op_count == 2
    module = kiln.compile(torch.nn.ReLU(), backend="eager")
    outer = kiln.compile(lambda x: module(x) * 2, backend=counter, fullgraph=True)
    assert same(outer(X - 2), (X - 2).relu() * 2)


def test_compile_inside_a_compiled_function(counter):
    def f(x):
        return kiln.compile(double, backend="eager")(x + 1) * 2

    assert same(kiln.compile(f, backend=counter)(X), (X + 1) * 4)


def test_introspection():
    assert compiled_double.__name__ == "double" and compiled_double.__doc__ == "Twice."
    assert compiled_double.__qualname__ == "double" and compiled_double.__module__ == double.__module__
    assert compiled_double.__wrapped__ is double
    assert inspect.signature(compiled_double) == inspect.signature(double)
    assert inspect.unwrap(compiled_double) is double
    assert callable(compiled_double) and "double" in repr(compiled_double)
    assert compiled_double.__defaults__ == (2,)
    partial = kiln.compile(functools.partial(double, scale=5))
    assert partial.__doc__ == functools.partial.__doc__
    named = kiln.compile(torch.sin)
    assert named.__name__ == "sin"


def test_attributes_of_the_function():
    @kiln.compile
    def f(x):
        return x

    f.__wrapped__.note = "kept"
    assert f.note == "kept"


def test_pickle_and_copy():
    assert pickle.loads(pickle.dumps(decorated)) is decorated
    assert copy.copy(decorated) is decorated and copy.deepcopy(decorated) is decorated


def test_other_options_are_compiled_apart():
    seen = []

    def backend(graph_module, example_inputs, level=0):
        seen.append(level)
        return graph_module.forward

    for level in (1, 2):
        assert same(kiln.compile(double, backend=backend, options={"level": level})(X), X * 2)
    assert seen == [1, 2]


# -- modules --------------------------------------------------------------------------------------------------------


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(()))
        self.limit = 5

    def forward(self, x):
        if self.training:
            self.seen += 1
        return self.linear(x).clamp(max=self.limit)

    def helper(self):
        return "helped"


def test_module_shares_everything(counter):
    net = Net()
    compiled = kiln.compile(net, backend=counter)
    assert isinstance(compiled, OptimizedModule) and isinstance(compiled, torch.nn.Module)
    assert [id(p) for p in compiled.parameters()] == [id(p) for p in net.parameters()]
    assert compiled.linear is net.linear and compiled.limit == 5 and compiled.helper() == "helped"
    assert same(compiled(X), net(X)) and float(net.seen) == 2
    compiled.limit = 0
    assert net.limit == 0 and same(compiled(X), net(X))
    compiled.extra = torch.nn.ReLU()
    assert net.extra is compiled.extra
    del compiled.extra
    assert not hasattr(net, "extra") and not hasattr(compiled, "extra")
    with pytest.raises(AttributeError, match="nothing_like_it"):
        compiled.nothing_like_it
    assert "linear" in dir(compiled) and "Net" in repr(compiled)


def test_module_mode(counter):
    net = Net().eval()
    compiled = kiln.compile(net, backend=counter)
    assert compiled.training is False
    compiled.train()
    assert net.training and net.linear.training and compiled.training
    compiled.eval()
    assert not net.training and not compiled.training
    compiled.training = True
    assert net.training
    compiled.requires_grad_(False)
    assert not net.linear.weight.requires_grad
    compiled.double()
    assert net.linear.weight.dtype is torch.float64
    assert same(compiled(X.double()), net(X.double()))


def test_module_state(counter):
    net = Net()
    compiled = kiln.compile(net, backend=counter)
    state = compiled.state_dict()
    assert {name.removeprefix("_orig_mod.") for name in state} == set(net.state_dict())
    state = {name: torch.zeros_like(value) for name, value in state.items()}
    compiled.load_state_dict(state)
    assert same(net.linear.weight.detach(), torch.zeros(3, 3))
    optimizer = torch.optim.SGD(compiled.parameters(), lr=0.1)
    compiled(X).sum().backward()
    optimizer.step()
    assert not same(net.linear.bias.detach(), torch.zeros(3))


def test_module_hooks(counter):
    net = Net()
    compiled = kiln.compile(net, backend=counter)
    log = []
    inner = net.register_forward_hook(lambda module, args, output: log.append("inner") or output + 1)
    outer = compiled.register_forward_hook(lambda module, args, output: log.append("outer") or output + 2)
    assert same(compiled(X), net(X) + 2)
    assert log == ["inner", "outer", "inner"]
    inner.remove()
    outer.remove()
    assert same(compiled(X), net(X)) and len(log) == 3


def test_module_containers(counter):
    compiled = kiln.compile(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Tanh()), backend=counter)
    assert len(compiled) == 2 and isinstance(compiled[1], torch.nn.Tanh) and len(list(compiled)) == 2
    assert compiled and kiln.compile(torch.nn.ReLU())
    assert same(compiled(X), X.relu().tanh())


def test_module_copies(counter):
    compiled = kiln.compile(Net(), backend="eager")
    for copied in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        assert isinstance(copied, OptimizedModule) and copied._orig_mod is not compiled._orig_mod
        assert same(copied(X), compiled(X))
        with torch.no_grad():
            copied.linear.weight.zero_()
        assert not same(copied(X), compiled(X))


def test_modules_of_one_class_share_what_was_compiled(counter):
    nets = [kiln.compile(Net(), backend=counter) for _ in range(4)]
    for net in nets:
        assert same(net(X), net._orig_mod(X))
    assert counter.frame_count == 1


def test_modules_of_one_class_have_an_allowance_each(counter):
    with kiln.config.patch(recompile_limit=2):
        for size in range(2, 8):
            net = torch.nn.Linear(3, size)
            assert same(kiln.compile(net, backend=counter)(X), net(X))
    assert counter.frame_count == 6


# -- disable --------------------------------------------------------------------------------------------------------


def test_disabled_function(counter):
    calls = []

    @kiln.disable
    def eager(x):
        calls.append(kiln.is_compiling())
        return x + 1

    def f(x):
        return eager(x * 2) * 3

    assert same(kiln.compile(f, backend=counter)(X), (X * 2 + 1) * 3)
    assert calls == [False] and counter.frame_count == 2
    assert kiln.compile(eager) is eager and kiln.disable(eager) is eager
    assert eager.__name__ == "eager"
    with pytest.raises(kiln.exc.Unsupported, match="kiln.disable"):
        kiln.compile(f, fullgraph=True)(X)


def test_disabled_method_and_decorator_with_parentheses(counter):
    class Model:
        @kiln.disable
        def one(self, x):
            return x + 1

        @kiln.disable()
        def two(self, x):
            return x + 2

        @kiln.disable
        @staticmethod
        def three(x):
            return x + 3

    def f(x, model):
        return model.one(x) * model.two(x) * model.three(x)

    assert same(kiln.compile(f, backend=counter)(X, Model()), (X + 1) * (X + 2) * (X + 3))


def test_disabled_compiled_function(counter):
    compiled = kiln.compile(double, backend=counter)
    assert same(kiln.disable(compiled)(X), X * 2)
    assert counter.frame_count == 0


def test_disabled_block(counter):
    compiled = kiln.compile(double, backend=counter)
    with kiln.disable():
        assert same(compiled(X), X * 2)
        with kiln.disable():
            assert same(compiled(X), X * 2)
        assert same(compiled(X), X * 2)
    assert counter.frame_count == 0
    assert same(compiled(X), X * 2) and counter.frame_count == 1


def test_disabled_block_that_raises(counter):
    compiled = kiln.compile(double, backend=counter)
    with pytest.raises(ZeroDivisionError), kiln.disable():
        1 / 0
    assert same(compiled(X), X * 2) and counter.frame_count == 1


def test_disabled_block_inside_compiled_code(counter):
    inner = kiln.compile(lambda x: x + 1, backend=counter)

    def f(x):
        x = x * 2
        with kiln.disable():
            y = inner(x)
        return inner(y) * 3

    assert same(kiln.compile(f, backend=counter)(X), (X * 2 + 2) * 3)


def test_disabled_module(counter):
    net = Net()
    kiln.disable(net.linear)
    compiled = kiln.compile(net, backend=counter)
    assert same(compiled(X), net(X))
    assert not any("linear" in str(node.target) for graph in counter.graphs for node in graph.graph.nodes)


# -- marks in code --------------------------------------------------------------------------------------------------


def test_graph_break(counter):
    def f(x):
        x = x + 1
        kiln.graph_break("just so")
        return x * 2

    assert same(f(X), (X + 1) * 2)
    assert same(kiln.compile(f, backend=counter)(X), (X + 1) * 2) and counter.frame_count == 2
    with pytest.raises(kiln.exc.Unsupported, match="just so"):
        kiln.compile(f, fullgraph=True)(X)


def test_is_compiling(counter):
    def f(x):
        return x + 1 if kiln.is_compiling() else x - 1

    assert same(f(X), X - 1) and kiln.is_compiling() is False
    assert same(kiln.compile(f, backend=counter)(X), X + 1)
    assert kiln.is_compiling() is False


def test_allow_in_graph(counter):
    @kiln.allow_in_graph
    def leaf(x, y):
        return torch.add(x, y) * 2

    def f(x):
        return leaf(x, 3) + 1

    assert same(kiln.compile(f, backend=counter, fullgraph=True)(X), f(X))
    assert counter.op_count == 2
    assert any(node.target is leaf for node in counter.graphs[0].graph.nodes)
    with pytest.raises(kiln.exc.NotCallable):
        kiln.allow_in_graph(3)


# -- the rest -------------------------------------------------------------------------------------------------------


def test_reset(counter):
    compiled = kiln.compile(double, backend=counter)
    compiled(X)
    compiled(X)
    assert counter.frame_count == 1
    kiln.reset()
    assert same(compiled(X), X * 2)
    assert counter.frame_count == 2


def test_export():
    graph_module, guards = kiln.export(double)(X, 3)
    assert isinstance(graph_module, torch.fx.GraphModule)
    assert same(graph_module(X), (X * 3 + 0,)) or same(graph_module(X)[0], X * 3)
    assert any("L['x']" in guard for guard in guards) and any("L['scale'] == 3" in guard for guard in guards)
    with pytest.raises(kiln.exc.Unsupported):
        kiln.export(lambda x: x.item())(torch.ones(()))
    with pytest.raises(kiln.exc.UserError):
        kiln.export(lambda x: 3)(X)
    module, _ = kiln.export(Net())(X)
    assert any("linear" in str(node.target) for node in module.graph.nodes)


def test_backends():
    assert {"eager", "print"} <= set(kiln.list_backends())

    @kiln.register_backend
    def test_api_backend(graph_module, example_inputs):
        return graph_module.forward

    @kiln.register_backend(name="test_api_named")
    def other(graph_module, example_inputs):
        return graph_module.forward

    assert {"test_api_backend", "test_api_named"} <= set(kiln.list_backends())
    assert same(kiln.compile(double, backend="test_api_named")(X), X * 2)


def test_print_backend(capsys):
    kiln.compile(double, backend="print")(X)
    assert "mul" in capsys.readouterr().out


def test_counter_wraps_another_backend():
    seen = []

    def backend(graph_module, example_inputs):
        seen.append(len(example_inputs))
        return graph_module.forward

    counter = kiln.testing.CompileCounterWithBackend(backend)
    kiln.compile(lambda x, y: x * y + 1, backend=counter)(X, X + 1)
    assert seen == [2] and counter.frame_count == 1 and counter.op_count == 2


def test_backend_gets_a_graph_and_example_inputs():
    def backend(graph_module, example_inputs):
        assert isinstance(graph_module, torch.fx.GraphModule)
        placeholders = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
        assert len(placeholders) == len(example_inputs)
        assert [tuple(value.shape) for value in example_inputs] == [(2, 3)]
        assert not torch.is_grad_enabled()
        return graph_module.forward

    with torch.no_grad():
        kiln.compile(double, backend=backend)(X)


def test_config_as_decorator_and_context():
    @kiln.config.patch(recompile_limit=1)
    def inside():
        return kiln.config.recompile_limit

    assert inside() == 1 and kiln.config.recompile_limit == 8


def test_hooks_on_a_graph_that_a_backend_gives_back():
    """Those on the graph itself run, also when they are registered late; those of all modules do not: in eager there
    is no such module."""
    given, seen = [], []

    def backend(graph, inputs):
        given.append(graph)
        return graph

    compiled = kiln.compile(lambda x: x + 1, backend=backend)
    x = torch.ones(2)
    everywhere = torch.nn.modules.module.register_module_forward_hook(lambda *args: seen.append("everywhere"))
    try:
        assert torch.equal(compiled(x), x + 1)
        assert seen == []
        late = given[0].register_forward_hook(lambda module, args, result: seen.append("late"))
        assert torch.equal(compiled(x), x + 1)
        assert "late" in seen
        late.remove()
        seen.clear()
        assert torch.equal(compiled(x), x + 1)
        assert seen == []
    finally:
        everywhere.remove()
