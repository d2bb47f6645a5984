"""Hooks that captured code puts on tensors: which run, in what order, on what, and what their handles do.

Each program takes a tensor and a log that its hooks write to; backward runs after every call, so the logs, gradients,
handles and what is left on the tensors must come out as in eager.
"""

import functools

import pytest
import torch

import kiln
from kiln.testing import CompileCounter, check, same

BOTH = (None, "line")


def note(log, name, gradient):
    log.append((name, gradient.tolist()))


def leaf(*values):
    return torch.tensor(values or (1.0, 2.0, 3.0), requires_grad=True)


def program(**counts):
    """Mark a program with the counts that its capture must have."""

    def mark(function):
        PROGRAMS[function.__name__] = (function, counts)
        return function

    return mark


PROGRAMS: dict = {}


def global_double(gradient):
    return gradient * 2


def global_square(gradient):
    return gradient * gradient


class Scale:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, gradient):
        return gradient * self.factor

    def method(self, gradient):
        return gradient + self.factor


class Owner:
    """Keeps the handle of a hook that is a method of its own, and takes it off when it was called."""

    def __init__(self, log):
        self.log = log

    def watch(self, tensor):
        self.handle = tensor.register_hook(self.seen)

    def seen(self, gradient):
        note(self.log, "owner", gradient)
        self.handle.remove()


# -- what a hook can be ----------------------------------------------------------------------------------------------


@program(graphs=0)
def lambda_on_input(x, log):
    x.register_hook(lambda g: note(log, "x", g))
    return x


@program(graphs=1, ops=3)
def lambda_on_intermediate(x, log):
    y = x * 2
    y.register_hook(lambda g: note(log, "y", g))
    return y * 3


@program(graphs=1)
def global_function(x, log):
    x.register_hook(global_double)
    return x * x


@program(graphs=1)
def closure_over_a_result(x, log):
    y = x.sin()
    z = y * 2
    x.register_hook(lambda g: g * z.detach())  # the graph computes z, and the hook needs it later
    y.register_hook(lambda g: g + z.detach())
    return y.sum()


@program(graphs=1)
def closure_over_a_variable_set_later(x, log):
    def hook(g):
        note(log, "factor", g * factor)
        return g * factor

    x.register_hook(hook)
    y = x * 2
    y.register_hook(hook)
    factor = 5.0
    return y


@program(graphs=1)
def partial_of_a_function(x, log):
    def scaled(g, *, k):
        return g * k

    y = x * 2
    y.register_hook(functools.partial(scaled, k=3.0))
    x.register_hook(functools.partial(scaled, k=7.0))
    return y * 3


@program(graphs=1)
def callable_object_made_inside(x, log):
    scale = Scale(3.0)
    y = x * 2
    y.register_hook(scale)
    y.register_hook(scale.method)
    scale.factor = 4.0
    return y, scale


@program(graphs=1)
def builtin_as_hook(x, log):
    seen = []
    y = x * 2
    y.register_hook(seen.append)
    x.register_hook(torch.neg)
    return y, seen


@program(graphs=1)
def unbound_and_by_keyword(x, log):
    y = x * 2
    torch.Tensor.register_hook(y, global_double)
    y.register_hook(hook=global_square)
    return y


# -- order -----------------------------------------------------------------------------------------------------------


@program(graphs=1, ops=2)
def several_in_order(x, log):
    for name in "abc":
        x.register_hook(functools.partial(note, log, f"x {name}"))
    y = x * 2
    x.register_hook(global_square)
    x.register_hook(lambda g: note(log, "last", g))
    return y + 1


@program(graphs=1)
def several_on_an_intermediate(x, log):
    y = x * 2
    for name in "abc":
        y.register_hook(functools.partial(note, log, name))
    z = y * 3
    y.register_hook(global_square)
    y.register_hook(lambda g: note(log, "last", g))
    z.register_hook(lambda g: note(log, "z", g))
    return z


@program(graphs=1)
def twice_the_same(x, log):
    y = x * 2
    y.register_hook(global_double)
    y.register_hook(global_double)
    return y


# -- handles ---------------------------------------------------------------------------------------------------------


@program(graphs=1)
def handle_returned_twice(x, log):
    handle = x.register_hook(global_double)
    other = handle
    if not handle:
        x = x + 1
    return x * 2, handle, [other, handle], handle is other, handle == other


@program(graphs=1)
def removed_twice_and_returned(x, log):
    handle = x.register_hook(global_double)
    y = x * 2
    inner = y.register_hook(global_double)
    handle.remove()
    handle.remove()
    inner.remove()
    return y, handle, inner


@program(graphs=1)
def removed_and_replaced(x, log):
    handle = x.register_hook(lambda g: note(log, "first", g))
    y = x * 3
    handle.remove()
    x.register_hook(lambda g: note(log, "second", g))
    return y


@program(graphs=1)
def with_block(x, log):
    with x.register_hook(lambda g: note(log, "inside", g)) as handle:
        y = x * 2
    x.register_hook(lambda g: note(log, "after", g))
    return y, handle


@program(graphs=1)
def removed_by_its_own_hook(x, log):
    def once(g):
        note(log, "once", g)
        handle.remove()

    y = x * 2
    handle = y.register_hook(once)
    first = x.register_hook(lambda g: first.remove())
    return y.sum(), y.mean()


@program(graphs=1)
def handles_in_containers(x, log):
    y = x * 2
    handles = [y.register_hook(functools.partial(note, log, index)) for index in range(4)]
    table = {"first": handles[0], handles[1]: "second"}
    handles[2].remove()
    del handles[3]
    return y, handles, table


@program(graphs=1)
def handle_made_by_a_method_of_its_owner(x, log):
    owner = Owner(log)
    y = x * 2
    owner.watch(y)
    return y, owner.handle


@program()
def attributes_of_a_handle(x, log):
    handle = x.register_hook(global_double)
    known = handle.id in x._backward_hooks
    return x * 2, known, hasattr(handle, "nothing"), type(handle).__name__


@program()
def attribute_set_on_a_handle(x, log):
    handle = x.register_hook(global_double)
    handle.label = "mine"
    return x * 2, handle.label


# -- places ----------------------------------------------------------------------------------------------------------


@program(graphs=1)
def changed_in_place_after_and_before(x, log):
    y = x * 2
    y.register_hook(lambda g: note(log, "old", g))
    y.mul_(3)
    y.register_hook(lambda g: note(log, "new", g))
    y.add_(1)
    return y * y


@program(graphs=1)
def on_views(x, log):
    y = x * 2
    part = y[:2]
    part.register_hook(lambda g: note(log, "part", g))
    y.register_hook(lambda g: note(log, "whole", g))
    part.mul_(5)
    y.register_hook(lambda g: note(log, "whole, changed", g))
    part.register_hook(lambda g: note(log, "part, changed", g))
    return y.sum() + part.sum()


@program(graphs=1)
def on_an_output_only(x, log):
    y = x * 2
    y.register_hook(lambda g: note(log, "y", g))
    return y


@program(graphs=1)
def on_something_dropped(x, log):
    (x * 2).register_hook(lambda g: note(log, "never", g))
    return x + 1


@program(graphs=1)
def leaf_made_inside(x, log):
    w = torch.ones(3, requires_grad=True)
    w.register_hook(lambda g: note(log, "w", g))
    w.register_post_accumulate_grad_hook(lambda p: note(log, "accumulated", p.grad))
    return x * w, w


@program(graphs=1)
def no_grad_inside(x, log):
    y = x * 2
    with torch.no_grad():
        y.register_hook(lambda g: note(log, "y", g))
        x.register_hook(global_double)
        z = x * 3
    return y, z


@program(graphs=1)
def loop_over_tensors(x, log):
    total = x.new_zeros(())
    for index, part in enumerate(x.unbind()):
        part.register_hook(functools.partial(note, log, index))
        total = total + part * index
    return total


@program(graphs=1)
def turned_on_inside(x, log):
    w = x.detach()
    w.requires_grad_()
    w.register_hook(lambda g: note(log, "w", g))
    return w * 2


@program(graphs=1)
def hook_registers_more(x, log):
    def outer(g):
        note(log, "outer", g)
        x.register_hook(lambda g: note(log, "inner", g))

    y = x * 2
    y.register_hook(outer)
    return y


# -- accumulated gradients --------------------------------------------------------------------------------------------


@program(graphs=0)
def post_accumulate(x, log):
    def hook(parameter):
        note(log, "before", parameter.grad)
        parameter.grad.mul_(5)

    x.register_post_accumulate_grad_hook(hook)
    return x


@program(graphs=1)
def all_kinds_at_once(x, log):
    x.register_post_accumulate_grad_hook(lambda p: note(log, "accumulated", p.grad))
    x.register_hook(lambda g: note(log, "gradient", g))
    handle = x.register_post_accumulate_grad_hook(lambda p: note(log, "removed", p.grad))
    y = (x * 2).exp()
    handle.remove()
    return y


@program(graphs=1, ops=3)
def retained(x, log):
    y = x * 2
    before = y.retains_grad
    y.retain_grad()
    x.retain_grad()
    return y, y * y, before, y.retains_grad, x.retains_grad, y.grad


@program(graphs=1)
def retained_and_changed(x, log):
    y = x * 2
    y.retain_grad()
    y.register_hook(global_double)
    y.mul_(3)
    return y, y * y


# -- errors ----------------------------------------------------------------------------------------------------------


@program()
def no_gradient_required(x, log):
    (x.detach() * 2).register_hook(global_double)
    return x


@program()
def no_gradient_required_caught(x, log):
    try:
        x.detach().register_post_accumulate_grad_hook(global_double)
    except RuntimeError as error:
        return x * 2, str(error)


@program()
def not_a_leaf(x, log):
    (x * 2).register_post_accumulate_grad_hook(global_double)
    return x


@program()
def retain_without_gradient(x, log):
    x.detach().retain_grad()


@program()
def too_few_arguments(x, log):
    x.register_hook()


@program(graphs=1)
def hook_raises(x, log):
    def hook(g):
        raise ValueError("from the hook")

    y = x * 2
    y.register_hook(hook)
    return y


@program(graphs=1)
def hook_returns_another_shape(x, log):
    y = x * 2
    y.register_hook(lambda g: g.sum())
    return y


@program(graphs=1)
def hook_returns_no_tensor(x, log):
    y = x * 2
    y.register_hook(lambda g: "nonsense")
    return y


@program(graphs=1)
def hook_is_not_callable(x, log):
    y = x * 2
    y.register_hook(42)
    return y


@program()
def raises_after_registering(x, log):
    x.register_hook(lambda g: note(log, "x", g))
    log.append("here")
    raise KeyError("after")


@program()
def caught_after_registering(x, log):
    try:
        x.register_hook(lambda g: note(log, "x", g))
        y = x * 2
        y.register_hook(lambda g: note(log, "y", g))
        raise KeyError("after")
    except KeyError:
        return y


@pytest.mark.covers(
    "test_hooks::test_tensor_only_register_hook_in_graph_lambda",
    "test_hooks::test_tensor_register_hook_in_graph_lambda",
    "test_hooks::test_tensor_register_hook_multi_handle_return",
    "test_hooks::test_tensor_register_hook_repeated_handle_return",
    "test_hooks::test_removed_handle_return",
    "test_hooks::test_tensor_register_hook_in_graph_break_handle_lambda",
    "test_hooks::test_tensor_register_global_hook",
    "test_hooks::test_tensor_register_multiple_hooks",
)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    function, counts = PROGRAMS[name]
    counts = {"breaks": 0, "fullgraph": True, **counts} if counts else {}
    check(function, leaf(), [], calls=2, breaks_every=BOTH, **counts)


# -- inputs of other kinds -------------------------------------------------------------------------------------------


def with_history():
    base = leaf()
    x = base * 2
    x.register_hook(lambda g: g + 1)  # there before Kiln sees it
    return x, []


@pytest.mark.parametrize("breaks_every", BOTH)
@pytest.mark.parametrize("function", [several_in_order, all_kinds_at_once, retained, with_block, not_a_leaf])
def test_input_with_history(function, breaks_every):
    check(function, make_args=with_history, calls=2, breaks_every=(breaks_every,))


def changes_its_argument(x, log):
    x.register_hook(lambda g: note(log, "before", g))
    x.mul_(3)
    x.register_hook(lambda g: note(log, "after", g))
    x.retain_grad()
    x.add_(1)
    return x * 2


def changes_a_view_of_its_argument(x, log):
    x.register_hook(lambda g: note(log, "before", g))
    x[0].mul_(3)
    handle = x.register_hook(lambda g: note(log, "after", g))
    return x * 2, handle


def detaches_its_argument(x, log):
    x.register_hook(lambda g: note(log, "before", g))
    y = x * 2
    x.detach_()
    return y, x.requires_grad


@pytest.mark.parametrize(
    "function", [changes_its_argument, changes_a_view_of_its_argument, detaches_its_argument], ids=lambda f: f.__name__
)
def test_input_changed_in_place(function):
    """A hook stays where the tensor was in autograd's graph when it was registered: these are left in the graph."""
    check(function, make_args=with_history, fullgraph=True, graphs=1, breaks_every=BOTH)


def test_input_that_is_a_view_of_something_changed():
    def function(x, y, log):
        x.register_hook(lambda g: note(log, "before", g))
        y.mul_(3)
        return x * 2, y * 2

    def views():
        base = leaf() * 2
        return base[:2], base[1:], []

    check(function, make_args=views, breaks_every=BOTH)


def test_one_tensor_twice():
    def function(x, y, log):
        x.register_hook(lambda g: note(log, "first", g))
        y.register_hook(lambda g: note(log, "second", g))
        return x * y

    def same():
        x = leaf()
        return x, x, []

    check(function, make_args=same, calls=2, graphs=1)


def test_parameters_and_subclasses():
    class Plain(torch.Tensor):
        pass

    class Counting(torch.Tensor):
        calls = []

        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            cls.calls.append(getattr(function, "__name__", "?"))
            return super().__torch_function__(function, types, args, kwargs or {})

    def function(x, log):
        x.register_hook(lambda g: log.append(type(g).__name__))
        x.register_post_accumulate_grad_hook(lambda p: log.append(type(p).__name__))
        y = x * 2
        y.register_hook(lambda g: log.append(type(g).__name__))
        return y, tuple(Counting.calls)

    for kind in (torch.nn.Parameter, lambda t: t.as_subclass(Plain).requires_grad_()):
        check(function, make_args=lambda kind=kind: (kind(torch.ones(3)), []), fullgraph=True, graphs=1)

    def setup():
        Counting.calls = []
        return function, (torch.ones(3).as_subclass(Counting).requires_grad_(), [])

    check(setup=setup)


@pytest.mark.covers("test_hooks::test_post_acc_grad_hook")
def test_accumulated_gradient_is_the_one_that_the_hook_sees():
    """Registered after the graph, whatever the backend. (The document's compiled backward passes come with those.)"""

    def hook(parameter):
        parameter.mul_(parameter.grad)
        parameter.grad.mul_(5)

    def function(x, y):
        x.register_post_accumulate_grad_hook(hook)
        return x * y

    def run(function):
        x, y = torch.full((3,), 0.5, requires_grad=True), leaf()
        function(x, y)
        x.backward(torch.full((3,), 2.0))
        return x, x.grad

    counter = CompileCounter()
    assert same(run(function), run(kiln.compile(function, backend=counter, fullgraph=True)))
    assert counter.frame_count == 1 and counter.op_count == 1


@pytest.mark.covers("test_hooks::test_intermediary_hooks")
def test_intermediate_in_one_graph():
    """The document has a graph break at a hook on an intermediate, and two frames: Kiln has one graph."""

    def function(x):
        y = x + 1
        y.register_hook(global_double)
        return y + 1

    report = check(function, leaf(1.0), fullgraph=True, graphs=1, breaks=0)
    ((x,), _) = report.compiled.arguments[0]
    assert x.grad.tolist() == [pytest.approx(2 * 0.5403, abs=1e-3)]


# -- nothing is assumed of a hook ------------------------------------------------------------------------------------


class Value:
    def __init__(self, value):
        self.value = value


@pytest.mark.covers("test_hooks::test_register_hook_partial_guarding")
@pytest.mark.parametrize("on_input", [True, False])
@pytest.mark.parametrize("form", ["closure", "partial", "positional", "default"])
def test_another_object_in_the_hook_does_not_recompile(form, on_input):
    def add(value, gradient):
        return gradient + value.value

    def function(x, value):
        y = x.sin()
        target = x if on_input else y
        if form == "closure":
            target.register_hook(lambda g: g + value.value)
        elif form == "partial":
            target.register_hook(functools.partial(lambda g, value: g + value.value, value=value))
        elif form == "positional":
            target.register_hook(functools.partial(add, value))
        else:
            target.register_hook(lambda g, value=value: g + value.value)
        return y.sin()

    values = [Value(torch.tensor(88)), Value(torch.tensor(99.0)), Value(11), Value(2.5)]
    check(function, calls=[(leaf(), value) for value in values], fullgraph=True, graphs=1, recompiles=0)


@pytest.mark.covers(
    "test_hooks::test_no_recompile_on_hook_identity_change",
    "test_hooks::test_functools_arg_vary",
    "test_hooks::test_tensor_only_register_hook_in_graph_local",
    "test_hooks::test_tensor_register_hook_in_graph_local",
    "test_hooks::test_tensor_register_hook_in_graph_break_handle_local",
)
def test_another_hook_does_not_recompile():
    def setup():
        log = []
        hook = functools.partial(note, log, "first")

        def function(x, replace, y):
            nonlocal hook
            x.register_hook(hook)
            y = y * 2
            y.register_hook(hook)
            y.register_hook(hook)
            hook = replace
            return y * 3

        calls = [(leaf(), replace, leaf()) for replace in (global_double, Scale(3), functools.partial(note, log, 2))]
        return function, calls, log

    check(setup=setup, fullgraph=True, graphs=1, recompiles=0)


@pytest.mark.covers("test_hooks::test_tensor_only_register_hook_in_graph_local_inner")
def test_one_inner_function_on_input_and_intermediate():
    def function(x):
        def hook(gradient):
            return gradient * 2

        z = x * x
        x.register_hook(hook)
        z.register_hook(hook)
        return x, z

    check(function, leaf(), calls=2, fullgraph=True, graphs=1)


# -- where handles go ------------------------------------------------------------------------------------------------


class Keeper(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.handle = None
        self.handles = []

    def forward(self, x):
        if self.handle is not None:
            self.handle.remove()
        self.handle = x.register_hook(global_double)
        y = x * 2
        self.handles.append(y.register_hook(global_square))
        return y


@pytest.mark.covers("test_hooks::test_tensor_register_hook_repeated_handle_not_local")
def test_handle_on_a_module():
    """The handle of the call before is removed; which number it has is not assumed."""
    x = leaf()
    report = check(Keeper(), x, calls=5, fullgraph=True, breaks_every=BOTH)
    assert report.recompiles <= 1, "the first call meets None, the others a handle"


@pytest.mark.covers(
    "test_hooks::test_tensor_register_global_hooks_handles_in_list",
    "test_hooks::test_tensor_register_multiple_hooks_handles_in_list",
)
def test_handle_in_a_global():
    """The document asserts that a handle stored in a global is not captured at all: Kiln makes one graph of it."""
    namespace = {"hook": global_double, "kept": None, "removed": []}
    exec("def function(x):\n    global kept\n    kept = x.register_hook(hook)\n    return x, x * x\n", namespace)

    def setup():
        namespace["kept"] = None

        def both(x):
            first = namespace["function"](x)
            return first, namespace["kept"]

        return namespace["function"], (leaf(),)

    check(setup=setup, fullgraph=True, graphs=1)
    namespace["kept"].remove()
    x = leaf()
    x.backward(torch.ones(3))
    assert x.grad.tolist() == [1.0, 1.0, 1.0]


def test_handles_from_outside():
    def removes(x, handles, log):
        for handle in handles:
            handle.remove()
        y = x * 2
        y.register_hook(lambda g: note(log, "y", g))
        with handles[0]:
            y = y + 1
        return y, handles[0]

    def setup():
        log = []
        tensors = [leaf() for _ in range(4)]

        def handles(x):
            return [x.register_hook(lambda g, i=i: note(log, i, g)) for i in range(3)]

        return removes, [(x, handles(x)[:2], log) for x in tensors], log

    check(setup=setup, graphs=1, recompiles=0, fullgraph=True, breaks_every=BOTH)


def test_handles_of_modules_from_outside():
    """The dictionary that a handle belongs to may have a part in the trace: a call of the module looks at it."""
    for register in ("register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"):

        def setup(register=register):
            log = []
            module = torch.nn.Linear(3, 3)

            def function(x, handle):
                before = module(x)
                handle.remove()
                return before, module(x)

            def only_after(x, handle):
                handle.remove()
                return module(x)

            def hook(*args):
                log.append(register)

            handles = [getattr(module, register)(hook) for _ in range(2)]
            return only_after if len(register) > 22 else function, [(leaf(), handle) for handle in handles], log

        check(setup=setup, breaks_every=BOTH)


# -- a graph that raises -----------------------------------------------------------------------------------------------


def test_graph_that_raises_leaves_no_hooks():
    """Eager takes over from the start of the frame and registers all hooks itself."""

    def function(x, index, log):
        x.register_hook(lambda g: note(log, "before", g))
        with torch.no_grad():
            x.mul_(2)
        x.register_hook(lambda g: note(log, "after", g))
        y = x * 2
        y.register_hook(lambda g: note(log, "y", g))
        return y[index]

    def arguments():
        def history():
            return leaf() * 2

        log = []
        return [(history(), torch.tensor([place]), log) for place in (0, 2, 7, 1)]

    def setup():
        return function, arguments()

    check(setup=setup, graphs=1)
