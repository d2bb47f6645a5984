"""The table of what torch's names mean while Kiln is installed.

A row is the thing itself or, for what Kiln is still to get, ``later(topic)``: to bring a name to life, replace its row.
Names that are in no row but in torch's source can be imported and raise when they are used (`placeholders.py`).
"""

from __future__ import annotations

import enum
import importlib
import types
from collections.abc import Callable
from typing import Any

import torch

from .. import api, exc, modules
from ..engine.calls.trace_wrapped import make_operator
from ..platform.python_objects import words
from ..program.consumed_lists import get_locals_to_steal, set_locals_to_steal
from ..report.bytecode_hooks import register_bytecode_hook
from . import aot, counting, dynamo, engine, internals, settings, sources, testing
from .outlines import source_file
from .placeholders import later
from .standins import make_standin


class UserErrorType(enum.Enum):
    """Kinds of `UserError`, as torch's compiler has them."""

    DYNAMIC_CONTROL_FLOW = enum.auto()
    ANTI_PATTERN = enum.auto()
    STANDARD_LIBRARY = enum.auto()
    CONSTRAINT_VIOLATION = enum.auto()
    DYNAMIC_DIM = enum.auto()
    INVALID_INPUT = enum.auto()
    INVALID_OUTPUT = enum.auto()
    UNSUPPORTED_ALIASED_MUTATED_DYNAMIC_INPUTS = enum.auto()


MARKS = {"mark_dynamic": dynamo.mark_dynamic, "mark_static": api.mark_static}
MARKS |= {"maybe_mark_dynamic": dynamo.maybe_mark_dynamic, "mark_static_address": dynamo.mark_static_address}

DECORATORS = {
    **MARKS,
    "allow_in_graph": api.allow_in_graph,
    "assume_constant_result": dynamo.assume_constant_result,
    "disable": dynamo.disable,
    "disallow_in_graph": api.disallow_in_graph,
    "dont_skip_tracing": dynamo.pass_through,
    "forbid_in_graph": api.disallow_in_graph,
    "graph_break": dynamo.graph_break,
    "nonstrict_trace": api.allow_in_graph,
    "leaf_function": dynamo.leaf_function,
    "run": dynamo.run,
    "set_stance": dynamo.set_stance,
}

BACKENDS = {"list_backends": dynamo.backends, "lookup_backend": dynamo.lookup, "register_backend": dynamo.register}

EVAL_FRAME = {
    "OptimizedModule": modules.OptimizedModule,
    "explain": dynamo.explain,
    "export": dynamo.export,
    "innermost_fn": dynamo.innermost_fn,
    "is_dynamo_supported": lambda: True,
    "is_inductor_supported": lambda: False,
    "optimize": dynamo.optimize,
    "optimize_assert": dynamo.optimize_assert,
    "set_fullgraph_compiled_frame_count": lambda count: 0,
    "reset_code": lambda code: api.reset(),
    "unsupported": testing.unsupported,
}


def tests() -> dict[str, Any]:
    """Torch's helpers for tests take long to load: only for those who ask."""
    from . import test_case

    return {"TestCase": test_case.TestCase, "run_tests": test_case.run_tests}


INDUCTOR_UTILS: dict[str, Any] = {"HAS_CPU": True, "RUN_CPU": True, "GPU_TYPE": "cuda"}

CONTENTS: dict[str, dict[str, Any] | Callable[[], dict[str, Any]]] = {
    "torch._dynamo": {
        **DECORATORS,
        **BACKENDS,
        **EVAL_FRAME,
        "GenerationTracker": internals.GenerationTracker,
        "is_compiling": api.is_compiling,
        "reset": dynamo.reset,
        "reset_code_caches": dynamo.reset,
    },
    "torch._dynamo.decorators": DECORATORS,
    "torch._dynamo.eval_frame": EVAL_FRAME,
    "torch._dynamo.backends.registry": {**BACKENDS, "get_default_backend": lambda: dynamo.DEFAULT_BACKEND},
    "torch._dynamo.backends.debugging": {name: dynamo.lookup(name) for name in ("eager", "aot_eager")},
    "torch._dynamo.backends.common": {"aot_autograd": aot.aot_autograd},
    "torch._dynamo.external_utils": {"is_compiling": api.is_compiling, "wrap_inline": dynamo.pass_through},
    "torch._dynamo.mutation_guard": {"GenerationTracker": internals.GenerationTracker},
    "torch._dynamo.debug_utils": {"same_two_models": testing.same_two_models},
    "torch._dynamo.test_case": tests,
    "torch._dynamo.testing": {
        name: getattr(testing, name)
        for name in words(
            "CompileCounter CompileCounterWithBackend EagerAndRecordGraphs collect_results make_test_cls_with_patches "
            "normalize_gm rand_strided reduce_to_scalar_loss remove_trailing_space requires_bwd_pass same "
            "standard_test strip_comment unsupported"
        )
    }
    | {
        "expectedFailureDynamic": testing.mark_expected_failure,
        "expectedFailureCodegenDynamic": testing.mark_expected_failure,
        "expectedFailureDynamicWrapper": testing.mark_expected_failure,
        "reset": dynamo.reset,
        "optimize_assert": dynamo.optimize_assert,
    },
    "torch._dynamo.utils": {
        **internals.UTILS,
        "clone_input": testing.clone_input,
        "counters": counting.counters,
        "same": testing.same,
        "get_locals_to_steal": get_locals_to_steal,
        "set_locals_to_steal": set_locals_to_steal,
    },
    "torch._dynamo.exc": {
        "BackendCompilerFailed": exc.BackendError,
        "FailOnRecompileLimitHit": exc.RecompileLimitExceeded,
        "InternalTorchDynamoError": exc.InternalError,
        "InvalidBackend": exc.UnknownBackend,
        "RecompileError": exc.RecompileError,
        "RecompileLimitExceeded": exc.RecompileLimitExceeded,
        "TorchDynamoException": exc.KilnError,
        "TorchRuntimeError": RuntimeError,  # Kiln raises eager's own error
        "Unsupported": exc.Unsupported,
        "UserError": exc.UserError,
        "UserErrorType": UserErrorType,
        "unimplemented": internals.unimplemented,
    },
    "torch._dynamo.convert_frame": {"register_bytecode_hook": register_bytecode_hook},
    "torch._dynamo.compiled_autograd": engine.ROWS,
    "torch._dynamo._trace_wrapped_higher_order_op": {
        "trace_wrapped": make_operator("torch._dynamo._trace_wrapped_higher_order_op"),
        "TransformGetItemToIndex": internals.TransformGetItemToIndex,
    },
    "torch._dynamo.source": {name: value for name, value in vars(sources).items() if name[:1].isalpha()},
    "torch._dynamo.guards": {"uninteresting_files": lambda: set()},
    "torch._dynamo.trace_rules": internals.TRACE_RULES,
    "torch._functorch.aot_autograd": aot.ROWS,
    "torch._functorch._aot_autograd.utils": {
        name: aot.aot_function_named(name) for name in ("make_boxed_func", "make_boxed_compiler")
    },
    "torch._functorch.partitioners": aot.ROWS,
    "torch._functorch.compilers": aot.ROWS,
    "functorch.compile": aot.ROWS,
    "torch._inductor": {"compile": dynamo.compile_graph, "aot_compile": later("codegen")},
    "torch._inductor.fx_passes.dedupe_symint_uses": {"dedupe_symints": lambda graph: None},  # only tidies up
    "torch._inductor.compile_fx": {"compile_fx": dynamo.compile_fx, "compile_fx_inner": later("codegen")},
    "torch._inductor.metrics": counting.METRICS_ROWS,
    "torch._inductor.test_case": tests,
    "torch._inductor.codecache": {"PyCodeCache": internals.PyCodeCache},
    "torch._inductor.compiler_bisector": {"CompilerBisector": internals.CompilerBisector},
    "torch._inductor.utils": {"get_gpu_type": lambda: "cuda", "device_supports_fp64": lambda device: True},
    "torch.testing._internal.inductor_utils": INDUCTOR_UTILS,
    "torch._inductor.cudagraph_trees": internals.CUDAGRAPH_TREES,
}

CONFIGS = {
    "torch._dynamo.config": settings.dynamo_config,
    "torch._inductor.config": settings.inductor_config,
    "torch._functorch.config": settings.functorch_config,
}

# What test-suites ask about the machine: Kiln generates no code for GPUs.
for _name in ("HAS_CUDA", "HAS_GPU", "HAS_XPU", "HAS_MULTIGPU", "HAS_TRITON", "HAS_CUDA_AND_TRITON", "RUN_GPU"):
    INDUCTOR_UTILS[_name] = False


def make(name: str) -> types.ModuleType | None:
    """The stand-in for a module; None where neither Kiln nor torch has one of that name."""
    if name in CONFIGS:
        return CONFIGS[name]
    if name not in CONTENTS and source_file(name) is None:
        return None
    contents = CONTENTS.get(name, {})
    return make_standin(name, contents() if callable(contents) else contents)


# Packages of torch's whose modules its compiler loads, and which the rest of torch takes for loaded since.
PACKAGES_ASKED = (
    "torch._higher_order_ops",
    "torch.nn.attention",
    "torch.fx.experimental",
    "torch.fx.passes",
    "torch._subclasses",
)


def load_module(package: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of such a package."""

    def __getattr__(name: str) -> Any:
        if name.startswith("__") or source_file(f"{package}.{name}") is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return importlib.import_module(f"{package}.{name}")

    return __getattr__


def replacements() -> list[tuple[Any, str, Any]]:
    """What is replaced in torch where it is: owner, name, Kiln's."""
    packages = [importlib.import_module(name) for name in PACKAGES_ASKED]
    loading = [(package, "__getattr__", load_module(package.__name__)) for package in packages]
    operators = torch.ops.inductor
    accumulate = engine.Accumulate(operators.accumulate_grad_)
    return [(torch, "compile", dynamo.compile), (operators, "accumulate_grad_", accumulate), *loading]
