"""The function that runs a compiled graph in the caller's world: Python text, written for the case at hand.

The graph itself is functional and knows nothing of autograd. Around it: inputs that the program changed get their new
content; outputs that are inputs or views are made from the real tensors; each stage's autograd node is attached; hooks
go where they belong. ``print(run.__kiln_text__)`` shows it.
"""

from __future__ import annotations

import itertools
import linecache
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.nn import Parameter

from ... import _native
from ...program import hook_slots
from ...program.shapes.fake_tensors import refuses_change
from ...program.unsupported import Unsupported
from ..partition.random_replay import generator_for
from ..partition.recompute_cost import is_view
from ..trace.backward_stages import Source
from ..trace.functional_graph import SAME_VALUE, Step, View
from ..trace.hook_calls import open_slot
from ..trace.input_specs import InputSpec
from ..trace.joint_tracer import Joint, Memory, Output
from ..trace.size_nodes import number_text
from .higher_order import CallContext

_counter = itertools.count()
REGISTER = {
    "register_hook": hook_slots.register_hook,
    "register_shared_hook": hook_slots.register_shared_hook,
    "register_post_accumulate_grad_hook": hook_slots.register_post_accumulate_grad_hook,
}


class RunText:
    """Writes the run function of one compiled graph."""

    def __init__(
        self, joint: Joint, ambient_grad: bool, when_shared: Callable[..., Any], written: frozenset[int] = frozenset()
    ) -> None:
        self.joint, self.ambient_grad = joint, ambient_grad
        self.written = written  # inputs that the graph itself gives their new content
        self.lines: list[str] = []
        self.namespace: dict[str, Any] = {
            "set_grad": torch._C._set_grad_enabled,
            "sharing": when_shared,
            "GradNode": _native.GradNode,
            "CallContext": CallContext,
            "context": CallContext(),  # of calls that have nothing of their own
            "set_version": set_version,
            "bump_version": _native.bump_version,
        }
        self.views: dict[View, str] = {view: f"i{index}" for view, index in joint.members.items()}
        self.calls: dict[Any, str] = {}  # view operations with several results
        self.starts = {memory.start for memory in joint.memories}
        self.outputs: dict[int, str] = {}
        self.symbols: set[Any] = set()  # that have a name
        self.stage_of: dict[int, int] = {}
        for number, stage in enumerate(joint.stages):
            for root in stage.roots:
                if root.memory is not None:
                    self.stage_of[root.memory] = number

    # -- the whole --------------------------------------------------------------------------------------------------

    def write(
        self,
        forward: Callable,
        eager: Callable,
        stages: list[tuple[str, Callable, Callable, list[int]]],
        saved: tuple[list[int], list[int]],
        holds: dict[int, str],
    ) -> Callable[..., list[Any]]:
        """``stages``: name, backward, higher, which saved tensors; ``saved``: places of tensors and numbers among the
        forward's results; ``holds``: changed inputs that are kept for running again, and how."""
        joint = self.joint
        self.namespace.update(forward=forward, eager=eager)
        self.check_inputs()
        self.bind_symbols()
        self.register_on_inputs()
        self.prepare(stages, holds)
        tensors, numbers = saved
        results = [f"m{i}" for i, memory in enumerate(joint.memories) if memory.parent is None]
        results += [f"n{i}" for i in range(len(joint.numbers))]
        results += [f"saved{i}" for i in range(len(tensors))] + [f"k{i}" for i in range(len(numbers))]
        given = ", ".join(self.given(i) for i, node in enumerate(joint.input_nodes) if node is not None)
        self.add("set_grad(False)")
        self.add("try:")
        self.add(f"    {', '.join(results)}{',' if results else 'none'} = forward([{given}])")
        for index, memory in enumerate(joint.memories):
            if memory.input is not None and memory.input not in self.written:
                counted = memory.input in joint.versions or joint.specs[memory.input].is_inference
                self.add(f"    i{memory.input}{'' if counted else '.data'}.copy_(m{index})")
        self.add("finally:")
        self.add(f"    set_grad({self.ambient_grad})")
        self.set_versions()
        for index in self.quiet(holds) if stages else ():
            self.namespace["Before"] = Before
            self.add(f"held{index} = Before.apply(i{index}, held{index})")
        for index, memory in enumerate(joint.memories):
            if memory.parent is not None:
                self.make_alias(index, memory)
            elif memory.input is None and is_view(memory.storage.node):
                self.add(f"m{index} = m{index}.detach()")  # what the program made was no view
        self.set_memory_versions(reshaped=False)  # before anything is saved: a saved tensor must not change
        self.make_visible(None)
        if stages:
            hooks = ", ".join(
                f"h{r.number}" if r.slot is not None and r.place is None else "None" for r in joint.registrations
            )
            state = "state" if joint.random else "()"
            kept = "".join(f"k{number}, " for number in range(len(numbers)))
            if hooks or kept or joint.random:
                self.add(f"context = CallContext(({hooks}{',' if hooks else ''}), {state}, ({kept}))")
        for number, (name, backward, higher, used) in enumerate(stages):
            self.attach(number, name, backward, higher, used, holds)
        self.set_memory_versions(reshaped=True)
        self.register_on_outputs()
        if joint.grad_mode is not None:
            self.add(f"set_grad({joint.grad_mode})")
        self.add(f"return [{', '.join(self.output_text(i, output) for i, output in enumerate(joint.outputs))}]")
        return self.compile()

    def given(self, index: int) -> str:
        """An input, as the graph gets it: one whose shape is going to change may be saved as it is now."""
        return f"i{index}.detach()" if index in self.joint.metadata else f"i{index}"

    def add(self, line: str) -> None:
        self.lines.append(line)

    def bind(self, value: Any, hint: str) -> str:
        name = f"{hint}_{len(self.namespace)}"
        self.namespace[name] = value
        return name

    def compile(self) -> Callable[..., list[Any]]:
        parameters = ", ".join(f"i{i}" for i in range(len(self.joint.specs)))
        body = "\n".join(f"    {line}" for line in self.lines)
        text = f"def run({parameters}):\n{body}\n"
        file = f"<kiln run {next(_counter)}>"
        linecache.cache[file] = (len(text), None, text.splitlines(True), file)
        exec(compile(text, file, "exec"), self.namespace)
        run = self.namespace["run"]
        run.__kiln_text__ = text
        weakref.finalize(run, linecache.cache.pop, file, None)  # the text lives as long as the function
        return run

    # -- before the graph -------------------------------------------------------------------------------------------

    def check_inputs(self) -> None:
        """What the trace took for granted and no guard says: that what is changed is nobody else's, and may change."""
        changed = [memory.input for memory in self.joint.memories if memory.input is not None]
        replaced = [memory.input for memory in self.joint.memories if memory.input is not None and memory.edge]
        tensors = [index for index, spec in enumerate(self.joint.specs) if isinstance(spec, InputSpec)]
        everything = listed(range(len(self.joint.specs)))[1:-1]
        self.namespace.update(refuses_change=refuses_change, shares_memory=_native.shares_memory)
        tests = [f"i{i}.is_leaf or refuses_change(i{i})" for i in [*replaced, *self.differentiable_shapes()]]
        if tests:
            self.add(f"if {' or '.join(tests)}: return eager({everything})")
        if changed and len(tensors) > 1 and not self.joint.is_shared:
            groups = [listed(changed), listed([index for index in tensors if index not in changed])]
            self.add(f"if shares_memory({', '.join(groups)}): return sharing({everything})")

    def differentiable_shapes(self) -> list[int]:
        """Inputs that get a new place in autograd's graph by a change of their shape."""
        return [index for index, moved in enumerate(self.joint.moved) if moved]

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
        if isinstance(value, torch.SymInt) and value.node.expr.is_symbol and value.node.expr not in self.symbols:
            self.symbols.add(value.node.expr)
            self.add(f"{value.node.expr} = {text}")

    def register_on_inputs(self) -> None:
        for registration in self.joint.registrations:
            if registration.place is not None and registration.place[0] == "input":
                self.register(registration, f"i{registration.place[1]}")

    def register(self, registration: Any, tensor: str) -> None:
        if registration.kind == "retain_grad":
            self.add(f"{tensor}.retain_grad()")
            return
        function = self.bind(REGISTER[registration.kind], registration.kind)
        self.add(f"{function}({tensor}, i{registration.slot})")

    def prepare(self, stages: list, holds: dict[int, str]) -> None:
        for registration in self.joint.registrations:
            if registration.slot is not None and registration.place is None:
                self.namespace["open_slot"] = open_slot
                self.add(f"h{registration.number} = open_slot(i{registration.slot})")
        for index in self.joint.versions:
            if index not in self.written:
                self.add(f"before{index} = i{index}._version")
        if not stages:
            return
        if self.joint.random:
            names = [self.bind(generator_for(device), "generator") for device in self.joint.random]
            self.add(f"state = ({''.join(f'({name}, {name}.get_state()), ' for name in names)})")
        for index, how in holds.items():
            self.add(f"held{index} = {how.format(name=f'i{index}')}{'.detach()' if index in self.quiet(holds) else ''}")
        for index in self.old_edges():
            self.add(f"old{index} = i{index}.clone()")

    def quiet(self, holds: dict[int, str]) -> list[int]:
        """Inputs that autograd is not told of a change of: gradients go where they go after it, also of what was."""
        told = {memory.input for memory in self.joint.memories if memory.edge is not None}
        return [
            index
            for index, how in holds.items()
            if "clone" in how and index not in told and index not in self.joint.metadata
            if self.joint.specs[index].requires_grad
        ]

    def old_edges(self) -> set[int]:
        """Inputs that have a new place in autograd's graph by the time a stage that leads to the old one is made."""
        replaced = {memory.input for memory in self.joint.memories if memory.input is not None and memory.edge}
        found = set()
        for number, stage in enumerate(self.joint.stages):
            moved = set(self.differentiable_shapes()) | (replaced if number else set())
            found |= {source.index for source in stage.sources if source.kind == "input" and source.index in moved}
        return found

    # -- after the graph --------------------------------------------------------------------------------------------

    def make_alias(self, index: int, memory: Memory) -> None:
        """A tensor of its own that looks at other memory."""
        assert memory.parent is not None and memory.start is not None
        kind, place = memory.parent
        text = f"i{place}" if kind == "input" else f"m{place}"
        for view in memory.start.path()[1:]:
            assert view.step is not None
            function = self.bind(view.step.function, view.step.function._opname)
            item = f"[{view.step.index}]" if view.step.index is not None else ""
            text = f"{function}({self.arguments(text, view.step)}){item}"
        if memory.root._is_view() and index in self.stage_of:  # its history is replaced when its node is there
            self.namespace["Passed"] = Passed
            self.add(f"m{index} = Passed.apply({text})")
        else:
            self.add(f"m{index} = {text}.{'data' if memory.counts_alone else 'detach()'}")

    def reshape(self, base: str, final: View) -> None:
        """``transpose_`` and its like, done to the real tensor."""
        for view in final.path()[1:]:
            step = view.step
            assert step is not None and step.change is not None
            function = self.bind(step.change, "change")
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
        """Memory that the program made and then changed; that whose shape it changed too counts that by itself."""
        if torch.is_inference_mode_enabled():
            return  # what is made has none
        for index, memory in enumerate(self.joint.memories):
            if memory.parent is not None and not reshaped and (memory.counts_alone or memory.parent[0] == "memory"):
                counted = 0 if memory.counts_alone else self.joint.memories[memory.parent[1]].root._version
                if memory.root._version != counted:  # a factory's result: nobody saw the tensor that it looks at
                    self.add(f"set_version(m{index}, {memory.root._version})")
            elif memory.input is None and memory.parent is None:
                changes = len(self.final(memory).path()) - 1
                version = memory.root._version - memory.storage.version
                if version > changes and bool(changes) == reshaped:
                    self.add(f"set_version(m{index}, {version})")

    def set_versions(self) -> None:
        """As often as the program changed them: before views are made and tensors saved, which note their versions."""
        copied = {memory.input for memory in self.joint.memories if memory.input is not None} - self.written
        for index, count in self.joint.versions.items():
            view = self.joint.metadata.get(index)
            now = count - (len(view.path()) - 1 if view is not None else 0)  # those of its shape are yet to come
            if index in self.written and now:
                self.add(f"bump_version(i{index}, {now})")
            elif now != (index in copied):
                self.add(f"set_version(i{index}, before{index} + {now})")

    def make_visible(self, stage: int | None) -> None:
        """What can be seen of what is there by now: changed shapes, leaves, and outputs that are views."""
        for index, final in self.joint.metadata.items():
            owner = next((i for i, memory in enumerate(self.joint.memories) if memory.input == index), None)
            if (self.stage_of.get(owner) if owner is not None else None) == stage:
                self.reshape(f"i{index}", final)
        for index, memory in enumerate(self.joint.memories):
            if memory.input is None and memory.parent is None and self.stage_of.get(index) == stage:
                self.finish_memory(index, memory)
        for index, output in enumerate(self.joint.outputs):
            if output.view is not None and index not in self.outputs and self.ready_after(output) == stage:
                name = self.outputs[index] = self.view_text(output.view, self.base_text(output))
                if self.counts_anew(output):
                    self.add(f"set_version({name}, {output.fake._version})")
                if not is_silent_view(output.fake):
                    self.finish_leaf(name, output.fake)

    def counts_anew(self, output: Output) -> bool:
        """A factory's result, as a rule: it may have been made by changing memory that nobody saw."""
        if output.kind != "memory" or torch.is_inference_mode_enabled() or output.view is None:
            return False
        return all(part.step is not None and part.step.function in SAME_VALUE for part in output.view.path()[1:])

    def finish_memory(self, index: int, memory: Memory) -> None:
        self.reshape(f"m{index}", self.final(memory))
        self.finish_leaf(f"m{index}", memory.root)

    def finish_leaf(self, name: str, fake: torch.Tensor) -> None:
        """Parameters and other leaves that the program made, in memory of its own or of others."""
        if getattr(fake, "_is_param", False) and not name.startswith("i"):
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
        if view.step is not None and view.step.change is not None:
            return base  # the very tensor, after a change of its shape
        known = self.views.get(view)
        if known is not None:
            return known
        source = self.view_text(view.parent, base)
        step = view.step
        assert step is not None
        name = self.views[view] = f"v{len(self.views)}"
        function = self.bind(step.function, step.function._opname)
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
            if not value.node.expr.free_symbols <= self.symbols:
                raise Unsupported("a view of a size that no input says")
            return number_text(value)
        if isinstance(value, (list, tuple)):
            return "[" + ", ".join(self.text(part) for part in value) + "]"
        if value is None or isinstance(value, (int, float, bool, str)):
            return repr(value)
        return self.bind(value, "value")

    # -- autograd ---------------------------------------------------------------------------------------------------

    def attach(
        self, number: int, name: str, backward: Callable, higher: Callable, used: list[int], holds: dict[int, str]
    ) -> None:
        stage = self.joint.stages[number]
        following = "".join(f"{self.following(stage.sources[place])}, " for place in stage.order)
        held = "".join(f"{self.held(index, holds)}, " for index in range(len(self.joint.specs)))
        node = f"node{number}"
        self.namespace[f"backward{number}"], self.namespace[f"higher{number}"] = backward, higher
        self.add(f"{node} = GradNode({name!r}, backward{number}, higher{number}, context, ({held}), ({following}))")
        for root in stage.roots:
            if root.memory is None:
                self.add(f"{node}.hidden({self.hidden(root)})")
                continue
            memory = self.joint.memories[root.memory]
            method = "output" if memory.input is None else "replaced"
            self.add(f"{node}.{method}({self.memory_text(root.memory)})")
        for registration in self.joint.registrations:
            inside = registration.place is None and registration.edge[0] in stage.region
            if inside and registration.kind == "register_shared_hook":
                self.add(f"i{registration.slot}.node = {node}.grad_fn")
        self.make_visible(number)
        self.add(f"{node}.save({', '.join(f'saved{i}' for i in used)})")

    def hidden(self, root: Any) -> str:
        told = root.value
        sizes = self.text(list(told.shape)).replace("[", "(", 1)[:-1]
        closing = ",)" if len(told.shape) else ")"
        return f"{sizes}{closing}, {self.bind(told.dtype, 'dtype')}, {self.bind(told.device, 'device')}"

    def held(self, index: int, holds: dict[int, str]) -> str:
        if index in self.joint.members.values():
            return "None"  # a view of another input
        if index in holds:
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
    """Makes a tensor what a function of the user makes of an argument that it returns: a view that may not change."""

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


def is_silent_view(tensor: torch.Tensor) -> bool:
    """A view made in no_grad mode: that it requires grad is its base's, and comes by itself."""
    return tensor._is_view() and tensor._base is not None and tensor._base.requires_grad


def set_version(tensor: torch.Tensor, version: int) -> None:
    torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))
