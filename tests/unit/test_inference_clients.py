"""Every client passes the one suite over real HTTP, and sends and reads exactly what its dialect says."""

import asyncio

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from instep.errors import Configuration, SettingsError
from instep.inference.prefixes import known_prefixes
from instep.inference.providers import create_embedder, leaves_machine
from instep.inference.transport import is_local
from instep.testing.embedder_suite import check_embedder
from instep.testing.instant_model import InstantModel, instant_vector_of
from instep.testing.model_server import PATHS, SHAPES, ModelServer, vector_of


def client(server: ModelServer, **settings):
    provider = server.shape.removesuffix("-wrapped")
    settings.setdefault("model", server.model_name)
    return create_embedder(provider, url=server.url, **settings)


@pytest.mark.parametrize("shape", SHAPES)
async def test_conformance(shape):
    async with ModelServer(shape) as server:
        embedder = client(server)
        await check_embedder(embedder)
        await embedder.close()


@pytest.mark.parametrize("shape", SHAPES)
async def test_vectors_are_the_servers_own(shape):
    texts = [f"text {n}" for n in range(70)]
    async with ModelServer(shape) as server:
        embedder = client(server, batch=32)
        answer = await embedder.embed(texts)
        await embedder.close()
        expected = np.stack([vector_of(text) for text in texts])
        np.testing.assert_allclose(answer.vectors, expected, atol=1e-7)
        assert sorted(server.texts) == sorted(texts)
        assert sorted(map(len, server.batches)) == [6, 32, 32]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("form", ["base64", "float"])
async def test_instant_server_answers_the_vectors_that_it_says(shape, form):
    server = await InstantModel.listen(shape, 32)
    address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    embedder = create_embedder(shape.removesuffix("-wrapped"), url=address, model="m", batch=8)
    if form == "float" and shape == "openai":
        embedder._dialect._base64 = False
    texts = [f"row {n}" for n in range(100)]
    answer = await embedder.embed(texts)
    await embedder.close()
    server.close()
    np.testing.assert_array_equal(answer.vectors, np.stack([instant_vector_of(t, 32) for t in texts]))


async def test_request_bodies():
    for shape, expected in {
        "tei": {"inputs": ["a"], "truncate": True},
        "openai": {"model": "instep/test-model", "input": ["a"], "encoding_format": "base64"},
        "ollama": {"model": "instep/test-model", "input": ["a"], "truncate": True},
    }.items():
        async with ModelServer(shape) as server:
            embedder = client(server, api_key="k-123")
            await embedder.embed(["a"])
            await embedder.close()
            assert server.bodies == [expected]
            assert server.headers[0]["authorization"] == "Bearer k-123"


@pytest.mark.parametrize("shape", SHAPES)
async def test_an_address_may_have_its_path_already(shape):
    async with ModelServer(shape) as server:
        path = PATHS[shape]
        for url in {server.url, server.url + "/", server.url + path, server.url + path.rsplit("/", 1)[0]}:
            embedder = create_embedder(shape.removesuffix("-wrapped"), url=url, model=server.model_name)
            assert not (await embedder.embed(["a"])).failures
            await embedder.close()


@pytest.mark.parametrize("fault", ["ignore_base64", "refuse_base64"])
async def test_openai_server_without_base64(fault):
    async with ModelServer("openai") as server:
        setattr(server.faults, fault, True)
        embedder = client(server)
        for _ in range(2):
            answer = await embedder.embed(["a", "b"])
            np.testing.assert_allclose(answer.vectors[1], vector_of("b"), atol=1e-7)
        await embedder.close()
        assert server.requests == (3 if fault == "refuse_base64" else 2)  # refused once, then remembered


async def test_openai_index_is_honoured():
    async with ModelServer("openai") as server:
        server.faults.reverse = True
        embedder = client(server)
        answer = await embedder.embed(["a", "b", "c"])
        await embedder.close()
        np.testing.assert_allclose(answer.vectors[0], vector_of("a"), atol=1e-7)


async def test_tei_info_gives_name_and_limits_and_is_optional():
    async with ModelServer("tei") as server:
        server.faults.max_batch = 7
        embedder = client(server, model="")
        assert embedder.name == ""
        assert await embedder.dimensions() == 384
        assert (embedder.name, embedder.limits.batch, embedder.limits.max_tokens) == (
            server.model_name,
            7,
            512,
        )
        await embedder.embed(["a"])
        assert server.infos == 1
        await embedder.close()
        server.faults.info = False
        embedder = client(server, model="")
        with pytest.raises(Configuration) as caught:
            await embedder.dimensions()
        assert caught.value.setting == "INSTEP_EMBED_MODEL"
        await embedder.close()


async def test_case_79_a_server_with_another_model_of_the_same_dimension_is_refused():
    async with ModelServer("tei", model_name="org/other-model") as server:
        embedder = client(server, model="org/my-model")
        with pytest.raises(Configuration, match="other-model"):
            await embedder.embed(["a"])
        await embedder.close()
        assert server.requests == 0


async def test_urgent_does_not_wait_behind_bulk():
    async with ModelServer("tei") as server:
        embedder = client(server, concurrency=1, batch=1)
        await embedder.probe()
        server.forget()
        server.hold()
        bulk = asyncio.create_task(embedder.embed(["a", "b", "c"]))
        await server.arrived(1)
        urgent = asyncio.create_task(embedder.embed(["query"], urgent=True))
        await server.arrived(2)  # hangs if the urgent request queues for the one slot
        assert server.texts == ["a", "query"]
        server.release()
        await asyncio.gather(bulk, urgent)
        assert server.most_active == 2
        await embedder.close()


async def test_concurrency_is_bounded():
    async with ModelServer("tei") as server:
        server.faults.slow = 0.01
        embedder = client(server, concurrency=3, batch=1)
        await embedder.embed([str(n) for n in range(12)])
        await embedder.close()
        assert server.most_active == 3


async def test_loopback_ignores_proxy_variables(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    async with ModelServer("tei") as server:
        embedder = client(server)
        assert not (await embedder.embed(["a"])).failures
        await embedder.close()


@given(texts=st.lists(st.text(max_size=30), max_size=12), batch=st.integers(1, 5))
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
async def test_any_texts_in_any_batches(texts, batch):
    async with ModelServer("tei", dimensions=8) as server:
        embedder = client(server, batch=batch)
        answer = await embedder.embed(texts)
        await embedder.close()
        assert not answer.failures
        for text, vector in zip(texts, answer.vectors, strict=True):
            np.testing.assert_allclose(vector, vector_of(text, 8), atol=1e-6)


def test_settings_that_cannot_be_used():
    with pytest.raises(SettingsError, match=r"INSTEP_EMBED_PROVIDER.*minilm, tei, openai, ollama"):
        create_embedder("word2vec")
    with pytest.raises(SettingsError, match="INSTEP_EMBED_MODEL"):
        create_embedder("ollama")
    with pytest.raises(SettingsError, match="INSTEP_EMBED_MODEL"):
        create_embedder("minilm", model="intfloat/multilingual-e5-base")
    with pytest.raises(Configuration) as caught:
        create_embedder("tei", url="user:secret@nonsense")
    assert caught.value.setting == "INSTEP_EMBED_URL"
    assert "secret" not in str(caught.value)


def test_what_is_local():
    assert all(
        map(is_local, ["http://localhost:1", "http://127.8.0.1", "http://[::1]:80/x", "http://a.localhost"])
    )
    assert not any(
        map(is_local, ["https://api.openai.com/v1", "http://10.0.0.1", "http://localhost.example.org"])
    )
    assert leaves_machine("openai")
    assert not leaves_machine("tei")
    assert not leaves_machine("minilm", "https://example.org")


def test_known_prefixes():
    assert known_prefixes("intfloat/multilingual-e5-base") == ("query: ", "passage: ")
    assert known_prefixes("BAAI/bge-small-en-v1.5")[0].startswith("Represent this sentence")
    assert known_prefixes("BAAI/bge-m3") == known_prefixes("all-MiniLM-L6-v2") == ("", "")


def test_importing_inference_loads_nothing_heavy():
    import subprocess
    import sys

    code = (
        "import sys, instep.inference.providers, instep.inference.ports, instep.inference.prefixes\n"
        "print([m for m in ('numpy', 'aiohttp', 'onnx', 'onnxruntime', 'simdjson') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
