"""The relay of recipes/turn, where it is the only way: three network namespaces in a row, of which
the middle one passes TCP on, as firewalls do, and takes UDP for itself alone.

    caller 10.99.1.2 -- 10.99.1.1 relay 10.99.2.1 -- 10.99.2.2 server
                         (203.0.113.1 is the relay's public address)
"""

import asyncio
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
RECIPE = ROOT / "recipes/turn"
KEY = "correct-horse-battery"
SECRET = "staple-of-the-relay"
RELAY, SERVER = "203.0.113.1", "10.99.2.2"

NETWORK = """
netns add {caller}
netns add {relay}
netns add {server}
link add caller netns {relay} type veth peer name eth0 netns {caller}
link add server netns {relay} type veth peer name eth0 netns {server}
-n {relay} addr add 203.0.113.1/32 dev lo
-n {relay} addr add 10.99.1.1/24 dev caller
-n {relay} addr add 10.99.2.1/24 dev server
-n {caller} addr add 10.99.1.2/24 dev eth0
-n {server} addr add 10.99.2.2/24 dev eth0
-n {relay} link set lo up
-n {relay} link set caller up
-n {relay} link set server up
-n {caller} link set lo up
-n {caller} link set eth0 up
-n {server} link set lo up
-n {server} link set eth0 up
-n {caller} route add default via 10.99.1.1
-n {server} route add default via 10.99.2.1
-n {relay} rule add pref 100 iif caller ipproto udp blackhole
-n {relay} rule add pref 100 iif server ipproto udp blackhole
netns exec {relay} sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward'
"""


def ip(line):
    command = ["ip", *re.findall(r"'([^']*)'|(\S+)", line)]
    command[1:] = [quoted or plain for quoted, plain in command[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else f"{line}: {done.stderr}"


def within(namespace):
    return ("ip", "netns", "exec", namespace)


@pytest.fixture
def network():
    """The names of the three namespaces."""
    for program in ("ip", "turnserver"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program}: apt-get install iproute2 coturn")
    if os.geteuid() != 0:
        pytest.skip("only root makes network namespaces")
    names = {name: f"{name}-{os.getpid()}" for name in ("caller", "relay", "server")}
    try:
        lines = NETWORK.format(**names).strip().splitlines()
        if failed := ip(lines[0]):
            pytest.skip(f"there can be no network namespaces here: {failed}")
        for line in lines[1:]:
            assert not ip(line)
        yield names
    finally:
        for name in names.values():
            ip(f"netns del {name}")


@pytest.fixture
async def relay(network, tmp_path):
    """coturn with the recipe's configuration, of which the marked lines are changed."""
    config = (RECIPE / "turnserver.conf").read_text("utf-8")
    for line, ours in {
        "static-auth-secret=change-me-change-me": f"static-auth-secret={SECRET}",
        "allowed-peer-ip=10.0.0.5": f"allowed-peer-ip={SERVER}",
        "syslog": "log-file=stdout",
    }.items():
        assert f"\n{line}\n" in config
        config = config.replace(f"\n{line}\n", f"\n{ours}\n")
    (tmp_path / "turnserver.conf").write_text(config)
    process = await asyncio.create_subprocess_exec(
        *within(network["relay"]),
        *("turnserver", "-v", "-c", str(tmp_path / "turnserver.conf")),
        *("--pidfile", str(tmp_path / "pid"), "--userdb", str(tmp_path / "db")),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    log = []
    listens = asyncio.Event()

    async def read():
        async for line in process.stdout:
            log.append(line.decode())
            if f"UDP listener opened on: {RELAY}" in log[-1]:
                listens.set()

    reading = asyncio.create_task(read())
    try:
        async with asyncio.timeout(20):
            await listens.wait()
        yield log
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await reading


def servers(**changes):
    """The ICE servers of the recipe's README, for this network."""
    (text,) = re.findall(r"```yaml\n(.*?)```", (RECIPE / "README.md").read_text("utf-8"), re.DOTALL)
    (server,) = yaml.safe_load(text.replace("turn.example.com", RELAY))["ice_servers"]
    assert server["secret"] == "change-me-change-me"
    return [server | {"secret": SECRET} | changes]


async def call(network, address):
    process = await asyncio.create_subprocess_exec(
        *within(network["caller"]),
        *(sys.executable, "-m", "tests.recipes.turn.caller", address, KEY),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return json.loads(out) if process.returncode == 0 else err.decode()


@pytest.mark.parametrize("transport", ["udp", "tcp"])
async def test_a_call_by_the_relay_alone(network, relay, start_process, transport):
    urls = [url for url in servers()[0]["urls"] if url.endswith("tcp") == (transport == "tcp")]
    ice, began = json.dumps(servers(urls=urls)), int(time.time())
    options = ("echo", "--host", SERVER, "--api-key", KEY)
    with start_process(
        *options, before=within(network["server"]), DUPLEX_ICE_SERVERS=ice
    ) as server:
        found = await call(network, server.address)
    assert isinstance(found, dict), (found, relay)
    assert found["likeness"] > 0.8
    assert "relay" in found["pair"]
    expires, name = found["user"].split(":")
    assert name == "duplex"
    assert began <= int(expires) - 3600 <= time.time()
