"""A kernel that fails on the GPU is named, with its operators and the way to do without it.

Each test has a process of its own: an illegal access ends all work on the GPU in a process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
ROOT = Path(__file__).resolve().parents[2]

PROGRAM = '''
import re, sys
import torch, kiln
from kiln.target.cuda import driver
from kiln.target.cuda.cuda_target import CudaTarget

PTX = """.version 8.0
.target sm_80
.address_size 64
.visible .entry {name}(.param .u64 unused) {{
  .reg .u64 %address; .reg .u32 %value;
  mov.u64 %address, 16; mov.u32 %value, 1; st.global.u32 [%address], %value; ret;
}}
"""

def image(self, text):
    """Each kernel writes where there is no memory."""
    names = re.findall(r"define ptx_kernel void @(\\w+)\\(", text)
    header, entry = PTX.format(name="{name}").split(".visible", 1)
    texts = [".visible" + entry.replace("{name}", name) for name in names]
    return driver.link((header + "".join(texts)).encode(), self.index)

CudaTarget.image = image
kiln.config.cache = False

def broken(x):
    y = x.exp()
    return y.sum(0)  # the last line

x = torch.randn(64, 64, device="cuda")
compiled = kiln.compile(broken, backend="kiln", options=OPTIONS)
for _ in range(3):
    try:
        found = compiled(x)
        torch.cuda._sleep(1000)
    except kiln.exc.DriverError as error:
        print("DRIVER", error)
        sys.exit(3)
    except Exception as error:
        print("OTHER", type(error).__name__, error)
        sys.exit(4)
    if not BLOCKING:
        import time; time.sleep(0.5)
print("FINE", torch.allclose(found, broken(x), rtol=1e-4))
'''


def run(tmp_path, options="None", blocking=False, **environment):
    path = tmp_path / "broken_model.py"
    path.write_text(PROGRAM.replace("OPTIONS", options).replace("BLOCKING", str(blocking)))
    given = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_LAUNCH_BLOCKING": str(int(blocking)), **environment}
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, env=given, timeout=120)
    return done.returncode, done.stdout + done.stderr


def test_the_kernel_that_fails_is_named(tmp_path):
    code, said = run(tmp_path, blocking=True)
    assert code == 3, said
    assert "The kernel kiln_exp_sum_0 failed on the GPU: cuLaunchKernel says CUDA_ERROR_ILLEGAL_ADDRESS (700)" in said
    line = PROGRAM[: PROGRAM.index("y = x.exp()")].count("\n") + 1
    assert f"broken_model.py:{line}, in broken:   y = x.exp()" in said and "aten.exp.default" in said
    assert "return y.sum(0)" in said and "KILN_DISABLE_KERNELS=aten.exp,aten.sum" in said


def test_a_later_launch_hears_of_it(tmp_path):
    code, said = run(tmp_path)
    assert code in (3, 4), said
    if code == 3:
        assert "launched before" in said and "CUDA_LAUNCH_BLOCKING=1" in said and "disable_kernels" in said


def test_without_the_kernel_it_runs(tmp_path):
    assert "FINE True" in run(tmp_path, options="{'disable_kernels': ['aten.exp', 'aten.sum']}")[1]
    assert "FINE True" in run(tmp_path, KILN_DISABLE_KERNELS="aten.exp,aten.sum")[1]
