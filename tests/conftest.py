"""Every test runs with Kiln's own bugs raised, never hidden behind eager, and with a cache that is not the user's.

Where a test names no backend, it is about capture: the graph then runs as it is. ``KILN_TEST_BACKEND=kiln pytest …``
runs those tests through machine code. Tests of code generation (`lower`, `target`, `codegen`) name the backend.
"""

import os

import pytest

import kiln


@pytest.fixture(autouse=True)
def raise_internal_errors():
    backend = os.environ.get("KILN_TEST_BACKEND", "eager")
    with kiln.config.patch(raise_internal_errors=True, backend=backend):
        yield


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_session(tmp_path_factory):
    """Programs that tests compile are kept in a directory of the session's own, also by processes that they start."""
    before = os.environ.get("KILN_CACHE_DIR")
    os.environ["KILN_CACHE_DIR"] = str(tmp_path_factory.mktemp("kiln_cache"))
    yield
    if before is None:
        del os.environ["KILN_CACHE_DIR"]
    else:
        os.environ["KILN_CACHE_DIR"] = before


def pytest_collection_modifyitems(items):
    """Tests that collect all garbage many times come first, while there is little to look through."""
    items.sort(key=lambda item: not item.nodeid.startswith(COLLECTING))


COLLECTING = ("tests/test_leaks.py", "tests/engine/test_engine_memory.py", "tests/capture/guards/test_module_guards.py")
