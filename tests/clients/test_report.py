import io
import json

from rich.console import Console

from clients.bench import BenchResult
from clients.events import ServerError
from clients.latency import Percentiles
from clients.replay import ReplayResult
from clients.report import bench_table, replay_progress, replay_table, to_json

LATENCY = Percentiles(1.25, 2.5, 3.75, 5.0)

REPLAY = ReplayResult(
    input="in.wav",
    output="out.wav",
    session_id="sess_1",
    frame_ms=80.0,
    sample_rate=24000,
    frames_in=250,
    frames_out=248,
    deficit=2,
    lost=0,
    first_audio_ms=161.5,
    latency=LATENCY,
    duration_s=20.1,
    transcript="hello [bold]there[/bold]",
    response_ids=("resp_1",),
    errors=(ServerError("bad_audio", "odd bytes"),),
    closed="client_close",
)

BENCH = BenchResult(
    sessions=200,
    seconds=20.1,
    frames_in=50000,
    frames_out=50000,
    lost=0,
    misses=3,
    latency=LATENCY,
    errors=0,
    server_cpu=0.5,
    server_cpu_per_session=0.0025,
    client_cpu=0.6,
)


def shown(table) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(table)
    return console.file.getvalue()


def test_a_replay_as_a_table():
    text = shown(replay_table(REPLAY))
    for part in ("250", "248", "161.5 ms", "1.2 ms", "3.8 ms", "resp_1", "odd bytes", "24000"):
        assert part in text
    assert "hello [bold]there[/bold]" in text  # the agent's words are no markup


def test_a_load_as_a_table():
    text = shown(bench_table(BENCH))
    for part in ("200", "50000", "0.50 cores", "2.500 ms a second", "3 later than"):
        assert part in text


def test_json_has_the_same_fields():
    for result in (REPLAY, BENCH):
        assert set(json.loads(to_json(result))) == set(result.__struct_fields__)
    assert json.loads(to_json(REPLAY))["latency"]["p99_ms"] == 3.75


def test_the_bar_runs():
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    with replay_progress(console) as show:
        show(3, 2, 10)
        show(10, 10, 10)
    assert "10/10 frames" in console.file.getvalue()
