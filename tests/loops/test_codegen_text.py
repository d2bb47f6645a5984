"""The text of a kernel is Python that runs, and means what the kernel does."""

import pytest
import torch

from kiln.loops import kernel_text, reference
from kiln.loops.steps import View
from tests.support.codegen_programs import launches, scheduled_of

X = torch.arange(-6.0, 6.0).reshape(3, 4) / 3
PROGRAMS = {
    "softmax": (lambda x: torch.softmax(x * 2, 1), [X]),
    "layer_norm": (lambda x: torch.nn.functional.layer_norm(x, (4,)), [X]),
    "argmax": (lambda x: (x.argmax(1), x.argmin(0), x.amax(1)), [X]),
    "pad": (lambda x: torch.nn.functional.pad(x, (1, 2)).exp(), [X]),
    "bfloat16": (lambda x: x * 3 + x.sigmoid(), [X.bfloat16()]),
    "integers": (lambda x: (~x, x // 3, x % 3, x << 1, x > 2), [torch.arange(-5, 5)]),
    "bool": (lambda x: ((x > 0).any(1), (x > -9).all(), torch.where(x > 0, x, 1.0)), [X]),
    "gather": (lambda x, i: x[i] + torch.arange(4), [X, torch.tensor([2, 0, 1, 2])]),
    "scatter": (lambda x, i: torch.zeros(5, 4).index_add(0, i, x), [X, torch.tensor([2, 0, 2])]),
    "scan": (lambda x: (x.cumsum(1) * 2, x.flip(0).cumprod(0)), [X]),
    "casts": (lambda x: (x.to(torch.int32), x.double().sum(), (x > 0).float()), [X]),
}


class Texts(reference.Reference):
    """Runs launches by their text."""

    def launch(self, launch):
        kernel = launch.kernel
        symbols = sorted({str(symbol) for size in kernel.sizes for symbol in size.free_symbols})
        values = {str(size): self.number(actual) for size, actual in zip(kernel.sizes, launch.sizes, strict=True)}
        kernel_text.run(
            kernel.text, kernel.name, list(map(self.elements, launch.buffers)), [values[name] for name in symbols]
        )


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_text_of_kernels_runs(name):
    function, inputs = PROGRAMS[name]
    scheduled = scheduled_of(function, inputs)
    assert launches(scheduled)
    found = Texts(scheduled, inputs).run()
    expected = function(*inputs)
    for got, wanted in zip(found, expected if isinstance(expected, tuple) else [expected], strict=True):
        torch.testing.assert_close(got, wanted)
    assert all(isinstance(output, View) for output in scheduled.outputs)
