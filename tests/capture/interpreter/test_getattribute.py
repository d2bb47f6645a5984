"""A ``__getattribute__`` of the program's runs where the program runs it, and nowhere else."""

import torch

from kiln.testing import check


class Watched:
    """Notes what is asked of it."""

    def __init__(self, log):
        object.__setattr__(self, "log", log)
        object.__setattr__(self, "value", 2)

    def __getattribute__(self, name):
        object.__getattribute__(self, "log").append(name)
        return object.__getattribute__(self, name)

    def __call__(self, x):
        return x + self.value

    def __len__(self):
        return 2


def test_only_the_program_asks():
    def setup():
        log, made = [], []
        watched = Watched(log)

        def program(x):
            kept = [watched, (watched, 1), {"key": watched}]
            watched.value += 1
            fresh = Watched(log)
            fresh.value = kept[0].value
            assert isinstance(watched, Watched) and not isinstance(watched, dict)
            made.append((fresh,))
            return x * watched.value, watched(x), len(watched), bool(watched), watched is kept[0], x + made[-1][0].value

        return program, [(torch.ones(2),), (torch.ones(2),)], log

    check(setup=setup, fullgraph=True)
