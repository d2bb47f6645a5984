"""The function that runs a compiled graph in a call: Python text, written for each graph.

The graph itself is functional and knows nothing of autograd. Around it: inputs that the program changed get their new
content; outputs that are inputs or views are made from the real tensors; each stage's autograd node is attached; hooks
are registered on the tensors that they belong to. ``inspect.getsource(run)`` shows the text.
"""

from __future__ import annotations

import ast
import itertools
import linecache
import weakref
from collections.abc import Callable, Iterable
from dataclasses import field
from typing import Any

import torch
from torch.nn import Parameter

from ... import _native
from ...platform import torch_tensors
from ...platform.light_dataclass import dataclass
from ...platform.torch_autograd import set_grad_enabled
from ...platform.torch_operators import operator_name
from ...platform.torch_symbols import expression_of
from ...platform.torch_tensors import base_of, is_marked_parameter, set_versions, version_of
from ...program import hook_slots
from ...program.operators.operator_table import operator_of
from ...program.shapes.fake_tensors import refuses_change
from ...program.unsupported import Unsupported
from ..partition.random_replay import generator_for
from ..partition.recompute_cost import is_view
from ..trace.backward_stages import Root, Source
from ..trace.functional_graph import Step, View
from ..trace.graph_runner import Registration
from ..trace.hook_calls import open_slot
from ..trace.input_specs import InputSpec
from ..trace.joint_graph import JointGraph, Memory, Output
from ..trace.size_nodes import number_text
from .boxing import Boxed
from .higher_order import CallContext

_counter = itertools.count()
REGISTER = {
    "register_hook": hook_slots.register_hook,
    "register_shared_hook": hook_slots.register_shared_hook,
    "register_post_accumulate_grad_hook": hook_slots.register_post_accumulate_grad_hook,
}


@dataclass(frozen=True)
class CompiledStage:
    """The autograd node of a stage: its name and callables, and which saved tensors it needs."""

    name: str
    backward: Callable[..., Any]
    higher: Callable[..., Any]
    used: list[int]


@dataclass(frozen=True)
class CompiledGraph:
    """A joint graph with its compiled forward, and all that a call needs besides."""

    joint: JointGraph
    forward: Boxed
    eager: Callable[..., Any]
    run_aliased: Callable[..., Any]  # runs when inputs share memory that the program changes
    written: frozenset[int]  # inputs that the forward itself gives their new content
    stages: list[CompiledStage] = field(default_factory=list)
    saved_tensors: int = 0  # how many results of the forward are for the backward; numbers come last
    saved_numbers: int = 0
    held: dict[int, bool] = field(default_factory=dict)  # changed inputs kept to run again: whether as a copy


class RunFunctionWriter:
    """Writes the run function of one compiled graph.

    With ``takes_list`` it takes its inputs in one list, which it empties, and holds none longer than it needs it.
    """

    def __init__(self, compiled: CompiledGraph, takes_list: bool = False) -> None:
        self.compiled, self.joint, self.takes_list = compiled, compiled.joint, takes_list
        self.ambient_grad = torch.is_grad_enabled()
        self.lines: list[str] = []
        self.namespace: dict[str, Any] = {
            "forward": compiled.forward,
            "eager": compiled.eager,
            "run_aliased": compiled.run_aliased,
            "set_grad": set_grad_enabled,
            "GradNode": _native.GradNode,
            "CallContext": CallContext,
            "context": CallContext(),  # of calls that have nothing of their own
            "set_version": set_version,
            "bump_versions": _native.bump_versions,
            "set_contents": _native.set_contents,
        }
        self.views: dict[View, str] = {view: f"i{index}" for view, index in self.joint.aliases.items()}
        self.calls: dict[Any, str] = {}  # view operations with several results
        self.starts = {memory.start for memory in self.joint.memories}
        self.outputs: dict[int, str] = {}
        self.symbols: set[Any] = set()  # that have a name
        self.stage_of: dict[int, int] = {}  # by memory
        for number, stage in enumerate(self.joint.stages):
            for root in stage.roots:
                if root.memory is not None:
                    self.stage_of[root.memory] = number

    # -- the whole --------------------------------------------------------------------------------------------------

    def write(self) -> Callable[..., list[Any]]:
        joint, compiled = self.joint, self.compiled
        self.check_inputs()
        self.bind_symbols()
        self.register_on_inputs()
        self.prepare()
        results = [f"m{i}" for i, memory in enumerate(joint.memories) if memory.parent is None]
        results += [f"n{i}" for i in range(len(joint.numbers))]
        results += [f"saved{i}" for i in range(compiled.saved_tensors)]
        results += [f"k{i}" for i in range(compiled.saved_numbers)]
        given = ", ".join(self.given(i) for i, node in enumerate(joint.input_nodes) if node is not None)
        self.add("set_grad(False)")
        self.add("try:")
        call_line = len(self.lines)
        self.add(f"    {', '.join(results)}{',' if results else 'none'} = forward([{given}])")
        self.write_new_contents()
        self.add("finally:")
        self.add(f"    set_grad({self.ambient_grad})")
        self.set_versions()
        for index in self.unrecorded_changes() if compiled.stages else ():
            self.namespace["Before"] = Before
            self.add(f"held{index} = Before.apply(i{index}, held{index})")
        for index, memory in enumerate(joint.memories):
            if memory.parent is not None:
                self.make_alias(index, memory)
            elif memory.input is None and is_view(memory.storage.node):
                self.add(f"m{index} = m{index}.detach()")  # the program made no view
        self.set_memory_versions(reshaped=False)  # before anything is saved: a saved tensor must not change
        self.make_visible(None)
        if compiled.stages:
            self.make_context()
        for number, stage in enumerate(compiled.stages):
            self.attach(number, stage)
        self.set_memory_versions(reshaped=True)
        self.register_on_outputs()
        if joint.final_grad_mode is not None:
            self.add(f"set_grad({joint.final_grad_mode})")
        self.add(f"return [{', '.join(self.output_text(i, output) for i, output in enumerate(joint.outputs))}]")
        if self.takes_list:
            self.release_inputs(call_line, given)
        return self.compile()

    def given(self, index: int) -> str:
        """An input, as the graph gets it: one whose shape is going to change may be saved as it is now."""
        return f"i{index}.detach()" if index in self.joint.reshaped else f"i{index}"

    def make_context(self) -> None:
        hooks = ", ".join(f"h{r.number}" if r.is_inner else "None" for r in self.joint.registrations)
        numbers = "".join(f"k{number}, " for number in range(self.compiled.saved_numbers))
        if hooks or numbers or self.joint.random_devices:
            state = "state" if self.joint.random_devices else "()"
            self.add(f"context = CallContext(({hooks}{',' if hooks else ''}), {state}, ({numbers}))")

    def add(self, line: str) -> None:
        self.lines.append(line)

    def bind(self, value: Any, hint: str) -> str:
        name = f"{hint}_{len(self.namespace)}"
        self.namespace[name] = value
        return name

    def parameters(self) -> str:
        return ", ".join(f"i{i}" for i in range(len(self.joint.specs)))

    def release_inputs(self, call_line: int, given: str) -> None:
        """Take the inputs from a list, and drop those that only the graph reads before it is called."""
        read = names_in(["try:", "    pass", *self.lines[call_line + 1 :]])
        unread = [f"i{i}" for i in range(len(self.joint.specs)) if f"i{i}" not in read]
        results = self.lines[call_line].partition("forward(")[0]
        released = [f"    {' = '.join(unread)} = None"] if unread else []
        self.lines[call_line : call_line + 1] = [f"    given = [{given}]", *released, f"{results}forward(given)"]
        if self.joint.specs:
            self.lines[:0] = [f"{self.parameters()}, = arguments", "arguments.clear()"]

    def compile(self) -> Callable[..., list[Any]]:
        parameters = "arguments" if self.takes_list else self.parameters()
        text = "\n".join([f"def run({parameters}):", *(f"    {line}" for line in self.lines), ""])
        file = f"<kiln run {next(_counter)}>"
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)
        exec(compile(text, file, "exec"), self.namespace)
        run: Callable[..., list[Any]] = self.namespace["run"]
        weakref.finalize(run, linecache.cache.pop, file, None)  # the text lives as long as the function
        return run

    # -- before the graph -------------------------------------------------------------------------------------------

    def check_inputs(self) -> None:
        """What the trace assumed and no guard checks: changed inputs share no memory, and autograd lets them change."""
        changed = self.joint.changed_inputs
        replaced = [memory.input for memory in self.joint.memories if memory.input is not None and memory.edge]
        tensors = [index for index, spec in enumerate(self.joint.specs) if isinstance(spec, InputSpec)]
        everything = listed(range(len(self.joint.specs)))[1:-1]
        self.namespace.update(refuses_change=refuses_change, shares_memory=_native.shares_memory)
        tests = [f"i{i}.is_leaf or refuses_change(i{i})" for i in [*replaced, *self.moved_inputs()]]
        if tests:
            self.add(f"if {' or '.join(tests)}: return eager({everything})")
        if changed and len(tensors) > 1 and not self.joint.knows_aliasing:
            groups = [listed(changed), listed([index for index in tensors if index not in changed])]
            self.add(f"if shares_memory({', '.join(groups)}): return run_aliased({everything})")

    def moved_inputs(self) -> list[int]:
        """Inputs that get a new place in autograd's graph by a change of their shape."""
        return [index for index, moved in enumerate(self.joint.has_new_edge) if moved]

    def bind_symbols(self) -> None:
        """Names for the symbolic sizes that views and hidden places need."""
        for index, spec in enumerate(self.joint.specs):
            if isinstance(spec, InputSpec):
                for dim, size in enumerate(spec.size):
                    self.bind_symbol(size, f"i{index}.size({dim})")
                for dim, size in enumerate(spec.stride):
                    self.bind_symbol(size, f"i{index}.stride({dim})")
            else:
                self.bind_symbol(spec, f"i{index}")

    def bind_symbol(self, value: Any, text: str) -> None:
        expression = expression_of(value) if isinstance(value, torch.SymInt) else None
        if expression is not None and expression.is_symbol and expression not in self.symbols:
            self.symbols.add(expression)
            self.add(f"{expression} = {text}")

    def register_on_inputs(self) -> None:
        for registration in self.joint.registrations:
            if registration.place is not None and registration.place[0] == "input":
                self.register(registration, f"i{registration.place[1]}")

    def register(self, registration: Registration, tensor: str) -> None:
        if registration.kind == "retain_grad":
            self.add(f"{tensor}.retain_grad()")
            return
        function = self.bind(REGISTER[registration.kind], registration.kind)
        self.add(f"{function}({tensor}, i{registration.slot})")

    def prepare(self) -> None:
        for registration in self.joint.registrations:
            if registration.is_inner:
                self.namespace["open_slot"] = open_slot
                self.add(f"h{registration.number} = open_slot(i{registration.slot})")
        if not self.compiled.stages:
            return
        if self.joint.random_devices:
            names = [self.bind(generator_for(device), "generator") for device in self.joint.random_devices]
            self.add(f"state = ({''.join(f'({name}, {name}.get_state()), ' for name in names)})")
        for index, is_copy in self.compiled.held.items():
            copy = f"i{index}.clone(){'.detach()' if index in self.unrecorded_changes() else ''}"
            self.add(f"held{index} = {copy if is_copy else f'(i{index},)'}")
        for index in self.old_edges():
            self.add(f"old{index} = i{index}.clone()")

    def write_new_contents(self) -> None:
        """Gives inputs the new contents that the forward has not written into them itself, all at once."""
        copied = []
        for index, memory in enumerate(self.joint.memories):
            if memory.input is None or memory.input in self.compiled.written:
                continue
            if self.joint.specs[memory.input].is_inference:  # torch may refuse
                self.add(f"    i{memory.input}.copy_(m{index})")
            else:
                copied.append((f"i{memory.input}", f"m{index}"))
        if copied:
            inputs, contents = ("".join(f"{name}, " for name in names) for names in zip(*copied, strict=True))
            self.add(f"    set_contents(({inputs}), ({contents}))")

    def unrecorded_changes(self) -> list[int]:
        """Inputs that change without autograd's knowledge: gradients of the old content go where the input's go now."""
        recorded = {memory.input for memory in self.joint.memories if memory.edge is not None}
        return [
            index
            for index, is_copy in self.compiled.held.items()
            if is_copy and index not in recorded and index not in self.joint.reshaped
            if self.joint.specs[index].requires_grad
        ]

    def old_edges(self) -> set[int]:
        """Inputs that have a new place in autograd's graph by the time a stage that leads to the old one is made."""
        replaced = {memory.input for memory in self.joint.memories if memory.input is not None and memory.edge}
        found = set()
        for number, stage in enumerate(self.joint.stages):
            moved = set(self.moved_inputs()) | (replaced if number else set())
            found |= {source.index for source in stage.sources if source.kind == "input" and source.index in moved}
        return found

    # -- after the graph --------------------------------------------------------------------------------------------

    def make_alias(self, index: int, memory: Memory) -> None:
        """A tensor with its own history that is a view of other memory."""
        assert memory.parent is not None
        kind, place = memory.parent
        text = f"i{place}" if kind == "input" else f"m{place}"
        for view in memory.start.path()[1:]:
            assert view.step is not None
            function = self.bind(view.step.function, operator_name(view.step.function))
            item = f"[{view.step.index}]" if view.step.index is not None else ""
            text = f"{function}({self.arguments(text, view.step)}){item}"
        if torch_tensors.is_view(memory.root) and index in self.stage_of:  # the attached node replaces its history
            self.namespace["Passed"] = Passed
            self.add(f"m{index} = Passed.apply({text})")
        else:
            self.add(f"m{index} = {text}.{'data' if memory.has_own_counter else 'detach()'}")

    def reshape(self, base: str, final: View) -> None:
        """``transpose_`` and others, done to the real tensor."""
        for view in final.path()[1:]:
            step = view.step
            assert step is not None and step.in_place is not None
            function = self.bind(step.in_place, "in_place")
            self.in_mode(step.differentiable, f"{function}({self.arguments(base, step)})")

    def in_mode(self, differentiable: bool, line: str) -> None:
        """A line that runs with gradients being recorded or not."""
        if differentiable == self.ambient_grad:
            self.add(line)
            return
        self.add(f"set_grad({differentiable})")
        self.add("try:")
        self.add(f"    {line}")
        self.add("finally:")  # torch may refuse
        self.add(f"    set_grad({self.ambient_grad})")

    def set_memory_versions(self, reshaped: bool) -> None:
        """Versions of memory that the program made and changed; changes of shape are counted when they are made."""
        if torch.is_inference_mode_enabled():
            return  # inference tensors have none
        for index, memory in enumerate(self.joint.memories):
            if memory.parent is not None and not reshaped and (memory.has_own_counter or memory.parent[0] == "memory"):
                counted = 0 if memory.has_own_counter else version_of(self.joint.memories[memory.parent[1]].root)
                if version_of(memory.root) != counted:  # a factory's result: the tensor behind it is not visible
                    self.add(f"set_version(m{index}, {version_of(memory.root)})")
            elif memory.input is None and memory.parent is None:
                changes = len(self.final(memory).path()) - 1
                version = version_of(memory.root) - memory.storage.version
                if version > changes and bool(changes) == reshaped:
                    self.add(f"set_version(m{index}, {version})")

    def set_versions(self) -> None:
        """Versions of inputs: set before views are made and tensors saved, which note their versions."""
        changes = {index: self.changes_so_far(index) for index in self.joint.version_changes}
        counted = [index for index, times in changes.items() if times]
        if counted:
            times = "".join(f"{changes[index]}, " for index in counted)
            self.add(f"bump_versions({listed(counted)}, ({times}))")

    def changes_so_far(self, index: int) -> int:
        """How often an input is changed, without the changes of its shape, which are still to come."""
        view = self.joint.reshaped.get(index)
        return self.joint.version_changes[index] - (len(view.path()) - 1 if view is not None else 0)

    def make_visible(self, stage: int | None) -> None:
        """What becomes visible after a stage: changed shapes, leaves, and outputs that are views."""
        for index, final in self.joint.reshaped.items():
            owner = next((i for i, memory in enumerate(self.joint.memories) if memory.input == index), None)
            if (self.stage_of.get(owner) if owner is not None else None) == stage:
                self.reshape(f"i{index}", final)
        for index, memory in enumerate(self.joint.memories):
            if memory.input is None and memory.parent is None and self.stage_of.get(index) == stage:
                self.reshape(f"m{index}", self.final(memory))
                self.finish_leaf(f"m{index}", memory.root)
        for index, output in enumerate(self.joint.outputs):
            if output.view is not None and index not in self.outputs and self.ready_after(output) == stage:
                name = self.outputs[index] = self.view_text(output.view, self.base_text(output))
                if self.has_new_counter(output):
                    self.add(f"set_version({name}, {version_of(output.fake)})")
                if not follows_base(output.fake):
                    self.finish_leaf(name, output.fake)

    def has_new_counter(self, output: Output) -> bool:
        """A factory's result, in general: it may have been made by changing memory that is not visible."""
        if output.kind != "memory" or torch.is_inference_mode_enabled() or output.view is None:
            return False
        steps = [part.step for part in output.view.path()[1:]]
        return all(step is not None and operator_of(step.function).gives_argument for step in steps)

    def finish_leaf(self, name: str, fake: torch.Tensor) -> None:
        """Parameters and other leaves that the program made."""
        if is_marked_parameter(fake) and not name.startswith("i"):
            self.namespace["Parameter"] = Parameter
            self.add(f"{name} = Parameter({name}, {fake.requires_grad})")
        elif fake.is_leaf and fake.requires_grad:
            self.add(f"{name}.requires_grad_()")

    def final(self, memory: Memory) -> View:
        return self.joint.functional.view_of(memory.storage.first)

    def ready_after(self, output: Output) -> int | None:
        if output.kind == "memory":
            return self.stage_of.get(output.index)
        for index, memory in enumerate(self.joint.memories):
            if memory.input == output.index:
                return self.stage_of.get(index)
        return None

    def base_text(self, output: Output) -> str:
        return f"i{output.index}" if output.kind == "input" else self.memory_text(output.index)

    def memory_text(self, index: int) -> str:
        memory = self.joint.memories[index]
        return f"m{index}" if memory.input is None else f"i{memory.input}"

    def view_text(self, view: View, base: str) -> str:
        """Lines that make a view; gives its name."""
        if view.parent is None or view in self.starts:
            return base
        if view.step is not None and view.step.in_place is not None:
            return base  # the tensor itself, after a change of its shape
        known = self.views.get(view)
        if known is not None:
            return known
        source = self.view_text(view.parent, base)
        step = view.step
        assert step is not None
        name = self.views[view] = f"v{len(self.views)}"
        function = self.bind(step.function, operator_name(step.function))
        call = f"{function}({self.arguments(source, step)})"
        if step.index is None:
            self.in_mode(step.differentiable, f"{name} = {call}")
            return name
        key = (view.parent, step.function, id(step.keywords), self.arguments(source, step))
        if key not in self.calls:  # the results of one call have one place in autograd's graph
            self.calls[key] = f"parts{len(self.calls)}"
            self.in_mode(step.differentiable, f"{self.calls[key]} = {call}")
        self.add(f"{name} = {self.calls[key]}[{step.index}]")
        return name

    def arguments(self, source: str, step: Step) -> str:
        given = [source, *[self.text(value) for value in step.rest]]
        return ", ".join(given + [f"{name}={self.text(value)}" for name, value in step.keywords.items()])

    def text(self, value: Any) -> str:
        if isinstance(value, torch.SymInt):
            if not expression_of(value).free_symbols <= self.symbols:
                raise Unsupported("a view of a size that no input says")
            return number_text(value)
        if isinstance(value, (list, tuple)):
            return "[" + ", ".join(self.text(part) for part in value) + "]"
        if value is None or isinstance(value, (int, float, bool, str)):
            return repr(value)
        return self.bind(value, "value")

    # -- autograd ---------------------------------------------------------------------------------------------------

    def attach(self, number: int, compiled: CompiledStage) -> None:
        stage = self.joint.stages[number]
        following = "".join(f"{self.following(stage.sources[place])}, " for place in stage.order)
        held = "".join(f"{self.held(index)}, " for index in range(len(self.joint.specs)))
        node, callables = f"node{number}", f"backward{number}, higher{number}"
        self.namespace[f"backward{number}"], self.namespace[f"higher{number}"] = compiled.backward, compiled.higher
        self.add(f"{node} = GradNode({compiled.name!r}, {callables}, context, ({held}), ({following}))")
        for root in stage.roots:
            if root.memory is None:
                self.add(f"{node}.hidden({self.hidden(root)})")
                continue
            memory = self.joint.memories[root.memory]
            method = "output" if memory.input is None else "replaced"
            self.add(f"{node}.{method}({self.memory_text(root.memory)})")
        for registration in self.joint.registrations:
            in_stage = registration.place is None and registration.edge[0] in stage.region
            if in_stage and registration.kind == "register_shared_hook":
                self.add(f"i{registration.slot}.node = {node}.grad_fn")
        self.make_visible(number)
        self.add(f"{node}.save({', '.join(f'saved{i}' for i in compiled.used)})")

    def hidden(self, root: Root) -> str:
        tangent = root.value
        sizes = "".join(f"{self.text(size)}, " for size in tangent.shape)
        return f"({sizes}), {self.bind(tangent.dtype, 'dtype')}, {self.bind(tangent.device, 'device')}"

    def held(self, index: int) -> str:
        if index in self.joint.aliases.values():
            return "None"  # a view of another input
        if index in self.compiled.held:
            return f"held{index}"
        return f"i{index}" if not isinstance(self.joint.inputs[index], hook_slots.HookSlot) else "None"

    def following(self, source: Source) -> str:
        if source.kind == "input":
            return f"old{source.index}" if source.index in self.old_edges() else f"i{source.index}"
        if source.kind == "reshaped":
            return f"i{source.index}"
        if source.kind == "memory":
            return self.memory_text(source.index)
        if source.kind == "output":
            return self.output_text(source.index, self.joint.outputs[source.index])
        return f"(node{source.stage}, {source.index})"

    def register_on_outputs(self) -> None:
        for registration in self.joint.registrations:
            if registration.place is None or registration.place[0] == "input":
                continue
            kind, index = registration.place
            if kind == "output":
                self.register(registration, self.output_text(index, self.joint.outputs[index]))
            else:
                self.register(registration, self.memory_text(index) if kind == "memory" else f"i{index}")

    # -- results ----------------------------------------------------------------------------------------------------

    def output_text(self, index: int, output: Output) -> str:
        if output.kind == "constant":
            return self.text(output.value)
        if output.kind == "number":
            return f"n{output.index}"
        return self.outputs.get(index) or self.base_text(output)


class Passed(torch.autograd.Function):
    """What an autograd function of the user makes of an argument that it returns: a view that may not change."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class Before(torch.autograd.Function):
    """What a tensor held before it was changed, with the history that it has now."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, content: torch.Tensor) -> torch.Tensor:
        return content.view_as(content)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


def listed(indices: Iterable[int]) -> str:
    """A tuple of inputs."""
    return "(" + "".join(f"i{index}, " for index in indices) + ")"


def names_in(lines: list[str]) -> set[str]:
    """The names in some lines of a function's body."""
    tree = ast.parse("\n".join(["def body():", *(f"    {line}" for line in lines)]))
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def follows_base(tensor: torch.Tensor) -> bool:
    """A view made in no_grad mode: it requires grad because its base does."""
    base = base_of(tensor)
    return base is not None and base.requires_grad


def set_version(tensor: torch.Tensor, version: int) -> None:
    set_versions((tensor,), (version,))
