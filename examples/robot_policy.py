"""A small robot policy: two cameras and the joints in, a Gaussian over the next action out.

The cameras are resized (antialiased), cut into patches and embedded with position ids that are
filled through a mask, since a camera may be absent and the wide one leaves part of its canvas
empty. The patches that are there are packed into one buffer and attend within their camera; each
goes through a mixture of experts; the mean over them, with the joints, gives the parameters of a
multivariate normal, which checks its arguments.

    graftwork lower examples/robot_policy.py:RobotPolicy -o out
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal
from torch.nn import functional as F
from torch.nn.attention.varlen import varlen_attn

CANVAS = 32  # pixels a side, after the resize
PATCH = 8  # pixels a side
SIDE = CANVAS // PATCH  # patches a side
CAMERAS = 2
WIDTH = 32
HEADS = 4
EXPERTS = 4
EXPERTS_PER_TOKEN = 2
JOINTS = 7
ACTIONS = 6


def example_inputs() -> tuple[Tensor, ...]:
    """Two moments: both cameras are there in the first, only the wrist camera in the second.

    Returns the arguments of `RobotPolicy.forward`.
    """
    generator = torch.Generator().manual_seed(1)
    return (
        torch.rand(2, 3, 60, 80, generator=generator),
        torch.rand(2, 3, 48, 40, generator=generator),
        torch.tensor([[True, True], [False, True]]),
        torch.randn(2, JOINTS, generator=generator),
        torch.randn(2, ACTIONS, generator=generator),
    )


class RobotPolicy(nn.Module):
    """The policy, with the same random weights for the same seed."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embeddings = PatchEmbeddings()
            self.attention = CameraAttention()
            self.experts = MixtureOfExperts()
            self.head = GaussianHead()

    def forward(
        self, front: Tensor, wrist: Tensor, present: Tensor, joints: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Give the mean action, the action drawn with `noise`, and the entropy.

        Args:
            front: (B, 3, H, W), values in [0, 1), wider than high.
            wrist: (B, 3, H, W), values in [0, 1).
            present: (B, CAMERAS) bool, which cameras gave an image.
            joints: (B, JOINTS), in radians.
            noise: (B, ACTIONS), standard normal.

        Returns:
            mean: (B, ACTIONS), action: (B, ACTIONS), entropy: (B,).
        """
        seen = present.any(1).sum().item()
        torch._check(seen == present.shape[0], lambda: "a moment without any camera")

        front, front_area = onto_canvas(front, "bicubic")
        wrist, wrist_area = onto_canvas(wrist, "bilinear")
        pixels = torch.stack([front, wrist], 1).flatten(0, 1)
        patches = torch.stack([front_area, wrist_area]) & present[:, :, None, None]

        tokens = self.embeddings(pixels, patches.flatten(0, 1))
        live = patches.flatten(0, 1).flatten(1)
        tokens = tokens + self.attention(tokens, live)
        tokens = tokens + self.experts(tokens)

        weights = live.view(present.shape[0], -1, 1).to(tokens.dtype)
        tokens = tokens.reshape(present.shape[0], -1, WIDTH)
        pooled = (tokens * weights).sum(1) / weights.sum(1)
        return self.head(torch.cat([pooled, joints], 1), noise)


def onto_canvas(image: Tensor, mode: str) -> tuple[Tensor, Tensor]:
    """Fit an image into the canvas's upper left corner; which patches hold any of it."""
    height, width = image.shape[2:]
    longest = max(height, width)
    size = (CANVAS * height // longest, CANVAS * width // longest)
    image = F.interpolate(image, size, mode=mode, antialias=True)
    image = F.pad(image, (0, CANVAS - size[1], 0, CANVAS - size[0]))
    index = torch.arange(SIDE, device=image.device) * PATCH
    return image, (index[:, None] < size[0]) & (index < size[1])


class PatchEmbeddings(nn.Module):
    """Patches with learned positions, stretched over the patches that are there."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.position = nn.Embedding(SIDE * SIDE, WIDTH)

    def forward(self, pixels: Tensor, patches: Tensor) -> Tensor:
        """(N, 3, CANVAS, CANVAS) and the mask (N, SIDE, SIDE) to (N, SIDE * SIDE, WIDTH)."""
        boundaries = torch.arange(1, SIDE, device=pixels.device) / SIDE
        index = torch.arange(SIDE, device=pixels.device)
        rows = patches[:, :, 0].sum(1).clamp(min=1)
        columns = patches[:, 0, :].sum(1).clamp(min=1)
        row = torch.bucketize((index / rows[:, None]).clamp(max=1 - 1e-6), boundaries, right=True)
        column = torch.bucketize(
            (index / columns[:, None]).clamp(max=1 - 1e-6), boundaries, right=True
        )
        ids = (row[:, :, None] * SIDE + column[:, None, :]).flatten(1)
        mask = patches.flatten(1)
        position_ids = torch.zeros_like(ids)
        position_ids[mask] = ids[mask]
        return self.patch(pixels).flatten(2).transpose(1, 2) + self.position(position_ids)


class CameraAttention(nn.Module):
    """Attention of each camera's patches among themselves, without work for the absent ones."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.project_in = nn.Linear(WIDTH, 3 * WIDTH)
        self.project_out = nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens: Tensor, live: Tensor) -> Tensor:
        """(N, T, WIDTH) tokens and the mask (N, T); absent tokens come back as anything."""
        slot, offsets = pack(live)
        normed = self.norm(tokens).flatten(0, 1)
        packed = torch.zeros_like(normed)
        packed[slot] = normed
        query, key, value = self.project_in(packed).view(-1, 3, HEADS, WIDTH // HEADS).unbind(1)
        longest = live.shape[1]
        mixed = varlen_attn(query, key, value, offsets, offsets, longest, longest)
        return self.project_out(mixed.flatten(1))[slot].view_as(tokens)


def pack(live: Tensor) -> tuple[Tensor, Tensor]:
    """Slots that put the live tokens of (N, T) first, and where each row's tokens begin.

    Returns:
        slot: (N * T,) int64, a permutation.
        offsets: (N + 1,) int32, from 0 to the number of live tokens.
    """
    flat = live.flatten()
    before, total = flat.cumsum(0) - 1, flat.sum()
    slot = torch.where(flat, before, total + (~flat).cumsum(0) - 1)
    return slot, F.pad(live.sum(1).cumsum(0), (1, 0)).to(torch.int32)


class MixtureOfExperts(nn.Module):
    """Each token goes through its two best experts, weighted by a softmax over the two."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.expand = nn.Parameter(torch.randn(EXPERTS, WIDTH, 2 * WIDTH) / math.sqrt(WIDTH))
        self.reduce = nn.Parameter(torch.randn(EXPERTS, 2 * WIDTH, WIDTH) / math.sqrt(WIDTH))

    def forward(self, tokens: Tensor) -> Tensor:
        """(N, T, WIDTH) to the same."""
        x = self.norm(tokens).flatten(0, 1)
        scores = self.router(x)
        best, chosen = scores.topk(EXPERTS_PER_TOKEN, dim=-1)
        gates = torch.zeros_like(scores).scatter(-1, chosen, best.softmax(-1))
        hidden = F.gelu(x.expand(EXPERTS, -1, -1) @ self.expand)
        mixed = (hidden @ self.reduce) * gates.t().unsqueeze(-1)
        return mixed.sum(0).view_as(tokens)


class GaussianHead(nn.Module):
    """A multivariate normal over actions, its arguments checked."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(WIDTH + JOINTS, WIDTH)
        self.mean = nn.Linear(WIDTH, ACTIONS)
        self.scale = nn.Linear(WIDTH, ACTIONS * ACTIONS)

    def forward(self, features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, WIDTH + JOINTS) and (B, ACTIONS) to mean, action and entropy."""
        hidden = torch.tanh(self.hidden(features))
        raw = self.scale(hidden).view(-1, ACTIONS, ACTIONS)
        diagonal = F.softplus(raw.diagonal(dim1=-2, dim2=-1)) + 1e-3
        policy = MultivariateNormal(
            self.mean(hidden),
            scale_tril=raw.tril(-1) + torch.diag_embed(diagonal),
            validate_args=True,
        )
        action = policy.loc + (policy.scale_tril @ noise.unsqueeze(-1)).squeeze(-1)
        return policy.mean, action, policy.entropy()
