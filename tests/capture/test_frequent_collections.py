"""A program that has the garbage collector run after every few objects, and listens to it, is not kept waiting."""

import gc
import os
import sys

import torch

import kiln

PARTS = (os.path.join("kiln", "bytecode"), os.path.join("kiln", "capture", "entry.py"))


def test_nobody_collects_while_a_frame_is_compiled():
    heard, while_compiling = [], []

    def listen(phase, info):
        heard.append(phase)
        if gc.get_threshold()[0] != 1:  # a collection that was due anyway, not one of those that the program asks for
            return
        frame = sys._getframe()
        while frame is not None:
            if any(part in frame.f_code.co_filename for part in PARTS):
                while_compiling.append(frame.f_code.co_name)
            frame = frame.f_back

    def program(x):
        gc.set_threshold(1, 0, 0)
        y = x + 1
        gc.get_count()
        return y * 2

    compiled = kiln.compile(program, backend="eager")
    threshold = gc.get_threshold()
    gc.callbacks.append(listen)
    try:
        made = compiled(torch.ones(2))
        during = gc.get_threshold()
    finally:
        gc.callbacks.remove(listen)
        gc.set_threshold(*threshold)
    assert made.tolist() == [4.0, 4.0]
    assert during == (1, 0, 0)
    assert gc.isenabled()
    assert heard
    assert not while_compiling, sorted(set(while_compiling))
