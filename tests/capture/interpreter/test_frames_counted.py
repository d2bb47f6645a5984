"""Functions that count frames, or listen to them, see those that Python would have."""

import sys

import kiln


def test_lines_of_a_traced_function():
    def traced(number):
        doubled = number * 2
        return doubled + 1

    def program(number):
        lines = []

        def listen(frame, event, argument):
            if frame.f_code is traced.__code__ and event == "line":
                lines.append(frame.f_lineno - traced.__code__.co_firstlineno)
            return listen

        before = sys.gettrace()
        sys.settrace(listen)
        try:
            found = traced(number)
        finally:
            sys.settrace(before)
        return found, lines

    assert kiln.compile(program, backend="eager")(3) == program(3) == (7, [1, 2])


def test_entries_of_a_traceback():
    def failing():
        raise ValueError("here")

    def program(function):
        try:
            function()
        except ValueError as error:
            entry = error.__traceback__
        names = []
        while entry is not None:
            names.append(entry.tb_frame.f_code.co_name)
            entry = entry.tb_next
        return names

    def calling():
        return program(failing)

    assert program(failing) == ["program", "failing"]
    assert kiln.compile(program, backend="eager")(failing) == program(failing)
    assert kiln.compile(calling, backend="eager")() == program(failing)


def test_limit_of_recursion():
    def set_limit(more):
        depth = 1
        while True:
            try:
                sys.setrecursionlimit(depth)
                break
            except RecursionError:
                depth += 1
        sys.setrecursionlimit(depth + more)

    def program(more):
        limit = sys.getrecursionlimit()
        try:
            set_limit(more)
            try:
                return recurse(0)
            except RecursionError:
                return "too deep"
        finally:
            sys.setrecursionlimit(limit)

    def recurse(depth):
        return recurse(depth + 1)

    assert kiln.compile(program, backend="eager")(50) == program(50) == "too deep"
