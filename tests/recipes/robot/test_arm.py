import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from engine.policy import BadObservation
from recipes.robot.arm import (
    IMAGE_SIZE,
    LIMITS,
    MAX_SPEED,
    STEP_S,
    expert,
    hand,
    joints_for,
    random_joints,
    random_target,
    render,
    step,
)
from recipes.robot.network import HORIZON
from recipes.robot.plot import path_svg
from recipes.robot.policy import IMAGE, JOINTS, make
from recipes.robot.reach import episodes, misses
from recipes.robot.train import train

SEEDS = st.integers(0, 2**32 - 1).map(np.random.default_rng)


@given(SEEDS)
def test_the_joints_for_a_point_bring_the_hand_there(rng):
    points = random_target(rng, 20)
    joints = joints_for(points)
    np.testing.assert_allclose(hand(joints), points, atol=1e-9)
    assert (joints >= LIMITS[:, 0]).all()
    assert (joints <= LIMITS[:, 1]).all()


@given(SEEDS)
def test_the_expert_arrives_and_is_never_too_fast(rng):
    joints, target = random_joints(rng, 4), random_target(rng, 4)
    speeds = expert(joints, target, 100)
    assert np.abs(speeds).max() <= MAX_SPEED
    for now in np.moveaxis(speeds, 1, 0):
        moved = step(joints, now)
        assert np.abs(moved - joints).max() <= MAX_SPEED * STEP_S + 1e-12
        joints = moved
    np.testing.assert_allclose(hand(joints), target, atol=1e-3)


def test_the_camera_sees_the_target_in_red_where_it_is():
    target = np.array([0.9, 0.6])
    image = render(np.array([2.0, 0.5]), target).astype(int)
    assert image.shape == (IMAGE_SIZE, IMAGE_SIZE, 3)
    rows, columns = np.nonzero((image[..., 0] > 200) & (image[..., 1] < 80))
    seen = np.array([columns.mean(), rows.mean()]) * 2 * 2.1 / (IMAGE_SIZE - 1) - 2.1
    np.testing.assert_allclose(seen * [1, -1], target, atol=0.15)
    both = render(np.array([[2.0, 0.5], [1.0, 1.0]]), np.stack([target, target]))
    np.testing.assert_array_equal(both[0], image)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    network, error = train(steps=250, scenes=1_000)
    path = tmp_path_factory.mktemp("arm") / "arm.safetensors"
    save_file(network.state_dict(), path)
    return path, error


async def test_the_arm_reaches_what_it_sees_over_the_socket(start_server, trained):
    path, error = trained
    assert error < 0.3
    options = {"weights": str(path)}
    async with start_server(policy="recipes.robot.policy:make", policy_options=options) as server:
        done = await episodes(server.address.replace("http", "ws", 1), 12, seed=3)
    started = [np.linalg.norm(hand(joints[0]) - target) for joints, target in done]
    assert np.median(started) > 0.5
    assert np.median(misses(done)) < 0.12
    picture = ET.fromstring(path_svg(done, "reaches & ends"))
    assert len(re.findall("polyline", ET.tostring(picture, "unicode"))) == 2 * len(done)


def test_a_batch_is_each_alone(trained):
    policy = make(str(trained[0]))
    rng = np.random.default_rng(5)
    joints, targets = random_joints(rng, 5), random_target(rng, 5)
    images = render(joints, targets)
    asked = [
        {IMAGE: image, JOINTS: each.astype(np.float32)}
        for image, each in zip(images, joints, strict=True)
    ]
    together = policy.infer_batch(asked, [False] * 5)
    for obs, actions in zip(asked, together, strict=True):
        assert actions.shape == (HORIZON, 2)
        np.testing.assert_allclose(policy.infer(obs), actions, atol=1e-5)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({IMAGE: None}, IMAGE),
        ({IMAGE: np.zeros((3, 3, 3), np.uint8)}, IMAGE),
        ({IMAGE: np.zeros((IMAGE_SIZE, IMAGE_SIZE, 3))}, IMAGE),
        ({JOINTS: [1.0, 2.0]}, JOINTS),
        ({JOINTS: np.array(["a", "b"])}, JOINTS),
    ],
)
def test_a_bad_observation_is_named(trained, changed, named):
    good = {
        IMAGE: np.zeros((IMAGE_SIZE, IMAGE_SIZE, 3), np.uint8),
        JOINTS: np.zeros(2, np.float64),
    }
    policy = make(str(trained[0]))
    assert policy.infer(good).shape == (HORIZON, 2)
    with pytest.raises(BadObservation, match=named):
        policy.infer(good | changed)
