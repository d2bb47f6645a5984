"""Faults: what goes wrong in the middle of a backward goes wrong as in eager, and the next backward is right.

Each fault is a program that makes a model, provokes the fault, says what was raised and which gradients were there by
then, takes the fault away, and goes on. It is run in eager and with the engine on, after a run without any fault, so
that the fault meets a backward that is compiled already; and first of all, so that it meets one that is being compiled.
"""

import gc
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.autograd import Function, Variable
from torch.autograd.graph import saved_tensors_hooks

from tests.engine.observing import as_traced, compare, engine, observe, whole, with_breaks

FAULTS = {}


def fault(program):
    FAULTS[program.__name__] = program
    return program


class Interrupt(BaseException):
    """An exception that is no Exception, as KeyboardInterrupt is."""


class Model:
    """Three leaves, of which the first gets its gradient last, and places to put a fault."""

    def __init__(self):
        self.leaves = [torch.full((2,), value, requires_grad=True) for value in (1.0, 2.0, 3.0)]
        self.log = []
        self.armed = False

    def loss(self, inside=lambda x: x):
        a, b, c = self.leaves
        first = inside((a * 2).exp())
        second = (first * b).sin()
        return (second * c).sum()

    def run(self, **how):
        """One whole step, and all there is to see after it."""
        how = {"inside": lambda x: x, **how}
        try:
            self.loss(how["inside"]).backward()
            raised = None
        except BaseException as error:
            raised = type(error).__name__, str(error)
        seen = raised, [None if leaf.grad is None else leaf.grad.clone() for leaf in self.leaves]
        for leaf in self.leaves:
            leaf.grad = None
        return seen

    def story(self, *, inside=lambda x: x, warm=True):
        """A step without the fault (if warm), two with it, and two without."""
        steps = [self.run(inside=inside)] if warm else []
        self.armed = True
        steps += [self.run(inside=inside), self.run(inside=inside)]
        self.armed = False
        steps += [self.run(inside=inside), self.run(inside=inside)]
        return steps, self.log


def _boom(model, kind=ValueError):
    def raises(*given):
        model.log.append("called")
        if model.armed:
            raise kind("boom")

    return raises


def _with_hook(hook):
    def inside(x):
        x.register_hook(hook)
        return x

    return inside


# -- hooks that raise -------------------------------------------------------------------------------------------------


@fault
def a_tensor_hook_raises(warm):
    model = Model()
    return model.story(inside=_with_hook(_boom(model)), warm=warm)


@fault
def a_leafs_hook_raises(warm):
    model = Model()
    model.leaves[1].register_hook(_boom(model))
    return model.story(warm=warm)


@fault
def a_node_pre_hook_raises(warm):
    model = Model()

    def inside(x):
        x.grad_fn.register_prehook(_boom(model))
        return x

    return model.story(inside=inside, warm=warm)


@fault
def a_node_post_hook_raises(warm):
    model = Model()

    def inside(x):
        x.grad_fn.register_hook(_boom(model))
        return x

    return model.story(inside=inside, warm=warm)


@fault
def a_post_accumulate_hook_raises(warm):
    model = Model()
    model.leaves[1].register_post_accumulate_grad_hook(_boom(model))
    return model.story(warm=warm)


@fault
def a_module_hook_raises(warm):
    model, layer = Model(), nn.Tanh()
    layer.register_full_backward_hook(_boom(model))
    return model.story(inside=layer, warm=warm)


@fault
def a_custom_backward_raises(warm):
    model = Model()

    class Broken(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            if model.armed:
                raise ValueError("boom")
            return gradient * ctx.saved_tensors[0]

    return model.story(inside=Broken.apply, warm=warm)


@fault
def a_callback_raises(warm):
    model = Model()

    def queue(gradient):
        Variable._execution_engine.queue_callback(_boom(model))

    return model.story(inside=_with_hook(queue), warm=warm)


@fault
def an_unpack_hook_raises(warm):
    model = Model()

    def unpack(tensor):
        _boom(model)()
        return tensor

    def inside(x):
        with saved_tensors_hooks(lambda tensor: tensor, unpack):
            return x.exp()

    return model.story(inside=inside, warm=warm)


@fault
def an_inner_backward_raises(warm):
    model = Model()

    def hook(gradient):
        with torch.enable_grad():
            inner = torch.ones(2, requires_grad=True)
            y = inner * 2
            y.register_hook(_boom(model))
            y.sum().backward()

    return model.story(inside=_with_hook(hook), warm=warm)


@fault
def interrupted_by_the_keyboard(warm):
    model = Model()
    return model.story(inside=_with_hook(_boom(model, KeyboardInterrupt)), warm=warm)


@fault
def interrupted_by_what_is_no_exception(warm):
    model = Model()
    model.leaves[1].register_post_accumulate_grad_hook(_boom(model, Interrupt))
    return model.story(warm=warm)


@fault
def interrupted_by_exit(warm):
    model = Model()
    return model.story(inside=_with_hook(_boom(model, SystemExit)), warm=warm)


# -- hooks that return something wrong --------------------------------------------------------------------------------

WRONG = {
    "shape": lambda gradient: torch.ones(3),
    "rank": lambda gradient: torch.ones(2, 2),
    "dtype": lambda gradient: gradient.double(),
    "integers": lambda gradient: gradient.long(),
    "number": lambda gradient: 3.0,
    "text": lambda gradient: "text",
    "list": lambda gradient: [gradient],
    "sparse": lambda gradient: gradient.to_sparse(),
    "expanded": lambda gradient: torch.ones(1).expand(2),
    "graph": lambda gradient: gradient * torch.ones(2, requires_grad=True),
}


def _wrong(kind, place):
    def program(warm):
        model = Model()
        change = lambda gradient: WRONG[kind](gradient) if model.armed else None
        if place == "tensor":
            return model.story(inside=_with_hook(change), warm=warm)
        if place == "leaf":
            model.leaves[1].register_hook(change)
            return model.story(warm=warm)

        def inside(x):
            if place == "pre":
                x.grad_fn.register_prehook(lambda gradients: (WRONG[kind](gradients[0]),) if model.armed else None)
            else:
                x.grad_fn.register_hook(lambda inputs, outputs: (WRONG[kind](inputs[0]),) if model.armed else None)
            return x

        return model.story(inside=inside, warm=warm)

    return program


for _kind in WRONG:
    for _place in ("tensor", "leaf", "pre", "post"):
        FAULTS[f"{_place} hook, wrong {_kind}"] = _wrong(_kind, _place)


@fault
def a_pre_hook_returns_too_many(warm):
    model = Model()

    def inside(x):
        x.grad_fn.register_prehook(lambda gradients: (gradients[0], gradients[0]) if model.armed else None)
        return x

    return model.story(inside=inside, warm=warm)


@fault
def a_post_hook_returns_none_inside(warm):
    model = Model()

    def inside(x):
        x.grad_fn.register_hook(lambda inputs, outputs: (None,) if model.armed else None)
        return x

    return model.story(inside=inside, warm=warm)


@fault
def a_post_accumulate_hook_returns(warm):
    model = Model()
    model.leaves[1].register_post_accumulate_grad_hook(lambda leaf: leaf if model.armed else None)
    return model.story(warm=warm)


# -- hooks that remove and add hooks ----------------------------------------------------------------------------------


def _logging(model, name):
    def hook(*given):
        model.log.append(name)

    return hook


@fault
def a_hook_removes_itself(warm):
    model = Model()
    handles = []

    def once(gradient):
        handles[-1].remove()
        model.log.append("once")
        return gradient * 2

    def inside(x):
        handles.append(x.register_hook(once))
        x.register_hook(_logging(model, "after"))
        return x

    return model.story(inside=inside, warm=warm)


@fault
def a_leafs_hook_removes_itself(warm):
    model = Model()

    def once(gradient):
        model.log.append("once")
        if model.armed:
            handle.remove()

    handle = model.leaves[0].register_hook(once)
    model.leaves[0].register_hook(_logging(model, "other"))
    return model.story(warm=warm)


def _removing(place, which):
    """A hook that removes another one, of the same tensor or of one whose turn comes later or has come before."""

    def program(warm):
        model = Model()
        handles = {}

        def remove(*given):
            model.log.append("remover")
            if model.armed:
                handles[which].remove()

        def inside(x):
            y = x * 1
            handles["same, before"] = y.register_hook(_logging(model, "same, before"))
            if place == "tensor":
                y.register_hook(remove)
            elif place == "pre":
                y.grad_fn.register_prehook(remove)
            else:
                y.grad_fn.register_hook(remove)
            handles["same, after"] = y.register_hook(_logging(model, "same, after"))
            handles["node, pre"] = y.grad_fn.register_prehook(_logging(model, "node, pre"))
            handles["node, post"] = y.grad_fn.register_hook(_logging(model, "node, post"))
            handles["later"] = x.register_hook(_logging(model, "later"))
            handles["later node"] = x.grad_fn.register_prehook(_logging(model, "later node"))
            z = y * 1
            handles["earlier"] = z.register_hook(_logging(model, "earlier"))
            return z

        handles["leaf"] = model.leaves[0].register_hook(lambda gradient: gradient * 5)
        handles["accumulated"] = model.leaves[0].register_post_accumulate_grad_hook(_logging(model, "accumulated"))
        return model.story(inside=inside, warm=warm)

    return program


_OTHERS = ("same, before", "same, after", "node, pre", "node, post", "later", "later node", "earlier", "leaf")
for _place in ("tensor", "pre", "post"):
    for _which in (*_OTHERS, "accumulated"):
        FAULTS[f"{_place} hook removes {_which}"] = _removing(_place, _which)


def _adding(place, where):
    """A hook that registers another one, on the same tensor, or on one whose turn comes later or has come before."""

    def program(warm):
        model = Model()

        def inside(x):
            y = x * 1
            z = y * 1
            leaf = model.leaves[0]
            places = {
                "same": lambda hook: y.register_hook(hook),
                "same node": lambda hook: y.grad_fn.register_prehook(hook),
                "same node, post": lambda hook: y.grad_fn.register_hook(hook),
                "later": lambda hook: x.register_hook(lambda gradient: (hook(gradient), gradient * 2)[1]),
                "later node": lambda hook: x.grad_fn.register_prehook(hook),
                "earlier": lambda hook: z.register_hook(hook),
                "leaf": lambda hook: leaf.register_hook(lambda gradient: (hook(gradient), gradient * 2)[1]),
                "accumulated": lambda hook: leaf.register_post_accumulate_grad_hook(hook),
                "retained": lambda hook: x.retain_grad(),
            }

            def add(*given):
                model.log.append("adder")
                if model.armed:
                    places[where](_logging(model, "added"))

            if place == "tensor":
                y.register_hook(add)
            else:
                y.grad_fn.register_prehook(add)
            x.register_hook(lambda gradient: model.log.append(x.retains_grad))
            return z

        return model.story(inside=inside, warm=warm)

    return program


_WHERE = ("same", "same node", "same node, post", "later", "later node", "earlier", "leaf", "accumulated", "retained")
for _place in ("tensor", "pre"):
    for _where in _WHERE:
        FAULTS[f"{_place} hook adds to {_where}"] = _adding(_place, _where)


# -- the graph is not what it was -------------------------------------------------------------------------------------


@fault
def the_graph_was_freed(warm):
    model = Model()
    log = []
    for _ in range(2):
        loss = model.loss()
        loss.backward()
        try:
            loss.backward()
        except RuntimeError as error:
            log.append(str(error))
        log.append([leaf.grad.clone() for leaf in model.leaves])
    return log, model.run()


@fault
def a_part_of_the_graph_was_freed(warm):
    model = Model()
    shared = (model.leaves[0] * 2).exp()
    log = [model.run()] if warm else []
    (shared * 1).sum().backward()
    try:
        (shared * model.leaves[1]).sum().backward()
    except RuntimeError as error:
        log.append(str(error))
    return log, [leaf.grad for leaf in model.leaves], model.run(), model.run()


@fault
def a_saved_tensor_was_changed(warm):
    model = Model()

    def inside(x):
        y = x * 1
        z = y.exp() + y**2
        if model.armed:
            y.add_(1)
        return z

    return model.story(inside=inside, warm=warm)


@fault
def a_hook_changes_a_saved_tensor(warm):
    model = Model()

    def inside(x):
        y = x * 1
        z = y.exp() * y

        def hook(gradient):
            if model.armed:
                y.detach().mul_(2)

        z.register_hook(hook)
        return z

    return model.story(inside=inside, warm=warm)


@fault
def a_hook_changes_a_parameter(warm):
    model = Model()

    def inside(x):
        def hook(gradient):
            if model.armed:
                with torch.no_grad():
                    model.leaves[1].add_(1)

        z = x * model.leaves[1]
        z.register_hook(hook)
        return z

    return model.story(inside=inside, warm=warm)


@fault
def a_hook_frees_the_model(warm):
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, x):
            return (x * self.weight).tanh()

    def run(armed):
        holder = {"layer": Layer(), "other": Layer()}
        x = torch.ones(2, requires_grad=True)
        y = holder["other"](holder["layer"](x))
        alive = [weakref.ref(layer.weight) for layer in holder.values()]

        def hook(gradient):
            if armed:
                holder.clear()
                gc.collect(1)

        y.register_hook(hook)
        y.sum().backward()
        del y
        gc.collect(1)
        return x.grad, [ref() is None for ref in alive]

    return [run(False)] if warm else [], run(True), run(True), run(False)


@fault
def a_hook_drops_the_loss(warm):
    def run(armed):
        x = torch.ones(2, requires_grad=True)
        holder = [(x * 2).exp()]
        holder.append((holder[0] * x).sum())
        holder[0].register_hook(lambda gradient: holder.clear() if armed else None)
        torch.autograd.backward(holder[1] if not armed else holder.pop())
        return x.grad

    return [run(False)] if warm else [], run(True), run(True), run(False)


@fault
def a_hook_clears_a_gradient_or_sets_it(warm):
    model = Model()
    a, b, c = model.leaves

    def hook(gradient):
        if model.armed:
            c.grad = None
            b.grad = torch.full((2,), 7.0)

    return model.story(inside=_with_hook(hook), warm=warm)


@fault
def a_hook_turns_requires_grad_off(warm):
    model = Model()

    def hook(gradient):
        model.leaves[0].requires_grad_(not model.armed)

    def inside(x):
        x.register_hook(hook)
        return x

    steps = model.story(inside=lambda x: inside(x) if x.requires_grad else x, warm=warm)
    return steps


@fault
def a_hook_changes_modes(warm):
    model = Model()

    def hook(gradient):
        if model.armed:
            torch.set_grad_enabled(True)

    steps = model.story(inside=_with_hook(hook), warm=warm)
    return steps, torch.is_grad_enabled()


# -- the test ---------------------------------------------------------------------------------------------------------

COMPILERS = {"traced": as_traced, "captured": with_breaks}


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("name", FAULTS)
def test_fault(name, compiler):
    for warm in (True, False) if compiler == "traced" else (True,):
        expected = observe(FAULTS[name], warm)
        before = torch.autograd.Variable._execution_engine
        with engine(COMPILERS[compiler]):
            seen = observe(FAULTS[name], warm)
        found = compare(expected, seen)
        assert not found, "\n".join([f"{name}, {'warm' if warm else 'cold'}:", *found])
        assert torch.autograd.Variable._execution_engine is before


def _step():
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    (x * x).sum().backward()
    return x.grad


def test_an_error_inside_enable_leaves_nothing_behind():
    before = torch.autograd.Variable._execution_engine
    for kind in (ValueError, KeyboardInterrupt):
        with pytest.raises(kind), engine(whole):
            _step()
            raise kind
        assert torch.autograd.Variable._execution_engine is before
    assert _step().tolist() == [2.0, 4.0]


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_a_compiler_that_fails_does_so_in_the_open(kind):
    """What the user's compiler function raises is the user's to see; the next backward is right."""
    calls = []

    def compiler(graph_module):
        calls.append(graph_module)
        if len(calls) == 1:
            raise kind("no compiling today")
        return graph_module

    with engine(compiler):
        with pytest.raises(kind, match="no compiling today"):
            _step()
        assert _step().tolist() == [2.0, 4.0]
    assert len(calls) == 2


def test_compiled_code_that_fails_is_not_poison():
    failing = [True]

    def compiler(graph_module):
        def compiled(*given):
            if failing[0]:
                raise ValueError("bad code")
            return graph_module(*given)

        return compiled

    with engine(compiler):
        with pytest.raises(ValueError, match="bad code"):
            _step()
        failing[0] = False
        assert _step().tolist() == [2.0, 4.0]


def test_threads_with_and_without_the_engine():
    """The engine is for the thread that enabled it; each thread's result is right all the same."""
    results = {}

    def work(name, on):
        def loop():
            results[name] = [_step().tolist() for _ in range(5)]

        if on:
            with engine(as_traced):
                loop()
        else:
            loop()

    threads = [threading.Thread(target=work, args=(number, number % 2 == 0)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(results) and all(value == [[2.0, 4.0]] * 5 for value in results.values())
    assert len(results) == 4
