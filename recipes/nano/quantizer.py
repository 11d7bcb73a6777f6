"""Mimi's split residual quantiser in training form: codebooks follow their cluster means."""

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipes.nano.mimi import MimiConfig

DECAY = 0.98
DEAD_USAGE = 0.35
BOOK_DROP = 0.15


class Codebook(nn.Module):
    """Exponential k-means; codes nobody uses are moved onto inputs now and then."""

    embedding: Tensor
    usage: Tensor
    total: Tensor

    def __init__(self, bins: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("embedding", torch.randn(bins, dim) * 0.3)
        self.register_buffer("usage", torch.ones(bins))
        self.register_buffer("total", self.embedding.clone())

    def nearest(self, x: Tensor) -> Tensor:
        """[n, dim] -> [n] codes."""
        return (self.embedding.pow(2).sum(1) - 2 * x @ self.embedding.t()).argmin(-1)

    @torch.no_grad()
    def seed(self, x: Tensor) -> None:
        """Start from a random choice of inputs."""
        bins = len(self.embedding)
        pick = torch.randperm(len(x), device=x.device)[:bins]
        if len(pick) < bins:
            pick = torch.randint(0, len(x), (bins,), device=x.device)
        self.embedding.copy_(x[pick])
        self.usage.fill_(1)
        self.total.copy_(self.embedding)

    @torch.no_grad()
    def follow(self, x: Tensor, codes: Tensor, revive: bool) -> None:
        bins = len(self.embedding)
        hot = F.one_hot(codes, bins).to(x.dtype)
        self.usage.mul_(DECAY).add_(hot.sum(0), alpha=1 - DECAY)
        self.total.mul_(DECAY).add_(hot.t() @ x, alpha=1 - DECAY)
        if revive:
            dead = self.usage < DEAD_USAGE
            fresh = x[torch.randint(0, len(x), (bins,), device=x.device)]
            self.usage.copy_(torch.where(dead, torch.ones_like(self.usage), self.usage))
            self.total.copy_(torch.where(dead[:, None], fresh, self.total))
        self.embedding.copy_(self.total / self.usage.clamp(min=1e-2)[:, None])


class Branch(nn.Module):
    """`rvq_first` or `rvq_rest`: a projection, a batch norm, residual codebooks, a projection."""

    def __init__(self, c: MimiConfig, books: int) -> None:
        super().__init__()
        self.input_proj = nn.Conv1d(c.dim, c.codebook_dim, 1, bias=False)
        self.output_proj = nn.Conv1d(c.codebook_dim, c.dim, 1, bias=False)
        self.norm = nn.BatchNorm1d(c.codebook_dim, affine=False, momentum=0.02)
        self.books = nn.ModuleList(Codebook(c.bins, c.codebook_dim) for _ in range(books))

    @property
    def offset(self) -> Tensor:
        """What the norm subtracts, in its output units: [codebook_dim]."""
        mean = cast(Tensor, self.norm.running_mean)
        variance = cast(Tensor, self.norm.running_var)
        return mean / (variance + self.norm.eps).sqrt()

    def expand(self, q: Tensor) -> Tensor:
        """Quantised [batch, time, codebook_dim] -> latents [batch, dim, time].

        The offset is added back here because the exported quantiser has no bias to take it out.
        """
        out: Tensor = self.output_proj((q + self.offset).transpose(1, 2))
        return out


@dataclass
class Quantised:
    """`latent` [batch, dim, time]; `codes` [batch, n_q, time]; `semantic` [batch, time, d]."""

    latent: Tensor
    codes: Tensor
    commitment: Tensor
    semantic: Tensor


class SplitQuantizer(nn.Module):
    """One semantic book and the acoustic residual books, over the same latent."""

    def __init__(self, c: MimiConfig) -> None:
        super().__init__()
        self.n_q = c.n_q
        self.rvq_first = Branch(c, 1)
        self.rvq_rest = Branch(c, c.n_q - 1)

    def forward(
        self, z: Tensor, *, bypass: bool = False, seed: bool = False, revive: bool = False
    ) -> Quantised:
        """`z` is [batch, dim, time]. In training a few rows keep only some acoustic books."""
        batch = len(z)
        keep = torch.full((batch, 1, 1), self.n_q - 1, device=z.device)
        if self.training:
            some = torch.randint(1, self.n_q, (batch, 1, 1), device=z.device)
            keep = torch.where(torch.rand(batch, 1, 1, device=z.device) < BOOK_DROP, some, keep)
        commitment = torch.zeros((), device=z.device)
        codes, branches = [], []
        for branch in (self.rvq_first, self.rvq_rest):
            x = branch.norm(branch.input_proj(z).float()).transpose(1, 2)
            residual, total = x, torch.zeros_like(x)
            for j, book in enumerate(cast("list[Codebook]", list(branch.books))):
                flat = residual.detach().reshape(-1, residual.shape[-1])
                if seed:
                    book.seed(flat)
                index = book.nearest(flat)
                q = book.embedding[index].view_as(residual)
                if self.training:
                    book.follow(flat, index, revive)
                    commitment = commitment + (residual - q).pow(2).mean()
                codes.append(index.view(batch, -1))
                total = total + (q * (j < keep) if branch is self.rvq_rest else q)
                residual = residual - q
            if bypass:
                total = x
            elif self.training:
                total = x + (total - x).detach()
            branches.append((branch.expand(total), total))
        latent = branches[0][0] + branches[1][0]
        return Quantised(latent, torch.stack(codes, 1), commitment / self.n_q, branches[0][1])

    def decode(self, codes: Tensor) -> Tensor:
        """[batch, n_q, time] -> [batch, dim, time]."""
        rows = list(codes.unbind(1))
        out: Tensor | None = None
        for branch in (self.rvq_first, self.rvq_rest):
            books = cast("list[Codebook]", list(branch.books))
            total = sum((b.embedding[rows.pop(0)] for b in books), start=torch.zeros(()))
            latent = branch.expand(total)
            out = latent if out is None else out + latent
        return cast(Tensor, out)
