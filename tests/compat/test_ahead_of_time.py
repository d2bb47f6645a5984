"""Ahead-of-time autograd under the names that programs know it by."""

import pytest
import torch

PLACES = {
    "torch._functorch.aot_autograd": "aot_function aot_module aot_module_simplified aot_export_module "
    "aot_export_joint_simple _aot_export_function create_functional_call make_boxed_func make_boxed_compiler "
    "setup_stacktrace_preservation_hooks",
    "torch._functorch._aot_autograd.utils": "make_boxed_func make_boxed_compiler",
    "torch._functorch.partitioners": "default_partition min_cut_rematerialization_partition",
    "functorch.compile": "aot_function aot_module nop make_boxed_func memory_efficient_fusion print_compile "
    "default_partition min_cut_rematerialization_partition compiled_function",
    "torch._dynamo.backends.common": "aot_autograd",
    "torch._dynamo.backends.debugging": "aot_eager eager",
}


@pytest.mark.parametrize("module", PLACES)
def test_names(installed, module):
    found: dict = {}
    exec(f"from {module} import {', '.join(PLACES[module].split())}", found)
    for name in PLACES[module].split():
        assert callable(found[name]) and "which Kiln does not have" not in repr(found[name])


@pytest.mark.parametrize("backend", ["aot_eager", "aot_eager_decomp_partition", "aot_eager_default_partitioner"])
def test_backends(installed, backend):
    def program(x):
        return torch.nn.functional.silu(x).sum()

    x, again = torch.linspace(-1, 1, 5, requires_grad=True), torch.linspace(-1, 1, 5, requires_grad=True)
    program(again).backward()
    compiled = torch.compile(program, backend=backend)
    compiled(x).backward()
    torch.testing.assert_close(x.grad, again.grad)
    assert "Kiln" in type(compiled(x).grad_fn).__name__ or "Kiln" in compiled(x).grad_fn.name()


def test_backend_made_of_compilers(installed):
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    kinds = []

    def keep(kind):
        def compiler(graph, inputs):
            kinds.append(kind)
            return make_boxed_func(graph.forward)

        return compiler

    backend = aot_autograd(
        fw_compiler=keep("forward"), bw_compiler=keep("backward"), keep_inference_input_mutations=True
    )
    compiled = torch.compile(lambda x: x.sin() * 2, backend=backend)
    x = torch.ones(3, requires_grad=True)
    compiled(x).sum().backward()
    torch.testing.assert_close(x.grad, 2 * torch.ones(3).cos())
    assert kinds == ["forward", "backward"]


def test_functional_call(installed):
    from torch._functorch.aot_autograd import create_functional_call
    from torch.utils._pytree import tree_flatten

    module = torch.nn.Linear(2, 2)
    flat, spec = tree_flatten(dict(module.named_parameters()))
    call = create_functional_call(module, spec, len(flat), strict_out_tuple=False)
    zeros = [torch.zeros_like(each) for each in flat]
    torch.testing.assert_close(call(*zeros, torch.ones(1, 2)), torch.zeros(1, 2))
    with pytest.raises(RuntimeError, match="Graph output must be a"):
        create_functional_call(module, spec, len(flat))(*flat, torch.ones(1, 2))


def test_memory_efficient_fusion(installed):
    from functorch.compile import memory_efficient_fusion

    x, again = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    memory_efficient_fusion(lambda x: x.sin().cos())(x).sum().backward()
    again.sin().cos().sum().backward()
    torch.testing.assert_close(x.grad, again.grad)
    module = torch.nn.Linear(3, 3)
    torch.testing.assert_close(memory_efficient_fusion(module)(torch.ones(2, 3)), module(torch.ones(2, 3)))
