"""`make asan`: the tests that exercise the native module, on a build of it that checks its memory and its arithmetic.

    python tests/sanitized.py [arguments of pytest]

The module is built into ``build/asan`` with gcc's address and undefined-behaviour sanitizers; beside it are links to
the rest of the package, so that the usual build is left alone. Any report is a failure, whatever the tests say.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "asan"
PACKAGE = BUILD / "lib" / "kiln"
REPORTS = BUILD / "reports"
TESTS = [
    "tests/native",
    "tests/engine",
    "tests/aot",
    "tests/program",
    "tests/target/test_cuda_driver.py",
    "tests/target/test_cuda_launches.py",
    "tests/target/test_cuda_draws.py",
    "tests/target/test_launch_table.py",
    "tests/codegen/test_cuda_graphs.py",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "capture").rglob("test_*guards*.py")),
]
LEFT_OUT = [
    # It measures resident memory, and the sanitizer keeps what was freed.
    "--deselect=tests/capture/guards/test_module_guards.py::test_a_thousand_models_made_and_dropped_leave_memory_flat",
]
OPTIONS = [
    # CPython and torch free neither their types nor their registries at exit: leaks would be reported by the thousand.
    "detect_leaks=0",
    # Tests ask for more memory than there is: torch's error, of which the sanitizer only warns.
    "allocator_may_return_null=1",
    f"log_path={REPORTS / 'report'}",
]
FINDINGS = ("ERROR: AddressSanitizer", "runtime error:")


def build() -> None:
    """The module, with sanitizers, and links to everything else in the package."""
    folders = [f"--build-lib={BUILD / 'lib'}", f"--build-temp={BUILD / 'objects'}"]
    environment = dict(os.environ, KILN_SANITIZE="1")
    subprocess.run([sys.executable, "setup.py", "-q", "build_ext", *folders], cwd=ROOT, env=environment, check=True)
    for path in PACKAGE.iterdir():
        if path.is_symlink():
            path.unlink()
    for path in (ROOT / "kiln").iterdir():
        if path.suffix not in (".so", ".json") and path.name != "__pycache__":
            (PACKAGE / path.name).symlink_to(path)


def library(name: str) -> str:
    """The path of a library that comes with the compiler."""
    command = [os.environ.get("CXX", "g++"), f"-print-file-name={name}"]
    return str(Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()).resolve())


def environment() -> dict[str, str]:
    """What a process needs to run on the sanitized module."""
    return {
        **os.environ,
        # The sanitizer has to come before anything that allocates; it looks for what throws exceptions right away.
        "LD_PRELOAD": f"{library('libasan.so')} {library('libstdc++.so')}",
        "ASAN_OPTIONS": ":".join(OPTIONS),
        "UBSAN_OPTIONS": ":".join(["print_stacktrace=1", OPTIONS[-1]]),
        "PYTHONMALLOC": "malloc",  # CPython's own allocator would hide what happens to its objects
        "PYTHONPATH": str(PACKAGE.parent),
        "PYTHONSAFEPATH": "1",  # not the package of the directory that tests are run in
    }


def main(arguments: list[str]) -> int:
    build()
    shutil.rmtree(REPORTS, ignore_errors=True)
    REPORTS.mkdir()
    python, settings = [sys.executable], environment()
    check = "import kiln._native as native; print(native.__file__)"
    told = subprocess.run([*python, "-c", check], env=settings, cwd=ROOT, check=True, capture_output=True, text=True)
    if Path(told.stdout.strip()).parent != PACKAGE:
        print(f"not the sanitized module: {told.stdout.strip()}")
        return 1
    # pytest's own handler of crashes would hide the sanitizer's.
    command = ["-m", "pytest", "-q", "-p", "no:faulthandler", "-p", "no:cacheprovider", "--timeout", "3000", *LEFT_OUT]
    tests = [] if any(argument.startswith("tests") for argument in arguments) else TESTS
    status = subprocess.run([*python, *command, *arguments, *tests], env=settings, cwd=ROOT).returncode
    reports = [path.read_text(errors="replace") for path in sorted(REPORTS.iterdir())]
    reports = [report for report in reports if any(finding in report for finding in FINDINGS)]
    for report in reports:
        print(report)
    print(f"{len(reports)} reports of the sanitizers")
    return status or bool(reports)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
