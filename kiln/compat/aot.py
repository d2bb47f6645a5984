"""Ahead-of-time autograd under the names that it has in ``torch._functorch`` and ``functorch.compile``."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.fx.traceback as fx_traceback

from ..platform.python_objects import words
from ..platform.torch_autograd import sequence_number_of
from ..platform.torch_operators import get_decompositions
from ..platform.torch_pytree import TreeSpec, tree_unflatten


def aot_function_named(name: str) -> Callable[..., Any]:
    """A function of ``kiln.aot``, which is loaded when it is called."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(importlib.import_module("kiln.aot"), name)(*args, **kwargs)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"``kiln.aot.{name}``."
    return call


def nop(fx_g: torch.fx.GraphModule, example_inputs: Any = None) -> torch.fx.GraphModule:
    """``functorch.compile.nop``: the compiler that gives back what it is given."""
    return fx_g


def print_compile(fx_g: torch.fx.GraphModule, example_inputs: Any = None) -> torch.fx.GraphModule:
    """``functorch.compile.print_compile``: shows a graph and leaves it as it is."""
    print(fx_g.code)
    return fx_g


def aot_autograd(**compilers: Any) -> Callable[..., Any]:
    """``torch._dynamo.backends.common.aot_autograd``: a backend made of compilers."""
    backend: Callable[..., Any] = aot_function_named("make_aot_backend")(**compilers)
    return backend


def memory_efficient_fusion(fn: Any, **options: Any) -> Any:
    """``functorch.compile.memory_efficient_fusion``: saves little for backward; what is fused is the compiler's."""
    chosen = {"fw_compiler": nop, "partition_fn": aot_function_named("min_cut_rematerialization_partition"), **options}
    return aot_function_named("aot_module" if isinstance(fn, torch.nn.Module) else "aot_function")(fn, **chosen)


def create_functional_call(
    mod: torch.nn.Module,
    params_spec: TreeSpec,
    params_len: int,
    store_orig_mod: bool = False,
    strict_out_tuple: bool = True,
) -> Callable[..., Any]:
    """``create_functional_call``: a module as a function of its flattened state and its arguments."""

    def functional_call(*args: Any, **kwargs: Any) -> Any:
        state = tree_unflatten(list(args[:params_len]), params_spec)
        result = torch.func.functional_call(mod, state, args[params_len:], kwargs)
        if strict_out_tuple and not isinstance(result, (tuple, list)):
            raise RuntimeError(f"Graph output must be a (). The module returns a {type(result).__name__}.")
        return result

    if store_orig_mod:
        functional_call.__dict__["_orig_mod"] = mod
    return functional_call


def setup_stacktrace_preservation_hooks(roots: Sequence[Any]) -> None:
    """While a node of autograd's graph below these roots runs, traced operations are labelled with its number."""
    for node in nodes_below(roots):
        node.register_prehook(functools.partial(begin_node, sequence_number_of(node)))
        node.register_hook(end_node)


def begin_node(sequence_number: int, gradients: Any) -> None:
    fx_traceback.set_grad_fn_seq_nr(sequence_number)


def end_node(inputs: Any, outputs: Any) -> None:
    fx_traceback.reset_grad_fn_seq_nr()


def nodes_below(roots: Sequence[Any]) -> Iterator[Any]:
    pending, seen = list(roots), set()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        pending += [following for following, _ in node.next_functions]


PUBLIC = words(
    "aot_function aot_module aot_module_simplified aot_export_module aot_export_joint_simple make_boxed_func "
    "make_boxed_compiler default_partition min_cut_rematerialization_partition"
)


def export_function(*args: Any, **kwargs: Any) -> Any:
    """``_aot_export_function``: the graph, what is known of its inputs and outputs, and the forms of both."""
    from ..aot.exporting import export_function

    return export_function(*args, **kwargs)


ROWS: dict[str, Any] = {
    **{name: aot_function_named(name) for name in PUBLIC},
    "compiled_function": aot_function_named("aot_function"),
    "compiled_module": aot_function_named("aot_module"),
    "_aot_export_function": export_function,
    "aot_autograd": aot_autograd,
    "create_functional_call": create_functional_call,
    "get_decompositions": get_decompositions,
    "memory_efficient_fusion": memory_efficient_fusion,
    "nop": nop,
    "print_compile": print_compile,
    "setup_stacktrace_preservation_hooks": setup_stacktrace_preservation_hooks,
}
