"""A program whose library is annotated for torch's compiler, run on ``kiln.compile`` without ``kiln.install``.

Prints one JSON object: for each case what was found. torch's own compiler must not compile anything here.
"""

import json
import sys

import torch

import kiln
from kiln.testing import CompileCounter

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def counted(function, *args, times=1, **options):
    """What a compiled function gives, how many graphs it has, and the operations in all of them."""
    counter = CompileCounter()
    compiled = kiln.compile(function, backend=counter, **options)
    for _ in range(times):
        result = compiled(*args)
    return {"same": torch.equal(result, function(*args)), "graphs": counter.frame_count, "operations": counter.op_count}


x = torch.arange(6.0).reshape(2, 3)


@case
def stance_before_its_module_is_loaded():
    assert "torch._dynamo" not in sys.modules
    counter = CompileCounter()
    ran = []

    def body(t):
        ran.append(kiln.is_compiling())
        return t + 1

    compiled = kiln.compile(body, backend=counter)
    compiled(x)
    before = len(ran)
    with torch.compiler.set_stance("force_eager"):
        compiled(x)
        compiled(torch.ones(7))
    inside = ran[before:]
    compiled(x)
    return {"inside": inside, "graphs": counter.frame_count, "loaded": "torch._dynamo" in sys.modules}


@case
def stance_of_a_new_function():
    counter = CompileCounter()
    compiled = kiln.compile(lambda t: t + 1, backend=counter)
    with torch.compiler.set_stance("force_eager"):
        compiled(x)
    before = counter.frame_count
    compiled(x)
    return [before, counter.frame_count]


@case
def stance_eager_on_recompile():
    counter = CompileCounter()
    compiled = kiln.compile(lambda t: t + 1, backend=counter)
    compiled(x)
    with torch.compiler.set_stance("eager_on_recompile"):
        same = torch.equal(compiled(x), x + 1) and torch.equal(compiled(torch.ones(7)), torch.ones(7) + 1)
    return [same, counter.frame_count]


@case
def stance_fail_on_recompile():
    compiled = kiln.compile(lambda t: t + 1, backend="eager")
    compiled(x)
    with torch.compiler.set_stance("fail_on_recompile"):
        compiled(x)
        try:
            compiled(torch.ones(7))
        except kiln.exc.RecompileError:
            return "raised"


@case
def stance_as_a_decorator():
    counter = CompileCounter()
    compiled = kiln.compile(lambda t: t + 1, backend=counter)

    @torch.compiler.set_stance("force_eager")
    def run():
        return compiled(x)

    run()
    return counter.frame_count


@case
def disabled_function():
    @torch.compiler.disable
    def helper(t):
        return t * 2

    return counted(lambda t: helper(t + 1) + 1, x)


@case
def disabled_function_is_not_captured():
    seen = []

    @torch.compiler.disable(reason="it prints")
    def helper(t):
        seen.append(torch.compiler.is_compiling())
        return t * 2

    kiln.compile(lambda t: helper(t + 1) + 1, backend="eager")(x)
    try:
        kiln.compile(lambda t: helper(t + 1) + 1, backend="eager", fullgraph=True)(x)
    except kiln.exc.Unsupported as error:
        return [seen, "it prints" in str(error), "helper" in str(error)]


@case
def disabled_not_recursive():
    @torch.compiler.disable(recursive=False)
    def helper(t):
        return t * 2

    return counted(lambda t: helper(t + 1) + 1, x)


@case
def disabled_method():
    class Model(torch.nn.Module):
        @torch.compiler.disable
        def inner(self, t):
            return t * 2

        def forward(self, t):
            return self.inner(t + 1) + 1

    return counted(Model(), x)


@case
def disabled_module():
    inner = torch.compiler.disable(torch.nn.Linear(3, 3))
    return counted(lambda t: inner(t + 1) + 1, x)


@case
def disabled_class():
    @torch.compiler.disable
    class Double:
        def __call__(self, t):
            return t * 2

    double = Double()
    return counted(lambda t: double(t + 1) + 1, x)


@case
def disabled_function_compiled():
    counter = CompileCounter()

    @torch.compiler.disable
    def helper(t):
        return t * 2

    kiln.compile(helper, backend=counter)(x)
    return counter.frame_count


@case
def wrapper_around_a_disabled_function():
    import functools

    @torch.compiler.disable
    def helper(t):
        return t * 2

    @functools.wraps(helper)
    def wrapper(t):
        return helper(t + 1) + 1

    return counted(wrapper, x)


@case
def graph_break():
    import torch._dynamo

    def body(t):
        t = t + 1
        torch._dynamo.graph_break()
        return t * 2

    return counted(body, x)


@case
def disallow_in_graph():
    import torch._dynamo

    torch._dynamo.disallow_in_graph(torch.sub)
    try:
        return counted(lambda t: torch.add(torch.sub(torch.add(t, 1), 1), 1), x)
    finally:
        torch._dynamo.allow_in_graph(torch.sub)


@case
def allow_in_graph():
    @torch.compiler.allow_in_graph
    def helper(t):
        return t * int(2.5) + 1

    graphs = []

    def backend(graph, inputs):
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return graph.forward

    result = kiln.compile(lambda t: helper(t) + 1, backend=backend)(x)
    return [torch.equal(result, x * 2 + 2), helper in graphs[0], len(graphs[0])]


@case
def forbid_in_graph():
    import torch._dynamo

    @torch._dynamo.forbid_in_graph
    def helper(t):
        return t * 2

    return counted(lambda t: helper(t + 1) + 1, x)


@case
def substitute_in_graph():
    import zlib

    def checksum(data, value=1, /):
        return len(data)

    made = torch.compiler.substitute_in_graph(zlib.adler32, skip_signature_check=True)(checksum)
    return kiln.compile(lambda t: t * made(b"abc"), backend="eager", fullgraph=True)(torch.ones(1)).item()


@case
def assume_constant_result():
    @torch.compiler.assume_constant_result
    def factor():
        return 3

    return counted(lambda t: t * factor(), x, fullgraph=True)


def sizes(mark, dynamic=None):
    """How many graphs there are for two sizes of a marked dimension."""
    counter = CompileCounter()
    compiled = kiln.compile(lambda t: t + 1, backend=counter, dynamic=dynamic)
    for size in (4, 5, 6):
        t = torch.ones(size, 3)
        mark(t)
        compiled(t)
    return counter.frame_count


@case
def mark_dynamic():
    import torch._dynamo

    return sizes(lambda t: torch._dynamo.mark_dynamic(t, 0))


@case
def mark_dynamic_from_the_end():
    import torch._dynamo

    return sizes(lambda t: torch._dynamo.mark_dynamic(t, -2))


@case
def maybe_mark_dynamic():
    import torch._dynamo

    return sizes(lambda t: torch._dynamo.maybe_mark_dynamic(t, [0]))


@case
def mark_unbacked():
    import torch._dynamo

    return sizes(lambda t: torch._dynamo.decorators.mark_unbacked(t, 0))


@case
def mark_static():
    import torch._dynamo

    return sizes(lambda t: torch._dynamo.mark_static(t), dynamic=True)


@case
def mark_static_is_weaker_than_mark_dynamic():
    import torch._dynamo

    return sizes(lambda t: (torch._dynamo.mark_static(t), torch._dynamo.mark_dynamic(t, 0)))


@case
def marking_inside():
    import torch._dynamo

    def body(t):
        t = t + 1
        torch._dynamo.mark_dynamic(t, 0)
        return t * 2

    return counted(body, x)["same"]


@case
def questions():
    import torch._dynamo
    import torch._utils
    from torch._dynamo.external_utils import is_compiling

    def body(t):
        found = [torch.compiler.is_compiling(), torch.compiler.is_dynamo_compiling(), torch.compiler.is_exporting()]
        found += [torch._dynamo.is_compiling(), is_compiling(), torch._utils.is_compiling()]
        return t + 1, found

    found = kiln.compile(body, backend="eager", fullgraph=True)(x)[1]
    return found


@case
def nested_compile_region():
    @torch.compiler.nested_compile_region
    def layer(t):
        return t * 2 + 1

    return counted(lambda t: layer(layer(t)), x, fullgraph=True)


@case
def steps_of_cuda_graphs():
    def body(t):
        torch.compiler.cudagraph_mark_step_begin()
        return t + 1

    return counted(body, x)["same"]


@case
def function_that_torch_compiles():
    helper = torch.compile(lambda t: t * 2, backend=lambda graph, inputs: 1 / 0)
    counter = CompileCounter()
    found = kiln.compile(lambda t: helper(t + 1) + 1, backend=counter, fullgraph=True)(x)
    return [torch.equal(found, (x + 1) * 2 + 1), counter.frame_count]


@case
def optimizers_of_torch():
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([parameter], lr=0.1)

    def step(t):
        (parameter * t).sum().backward()
        optimizer.step()
        return parameter * 1

    return bool(kiln.compile(step, backend="eager")(torch.ones(3)).sum().item())


if __name__ == "__main__":
    results = {}
    for name, function in CASES.items():
        try:
            results[name] = function()
        except Exception as error:
            import traceback

            traceback.print_exc()
            results[name] = f"{type(error).__name__}: {error}"
    print(json.dumps(results))
