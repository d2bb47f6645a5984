"""Topics: views and in-place changes, indexing, dtypes, layouts, broadcasting: nodes of many kinds, each exact."""

import torch
import torch.nn.functional as F
from torch.autograd import grad

from tests.engine.topics import error_of, leaf, topics

topic, test_topic = topics()


def _matrix(rows=3, columns=4, **options):
    return torch.arange(1.0, rows * columns + 1).reshape(rows, columns).to(**options).requires_grad_()


# -- setting items ----------------------------------------------------------------------------------------------------


@topic
def setitem():
    log = []
    for index in (0, (0, 1), slice(1, 3), (slice(None), 2), torch.tensor([0, 2]), ([0, 1], [1, 2]), None, ...):
        x, value = _matrix(), leaf(5.0)
        y = x * 1
        y[index] = value
        (y * y).sum().backward()
        log.append((x.grad, value.grad))
    return log


@topic
def setitem_of_a_tensor():
    x, value = _matrix(), leaf(1.0, 2.0, 3.0, 4.0)
    y = x.clone()
    y[1] = value
    y[:, 0] = x[0, :3] * 2
    y.backward(torch.arange(12.0).reshape(3, 4))
    return x.grad, value.grad


@topic
def setitem_mask():
    x, value = _matrix(), leaf(9.0)
    y = x.clone()
    mask = x.detach() > 5
    y[mask] = value
    y[mask[:, 0]] = 0
    (y * y).sum().backward()
    z = x.clone()
    z[torch.zeros(3, 4, dtype=torch.bool)] = 2.0
    z.sum().backward()
    return x.grad, value.grad


@topic
def getitem():
    log = []
    indices = (0, (1, 2), slice(0, 2), (..., -1), torch.tensor([2, 0, 2]), (torch.tensor([0, 1]), torch.tensor([1, 1])))
    for index in indices:
        x = _matrix()
        x[index].pow(2).sum().backward()
        log.append(x.grad)
    x = _matrix()
    x[x.detach() > 4].pow(2).sum().backward()
    return log, x.grad


@topic
def index_put_and_friends():
    x, value = _matrix(), leaf(1.0, 2.0)
    index = (torch.tensor([0, 0]), torch.tensor([1, 1]))
    a = x.index_put(index, value, accumulate=True)
    b = x.index_put(index, value)
    c = x.index_add(0, torch.tensor([0, 2]), torch.ones(2, 4))
    d = x.index_fill(0, torch.tensor([1]), 3.0).scatter(1, torch.tensor([[0], [1], [2]]), 7.0)
    e = x.masked_fill(x.detach() > 6, 0).gather(1, torch.tensor([[0, 0], [1, 1], [3, 3]]))
    (a * b).sum().backward()
    (c * d).sum().backward()
    e.sum().backward()
    return x.grad, value.grad


@topic
def data_dependent_sizes():
    log = []
    for high in (3, 7, 20):
        x = _matrix()
        y = x[x.detach() > high]
        z = torch.masked_select(x, x.detach() < high)
        (y.sum() * 2 + z.pow(2).sum()).backward()
        log.append(x.grad)
    return log


# -- views and in-place -----------------------------------------------------------------------------------------------


@topic
def views():
    x = _matrix()
    y = x.t().reshape(2, 6).unsqueeze(0).expand(3, 2, 6).permute(2, 0, 1)[1:4].flip(0).movedim(0, 1)
    z = x.unfold(1, 2, 1).diagonal().squeeze() + x.as_strided((2, 3), (1, 2)).sum()
    (y * y).sum().backward()
    z.sum().backward()
    return x.grad


@topic
def several_views_of_one():
    x = _matrix()
    parts = [*x.split(2, 1), *x.chunk(3), *x.unbind(1), *x.tensor_split(2)]
    sum(part.pow(2).sum() * number for number, part in enumerate(parts) if number % 3).backward()
    return x.grad


@topic
def in_place_chains():
    x = _matrix()
    y = x.clone()
    y.mul_(2).add_(1)
    y[0].mul_(3)
    y[:, 1].zero_()
    y.t()[2].copy_(x[:, 0])
    y.diagonal().add_(x.diagonal())
    y.relu_()
    (y * x.detach()).sum().backward()
    return x.grad


@topic
def in_place_on_a_view_of_a_leaf():
    x = _matrix()
    return [
        error_of(lambda: x[0].mul_(2)),
        error_of(lambda: x.add_(1)),
        error_of(lambda: x.detach().requires_grad_().view(-1).mul_(2)),
    ]


@topic
def in_place_on_views_backward():
    x = leaf(1.0, 2.0, 3.0)
    y = x * 1
    view = y[1:]
    view.mul_(x[:2])
    (first,) = grad(y.sum(), x, create_graph=True)
    return first, grad(first.sum(), x)


@topic
def in_place_on_several_outputs():
    x = _matrix()
    parts = (x * 1).unbind(0)
    chunks = (x * 1).split(2)
    return error_of(lambda: parts[0].mul_(2)), error_of(lambda: chunks[0].add_(1)), x.grad


@topic
def a_view_changed_through_its_base():
    x = _matrix()
    base = x * 1
    view = base.view(-1)
    base.mul_(2)
    (view * view).sum().backward()
    return x.grad, view.grad_fn.name()


@topic
def views_of_another_dtype():
    x = torch.tensor([1 + 2j, 3 - 1j], requires_grad=True)
    y = (x * 1).clone()
    real = torch.view_as_real(y)
    real.mul_(2)
    y.real.add_(1)
    (y * y.conj()).real.sum().backward()
    return x.grad


@topic
def saved_tensors_changed_in_place():
    log = []
    for change in (lambda y: y.add_(1), lambda y: y[0].zero_(), lambda y: y.detach().mul_(2), lambda y: y.data.mul_(2)):
        x = _matrix()
        y = x * 1
        z = y.exp() * y
        change(y)
        log.append((error_of(z.sum().backward), x.grad))
    return log


@topic
def saved_result_changed_in_place():
    x = leaf(1.0, 2.0)
    y = x.exp()
    y += 1
    z = x.sigmoid()
    w = z * 2
    z.zero_()
    return error_of(y.sum().backward), error_of(w.sum().backward), x.grad


@topic
def detach_and_no_grad():
    x = leaf(1.0, 2.0)
    y = x.detach() * x
    with torch.no_grad():
        z = y * 2
    (y + z).sum().backward()
    v = x * 2
    v.detach_()
    return x.grad, z.requires_grad, v.requires_grad, error_of(v.sum().backward)


@topic
def version_counters():
    x = leaf(1.0, 2.0)
    y = x * 2
    before = y._version
    y.add_(1)
    y.sum().backward()
    x.grad.add_(1)
    return before, y._version, x.grad._version, x._version


# -- dtypes and devices -----------------------------------------------------------------------------------------------


@topic
def dtypes():
    log = []
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.complex128):
        x = _matrix(dtype=dtype)
        y = ((x * x).sum() * 2).abs()
        y.backward()
        log.append(x.grad)
    return log


@topic
def conversions():
    x = leaf(1.0, 2.0)
    y = x.double() * x.half().float() + x.to(torch.bfloat16)
    z = (x.to(torch.complex64) * (1 + 1j)).real + x.type(torch.float64)
    (y.sum() + z.sum()).backward()
    return x.grad, y.dtype


@topic
def mixed_dtypes_into_one():
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0, dtype=torch.float64)
    torch.where(x > 1, x, y).sum().backward()
    (x * y).sum().backward()
    (x.sum() * y).sum().backward()
    return x.grad, y.grad


@topic
def complex_numbers():
    z = torch.tensor([1 + 2j, 3 - 1j], requires_grad=True)
    x = leaf(1.0, 2.0)
    w = z * x + z.conj() * 1j + torch.polar(x, x) + torch.complex(x, x * 2)
    (w.abs() + w.angle() + w.real * w.imag).sum().backward()
    return z.grad, x.grad


@topic
def scalars():
    x, y = torch.tensor(2.0, requires_grad=True), torch.tensor(3.0, requires_grad=True)
    vector = leaf(1.0, 2.0)
    (x * y + 2 * x - y / 3 + x**y + 2**x).backward()
    (vector * x + vector.sum() * y).sum().backward()
    return x.grad, y.grad, vector.grad


@topic
def numbers_that_change():
    x = leaf(1.0, 2.0)
    log = []
    for number in (2, 3, 2.5, 3.5, -1):
        ((x * number) ** 2 + F.leaky_relu(x - number, 0.1 * number)).sum().backward()
        log.append(x.grad.clone())
    return log


@topic
def dimensions_that_change():
    x = torch.arange(24.0).reshape(2, 3, 4).requires_grad_()
    for dim in (0, 1, 2, -1):
        (x.sum(dim).pow(2).sum() + x.softmax(dim).select(dim, 1).sum() + x.cumsum(dim).sum()).backward()
    return x.grad


# -- sizes ------------------------------------------------------------------------------------------------------------


@topic
def broadcasting():
    x, row, column, scalar = _matrix(), leaf(1.0, 2.0, 3.0, 4.0), torch.ones(3, 1, requires_grad=True), leaf(2.0)
    ((x + row) * column / scalar - row * column).pow(2).sum().backward()
    return x.grad, row.grad, column.grad, scalar.grad


@topic
def expanding():
    x = leaf(1.0, 2.0)
    y = x.expand(3, 2) + x[:, None].expand(2, 2).sum(0) + x.repeat(3, 1) + x.repeat_interleave(3).reshape(3, 2)
    y.backward(torch.arange(6.0).reshape(3, 2))
    return x.grad


@topic
def empty_and_single():
    log = []
    for size in ((0,), (1,), (0, 3), (1, 1), (2, 0)):
        x = torch.ones(size, requires_grad=True)
        (x * 2 + x.sum()).sum().backward()
        log.append(x.grad)
    return log


@topic
def sizes_that_grow():
    weight = torch.ones(3, requires_grad=True)
    log = []
    for rows in (2, 3, 4, 7, 1, 0):
        x = torch.arange(3.0 * rows).reshape(rows, 3).requires_grad_()
        (x * weight).exp().sum(0).log1p().sum().backward()
        log.append((x.grad, weight.grad.clone()))
    return log


@topic
def sizes_that_match_by_chance():
    log = []
    for rows, columns in ((3, 3), (3, 4), (4, 4), (2, 3), (1, 3), (3, 1)):
        x, y = torch.ones(rows, columns, requires_grad=True), torch.ones(columns, requires_grad=True)
        (x * y).pow(2).sum(0).prod().backward()
        log.append((x.grad, y.grad))
    return log


@topic
def ranks_that_change():
    log = []
    for size in ((2,), (2, 3), (2, 3, 1), ()):
        x = torch.full(size, 2.0, requires_grad=True)
        x.exp().sum().backward()
        log.append(x.grad)
    return log


# -- layers and sparse ------------------------------------------------------------------------------------------------


@topic
def layers():
    conv = torch.nn.Conv2d(2, 3, 3, padding=1)
    norm, group = torch.nn.BatchNorm2d(3), torch.nn.GroupNorm(1, 3)
    x = torch.rand(2, 2, 4, 4, requires_grad=True)
    y = F.max_pool2d(norm(conv(x)).relu(), 2) + F.avg_pool2d(group(conv(x)), 2)
    F.interpolate(y, scale_factor=2).pow(2).mean().backward()
    return x.grad, conv.weight.grad, norm.weight.grad, group.bias.grad


@topic
def attention_and_losses():
    q, k, v = (torch.rand(2, 3, 4, requires_grad=True) for _ in range(3))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    target = torch.tensor([[0, 1, 2], [3, 0, 1]])
    loss = F.cross_entropy(out.reshape(6, 4), target.reshape(6)) + F.layer_norm(out, (4,)).abs().sum()
    (loss + F.gelu(out).logsumexp(-1).sum() + F.embedding(target, v[0, :, :].repeat(2, 1)).sum()).backward()
    return q.grad, k.grad, v.grad


@topic
def recurrent_layers():
    lstm, gru = torch.nn.LSTM(3, 4, 2, batch_first=True), torch.nn.GRU(3, 4)
    x = torch.rand(2, 3, 3, requires_grad=True)
    (lstm(x)[0].sum() + gru(x)[1].pow(2).sum()).backward()
    return x.grad, [p.grad for p in lstm.parameters()]


@topic
def linear_algebra():
    x = (torch.rand(3, 3) + torch.eye(3) * 3).requires_grad_()
    y = x @ x.t()
    (torch.linalg.cholesky(y).sum() + torch.linalg.solve(x, torch.ones(3)).sum() + torch.linalg.det(x)).backward(
        retain_graph=True
    )
    (torch.linalg.svdvals(x).sum() + torch.linalg.eigvalsh(y).sum() + torch.einsum("ij,jk->ik", x, x).sum()).backward()
    return x.grad


@topic
def sorting_and_reducing():
    x = _matrix()
    (x.sort(1, descending=True)[0][:, :2].sum() + x.topk(2, 0)[0].pow(2).sum() + x.max() * x.min()).backward()
    (x.max(1)[0].prod() + x.median() + x.std() + x.norm() + x.var(0).sum() + x.amax(0).sum()).backward()
    return x.grad


@topic
def lists_of_tensors():
    xs = [leaf(1.0, 2.0), leaf(3.0, 4.0), leaf(5.0, 6.0)]
    y = torch.cat(xs) * torch.stack(xs).reshape(-1)
    z = torch.block_diag(*xs).sum() + torch.meshgrid(*xs, indexing="ij")[0].sum()
    w = sum(item.sum() for item in torch._foreach_mul(xs, 2.0))
    (y.sum() + z + w).backward()
    return [x.grad for x in xs]


@topic
def sparse_gradients():
    embed = torch.nn.Embedding(5, 2, sparse=True)
    log = []
    embed.weight.register_hook(lambda gradient: log.append(gradient.layout))
    embed(torch.tensor([0, 3, 0])).sum().backward()
    embed(torch.tensor([1])).sum().backward()
    return embed.weight.grad.to_dense(), log


@topic
def to_and_from_sparse():
    x = _matrix()
    y = x.to_sparse()
    (y.to_dense() * 2).sum().backward()
    z = torch.sparse.mm(torch.eye(3).to_sparse(), x)
    z.pow(2).sum().backward()
    sparse = torch.eye(3).to_sparse().requires_grad_()
    torch.sparse.mm(sparse, x.detach()).sum().backward()
    return x.grad, sparse.grad.to_dense()


@topic
def nested_tensors():
    xs = [torch.rand(2, 3, requires_grad=True), torch.rand(1, 3, requires_grad=True)]
    nested = torch.nested.as_nested_tensor(xs)
    nested.to_padded_tensor(0).pow(2).sum().backward()
    return [x.grad for x in xs]


@topic
def tensor_subclasses():
    class Tagged(torch.Tensor):
        pass

    x = leaf(1.0, 2.0).detach().as_subclass(Tagged).requires_grad_()
    log = []
    x.register_hook(lambda gradient: log.append(type(gradient).__name__))
    (x * x).sum().backward()
    return type(x.grad).__name__, x.grad.as_subclass(torch.Tensor), log


@topic
def random_numbers_in_a_backward():
    x = leaf(1.0, 2.0, 3.0)
    x.register_hook(lambda gradient: gradient * torch.rand(3))
    (F.dropout(x, 0.5) * 2).sum().backward()
    return x.grad, torch.rand(2)
