"""In the place of vLLM's process: the same messages, answered by the echo stage.

`model` "never" doesn't load, "broken" says why it can't, and a request for "die" ends the process.
"""

import os
import socket
import sys

import msgspec

from engine.channel import Unpacker, pack
from engine.stages.echo import EchoStage
from engine.stages.kinds import EchoOptions
from engine.stages.messages import JobCommand, StartJob
from engine.stages.scheduler import StageScheduler
from engine.stages.vllm.messages import Failed, Gauges, Loaded, VllmConfig


def main():
    channel = socket.socket(fileno=int(sys.argv[1]))
    config = msgspec.json.decode(sys.argv[2], type=VllmConfig)
    unpacker = Unpacker(msgspec.msgpack.Decoder(JobCommand))
    if config.options.model == "broken":
        channel.sendall(pack(Failed("no such weights")))
        return
    if config.options.model != "never":
        channel.sendall(pack(Loaded()))
    jobs = StageScheduler({config.stage: (EchoStage(EchoOptions()), config.max_running)})
    while data := channel.recv(1 << 16):
        for command in unpacker.push(data):
            if isinstance(command, StartJob) and command.given.request.messages[0].text == "die":
                os._exit(3)
            jobs.obey(command)
        while jobs.busy:
            if event := jobs.advance():
                channel.sendall(pack(event))
        (stats,) = jobs.stats()
        begun = stats.running + stats.unread
        channel.sendall(pack(Gauges(begun + stats.waiting, begun)))


if __name__ == "__main__":
    main()
