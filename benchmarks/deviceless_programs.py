"""The programs that `deviceless.py` lowers, and what each is called with.

Weights and inputs come from seeds, so that both machines make the same ones. A small program
shows that results are right; a timed one is large enough for its kernels to matter.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

Call = tuple[str, tuple[Tensor, ...]]


@dataclass
class Program:
    """One program: its methods, and the calls that are made one after the other.

    Attributes:
        methods: for each method the module, example inputs and dynamic shapes.
        calls: method and inputs, in order; state is kept between them.
        timed: whether its time is compared.
        enable, disable: the plugin set where it is not the default one.
    """

    methods: Mapping[str, tuple[nn.Module, tuple[Tensor, ...], Any]]
    calls: Sequence[Call]
    timed: bool = False
    enable: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()


PROGRAMS: dict[str, Callable[[], Program]] = {}


def make(name: str) -> Program:
    """The program of that name, in eval mode, with the same weights and inputs every time."""
    torch.manual_seed(zlib.crc32(name.encode()))
    program = PROGRAMS[name]()
    for module, _inputs, _shapes in program.methods.values():
        module.eval()
    return program


def seeded(module: nn.Module) -> nn.Module:
    """Fill a module's parameters by their names: releases of a library initialise differently."""
    for name, value in module.named_parameters():
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        drawn = torch.randn(value.shape, generator=generator)
        scale = 0.02 if value.dim() > 1 else 0.1
        with torch.no_grad():
            value.copy_(
                drawn * scale + (1.0 if "norm" in name.lower() and value.dim() == 1 else 0)
            )
    return module


class Function(nn.Module):
    """A plain function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


def one(
    module: nn.Module | Callable[..., Any],
    *calls: tuple[Tensor, ...],
    shapes: Any = None,
    **settings: Any,
) -> Program:
    """A program of one method, exported with the inputs of its first call."""
    if not isinstance(module, nn.Module):
        module = Function(module)
    methods = {"forward": (module, calls[0], shapes)}
    return Program(methods, [("forward", call) for call in calls], **settings)


def program(function: Callable[[], Program]) -> Callable[[], Program]:
    """Register a program under its function's name."""
    PROGRAMS[function.__name__] = function
    return function


# The example, and what a runtime has to keep straight.


@program
def policy() -> Program:
    import robot_policy

    first = robot_policy.example_inputs()
    both = (first[0].flip(0), first[1], torch.ones_like(first[2]), first[3] + 1, -first[4])
    return one(robot_policy.RobotPolicy(), first, both, timed=True)


class Memory(nn.Module):
    """A ring of rows, written at a place that moves, and a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(8, 16))
        self.register_buffer("count", torch.zeros(1))

    def forward(self, row: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
        self.count.add_(1)
        self.rows.index_copy_(0, place, row)
        return self.rows.sum(0) * 2, self.count * 10


@program
def written_buffer() -> Program:
    calls = [(torch.randn(1, 16), torch.tensor([step * 3 % 8])) for step in range(5)]
    return one(Memory(), *calls)


@program
def dynamic_shapes() -> Program:
    rows = torch.export.Dim("rows", min=2, max=512)
    model = nn.Sequential(nn.Linear(65, 33), nn.GELU(), nn.LayerNorm(33))
    calls = [(torch.randn(n, 65),) for n in (40, 2, 512, 129)]
    return one(model, *calls, shapes=({0: rows},))


@program
def two_methods() -> Program:
    trunk = nn.Linear(32, 64)
    encode = nn.Sequential(trunk, nn.ReLU())
    step = nn.Sequential(trunk, nn.Tanh(), nn.Linear(64, 8))
    x = torch.randn(4, 32)
    methods = {"encode": (encode, (x,), None), "step": (step, (x,), None)}
    return Program(methods, [("encode", (x,)), ("step", (x + 1,)), ("encode", (x * 2,))])


class Branches(nn.Module):
    """A branch on a buffer and one on a computed value."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("flag", torch.tensor([True]), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cond(self.flag, lambda y: y + 1, lambda y: y * 2, (x,))
        return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (y,))


@program
def branches() -> Program:
    return one(Branches(), (torch.ones(9),), (-torch.ones(9),))


@program
def host_reads() -> Program:
    """Sizes and numbers that the host reads before it goes on."""

    def run(x: Tensor, n: Tensor, t: Tensor) -> tuple[Tensor, ...]:
        count = n.item()
        torch._check(count >= 1)
        torch._check(count <= 16)
        return x[x > 0] * 2, torch.nonzero(x), torch.zeros(count, device=x.device) + t.item()

    calls = [
        (torch.randn(16, 4), torch.tensor(rows), torch.tensor(1.0 / rows)) for rows in (3, 16, 1)
    ]
    return one(run, *calls)


# One for each kernel plugin, then one for each other plugin.


@program
def scatter() -> Program:
    # Equal values for the same element: eager keeps any one.
    index = torch.randperm(64)[:50].repeat(6)
    values = torch.randn(50).repeat(6)
    unique = torch.arange(300) % 50

    def run(x: Tensor, i: Tensor, v: Tensor, n: Tensor, u: Tensor) -> tuple[Tensor, ...]:
        return x.scatter(0, i, v), n.scatter(0, i, u), x.scatter(0, i, 2.5)

    return one(run, (torch.randn(64), index, values, torch.arange(64), unique))


@program
def scatter_reduce() -> Program:
    index = torch.randint(0, 40, (30, 500))

    def run(x: Tensor, i: Tensor, v: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        reduced = tuple(
            x.scatter_reduce(1, i, v, kind, include_self=kind != "amin")
            for kind in ("sum", "mean", "amax", "amin")
        )
        return *reduced, n.scatter_add(1, i, (v * 100).long())

    return one(
        run, (torch.randn(30, 40), index, torch.randn(30, 500), torch.arange(1200).view(30, 40))
    )


@program
def sort() -> Program:
    def run(x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        values, order = torch.sort(x, dim=-1, descending=True, stable=True)
        top, where = torch.topk(x, 7)
        return values, order, top, where, n.sort(dim=0, stable=True).indices, x.median(-1).values

    return one(run, (torch.randn(6, 5000), torch.randint(0, 9, (300, 7))))


@program
def unique() -> Program:
    def run(n: Tensor, points: Tensor) -> tuple[Tensor, ...]:
        return *torch.unique(n, return_inverse=True, return_counts=True), torch.unique(
            points, dim=0
        )

    calls = [(torch.randint(-9, 9, (400,)), torch.randint(0, 3, (200, 2))) for _ in range(2)]
    return one(run, *calls, (torch.zeros(400, dtype=torch.int64), torch.arange(400).view(200, 2)))


@program
def index_put() -> Program:
    def run(x: Tensor, i: Tensor, v: Tensor, h: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        filled = x.clone()
        filled[mask] = 3.5
        return (
            x.index_put((i,), v, accumulate=True),
            h.index_put((i,), v.bfloat16(), accumulate=True),
            filled,
        )

    x = torch.randn(64, 8)
    index = torch.randint(-64, 64, (200,))
    return one(run, (x, index, torch.randn(200, 8), x.bfloat16(), x > 0))


@program
def attention() -> Program:
    def run(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        plain = F.scaled_dot_product_attention(q, k, v)
        biased = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        half = F.scaled_dot_product_attention(q.half(), k.half(), v.half())
        return plain, biased, half

    q, k, v = torch.randn(2, 4, 33, 48), torch.randn(2, 4, 80, 48), torch.randn(2, 4, 80, 24)
    return one(run, (q, k, v, torch.randn(2, 1, 33, 80)))


def _packed() -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    from torch.nn.attention.varlen import varlen_attn

    offsets = torch.tensor([0, 5, 5, 70, 96], dtype=torch.int32)

    def run(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor) -> Tensor:
        return varlen_attn(q, k, v, offsets, offsets, 65, 65, window_size=(-1, 0))

    return run, (*(torch.randn(100, 4, 32, dtype=torch.float16) for _ in range(3)), offsets)


@program
def varlen_kernels() -> Program:
    run, inputs = _packed()
    return one(run, inputs)


@program
def varlen_portable() -> Program:
    run, inputs = _packed()
    return one(run, inputs, enable=("varlen-attention",), disable=("attention",))


@program
def hopper_attention() -> Program:
    """Calls that a Hopper GPU has a kernel of its own for."""
    from torch.nn.attention.varlen import varlen_attn

    offsets = torch.tensor([0, 5, 5, 270, 496], dtype=torch.int32)

    def run(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor) -> tuple[Tensor, ...]:
        short = varlen_attn(q, k, v, offsets, offsets, 265, 265, window_size=(-1, 0))
        long = varlen_attn(q, k, v, offsets, offsets, 1000, 1000, window_size=(-1, 0))
        dense = [t.view(2, 250, 4, 128).transpose(1, 2) for t in (q, k, v)]
        narrow = [t.reshape(2, 250, 8, 64).transpose(1, 2) for t in (q, k, v)]
        full = F.scaled_dot_product_attention(*dense)
        return short, long, full, F.scaled_dot_product_attention(*narrow, is_causal=True)

    return one(run, (*(torch.randn(500, 4, 128).half() for _ in range(3)), offsets))


@program
def float32_attention() -> Program:
    """Heads of every width in float32, whose operands are cut into bfloat16 numbers."""

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        outputs = []
        for q, k, v in zip(*(tensors[i::3] for i in range(3)), strict=True):
            mask = q[..., :1] > k[..., :1].transpose(2, 3)
            outputs.append(F.scaled_dot_product_attention(q, k, v, is_causal=True))
            outputs.append(F.scaled_dot_product_attention(q * 2, k, v, mask | (k[0, 0, :, 0] > 0)))
        return tuple(outputs)

    sizes = [(16, 16), (64, 32), (128, 128)]
    shapes = [s for d, dv in sizes for s in ((70, d), (150, d), (150, dv))]
    return one(run, tuple(torch.randn(2, 3, *shape) for shape in shapes))


@program
def masked_copy_to_where() -> Program:
    def run(x: Tensor, y: Tensor) -> Tensor:
        out = x.clone()
        mask = y > 0
        out[mask] = y[mask]
        return out

    return one(run, (torch.randn(30, 7), torch.randn(30, 7)))


@program
def strip_asserts() -> Program:
    class Head(nn.Module):
        def forward(self, mean: Tensor, scale: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            normal = torch.distributions.Normal(mean, scale, validate_args=True)
            return normal.log_prob(x), normal.entropy()

    return one(Head(), (torch.randn(50), torch.rand(50) + 0.1, torch.randn(50)))


def _resizes(x: Tensor) -> tuple[Tensor, ...]:
    return tuple(
        F.interpolate(x, size=size, mode=mode, antialias=True)
        for size, mode in (((14, 9), "bilinear"), ((7, 31), "bicubic"))
    )


@program
def resize() -> Program:
    return one(_resizes, (torch.rand(2, 3, 40, 30),))


@program
def antialiased_resize() -> Program:
    return one(_resizes, (torch.rand(2, 3, 40, 30),), disable=("resize",))


@program
def bucketize() -> Program:
    edges = torch.linspace(-2, 2, 17)
    return one(lambda x, e: torch.bucketize(x, e, right=True), (torch.randn(50, 7), edges))


@program
def conv1d_to_conv2d() -> Program:
    return one(
        nn.Sequential(nn.Conv1d(5, 12, 5, padding=2, groups=1), nn.ReLU()),
        (torch.randn(2, 5, 90),),
    )


@program
def transposed_convolution() -> Program:
    model = nn.Sequential(
        nn.ConvTranspose2d(8, 12, 4, stride=2, padding=1, groups=2),
        nn.ReLU(),
        nn.ConvTranspose2d(12, 6, 3, stride=2, output_padding=1),
    )
    return one(model, (torch.randn(2, 8, 9, 7),))


@program
def dilated_convolution() -> Program:
    model = nn.Sequential(
        nn.Conv2d(8, 12, 3, padding=2, dilation=2),
        nn.ReLU(),
        nn.Conv2d(12, 6, 3, stride=2, padding=6, dilation=(6, 3)),
    )
    return one(model, (torch.randn(2, 8, 21, 18),))


@program
def recurrent_cells() -> Program:
    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.lstm = nn.GRUCell(20, 32), nn.LSTMCell(32, 16)

        def forward(self, x: Tensor, h: Tensor, short: Tensor, long: Tensor) -> Any:
            h = self.gru(x, h)
            return h, *self.lstm(h, (short, long))

    return one(Step(), tuple(torch.randn(5, size) for size in (20, 32, 16, 16)))


@program
def constant_operands() -> Program:
    class FirstQueries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(64, 48)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.project(torch.zeros(40, 64, device=x.device))

    return one(FirstQueries(), (torch.randn(40, 48),))


@program
def unbacked_convolution() -> Program:
    """A patch embedding of the images that are not padding."""

    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Conv2d(3, 32, 8, 8)

        def forward(self, images: Tensor, mask: Tensor) -> Tensor:
            return self.embed(images[mask]).flatten(2).transpose(1, 2) * 2

    images = torch.randn(4, 3, 32, 32)
    calls = [(images, torch.arange(4) % step == 0) for step in (2, 1, 4)]
    return one(Patches(), *calls)


@program
def own_outputs() -> Program:
    def run(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        left, right = (x + 3).split(3, 1)
        return y[8:], y.t(), left, right

    return one(run, (torch.randn(16, 6),))


@program
def fixed_strides() -> Program:
    def run(x: Tensor) -> Tensor:
        y = x.sin().contiguous()
        y = torch.ops.aten.as_strided_copy(y, y.shape, y.stride())
        return y.flatten()[torch.arange(0, 2520, 7, device=x.device)] * 2

    return one(run, (torch.randn(2, 3, 14, 30),))


@program
def dynamic_launches() -> Program:
    """Kernels that are written in Triton, in a program of dynamic sizes."""
    rows = torch.export.Dim("rows", min=2, max=512)

    def run(x: Tensor, i: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        return x.scatter_reduce(0, i, v, "amax"), v.sort(dim=0, stable=True).values

    calls = [(torch.randn(64), torch.arange(n) % 64, torch.randn(n)) for n in (40, 2, 512, 129)]
    return one(run, *calls, shapes=((None, {0: rows}, {0: rows}),))


@program
def detach_copy() -> Program:
    return one(lambda x: x.detach() * 2 + 1, (torch.randn(40, 3),))


@program
def is_all_true() -> Program:
    def run(x: Tensor, mask: Tensor) -> Tensor:
        return torch.where(torch.all(mask), x, -x) * torch.ops.aten._is_all_true(mask)

    return one(run, (torch.randn(9), torch.ones(4, dtype=torch.bool)))


@program
def reshape_copy() -> Program:
    return one(lambda x: torch.ops.aten._reshape_copy(x.t(), [-1, 6]) + 1, (torch.randn(12, 5),))


@program
def one_element_counter() -> Program:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            self.count.add_(1)
            return x + self.count

    return one(Counter(), *[(torch.full((4,), float(n)),) for n in range(4)])


# The timed ones.


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
