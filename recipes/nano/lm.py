"""The language model in training form: Moshi's architecture and tensor names, parallel over time.

The streaming engine and this module compute the same thing; here all calls of a conversation run
at once. Call o reads column o of the delayed token grid and predicts column o + 1.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipes.nano.mimi import Named, rope

DELAYS = (0, 0, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1)


@dataclass(frozen=True)
class LmConfig:
    """Sizes; everything else is Moshi's."""

    text_card: int = 384
    card: int = 512
    dim: int = 320
    heads: int = 5
    layers: int = 6
    hidden_scale: float = 3.45
    context: int = 1000
    depth_dim: int = 192
    depth_heads: int = 3
    depth_layers: int = 2
    depth_feedforward: int = 720
    schedule: tuple[int, ...] = (0, 1, 1, 1, 1, 1, 1, 1)
    n_q: int = 16
    dep_q: int = 8

    def to_json(self) -> dict[str, Any]:
        """The config keys of Kyutai's language models."""
        return {
            "dim": self.dim, "text_card": self.text_card, "existing_text_padding_id": 3,
            "n_q": self.n_q, "dep_q": self.dep_q, "card": self.card, "num_heads": self.heads,
            "num_layers": self.layers, "hidden_scale": self.hidden_scale, "causal": True,
            "layer_scale": None, "context": self.context, "max_period": 10_000,
            "gating": "silu", "norm": "rms_norm_f32", "positional_embedding": "rope",
            "depformer_dim": self.depth_dim,
            "depformer_dim_feedforward": self.depth_feedforward,
            "depformer_num_heads": self.depth_heads,
            "depformer_num_layers": self.depth_layers, "depformer_layer_scale": None,
            "depformer_multi_linear": True, "depformer_context": self.dep_q,
            "depformer_max_period": 10_000, "depformer_gating": "silu",
            "depformer_pos_emb": "none", "depformer_weights_per_step": True,
            "depformer_weights_per_step_schedule": list(self.schedule), "delays": list(DELAYS),
        }  # fmt: skip


class RmsNorm(nn.Module):
    """`x * alpha / rms(x)`, computed in fp32."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, 1, dim))

    def forward(self, x: Tensor) -> Tensor:
        y = F.rms_norm(x.float(), x.shape[-1:], self.alpha.flatten(), 1e-8)
        return y.to(x.dtype)


class Gating(nn.Module):
    """SiLU-gated feed-forward with Moshi's two-thirds hidden size (so never 4 * dim: see there)."""

    def __init__(self, dim: int, feedforward: int) -> None:
        super().__init__()
        hidden = 2 * feedforward // 3
        self.linear_in = nn.Linear(dim, 2 * hidden, bias=False)
        self.linear_out = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.linear_in(x).chunk(2, -1)
        out: Tensor = self.linear_out(F.silu(gate) * value)
        return out


def _attention(dim: int, sets: int) -> Named:
    return Named(
        in_projs=nn.ModuleList(nn.Linear(dim, 3 * dim, bias=False) for _ in range(sets)),
        out_projs=nn.ModuleList(nn.Linear(dim, dim, bias=False) for _ in range(sets)),
    )


class TemporalLayer(nn.Module):
    """One layer over frames, causal; training sequences never exceed the context."""

    def __init__(self, c: LmConfig) -> None:
        super().__init__()
        self.heads = c.heads
        self.self_attn = _attention(c.dim, 1)
        self.norm1, self.norm2 = RmsNorm(c.dim), RmsNorm(c.dim)
        self.gating = Gating(c.dim, int(c.hidden_scale * c.dim))

    def forward(self, x: Tensor, positions: Tensor, drop: float) -> Tensor:
        qkv = cast(nn.ModuleList, self.self_attn.in_projs)[0](self.norm1(x))
        q, k, v = qkv.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(
            rope(q, positions), rope(k, positions), v, is_causal=True
        )
        y = cast(nn.ModuleList, self.self_attn.out_projs)[0](y.transpose(1, 2).flatten(2))
        x = x + F.dropout(y, drop, self.training)
        return x + F.dropout(self.gating(self.norm2(x)), drop, self.training)


class DepthLayer(nn.Module):
    """One layer over the codebooks of a frame; `schedule` says which weights a step uses."""

    def __init__(self, c: LmConfig) -> None:
        super().__init__()
        self.heads, self.schedule = c.depth_heads, c.schedule
        sets = max(c.schedule) + 1
        self.self_attn = _attention(c.depth_dim, sets)
        self.norm1, self.norm2 = RmsNorm(c.depth_dim), RmsNorm(c.depth_dim)
        self.gating = nn.ModuleList(Gating(c.depth_dim, c.depth_feedforward) for _ in range(sets))

    def _scheduled(self, modules: nn.ModuleList, x: Tensor) -> Tensor:
        """Apply each step's module to its slice of [n, steps, dim], runs of equal steps at once."""
        parts, start = [], 0
        for step in range(1, len(self.schedule) + 1):
            if step == len(self.schedule) or self.schedule[step] != self.schedule[start]:
                parts.append(modules[self.schedule[start]](x[:, start:step]))
                start = step
        return torch.cat(parts, 1)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self._scheduled(cast(nn.ModuleList, self.self_attn.in_projs), self.norm1(x))
        q, k, v = qkv.view(*qkv.shape[:-1], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).flatten(2)
        x = x + self._scheduled(cast(nn.ModuleList, self.self_attn.out_projs), y)
        return x + self._scheduled(self.gating, self.norm2(x))


class LanguageModel(nn.Module):
    """Temporal transformer over frames, depth transformer over the agent's eight codes."""

    def __init__(self, config: LmConfig, dropout: float = 0.1) -> None:
        super().__init__()
        self.config = c = config
        self.dropout = dropout
        self.text_emb = nn.Embedding(c.text_card + 1, c.dim)
        self.emb = nn.ModuleList(nn.Embedding(c.card + 1, c.dim) for _ in range(c.n_q))
        self.transformer = Named(layers=nn.ModuleList(TemporalLayer(c) for _ in range(c.layers)))
        self.out_norm = RmsNorm(c.dim)
        self.text_linear = nn.Linear(c.dim, c.text_card, bias=False)
        sets = max(c.schedule) + 1
        self.depformer_in = nn.ModuleList(
            nn.Linear(c.dim, c.depth_dim, bias=False) for _ in range(sets)
        )
        self.depformer_text_emb = nn.Embedding(c.text_card + 1, c.depth_dim)
        self.depformer_emb = nn.ModuleList(
            nn.Embedding(c.card + 1, c.depth_dim) for _ in range(c.dep_q - 1)
        )
        self.depformer = Named(layers=nn.ModuleList(DepthLayer(c) for _ in range(c.depth_layers)))
        self.linears = nn.ModuleList(
            nn.Linear(c.depth_dim, c.card, bias=False) for _ in range(c.dep_q)
        )
        self._initialise()

    def _initialise(self) -> None:
        for name, p in self.named_parameters():
            if name.startswith(("depformer_emb", "depformer_text_emb")):
                nn.init.normal_(p, std=0.1)
            elif name.startswith(("emb", "text_emb")) or "out_proj" in name or "linear_out" in name:
                nn.init.normal_(p, std=0.02)

    def hidden(self, text: Tensor, audio: Tensor) -> Tensor:
        """Text [batch, time], audio [batch, 16, time] by column -> normed [batch, time, dim]."""
        x = self.text_emb(text)
        for k, table in enumerate(self.emb):
            x = x + table(audio[:, k])
        x = F.dropout(x, self.dropout, self.training)
        positions = torch.arange(x.shape[1], device=x.device)
        for layer in cast(nn.ModuleList, self.transformer.layers):
            x = layer(x, positions, self.dropout)
        out: Tensor = self.out_norm(x)
        return out

    def depth(self, h: Tensor, text: Tensor, codes: Tensor) -> Tensor:
        """Teacher-forced logits [n, 8, card] from h [n, dim], text [n] and codes [n, 8]."""
        steps = []
        for k, s in enumerate(self.config.schedule):
            last = (
                self.depformer_text_emb(text)
                if k == 0
                else self.depformer_emb[k - 1](codes[:, k - 1])
            )
            steps.append(self.depformer_in[s](h) + last)
        x = torch.stack(steps, 1)
        for layer in cast(nn.ModuleList, self.depformer.layers):
            x = layer(x)
        return torch.stack([linear(x[:, k]) for k, linear in enumerate(self.linears)], 1)


def delayed(frames: Tensor, first_delay: int, initial: int) -> Tensor:
    """[batch, 8, time] codes by frame -> by column: all but the first book one column later."""
    out = torch.full_like(frames, initial)
    out[:, 0] = frames[:, 0]
    out[:, 1:, first_delay:] = frames[:, 1:, :-first_delay]
    return out


def grid_inputs(text: Tensor, agent: Tensor, user: Tensor, c: LmConfig) -> tuple[Tensor, Tensor]:
    """Columns as the model reads them: places the first frame would fill hold initial tokens."""
    text = text.clone()
    text[:, 0] = c.text_card
    audio = torch.cat([agent, user], 1).clone()
    audio[:, :, 0] = c.card
    for k, delay in enumerate(DELAYS[1:]):
        audio[:, k, 1 : 1 + delay] = c.card
    return text, audio
