"""Native tuples that may have more fields than elements: `time.struct_time`, `os.stat_result`, those of `sys`."""

import copy
import os
import sys
import time

import pytest

import kiln
from kiln.testing import check
from tests.support.program_table import X

MOMENT, STATUS = time.gmtime(86_400), os.stat(os.path.dirname(os.path.abspath(__file__)))

PROGRAMS = {
    "argument": lambda x, moment=MOMENT: (x + moment.tm_yday, moment[0], moment.tm_zone, len(moment)),
    "status": lambda x, status=STATUS: (x + 1, status.st_mode, status.st_mtime_ns, len(status)),
    "made inside": lambda x: (x + time.gmtime(0).tm_year, time.gmtime(0).tm_zone),
    "constructed": lambda x: (x + 1, time.struct_time((1, 2, 3, 4, 5, 6, 7, 8, 9)), print(end="")),
    "copied": lambda x: (x + 1, copy.copy(MOMENT), copy.deepcopy(MOMENT) == MOMENT),
    "in a container": lambda x, items=(MOMENT,): (x + 1, [each for each in items], items[0] is MOMENT),
    "of sys": lambda x: (x + 1, sys.float_info.max, tuple(sys.float_info)[:2], sys.flags.optimize, sys.hash_info.width),
    "version": lambda x: x + 1 if sys.version_info >= (3, 8) and sys.version_info[:1] == (3,) else x - 1,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name):
    check(PROGRAMS[name], X)


def test_those_of_sys_are_constants():
    program = PROGRAMS["of sys"]
    assert kiln.compile(program, backend="eager", fullgraph=True)(X)[1:] == program(X)[1:]
    kiln.compile(PROGRAMS["version"], backend="eager", fullgraph=True)(X)
