"""The CUDA driver: what is said where there is none, and what is asked of a library that stands in for it."""

from __future__ import annotations

import copy
import ctypes
import gc
import pickle
import subprocess
import sys

import pytest
import torch

from kiln.exc import DriverError, KilnError
from kiln.platform.torch_devices import raw_stream_reader
from kiln.target.cuda import driver as cuda
from kiln.target.cuda.driver import Driver
from tests.target.ptx_samples import PLUS_ONE

CONTEXT, MODULE, FUNCTION, LINKER = 0xC0, 0x40, 0xF0, 0x11
ERRORS = {
    100: ("CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"),
    201: ("CUDA_ERROR_INVALID_CONTEXT", "invalid device context"),
    218: ("CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"),
    500: ("CUDA_ERROR_NOT_FOUND", "named symbol not found"),
    700: ("CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"),
    701: ("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"),
}
SIZES = {0: 1024, 1: 4096, 2: 0, 3: 16, 4: 40}


def put(place, value, kind=ctypes.c_void_p):
    """Write through a pointer that was given by reference."""
    ctypes.cast(place, ctypes.POINTER(kind))[0] = value


class Function:
    """A function of a library, which notes its calls and converts what it is given as ctypes does."""

    def __init__(self, library, name):
        self.library, self.name = library, name

    def __call__(self, *arguments):
        assert len(arguments) == len(self.argtypes) and self.restype is ctypes.c_int, self.name
        for kind, argument in zip(self.argtypes, arguments, strict=True):
            kind.from_param(argument)
        self.library.calls.append(self.name)
        return self.library.errors.get(self.name, 0) or getattr(self.library, f"run_{self.name}")(*arguments) or 0


class Library:
    def __init__(self, **errors):
        self.errors = errors
        self.calls, self.current, self.log, self.unloaded, self.shared = [], [], b"", [], []
        for name in cuda.SIGNATURES:
            setattr(self, name, Function(self, name))
        self.cuLaunchKernel = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 0)

    def run_cuDriverGetVersion(self, found):
        put(found, 13000, ctypes.c_int)

    def run_cuDeviceGet(self, found, device):
        put(found, device + 10, ctypes.c_int)

    def run_cuDeviceGetAttribute(self, found, attribute, handle):
        assert handle >= 10
        put(found, {75: 9, 76: 0}[attribute], ctypes.c_int)

    def run_cuDevicePrimaryCtxRetain(self, found, handle):
        put(found, CONTEXT + handle - 10)

    def run_cuCtxGetCurrent(self, found):
        put(found, self.current[-1] if self.current else None)

    def run_cuCtxSetCurrent(self, context):
        self.current[:] = [context]

    def run_cuCtxPushCurrent_v2(self, context):
        self.current.append(context)

    def run_cuCtxPopCurrent_v2(self, found):
        put(found, self.current.pop())

    def say(self, count, names, values):
        assert count == 2 and list(names) == [5, 6] and values[1] == cuda.LOG_BYTES
        ctypes.memmove(values[0], self.log + b"\0", len(self.log) + 1)

    def run_cuModuleLoadDataEx(self, found, image, *options):
        assert self.current
        self.image = image.value
        put(found, MODULE)
        self.say(*options)
        return 218 if self.log else 0

    def run_cuModuleUnload(self, module):
        self.unloaded.append((self.current[-1], module))

    def run_cuModuleGetFunction(self, found, module, name):
        assert self.current and module == MODULE
        put(found, FUNCTION)
        return 500 if name == b"missing" else 0

    def run_cuFuncGetAttribute(self, found, attribute, function):
        assert function == FUNCTION
        put(found, SIZES[attribute], ctypes.c_int)

    def run_cuFuncSetAttribute(self, function, attribute, value):
        self.shared.append((function, attribute, value))

    def run_cuLinkCreate_v2(self, count, names, values, found):
        self.options = count, names, values
        put(found, LINKER)

    def run_cuLinkAddData_v2(self, state, kind, data, size, name, *options):
        assert (state.value, kind, options) == (LINKER, 1, (0, None, None))
        self.added = ctypes.string_at(data, size)
        self.say(*self.options)
        return 218 if self.log else 0

    def run_cuLinkComplete(self, state, cubin, size):
        self.cubin = ctypes.create_string_buffer(b"\x7fELF\0code")
        put(cubin, ctypes.addressof(self.cubin))
        put(size, 9, ctypes.c_size_t)

    def run_cuLinkDestroy(self, state):
        assert state.value == LINKER
        self.cubin = None

    def run_cuGetErrorName(self, error, found):
        return self.tell(error, found, 0)

    def run_cuGetErrorString(self, error, found):
        return self.tell(error, found, 1)

    def tell(self, error, found, which):
        text = ERRORS.get(error)
        self.told = text and text[which].encode()  # a driver's texts stay where they are
        put(found, self.told, ctypes.c_char_p)
        return 0 if text else 1


def driver_of(library, capturing=None):
    return Driver(library, start=lambda: library.calls.append("start"), is_capturing=lambda: bool(capturing))


@pytest.fixture
def library():
    return Library()


@pytest.fixture
def driver(library):
    return driver_of(library)


# ---- without a driver ------------------------------------------------------------------------------------------------


@pytest.fixture
def no_driver(monkeypatch):
    monkeypatch.setattr(cuda, "LIBRARY", "libcuda_that_is_not_there.so.1")
    cuda.library.cache_clear()
    cuda.driver.cache_clear()
    yield
    cuda.library.cache_clear()
    cuda.driver.cache_clear()


def test_without_a_driver_nothing_is_available(no_driver):
    assert cuda.is_available() is False


ASKED = {
    "architecture": lambda: cuda.architecture(0),
    "version": cuda.version,
    "load_module": lambda: cuda.load_module(b"", 0),
    "link": lambda: cuda.link(b"", 0),
    "launch_address": cuda.launch_address,
    "launcher": cuda.launcher,
}


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
def test_without_a_driver_the_error_says_so(no_driver, ask):
    with pytest.raises(KilnError, match="no CUDA driver on this machine: libcuda_that_is_not_there.so.1 was not found"):
        ask()


def test_a_driver_without_a_gpu_for_torch_is_of_no_use(monkeypatch):
    monkeypatch.setattr(cuda, "library", Library)
    for is_there in (False, True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda is_there=is_there: is_there)
        assert cuda.is_available() is is_there


def test_importing_kiln_does_not_look_for_the_driver():
    program = (  # torch comes first: one for GPUs loads the driver itself
        "import torch, ctypes, sys; made = []; real = ctypes.CDLL.__init__\n"
        "def noting(self, name, *rest, **named): made.append(name); real(self, name, *rest, **named)\n"
        "ctypes.CDLL.__init__ = noting\n"
        "import kiln\n"
        "kiln.compile(lambda x: x + 1)(torch.ones(3))\n"
        "assert not [name for name in made if 'cuda' in str(name)], made\n"
        "assert 'kiln.target.cuda.driver' not in sys.modules\n"
        "import kiln.target.cuda.driver\n"
        "assert not [name for name in made if 'cuda' in str(name)], made\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has streams of GPUs")
def test_a_torch_without_cuda_has_no_streams():
    with pytest.raises(AttributeError):
        raw_stream_reader()


# ---- devices ---------------------------------------------------------------------------------------------------------


def test_what_is_known_of_a_device(driver, library):
    assert driver.architecture(1) == "sm_90" and driver.version() == 13000
    assert library.calls[:2] == ["start", "cuDeviceGet"]


def test_the_context_is_torchs_and_only_for_the_calls(driver, library):
    library.current.append(0x77)  # somebody else's
    with driver.on(2):
        assert library.current == [0x77, CONTEXT + 2]
        with driver.on(3):
            assert library.current[-1] == CONTEXT + 3
    assert library.current == [0x77]
    with pytest.raises(ValueError), driver.on(2):
        raise ValueError
    assert library.current == [0x77] and library.calls.count("cuDevicePrimaryCtxRetain") == 2


def test_a_device_that_is_not_there():
    with pytest.raises(DriverError) as caught:
        driver_of(Library(cuDeviceGet=100)).architecture(7)
    assert str(caught.value) == (
        "Looking for GPU 7: cuDeviceGet says CUDA_ERROR_NO_DEVICE (100): no CUDA-capable device is detected."
    )
    assert caught.value.number == 100


def test_an_error_without_a_name(driver):
    assert driver.error_text(12345) == "error 12345, which it has no name for"


def test_errors_can_be_sent_between_processes():
    error = DriverError("It failed", 7)
    for made in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert str(made) == "It failed." and made.number == 7


# ---- code ------------------------------------------------------------------------------------------------------------


def test_a_module_has_functions(driver, library):
    module = driver.load_module(b"// PTX", 0)
    assert library.image == b"// PTX" and library.current == []
    assert module.function("kernel0") == FUNCTION == module.function("kernel0")
    assert library.calls.count("cuModuleGetFunction") == 1
    assert module.attributes("kernel0") == {
        "threads": 1024,
        "shared": 4096,
        "constant": 0,
        "local": 16,
        "registers": 40,
    }
    assert library.current == []
    with pytest.raises(DriverError, match=r"the kernel missing: cuModuleGetFunction says CUDA_ERROR_NOT_FOUND \(500\)"):
        module.function("missing")


def test_much_shared_memory_is_asked_for(driver, library):
    module = driver.load_module(b"", 0)
    module.function("kernel0", 48 * 1024)
    assert library.shared == []
    module.function("kernel0", 100_000)
    assert library.shared == [(FUNCTION, 8, 100_000)]


def test_a_module_is_unloaded_when_it_is_dropped(driver, library):
    module = driver.load_module(b"", 1)
    gc.collect()
    assert library.unloaded == []
    del module
    gc.collect()
    assert library.unloaded == [(CONTEXT + 1, MODULE)] and library.current == []


def test_no_module_is_unloaded_while_a_graph_is_captured(library):
    capturing = [True]
    driver = driver_of(library, capturing)
    driver.load_module(b"", 0)
    gc.collect()
    assert library.unloaded == []
    capturing.clear()
    driver.load_module(b"", 1)
    gc.collect()
    assert sorted(library.unloaded) == [(CONTEXT, MODULE), (CONTEXT + 1, MODULE)]


def test_unloading_when_the_driver_is_gone_is_no_error(library, driver):
    module = driver.load_module(b"", 0)
    library.errors["cuCtxPushCurrent_v2"] = 201
    driver.unload(0, module.handle)
    assert library.unloaded == []


def test_code_that_the_driver_refuses(driver, library):
    library.log = b"ptxas application ptx input, line 7; error: Unknown symbol 'x'\n"
    for ask in (driver.load_module, driver.link):
        with pytest.raises(DriverError) as caught:
            ask(b"nonsense", 0)
        first, second = str(caught.value).splitlines()
        assert first.endswith("says CUDA_ERROR_INVALID_PTX (218): a PTX JIT compilation failed")
        assert second == "ptxas application ptx input, line 7; error: Unknown symbol 'x'."
        assert caught.value.number == 218 and library.current == []
    assert library.calls[-2:] == ["cuLinkDestroy", "cuCtxPopCurrent_v2"]


def test_linking_gives_a_cubin(driver, library):
    assert driver.link(b"// PTX", 0) == b"\x7fELF\0code"
    assert library.added == b"// PTX\0" and library.cubin is None
    driver.link(b"// PTX\0", 0)
    assert library.added == b"// PTX\0"


def test_the_current_device_where_none_is_given(driver, library, monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert driver.load_module(b"").device == 3
    driver.link(b"")
    assert list(driver.contexts) == [3]


# ---- launches --------------------------------------------------------------------------------------------------------


def test_the_address_of_the_launch(driver, library):
    assert driver.launch_address() == ctypes.cast(library.cuLaunchKernel, ctypes.c_void_p).value


def test_a_launch_that_fails(driver):
    with pytest.raises(DriverError) as caught:
        driver.launch_failed("gelu_3", 701, 0)
    assert str(caught.value) == (
        "The kernel gelu_3 could not be launched: cuLaunchKernel says CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES (701): "
        "too many resources requested for launch."
    )
    assert isinstance(caught.value, RuntimeError)


def test_a_launch_that_hears_of_an_earlier_failure(driver):
    with pytest.raises(DriverError, match=r"ILLEGAL_ADDRESS \(700\).*launched before.*CUDA_LAUNCH_BLOCKING=1"):
        driver.launch_failed("gelu_3", 700, 0)


def test_a_thread_without_a_context_gets_one(driver, library):
    assert driver.launch_failed("gelu_3", 201, 1) is None
    assert library.current == [CONTEXT + 1]
    with pytest.raises(DriverError, match="INVALID_CONTEXT"):  # it has one, and the launch failed all the same
        driver.launch_failed("gelu_3", 201, 1)


# ---- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not cuda.is_available(), reason="needs a GPU")
def test_this_machines_driver():
    major, minor = torch.cuda.get_device_capability(0)
    assert cuda.architecture(0) == f"sm_{major}{minor}" and cuda.version() >= 12000
    cubin = cuda.link(PLUS_ONE, 0)
    assert cubin.startswith(b"\x7fELF")
    for image in (PLUS_ONE, cubin):
        module = cuda.load_module(image, 0)
        assert module.function("plus_one") and 0 < module.attributes("plus_one")["registers"] < 256
        with pytest.raises(DriverError, match="NOT_FOUND"):
            module.function("missing")
    for ask in (cuda.load_module, cuda.link):
        with pytest.raises(DriverError, match="line"):
            ask(b".version 8.0\n.target sm_80\nnonsense", 0)
