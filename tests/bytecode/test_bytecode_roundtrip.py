"""decode and assemble are inverse to each other, on the whole standard library of every interpreter we support."""

import os

import pytest

from tests.support import interpreters


@pytest.mark.parametrize("version", interpreters.SUPPORTED)
def test_standard_library_round_trip(version):
    # The interpreter under test does all files, the others a sixth (all with KILN_TEST_ALL=1).
    everything = interpreters.is_current(version) or os.environ.get("KILN_TEST_ALL")
    result = interpreters.run(version, "tests.bytecode.roundtrip_script", 1 if everything else 6)
    assert result["wrong"] == {}
    assert result["counts"]["code"] > (15000 if everything else 2000)


@pytest.mark.parametrize("version", interpreters.SUPPORTED)
def test_reassembled_library_still_works(version):
    result = interpreters.run(version, "tests.bytecode.running_script")
    assert result["failures"] == []
    assert result["programs"] >= 12
    assert result["functions"] > 500
