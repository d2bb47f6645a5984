"""What `doctor` reports: facts in sections, each with what is wrong and how to mend it, if anything."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import sys
from collections.abc import Callable, Iterator
from typing import Any

from ..platform.light_dataclass import dataclass
from ..platform.support import build_record, native_module, startup, supported, switches
from ..version import VERSION

OK, NOTE, BROKEN = "ok", "note", "broken"
VARIABLES = ("KILN_", "OMP_NUM_THREADS", "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES", "XDG_CACHE_HOME")


@dataclass(eq=False)
class Fact:
    """One line. ``fix`` says what to do about a note or something broken."""

    name: str
    value: Any
    state: str = OK
    fix: str = ""


@dataclass(eq=False)
class Section:
    name: str
    facts: list[Fact]


def collect() -> list[Section]:
    """All facts. A section that cannot be made says why."""
    return [Section(name, list(guarded(collector))) for name, collector in SECTIONS.items()]


def guarded(collector: Callable[[], Iterator[Fact]]) -> Iterator[Fact]:
    try:
        yield from collector()
    except Exception as error:
        yield Fact("not found out", f"{type(error).__name__}: {error}", BROKEN)


def broken(sections: list[Section]) -> list[Fact]:
    return [fact for section in sections for fact in section.facts if fact.state == BROKEN]


def as_dict(sections: list[Section]) -> dict[str, Any]:
    """The report for programs: the values by section and name, then what is wrong."""
    made: dict[str, Any] = {
        section.name: {fact.name: fact.value for fact in section.facts} for section in sections if section.facts
    }
    wrong = [(section, fact) for section in sections for fact in section.facts if fact.state != OK]
    made["problems"] = [
        {"section": section.name, "name": fact.name, "value": fact.value, "state": fact.state, "fix": fact.fix}
        for section, fact in wrong
    ]
    made["works"] = not broken(sections)
    return made


def torch_module() -> Any:
    """torch; None where there is none."""
    try:
        return importlib.import_module("torch")
    except Exception:  # a damaged torch raises what it likes
        return None


# ---- versions --------------------------------------------------------------------------------------------------------


def versions() -> Iterator[Fact]:
    yield Fact("kiln", VERSION)
    yield Fact("kiln is in", native_module.PACKAGE)
    wrong = supported.python_problem()
    python = f"{platform.python_implementation()} {platform.python_version()}, {sys.executable}"
    if wrong is not None:
        what, _, fix = wrong.partition("\n")
        yield Fact("python", f"{python}: {what}", BROKEN, fix)
    else:
        yield Fact("python", python)
    yield from torch_version()
    yield from package("llvmlite", "Kiln compiles kernels with it")
    if importlib.util.find_spec("llvmlite") is not None:
        from llvmlite import binding

        yield Fact("llvm", ".".join(map(str, binding.llvm_version_info)))
    yield from package("rich", "Kiln shows progress with it")
    yield Fact("system", f"{platform.system()} {platform.release()}, {platform.machine()}")


def torch_version() -> Iterator[Fact]:
    try:
        torch: Any = importlib.import_module("torch")
    except Exception as error:
        fix = f'{sys.executable} -m pip install "{supported.TORCH_RANGE}"'
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == "torch"
        text = "not installed" if is_missing else f"cannot be imported: {type(error).__name__}: {error}"
        yield Fact("torch", text, BROKEN, fix)
        return
    version = str(torch.__version__)
    if supported.is_known_torch(version):
        yield Fact("torch", version)
    elif supported.torch_problem(version) is not None:
        fix = f'{sys.executable} -m pip install "{supported.TORCH_RANGE}"'
        yield Fact("torch", f"{version}: older than what Kiln works with", BROKEN, fix)
    else:
        known = supported.between(supported.TORCH)
        fix = f'Update Kiln, or {sys.executable} -m pip install "{supported.TORCH_RANGE}"'
        yield Fact("torch", f"{version}: newer than Kiln knows ({known})", NOTE, fix)
    gpus = f"CUDA {torch.version.cuda}" if torch.version.cuda else ("ROCm" if torch.version.hip else "CPU alone")
    abi = int(torch.compiled_with_cxx11_abi())
    yield Fact("torch was built", f"for {gpus}, C++11 ABI {abi}, commit {str(torch.version.git_version)[:12]}")


def package(name: str, use: str) -> Iterator[Fact]:
    try:
        yield Fact(name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        yield Fact(name, f"not installed; {use}", BROKEN, f"{sys.executable} -m pip install {name}")


# ---- the native module -----------------------------------------------------------------------------------------------


def native() -> Iterator[Fact]:
    path = native_module.find()
    if path is not None:
        yield Fact("file", path)
        yield from record_of(path)
    torch = torch_module()
    if torch is None:
        yield Fact("loaded", "no, it needs torch", BROKEN, "Install torch first, see above.")
        return
    if startup.problem is None:
        yield Fact("loaded", "yes")
        return
    if isinstance(startup.problem, native_module.NotLoaded):
        problem = startup.problem.problem
        yield Fact("loaded", f"no: {problem.what} {problem.why}".rstrip(), BROKEN, problem.fix)
    else:
        what, _, fix = str(startup.problem).partition("\n")
        yield Fact("loaded", f"no: {what}", BROKEN, fix)


def record_of(path: str) -> Iterator[Fact]:
    try:
        record = build_record.read(path)
    except (OSError, ValueError):
        return  # said by what keeps it from being loaded
    yield Fact("built for", f"Kiln {record['kiln']}, torch {record['torch']}, {record['python']}")
    again = native_module.how_to_build(record["torch"])
    if build_record.checksum(path) != record["checksum"]:
        yield Fact("changed since", "the file is not the one that the build made (stripped, or damaged)", NOTE, again)
    if native_module.source_tree() is not None:
        sources = os.path.join(native_module.PACKAGE, "native")
        newest = max(
            os.path.getmtime(os.path.join(folder, name))
            for folder, _, names in os.walk(sources)
            for name in names
            if name.endswith((".cpp", ".h"))
        )
        if newest > os.path.getmtime(path):
            yield Fact("sources", "newer than the module", NOTE, again)


# ---- the machine -----------------------------------------------------------------------------------------------------


def cpu() -> Iterator[Fact]:
    from ..platform import cpu_info

    flags = cpu_info.flags()
    yield Fact("model", cpu_info.description().get("model name", platform.processor() or "unknown"))
    yield Fact("vectors", f"{cpu_info.vector_bytes() * 8} bits")
    used = (
        "avx2",
        "fma",
        "f16c",
        "avx512f",
        "avx512bw",
        "avx512dq",
        "avx512vl",
        "avx512_bf16",
        "avx512_fp16",
        "amx_tile",
    )
    yield Fact("features", " ".join(name for name in used if name in flags) or "none of those that Kiln looks for")
    yield Fact("cores", f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} for this process")
    torch = torch_module()
    if torch is None:
        return
    threads = torch.get_num_threads()
    if startup.is_broken():
        yield Fact("threads", threads)
        return
    from .._native import has_openmp

    if has_openmp():
        yield Fact("threads", f"{threads}, those of torch's OpenMP library")
    else:
        fix = "Use a torch that loads GNU's or LLVM's OpenMP library, such as its wheels for Linux."
        yield Fact("threads", "1: torch has loaded no OpenMP library that Kiln knows", NOTE, fix)


def gpu() -> Iterator[Fact]:
    driver = nvidia_driver()
    yield Fact("NVIDIA driver", driver or "none")
    torch = torch_module()
    if torch is None:
        return
    if not torch.version.cuda:
        state = (NOTE, "Install torch with CUDA.") if driver else (OK, "")
        yield Fact("GPUs", "none: this torch was built without CUDA", *state)
        return
    if not torch.cuda.is_available():
        fix = (
            f"Update the driver: this torch needs one for CUDA {torch.version.cuda}. `nvidia-smi` says what it is for."
        )
        yield Fact("GPUs", "none that torch can use", *((NOTE, fix) if driver else (OK, "")))
        return
    for index in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(index)
        text = f"{found.name}, sm_{found.major}{found.minor}, {found.total_memory / 1e9:.0f} GB"
        yield Fact(f"GPU {index}", text)
    if startup.is_broken():
        return
    from ..loops import gpu_generators

    text = "drawn in kernels" if gpu_generators.is_known() else "drawn by ATen: how this torch draws is not known"
    yield Fact("random numbers", text)


def nvidia_driver() -> str:
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8", errors="replace") as file:
            words = file.readline().split()
    except OSError:
        return ""
    return next((word for word in words if word[:1].isdigit() and "." in word), " ".join(words))


# ---- files, settings -------------------------------------------------------------------------------------------------


def caches() -> Iterator[Fact]:
    if torch_module() is None or startup.is_broken():
        yield Fact("compiled programs", "not known, as Kiln is not loaded")
        return
    from ..config import config
    from ..program import disk_cache

    folder = disk_cache.directory()
    yield Fact("directory", folder)
    if not disk_cache.is_on():
        yield Fact("used", "no: kiln.config.cache is False, or this system has no owners of files", NOTE)
        return
    try:
        entries = disk_cache.entries()
        size = sum(entry.size for entry in entries) / 1e6
        yield Fact("entries", len(entries))
        yield Fact("size", f"{size:.1f} MB of at most {config.cache_limit}")
    except OSError as error:
        fix = f"Make it yours alone (chown, chmod go-w {folder}), or name another with KILN_CACHE_DIR."
        yield Fact("entries", f"not used: {error}", NOTE, fix)
        return
    if not can_write(folder):
        fix = "Programs are compiled in each process. Make it writable, or name another with KILN_CACHE_DIR."
        yield Fact("writable", "no", NOTE, fix)
    else:
        yield Fact("writable", "yes")


def can_write(folder: str) -> bool:
    """Whether files can be made there, once it exists."""
    while not os.path.exists(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    return os.access(folder, os.W_OK | os.X_OK)


def settings() -> Iterator[Fact]:
    for name, value in sorted(os.environ.items()):
        if name.startswith(VARIABLES):
            yield Fact(name, value)
    if torch_module() is None or startup.is_broken():
        return
    from ..compat import is_installed
    from ..config import config, defaults

    usual = defaults()
    for name, value in config.as_dict().items():
        if value != usual[name]:
            shown = sorted(value) if isinstance(value, frozenset) else value
            yield Fact(f"kiln.config.{name}", shown)
    yield Fact("kiln.install", "active: torch.compile means Kiln" if is_installed() else "not active")


# ---- assumptions -----------------------------------------------------------------------------------------------------


def self_check() -> Iterator[Fact]:
    """What Kiln assumes about torch and CPython, tried now; and what is switched off."""
    if torch_module() is None or startup.is_broken():
        yield Fact("not made", "Kiln is not loaded")
        return
    from ..platform.support import assumptions

    # A part that is switched off cannot be tried again.
    findings = assumptions.examine() if startup.findings is None else startup.findings
    for finding in findings:
        assumption = finding.assumption
        if finding.problem is None:
            yield Fact(assumption.name, "as expected")
            continue
        fix = f'Install a torch that this Kiln knows:  {sys.executable} -m pip install "{supported.TORCH_RANGE}"'
        if switches.reason_off(assumption.part) is None:
            fix += f"\nUntil then, {startup.SELF_CHECK}=1 switches off what relies on it: {assumption.part}."
        yield Fact(assumption.name, finding.problem, BROKEN, fix)
    for part, reason in switches.all_off().items():
        yield Fact(f"off: {part}", f"{reason}. Instead, {switches.INSTEAD[part]}.", BROKEN)
    if not switches.all_off():
        yield Fact("switched off", "nothing")


SECTIONS: dict[str, Callable[[], Iterator[Fact]]] = {
    "versions": versions,
    "native module": native,
    "CPU": cpu,
    "GPU": gpu,
    "cache": caches,
    "settings": settings,
    "self-check": self_check,
}
