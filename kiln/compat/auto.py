"""A pytest plugin: ``pytest -p kiln.compat.auto FILE`` collects and runs tests with Kiln under torch's names."""

from __future__ import annotations

from . import install
from .running import install_in_children

install()
install_in_children()


def pytest_report_header() -> str:
    return "kiln: stands in for torch's compiler (kiln.compat.auto)"
