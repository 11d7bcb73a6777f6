"""Resume: sessions cut from their sockets at any point, and taken over without a loss."""

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from running import F32, all_free, append, noise, running, settled

from duplex.commands import CloseSession, Heartbeat
from duplex.errors import SessionError
from duplex.journal import Journal, JournalGap
from duplex.resume import Resumption, ResyncRequired
from duplex.wire.realtime import RealtimeWire
from media.clock import VirtualClock


class TestJournal:
    @given(
        st.lists(st.binary(max_size=20), max_size=30),
        st.integers(0, 200),
        st.lists(st.integers(0, 35), max_size=5),
        st.integers(-2, 40),
    )
    def test_what_is_asked_for_is_all_there_or_a_gap(self, messages, room, acks, asked):
        journal = Journal(room)
        for seq, message in enumerate(messages, 1):
            journal.add(seq, message)
        for ack in acks:
            journal.ack(ack)
        assert journal.bytes <= room
        try:
            assert journal.after(asked) == messages[max(asked, 0) :]
            assert 0 <= asked <= len(messages)
        except JournalGap:
            lost = max([0, *(min(ack, len(messages)) for ack in acks)])
            kept = len(journal)
            assert asked < max(lost, len(messages) - kept) or asked > len(messages)

    def test_acks_make_room(self):
        journal = Journal(4)
        journal.add(1, b"abc")
        journal.ack(1)
        journal.add(2, b"defg")
        assert journal.after(1) == [b"defg"]
        with pytest.raises(JournalGap):
            journal.after(0)

    def test_it_shrinks_little_by_little_to_what_is_worth_keeping(self):
        journal = Journal(100)
        for seq in range(1, 11):
            journal.add(seq, bytes(10))
        journal.wanted_bytes = 50
        lengths = []
        for seq in range(11, 21):
            journal.add(seq, bytes(10))
            lengths.append(len(journal))
        assert lengths == [8, 7, 6, 5, 5, 5, 5, 5, 5, 5]


class Socket:
    """The client's end: it keeps what it has, and can be cut after any number of messages."""

    def __init__(self):
        self.seqs = []
        self.token = None
        self.task = None

    def attach(self, resumption, attachment, missed=()):
        self.evicted = False
        self.token = attachment.take(self.evict)
        self.receive(missed)
        self.task = asyncio.create_task(self.read(attachment))

    async def read(self, attachment):
        while (event := await attachment.session.outbox.get()) is not None:
            self.receive(attachment.render(event))

    def receive(self, messages):
        self.seqs += [json.loads(message)["server_event_seq"] for message in messages]

    async def evict(self):
        self.evicted = True
        await self.cut()

    async def cut(self):
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def attach(runtime, resumption):
    session = runtime.create_session("sess_1", F32)
    wire = RealtimeWire("sess_1", runtime.spec, runtime.capabilities)
    return resumption.attach(session, wire)


async def refused(resumption, *args):
    with pytest.raises(SessionError) as caught:
        await resumption.resume(*args)
    return caught.value.code


@settings(max_examples=40)
@given(cuts=st.lists(st.integers(0, 12), max_size=12), lost=st.integers(0, 5))
def test_no_event_is_lost_or_doubled_wherever_the_socket_is_cut(cuts, lost):
    async def run():
        async with running() as runtime:
            resumption = Resumption(runtime.clock, grace_s=30)
            attachment = attach(runtime, resumption)
            session = attachment.session
            session.start()
            socket = Socket()
            socket.attach(resumption, attachment)
            for steps in cuts:
                await session.handle(append(noise(2)))
                await session.handle(Heartbeat())
                for _ in range(steps):
                    await asyncio.sleep(0)
                await socket.cut()
                resumption.hold(attachment)
                for _ in range(steps % 3):
                    await asyncio.sleep(0)
                # what was rendered last may be lost with the socket
                socket.seqs = socket.seqs[: max(0, len(socket.seqs) - lost)]
                last = socket.seqs[-1] if socket.seqs else 0
                held, missed = await resumption.resume("sess_1", socket.token, last)
                assert held is attachment
                socket.attach(resumption, attachment, missed)
            await settled(session)
            await session.handle(CloseSession())
            await socket.task
            resumption.detach(attachment)
            assert socket.seqs == list(range(1, attachment.wire.server_event_seq + 1))

    asyncio.run(run())


async def test_tokens_are_used_once_and_a_wrong_one_changes_nothing():
    async with running() as runtime:
        resumption = Resumption(runtime.clock, grace_s=30)
        attachment = attach(runtime, resumption)
        socket = Socket()
        socket.attach(resumption, attachment)
        first = socket.token
        assert await refused(resumption, "sess_2", first, 0) == "invalid_session_resume"
        assert await refused(resumption, "sess_1", "wrong", 0) == "invalid_resume_token"
        unsent = attachment.wire.server_event_seq + 1
        assert await refused(resumption, "sess_1", first, unsent) == "invalid_session_resume"
        assert not socket.evicted
        await resumption.resume("sess_1", first, 0)
        assert socket.evicted, "the older socket lets go"
        assert await refused(resumption, "sess_1", first, 0) == "invalid_resume_token"
        second = Socket()
        second.attach(resumption, attachment)
        assert second.token != first
        assert attachment.generation == 2
        await attachment.session.close("client_close")
        await second.task
        resumption.detach(attachment)
        assert await refused(resumption, "sess_1", second.token, 0) == "session_resume_expired"


async def test_a_held_session_ends_after_its_grace_time():
    clock = VirtualClock()
    async with running(clock=clock) as runtime:
        resumption = Resumption(clock, grace_s=30)
        attachment = attach(runtime, resumption)
        socket = Socket()
        socket.attach(resumption, attachment)
        await attachment.session.handle(append(noise(1)))
        await settled(attachment.session)
        await socket.cut()
        resumption.hold(attachment)
        await clock.advance(29)
        assert resumption.held == 1
        await clock.advance(2)
        async with asyncio.timeout(5):
            while runtime.sessions:
                await asyncio.sleep(0)
        assert resumption.held == 0
        assert runtime.metrics.sessions_closed == {"resume_expired": 1}
        assert await refused(resumption, "sess_1", socket.token, 0) == "session_resume_expired"


async def test_a_held_session_yields_its_slot():
    async with running(slots=1, resume_grace_s=30) as runtime:
        resumption = runtime.resumption
        attachment = attach(runtime, resumption)
        socket = Socket()
        socket.attach(resumption, attachment)
        await attachment.session.handle(append(noise(1)))
        await socket.cut()
        resumption.hold(attachment)
        newcomer = runtime.create_session("sess_2", F32)
        await newcomer.handle(append(noise(1)))
        assert newcomer.opened
        assert runtime.metrics.sessions_closed == {"yielded": 1}
        assert runtime.metrics.refused == {}


@pytest.mark.parametrize("moment", range(0, 60, 6))
@pytest.mark.parametrize("how", ["lost", "closed"])
async def test_a_newcomer_waits_a_moment_for_the_slot_of_one_who_is_leaving(moment, how):
    async with running(slots=1, resume_grace_s=30) as runtime:
        attachment = attach(runtime, runtime.resumption)
        socket = Socket()
        socket.attach(runtime.resumption, attachment)
        await attachment.session.handle(append(noise(1)))
        newcomer = runtime.create_session("sess_2", F32)
        opening = asyncio.create_task(newcomer.handle(append(noise(1))))
        for _ in range(moment):
            await asyncio.sleep(0)
        if how == "lost":
            await socket.cut()
            runtime.resumption.hold(attachment)
        else:
            await attachment.session.close("client_close")
            await socket.cut()
        await opening
        assert newcomer.opened
        assert runtime.metrics.refused == {}


@pytest.mark.parametrize("moment", range(12))
async def test_a_held_session_ends_even_if_the_newcomer_leaves(moment):
    async with running(slots=1, resume_grace_s=30) as runtime:
        attachment = attach(runtime, runtime.resumption)
        socket = Socket()
        socket.attach(runtime.resumption, attachment)
        await attachment.session.handle(append(noise(1)))
        await socket.cut()
        runtime.resumption.hold(attachment)
        newcomer = runtime.create_session("sess_2", F32)
        opening = asyncio.create_task(newcomer.handle(append(noise(1))))
        for _ in range(moment):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.wait({opening})
        await newcomer.close("disconnected")
        third = runtime.create_session("sess_3", F32)
        await third.handle(append(noise(1)))
        assert third.opened
        await third.close("client_close")
        await all_free(runtime)
        assert not runtime.sessions


@pytest.mark.parametrize("moment", range(8))
@pytest.mark.parametrize("broken", [False, True])
async def test_a_session_is_held_again_if_who_came_for_it_leaves(moment, broken):
    async with running() as runtime:
        resumption = Resumption(runtime.clock, grace_s=30)
        attachment = attach(runtime, resumption)
        socket = Socket()
        socket.attach(resumption, attachment)
        await attachment.session.handle(append(noise(1)))
        if broken:
            await socket.cut()
            resumption.hold(attachment)
        coming = asyncio.create_task(resumption.resume("sess_1", socket.token, 0))
        for _ in range(moment):
            await asyncio.sleep(0)
        if coming.done():
            return
        coming.cancel()
        await asyncio.wait({coming})
        if broken or moment:  # else nobody had come
            async with asyncio.timeout(5):
                while attachment.evict is not None or not resumption.held:
                    await asyncio.sleep(0)
        else:
            await socket.cut()
            resumption.hold(attachment)
        held, _ = await resumption.resume("sess_1", socket.token, 0)  # which is good again
        resumption.hold(held)
        await resumption.close()
        assert not runtime.sessions


async def test_a_socket_that_nothing_came_from_may_have_missed_everything():
    async with running() as runtime:
        resumption = Resumption(runtime.clock, grace_s=30)
        attachment = attach(runtime, resumption)
        first, second = Socket(), Socket()
        first.attach(resumption, attachment)
        await first.cut()
        resumption.hold(attachment)
        for _ in range(8):  # more than is kept for a client that shows to be there
            await attachment.session.handle(append(noise(10)))
            await settled(attachment.session)
        _, missed = await resumption.resume("sess_1", first.token, 0)
        second.attach(resumption, attachment, missed)
        for _ in range(2):
            await attachment.session.handle(append(noise(10)))
            await settled(attachment.session)
        await second.cut()
        resumption.hold(attachment)
        _, again = await resumption.resume("sess_1", first.token, 0)
        assert again[: len(missed)] == missed
        assert len(again) >= len(missed) + 20
        resumption.hold(attachment)
        await resumption.close()


async def test_a_gap_ends_the_session():
    async with running() as runtime:
        resumption = Resumption(runtime.clock, grace_s=30, journal_bytes=20_000)
        attachment = attach(runtime, resumption)
        socket = Socket()
        socket.attach(resumption, attachment)
        await attachment.session.handle(append(noise(5)))
        while len(socket.seqs) < 9:  # four of the response's beginning, five frames
            await asyncio.sleep(0)
        await socket.cut()
        resumption.hold(attachment)
        with pytest.raises(ResyncRequired):
            await resumption.resume("sess_1", socket.token, 0)
        assert not runtime.sessions


async def test_resume_can_be_off():
    async with running() as runtime:
        resumption = Resumption(runtime.clock, grace_s=0)
        assert not resumption.enabled
        assert await refused(resumption, "sess_1", "x", 0) == "unsupported_session_resume"
