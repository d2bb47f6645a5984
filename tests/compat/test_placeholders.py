"""Names that Kiln has no counterpart of: importing them is fine, using them says what is missing and what to do."""

import contextlib
import importlib
import typing

import pytest
import torch

import kiln
from kiln import exc
from kiln.compat.outlines import evaluated, outline

PENDING = [
    ("torch._functorch.partitioners", "draw_graph", "torch's own compiler"),
    ("functorch.compile", "ts_compile", "torch's own compiler"),
    ("torch._inductor.compile_fx", "compile_fx_inner", "code generation"),
    ("torch._dynamo.symbolic_convert", "InstructionTranslator", "torch's own compiler"),
    ("torch._dynamo.bytecode_transformation", "transform_code_object", "torch's own compiler"),
    ("torch._inductor.graph", "GraphLowering", "torch's own compiler"),
]


@pytest.mark.parametrize(("module", "name", "topic"), PENDING, ids=lambda value: value)
def test_an_error_when_used_not_when_imported(installed, module, name, topic):
    namespace: dict = {}
    exec(f"from {module} import {name} as thing", namespace)
    with pytest.raises(kiln.exc.NotAvailable) as caught:
        namespace["thing"](1, two=2)
    text = str(caught.value)
    assert name in text and topic in text and "What to do" in text
    assert isinstance(caught.value, kiln.exc.KilnError) and isinstance(caught.value, NotImplementedError)


def test_an_unknown_backend_is_an_error_at_once(installed):
    with pytest.raises(kiln.exc.UnknownBackend, match="did you mean 'eager'"):
        torch.compile(lambda x: x, backend="eagr")
    with pytest.raises(torch._dynamo.exc.InvalidBackend):
        torch._dynamo.lookup_backend("eagr")


def test_naming_in_programs_is_no_use(installed):
    translator = torch._dynamo.symbolic_convert.InstructionTranslator
    error = (
        torch._dynamo.exc.ResetRequired if hasattr(torch._dynamo.exc, "ResetRequired") else torch._dynamo.exc.SkipFrame
    )

    class Own(translator):
        pass

    def annotated(a: translator | None, b: "torch._dynamo.bytecode_transformation.Instruction") -> translator[int]:
        return a

    assert not isinstance(1, translator) and issubclass(Own, translator) and typing.get_type_hints(annotated)
    with contextlib.suppress(error):
        raise error
    missing = torch._inductor.compile_fx.compile_fx_inner
    assert repr(missing).startswith("<torch._inductor.compile_fx.compile_fx_inner")
    assert missing.__name__ == "compile_fx_inner" and not hasattr(missing, "__wrapped__")
    with pytest.raises(kiln.exc.NotAvailable):
        _ = missing.attribute
    with pytest.raises(kiln.exc.NotAvailable):
        Own()


def test_once_kiln_has_gone_torchs_own_answers():
    """A file of torch's that was first imported meanwhile has kept the placeholder."""
    with kiln.install():
        kept = importlib.import_module("torch._functorch.partitioners").draw_graph
        kept_class = importlib.import_module("torch._functorch._aot_autograd.schemas").OutputType
        with pytest.raises(kiln.exc.NotAvailable):
            kept()
    with pytest.raises(TypeError, match="draw_graph"):
        kept()
    assert kept_class.alias_of_input.name == "alias_of_input"


def test_plain_data_of_torchs_files_is_the_same_data(installed):
    from torch._inductor.utils import GPU_TYPES

    if isinstance(GPU_TYPES, list):  # up to torch 2.13
        assert "cuda" in GPU_TYPES
    else:
        with pytest.raises(exc.NotAvailable, match="GPU_TYPES"):
            "cuda" in GPU_TYPES  # noqa: B015
    assert torch._dynamo.testing.log.name == "torch._dynamo.testing"
    assert torch._dynamo.testing.unittest is importlib.import_module("unittest")  # what the file itself imports
    assert "same" in outline("torch._dynamo.utils").functions


def test_looking_into_what_is_missing_ends(installed):
    from torch._inductor.utils import get_dtype_size as missing

    with pytest.raises(exc.NotAvailable, match="get_dtype_size"):
        "cuda" in missing  # noqa: B015


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[1, 'two', {3: None}]", [1, "two", {3: None}]),
        ("os.environ.get('NO_SUCH_VARIABLE', '1') == '1'", True),
        ("Config(default=5, env_name_force='X')", 5),
    ],
)
def test_expressions_that_are_data(text, value):
    import ast

    assert evaluated(ast.parse(text, mode="eval").body) == value


@pytest.mark.parametrize("text", ["f()", "os.system('true') or __import__('sys')", "lambda: os.environ", "x + 1"])
def test_expressions_that_are_not(text):
    import ast

    from kiln.compat.outlines import NOTHING

    assert evaluated(ast.parse(text, mode="eval").body) is NOTHING
