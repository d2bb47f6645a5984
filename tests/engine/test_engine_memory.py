"""Memory under the engine: activations die during the backward pass, as in eager, and nothing is kept after it."""

import collections
import gc
import weakref

import pytest
import torch

import kiln
from kiln import compiled_autograd
from kiln.engine.run import backward_pass
from kiln.program import accumulation
from kiln.report import counters

COMPILERS = {
    "identity": lambda graph: graph,
    "eager": lambda graph: kiln.compile(graph, backend="eager"),
    "aot_eager": lambda graph: kiln.compile(graph, backend="aot_eager"),
}
LAYERS = 6
watched = []  # the program whose memory is looked at


@torch.library.custom_op("kiln_engine_memory::look", mutates_args=())
def look(gradient: torch.Tensor) -> torch.Tensor:
    """An operation that sees what is alive while the pass runs: graphs hold it, in its place."""
    for program in watched:
        program.look()
    return gradient.clone()


look.register_fake(torch.empty_like)


class Exp(torch.autograd.Function):
    """A function of a user's own that keeps its result."""

    @staticmethod
    def forward(ctx, x):
        result = x.exp()
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0]


class Chain:
    """Layers whose activations only autograd keeps; a hook on each weight sees which of them are alive."""

    def __init__(self, function=torch.exp, sizes=(4,), hook=look):
        self.function = function
        self.weights = [torch.full((4, 4), 0.5, requires_grad=True) for _ in range(LAYERS)]
        self.batches = [torch.ones(size, 4) for size in sizes]
        self.storages = []
        self.alive = []  # numbers of layers, each time somebody looked
        for weight in self.weights if hook is not None else ():
            weight.register_hook(hook)

    def forward(self, number=0):
        x = self.batches[number % len(self.batches)]
        self.storages = []
        for weight in self.weights:
            x = self.function(x @ weight * 0.1)
            self.storages.append(weakref.ref(x.untyped_storage()))
        return x.sum()

    def look(self):
        self.alive.append(self.living())

    def living(self):
        return {number for number, storage in enumerate(self.storages) if storage() is not None}

    def backward(self, **options):
        """A pass that is watched; what was alive each time."""
        self.alive = []
        watched.append(self)
        try:
            self.forward().backward(**options)
        finally:
            watched.remove(self)
        return self.alive


@pytest.fixture(autouse=True)
def fresh():
    kiln.reset()
    handed = counters["engine handed over"]
    yield
    assert counters["engine handed over"] == handed
    kiln.reset()


@pytest.fixture(params=COMPILERS)
def compiler(request):
    return COMPILERS[request.param]


def looking(compiler):
    """The compiler, on graphs with a look at each gradient that is accumulated: what hooks of eager's see."""

    def compile_graph(module):
        for node in list(module.graph.nodes):
            if node.target is accumulation.accumulate_grad_:
                variable, gradient, steal = node.args
                with module.graph.inserting_before(node):
                    seen = module.graph.call_function(torch.ops.kiln_engine_memory.look.default, (gradient,))
                seen.meta["val"] = gradient.meta["val"]
                node.args = (variable, seen, steal)
        module.recompile()
        return compiler(module)

    return compile_graph


def check_against_eager(program, compiler, expected):
    """At each place at most those are alive that are in eager; in the first pass, and when the graph is there."""
    assert [len(alive) for alive in expected] == [*reversed(range(LAYERS))]
    with compiled_autograd.enable(compiler):
        for _ in range(3):
            seen = program.backward()
            assert len(seen) == LAYERS
            for ours, eagers in zip(seen, expected, strict=True):
                assert ours <= eagers, (seen, expected)
            assert not program.living()


def test_activations_die_during_the_pass(compiler):
    check_against_eager(Chain(hook=None), looking(compiler), Chain().backward())


def test_activations_die_during_a_pass_with_hooks(compiler):
    program = Chain()
    check_against_eager(program, compiler, program.backward())


def test_what_functions_of_users_save_dies_with_the_pass(compiler):
    """In eager it dies as its function is done. Here the function is part of a graph, and keeps it to the end."""
    program = Chain(Exp.apply)
    with compiled_autograd.enable(compiler):
        for _ in range(3):
            program.backward()
            assert not program.living()


def test_a_kept_graph_keeps_activations(compiler):
    program = Chain()
    with compiled_autograd.enable(compiler):
        for _ in range(2):
            loss = program.forward()
            loss.backward(retain_graph=True)
            assert program.living() == set(range(LAYERS))
            loss.backward()
            assert not program.living()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_intermediate_gradients_die_during_the_pass(compiler):
    """A gradient that was handed on is gone when the next but one is computed."""
    storages, most = [], []

    @torch.library.custom_op("kiln_engine_memory::watch", mutates_args=())
    def watch(gradient: torch.Tensor) -> torch.Tensor:
        most.append(sum(storage() is not None for storage in storages))
        result = gradient.clone()
        storages.append(weakref.ref(result.untyped_storage()))
        return result

    watch.register_fake(torch.empty_like)
    w = torch.full((4,), 0.5, requires_grad=True)

    def backward():
        storages.clear(), most.clear()
        x = w * 1.0
        for _ in range(8):
            x = x.sin()
            x.register_hook(watch)
        x.sum().backward()
        return list(most)

    expected = backward()
    with compiled_autograd.enable(compiler):
        for _ in range(2):
            assert max(backward()) <= max(expected) + 1, (most, expected)


def test_nothing_is_kept_over_many_passes(compiler):
    """Sizes vary, so that graphs with symbols are among those made."""
    program = Chain(sizes=(3, 5, 6, 7))

    def passes(count):
        with compiled_autograd.enable(compiler):
            for number in range(count):
                program.forward(number).backward()
        for weight in program.weights:
            weight.grad = None
        gc.collect()
        tensors = sum(issubclass(type(value), torch.Tensor) for value in gc.get_objects())
        return tensors, collections.Counter(type(value).__name__ for value in gc.get_objects())

    passes(8)
    graphs = counters["engine captures"]
    tensors, before = passes(8)
    more_tensors, after = passes(20)
    assert counters["engine captures"] == graphs
    assert more_tensors <= tensors
    grown = {name: count - before[name] for name, count in after.items() if count > before[name] + 10}
    assert not grown
    (cache,) = backward_pass._caches.values()
    assert [len(family.entries) for family in cache.families.values()] == [1, 2]  # no gradients yet; to be added to


def test_graphs_keep_no_model_alive(compiler):
    """Neither its parameters, nor what hooks close over, nor the nodes of its graph."""

    class Closed:
        pass

    def run():
        program, closed = Chain(), Closed()
        program.weights[0].register_hook(lambda gradient: gradient * (2.0 if closed is None else 1.0))
        loss = program.forward()
        loss.backward()
        kept = [weakref.ref(value) for value in (*program.weights, closed, program.weights[0].grad)]
        storages = [weakref.ref(weight.untyped_storage()) for weight in program.weights]
        return kept + storages

    with compiled_autograd.enable(compiler):
        run()
        kept = run()
        gc.collect()
        assert [reference() for reference in kept] == [None] * len(kept)
        assert backward_pass._caches
