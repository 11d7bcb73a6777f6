"""The arm's policy for `duplex serve --policy recipes.robot.policy:make`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load_file

from engine.policy import BadObservation, Observation
from recipes.robot.arm import IMAGE_SIZE
from recipes.robot.network import HORIZON, Network

IMAGE: Final = "observation/image"
JOINTS: Final = "observation/joints"

Actions = npt.NDArray[np.float32]


class ArmPolicy:
    """What the arm does next, from its picture and its joints."""

    def __init__(self, network: Network) -> None:
        self._network = network.eval()
        self.metadata = {
            "robot": "two-joint arm",
            "action_horizon": HORIZON,
            "action_dim": 2,
            "action_space": "joint velocity, rad/s",
            "image_size": [IMAGE_SIZE, IMAGE_SIZE],
        }

    def infer(self, obs: Observation, reset: bool = False) -> Actions:
        """Speeds [8, 2] in radians a second. It remembers nothing, so a reset changes nothing."""
        return self.infer_batch([obs], [reset])[0]

    def infer_batch(self, observations: Sequence[Observation], _: Sequence[bool]) -> list[Actions]:
        """The same for the arms of several robots at once."""
        side = IMAGE_SIZE
        images = [_field(each, IMAGE, (side, side, 3), np.uint8) for each in observations]
        joints = [_field(each, JOINTS, (2,), np.float32) for each in observations]
        with torch.inference_mode():
            speeds = self._network(
                torch.from_numpy(np.stack(images)), torch.from_numpy(np.stack(joints))
            )
        return list(speeds.numpy())

    def close(self) -> None:
        """There is nothing to close."""


def make(weights: str) -> ArmPolicy:
    """The policy with the weights that `recipes.robot.train` wrote."""
    torch.set_num_threads(1)  # the network is tiny, and others compute here
    network = Network()
    network.load_state_dict(load_file(Path(weights)))
    return ArmPolicy(network)


def _field(
    observation: Observation, name: str, shape: tuple[int, ...], dtype: type[np.generic]
) -> npt.NDArray[np.generic]:
    value = observation.get(name)
    if not isinstance(value, np.ndarray) or value.shape != shape:
        raise BadObservation(f"{name} is not an array of shape {list(shape)}")
    if not np.can_cast(value.dtype, dtype, "same_kind"):
        raise BadObservation(f"{name} is of {value.dtype}, not {np.dtype(dtype)}")
    return value.astype(dtype, copy=False)
