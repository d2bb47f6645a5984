"""A program of everyday torch that looks at torch's compiler while it runs; run on Kiln from a fresh process.

Each check is a function; the name of each that came through is printed.
"""

import copy
import io
import os
import sys

import torch
import torch.nn.functional as F


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))


def optimizers():
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop):
        for foreach in (False, True):
            net = model()
            optimizer = kind(net.parameters(), lr=0.1, foreach=foreach)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
            before = copy.deepcopy(net.state_dict())
            net(torch.ones(3, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            assert any(not torch.equal(before[name], value) for name, value in net.state_dict().items())


def checkpointing():
    from torch.utils.checkpoint import checkpoint, checkpoint_sequential

    for reentrant in (False, True):
        net = model()
        x = torch.ones(3, 4, requires_grad=True)
        checkpoint(net, x, use_reentrant=reentrant).sum().backward()
        expected = torch.ones(3, 4, requires_grad=True)
        net(expected).sum().backward()
        assert torch.equal(x.grad, expected.grad)
    checkpoint_sequential(model(), 2, torch.ones(3, 4, requires_grad=True), use_reentrant=False).sum().backward()


def module_compile():
    net, twin = model(), model()
    net.compile()
    x = torch.randn(3, 4)
    assert torch.equal(net(x), twin(x))
    from torch._dynamo.utils import counters

    assert counters["stats"]["unique_graphs"] >= 1


def functional_transforms():
    from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap

    x = torch.randn(3)
    assert torch.allclose(grad(lambda x: (x**3).sum())(x), 3 * x**2)
    assert torch.allclose(vmap(torch.sin)(x), x.sin())
    assert jacrev(torch.sin)(x).shape == hessian(lambda x: x.sin().sum())(x).shape == (3, 3)
    jvp(torch.sin, (x,), (x,))
    net = model()
    functional_call(net, dict(net.named_parameters()), torch.ones(1, 4))


def fake_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    with FakeTensorMode() as mode:
        assert (mode.from_tensor(torch.ones(2, 3)) @ torch.ones(3, 4)).shape == (2, 4)
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC, DimDynamic.STATIC])
    symbolic = FakeTensorMode(shape_env=ShapeEnv())
    size = symbolic.from_tensor(torch.ones(5, 3), symbolic_context=context).sum(1).shape[0]
    assert isinstance(size, torch.SymInt) and size > 2 and symbolic.shape_env.guards


def tracing():
    from torch.fx.experimental.proxy_tensor import make_fx

    for mode in ("real", "fake", "symbolic"):
        graph = make_fx(lambda x: x.sin() @ x.t() + 1, tracing_mode=mode)(torch.randn(3, 4))
        assert torch.allclose(graph(torch.ones(3, 4)), torch.ones(3, 4).sin() @ torch.ones(4, 3) + 1)
    assert torch.fx.symbolic_trace(model())(torch.ones(1, 4)).shape == (1, 2)
    decompositions = torch._decomp.get_decompositions([torch.ops.aten.native_layer_norm])
    make_fx(lambda x: F.layer_norm(x, (4,)), decomposition_table=decompositions)(torch.randn(3, 4))


def data_loading():
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(torch.arange(8.0))
    for workers in (0, 1):
        assert [batch[0].sum().item() for batch in DataLoader(data, 4, num_workers=workers)] == [6.0, 22.0]


def saving():
    file = io.BytesIO()
    torch.save(model().state_dict(), file)
    file.seek(0)
    model().load_state_dict(torch.load(file))


def custom_operators():
    @torch.library.custom_op("kiln_compat::double", mutates_args=())
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    double.register_fake(torch.empty_like)
    double.register_autograd(lambda ctx, grad: grad * 2)
    x = torch.ones(3, requires_grad=True)
    double(x).sum().backward()
    assert x.grad.tolist() == [2, 2, 2]


def attention():
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.bias import causal_lower_right

    q = torch.randn(1, 2, 4, 8)
    with sdpa_kernel(SDPBackend.MATH):
        F.scaled_dot_product_attention(q, q, q, is_causal=True)
    F.scaled_dot_product_attention(q, q, q, attn_mask=causal_lower_right(4, 4))


def control_flow():
    weight = torch.full((2,), 0.5, requires_grad=True)
    for flag, expected in ((True, weight.detach().cos()), (False, torch.full((2,), 3.0))):
        weight.grad = None
        torch.cond(
            torch.tensor(flag), lambda x: (x * weight).sin(), lambda x: x * weight * 3, (torch.ones(2),)
        ).sum().backward()
        assert torch.equal(weight.grad, expected)
    mask = torch.nn.attention.flex_attention.create_block_mask(lambda b, h, q, k: q >= k, 1, 1, 128, 128, "cpu")
    try:
        torch.nn.attention.flex_attention.flex_attention(*[torch.randn(1, 1, 128, 16)] * 3, block_mask=mask)
    except NotImplementedError as error:
        assert "flex_attention" in str(error)  # it takes more than running the functions it is given


def modes_and_profiling():
    from torch.profiler import profile

    with profile() as found, torch.autocast("cpu"), torch.autograd.set_detect_anomaly(True):
        model()(torch.ones(1, 4)).float().sum().backward()
    assert found.key_averages()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        model()(torch.ones(1, 4)).sum().backward()


def parametrizations():
    from torch.nn.utils import clip_grad_norm_, parametrizations, prune

    layer = parametrizations.weight_norm(torch.nn.Linear(3, 3))
    layer(torch.ones(1, 3)).sum().backward()
    clip_grad_norm_(layer.parameters(), 1.0)
    prune.l1_unstructured(torch.nn.Linear(3, 3), "weight", 0.5)


def compiler_names():
    calls = torch.compiler.disable(lambda x: x + 1)
    assert torch.compiler.compile(lambda x: calls(x) * 2, backend="eager")(torch.ones(1)).item() == 4
    assert not torch.compiler.is_compiling() and "eager" in torch.compiler.list_backends()
    with torch.compiler.set_stance("force_eager"):
        torch.compile(lambda x: x + 1)(torch.ones(1))
    torch.compiler.reset()
    torch.compiler.allow_in_graph(len)
    torch.compiler.cudagraph_mark_step_begin()


def dynamic_sizes():
    compiled = torch.compile(lambda x: x.reshape(-1, 2).sum(0) * x.shape[0])
    for size in (4, 6, 8, 10):
        assert torch.equal(compiled(torch.ones(size)), torch.full((2,), size / 2 * size))


CHECKS = [optimizers, checkpointing, module_compile, functional_transforms, fake_tensors, tracing, data_loading, saving]
CHECKS += [
    custom_operators,
    attention,
    control_flow,
    modes_and_profiling,
    parametrizations,
    compiler_names,
    dynamic_sizes,
]

if __name__ == "__main__":
    for check in CHECKS:
        try:
            check()
        except Exception:
            import traceback

            traceback.print_exc()
        else:
            print("passed", check.__name__)
    print(__name__, sys.argv[1:], sys.path[0] == os.path.dirname(os.path.realpath(__file__)))
    assert sys.modules["__main__"].CHECKS is CHECKS
    sys.exit(3)
