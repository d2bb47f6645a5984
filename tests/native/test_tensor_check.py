"""kiln._native.TensorCheck: what it tells apart, what it says about it, and what it survives."""

import gc
import sys
import weakref

import pytest
import torch

from kiln import _native


def check_of(tensor, dynamic=None, strides=True):
    return _native.TensorCheck([(tensor, dynamic, strides)])


def with_inference(make):
    with torch.inference_mode():
        return make()


class Subclass(torch.Tensor):
    pass


DIFFERENT = [
    (torch.zeros(4, 3), torch.zeros(5, 3), "x size 0: 4 expected, 5 seen"),
    (torch.zeros(4, 3), torch.zeros(4, 2), "x size 1: 3 expected, 2 seen"),
    (torch.zeros(4), torch.zeros(4, 1), "x rank: 1 expected, 2 seen"),
    (torch.zeros(4), torch.zeros(4, dtype=torch.float64), "x dtype: float32 expected, float64 seen"),
    (torch.zeros(4), torch.zeros(4, device="meta"), "x device: cpu expected, meta seen"),
    (torch.zeros(4), torch.zeros(4, requires_grad=True), "x requires_grad: False expected, True seen"),
    (torch.zeros(2, 3), torch.zeros(3, 2).t(), "x stride 0: 3 expected, 1 seen"),
    (torch.zeros(4), torch.nn.Parameter(torch.zeros(4), False), "x type: Tensor expected, Parameter seen"),
    (torch.zeros(4), torch.zeros(4).as_subclass(Subclass), "x type: Tensor expected, Subclass seen"),
    (torch.zeros(4, 4), torch.zeros(4, 4).to_sparse(), "x layout: strided expected, sparse seen"),
    (torch.zeros(4), with_inference(lambda: torch.zeros(4)), "x is_inference: False expected, True seen"),
    (
        torch.zeros(4, dtype=torch.cfloat),
        torch.zeros(4, dtype=torch.cfloat).conj(),
        "x is_conj: False expected, True seen",
    ),
    (torch.zeros(4), torch._neg_view(torch.zeros(4)), "x is_neg: False expected, True seen"),
    (torch.zeros(4), 3, "x type: Tensor expected, int seen"),
    (torch.zeros(4), None, "x type: Tensor expected, NoneType seen"),
    (torch.zeros(4), torch.Tensor, "x type: Tensor expected, torch._C._TensorMeta seen"),
]


@pytest.mark.parametrize("expected, seen, words", DIFFERENT, ids=[words for _, _, words in DIFFERENT])
def test_differences_are_seen_and_said(expected, seen, words):
    check = check_of(expected)
    assert check(expected) is True
    assert check.reason(["x"], expected) is None
    assert check(seen) is False
    assert check.reason(["x"], seen) == words
    if isinstance(seen, torch.Tensor):
        back = check_of(seen)
        assert back(seen) is True and back(expected) is False
        assert back.reason(["x"], expected) is not None


def test_data_does_not_matter():
    check = check_of(torch.zeros(4, 3))
    assert check(torch.ones(4, 3)) and check(torch.ones(8, 3)[4:]) and check(torch.rand(4, 3) * 2)
    assert check_of(torch.zeros(4, requires_grad=True))(torch.zeros(4, requires_grad=True) * 1)


def test_several_tensors_in_order():
    first, second = torch.zeros(2), torch.zeros(3)
    check = _native.TensorCheck([(first, None, True), (second, (True,), True)])
    assert len(check) == 2
    assert check(first, second) and check(first, torch.zeros(9))
    assert not check(second, first)
    assert check.reason(("L['a']", "L['b']"), first, torch.zeros(9, 9)) == "L['b'] rank: 1 expected, 2 seen"
    empty = _native.TensorCheck([])
    assert empty() is True and empty.reason([]) is None and empty.mismatches() == []


def test_dynamic_sizes_may_vary_the_others_not():
    check = check_of(torch.zeros(4, 3), (True, False))
    assert check(torch.zeros(9, 3)) and check(torch.zeros(0, 3)) and check(torch.zeros(1, 3))
    assert not check(torch.zeros(4, 4))


@pytest.mark.parametrize(
    "make",
    [
        lambda n: torch.zeros(2, n, 3),
        lambda n: torch.zeros(n, 2, 3).transpose(0, 1),
        lambda n: torch.zeros(2, 3, n).transpose(1, 2),
        lambda n: torch.zeros(2, n, 8)[:, :, :3],
        lambda n: torch.zeros(2, 1, 3).expand(2, n, 3),
        lambda n: torch.zeros(2, 3, n, 5).to(memory_format=torch.channels_last)[:, :, :, 0].transpose(1, 2),
    ],
)
def test_strides_follow_dynamic_sizes(make):
    check = check_of(make(5), (False, True, False))
    for size in (2, 3, 7, 50):
        assert check(make(size)), check.reason(["x"], make(size))
    assert not check(torch.zeros(3, 7, 2).transpose(0, 2))
    assert not check(torch.zeros(2, 14, 6)[:, ::2, ::2])


def test_dynamic_size_does_not_hide_another_layout():
    check = check_of(torch.zeros(4, 3), (True, True))
    assert check(torch.zeros(6, 5))
    assert not check(torch.zeros(5, 6).t())
    assert check.reason(["x"], torch.zeros(5, 6).t()) == "x stride 0: 30 expected, 1 seen"
    assert not check(torch.zeros(6, 10)[:, :5])


def test_strides_may_be_left_out():
    check = check_of(torch.zeros(2, 3), None, False)
    assert check(torch.zeros(3, 2).t()) and not check(torch.zeros(3, 2))


def test_mismatches_name_sizes_that_alone_differ():
    tensors = [torch.zeros(4, 3), torch.zeros(5), torch.zeros(6), torch.zeros(7), torch.zeros(8)]
    check = _native.TensorCheck([(each, None, True) for each in tensors[:4]] + [(tensors[4], (True,), True)])
    assert check.mismatches(*tensors) == []
    other = [torch.zeros(9, 2), torch.zeros(1), torch.zeros(2, 2), torch.zeros(3, dtype=torch.int8), torch.zeros(2)]
    assert check.mismatches(*other) == [(0, 0), (0, 1), (1, 0)]
    assert check.mismatches(None, 1, "x", torch, []) == []


def test_tensors_without_strides():
    for make in (
        lambda n: torch.eye(n).to_sparse(),
        lambda n: torch.eye(n).to_sparse_csr(),
        lambda n: torch.ones(n, n).to_mkldnn(),
    ):
        check = check_of(make(3))
        assert check(make(3)) and not check(make(4)) and not check(torch.eye(3))
        assert check.reason(["x"], make(4)) == "x size 0: 3 expected, 4 seen"
        assert check.mismatches(make(4)) == [(0, 0), (0, 1)]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_never_match():
    nested = torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])
    check = check_of(nested)
    assert not check(nested) and not check(torch.zeros(2))
    assert "cannot be read" in check.reason(["x"], nested)
    assert check.mismatches(nested) == []
    assert not check_of(torch.zeros(2, 2))(nested)


def test_fake_and_symbolic_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    fake = FakeTensorMode(shape_env=ShapeEnv()).from_tensor(torch.zeros(4, 3))
    check = check_of(fake)
    assert check(fake) or check.reason(["x"], fake)
    assert not check(torch.zeros(4, 3)) and not check_of(torch.zeros(4, 3))(fake)


class Wrapper(torch.Tensor):
    """A subclass that answers questions about its shape in Python, and may refuse."""

    refuse: type[BaseException] | None = None

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dispatch_sizes_strides_policy="sizes")

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if cls.refuse:
            raise cls.refuse("refused")
        return function(*[each.inner if isinstance(each, cls) else each for each in args], **(kwargs or {}))


def test_subclass_that_answers_in_python():
    wrapped = Wrapper(torch.zeros(4, 3))
    check = check_of(wrapped)
    assert check(wrapped) and check(Wrapper(torch.ones(4, 3))) and not check(Wrapper(torch.zeros(5, 3)))
    Wrapper.refuse = ValueError
    try:
        assert check(wrapped) is False
        assert "cannot be read" in check.reason(["x"], wrapped)
        assert check.mismatches(wrapped) == []
        assert not check_of(wrapped)(wrapped)
        Wrapper.refuse = KeyboardInterrupt
        for use in (check, check.mismatches, lambda x: check.reason(["x"], x), check_of):
            with pytest.raises(KeyboardInterrupt):
                use(wrapped)
    finally:
        Wrapper.refuse = None
    assert check(wrapped)


def test_wrong_use_raises_type_error():
    tensor = torch.zeros(2, 2)
    for descriptions in [
        1,
        [1],
        [()],
        [(tensor, None)],
        [(tensor, 1, True)],
        [(tensor, (True,), True)],
        [(1, None, True)],
        [(torch.Tensor, None, True)],
        [[tensor, None, True]],
    ]:
        with pytest.raises(TypeError):
            _native.TensorCheck(descriptions)
    with pytest.raises(TypeError):
        _native.TensorCheck()
    check = check_of(tensor)
    wrong = [
        lambda: check(),
        lambda: check(tensor, tensor),
        lambda: check(x=tensor),
        lambda: check.reason(),
        lambda: check.reason(["x"]),
        lambda: check.reason([], tensor),
        lambda: check.reason(1, tensor),
        lambda: check.reason([1], tensor),
        lambda: check.mismatches(),
    ]
    for use in wrong:
        with pytest.raises(TypeError):
            use()


def test_holds_no_tensor_and_leaks_nothing():
    tensor = torch.zeros(4)
    reference = weakref.ref(tensor)
    check = check_of(tensor)
    other, wrong = torch.zeros(4), torch.zeros(5)
    del tensor
    assert reference() is None

    def loop():
        for _ in range(300):
            check(other), check(wrong), check(None)
            check.reason(["x"], wrong), check.mismatches(wrong)
            check_of(other, (True,))
            with pytest.raises(TypeError):
                check_of(other, (True, True))

    loop()
    gc.collect()
    objects = [other, wrong, check, torch.Tensor, None, True, False]
    before, blocks = [sys.getrefcount(each) for each in objects], sys.getallocatedblocks()
    loop()
    gc.collect()
    after = [sys.getrefcount(each) for each in objects]
    assert all(now - then < 50 for now, then in zip(after, before, strict=True))
    assert after[:3] == before[:3]
    assert sys.getallocatedblocks() - blocks < 300


def test_class_of_a_checked_tensor_can_be_collected():
    def build():
        class Local(torch.Tensor):
            pass

        Local.check = check_of(torch.zeros(2).as_subclass(Local))
        return weakref.ref(Local)

    reference = build()
    gc.collect()
    assert reference() is None
