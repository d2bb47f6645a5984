"""The command line: ``python -m kiln run script.py …`` runs a program on Kiln, whatever compiler it was written for."""

from __future__ import annotations

import argparse
import sys

DESCRIPTION = "Kiln: a compiler for PyTorch programs."

RUN = """\
Run a Python program with Kiln in place of torch's compiler: torch.compile, torch._dynamo and the rest of what
docs/compat.md lists mean Kiln in it. Otherwise as `python script.py` and `python -m module`: the program sees its own
sys.argv, __main__ and sys.path, and its exit status is this command's.
"""

EXAMPLES = """\
examples:
  python -m kiln run train.py --epochs 3
  python -m kiln run -m package.train --epochs 3
  KILN_LOG=breaks,recompiles python -m kiln run train.py

For a test file:  pytest -p kiln.compat.auto test_file.py
In a program:     kiln.install() and kiln.uninstall()
"""


def parser() -> argparse.ArgumentParser:
    plain = argparse.RawDescriptionHelpFormatter
    made = argparse.ArgumentParser("python -m kiln", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=plain)
    commands = made.add_subparsers(dest="command", metavar="command", required=True)
    run = commands.add_parser(
        "run", help="run a program on Kiln", description=RUN, epilog=EXAMPLES, formatter_class=plain
    )
    run.usage = "python -m kiln run [-h] (script | -m module) [argument ...]"
    run.add_argument("-m", dest="module", nargs=argparse.REMAINDER, help="a module to run, as `python -m` would")
    run.add_argument("script", nargs="?", help="a Python file, or a directory or zip file with a __main__.py")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="the program's own arguments")
    return made


def main(arguments: list[str] | None = None) -> int:
    """The exit status."""
    made = parser()
    asked = made.parse_args(arguments)
    from kiln.compat import running

    if asked.module:
        return running.run_module(asked.module[0], asked.module[1:])
    if asked.module is not None or asked.script is None:
        made.error("run: a script or -m module is needed; see `python -m kiln run --help`")
    return running.run_script(asked.script, asked.arguments)


if __name__ == "__main__":
    sys.exit(main())
