"""Each way in which a model server fails, over real HTTP: what is raised, and how many requests were sent."""

import asyncio
from email.utils import format_datetime

import numpy as np
import pytest

from instep.clock import SYSTEM
from instep.errors import Configuration, Outage, Permanent
from instep.inference.providers import create_embedder
from instep.inference.remote import all_or_first_failure
from instep.testing.model_server import ModelServer, vector_of


@pytest.fixture
async def server():
    async with ModelServer("tei") as running:
        yield running


@pytest.fixture
def pauses():
    return []


@pytest.fixture
async def make(server, pauses):
    made = []

    async def sleep(seconds):
        pauses.append(seconds)

    def embedder(**settings):
        provider = server.shape.removesuffix("-wrapped")
        defaults = {"model": server.model_name, "url": server.url, "sleep": sleep}
        made.append(create_embedder(provider, **(defaults | settings)))
        return made[-1]

    yield embedder
    for one in made:
        await one.close()


def assert_backoff(pauses, count=4):
    assert len(pauses) == count
    for pause, base in zip(pauses, (1, 2, 4, 8), strict=False):
        assert base <= pause <= base * 1.25


async def test_connection_refused_is_an_outage_after_five_tries(server, make, pauses):
    await server.stop()
    with pytest.raises(Outage, match=r"could not be connected to.*\(5 tries\)") as caught:
        await make().embed(["a"])
    assert "INSTEP_EMBED_URL" in caught.value.hint
    assert_backoff(pauses)


async def test_a_server_that_comes_back_is_used_again(server, make):
    embedder = make()
    await embedder.embed(["a"])
    await server.stop()
    with pytest.raises(Outage):
        await embedder.embed(["a"])
    await server.start()
    np.testing.assert_allclose((await embedder.embed(["a"])).vectors[0], vector_of("a"), atol=1e-7)


@pytest.mark.parametrize("status", [408, 424, 429, 500, 502, 503])
async def test_status_that_is_tried_again(server, make, pauses, status):
    server.faults.status = status
    with pytest.raises(Outage, match=f"answered {status} .*told to"):
        await make().embed(["a"])
    assert server.requests == 5
    assert_backoff(pauses)
    server.forget()
    server.faults.status, server.faults.statuses = None, [status, status]
    assert not (await make().embed(["a"])).failures
    assert server.requests == 3


async def test_a_probe_gives_up_sooner(server, make):
    server.faults.status = 503
    with pytest.raises(Outage):
        await make().probe()
    assert server.requests == 2


async def test_case_77_retry_after_is_honoured(server, make, pauses):
    server.faults.statuses, server.faults.retry_after = [429, 503], "17"
    assert not (await make().embed(["a"])).failures
    assert pauses == [17.0, 17.0]


async def test_retry_after_as_a_date(server, make, pauses):
    from datetime import timedelta

    server.faults.statuses = [429]
    server.faults.retry_after = format_datetime(SYSTEM.now() + timedelta(seconds=30), usegmt=True)
    await make().embed(["a"])
    assert 20 < pauses[0] <= 30


@pytest.mark.parametrize("nonsense", ["soon", "-5", "nan", "inf"])
async def test_retry_after_that_makes_no_sense(server, make, pauses, nonsense):
    server.faults.statuses, server.faults.retry_after = [429], nonsense
    await make().embed(["a"])
    assert_backoff(pauses, 1)


async def test_retry_after_of_an_hour_ends_at_once_and_is_passed_on(server, make, pauses):
    server.faults.status, server.faults.retry_after = 429, "3600"
    with pytest.raises(Outage) as caught:
        await make().embed(["a"])
    assert caught.value.retry_after == 3600
    assert (server.requests, pauses) == (1, [])


@pytest.mark.parametrize(
    ("status", "setting"),
    [
        (401, "INSTEP_EMBED_API_KEY"),
        (403, "INSTEP_EMBED_API_KEY"),
        (404, "INSTEP_EMBED_URL"),
        (302, "INSTEP_EMBED_URL"),
    ],
)
async def test_status_that_is_a_configuration_error(server, make, status, setting):
    server.faults.status = status
    with pytest.raises(Configuration) as caught:
        await make().embed(["a"])
    assert caught.value.setting == setting
    assert server.requests == 1


async def test_a_model_that_the_server_does_not_have(server, make):
    server.faults.refuse = {"model": 404}
    with pytest.raises(Configuration) as caught:
        await make().embed(["my model"])
    assert caught.value.setting == "INSTEP_EMBED_MODEL"


async def test_secrets_never_get_into_a_message(server, make):
    server.faults.status, server.faults.echo_key = 401, True
    url = server.url.replace("//", "//someone:pass-word@")
    for settings in ({"api_key": "sk-very-secret"}, {"url": url}):
        with pytest.raises(Configuration) as caught:
            await make(**settings).embed(["a"])
        said = f"{caught.value} {caught.value.hint} {caught.value.__cause__!r}"
        assert "very-secret" not in said
        assert "pass-word" not in said


async def test_html_is_a_configuration_error_that_quotes_it(server, make):
    server.faults.html = True
    with pytest.raises(Configuration, match="Sign in"):
        await make().embed(["a"])
    assert server.requests == 1


@pytest.mark.parametrize("shape", ["tei", "tei-wrapped", "openai", "ollama"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"7",
        b'"x"',
        b'{"foo": 1}',
        b'[{"a": 1}]',
        b"[[[1]]]",
        b'[["x"]]',
        b'{"data": [7]}',
        b"\xff\x00[",
    ],
)
async def test_another_answer_shape_is_a_configuration_error(shape, body):
    async with ModelServer(shape) as server:
        server.faults.body = body
        embedder = create_embedder(shape.removesuffix("-wrapped"), url=server.url, model=server.model_name)
        with pytest.raises(Configuration) as caught:
            await embedder.embed(["a"])
        await embedder.close()
        assert "\x00" not in str(caught.value)
        assert len(str(caught.value)) < 400


async def test_an_input_that_is_refused_carries_the_servers_word(server, make):
    server.faults.refuse = {"poison": 400}
    with pytest.raises(Permanent, match='server answered 400 "text must not hold poison"') as caught:
        await make().embed(["a", "poison"])
    assert caught.value.kind == "input refused"
    assert server.requests == 1


async def test_the_first_final_failure_cancels_the_other_requests(server, make):
    server.faults.refuse = {"poison": 400}
    server.faults.slow = 0.2
    texts = ["poison"] + [f"{n}" for n in range(399)]
    with pytest.raises(Permanent):
        await make(batch=1, concurrency=2).embed(texts)
    for _ in range(200):
        if server.active == 0:
            break
        await asyncio.sleep(0.01)
    assert server.active == 0
    assert server.requests <= 4


async def test_a_cancelled_call_ends_its_pauses(server):
    paused = asyncio.Event()

    async def sleep(seconds):
        paused.set()
        await asyncio.Event().wait()

    server.faults.status = 503
    embedder = create_embedder("tei", url=server.url, sleep=sleep)
    call = asyncio.create_task(embedder.embed(["a"]))
    await paused.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert server.requests == 1
    await embedder.close()


async def test_cancelling_is_not_forgotten_for_a_request_that_fails_at_that_moment():
    """Or SIGTERM would look like an item's failure, and the run go on."""
    begun = asyncio.Event()

    async def failing():
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("failed while it was being cancelled")

    call = asyncio.create_task(all_or_first_failure([failing, failing]))
    await begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_server_that_hangs_times_out(server, make):
    server.hold()
    with pytest.raises(Outage, match=r"no answer within 0\.05 s"):
        await make(request_timeout=0.05).embed(["a"])
    assert server.requests == 5


async def test_a_connection_that_breaks_in_the_body(server, make):
    server.faults.drop = 2
    np.testing.assert_allclose((await make().embed(["a"])).vectors[0], vector_of("a"), atol=1e-7)
    assert server.requests == 3
    server.faults.drop = 99
    with pytest.raises(Outage, match="broke off"):
        await make().embed(["a"])


@pytest.mark.parametrize("shape", ["tei", "tei-wrapped", "openai", "ollama"])
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("nan", "not a number"),
        ("null", "not a number"),
        ("infinite", "not a number"),
        ("zeros", "zero vector"),
        ("empty", "wrong dimension"),
        ("narrow", "wrong dimension"),
    ],
)
async def test_case_78_a_bad_vector_fails_alone(shape, fault, kind):
    async with ModelServer(shape) as server:
        server.faults.ignore_base64 = fault == "null"
        setattr(server.faults, fault, "bad")
        embedder = create_embedder(
            shape.removesuffix("-wrapped"), url=server.url, model=server.model_name, batch=4
        )
        texts = ["a", "bad 1", "b", "c", "d", "bad 2"]
        answer = await embedder.embed(texts)
        await embedder.close()
        assert {index: failure.kind for index, failure in answer.failures.items()} == {1: kind, 5: kind}
        for index, text in enumerate(texts):
            expected = np.zeros(384) if "bad" in text else vector_of(text)
            np.testing.assert_allclose(answer.vectors[index], expected, atol=1e-7)


async def test_case_78_nothing_but_bad_vectors(server, make):
    for fault in ("nan", "zeros", "empty"):
        server.mend()
        setattr(server.faults, fault, "")
        answer = await make().embed(["a", "b"])
        assert set(answer.failures) == {0, 1}
        with pytest.raises(Permanent):
            await make().probe()


async def test_case_78_too_few_vectors(server, make):
    server.faults.too_few = True
    for texts in (["a", "b"], ["a"]):
        with pytest.raises(Permanent) as caught:
            await make().embed(texts)
        assert caught.value.kind == "wrong answer"


async def test_case_78_openai_with_indexes_that_are_not_those_asked():
    async with ModelServer("openai") as server:
        server.faults.lose_index = True
        embedder = create_embedder("openai", url=server.url, model="m")
        with pytest.raises(Permanent) as caught:
            await embedder.embed(["a", "b"])
        assert caught.value.kind == "wrong answer"
        await embedder.close()


async def test_case_79_another_dimension_than_the_targets(server, make):
    for embedder in (make(dimensions=1536), make()):
        server.dimensions = 384
        if embedder.limits.dimensions is None:
            await embedder.embed(["a"])
            server.dimensions = 256  # the server was restarted with another model
        with pytest.raises(Configuration) as caught:
            await embedder.embed(["a", "b"])
        assert caught.value.setting == "INSTEP_EMBED_MODEL"


async def test_a_batch_that_is_too_large_is_split_and_the_limit_remembered(server, make):
    embedder = make(batch=32)
    await embedder.probe()
    server.forget()
    server.faults.max_batch = 5
    texts = [str(n) for n in range(32)]
    answer = await embedder.embed(texts)
    np.testing.assert_allclose(answer.vectors, [vector_of(text) for text in texts], atol=1e-7)
    assert server.requests == 1 + 7
    assert embedder.limits.batch == 5
    server.forget()
    await embedder.embed(texts)
    assert server.requests == 7


async def test_case_76_a_request_of_too_many_tokens_is_split_and_nothing_is_cut(server, make):
    embedder = make(batch=64)
    server.faults.max_tokens = 100
    texts = [f"{n:040}" for n in range(32)]  # ten tokens each
    answer = await embedder.embed(texts)
    np.testing.assert_allclose(answer.vectors, [vector_of(text) for text in texts], atol=1e-7)
    assert not answer.truncated
    server.forget()
    await embedder.embed(texts)
    assert server.requests == 4  # eight texts each: nothing is refused any more


async def test_case_76_one_text_that_is_too_large_is_cut_and_counted(server, make):
    server.faults.max_tokens = 100
    answer = await make().embed(["a", "x" * 3000, "b"])
    assert set(answer.truncated) == {1}
    assert not answer.failures
    kept = max((text for text in server.texts if len(text) <= 400), key=len)
    assert len(kept) >= 200  # at least half of what the server takes
    np.testing.assert_allclose(answer.vectors[1], vector_of(kept), atol=1e-7)


async def test_a_text_is_cut_to_the_limit_that_the_server_names(server, make):
    server.faults.max_text_tokens = 100
    answer = await make().embed(["x" * 3000])
    assert set(answer.truncated) == {0}
    assert server.requests == 2
    assert 350 <= len(server.texts[-1]) <= 400


async def test_a_text_that_is_too_large_however_short(server, make):
    server.faults.max_tokens = 0
    with pytest.raises(Permanent, match="413") as caught:
        await make().embed(["some text"])
    assert caught.value.kind == "input too large"
    assert server.requests <= 10


async def test_a_text_that_the_server_answers_with_500_leaves_the_probe_well(server, make):
    """So the engine can tell a poison text from an outage."""
    server.faults.refuse = {"poison": 500}
    embedder = make()
    with pytest.raises(Outage):
        await embedder.embed(["poison"])
    await embedder.probe()
