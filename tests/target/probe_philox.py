import sys, torch
from tests.support import philox as P
props = torch.cuda.get_device_properties(0)
SM, TP = props.multi_processor_count, props.max_threads_per_multi_processor
print("sm", SM, TP)
gen = torch.cuda.default_generators[0]
def state(): return gen.initial_seed(), gen.get_offset()
bad = 0
for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
    for n in (1, 7, 255, 256, 1022, 1023, 1024, 4096, 4098, 100004, 1000003, 1000008, 2200000, 3145728, 5000000, 9000002):
        torch.manual_seed(1234567890123 + n)
        torch.rand(5, device="cuda")
        seed, off = state()
        x = torch.randn(n, device="cuda").to(dtype); seed, off = state()
        out, mask = torch.ops.aten.native_dropout(x, 0.1, True)
        _, off2 = state()
        T = P.threads_of(n, SM, TP)
        ok_inc = off2 - off == P.increment_of(n, T)
        found = []
        for v in (1, 2, 4, 8):
            if n % v: continue
            bits = P.vector_bits(seed, off, n, T, v) if v > 1 else P.strided_bits(seed, off, n, T)
            u = P.uniform(bits)
            p = torch.tensor(1 - 0.1, dtype=torch.float64 if dtype is torch.float64 else torch.float32)
            m = u.to(p.dtype) < p
            if torch.equal(m, mask.cpu()): found.append(v)
        width = {2: 8, 4: 4, 8: 2}[dtype.itemsize]
        while n % width: width //= 2
        acc = torch.float64 if dtype is torch.float64 else torch.float32
        scale = torch.tensor(1.0, dtype=acc) / p
        want = ((x.cpu().to(acc) * mask.cpu().to(acc)) * scale).to(dtype)
        ok_val = torch.equal(want.view(torch.uint8), out.cpu().view(torch.uint8))
        if not ok_inc or width not in found or not ok_val:
            bad += 1
            print("dropout", dtype, n, "found", found, "expected", width, "inc", off2 - off, P.increment_of(n, T), ok_val)
print("dropout bad", bad)
# misaligned, channels last, non contiguous
x = torch.randn(4097, device="cuda")[1:]
seed, off = state(); _, mask = torch.ops.aten.native_dropout(x, 0.1, True)
print("misaligned", [v for v in (1,2,4,8) if torch.equal((P.uniform(P.vector_bits(seed, off, 4096, P.threads_of(4096, SM, TP), v) if v > 1 else P.strided_bits(seed, off, 4096, P.threads_of(4096, SM, TP))) < 0.9), mask.cpu())])
x = torch.randn(2, 8, 16, 16, device="cuda").to(memory_format=torch.channels_last)
seed, off = state(); _, mask = torch.ops.aten.native_dropout(x, 0.1, True)
flat = mask.permute(0, 2, 3, 1).reshape(-1).cpu()
print("channels_last", torch.equal(P.uniform(P.vector_bits(seed, off, 4096, P.threads_of(4096, SM, TP), 4)) < 0.9, flat))
bad = 0
for n in (1, 7, 255, 256, 1023, 1024, 4096, 1000003, 3000000):
    T = P.threads_of(n, SM, TP)
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        torch.manual_seed(77 + n); torch.rand(3, device="cuda"); seed, off = state()
        r = torch.rand(n, device="cuda", dtype=dtype); _, off2 = state()
        if dtype is torch.float64:
            u = P.uniform_double(P.strided_wide_bits(seed, off, n, T)); inc = P.increment_of(n, T, 2)
        else:
            u = P.uniform(P.strided_bits(seed, off, n, T)).to(dtype); inc = P.increment_of(n, T)
        u = torch.where(u == 1, torch.zeros((), dtype=dtype), u)
        if not torch.equal(u, r.cpu()) or inc != off2 - off: bad += 1; print("rand", dtype, n, torch.equal(u, r.cpu()), off2 - off, inc)
        seed, off = state()
        r = torch.empty(n, device="cuda", dtype=dtype).bernoulli_(0.3); _, off2 = state()
        if dtype is torch.float64: b = P.uniform_double(P.strided_wide_bits(seed, off, n, T)) < 0.3
        else: b = P.uniform(P.strided_bits(seed, off, n, T)) < torch.tensor(0.3, dtype=torch.float32)
        if not torch.equal(b.to(dtype), r.cpu()) or inc != off2 - off: bad += 1; print("bernoulli", dtype, n, off2 - off, inc)
    seed, off = state(); r = torch.randint(3, 1000, (n,), device="cuda"); _, off2 = state()
    b = P.strided_bits(seed, off, n, T) % 997 + 3
    if not torch.equal(b, r.cpu()) or off2 - off != P.increment_of(n, T): bad += 1; print("randint", n, torch.equal(b, r.cpu()), off2 - off)
print("uniform etc. bad", bad)
# under capture: how draws look
g = torch.cuda.CUDAGraph()
x = torch.randn(4096, device="cuda")
torch.manual_seed(5)
s = torch.cuda.Stream()
with torch.cuda.stream(s):
    torch.ops.aten.native_dropout(x, 0.1, True)
torch.cuda.synchronize()
with torch.cuda.graph(g):
    a = torch.ops.aten.native_dropout(x, 0.1, True)[1]
    b = torch.ops.aten.native_dropout(x, 0.1, True)[1]
for _ in range(2):
    seed, off = state(); g.replay(); torch.cuda.synchronize(); _, off2 = state()
    T = P.threads_of(4096, SM, TP)
    print("graph", off2 - off, torch.equal(P.uniform(P.vector_bits(seed, off, 4096, T, 4)) < 0.9, a.cpu()), torch.equal(P.uniform(P.vector_bits(seed, off + 4, 4096, T, 4)) < 0.9, b.cpu()))
