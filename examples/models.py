"""Models that no one here wrote: small random-weight configurations of transformers and timm.

They need the optional extra, `pip install graftwork[models]`. Each class is one model with its
inputs:

    graftwork lower examples/models.py:SmolVLMVision -o out

The weights are random but the same every time; the code is the library's own, unchanged.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn


def _randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def _tokens(*shape: int) -> Tensor:
    return torch.randint(3, 60, shape, generator=torch.Generator().manual_seed(1))


def _import_torchvision() -> None:
    """Import torchvision, which both libraries do, even where its kernels cannot be loaded.

    A wheel built for CUDA beside a torch built for the CPU stops its own import at two operators
    that it describes but could not load. No model here calls them; declared, the import goes on.
    """
    try:
        import_module("torchvision")
    except RuntimeError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _DECLARED.append(library)
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        import_module("torchvision")


_DECLARED: list[torch.library.Library] = []  # a declaration lasts as long as its library
_import_torchvision()


class LibraryModel(nn.Module):
    """A library's model, called by keyword; gives the outputs named in `outputs` as a tuple.

    Without names the model's output is a tensor.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...] = ()
    settings: dict[str, Any] = {}

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.model = self.build().eval()

    @staticmethod
    def build() -> nn.Module:
        """Make the library's model."""
        raise NotImplementedError

    @staticmethod
    def example_inputs() -> tuple[Any, ...]:
        """The inputs, in the order of `inputs`."""
        raise NotImplementedError

    def forward(self, *values: Tensor) -> Any:
        if not self.outputs:
            return self.model(*values)
        named = dict(zip(self.inputs, values, strict=True))
        found = self.model(**named, **self.settings)
        return tuple(found[name] for name in self.outputs)


class SmolVLMVision(LibraryModel):
    """The vision tower of SmolVLM: patch positions bucketed under a mask of real patches."""

    inputs = ("pixel_values", "patch_attention_mask")
    outputs = ("last_hidden_state",)

    @staticmethod
    def build() -> nn.Module:
        from transformers import SmolVLMVisionConfig
        from transformers.models.smolvlm.modeling_smolvlm import SmolVLMVisionTransformer

        config = SmolVLMVisionConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            image_size=32,
            patch_size=8,
        )
        return SmolVLMVisionTransformer(config)

    @staticmethod
    def example_inputs() -> tuple[Any, ...]:
        mask = torch.ones(2, 4, 4, dtype=torch.bool)
        mask[1, 3:] = False
        return _randn(2, 3, 32, 32), mask


class SmolVLM(LibraryModel):
    """SmolVLM with text: checks the number of image tokens, puts image features in their place."""

    inputs = ("input_ids", "pixel_values")
    outputs = ("logits",)
    settings = {"use_cache": False}

    @staticmethod
    def build() -> nn.Module:
        from transformers import SmolVLMConfig, SmolVLMForConditionalGeneration

        config = SmolVLMConfig(
            vision_config={
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 1,
                "num_attention_heads": 4,
                "image_size": 32,
                "patch_size": 8,
            },
            text_config={
                "model_type": "llama",
                "vocab_size": 64,
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 1,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "pad_token_id": 0,
            },
            scale_factor=2,
            image_token_id=63,
            pad_token_id=0,
        )
        return SmolVLMForConditionalGeneration(config)

    @staticmethod
    def example_inputs() -> tuple[Any, ...]:
        tokens = _tokens(1, 12)
        tokens[:, 2:6] = 63
        return tokens, _randn(1, 1, 3, 32, 32)


class Mixtral(LibraryModel):
    """A Mixtral language model; its experts are run as one batched product."""

    inputs = ("input_ids",)
    outputs = ("logits",)
    settings = {"use_cache": False}

    @staticmethod
    def build() -> nn.Module:
        from transformers import MixtralConfig, MixtralForCausalLM

        config = MixtralConfig(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            num_local_experts=4,
            experts_implementation="batched_mm",
        )
        return MixtralForCausalLM(config)

    @staticmethod
    def example_inputs() -> tuple[Any, ...]:
        return (_tokens(2, 8),)


class Detr(LibraryModel):
    """A DETR detector over a small ResNet."""

    inputs = ("pixel_values",)
    outputs = ("logits", "pred_boxes")

    @staticmethod
    def build() -> nn.Module:
        from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

        backbone = ResNetConfig(
            embedding_size=16,
            hidden_sizes=[16, 32],
            depths=[1, 1],
            layer_type="basic",
            out_features=["stage2"],
        )
        config = DetrConfig(
            use_timm_backbone=False,
            use_pretrained_backbone=False,
            backbone=None,
            backbone_config=backbone,
            d_model=32,
            encoder_layers=1,
            decoder_layers=1,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            num_queries=8,
            num_labels=5,
        )
        return DetrForObjectDetection(config)

    @staticmethod
    def example_inputs() -> tuple[Any, ...]:
        return (_randn(1, 3, 32, 48),)


class ViT(LibraryModel):
    """A timm vision transformer on an image of another size than it was made for."""

    @staticmethod
    def build() -> nn.Module:
        import timm

        return timm.create_model(
            "vit_tiny_patch16_224",
            img_size=32,
            patch_size=8,
            embed_dim=32,
            depth=2,
            num_heads=4,
            num_classes=10,
            dynamic_img_size=True,
        )

    @staticmethod
    def example_inputs() -> tuple[Any, ...]:
        return (_randn(2, 3, 40, 24),)


class ConvNeXt(LibraryModel):
    """A timm ConvNeXt."""

    @staticmethod
    def build() -> nn.Module:
        import timm

        return timm.create_model(
            "convnext_atto", depths=(1, 1, 1, 1), dims=(8, 16, 24, 32), num_classes=10
        )

    @staticmethod
    def example_inputs() -> tuple[Any, ...]:
        return (_randn(1, 3, 64, 64),)


class Swin(LibraryModel):
    """A timm Swin transformer: shifted windows, relative positions."""

    @staticmethod
    def build() -> nn.Module:
        import timm

        return timm.create_model(
            "swin_tiny_patch4_window7_224",
            img_size=32,
            window_size=4,
            embed_dim=16,
            depths=(2, 2),
            num_heads=(2, 4),
            num_classes=10,
        )

    @staticmethod
    def example_inputs() -> tuple[Any, ...]:
        return (_randn(1, 3, 32, 32),)


class Mamba(LibraryModel):
    """A Mamba state-space model: a causal convolution in one dimension, a scan."""

    inputs = ("input_ids",)
    outputs = ("last_hidden_state",)
    settings = {"use_cache": False}

    @staticmethod
    def build() -> nn.Module:
        from transformers import MambaConfig, MambaModel

        return MambaModel(
            MambaConfig(vocab_size=64, hidden_size=16, state_size=4, num_hidden_layers=1)
        )

    @staticmethod
    def example_inputs() -> tuple[Any, ...]:
        return (_tokens(1, 6),)


class WhisperEncoder(LibraryModel):
    """The encoder of Whisper: strided convolutions in one dimension."""

    inputs = ("input_features",)
    outputs = ("last_hidden_state",)

    @staticmethod
    def build() -> nn.Module:
        from transformers import WhisperConfig
        from transformers.models.whisper.modeling_whisper import WhisperEncoder as Encoder

        config = WhisperConfig(
            vocab_size=64,
            d_model=32,
            num_mel_bins=16,
            max_source_positions=32,
            encoder_layers=1,
            encoder_attention_heads=4,
            encoder_ffn_dim=64,
        )
        return Encoder(config)

    @staticmethod
    def example_inputs() -> tuple[Any, ...]:
        return (_randn(1, 16, 64),)


class Clip(LibraryModel):
    """CLIP: an image and a text tower."""

    inputs = ("input_ids", "pixel_values")
    outputs = ("logits_per_image", "text_embeds", "image_embeds")

    @staticmethod
    def build() -> nn.Module:
        from transformers import CLIPConfig, CLIPModel

        tower = {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
        }
        config = CLIPConfig(
            text_config={**tower, "vocab_size": 64, "eos_token_id": 2, "bos_token_id": 1},
            vision_config={**tower, "image_size": 32, "patch_size": 8},
            projection_dim=16,
        )
        return CLIPModel(config)

    @staticmethod
    def example_inputs() -> tuple[Any, ...]:
        tokens = _tokens(2, 8)
        tokens[:, -1] = 2
        return tokens, _randn(1, 3, 32, 32)


class T5Encoder(LibraryModel):
    """The encoder of T5: relative positions in buckets."""

    inputs = ("input_ids",)
    outputs = ("last_hidden_state",)

    @staticmethod
    def build() -> nn.Module:
        from transformers import T5Config, T5EncoderModel

        return T5EncoderModel(
            T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4)
        )

    @staticmethod
    def example_inputs() -> tuple[Any, ...]:
        return (_tokens(2, 8),)
