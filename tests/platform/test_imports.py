"""Every module of kiln/platform can be imported with this torch: a name that torch does not have fails here."""

from __future__ import annotations

import importlib

import pytest

from tests.structure.imports import ROOT

MODULES = sorted(path.stem for path in (ROOT / "kiln" / "platform").glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("name", MODULES)
def test_names_are_there(name: str) -> None:
    assert importlib.import_module(f"kiln.platform.{name}").__doc__
