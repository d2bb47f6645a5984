"""A sample of odd programs under the watchdog; ``tests/sweep_odd.py`` runs as many as one likes."""

from tests.odd.running import all_programs, run, sample


def test_odd_programs_come_to_an_end_and_do_what_python_does():
    programs = sample(300, seed=20261116)
    found = run(programs)
    assert (found.hung, found.crashed, found.different) == ([], [], [])
    assert found.ran == len(programs)


def test_the_watchdog_ends_what_does_not_end():
    endless = next(program for program in all_programs() if program.name == "count / for / given")
    assert run([endless], seconds=0.01).ran == 0
