"""LLVM text becomes functions in memory: compiled, linked with what torch has loaded, freed when nobody uses them."""

import ctypes
import gc
import subprocess
import sys
import threading
import weakref

import pytest
import torch

from kiln.exc import KilnError
from kiln.target import compile_queue
from kiln.target.cpu import elf, jit

ADD = """
define void @add(ptr %p, ptr %s, i64 %t) {
  %a = load double, ptr %p
  %b = fadd double %a, 1.5
  store double %b, ptr %p
  ret void
}
"""

LIBM = """
declare double @pow(double, double)
declare float @llvm.exp.f32(float)
define double @power(double %a, double %b) {
  %r = call double @pow(double %a, double %b)
  ret double %r
}
define float @exponential(float %a) {
  %r = call float @llvm.exp.f32(float %a)
  ret float %r
}
"""

PARALLEL = """
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
define internal void @body(ptr %out) {
  %number = call i32 @omp_get_thread_num()
  %wide = sext i32 %number to i64
  %place = getelementptr i32, ptr %out, i64 %wide
  %count = call i32 @omp_get_num_threads()
  store i32 %count, ptr %place
  ret void
}
define void @run(ptr %out, i32 %threads) {
  call void @GOMP_parallel(ptr @body, ptr %out, i32 %threads, i32 0)
  ret void
}
"""

TABLE = """
@numbers = internal constant [4 x i32] [i32 10, i32 20, i32 30, i32 40]
@where = internal constant ptr @numbers
define i32 @pick(i64 %i) {
  %base = load ptr, ptr @where
  %p = getelementptr i32, ptr %base, i64 %i
  %r = load i32, ptr %p
  %q = getelementptr [4 x i32], ptr @numbers, i64 0, i64 %i
  %s = load i32, ptr %q
  %t = add i32 %r, %s
  ret i32 %t
}
"""


def call(module, name, result, *types):
    return ctypes.CFUNCTYPE(result, *types)(module.address(name))


def test_a_function_runs():
    module = jit.compile_module(ADD)
    value = ctypes.c_double(1.0)
    call(module, "add", None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(ctypes.addressof(value), 0, 1)
    assert value.value == 2.5
    assert module.names == ["add"]


def test_object_code_is_loaded_again():
    module = jit.load_object(jit.compile_object(LIBM))
    assert call(module, "power", ctypes.c_double, ctypes.c_double, ctypes.c_double)(2.0, 10.0) == 1024.0
    assert call(module, "exponential", ctypes.c_float, ctypes.c_float)(0.0) == 1.0


def test_the_same_text_gives_the_same_object_code():
    assert jit.compile_object(LIBM) == jit.compile_object(LIBM)


def test_threads_are_those_of_torch():
    module = jit.compile_module(PARALLEL)
    counts = (ctypes.c_int32 * 2)()
    call(module, "run", None, ctypes.c_void_p, ctypes.c_int32)(ctypes.addressof(counts), 2)
    assert list(counts) == [2, 2]
    assert jit.address_of("GOMP_parallel") == ctypes.cast(jit.torch_library().GOMP_parallel, ctypes.c_void_p).value


def test_constants_and_addresses_of_constants():
    module = jit.compile_module(TABLE)
    pick = call(module, "pick", ctypes.c_int32, ctypes.c_int64)
    assert [pick(place) for place in range(4)] == [20, 40, 60, 80]


@pytest.mark.parametrize("threads", [2, 8])
def test_several_modules_on_several_threads(threads, monkeypatch):
    monkeypatch.setattr(compile_queue, "thread_count", lambda: threads)

    def texts():
        for number in range(12):
            yield ADD.replace("@add", f"@add{number}").replace("1.5", f"{number}.0")

    modules = [jit.load_object(code) for code in jit.compile_objects(texts())]
    for number, module in enumerate(modules):
        value = ctypes.c_double(0.25)
        function = call(module, f"add{number}", None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        function(ctypes.addressof(value), 0, 1)
        assert value.value == number + 0.25
    assert jit.compile_objects([]) == []


def test_the_error_of_one_of_several_modules_is_raised_and_all_goes_on():
    with pytest.raises(jit.CompileError):
        jit.compile_objects([ADD, "this is no module", ADD])

    def failing():
        yield ADD
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        jit.compile_objects(failing())
    assert len(jit.compile_objects([ADD, ADD])) == 2


def test_without_more_threads_one_does_it_all(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    modules = [jit.load_object(code) for code in jit.compile_objects([ADD, LIBM])]
    assert [module.names for module in modules] == [["add"], ["power", "exponential"]]


def test_many_threads_at_once():
    results, errors = [], []

    def work(number):
        try:
            for _ in range(5):
                module = jit.compile_module(ADD.replace("1.5", f"{number}.0"))
                value = ctypes.c_double(0.0)
                call(module, "add", None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(
                    ctypes.addressof(value), 0, 1
                )
                results.append(value.value == number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and results == [True] * 30


@pytest.mark.parametrize(
    "text",
    [
        "define void @f(",
        "define i32 @f() {\n ret void\n}",
        "define void @f() {\n call void @missing()\n ret void\n}",
        "declare void @no_such_name()\ndefine void @f() {\n call void @no_such_name()\n ret void\n}",
        "@v = global i32 0\ndefine void @f() {\n store i32 1, ptr @v\n ret void\n}",
    ],
    ids=["syntax", "types", "undeclared", "unresolved", "variable"],
)
def test_mistakes_are_errors_of_kiln(text):
    with pytest.raises(KilnError):
        jit.compile_module(text)
    assert jit.compile_module(ADD).names == ["add"]


def test_a_name_that_is_not_there():
    with pytest.raises(jit.CompileError, match="no function other"):
        jit.compile_module(ADD).address("other")


def test_memory_is_freed_with_the_module():
    module = jit.compile_module(ADD)
    memory, address = weakref.ref(module.image), module.address("add")
    assert mapped(address)
    del module
    gc.collect()
    assert memory() is None
    code = jit.compile_object(ADD)
    before = mapping_count()
    for _ in range(50):
        jit.load_object(code)
    assert mapping_count() <= before + 3


def mapped(address):
    with open("/proc/self/maps") as file:
        for line in file:
            first, last = (int(part, 16) for part in line.split()[0].split("-"))
            if first <= address < last:
                return line.split()[1]
    return None


def mapping_count():
    with open("/proc/self/maps") as file:
        return sum(1 for _ in file)


def test_code_is_never_writable_and_executable():
    module = jit.compile_module(TABLE)
    assert mapped(module.address("pick")) == "r-xp"


def test_loading_needs_no_llvm():
    code = jit.compile_object(LIBM)
    program = f"""
import ctypes, sys
from kiln.target.cpu import jit
module = jit.load_object(bytes.fromhex({code.hex()!r}))
power = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double, ctypes.c_double)(module.address("power"))
print(power(3.0, 2.0), "llvmlite" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["9.0", "False"]


def test_damaged_object_code_is_refused_or_loads():
    """Never another error, and never a crash while loading."""
    code = jit.compile_object(TABLE)
    generator = torch.Generator().manual_seed(0)
    refused = 0
    for _ in range(300):
        place, value = (int(torch.randint(limit, (), generator=generator)) for limit in (len(code), 256))
        damaged = bytearray(code)
        damaged[place] = value
        try:
            elf.load(bytes(damaged), jit.address_of)
        except KilnError:
            refused += 1
    for length in range(0, len(code), 37):
        try:
            elf.load(code[:length], jit.address_of)
        except KilnError:
            refused += 1
    assert refused > 20
