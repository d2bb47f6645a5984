"""BERT, GPT-2, Llama, T5, ViT and Whisper: one graph, eager's outputs and gradients, one recompile when sizes vary.

`check` compares every field of what the model returns, its class, gradients, buffers, random states and warnings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from kiln.testing import Call, check
from tests.models.tiny_models import BUILDERS, Inputs, attention_mask, numbers

SIZES = [(2, 7), (2, 7), (3, 9), (4, 6), (5, 11), (3, 9)]  # (batch, length): the second call must not recompile


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny models: threads only get in each other's way."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def check_model(
    build: Callable[[], tuple[torch.nn.Module, Inputs]], *, train: bool = False, sizes: list = SIZES, **expect: Any
) -> None:
    """Capture whole, and again at most once when sizes vary."""

    def setup() -> tuple[torch.nn.Module, list[Call]]:
        model, inputs = build()
        return model.train(train), [Call(kwargs=inputs(*size)) for size in sizes]

    varied = len(set(sizes)) > 1
    expect = {"graphs": 1 + varied, "recompiles": int(varied), "breaks": 0, **expect}
    check(setup=setup, fullgraph=True, **expect)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", BUILDERS)
def test_training(name, attention):
    """With labels: the loss and all gradients."""
    check_model(lambda: BUILDERS[name](attn_implementation=attention), train=True)


@pytest.mark.parametrize("name", BUILDERS)
def test_evaluation(name):
    check_model(BUILDERS[name])


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", BUILDERS)
def test_evaluation_without_gradients(name, attention):
    with torch.no_grad():
        check_model(lambda: BUILDERS[name](attn_implementation=attention), sizes=SIZES[:2])


@pytest.mark.parametrize("name", ["bert", "t5"])
def test_dropout_draws_what_eager_draws(name):
    rates = {"bert": {"hidden_dropout_prob": 0.3}, "t5": {"dropout_rate": 0.3}}[name]
    check_model(lambda: BUILDERS[name](**rates), train=True, sizes=SIZES[:2])


# -- heads and arguments ----------------------------------------------------------------------------------------------


def with_arguments(name: str, change: Callable[..., dict[str, Any]], **settings: Any):
    """A builder whose arguments are changed by a function of (arguments, batch, length, model)."""

    def build() -> tuple[torch.nn.Module, Inputs]:
        model, inputs = BUILDERS[name](**settings)
        return model, lambda batch, length: change(inputs(batch, length), batch, length, model)

    return build


def plus(**added: Any) -> Callable[..., dict[str, Any]]:
    return lambda arguments, batch, length, model: {**arguments, **added}


def without(*names: str, **added: Any) -> Callable[..., dict[str, Any]]:
    return lambda arguments, *_: {**{k: v for k, v in arguments.items() if k not in names}, **added}


def with_past(arguments: dict[str, Any], batch: int, length: int, model: torch.nn.Module) -> dict[str, Any]:
    """What the model has seen before, in a cache; the call appends to it."""
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=numbers(batch, 4), past_key_values=cache)
    mask = torch.ones(batch, length + 4, dtype=torch.int64)
    return {"input_ids": arguments["input_ids"], "attention_mask": mask, "past_key_values": cache}


def with_spans(arguments: dict[str, Any], batch: int, length: int, model: torch.nn.Module) -> dict[str, Any]:
    first, last = torch.randint(0, length, (2, batch))
    return {**arguments, "start_positions": first, "end_positions": last}


def with_other_images(arguments: dict[str, Any], batch: int, length: int, model: torch.nn.Module) -> dict[str, Any]:
    height, width = 16 + 4 * (length % 4), 16 + 4 * (length % 3)
    return {"pixel_values": torch.randn(batch, 3, height, width), "interpolate_pos_encoding": True}


EVERYTHING = dict(output_hidden_states=True, output_attentions=True)

VARIANTS = {
    "bert, plain": with_arguments("bert", without("attention_mask")),
    "bert, tuple": with_arguments("bert", plus(return_dict=False)),
    "bert, all outputs": with_arguments("bert", plus(**EVERYTHING), attn_implementation="eager"),
    "bert, sequences": lambda: BUILDERS["bert"](head="BertForSequenceClassification"),
    "bert, masked words": lambda: BUILDERS["bert"](head="BertForMaskedLM"),
    "bert, answers": with_arguments("bert", with_spans, head="BertForQuestionAnswering"),
    "gpt2, model": lambda: BUILDERS["gpt2"](head="GPT2Model"),
    "gpt2, mask": with_arguments(
        "gpt2", lambda arguments, batch, length, _: {**arguments, "attention_mask": attention_mask(batch, length)}
    ),
    "gpt2, no cache": with_arguments("gpt2", plus(use_cache=False)),
    "gpt2, past": with_arguments("gpt2", with_past),
    "gpt2, all outputs": with_arguments("gpt2", plus(**EVERYTHING), attn_implementation="eager"),
    "llama, model": lambda: BUILDERS["llama"](head="LlamaModel"),
    "llama, no mask": lambda: BUILDERS["llama"](masked=False),
    "llama, no cache": with_arguments("llama", without("labels", use_cache=False)),
    "llama, past": with_arguments("llama", with_past),
    "llama, last logits": with_arguments("llama", without("labels", logits_to_keep=1)),
    "t5, model": lambda: BUILDERS["t5"](head="T5Model"),
    "t5, encoder": lambda: BUILDERS["t5"](head="T5EncoderModel", feed_forward_proj="gated-gelu"),
    "t5, no mask, no cache": with_arguments("t5", without("attention_mask", use_cache=False)),
    "vit, model": lambda: BUILDERS["vit"](head="ViTModel"),
    "vit, images of other sizes": with_arguments("vit", with_other_images, head="ViTModel"),
    "whisper, model": lambda: BUILDERS["whisper"](head="WhisperModel"),
    "whisper, no cache": with_arguments("whisper", plus(use_cache=False)),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_heads_and_arguments(name):
    check_model(VARIANTS[name], sizes=SIZES[1:5])
