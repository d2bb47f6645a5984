"""``python -m kiln doctor``: what this installation of Kiln consists of, what is wrong with it, and how to mend it.

It works where the native module cannot be loaded and where torch is missing: its modules import neither when they are
loaded.
"""

from __future__ import annotations

import json
import sys

from . import facts, text


def main(as_json: bool = False) -> int:
    """Print the report; the exit status is 1 where something is broken."""
    found = facts.collect()
    if as_json:
        print(json.dumps(facts.as_dict(found), indent=2))
    else:
        text.show(found, sys.stdout)
    return 1 if facts.broken(found) else 0
