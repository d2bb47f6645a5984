"""The shape cache (`kiln.program.shapes.shape_cache`): cached results equal torch's, and nothing else is cached."""

from __future__ import annotations

import threading

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from kiln.program.shapes import fake_tensors, shape_cache, stored_shapes

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    """Each test begins with nothing remembered."""
    monkeypatch.setattr(shape_cache, "_answers", {})


@pytest.fixture
def mode():
    with FakeTensorMode() as made:
        yield made


def remembered() -> int:
    return sum(answer is not None for answer in shape_cache._answers.values())


def parts(result):
    return list(result) if isinstance(result, (tuple, list)) else [result]


def tensors(kind=torch.float32):
    return {
        "matrix": torch.empty(3, 4, dtype=kind),
        "transposed": torch.empty(4, 3, dtype=kind).t(),
        "part": torch.empty(6, 8, dtype=kind)[1::2, ::2],
        "expanded": torch.empty(1, 4, dtype=kind).expand(3, 4),
        "empty": torch.empty(0, 4, dtype=kind),
    }


CALLS = {
    "pointwise": lambda x: (aten.mul.Tensor, (x, 2), {}),
    "promoted": lambda x: (aten.mul.Tensor, (x, 2.5), {}),
    "view": lambda x: (aten.transpose.int, (x, 0, 1), {}),
    "slice": lambda x: (aten.slice.Tensor, (x, 1, 1, 3), {}),
    "several views": lambda x: (aten.split.Tensor, (x, 2, 1), {}),
    "several": lambda x: (aten.max.dim, (x, 1), {}),
    "list": lambda x: (aten.cat.default, ([x, x],), {}),
    "keywords": lambda x: (aten._to_copy.default, (x,), {"dtype": torch.float64}),
    "made": lambda x: (aten.full.default, ([2, 3], 1), {"pin_memory": False}),
    "random": lambda x: (aten.bernoulli.p, (x, 0.5), {}),
}


@pytest.mark.parametrize("layout", tensors())
@pytest.mark.parametrize("call", CALLS)
def test_second_time_as_torch_has_it(mode, call, layout):
    x = tensors()[layout]
    function, args, keywords = CALLS[call](x)
    first = shape_cache.run(function, args, keywords)
    again = shape_cache.run(function, args, keywords)
    assert type(again) is type(first)
    for one, other in zip(parts(first), parts(again), strict=True):
        assert shape_cache.visible_properties(one) == shape_cache.visible_properties(other)
        assert other is not one and other.fake_mode is mode
        shares = [tensor.untyped_storage()._cdata == x.untyped_storage()._cdata for tensor in (one, other)]
        assert shares[0] == shares[1] == ("view" in call or call == "slice")
    assert remembered() == 1


def fake_on_gpu(mode, *shape, dtype=torch.bfloat16):
    return FakeTensor(mode, torch.empty(*shape, dtype=dtype, device="meta"), torch.device("cuda", 0))


ATTENTION = {
    "flash": lambda q, k, v: (aten._scaled_dot_product_flash_attention.default, (q, k, v, 0.0, True)),
    "cudnn": lambda q, k, v: (aten._scaled_dot_product_cudnn_attention.default, (q, k, v, None, True)),
}


@pytest.mark.parametrize("kind", ATTENTION)
def test_answers_with_numbers(mode, kind):
    """Attention on GPUs gives the lengths of sequences beside tensors."""
    function, args = ATTENTION[kind](*(fake_on_gpu(mode, 2, 4, 16, 64) for _ in range(3)))
    first = shape_cache.run(function, args, {})
    (question,) = shape_cache._answers
    stored = stored_shapes.dump(shape_cache._answers)
    shape_cache._answers.clear()
    assert list(stored_shapes.load({"answers": stored})) == [question]
    again = shape_cache.run(function, args, {})
    assert [type(part) for part in again] == [type(part) for part in first]
    assert [part for part in again if type(part) is int] == [16, 16]
    for one, other in zip(first, again, strict=True):
        if isinstance(one, torch.Tensor):
            assert shape_cache.visible_properties(one) == shape_cache.visible_properties(other)


def test_questions_of_other_threads_are_stored(tmp_path, monkeypatch):
    """The backward of tensors on a GPU is traced in a thread of autograd's."""
    monkeypatch.setenv("KILN_CACHE_DIR", str(tmp_path))
    code = test_questions_of_other_threads_are_stored.__code__

    def ask(mode):
        with mode:
            shape_cache.run(aten.sin.default, (torch.empty(3),), {})

    with fake_tensors.stored_shapes_in_use(code):
        thread = threading.Thread(target=ask, args=(fake_tensors.make_mode(),))
        thread.start()
        thread.join()
    asked = [question[0] for question in shape_cache._answers]
    assert aten.sin.default in asked
    shape_cache._answers.clear()
    known = stored_shapes.StoredShapes(code).known
    assert [question[0] for question in known] == asked


def test_answers_of_other_modes_serve():
    for _ in range(2):
        with FakeTensorMode() as mode:
            result = shape_cache.run(aten.sin.default, (torch.empty(3),), {})
            assert result.fake_mode is mode
    assert remembered() == 1


def test_arguments_that_are_equal_but_differ_in_type(mode):
    x = torch.empty(3, dtype=torch.int64)
    seen = [shape_cache.run(aten.mul.Tensor, (x, factor), {}).dtype for factor in (1, 1.0, True, 1)]
    assert seen == [torch.int64, torch.float32, torch.int64, torch.int64]


def test_default_type_is_part_of_the_question(mode):
    x = torch.empty(3, dtype=torch.int64)
    before = torch.get_default_dtype()
    try:
        for dtype in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            assert shape_cache.run(aten.sin.default, (x,), {}).dtype is dtype
    finally:
        torch.set_default_dtype(before)


def test_layouts_are_part_of_the_question(mode):
    """The same sizes with other strides give results with other strides."""
    plain, last = torch.empty(2, 3, 4, 5), torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last)
    strides = [shape_cache.run(aten.relu.default, (x,), {}).stride() for x in (plain, last, plain, last)]
    assert strides[0] == strides[2] != strides[1] == strides[3]


def test_one_tensor_given_twice(mode):
    """As an LSTM's backward does with the gradient of its two biases."""
    x, y = torch.empty(3), torch.empty(2)
    answer = shape_cache.answer_of((y, x.sin(), y), mode, [x])
    first, second, third = answer.value(mode, [x])
    assert first is third is not second and first.shape == (2,) and second.shape == (3,)


def test_conjugates(mode):
    x = torch.empty(3, dtype=torch.complex64)
    assert [shape_cache.run(aten._conj.default, (x,), {}).is_conj() for _ in range(2)] == [True, True]


@pytest.mark.parametrize(
    "function, args",
    [
        (aten.add_.Tensor, lambda x: (x, 1)),
        (aten.t_.default, lambda x: (x,)),
        (aten.lift_fresh.default, lambda x: (x,)),
    ],
)
def test_what_changes_or_lifts_is_left_to_torch(mode, function, args):
    x = torch.empty(3, 4)
    shape_cache.run(function, args(x), {})
    shape_cache.run(function, args(x), {})
    assert not shape_cache._answers


def test_symbolic_sizes_are_left_to_torch():
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(shape_env=ShapeEnv(), static_shapes=False)
    x = mode.from_tensor(torch.empty(5, 7))
    with mode:
        for _ in range(2):
            assert isinstance(shape_cache.run(aten.sin.default, (x,), {}).shape[0], torch.SymInt)
    assert not remembered()


def test_tensors_with_known_values_are_left_to_torch(mode):
    """Fakes of constants carry their value on, which shapes say nothing about."""
    known = torch.tensor(2)
    assert known.constant is not None
    result = shape_cache.run(aten.add.Tensor, (known, 1), {})
    assert result.shape == () and not remembered()


def test_without_a_mode_it_is_a_plain_call():
    assert shape_cache.run(aten.add.Tensor, (torch.ones(2), 1), {}).tolist() == [2.0, 2.0]
    assert not shape_cache._answers


def test_old_answers_go(mode, monkeypatch):
    monkeypatch.setattr(shape_cache, "MAX_ANSWERS", 4)
    for size in range(1, 20):
        shape_cache.run(aten.sin.default, (torch.empty(size),), {})
        assert len(shape_cache._answers) <= 4


# ---- modes that have answers by heart --------------------------------------------------------------------------------

PROGRAMS = {
    "linear": lambda x, w: torch.nn.functional.linear(x, w).relu(),
    "views": lambda x, w: x.t().reshape(-1)[1:].view(-1, 1).expand(-1, 2),
    "several": lambda x, w: torch.max(x @ w.t(), 1),
    "names": lambda x, w: torch.linalg.slogdet(w @ w.t()),
    "norm": lambda x, w: torch.nn.functional.layer_norm(x, (4,), w[0], w[1]),
    "loss": lambda x, w: torch.nn.functional.cross_entropy(x, torch.zeros(3, dtype=torch.int64)),
    "changed": lambda x, w: x.clone().add_(1).mul_(w[0]),
    "changed by itself": lambda x, w: (lambda y: y.add_(y))(x.clone()),
    "changed part": lambda x, w: (lambda y: (y, y[1:].add_(1), y[0].mul_(2)))(x.clone()),
    "changed list": lambda x, w: (lambda ys: (torch._foreach_add_(ys, 1), *ys))([x.clone(), w.clone()])[1:],
    "given memory": lambda x, w: torch.mul(x.detach(), 2, out=torch.empty(0)),
    "split": lambda x, w: x.split(2, 1),
    "indices": lambda x, w: x[torch.tensor([0, 2])],
}


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("program", PROGRAMS)
def test_modes_answer_as_torch_does(program, grad):
    """The first time and by heart: the same forms, memory and place in autograd's graph as in torch's own mode."""
    from kiln.platform.torch_fake import without_torch_compiler
    from kiln.program.shapes.fake_tensors import make_mode

    def run(mode):
        with without_torch_compiler():
            given = [mode.from_tensor(torch.empty(3, 4).requires_grad_(grad)) for _ in range(2)]
            with mode:
                results = parts(PROGRAMS[program](*given))
        memory = [part.untyped_storage()._cdata for part in (*given, *results)]
        sharing = [memory.index(one) for one in memory]
        edges = [type(part.grad_fn).__name__ for part in results]
        return (
            [shape_cache.visible_properties(part) for part in results],
            sharing,
            edges,
            [part._is_view() for part in results],
        )

    expected = run(FakeTensorMode())
    assert run(make_mode()) == expected
    assert shape_cache._answers
    assert run(make_mode()) == expected


def test_changes_are_counted_once():
    """Torch counts a change above the modes; what is known by heart counts none."""
    from kiln.program.shapes.fake_tensors import make_mode

    mode = make_mode()
    with mode:
        x, other = torch.empty(3), torch.empty(3)
        versions = [x.add_(other)._version for _ in range(3)] + [other._version]
        twice = [x.add_(x)._version for _ in range(2)]
    assert versions == [1, 2, 3, 0] and twice == [4, 5]
    assert any(
        question[0] is aten.add_.Tensor and answer is not None for question, answer in shape_cache._answers.items()
    )


def test_modes_give_lists_where_operators_do():
    from kiln.program.shapes.fake_tensors import make_mode

    mode = make_mode()
    with mode:
        x = torch.empty(4, 2)
        for _ in range(2):
            assert (
                type(aten.split.Tensor(x, 2)) is list and type(shape_cache.run(aten.split.Tensor, (x, 2), {})) is list
            )
            assert type(shape_cache.run(aten.max.dim, (x, 0), {})) is tuple


def test_modes_leave_inference_to_torch():
    from kiln.program.shapes.fake_tensors import make_mode

    mode = make_mode()
    with torch.inference_mode(), mode:
        made = torch.empty(3).sin()
    assert made.is_inference() and not remembered()
    with mode:
        assert not made.cos().is_inference()


@pytest.mark.parametrize("kind", ["plain sizes", "symbols", "inference mode"])
def test_what_torch_keeps_as_well(kind):
    """Of plain sizes its own cache would keep the same, at the cost of keys and entries of its own."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    from kiln.platform.torch_fake import without_torch_compiler

    mode = fake_tensors.make_mode(shape_env=ShapeEnv() if kind == "symbols" else None)
    before = FakeTensorMode.cache_hits + FakeTensorMode.cache_misses
    with without_torch_compiler(), torch.inference_mode(kind == "inference mode"), mode:
        x = torch.empty(3, 4)
        for _ in range(2):
            assert (x.exp() + 1).shape == (3, 4)
    assert (FakeTensorMode.cache_hits + FakeTensorMode.cache_misses > before) == (kind != "plain sizes")


def test_torchs_cache_comes_with_the_first_symbol():
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = fake_tensors.make_mode()
    assert not mode.cache_enabled
    mode.shape_env = ShapeEnv()
    assert mode.cache_enabled
    mode.cache_enabled = False
    assert not mode.cache_enabled
