"""The programs that are timed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .program import Program, one, program, seeded


def mlp(rows: int, wide: int, middle: int, dtype: torch.dtype) -> Program:
    model = nn.Sequential(nn.Linear(wide, middle), nn.GELU(), nn.Linear(middle, wide)).to(dtype)
    return one(seeded(model), (torch.randn(rows, wide).to(dtype),), timed=True)


@program
def mlp_bfloat16() -> Program:
    return mlp(2048, 1024, 4096, torch.bfloat16)


@program
def mlp_unaligned() -> Program:
    return mlp(1000, 1001, 2003, torch.float16)


@program
def mlp_one_row() -> Program:
    return mlp(1, 2048, 4096, torch.bfloat16)


class AttentionBlock(nn.Module):
    """Norm, attention and a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.project_in(self.norm(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = parts.transpose(1, 3).unbind(2)
        return x + self.project_out(
            F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        )


@program
def attention_block() -> Program:
    block = seeded(AttentionBlock(768, 12)).bfloat16()
    return one(block, (torch.randn(8, 512, 768).bfloat16(),), timed=True)


def _convnet() -> nn.Module:
    def stage(a: int, b: int, stride: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(a, b, 3, stride, 1), nn.BatchNorm2d(b), nn.ReLU())

    model = nn.Sequential(stage(3, 32, 2), stage(32, 64, 1), stage(64, 128, 2), stage(128, 128, 1))
    model.append(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 100)))
    return seeded(model)


@program
def convnet_bfloat16() -> Program:
    return one(_convnet().bfloat16(), (torch.randn(32, 3, 96, 96).bfloat16(),), timed=True)


@program
def layer_norm() -> Program:
    return one(seeded(nn.LayerNorm(4096)), (torch.randn(8192, 4096),), timed=True)


@program
def softmax() -> Program:
    return one(lambda x: torch.softmax(x * 0.5, -1), (torch.randn(4096, 8192),), timed=True)


@program
def column_statistics() -> Program:
    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.mean(0), (x * x).sum(0)

    return one(run, (torch.randn(16384, 2048),), timed=True)


@program
def llama() -> Program:
    import models  # noqa: F401  it makes torchvision importable
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(
        vocab_size=1000,
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=512,
        use_cache=False,
    )
    model = seeded(LlamaModel(config)).bfloat16()
    return one(LastHidden(model), (torch.randint(0, 1000, (4, 256)),), timed=True)


@program
def bert() -> Program:
    import models  # noqa: F401
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=1000,
        hidden_size=384,
        intermediate_size=1536,
        num_hidden_layers=2,
        num_attention_heads=6,
    )
    model = seeded(BertModel(config, add_pooling_layer=False)).bfloat16()
    return one(LastHidden(model), (torch.randint(0, 1000, (4, 128)),), timed=True)


class LastHidden(nn.Module):
    """A transformers model that gives its last hidden state."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Any:
        return self.model(ids).last_hidden_state


# Float32 products without tensor cores: their many candidates take longest to compile.


@program
def convnet() -> Program:
    return one(_convnet(), (torch.randn(8, 3, 96, 96),), timed=True)


@program
def mlp_float32() -> Program:
    return mlp(512, 512, 2048, torch.float32)
