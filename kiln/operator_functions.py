"""The functions of Python's `operator` module as they were when Kiln was imported.

They are what nodes of graphs call. A program may replace `operator.getitem`: its calls then go to the replacement, and
the nodes that Kiln makes and compares must not. So Kiln's own code imports this module in place of `operator`.
"""

from operator import *  # noqa: F403
