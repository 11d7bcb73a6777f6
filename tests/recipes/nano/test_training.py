"""nano's training, at toy size."""

import torch

from recipes.nano.conversations import Pool, Tokens
from recipes.nano.lm import LmConfig
from recipes.nano.train_lm import Balance, LmTrainer

TINY = LmConfig(
    text_card=40, card=32, dim=32, heads=2, layers=2, depth_dim=16, depth_heads=2,
    depth_feedforward=48,
)  # fmt: skip


def conversations(rows: int, frames: int) -> Tokens:
    def draw(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, high, shape)

    return Tokens(
        draw(40, rows, frames), draw(32, rows, 8, frames), draw(32, rows, 8, frames),
        draw(10, rows, frames, 4), draw(2, rows, frames) > 0, draw(5, rows),
    )  # fmt: skip


def test_the_language_model_learns_what_it_is_shown() -> None:
    torch.manual_seed(0)
    trainer, pool = LmTrainer(TINY, "cpu"), Pool(8)
    pool.add(conversations(4, 30))
    losses = [trainer.step(pool.draw(4), i / 150).total.item() for i in range(150)]
    assert sum(losses[-10:]) < 0.9 * sum(losses[:10])


def test_new_conversations_take_their_share_of_the_time() -> None:
    balance = Balance("cpu", 0.25)
    balance.cost = {"make": 0.3, "train": 0.1}
    balance.TIMED = (0, 0)  # the costs are given
    made = 0
    for _ in range(1000):
        kind = "make" if balance.wants_more() else "train"
        with balance.timed(kind):
            made += kind == "make"
    assert abs(made * 0.3 / (made * 0.3 + (1000 - made) * 0.1) - 0.25) < 0.01
