"""kiln._native.GradNode: an autograd node with a Python backward, compared with what eager's own nodes do."""

import gc
import subprocess
import sys
import textwrap
import threading
import traceback
import weakref

import pytest
import torch
from torch.autograd import grad

from kiln import _native


def leaf(*sizes, seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*sizes, generator=generator, dtype=torch.float64, **options).requires_grad_()


def product_backward(defined, needed, saved, gradients, context):
    """The backward of `a * b` with both saved."""
    assert (defined, torch.is_grad_enabled()) == (1, False)
    a, b = saved
    saved.clear()
    return (gradients[0] * b if needed & 1 else None), (gradients[0] * a if needed & 2 else None)


def rerun(function):
    """A `higher` that runs the function again on the linked inputs and differentiates that."""

    def higher(defined, needed, inputs, gradients, context):
        with torch.enable_grad():
            results = function(*inputs)
        results = results if isinstance(results, tuple) else (results,)
        wanted = [i for i in range(len(inputs)) if needed >> i & 1]
        pairs = [(r, g) for r, g in zip(results, gradients, strict=True) if g is not None and r.requires_grad]
        ends, starts = zip(*pairs, strict=True)
        linked = [inputs[i] for i in wanted]
        found = grad(ends, linked, starts, create_graph=torch.is_grad_enabled(), allow_unused=True)
        out = [None] * len(inputs)
        for i, gradient in zip(wanted, found, strict=True):
            out[i] = gradient
        return out

    return higher


def never(*arguments):
    raise AssertionError("not to be called")


class Token:
    """Dies with the node that has it for context."""


def node_over(*inputs, backward=never, higher=never, context=None, following=None, name="KilnBackward"):
    return _native.GradNode(name, backward, higher, context, inputs, inputs if following is None else following)


def product(a, b, backward=product_backward):
    """`a * b` through a GradNode."""
    with torch.no_grad():
        out = a * b
    node = node_over(a, b, backward=backward, higher=rerun(torch.mul))
    node.output(out)
    node.save(a, b)
    return out


def rerun_only(function, *inputs):
    """A function whose backward is always a rerun: nothing saved."""
    with torch.no_grad():
        out = function(*inputs)
    results = out if isinstance(out, tuple) else (out,)
    node = node_over(*inputs, backward=lambda *_: NotImplemented, higher=rerun(function))
    node.outputs(*results)
    node.save()
    return out


def is_free(reference):
    """Gone without the cyclic collector's help."""
    return reference() is None


# ---- gradients -----------------------------------------------------------------------------------------------------


def test_gradients_are_eagers():
    a, b = leaf(3), leaf(3, seed=1)
    out = product(a, b)
    assert (out.requires_grad, out.is_leaf, out.output_nr) == (True, False, 0)
    out.sum().backward()
    assert torch.equal(a.grad, b) and torch.equal(b.grad, a)


def test_only_gradients_that_are_needed_are_asked_for():
    seen = []

    def backward(defined, needed, saved, gradients, context):
        seen.append(needed)
        return gradients[0], gradients[0], gradients[0]

    a, b, c = leaf(2), leaf(2), leaf(2)
    interior = b * 2
    out = torch.zeros(2, dtype=torch.float64)
    node_over(a, interior, c, torch.zeros(2), backward=backward, following=(a, interior, torch.zeros(2))).output(out)
    for inputs in [(a,), (b,), (interior,), (a, b)]:
        grad(out.sum(), inputs, retain_graph=True)
    out.sum().backward(retain_graph=True)
    out.sum().backward(inputs=[b])
    assert seen == [0b001, 0b010, 0b010, 0b011, 0b011, 0b010]


def test_undefined_gradients_stay_so_both_ways():
    seen = []

    def backward(defined, needed, saved, gradients, context):
        seen.append((defined, [g is not None for g in gradients]))
        return gradients[2], None

    a, b = leaf(2), leaf(2)
    outs = [torch.zeros(2, dtype=torch.float64) for _ in range(3)]
    node = node_over(a, b, backward=backward)
    assert [node.output(outs[0]), node.output_none(), node.output(outs[2])] == [0, 1, 2]
    assert (outs[1].requires_grad, outs[2].output_nr) == (False, 2)
    outs[2].sum().backward()
    assert seen == [(0b100, [False, False, True])] and b.grad is None and torch.equal(a.grad, torch.ones_like(a))


@pytest.mark.parametrize("count", [64, 65, 200])
def test_many_gradients(count):
    masks = []

    def backward(defined, needed, saved, gradients, context):
        masks.extend((defined, needed))
        return [g * 2 if g is not None else None for g in gradients]

    leaves = [leaf(1) for _ in range(count)]
    outs = [torch.zeros(1, dtype=torch.float64) for _ in range(count)]
    node_over(*leaves, backward=backward).outputs(*outs)
    chosen = [0, 31, count - 1]
    found = grad([outs[i].sum() for i in chosen], [leaves[i] for i in chosen])
    assert masks == [sum(1 << i for i in chosen)] * 2
    assert all(g.item() == 2 for g in found)


def test_a_hidden_gradient_flows_between_nodes():
    a = leaf(2)
    first = node_over(a, backward=lambda d, n, s, gradients, c: (gradients[0] + gradients[1],))
    visible, last = torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    assert first.output(visible) == 0 and first.hidden((2,), torch.float64, torch.device("cpu")) == 1
    second = node_over(a, backward=lambda d, n, s, g, c: (g[0] * 2, g[0] * 3), following=(visible, (first, 1)))
    second.output(last)
    assert torch.equal(grad(last.sum(), a)[0], torch.full_like(a, 5))
    assert node_over(a).hidden(last) == 0


@pytest.mark.parametrize(
    ("result", "error"),
    [
        ((torch.ones(7, dtype=torch.float64), None), "invalid gradient at index 0"),
        ((None,), "2 gradients expected, 1 returned"),
        ((None, 3), "gradient 1 is a tensor or None, not int"),
        (None, "a sequence of gradients"),
    ],
)
def test_a_wrong_result_is_an_error(result, error):
    a, b = leaf(3), leaf(3)
    out = product(a, b, backward=lambda *_: result)
    with pytest.raises((RuntimeError, TypeError), match=error):
        out.sum().backward()


def test_exceptions_are_the_users_own():
    class Mine(Exception):
        pass

    def raising(*_):
        raise Mine("why")

    out = product(leaf(3), leaf(3), backward=raising)
    with pytest.raises(Mine, match="why") as caught:
        out.sum().backward()
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "raising"
    with pytest.raises(RuntimeError, match="through the graph a second time"):
        out.sum().backward()


def test_a_backward_inside_a_backward():
    inner = product(leaf(3), leaf(3))

    def backward(defined, needed, saved, gradients, context):
        with torch.enable_grad():
            inner.sum().backward()
        return gradients[0], None

    a = leaf(3)
    product(a, leaf(3), backward=backward).sum().backward()
    assert torch.equal(a.grad, torch.ones_like(a))


# ---- saving and freeing --------------------------------------------------------------------------------------------


def test_backward_twice():
    a, b = leaf(3), leaf(3, seed=1)
    out = product(a, b)
    out.sum().backward(retain_graph=True)
    out.sum().backward()
    assert torch.equal(a.grad, 2 * b)
    with pytest.raises(RuntimeError) as seen:
        out.sum().backward()
    eager = a * b
    eager.sum().backward()
    with pytest.raises(RuntimeError) as expected:
        eager.sum().backward()
    assert str(seen.value) == str(expected.value)
    with pytest.raises(RuntimeError, match="second time"):
        out.grad_fn.saved_tensors


@pytest.mark.parametrize("saved", [(), (None, None)])
def test_a_node_that_saves_nothing_runs_again(saved):
    a, context = leaf(3), ["slot"]
    out = torch.zeros(3, dtype=torch.float64)
    contexts = []

    def backward(defined, needed, saved, gradients, context):
        contexts.append((saved, context))
        return (gradients[0] * 3,)

    node = node_over(a, backward=backward, higher=rerun(lambda a: a * 3), context=context)
    node.output(out)
    node.save(*saved)
    for _ in range(3):
        out.sum().backward()
    assert a.grad.tolist() == [9, 9, 9] and contexts == [(list(saved), context)] * 3
    (again,) = grad(out.sum(), a, create_graph=True)
    assert again.tolist() == [3, 3, 3]


@pytest.mark.parametrize("which", ["leaf", "interior", "output"])
def test_a_saved_tensor_that_was_changed_is_eagers_error(which):
    def run(multiply, exponential):
        a, b = leaf(3), leaf(3)
        interior = a * 2
        out = exponential(interior) if which == "output" else multiply(b if which == "leaf" else interior, a)
        with torch.no_grad():
            {"leaf": b, "interior": interior, "output": out}[which].add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation") as caught:
            out.sum().backward()
        return str(caught.value)

    def exponential(a):
        with torch.no_grad():
            out = a.exp()
        node = node_over(a, name="ExpBackward0")
        node.output(out)
        node.save(out)
        return out

    assert run(product, exponential) == run(torch.mul, torch.exp)


def test_saved_tensors_are_freed_as_they_are_consumed():
    a = leaf(4)
    alive = []

    def backward(defined, needed, saved, gradients, context):
        for _ in range(len(saved)):
            saved.pop()
            alive.append(sum(not is_free(r) for r in references))
        return (gradients[0],)

    out = torch.zeros(4, dtype=torch.float64)
    intermediates = [torch.zeros(4) for _ in range(3)]
    references = [weakref.ref(t) for t in intermediates]
    node = node_over(a, backward=backward)
    node.output(out)
    node.save(*intermediates)
    del intermediates
    out.sum().backward(retain_graph=True)
    assert alive == [3, 3, 3]
    alive.clear()
    out.sum().backward()
    assert alive == [2, 1, 0]


def test_the_context_and_the_inputs_are_freed_with_what_was_saved():
    class Slots:
        pass

    a, constant, slots = leaf(3), torch.zeros(3), Slots()
    references = [weakref.ref(constant), weakref.ref(slots)]
    node = node_over(a, constant, slots, backward=lambda d, n, s, g, c: (g[0], None, None), context=slots,
                     following=(a, None, None))  # fmt: skip
    out = torch.zeros(3, dtype=torch.float64)
    node.output(out)
    node.save(constant)
    del constant, slots
    assert not any(map(is_free, references))
    out.sum().backward()
    assert all(map(is_free, references)) and out.grad_fn is node.grad_fn


def test_saved_tensors_hooks():
    log = []

    def pack(tensor):
        log.append(("pack", tuple(tensor.shape)))
        return tensor.detach().numpy().copy()

    def unpack(array):
        log.append(("unpack", array.shape))
        return torch.from_numpy(array)

    def run(multiply):
        log.clear()
        a, b = leaf(3), leaf(3, seed=1)
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            out = multiply(a, b)
        with torch.no_grad():
            a.add_(1)  # no error: it was packed
        out.sum().backward()
        return a.grad, b.grad, list(log)

    assert str(run(product)) == str(run(torch.mul))


def test_save_on_cpu():
    a, b = leaf(3), leaf(3, seed=1)
    with torch.autograd.graph.save_on_cpu():
        out = product(a, b)
    out.sum().backward()
    assert torch.equal(a.grad, b) and torch.equal(b.grad, a)


def test_hooks_that_raise():
    def refuse(_):
        raise KeyError("no")

    with pytest.raises(KeyError, match="no"), torch.autograd.graph.saved_tensors_hooks(refuse, refuse):
        product(leaf(3), leaf(3))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, refuse):
        out = product(leaf(3), leaf(3))
    with pytest.raises(KeyError, match="no"):
        out.sum().backward()


# ---- cycles --------------------------------------------------------------------------------------------------------


def exponential(a):
    with torch.no_grad():
        out = a.exp()
    token = Token()
    node = node_over(a, backward=lambda d, n, s, g, c: (g[0] * s[0],), context=token)
    node.output(out)
    return node, out, out, token


def view_of_an_output(a):
    with torch.no_grad():
        out = a.exp()
        saved = out.view(-1)
    token = Token()
    node = node_over(a, backward=lambda d, n, s, g, c: (g[0] * s[0],), context=token)
    node.output(out)
    return node, out, saved, token


def changed_input(a):
    target = a * 1
    with torch.no_grad():
        target.exp_()
    token = Token()
    node = node_over(a, backward=lambda d, n, s, g, c: (g[0] * s[0],), context=token)
    node.replaced(target)
    return node, target, target, token


def changed_view(a):
    base = torch.zeros(2, 3, dtype=torch.float64)
    target = base[0]
    with torch.no_grad():
        target.copy_(a.exp())
    token = Token()
    node = node_over(a, backward=lambda d, n, s, g, c: (g[0] * s[0],), context=token)
    node.replaced(target)
    return node, base[0], target, token


def changed_base(a):
    node, view, _, token = changed_view(a)
    return node, view, view._base, token


@pytest.mark.parametrize("make", [exponential, view_of_an_output, changed_input, changed_view, changed_base])
def test_what_is_saved_makes_no_cycle(make):
    gc.collect()
    gc.disable()
    try:
        a = leaf(3)
        node, out, saved, token = make(a)
        node.save(saved)
        if make is not changed_base:
            assert torch.equal(grad(out.sum(), a, retain_graph=True)[0], a.exp())
        references = [weakref.ref(x) for x in (token, out, saved)]
        del node, out, saved, token
        assert all(map(is_free, references))
    finally:
        gc.enable()


@pytest.mark.parametrize("requires", [True, False])
def test_an_input_changed_with_the_output_makes_no_cycle(requires):
    a = leaf(3)
    other = a * 2 if requires else torch.zeros(3, dtype=torch.float64)
    out = torch.zeros(3, dtype=torch.float64)
    token = Token()
    node = node_over(a, other, context=token)
    node.output(out)
    node.save()
    other.add_(out)
    references = [weakref.ref(x) for x in (token, out, other)]
    gc.disable()
    try:
        del node, out, other, token
        assert all(map(is_free, references))
    finally:
        gc.enable()


@pytest.mark.parametrize("saves", [True, False])
def test_long_chains_die_without_recursion(saves):
    out, token = leaf(1), Token()
    for i in range(50_000):
        following, out = out, torch.zeros(1, dtype=torch.float64)
        node = node_over(following, context=None if i else token)
        node.output(out)
        node.save(*[following] * saves)
    reference = weakref.ref(token)
    del following, node, token
    out = None
    assert is_free(reference)


# ---- tensors changed in place --------------------------------------------------------------------------------------


def doubled_in_place(target, following):
    """target.mul_(2) by way of a node."""
    node = node_over(following, backward=lambda d, n, s, g, c: (g[0] * 2,))
    with torch.no_grad():
        target.mul_(2)
    target.grad_fn
    node.replaced(target)


@pytest.mark.parametrize("where", ["whole", "view", "view of a view", "constant base"])
def test_replaced(where):
    def run(double):
        a, b = leaf(3, 3), leaf(2, seed=1)
        base = torch.ones(3, 3, dtype=torch.float64) if where == "constant base" else a * 3
        if where == "constant base":
            base[1, :2] = b
        target = {"whole": base, "view": base[1], "view of a view": base[1][:2], "constant base": base[1]}[where]
        sibling = base[1]
        double(target)
        result = (base * base).sum() + sibling.sum() + target.exp().sum()
        return [base, sibling, *grad(result, [a, b], allow_unused=True), target._version]

    def eager(target):
        target.mul_(2)

    def ours(target):
        doubled_in_place(target, _native.with_history_of(target.detach(), target))

    for ours_now, expected in zip(run(ours), run(eager), strict=True):
        if isinstance(expected, torch.Tensor):
            assert torch.equal(ours_now, expected)
        else:
            assert ours_now == expected


def test_replaced_moves_retained_gradients_as_eager():
    def run(double):
        a = leaf(3)
        target = a * 3
        target.retain_grad()
        double(target)
        (target * target).sum().backward()
        return a.grad, target.grad

    ours = run(lambda t: doubled_in_place(t, _native.with_history_of(t.detach(), t)))
    assert all(map(torch.equal, ours, run(lambda t: t.mul_(2))))


# ---- higher order --------------------------------------------------------------------------------------------------


def derivatives(function, *inputs, order=3):
    """All derivatives of the sum of a function's results up to an order."""
    values = function(*inputs)
    total = sum(v.sum() for v in (values if isinstance(values, tuple) else (values,)))
    found = []
    for _ in range(order):
        parts = grad(total, inputs, create_graph=True, allow_unused=True, materialize_grads=True)
        found += parts
        total = sum((p * (i + 2)).sum() for i, p in enumerate(parts))
    return found


@pytest.mark.parametrize(
    "function",
    [torch.mul, lambda a, b: (a.sin() * b, b.exp() + a**3), lambda a, b: (a @ a.t()).tanh() * b.sum()],
)
@pytest.mark.parametrize("interior", [False, True])
def test_higher_derivatives(function, interior):
    def through(wrapper):
        a, b = leaf(3, 3), leaf(3, 3, seed=1)
        if interior:
            return derivatives(lambda a, b: wrapper(a * b, b.sin()), a, b)
        return derivatives(wrapper, a, b, order=2 if function is torch.mul else 3)

    compiled = product if function is torch.mul else lambda a, b: rerun_only(function, a, b)
    for ours, eager in zip(through(compiled), through(function), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-12, atol=1e-12)


def test_a_backward_that_declines_is_a_rerun_without_a_graph():
    a = leaf(3)
    (gradient,) = grad(rerun_only(torch.exp, a).sum(), a)
    assert torch.equal(gradient, a.exp()) and not gradient.requires_grad


def test_rerun_inputs():
    a, constant, thing = leaf(3), torch.arange(3), object()
    interior = a * 2
    node = node_over(a, interior, constant, thing, 7, following=())
    linked = node.grad_fn.rerun_inputs()
    assert linked[2] is constant and linked[3] is thing and linked[4] == 7
    for ours, given in zip(linked[:2], (a, interior), strict=True):
        assert ours is not given and torch.equal(ours, given) and ours.data_ptr() == given.data_ptr()
        assert not ours.is_leaf and torch.equal(*(grad(t.sum(), a, retain_graph=True)[0] for t in (ours, given)))


def test_hooks_of_inputs_run_once_and_not_in_the_rerun():
    def run(multiply):
        log = []
        a, b = leaf(3), leaf(3, seed=1)
        a.register_hook(lambda g: log.append("a") or g * 2)
        interior = b * 1
        interior.register_hook(lambda g: log.append("interior") or g * 3)
        first = grad(multiply(a, interior).sum(), (a, b), create_graph=True)
        second = grad(sum(f.sum() for f in first), (a, b))
        return sorted(log), *first, *second

    ours, eager = run(product), run(torch.mul)
    assert ours[0] == eager[0] and all(map(torch.equal, ours[1:], eager[1:]))


@pytest.mark.parametrize("which", ["leaf", "interior", "constant"])
@pytest.mark.parametrize("hooks", [False, True])
def test_a_rerun_after_an_input_was_changed_is_eagers_error(which, hooks):
    a, b, constant = leaf(3), leaf(3) * 2, torch.zeros(3)
    out = rerun_only(lambda a, b, c: a * b * c, a, b, constant)
    with torch.no_grad():
        {"leaf": a, "interior": b, "constant": constant}[which].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        if hooks:
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
                out.sum().backward()
        else:
            out.sum().backward()


def test_the_error_of_a_changed_input_reads_as_eagers():
    def text(multiply):
        a, b = leaf(3), leaf(3) * 2
        out = multiply(a, b)
        with torch.no_grad():
            b.add_(1).add_(1)
        with pytest.raises(RuntimeError) as caught:
            grad(out.sum(), a, create_graph=True)
        return str(caught.value)

    assert text(product) == text(torch.mul)


def test_gradients_turned_off_after_the_forward_still_flow():
    def run(multiply):
        a, b = leaf(3), leaf(3)
        out = multiply(a, b)
        b.requires_grad_(False)
        return grad(out.sum(), a, create_graph=True)[0]

    assert torch.equal(run(product), run(torch.mul))


# ---- as autograd's other nodes -------------------------------------------------------------------------------------


def test_the_node_from_python():
    a, b = leaf(3), leaf(3, seed=1)
    out = product(a, b)
    node = out.grad_fn
    assert type(node).__name__ == "KilnBackward" and node is out.grad_fn and node.name() == "KilnBackward"
    assert [n.name() for n, _ in node.next_functions] == ["torch::autograd::AccumulateGrad"] * 2
    assert node.next_functions[0][0].variable is a
    assert [t is s for t, s in zip(node.saved_tensors, (a, b), strict=True)] == [True, True]
    later = a * b
    assert later.grad_fn._sequence_nr() == node._sequence_nr() + 1
    assert node.metadata == {} and node.requires_grad and len(node._input_metadata) == 1
    with torch.no_grad():
        for call in (node, node.apply):
            assert all(map(torch.equal, call(torch.ones(3, dtype=torch.float64)), (b, a)))
    assert "grad_fn=<KilnBackward>" in repr(out)


def test_hooks_on_outputs_and_nodes():
    def run(multiply):
        log = []
        a, b = leaf(3), leaf(3, seed=1)
        out = multiply(a, b)
        out.register_hook(lambda g: log.append("tensor") or g * 2)
        out.retain_grad()
        out.grad_fn.register_prehook(lambda gs: log.append("pre") or tuple(g * 3 for g in gs))
        out.grad_fn.register_hook(lambda gi, go: log.append("post") or (gi[0] * 5, gi[1]))
        out.sum().backward()
        return log, out.grad, a.grad, b.grad

    ours, eager = run(product), run(torch.mul)
    assert ours[0] == eager[0] and all(map(torch.equal, ours[1:], eager[1:]))


def test_anomaly_mode(recwarn):
    def poison(*_):
        return torch.full((3,), float("nan"), dtype=torch.float64), None

    with torch.autograd.detect_anomaly(check_nan=True):
        out = product(leaf(3), leaf(3), backward=poison)
        assert "product" in "".join(out.grad_fn.metadata["traceback_"])
        with pytest.raises(RuntimeError, match="'KilnBackward' returned nan values in its 0th output"):
            out.sum().backward()
    assert any("Error detected in KilnBackward" in str(w.message) for w in recwarn)


def test_the_profiler_shows_the_name():
    out = product(leaf(3), leaf(3))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        out.sum().backward()
    assert "KilnBackward" in {event.name for event in profile.events()}


def test_integers_have_no_history():
    with pytest.raises(RuntimeError, match="dtype"):
        node_over(leaf(1)).output(torch.zeros(3, dtype=torch.int64))


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("n", never, never, None, (), (), ()),
        (3, never, never, None, (), ()),
        ("n", never, never, None, [], ()),
        ("n", never, never, None, (), [1]),
        ("n", never, never, None, (), (1,)),
        ("n", never, never, None, (), ((1, 2),)),
    ],
)
def test_wrong_arguments(arguments):
    with pytest.raises(TypeError):
        _native.GradNode(*arguments)


# ---- threads and the end -------------------------------------------------------------------------------------------


def test_backward_on_other_threads():
    shared = leaf(50, 50)
    errors = []

    def work(seed):
        try:
            own = leaf(50, 50, seed=seed)
            for _ in range(50):
                out = product(shared, own)
                threading.Thread(target=out.sum().backward, kwargs={"inputs": [own]}).run()
            assert torch.allclose(own.grad, 50 * shared)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_one_graph_backward_on_many_threads():
    a, b = leaf(3), leaf(3, seed=1)
    out = product(a, b).sum()
    outcomes = []

    def work():
        try:
            outcomes.append(grad(out, a)[0].tolist() == b.tolist())
        except RuntimeError as error:
            outcomes.append("second time" in str(error))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [True] * 8


def test_nodes_that_outlive_the_interpreter():
    program = textwrap.dedent("""
        import torch, threading
        from kiln import _native
        a = torch.ones(3, requires_grad=True)
        kept = []
        def make():
            out = torch.zeros(3)
            node = _native.GradNode("n", print, print, [object()], (a, object()), (a,))
            node.output(out); node.save(a, out)
            kept.append(out)
            return out
        torch.kept = make()
        make().grad_fn.register_hook(lambda *_: None)
        thread = threading.Thread(target=make); thread.start(); thread.join()
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


# ---- the functions beside it ---------------------------------------------------------------------------------------


def test_bump_version():
    tensor = torch.zeros(3)
    _native.bump_version(tensor, 3)
    _native.bump_version(tensor.view(3), 1)
    assert tensor._version == 4
    with torch.inference_mode():
        tensor = torch.zeros(3)
    with pytest.raises(RuntimeError, match="inference"):
        _native.bump_version(tensor, 1)


@pytest.mark.parametrize("requires", [True, False])
def test_with_history_of(requires):
    origin = leaf(3).requires_grad_(requires)
    value = torch.full((3,), 4.0, dtype=torch.float64)
    moved = _native.with_history_of(value, origin)
    assert moved.requires_grad is requires and moved.data_ptr() == value.data_ptr()
    if requires:
        moved.exp().sum().backward()
        assert torch.equal(origin.grad, value.exp())


def test_shared_storages():
    a, b = torch.zeros(4), torch.zeros(4)
    assert _native.shared_storages(a, b, a[1:], None, b.view(2, 2), a.to_sparse()) == (0, 1, 0, 3, 1, 5)
    assert _native.shared_storages() == ()
