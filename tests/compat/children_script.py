"""A program that starts processes in every way there is, and prints as JSON which compiler each of them has."""

import json
import multiprocessing
import subprocess
import sys
import threading
import time

import torch


def compiler() -> str:
    """Whose ``torch.compile`` this process has, tried out."""
    assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2)).tolist() == [2.0, 2.0]
    return torch.compile.__module__.partition(".")[0]


def report(queue) -> None:
    queue.put(compiler())


def report_spawned(index, queue) -> None:
    queue.put(compiler())


def started(method: str) -> str:
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=report, args=(queue,))
    process.start()
    found = queue.get(timeout=120)
    process.join(60)
    return found


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return compiler()


def loaded(method: str) -> str:
    return next(iter(torch.utils.data.DataLoader(Data(), num_workers=1, multiprocessing_context=method)))[0]


def torch_spawned() -> str:
    queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
    torch.multiprocessing.spawn(report_spawned, (queue,), nprocs=1)
    return queue.get()


TEXT = "import torch; print(torch.compile.__module__.partition('.')[0])"


def started_by_command() -> str:
    return subprocess.run([sys.executable, "-c", TEXT], capture_output=True, text=True, check=True).stdout.strip()


def unaffected() -> list:
    """What a process that does not use torch sees: neither torch nor Kiln, nor Kiln's folder on its path."""
    text = (
        "import sys; print([name in sys.modules for name in ('torch', 'kiln')], any('startup' in p for p in sys.path))"
    )
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout.strip()


def forked_while_compiling() -> str:
    """A child of a process in which another thread is in the middle of compiling."""
    inside, go_on = threading.Event(), threading.Event()

    def slow(graph, inputs):
        inside.set()
        go_on.wait(60)
        return graph.forward

    thread = threading.Thread(target=lambda: torch.compile(lambda x: x * 2, backend=slow)(torch.ones(2)))
    thread.start()
    inside.wait(60)
    try:
        return started("fork")
    finally:
        go_on.set()
        thread.join()


def forked_after_compiling() -> bool:
    """Code that was compiled, and has run in several threads, before the fork, and code compiled after it."""
    body = torch.compile(lambda x: (x.sin() * 2 + 1).relu().cos())
    big = torch.rand(600, 600)
    expected = body(big)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()

    def child():
        torch.set_num_threads(1)
        again = torch.compile(lambda x: (x.cos() * 3).relu())
        queue.put(bool(torch.equal(body(big), expected)) and bool(again(big).sum() > 0))

    process = context.Process(target=child)
    process.start()
    deadline = time.monotonic() + 100
    while queue.empty() and time.monotonic() < deadline and process.is_alive():
        time.sleep(0.05)
    found = queue.get(timeout=10)
    process.join(20)
    return found


if __name__ == "__main__":
    ways = {
        "here": compiler,
        "command": started_by_command,
        "unaffected": unaffected,
        "fork": lambda: started("fork"),
        "spawn": lambda: started("spawn"),
        "forkserver": lambda: started("forkserver"),
        "data loader, fork": lambda: loaded("fork"),
        "data loader, spawn": lambda: loaded("spawn"),
        "torch.multiprocessing.spawn": torch_spawned,
        "forked while compiling": forked_while_compiling,
        "forked after compiling": forked_after_compiling,
    }
    print(json.dumps({name: way() for name, way in ways.items()}))
