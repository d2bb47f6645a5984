"""The command line: ``python -m kiln run script.py …`` runs a program on Kiln, whatever compiler it was written for;
``python -m kiln cache`` shows and clears the compiled programs that are kept on disk; ``python -m kiln doctor`` says
what this installation consists of and what is wrong with it, also where Kiln itself cannot be loaded."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kiln.platform.support import startup
from kiln.version import VERSION

if TYPE_CHECKING:
    from kiln.program.disk_cache import Entry

DESCRIPTION = "Kiln: a compiler for PyTorch programs."

RUN = """\
Run a Python program with Kiln in place of torch's compiler: torch.compile, torch._dynamo and the rest of what
docs/compat.md lists mean Kiln in it. Otherwise as `python script.py` and `python -m module`: the program sees its own
sys.argv, __main__ and sys.path, and its exit status is this command's.
"""

CACHE = """\
Show or clear the compiled programs that Kiln keeps on disk, so that a program starts at once the next time. They are in
the directory that KILN_CACHE_DIR names, else in ~/.cache/kiln; kiln.config.cache_limit is how many megabytes they may
take, and kiln.config.cache = False does without.
"""

DOCTOR = """\
Print what this installation of Kiln consists of: versions, the native module, CPU, GPU, caches, settings; try what Kiln
assumes about torch; say what is wrong, what is switched off and why, and how to mend it. The exit status is 1 where
something is broken.
"""

EXAMPLES = """\
examples:
  python -m kiln run train.py --epochs 3
  python -m kiln run -m package.train --epochs 3
  KILN_LOG=breaks,recompiles python -m kiln run train.py
  python -m kiln doctor

For a test file:  pytest -p kiln.compat.auto test_file.py
In a program:     kiln.install() and kiln.uninstall()

environment:
  KILN_LOG              what to print while compiling, comma separated: stages, graph, guards, breaks, recompiles, code,
                        trace, aot, engine, backward, ir, kernels, ptx (of programs for a GPU), cuda_graphs,
                        platform (the self-check at import, where there is one)
  KILN_DISABLE_KERNELS  operators or kernels that ATen is to run, comma separated: aten.gelu,kiln_exp_sum_3
  KILN_CACHE_DIR        where compiled programs are kept
  KILN_SELF_CHECK       1: try at import what Kiln assumes about torch, and switch off what does not hold
  CUDA_LAUNCH_BLOCKING  1: an error on a GPU is that of the kernel which raised it

kiln.explain(f)(*args) tells what became of a call, kiln.explain(f, profile=True)(*args) how long its kernels take.
"""


def parser() -> argparse.ArgumentParser:
    plain = argparse.RawDescriptionHelpFormatter
    made = argparse.ArgumentParser("python -m kiln", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=plain)
    made.add_argument("--version", action="version", version=f"kiln {VERSION}")
    commands = made.add_subparsers(dest="command", metavar="command", required=True)
    run = commands.add_parser(
        "run", help="run a program on Kiln", description=RUN, epilog=EXAMPLES, formatter_class=plain
    )
    run.usage = "python -m kiln run [-h] (script | -m module) [argument ...]"
    run.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="a module to run, as `python -m` would")
    run.add_argument("script", nargs="?", help="a Python file, or a directory or zip file with a __main__.py")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="the program's own arguments")
    cache = commands.add_parser("cache", help="show or clear the compiled programs on disk", description=CACHE)
    cache.formatter_class = plain
    doctor = commands.add_parser("doctor", help="say what is installed, what is wrong and how to mend it")
    doctor.description, doctor.formatter_class = DOCTOR, plain
    doctor.add_argument("--json", action="store_true", help="print it for programs")
    cache.add_argument("what", nargs="?", choices=("show", "clear"), default="show", help="show (the default) or clear")
    return made


def main(arguments: list[str] | None = None) -> int:
    """The exit status."""
    made = parser()
    asked = made.parse_args(arguments)
    if asked.command == "doctor":
        from kiln.doctor import main as doctor

        return doctor(as_json=asked.json)
    if startup.is_broken():
        print(f"{startup.problem}\nMore: python -m kiln doctor", file=sys.stderr)
        return 1
    if asked.command == "cache":
        return clear_cache() if asked.what == "clear" else show_cache()
    from kiln.compat import running

    if asked.module:
        return running.run_module(asked.module[0], asked.module[1:])
    if asked.module is not None or asked.script is None:
        made.error("run: a script or -m module is needed; see `python -m kiln run --help`")
    return running.run_script(asked.script, asked.arguments)


def show_cache() -> int:
    from kiln.config import config
    from kiln.program import disk_cache

    print(f"place:   {disk_cache.directory()}")
    try:
        found = disk_cache.entries()
    except OSError as error:
        print(f"not used: {error}")
        return 1
    print(f"entries: {len(found)}")
    print(f"size:    {megabytes(found)} of at most {config.cache_limit} MB")
    if found:
        print(f"used:    {ago(found[0].used)} last, {ago(found[-1].used)} the one that goes first")
    return 0


def clear_cache() -> int:
    from kiln.program import disk_cache

    try:
        gone = disk_cache.clear()
    except OSError as error:
        print(f"{disk_cache.directory()} cannot be cleared: {error}")
        return 1
    print(f"{len(gone)} entries removed ({megabytes(gone)}) from {disk_cache.directory()}")
    return 0


def megabytes(entries: Sequence[Entry]) -> str:
    return f"{sum(entry.size for entry in entries) / 1e6:.1f} MB"


def ago(moment: float) -> str:
    seconds = max(time.time() - moment, 0.0)
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} seconds ago"


if __name__ == "__main__":
    sys.exit(main())
