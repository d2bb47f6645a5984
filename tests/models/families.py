"""Tiny random models of many Hugging Face families, for the sweep. Nothing is downloaded.

A family is a row: its configuration class, its model class, what kind of input it takes, and what its configuration
needs besides the sizes in `TINY`, of which each configuration takes those it knows.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported

import torch
import transformers

WORDS = 48
IMAGE = 32
Inputs = Callable[[int, int], dict[str, Any]]

# Sizes under all the names that configurations have for them; no dropout under any name.
TINY: dict[str, Any] = {
    **dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "dim", "embedding_size", "word_embed_proj_dim", "embed_dim"), 32
    ),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "hidden_dim", "encoder_ffn_dim", "decoder_ffn_dim"), 48),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "ffn_hidden_size"), 24),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_experts_per_tok", "type_vocab_size"), 2),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_source_positions", "seq_length"), 64),
    **dict.fromkeys(("max_target_positions", "max_sequence_length", "max_seq_len"), 64),
    **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout"), 0.0),
    **dict.fromkeys(("activation_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "classifier_dropout"), 0.0),
    **dict.fromkeys(("hidden_dropout", "drop_path_rate", "layerdrop", "encoder_layerdrop", "decoder_layerdrop"), 0.0),
    **dict.fromkeys(("dropout_rate", "feat_proj_dropout", "final_dropout", "embedding_dropout", "mlp_dropout"), 0.0),
    **dict.fromkeys(
        ("pooler_dropout", "classifier_dropout_prob", "attn_dropout", "emb_dropout", "rotary_dropout"), 0.0
    ),
    **dict.fromkeys(
        ("drop_rate", "attention_probs_dropout", "head_dropout", "ff_dropout", "stochastic_depth_prob"), 0.0
    ),
    "vocab_size": WORDS,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "image_size": IMAGE,
    "patch_size": 8,
}


def tiny(cls: Any, **more: Any) -> Any:
    """A small configuration: what `TINY` says, as far as the class knows the name, and what the family needs."""
    known = {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    known |= set(getattr(cls, "attribute_map", {}))
    mapped = set(getattr(cls, "attribute_map", {}).values()) - set(getattr(cls, "attribute_map", {}))
    sizes = {name: value for name, value in TINY.items() if name in known}
    for name, target in getattr(cls, "attribute_map", {}).items():
        if target in mapped and target in sizes:
            sizes.pop(name, None)  # one name for each size
    return cls(**{**sizes, **more})


def tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randint(3, WORDS, (batch, length))


def mask(batch: int, length: int) -> torch.Tensor:
    """All of each sequence but the last token of the first."""
    made = torch.ones(batch, length, dtype=torch.int64)
    made[0, -1] = 0
    return made


def text(batch: int, length: int) -> dict[str, Any]:
    return {"input_ids": tokens(batch, length), "attention_mask": mask(batch, length)}


def bare_text(batch: int, length: int) -> dict[str, Any]:
    return {"input_ids": tokens(batch, length)}


def causal(batch: int, length: int) -> dict[str, Any]:
    made = text(batch, length)
    return {**made, "labels": made["input_ids"]}


def bare_causal(batch: int, length: int) -> dict[str, Any]:
    made = bare_text(batch, length)
    return {**made, "labels": made["input_ids"]}


def pair(batch: int, length: int) -> dict[str, Any]:
    return {**text(batch, length), "decoder_input_ids": tokens(batch, length + 1)}


def pair_labels(batch: int, length: int) -> dict[str, Any]:
    return {**text(batch, length), "labels": tokens(batch, length + 1)}


def images(batch: int, length: int) -> dict[str, Any]:
    """Images have one size: the batch varies."""
    return {"pixel_values": torch.randn(batch, 3, IMAGE, IMAGE)}


def classified(batch: int, length: int) -> dict[str, Any]:
    return {**images(batch, length), "labels": torch.randint(0, 2, (batch,))}


def sound(batch: int, length: int) -> dict[str, Any]:
    return {"input_values": torch.randn(batch, 400 + 20 * length)}


def both(batch: int, length: int) -> dict[str, Any]:
    return {**text(batch, length), **images(batch, length)}


@dataclasses.dataclass
class Family:
    """One row: names of the classes in transformers, the inputs, and what else the configuration takes."""

    config: str
    model: str
    inputs: Inputs
    more: Any = dataclasses.field(default_factory=dict)

    def __call__(self) -> tuple[torch.nn.Module, Inputs]:
        more = self.more() if callable(self.more) else self.more
        config = tiny(getattr(transformers, self.config), **more)
        return getattr(transformers, self.model)(config), self.inputs


def row(name: str, head: str, inputs: Inputs, more: Any = None, **extra: Any) -> Family:
    return Family(f"{name}Config", name + head, inputs, more or extra)


DECODERS: dict[str, Family] = {
    "mistral": row("Mistral", "ForCausalLM", causal, sliding_window=6),
    "mixtral": row("Mixtral", "ForCausalLM", causal),
    "qwen2": row("Qwen2", "ForCausalLM", causal),
    "qwen2-moe": row("Qwen2Moe", "ForCausalLM", causal),
    "qwen3": row("Qwen3", "ForCausalLM", causal, head_dim=8),
    "qwen3-moe": row("Qwen3Moe", "ForCausalLM", causal, head_dim=8),
    "gemma": row("Gemma", "ForCausalLM", causal, head_dim=8),
    "gemma2": row("Gemma2", "ForCausalLM", causal, head_dim=8, sliding_window=6),
    "gemma3": Family("Gemma3TextConfig", "Gemma3ForCausalLM", causal, dict(head_dim=8, sliding_window=6)),
    "phi": row("Phi", "ForCausalLM", causal),
    "phi3": row("Phi3", "ForCausalLM", causal),
    "opt": row("OPT", "ForCausalLM", causal),
    "bloom": row("Bloom", "ForCausalLM", causal),
    "gpt-neo": row("GPTNeo", "ForCausalLM", causal, attention_types=[[["global", "local"], 1]], window_size=6),
    "gpt-neox": row("GPTNeoX", "ForCausalLM", causal),
    "gpt-j": row("GPTJ", "ForCausalLM", causal, rotary_dim=4, n_inner=48),
    "gpt-bigcode": row("GPTBigCode", "ForCausalLM", causal, n_inner=48),
    "codegen": row("CodeGen", "ForCausalLM", causal, rotary_dim=4, n_inner=48),
    "falcon": row("Falcon", "ForCausalLM", causal),
    "falcon-alibi": row("Falcon", "ForCausalLM", causal, alibi=True, new_decoder_architecture=False),
    "stablelm": row("StableLm", "ForCausalLM", causal),
    "olmo": row("Olmo", "ForCausalLM", causal),
    "olmo2": row("Olmo2", "ForCausalLM", causal),
    "olmoe": row("Olmoe", "ForCausalLM", causal),
    "cohere": row("Cohere", "ForCausalLM", causal),
    "cohere2": row("Cohere2", "ForCausalLM", causal, sliding_window=6),
    "granite": row("Granite", "ForCausalLM", causal),
    "starcoder2": row("Starcoder2", "ForCausalLM", causal),
    "mpt": row("Mpt", "ForCausalLM", causal, expansion_ratio=2),
    "mamba": row("Mamba", "ForCausalLM", bare_causal, state_size=4),
    "mamba2": row(
        "Mamba2", "ForCausalLM", bare_causal, state_size=4, num_heads=8, head_dim=8, n_groups=2, chunk_size=8
    ),
    "rwkv": row("Rwkv", "ForCausalLM", bare_causal, attention_hidden_size=32),
    "recurrent-gemma": row("RecurrentGemma", "ForCausalLM", bare_causal, num_hidden_layers=3, head_dim=8, lru_width=32),
    "deepseek-v3": row(
        "DeepseekV3",
        "ForCausalLM",
        causal,
        q_lora_rank=16,
        kv_lora_rank=8,
        qk_rope_head_dim=4,
        qk_nope_head_dim=4,
        v_head_dim=8,
        num_key_value_heads=4,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
    ),
    "glm4": row("Glm4", "ForCausalLM", causal, head_dim=8),
    "gpt-oss": row("GptOss", "ForCausalLM", causal, head_dim=8, sliding_window=6),
    "llama4": row("Llama4Text", "Model", bare_text, head_dim=8, intermediate_size_mlp=48, moe_layers=[1]),
    "jamba": row("Jamba", "ForCausalLM", causal, attn_layer_offset=1, attn_layer_period=2, use_mamba_kernels=False),
    "nemotron": row("Nemotron", "ForCausalLM", causal),
    "persimmon": row("Persimmon", "ForCausalLM", causal),
    "xglm": row("XGLM", "ForCausalLM", causal, attention_heads=4),
    "biogpt": row("BioGpt", "ForCausalLM", causal),
    "ctrl": row("CTRL", "LMHeadModel", causal, dff=48),
    "openai-gpt": row("OpenAIGPT", "LMHeadModel", causal),
    "smollm3": row("SmolLM3", "ForCausalLM", causal),
}

ENCODERS: dict[str, Family] = {
    "distilbert": row("DistilBert", "ForMaskedLM", causal),
    "roberta": row("Roberta", "ForMaskedLM", causal),
    "xlm-roberta": row("XLMRoberta", "Model", text),
    "albert": row("Albert", "ForMaskedLM", causal, embedding_size=16),
    "electra": row("Electra", "ForPreTraining", text, embedding_size=16),
    "deberta": row("Deberta", "Model", text, relative_attention=True, pos_att_type=["c2p", "p2c"]),
    "deberta-v2": row("DebertaV2", "Model", text, relative_attention=True, pos_att_type=["c2p", "p2c"]),
    "mpnet": row("MPNet", "Model", text),
    "modernbert": row("ModernBert", "ForMaskedLM", causal, local_attention=8, global_attn_every_n_layers=2),
    "longformer": row("Longformer", "Model", text, attention_window=4),
    "bigbird": row("BigBird", "Model", text, attention_type="original_full"),
    "squeezebert": row("SqueezeBert", "Model", text, embedding_size=32),
    "mobilebert": row("MobileBert", "Model", text, embedding_size=16, intra_bottleneck_size=16),
    "convbert": row("ConvBert", "Model", text, embedding_size=16, head_ratio=2),
    "fnet": row("FNet", "Model", bare_text, use_tpu_fourier_optimizations=False),
    "funnel": row("Funnel", "Model", text, block_sizes=[1, 1], d_head=8, d_inner=48, num_decoder_layers=1),
    "roformer": row("RoFormer", "Model", text, embedding_size=32),
    "rembert": row("RemBert", "Model", text, input_embedding_size=16, output_embedding_size=16),
    "camembert": row("Camembert", "ForSequenceClassification", text),
    "flaubert": row("Flaubert", "Model", text, emb_dim=32),
    "xlm": row("XLM", "Model", text, emb_dim=32),
    "xlnet": row("XLNet", "Model", text, d_inner=48),
    "layoutlm": row("LayoutLM", "Model", text),
    "esm": row("Esm", "Model", text, mask_token_id=4, position_embedding_type="rotary"),
    "ibert": row("IBert", "Model", text),
    "nystromformer": row("Nystromformer", "Model", text, num_landmarks=4, segment_means_seq_len=4),
    "canine": row("Canine", "Model", text, num_hash_buckets=64, local_transformer_stride=8),
    "splinter": row("Splinter", "Model", text),
    "dpr": Family("DPRConfig", "DPRQuestionEncoder", text),
    "perceiver": Family(
        "PerceiverConfig",
        "PerceiverForMaskedLM",
        text,
        dict(
            num_latents=4,
            d_latents=32,
            d_model=32,
            num_blocks=1,
            num_self_attends_per_block=2,
            num_self_attention_heads=4,
            num_cross_attention_heads=4,
            qk_channels=32,
            v_channels=32,
        ),
    ),
}

SEQUENCES: dict[str, Family] = {
    "bart": row("Bart", "ForConditionalGeneration", pair_labels),
    "pegasus": row("Pegasus", "ForConditionalGeneration", pair_labels),
    "mbart": row("MBart", "ForConditionalGeneration", pair_labels),
    "marian": row("Marian", "MTModel", pair_labels),
    "blenderbot": row("Blenderbot", "ForConditionalGeneration", pair_labels),
    "m2m100": row("M2M100", "ForConditionalGeneration", pair_labels),
    "led": row(
        "LED",
        "ForConditionalGeneration",
        pair_labels,
        attention_window=4,
        max_encoder_position_embeddings=64,
        max_decoder_position_embeddings=64,
    ),
    "mt5": row("MT5", "ForConditionalGeneration", pair_labels, d_kv=8, relative_attention_num_buckets=8),
    "longt5": row("LongT5", "ForConditionalGeneration", pair, d_kv=8, local_radius=4),
    "switch": row("SwitchTransformers", "ForConditionalGeneration", pair, d_kv=8, num_sparse_encoder_layers=1),
    "prophetnet": row(
        "ProphetNet",
        "ForConditionalGeneration",
        pair_labels,
        num_encoder_layers=2,
        num_decoder_layers=2,
        num_encoder_attention_heads=4,
        num_decoder_attention_heads=4,
    ),
    "fsmt": row("FSMT", "ForConditionalGeneration", pair, src_vocab_size=WORDS, tgt_vocab_size=WORDS),
}

STAGES = dict(hidden_sizes=[16, 32], depths=[1, 1])

VISION: dict[str, Family] = {
    "deit": row("DeiT", "ForImageClassification", classified),
    "beit": row("Beit", "ForImageClassification", classified, use_relative_position_bias=True),
    "swin": row(
        "Swin",
        "ForImageClassification",
        classified,
        embed_dim=16,
        depths=[2, 1],
        num_heads=[2, 4],
        patch_size=4,
        window_size=4,
    ),
    "swinv2": row(
        "Swinv2",
        "ForImageClassification",
        classified,
        embed_dim=16,
        depths=[2, 1],
        num_heads=[2, 4],
        patch_size=4,
        window_size=4,
    ),
    "convnext": row("ConvNext", "ForImageClassification", classified, patch_size=4, num_stages=2, **STAGES),
    "convnextv2": row("ConvNextV2", "ForImageClassification", classified, patch_size=4, num_stages=2, **STAGES),
    "resnet": row("ResNet", "ForImageClassification", classified, embedding_size=16, **STAGES),
    "regnet": row("RegNet", "ForImageClassification", classified, embedding_size=16, groups_width=8, **STAGES),
    "mobilenet-v1": row("MobileNetV1", "ForImageClassification", classified, min_depth=8, depth_multiplier=0.25),
    "mobilenet-v2": row("MobileNetV2", "ForImageClassification", classified, min_depth=8, depth_multiplier=0.25),
    "mobilevit": row(
        "MobileViT",
        "ForImageClassification",
        classified,
        hidden_sizes=[16, 24, 32],
        patch_size=2,
        neck_hidden_sizes=[8, 8, 8, 16, 24, 32, 32],
        num_attention_heads=4,
    ),
    "efficientnet": row(
        "EfficientNet",
        "ForImageClassification",
        classified,
        width_coefficient=0.25,
        depth_coefficient=0.25,
        hidden_dim=320,
    ),
    "segformer": row(
        "Segformer",
        "ForImageClassification",
        classified,
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[4, 2],
        hidden_sizes=[16, 32],
        num_attention_heads=[2, 4],
        mlp_ratios=[2, 2],
        patch_sizes=[7, 3],
        strides=[4, 2],
        decoder_hidden_size=32,
    ),
    "segformer-semantic": row(
        "Segformer",
        "ForSemanticSegmentation",
        images,
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[4, 2],
        hidden_sizes=[16, 32],
        num_attention_heads=[2, 4],
        mlp_ratios=[2, 2],
        patch_sizes=[7, 3],
        strides=[4, 2],
        decoder_hidden_size=32,
    ),
    "detr": row(
        "Detr",
        "ForObjectDetection",
        images,
        lambda: dict(
            use_timm_backbone=False,
            use_pretrained_backbone=False,
            backbone=None,
            num_queries=5,
            backbone_config=tiny(
                transformers.ResNetConfig,
                embedding_size=16,
                hidden_sizes=[16, 32, 32, 32],
                depths=[1, 1, 1, 1],
                out_features=["stage4"],
            ),
        ),
    ),
    "yolos": row("Yolos", "ForObjectDetection", images, num_detection_tokens=4, image_size=[IMAGE, IMAGE]),
    "dinov2": row("Dinov2", "ForImageClassification", classified, mlp_ratio=2),
    "dinov2-registers": row("Dinov2WithRegisters", "Model", images, mlp_ratio=2),
    "vit-mae": row("ViTMAE", "Model", images, decoder_hidden_size=32, decoder_num_attention_heads=4),
    "vit-msn": row("ViTMSN", "ForImageClassification", images),
    "poolformer": row(
        "PoolFormer",
        "ForImageClassification",
        classified,
        hidden_sizes=[8, 16, 16, 32],
        depths=[1, 1, 1, 1],
        patch_size=7,
    ),
    "pvt": row(
        "Pvt",
        "ForImageClassification",
        classified,
        hidden_sizes=[8, 16, 16, 32],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 2, 4],
    ),
    "levit": row(
        "Levit",
        "ForImageClassification",
        classified,
        hidden_sizes=[16, 24, 32],
        num_attention_heads=[2, 3, 4],
        depths=[1, 1, 1],
        key_dim=[8, 8, 8],
        patch_size=16,
        drop_path_rate=0,
    ),
    "dpt": row(
        "DPT",
        "ForDepthEstimation",
        images,
        num_hidden_layers=4,
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[8, 8, 16, 16],
        fusion_hidden_size=16,
        is_hybrid=False,
        reassemble_factors=[4, 2, 1, 0.5],
    ),
    "imagegpt": row("ImageGPT", "Model", bare_text),
    "upernet": row(
        "UperNet",
        "ForSemanticSegmentation",
        images,
        lambda: dict(
            hidden_size=16,
            auxiliary_channels=16,
            auxiliary_in_channels=16,
            backbone_config=tiny(
                transformers.ConvNextConfig,
                patch_size=4,
                num_stages=4,
                hidden_sizes=[8, 8, 16, 16],
                depths=[1, 1, 1, 1],
                out_features=["stage1", "stage2", "stage3", "stage4"],
            ),
        ),
    ),
    "videomae": row(
        "VideoMAE",
        "Model",
        lambda b, n: {"pixel_values": torch.randn(b, 4, 3, IMAGE, IMAGE)},
        num_frames=4,
        tubelet_size=2,
    ),
    "timesformer": row(
        "Timesformer",
        "Model",
        lambda b, n: {"pixel_values": torch.randn(b, 4, 3, IMAGE, IMAGE)},
        num_frames=4,
        drop_path_rate=0,
    ),
    "sam": row(
        "Sam",
        "Model",
        lambda b, n: {**images(b, n), "input_points": torch.rand(b, 1, 2, 2) * IMAGE},
        lambda: dict(
            vision_config=dict(
                hidden_size=32,
                output_channels=16,
                num_hidden_layers=2,
                num_attention_heads=4,
                image_size=IMAGE,
                patch_size=8,
                global_attn_indexes=[1],
                window_size=2,
                mlp_dim=48,
                num_pos_feats=8,
            ),
            prompt_encoder_config=dict(hidden_size=16, image_size=IMAGE, patch_size=8, mask_input_channels=8),
            mask_decoder_config=dict(hidden_size=16, mlp_dim=24, num_attention_heads=4, iou_head_hidden_dim=16),
        ),
    ),
}

CONVOLUTIONS: dict[str, Any] = dict(
    conv_dim=[16, 16],
    conv_kernel=[10, 3],
    conv_stride=[5, 2],
    num_feat_extract_layers=2,
    num_conv_pos_embeddings=8,
    num_conv_pos_embedding_groups=2,
    mask_time_prob=0.0,
)

AUDIO: dict[str, Family] = {
    "wav2vec2": row("Wav2Vec2", "ForCTC", sound, **CONVOLUTIONS),
    "wav2vec2-model": row(
        "Wav2Vec2", "Model", sound, do_stable_layer_norm=True, feat_extract_norm="layer", **CONVOLUTIONS
    ),
    "hubert": row("Hubert", "Model", sound, **CONVOLUTIONS),
    "wavlm": row("WavLM", "Model", sound, **CONVOLUTIONS),
    "unispeech": row("UniSpeech", "Model", sound, **CONVOLUTIONS),
    "data2vec-audio": row("Data2VecAudio", "Model", sound, **CONVOLUTIONS),
    "sew": row("SEW", "Model", sound, squeeze_factor=2, **CONVOLUTIONS),
    "speech2text": row(
        "Speech2Text",
        "ForConditionalGeneration",
        lambda b, n: {"input_features": torch.randn(b, 4 * n, 8), "labels": tokens(b, n)},
        input_feat_per_channel=8,
        conv_channels=16,
    ),
    "ast": row(
        "AST",
        "ForAudioClassification",
        lambda b, n: {"input_values": torch.randn(b, 32, 16)},
        max_length=32,
        num_mel_bins=16,
        frequency_stride=4,
        time_stride=4,
    ),
    "encodec": row(
        "Encodec",
        "Model",
        lambda b, n: {"input_values": torch.randn(b, 1, 32 * n)},
        num_filters=4,
        hidden_size=16,
        codebook_size=16,
        codebook_dim=16,
        upsampling_ratios=[2, 2],
        num_lstm_layers=1,
    ),
    "vits": row(
        "Vits",
        "Model",
        bare_text,
        num_attention_heads=2,
        flow_size=16,
        spectrogram_bins=9,
        upsample_rates=[2, 2],
        upsample_initial_channel=16,
        upsample_kernel_sizes=[4, 4],
        resblock_kernel_sizes=[3],
        wavenet_layers=2,
        resblock_dilation_sizes=[[1]],
        duration_predictor_filter_channels=16,
        depth_separable_num_layers=1,
        use_stochastic_duration_prediction=False,
    ),
}

TEXT_PART = dict(
    vocab_size=WORDS,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=64,
    eos_token_id=2,
    projection_dim=16,
)
IMAGE_PART = dict(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    image_size=IMAGE,
    patch_size=8,
    projection_dim=16,
)


def with_image_tokens(batch: int, length: int) -> dict[str, Any]:
    """A sequence that begins with the places of the image's patches."""
    made = both(batch, length)
    places = torch.full((batch, 16), 3)
    made["input_ids"] = torch.cat([places, tokens(batch, length).clamp(min=4)], 1)
    made["attention_mask"] = torch.ones_like(made["input_ids"])
    return made


MULTIMODAL: dict[str, Family] = {
    "clip": row("CLIP", "Model", both, text_config=TEXT_PART, vision_config=IMAGE_PART, projection_dim=16),
    "clip-vision": Family("CLIPVisionConfig", "CLIPVisionModel", images),
    "clip-text": Family("CLIPTextConfig", "CLIPTextModel", text),
    "siglip": row(
        "Siglip",
        "Model",
        both,
        text_config={k: v for k, v in TEXT_PART.items() if k != "projection_dim"},
        vision_config={k: v for k, v in IMAGE_PART.items() if k != "projection_dim"},
    ),
    "altclip": row(
        "AltCLIP",
        "Model",
        both,
        text_config={**TEXT_PART, "project_dim": 16},
        vision_config=IMAGE_PART,
        projection_dim=16,
    ),
    "clipseg": row(
        "CLIPSeg",
        "ForImageSegmentation",
        both,
        text_config=TEXT_PART,
        vision_config=IMAGE_PART,
        projection_dim=16,
        extract_layers=[0, 1],
        reduce_dim=16,
        decoder_num_attention_heads=4,
        decoder_intermediate_size=24,
    ),
    "blip": row(
        "Blip",
        "ForConditionalGeneration",
        lambda b, n: {**both(b, n), "labels": tokens(b, n)},
        text_config={
            **TEXT_PART,
            "bos_token_id": 1,
            "encoder_hidden_size": 32,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        },
        vision_config=IMAGE_PART,
        projection_dim=16,
        image_text_hidden_size=16,
    ),
    "vilt": row("Vilt", "Model", both, max_image_length=-1),
    "git": row("Git", "ForCausalLM", both, vision_config=IMAGE_PART),
    "flava-text": Family("FlavaTextConfig", "FlavaTextModel", text),
    "visual-bert": row(
        "VisualBert",
        "Model",
        lambda b, n: {**text(b, n), "visual_embeds": torch.randn(b, 5, 16)},
        visual_embedding_dim=16,
    ),
    "llava": row(
        "Llava",
        "ForConditionalGeneration",
        with_image_tokens,
        lambda: dict(
            vision_config=transformers.CLIPVisionConfig(**IMAGE_PART),
            text_config=tiny(transformers.LlamaConfig),
            image_token_id=3,
            image_token_index=3,
            vision_feature_layer=-1,
        ),
    ),
    "paligemma": row(
        "PaliGemma",
        "ForConditionalGeneration",
        lambda b, n: {**with_image_tokens(b, n), "token_type_ids": torch.zeros(b, n + 16, dtype=torch.int64)},
        lambda: dict(
            vision_config=transformers.SiglipVisionConfig(**{**IMAGE_PART, "vision_use_head": False}),
            text_config=tiny(transformers.GemmaConfig, head_dim=8),
            image_token_id=3,
            image_token_index=3,
            projection_dim=32,
            hidden_size=32,
        ),
    ),
    "layoutlmv3": row(
        "LayoutLMv3", "Model", text, coordinate_size=5, shape_size=6, input_size=IMAGE, visual_embed=False
    ),
    "trocr": row("TrOCR", "ForCausalLM", bare_causal),
}

OTHER: dict[str, Family] = {
    "time-series": row(
        "TimeSeriesTransformer",
        "Model",
        lambda b, n: {
            "past_values": torch.rand(b, 16),
            "past_time_features": torch.rand(b, 16, 2),
            "past_observed_mask": torch.ones(b, 16),
            "future_values": torch.rand(b, 4),
            "future_time_features": torch.rand(b, 4, 2),
        },
        prediction_length=4,
        context_length=9,
        lags_sequence=[1, 2, 7],
        num_time_features=2,
    ),
    "patchtst": row(
        "PatchTST",
        "ForPrediction",
        lambda b, n: {"past_values": torch.rand(b, 32, 2)},
        num_input_channels=2,
        context_length=32,
        patch_length=4,
        patch_stride=4,
        prediction_length=4,
    ),
    "decision": row(
        "DecisionTransformer",
        "Model",
        lambda b, n: {
            "states": torch.rand(b, n, 5),
            "actions": torch.rand(b, n, 3),
            "rewards": torch.rand(b, n, 1),
            "returns_to_go": torch.rand(b, n, 1),
            "timesteps": torch.arange(n).repeat(b, 1),
            "attention_mask": torch.ones(b, n),
        },
        state_dim=5,
        act_dim=3,
        max_ep_len=64,
    ),
}

MORE: dict[str, Family] = {
    "glm": row("Glm", "ForCausalLM", causal, head_dim=8),
    "arcee": row("Arcee", "ForCausalLM", causal),
    "helium": row("Helium", "ForCausalLM", causal, head_dim=8),
    "diffllama": row("DiffLlama", "ForCausalLM", causal),
    "exaone4": row("Exaone4", "ForCausalLM", causal, sliding_window=6),
    "olmo3": row("Olmo3", "ForCausalLM", causal, sliding_window=6),
    "phimoe": row("Phimoe", "ForCausalLM", causal),
    "granitemoe": row("GraniteMoe", "ForCausalLM", causal),
    "bamba": row(
        "Bamba",
        "ForCausalLM",
        causal,
        attn_layer_indices=[1],
        mamba_n_heads=8,
        mamba_d_head=8,
        mamba_d_state=4,
        mamba_n_groups=1,
        mamba_chunk_size=8,
    ),
    "lfm2": row("Lfm2", "ForCausalLM", causal, full_attn_idxs=[1], block_multiple_of=8),
    "qwen3-next": row(
        "Qwen3Next",
        "ForCausalLM",
        causal,
        head_dim=8,
        layer_types=["linear_attention", "full_attention"],
        linear_num_value_heads=4,
        linear_num_key_heads=2,
        linear_key_head_dim=8,
        linear_value_head_dim=8,
    ),
    "megatron-bert": row("MegatronBert", "Model", text),
    "roberta-prelayernorm": row("RobertaPreLayerNorm", "Model", text),
    "xlm-roberta-xl": row("XLMRobertaXL", "Model", text),
    "data2vec-text": row("Data2VecText", "Model", text),
    "ernie": row("Ernie", "Model", text),
    "luke": row("Luke", "Model", text, entity_vocab_size=8, entity_emb_size=8),
    "tapas": row("Tapas", "Model", text, type_vocab_sizes=[3, 8, 8, 2, 8, 8, 4]),
    "lxmert": row(
        "Lxmert",
        "Model",
        lambda b, n: {**text(b, n), "visual_feats": torch.randn(b, 5, 8), "visual_pos": torch.rand(b, 5, 4)},
        visual_feat_dim=8,
        l_layers=1,
        x_layers=1,
        r_layers=1,
    ),
    "nomic-bert": row("NomicBert", "Model", text),
    "eurobert": row("EuroBert", "Model", text),
    "umt5": row("UMT5", "ForConditionalGeneration", pair, d_kv=8, relative_attention_num_buckets=8),
    "plbart": row("PLBart", "ForConditionalGeneration", pair_labels),
    "mvp": row("Mvp", "ForConditionalGeneration", pair_labels),
    "pegasus-x": row("PegasusX", "ForConditionalGeneration", pair_labels, block_size=4, num_global_tokens=2),
    "bigbird-pegasus": row("BigBirdPegasus", "ForConditionalGeneration", pair_labels, attention_type="original_full"),
    "t5gemma": Family(
        "T5GemmaConfig",
        "T5GemmaForConditionalGeneration",
        pair,
        lambda: dict(
            encoder=dict(
                vocab_size=WORDS,
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=8,
            ),
            decoder=dict(
                vocab_size=WORDS,
                hidden_size=32,
                intermediate_size=48,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=8,
                cross_attention_hidden_size=32,
            ),
        ),
    ),
    "data2vec-vision": row("Data2VecVision", "Model", images, use_relative_position_bias=True),
    "ijepa": row("IJepa", "Model", images),
    "focalnet": row(
        "FocalNet",
        "ForImageClassification",
        classified,
        embed_dim=8,
        depths=[1, 1],
        focal_levels=[1, 1],
        focal_windows=[3, 3],
        patch_size=4,
        hidden_sizes=[8, 16],
    ),
    "swiftformer": row(
        "SwiftFormer",
        "ForImageClassification",
        classified,
        depths=[1, 1, 1, 1],
        embed_dims=[8, 16, 16, 32],
        drop_path_rate=0.0,
        drop_mlp_rate=0.0,
    ),
    "pvt-v2": row(
        "PvtV2",
        "ForImageClassification",
        classified,
        hidden_sizes=[8, 16, 16, 32],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 2, 4],
        image_size={"height": IMAGE, "width": IMAGE},
    ),
    "glpn": row(
        "GLPN",
        "ForDepthEstimation",
        images,
        hidden_sizes=[8, 16, 16, 32],
        depths=[1, 1, 1, 1],
        num_attention_heads=[1, 2, 2, 4],
        decoder_hidden_size=16,
    ),
    "bit": row(
        "Bit",
        "ForImageClassification",
        classified,
        embedding_size=8,
        hidden_sizes=[16, 32],
        depths=[1, 1],
        num_groups=4,
    ),
    "vitdet": row("VitDet", "Model", images, window_size=2, window_block_indices=[0]),
    "dinov3": row("DINOv3ViT", "Model", images),
    "conditional-detr": row(
        "ConditionalDetr",
        "ForObjectDetection",
        images,
        lambda: dict(
            use_timm_backbone=False,
            use_pretrained_backbone=False,
            backbone=None,
            num_queries=5,
            backbone_config=tiny(
                transformers.ResNetConfig,
                embedding_size=16,
                hidden_sizes=[16, 32, 32, 32],
                depths=[1, 1, 1, 1],
                out_features=["stage4"],
            ),
        ),
    ),
    "deformable-detr": row(
        "DeformableDetr",
        "ForObjectDetection",
        images,
        lambda: dict(
            use_timm_backbone=False,
            use_pretrained_backbone=False,
            backbone=None,
            num_queries=5,
            num_feature_levels=2,
            backbone_config=tiny(
                transformers.ResNetConfig,
                embedding_size=16,
                hidden_sizes=[16, 32, 32, 32],
                depths=[1, 1, 1, 1],
                out_features=["stage3", "stage4"],
            ),
        ),
    ),
    "depth-anything": row(
        "DepthAnything",
        "ForDepthEstimation",
        images,
        lambda: dict(
            reassemble_hidden_size=32,
            neck_hidden_sizes=[8, 16],
            fusion_hidden_size=8,
            head_hidden_size=8,
            reassemble_factors=[2, 1],
            backbone_config=tiny(
                transformers.Dinov2Config, mlp_ratio=2, out_features=["stage1", "stage2"], reshape_hidden_states=False
            ),
        ),
    ),
    "owlvit": row("OwlViT", "Model", both, text_config=TEXT_PART, vision_config=IMAGE_PART, projection_dim=16),
    "groupvit-text": Family("GroupViTTextConfig", "GroupViTTextModel", text),
    "blip2-vision": Family("Blip2VisionConfig", "Blip2VisionModel", images),
    "clap-text": Family("ClapTextConfig", "ClapTextModelWithProjection", text, dict(projection_dim=16)),
    "speecht5": row(
        "SpeechT5",
        "ForTextToSpeech",
        lambda b, n: {
            "input_ids": tokens(b, n),
            "attention_mask": mask(b, n),
            "decoder_input_values": torch.randn(b, 6, 8),
            "speaker_embeddings": torch.randn(b, 4),
        },
        num_mel_bins=8,
        speaker_embedding_dim=4,
        speech_decoder_prenet_units=8,
        speech_decoder_postnet_units=8,
        speech_decoder_prenet_dropout=0.0,
        speech_decoder_postnet_dropout=0.0,
        positional_dropout=0.0,
        reduction_factor=2,
    ),
    "wav2vec2-conformer": row("Wav2Vec2Conformer", "Model", sound, **CONVOLUTIONS),
    "wav2vec2-bert": row(
        "Wav2Vec2Bert",
        "Model",
        lambda b, n: {"input_features": torch.randn(b, n, 16)},
        feature_projection_input_dim=16,
        mask_time_prob=0.0,
        conformer_conv_dropout=0.0,
    ),
    "unispeech-sat": row("UniSpeechSat", "Model", sound, **CONVOLUTIONS),
    "moonshine": row(
        "Moonshine",
        "ForConditionalGeneration",
        lambda b, n: {"input_values": torch.randn(b, 4000), "decoder_input_ids": tokens(b, n)},
        encoder_num_hidden_layers=2,
        decoder_num_hidden_layers=2,
        encoder_num_attention_heads=4,
        decoder_num_attention_heads=4,
    ),
    "musicgen-decoder": Family(
        "MusicgenDecoderConfig",
        "MusicgenForCausalLM",
        lambda b, n: {"input_ids": torch.randint(0, WORDS, (b * 4, n))},
        dict(num_codebooks=4),
    ),
    "informer": row(
        "Informer",
        "Model",
        lambda b, n: {
            "past_values": torch.rand(b, 16),
            "past_time_features": torch.rand(b, 16, 2),
            "past_observed_mask": torch.ones(b, 16),
            "future_values": torch.rand(b, 4),
            "future_time_features": torch.rand(b, 4, 2),
        },
        prediction_length=4,
        context_length=9,
        lags_sequence=[1, 2, 7],
        num_time_features=2,
        attention_type="full",
    ),
    "patchtsmixer": row(
        "PatchTSMixer",
        "ForPrediction",
        lambda b, n: {"past_values": torch.rand(b, 32, 2)},
        num_input_channels=2,
        context_length=32,
        patch_length=4,
        patch_stride=4,
        prediction_length=4,
    ),
}

FAMILIES: dict[str, Callable[[], tuple[torch.nn.Module, Inputs]]] = {
    **DECODERS,
    **ENCODERS,
    **SEQUENCES,
    **VISION,
    **AUDIO,
    **MULTIMODAL,
    **OTHER,
    **MORE,
}
