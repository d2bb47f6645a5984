"""Model families beyond the six that the others test, and `generate()`. (`sweep_models.py` tries many more.)"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import kiln
from kiln.report import counters

transformers = pytest.importorskip("transformers")

from tests.models.families import FAMILIES, tiny, tokens  # noqa: E402
from tests.models.plain_models import PLAIN  # noqa: E402
from tests.models.sweep_models import sweep  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


IN_EVAL = ["mistral", "mixtral", "gemma2", "bloom", "deberta-v2", "modernbert", "swin", "clip", "wav2vec2"]
IN_TRAIN = ["qwen3", "opt", "distilbert", "bart", "convnext"]
PLAINLY = ["resnet", "unet", "diffusion", "lstm", "encoder-mask", "translator", "gpt", "experts", "ranking", "graph"]
PLAINLY += ["teacher", "policy", "checkpoint"]


@pytest.mark.parametrize(
    ("family", "mode"),
    [(name, "eval") for name in IN_EVAL]
    + [(name, "train") for name in IN_TRAIN]
    + [(f"plain-{name}", "train") for name in PLAINLY],
)
def test_a_model_is_captured_whole_and_once_more_for_other_sizes(family: str, mode: str) -> None:
    result = sweep(family, {**FAMILIES, **PLAIN}[family], mode)
    assert result.good, "\n".join([result.line(), *result.breaks, *result.why])


# -- generate ---------------------------------------------------------------------------------------------------------

PROMPT = tokens(2, 5)
PADDED = torch.cat([torch.tensor([[0, 0, 7], [9, 8, 7]]), PROMPT[:, 3:]], 1)
MASK = (PADDED != 0).long()

WAYS: dict[str, dict[str, Any]] = {
    "greedy": dict(input_ids=PROMPT, do_sample=False),
    "padded": dict(input_ids=PADDED, attention_mask=MASK, do_sample=False),
    "sampling": dict(input_ids=PADDED, attention_mask=MASK, do_sample=True, top_k=10, top_p=0.9, temperature=0.8),
    "beams": dict(input_ids=PADDED, attention_mask=MASK, do_sample=False, num_beams=3),
    "static": dict(input_ids=PADDED, attention_mask=MASK, do_sample=False, cache_implementation="static"),
    "without a cache": dict(input_ids=PADDED, attention_mask=MASK, do_sample=False, use_cache=False),
}


def language_model(kind: str) -> torch.nn.Module:
    torch.manual_seed(0)
    if kind == "llama":
        return transformers.LlamaForCausalLM(tiny(transformers.LlamaConfig)).eval()
    return transformers.GPT2LMHeadModel(tiny(transformers.GPT2Config)).eval()


def generated(generate: Callable[..., torch.Tensor], arguments: dict[str, Any], times: int = 2) -> list[torch.Tensor]:
    """The tokens of some calls."""
    torch.manual_seed(3)
    return [generate(max_new_tokens=8, pad_token_id=0, **arguments) for _ in range(times)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_generate_with_a_compiled_forward(kind: str, way: str) -> None:
    expected = generated(language_model(kind).generate, WAYS[way])
    kiln.reset()
    model = language_model(kind)
    model.forward = kiln.compile(model.forward)
    before = counters["frames"]
    seen = generated(model.generate, WAYS[way])
    assert [each.tolist() for each in seen] == [each.tolist() for each in expected]
    assert counters["frames"] - before <= 3  # the prompt, the first token, and all that follow


@pytest.mark.parametrize("way", ["sampling", "static"])
def test_generate_compiled_itself(way: str) -> None:
    expected = generated(language_model("llama").generate, WAYS[way])
    kiln.reset()
    generate = kiln.compile(language_model("llama").generate)
    for last in (False, False, True):
        before = counters["frames"]
        assert [each.tolist() for each in generated(generate, WAYS[way])] == [each.tolist() for each in expected]
        assert not last or counters["frames"] == before  # compiling comes to an end


def test_generate_of_a_compiled_module() -> None:
    expected = generated(language_model("gpt2").generate, WAYS["padded"])
    kiln.reset()
    compiled = kiln.compile(language_model("gpt2"))
    assert [each.tolist() for each in generated(compiled.generate, WAYS["padded"])] == [e.tolist() for e in expected]
