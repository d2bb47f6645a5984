"""Tiny, randomly initialised Hugging Face models: what tests and benchmarks share. Nothing is downloaded.

Each builder returns a model and a function that makes its keyword arguments for a batch size and a length.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported

import torch
import transformers

WORDS = 40  # of the vocabulary
WIDTH = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)

Inputs = Callable[[int, int], dict[str, Any]]


def settings(given: dict[str, Any], **defaults: Any) -> dict[str, Any]:
    """A configuration: the caller's settings before ours."""
    return {**defaults, **given}


def numbers(*shape: int, below: int = WORDS) -> torch.Tensor:
    """Token numbers; never those that mean the end or padding."""
    return torch.randint(3, below, shape)


def attention_mask(batch: int, length: int) -> torch.Tensor:
    """All of each sequence but the last token of the first."""
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[0, -1] = 0
    return mask


def bert(head: str = "BertModel", **more: Any) -> tuple[torch.nn.Module, Inputs]:
    config = transformers.BertConfig(
        **settings(
            more,
            vocab_size=WORDS,
            max_position_embeddings=32,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            problem_type="single_label_classification",  # else the first call sets it
            **WIDTH,
        )
    )

    def inputs(batch: int, length: int) -> dict[str, Any]:
        made = {"input_ids": numbers(batch, length), "attention_mask": attention_mask(batch, length)}
        if head == "BertForSequenceClassification":
            made["labels"] = torch.randint(0, 2, (batch,))
        if head == "BertForMaskedLM":
            made["labels"] = numbers(batch, length)
        return made

    return getattr(transformers, head)(config), inputs


def gpt2(head: str = "GPT2LMHeadModel", **more: Any) -> tuple[torch.nn.Module, Inputs]:
    config = transformers.GPT2Config(
        **settings(
            more,
            vocab_size=WORDS,
            n_positions=32,
            n_embd=16,
            n_layer=2,
            n_head=2,
            bos_token_id=1,
            eos_token_id=2,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
    )

    def inputs(batch: int, length: int) -> dict[str, Any]:
        tokens = numbers(batch, length)
        return {"input_ids": tokens, "labels": tokens} if head == "GPT2LMHeadModel" else {"input_ids": tokens}

    return getattr(transformers, head)(config), inputs


def llama(head: str = "LlamaForCausalLM", masked: bool = True, **more: Any) -> tuple[torch.nn.Module, Inputs]:
    config = transformers.LlamaConfig(
        **settings(
            more, vocab_size=WORDS, max_position_embeddings=32, num_key_value_heads=1, attention_dropout=0.0, **WIDTH
        )
    )

    def inputs(batch: int, length: int) -> dict[str, Any]:
        made: dict[str, Any] = {"input_ids": numbers(batch, length)}
        if masked:
            made["attention_mask"] = attention_mask(batch, length)
        if head == "LlamaForCausalLM":
            made["labels"] = made["input_ids"]
        return made

    return getattr(transformers, head)(config), inputs


def t5(head: str = "T5ForConditionalGeneration", **more: Any) -> tuple[torch.nn.Module, Inputs]:
    config = transformers.T5Config(
        **settings(
            more,
            vocab_size=WORDS,
            d_model=16,
            d_kv=8,
            d_ff=24,
            num_layers=2,
            num_heads=2,
            relative_attention_num_buckets=8,
            dropout_rate=0.0,
            decoder_start_token_id=0,
        )
    )

    def inputs(batch: int, length: int) -> dict[str, Any]:
        made = {"input_ids": numbers(batch, length), "attention_mask": attention_mask(batch, length)}
        if head == "T5ForConditionalGeneration":
            made["labels"] = numbers(batch, length + 1)
        if head == "T5Model":
            made["decoder_input_ids"] = numbers(batch, length + 1)
        return made

    return getattr(transformers, head)(config), inputs


def vit(head: str = "ViTForImageClassification", **more: Any) -> tuple[torch.nn.Module, Inputs]:
    config = transformers.ViTConfig(
        **settings(
            more,
            image_size=16,
            patch_size=4,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            problem_type="single_label_classification",  # else the first call sets it
            **WIDTH,
        )
    )

    def inputs(batch: int, length: int) -> dict[str, Any]:
        """Images have one size; the batch varies. (Other sizes: `interpolate_pos_encoding`.)"""
        made = {"pixel_values": torch.randn(batch, 3, 16, 16)}
        if head == "ViTForImageClassification":
            made["labels"] = torch.randint(0, 2, (batch,))
        return made

    return getattr(transformers, head)(config), inputs


def whisper(head: str = "WhisperForConditionalGeneration", **more: Any) -> tuple[torch.nn.Module, Inputs]:
    config = transformers.WhisperConfig(
        **settings(
            more,
            vocab_size=WORDS,
            d_model=16,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=24,
            decoder_ffn_dim=24,
            num_mel_bins=8,
            max_source_positions=12,
            max_target_positions=32,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
        )
    )

    def inputs(batch: int, length: int) -> dict[str, Any]:
        """Sounds have one length (the encoder insists on it); batch and text vary."""
        made = {"input_features": torch.randn(batch, 8, 24)}
        if head == "WhisperForConditionalGeneration":
            made["labels"] = numbers(batch, length)
        if head == "WhisperModel":
            made["decoder_input_ids"] = numbers(batch, length)
        return made

    return getattr(transformers, head)(config), inputs


BUILDERS: dict[str, Callable[..., tuple[torch.nn.Module, Inputs]]] = {
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
    "t5": t5,
    "vit": vit,
    "whisper": whisper,
}
