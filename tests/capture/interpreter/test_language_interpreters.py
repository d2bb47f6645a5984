"""The programs of the language tests, interpreted under every supported CPython that this machine has."""

import pytest

from tests.support import interpreters


@pytest.mark.parametrize("version", interpreters.SUPPORTED)
def test_programs_under(version):
    result = interpreters.run(version, "tests.capture.interpreter.interpreter_script")
    assert result["wrong"] == {}
    assert result["breaks"] == {}
    assert result["same"] > 100
