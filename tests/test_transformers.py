"""Architectures of ``transformers``, built small from their configurations: observed without a trace, and completely."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.engine.probes.reasons import lies
from tests.quick import quick
from torch import Tensor, nn

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing here may load anything

import transformers
from transformers import AutoConfig, AutoModel

from sonde.testing import assert_complete, assert_undisturbed

SMALL = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "embed_dim", "embedding_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "hidden_dim", "d_ff", "n_inner", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim"), 64),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("num_experts", "num_local_experts"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 64),
    **dict.fromkeys(("dropout", "attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.1),
    "num_key_value_heads": 2,
    "num_experts_per_tok": 2,
    "d_kv": 8,
    "head_dim": 8,
    "state_size": 8,
    "vocab_size": 99,
    "image_size": 16,
    "patch_size": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
"""What is set in each configuration that knows it."""

CONVOLUTIONAL = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
SPEECH = {
    "conv_dim": (8, 8),
    "conv_kernel": (4, 4),
    "conv_stride": (4, 4),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "mask_time_prob": 0.0,
}

Inputs = Callable[[], dict[str, Tensor]]


def text() -> dict[str, Tensor]:
    return {"input_ids": torch.randint(3, 99, (2, 7)), "attention_mask": torch.tensor([[1] * 7, [1] * 5 + [0] * 2])}


def text_to_text() -> dict[str, Tensor]:
    return {"input_ids": torch.randint(3, 99, (2, 7)), "decoder_input_ids": torch.randint(3, 99, (2, 5))}


def image() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(2, 3, 16, 16)}


def larger_image() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(2, 3, 32, 32)}


def sound() -> dict[str, Tensor]:
    return {"input_values": torch.randn(2, 400)}


def spectrum() -> dict[str, Tensor]:
    return {"input_features": torch.randn(2, 8, 32), "decoder_input_ids": torch.randint(3, 99, (2, 5))}


def text_and_image() -> dict[str, Tensor]:
    return {"input_ids": torch.randint(3, 99, (2, 7)), **image()}


TOWERS = {"text_config": {**SMALL}, "vision_config": {**SMALL}, "projection_dim": 16}

ARCHITECTURES: dict[str, tuple[Inputs, dict[str, Any]]] = {
    # decoders
    "gpt2": (text, {}),
    "gpt_neox": (text, {}),
    "gptj": (text, {"rotary_dim": 4}),
    "opt": (text, {"word_embed_proj_dim": 32}),
    "bloom": (text, {}),
    "llama": (text, {}),
    "mistral": (text, {}),
    "qwen2": (text, {}),
    "qwen3": (text, {}),
    "gemma": (text, {}),
    "gemma2": (text, {}),
    "phi": (text, {}),
    "olmo": (text, {}),
    "stablelm": (text, {}),
    "starcoder2": (text, {}),
    # mixtures of experts, state spaces
    "mixtral": (text, {}),
    "qwen2_moe": (text, {}),
    "mamba": (text, {}),
    "mamba2": (text, {"num_heads": 8, "n_groups": 1, "chunk_size": 4}),
    "rwkv": (text, {"attention_hidden_size": 32}),
    # encoders
    "bert": (text, {}),
    "roberta": (text, {}),
    "distilbert": (text, {}),
    "electra": (text, {}),
    "albert": (text, {}),
    "deberta-v2": (text, {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    "mpnet": (text, {}),
    "longformer": (text, {"attention_window": [4, 4]}),
    "fnet": (lambda: {"input_ids": text()["input_ids"]}, {}),
    # encoders and decoders
    "t5": (text_to_text, {}),
    "bart": (text_to_text, {}),
    "marian": (text_to_text, {}),
    "pegasus": (text_to_text, {}),
    # images, sound, both
    "vit": (image, {}),
    "deit": (image, {}),
    "beit": (image, {}),
    "dinov2": (image, {}),
    "swin": (larger_image, {"image_size": 32, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 2}),
    "convnext": (larger_image, {"image_size": 32, "hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}),
    "resnet": (larger_image, CONVOLUTIONAL),
    "regnet": (larger_image, {**CONVOLUTIONAL, "groups_width": 8}),
    "whisper": (spectrum, {"num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 16}),
    "wav2vec2": (sound, SPEECH),
    "hubert": (sound, SPEECH),
    "clip": (text_and_image, TOWERS),
}
"""By name of the configuration: what the model is called with, and what else is set."""

SIBLINGS = {"mistral", "qwen2", "olmo", "stablelm", "starcoder2", "roberta", "distilbert", "electra", "marian", "pegasus", "deit"}
SIBLINGS |= {"regnet", "hubert"}
"""Those whose modules are wired as those of another one here."""

every_architecture = pytest.mark.parametrize("name", quick(ARCHITECTURES, *(ARCHITECTURES.keys() - SIBLINGS)))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Without what transformers logs about options that do not fit together in so small a model."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(before)


def known(defaults: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Those of *values* that a configuration with these *defaults* knows, and has one of, not one for each stage."""
    return {
        name: value
        for name, value in values.items()
        if hasattr(defaults, name) and not isinstance(getattr(defaults, name), list | tuple)
    }


def build(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """A small model in training mode with random weights, and a batch."""
    inputs, values = ARCHITECTURES[name]
    config = AutoConfig.for_model(name, **{**known(AutoConfig.for_model(name), SMALL), **values})
    model = AutoModel.from_config(config).train()
    return model, inputs()


def first_output(output: Any) -> Tensor:
    """The mean square of what a model returns first."""
    return output[0].float().square().mean()  # type: ignore[no-any-return]


@every_architecture
def test_observing_changes_nothing(name: str) -> None:
    """In training mode, with dropout, outputs, gradients, buffers and random states keep their bits under every probe."""
    model, batch = build(name)
    assert_undisturbed(model, loss_fn=first_output, **batch)


@every_architecture
def test_nothing_is_missed(name: str) -> None:
    """Every module call and every gradient is recorded as plain hooks see it, and the rest has a reason."""
    model, batch = build(name)
    assert_complete(model, loss_fn=first_output, **batch)


@every_architecture
def test_reasons_are_true(name: str) -> None:
    """The reason of every site without an event holds, checked against plain hooks and the gradients of parameters."""
    model, batch = build(name)
    assert lies(model, (), batch, first_output) == []


def test_dropout_is_active() -> None:
    """The models above do draw random numbers: two forward passes differ."""
    model, batch = build("bert")
    assert not torch.equal(model(**batch)[0], model(**batch)[0])
