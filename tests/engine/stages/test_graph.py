import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.stages.config import PipelineConfig, StageConfig
from engine.stages.graph import PipelineError, check_pipeline
from engine.stages.kinds import KINDS, EchoOptions, StageKind

ECHO = StageConfig(kind="echo")
END = StageConfig(kind="echo", final=True)


def echo(*inputs, final=False, **options):
    return StageConfig(kind="echo", inputs=inputs, final=final, options=options)


def check(**stages):
    return check_pipeline(PipelineConfig(model="m", stages=stages))


def test_one_stage_is_a_pipeline():
    assert check(reply=END) == "reply"


def test_stages_may_branch_and_meet():
    assert check(end=echo("a", "b", final=True), a=echo("start"), b=ECHO, start=ECHO) == "end"


def test_vllm_begins_and_others_go_on():
    vllm = StageConfig(kind="vllm", options={"model": "m", "engine_args": {"any": [1]}})
    assert check(reply=vllm, last=echo("reply", final=True)) == "last"


@pytest.mark.parametrize(
    ("stages", "field", "message"),
    [
        ({}, "stages", "at least one stage"),
        ({"Reply": END}, "stages.Reply", "lower-case"),
        ({"a": StageConfig(kind="ecko", final=True)}, "stages.a.kind", "did you mean echo?"),
        ({"a": StageConfig(kind="zz", final=True)}, "stages.a.kind", "there is echo, vllm"),
        (
            {"a": StageConfig(kind="echo", final=True, max_running=0)},
            "stages.a.max_running",
            "at least 1, not 0",
        ),
        ({"a": echo(final=True, step_s=1)}, "stages.a.options", "unknown field `step_s`"),
        ({"a": echo(final=True, step_ms=-1)}, "stages.a.options.step_ms", ">= 0"),
        (
            {"a": StageConfig(kind="vllm", final=True)},
            "stages.a.options",
            "missing required field `model`",
        ),
        ({"a": echo("b", final=True)}, "stages.a.inputs", "unknown stage 'b'"),
        ({"a": ECHO, "b": echo("a", "a", final=True)}, "stages.b.inputs", "named twice"),
        ({"a": ECHO}, "stages", "no stage is final"),
        ({"a": END, "b": echo("a", final=True)}, "stages.b.final", "a is final already"),
        ({"a": echo("a", final=True)}, "stages.a.inputs", "circle: a -> a"),
        ({"a": echo("b"), "b": echo("a", final=True)}, "stages.", "wait in a circle"),
        ({"a": END, "b": echo("a")}, "stages.b", "nothing comes of it"),
        (
            {
                "a": ECHO,
                "b": StageConfig(kind="vllm", inputs=("a",), final=True, options={"model": "m"}),
            },
            "stages.b.inputs",
            "vllm takes messages, and a makes text",
        ),
    ],
)
def test_each_error_names_its_field(stages, field, message):
    with pytest.raises(PipelineError) as caught:
        check(**stages)
    assert caught.value.field.startswith(field)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("accepts", "produces", "field", "message"),
    [
        ("text", "text", "stages.a.inputs", "odd takes text, and a request is messages"),
        ("messages", "messages", "stages.a.kind", "odd makes no text, and the answer is text"),
    ],
)
def test_a_kind_that_does_not_fit(monkeypatch, accepts, produces, field, message):
    odd = StageKind(accepts=frozenset((accepts,)), produces=produces, options=EchoOptions)
    monkeypatch.setitem(KINDS, "odd", odd)
    with pytest.raises(PipelineError) as caught:
        check(a=StageConfig(kind="odd", final=True))
    assert (caught.value.field, str(caught.value)) == (field, f"{field}: {message}")


NAMES = st.sampled_from("abcd")


@given(
    st.dictionaries(
        NAMES,
        st.builds(
            StageConfig,
            kind=st.just("echo"),
            inputs=st.lists(NAMES, max_size=3).map(tuple),
            final=st.booleans(),
        ),
    )
)
def test_what_passes_can_be_walked_from_start_to_end(stages):
    """Each stage's turn comes, the final one's last of those that it needs."""
    try:
        final = check(**stages)
    except PipelineError:
        return
    done = set()
    for _ in stages:
        done |= {name for name, stage in stages.items() if set(stage.inputs) <= done}
    assert done == set(stages)
    assert stages[final].final
