"""The CUDA driver: loading and linking code for a GPU, launching it, errors in words.

The driver's library is looked for when it is first needed, never at import; nothing links against CUDA. Code is loaded
into the context that torch uses for a device (its primary context).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ...exc import DriverError
from ...platform.torch_devices import draw_address, raw_stream_reader
from ..native_program import Launcher

LIBRARY = "libcuda.so.1"
LOG_BYTES = 8192  # of what the driver's assembler says
PLAIN_SHARED_BYTES = 48 * 1024  # of a block; a kernel must ask for more

# Numbers of cuda.h.
INVALID_CONTEXT = 201
CAPABILITY_MAJOR, CAPABILITY_MINOR = 75, 76
FUNCTION_ATTRIBUTES = {"threads": 0, "shared": 1, "constant": 2, "local": 3, "registers": 4}
LARGEST_SHARED_SIZE = 8
INPUT_IS_PTX = 1
LOG_BUFFER, LOG_SIZE = 5, 6

Address = ctypes.c_void_p
Int, Unsigned = ctypes.c_int, ctypes.c_uint
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuDriverGetVersion": (Address,),
    "cuDeviceGet": (Address, Int),
    "cuDeviceGetAttribute": (Address, Int, Int),
    "cuDevicePrimaryCtxRetain": (Address, Int),
    "cuCtxGetCurrent": (Address,),
    "cuCtxSetCurrent": (Address,),
    "cuCtxPushCurrent_v2": (Address,),
    "cuCtxPopCurrent_v2": (Address,),
    "cuModuleLoadDataEx": (Address, Address, Unsigned, Address, Address),
    "cuModuleUnload": (Address,),
    "cuModuleGetFunction": (Address, Address, ctypes.c_char_p),
    "cuFuncGetAttribute": (Address, Int, Address),
    "cuFuncSetAttribute": (Address, Int, Int),
    "cuLinkCreate_v2": (Unsigned, Address, Address, Address),
    "cuLinkAddData_v2": (Address, Int, Address, ctypes.c_size_t, ctypes.c_char_p, Unsigned, Address, Address),
    "cuLinkComplete": (Address, Address, Address),
    "cuLinkDestroy": (Address,),
    "cuGetErrorName": (Int, Address),
    "cuGetErrorString": (Int, Address),
}


# ---- this process's driver -------------------------------------------------------------------------------------------


def is_available() -> bool:
    """Whether there is a driver, and torch can use a GPU with it."""
    return library() is not None and torch.cuda.is_available()


def architecture(device: int) -> str:
    """What LLVM calls a GPU: "sm_90"."""
    return driver().architecture(device)


def version() -> int:
    """The CUDA version that the driver is for: 13000 is 13.0."""
    return driver().version()


def load_module(image: bytes, device: int | None = None) -> Module:
    """Code for a GPU, PTX or a cubin, in the memory of a device (torch's current one, if none is given)."""
    return driver().load_module(image, device)


def link(ptx: bytes, device: int | None = None) -> bytes:
    """The cubin of PTX, for the architecture of a device."""
    return driver().link(ptx, device)


def launch_address() -> int:
    """The address of cuLaunchKernel."""
    return driver().launch_address()


def launcher() -> Launcher:
    """What a program needs to launch kernels."""
    found = driver()
    return Launcher(found.launch_address(), raw_stream_reader(), found.launch_failed, draw_address())


@functools.cache
def library() -> Any:
    """The driver's library; None where there is none."""
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError:
        return None


@functools.cache
def driver() -> Driver:
    found = library()
    if found is None:
        raise DriverError(f"There is no CUDA driver on this machine: {LIBRARY} was not found")
    return Driver(found)


# ---- a driver --------------------------------------------------------------------------------------------------------


class Driver:
    """Calls functions of the library. ``start`` has torch initialize its use of GPUs, and so their contexts."""

    def __init__(
        self,
        library: Any,
        start: Callable[[], None] = torch.cuda.init,
        is_capturing: Callable[[], bool] = torch.cuda.is_current_stream_capturing,
    ) -> None:
        self.library, self.start, self.is_capturing = library, start, is_capturing
        self.contexts: dict[int, int] = {}
        self.unwanted: list[tuple[int, int]] = []  # devices and modules that can be unloaded
        for name, parameters in SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = parameters, Int

    def call(self, doing: str, name: str, *arguments: Any) -> None:
        error = getattr(self.library, name)(*arguments)
        if error:
            raise DriverError(f"{doing}: {name} says {self.error_text(error)}", error)

    def error_text(self, error: int) -> str:
        """The name, number and meaning of an error of the driver."""
        found = []
        for function in (self.library.cuGetErrorName, self.library.cuGetErrorString):
            text = ctypes.c_char_p()
            function(error, ctypes.byref(text))
            found.append((text.value or b"").decode())
        name, meaning = found
        return f"{name} ({error}): {meaning}" if name else f"error {error}, which it has no name for"

    # ---- devices -----------------------------------------------------------------------------------------------------

    def version(self) -> int:
        found = Int()
        self.call("Asking for the driver's version", "cuDriverGetVersion", ctypes.byref(found))
        return found.value

    def architecture(self, device: int) -> str:
        self.start()
        handle = self.device_handle(device)
        numbers = []
        for attribute in (CAPABILITY_MAJOR, CAPABILITY_MINOR):
            found = Int()
            self.call(f"Asking about GPU {device}", "cuDeviceGetAttribute", ctypes.byref(found), attribute, handle)
            numbers.append(str(found.value))
        return f"sm_{''.join(numbers)}"

    def device_handle(self, device: int) -> int:
        found = Int()
        self.call(f"Looking for GPU {device}", "cuDeviceGet", ctypes.byref(found), device)
        return found.value

    def context(self, device: int) -> int:
        """The context that torch uses. It is held until the process ends."""
        if device not in self.contexts:
            self.start()
            found = Address()
            handle = self.device_handle(device)
            self.call(f"Using GPU {device}", "cuDevicePrimaryCtxRetain", ctypes.byref(found), handle)
            self.contexts[device] = found.value or 0
        return self.contexts[device]

    @contextlib.contextmanager
    def on(self, device: int) -> Iterator[None]:
        """For the calls inside, the device's context is the thread's."""
        self.call(f"Using GPU {device}", "cuCtxPushCurrent_v2", self.context(device))
        try:
            yield
        finally:
            self.library.cuCtxPopCurrent_v2(ctypes.byref(Address()))

    def number_of(self, device: int | None) -> int:
        if device is not None:
            return device
        self.start()
        return torch.cuda.current_device()

    # ---- code --------------------------------------------------------------------------------------------------------

    def load_module(self, image: bytes, device: int | None = None) -> Module:
        place, doing = self.number_of(device), "Loading code for the GPU"
        found, log = Address(), Log()
        with self.on(place), log.explains():
            self.call(doing, "cuModuleLoadDataEx", ctypes.byref(found), ctypes.c_char_p(image), *log.options())
        return Module(self, place, found.value or 0)

    def link(self, ptx: bytes, device: int | None = None) -> bytes:
        doing = "Assembling code for the GPU"
        state, cubin, size, log = Address(), Address(), ctypes.c_size_t(), Log()
        with self.on(self.number_of(device)), log.explains():
            self.call(doing, "cuLinkCreate_v2", *log.options(), ctypes.byref(state))
            try:
                text = ptx if ptx.endswith(b"\0") else ptx + b"\0"
                given = INPUT_IS_PTX, ctypes.c_char_p(text), len(text), b"kiln.ptx", 0, None, None
                self.call(doing, "cuLinkAddData_v2", state, *given)
                self.call(doing, "cuLinkComplete", state, ctypes.byref(cubin), ctypes.byref(size))
                return ctypes.string_at(cubin, size.value)  # before the linker's own copy is gone
            finally:
                self.library.cuLinkDestroy(state)

    def unload(self, device: int, module: int) -> None:
        """When nothing holds a module any more, which may be at any time; while a CUDA graph is captured it waits."""
        self.unwanted.append((device, module))
        while self.unwanted and not self.is_capturing():
            place, unwanted = self.unwanted.pop()
            with contextlib.suppress(DriverError), self.on(place):
                self.library.cuModuleUnload(unwanted)

    # ---- launches ----------------------------------------------------------------------------------------------------

    def launch_address(self) -> int:
        return ctypes.cast(self.library.cuLaunchKernel, Address).value or 0

    def launch_failed(self, kernel: str, error: int, device: int) -> None:
        """Raise what went wrong with a launch; return if it was only that this thread had not used the GPU yet."""
        if error == INVALID_CONTEXT and self.adopt_thread(device):
            return
        said = f"cuLaunchKernel says {self.error_text(error)}"
        if error not in DriverError.ON_THE_GPU:
            text = f"The kernel {kernel} could not be launched: {said}"
        elif os.environ.get("CUDA_LAUNCH_BLOCKING") == "1":
            text = f"The kernel {kernel} failed on the GPU: {said}"
        else:
            text = (
                f"The kernel {kernel} could not be launched: {said}. "
                "The error is that of a kernel that was launched before, perhaps of this one in an earlier call: "
                "launches do not wait for the GPU. With CUDA_LAUNCH_BLOCKING=1 in the environment they do"
            )
        raise DriverError(text, error)

    def adopt_thread(self, device: int) -> bool:
        """Give the thread the context of a device, if it has none."""
        found = Address()
        if self.library.cuCtxGetCurrent(ctypes.byref(found)) or found.value:
            return False
        self.call(f"Using GPU {device}", "cuCtxSetCurrent", self.context(device))
        return True


class Log:
    """What the driver's assembler has to say about code that it refuses."""

    def __init__(self) -> None:
        self.text = ctypes.create_string_buffer(LOG_BYTES)
        self.names = (Int * 2)(LOG_BUFFER, LOG_SIZE)
        self.values = (Address * 2)(ctypes.addressof(self.text), LOG_BYTES)

    def options(self) -> tuple[Any, ...]:
        """Arguments of a call: how many options, which, their values. The driver uses them until the code is made."""
        return 2, self.names, self.values

    @contextlib.contextmanager
    def explains(self) -> Iterator[None]:
        """Errors of calls inside say what was logged."""
        try:
            yield
        except DriverError as error:
            said = self.text.value.decode(errors="replace").strip()
            if not said:
                raise
            raise DriverError(f"{error.message}\n{said}", error.number) from None


class Module:
    """Code in a GPU's memory. It is unloaded when nothing holds it any more."""

    def __init__(self, driver: Driver, device: int, handle: int) -> None:
        self.driver, self.device, self.handle = driver, device, handle
        self.functions: dict[str, int] = {}
        # Not when the process ends: then torch's contexts end as well, in an order that nobody knows.
        weakref.finalize(self, driver.unload, device, handle).atexit = False

    def function(self, name: str, shared_bytes: int = 0) -> int:
        """The handle of a kernel, which may be launched with so much (dynamic) shared memory."""
        if name not in self.functions:
            found = Address()
            with self.driver.on(self.device):
                given = ctypes.byref(found), self.handle, name.encode()
                self.driver.call(f"Looking for the kernel {name}", "cuModuleGetFunction", *given)
            self.functions[name] = found.value or 0
        handle = self.functions[name]
        if shared_bytes > PLAIN_SHARED_BYTES:
            doing = f"Asking for {shared_bytes} bytes of shared memory for the kernel {name}"
            with self.driver.on(self.device):
                self.driver.call(doing, "cuFuncSetAttribute", handle, LARGEST_SHARED_SIZE, shared_bytes)
        return handle

    def attributes(self, name: str) -> dict[str, int]:
        """What a kernel needs: registers of a thread; bytes of shared, constant and local memory (spills); and the most
        threads that a block of it may have."""
        handle, found = self.function(name), {}
        with self.driver.on(self.device):
            for what, number in FUNCTION_ATTRIBUTES.items():
                value = Int()
                given = ctypes.byref(value), number, handle
                self.driver.call(f"Asking about the kernel {name}", "cuFuncGetAttribute", *given)
                found[what] = value.value
        return found
