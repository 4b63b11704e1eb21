"""MiniLM with its real weights: the published similarity, and the same numbers as a plain numpy forward pass."""

import asyncio
import math

import numpy as np
import pytest

from instep.inference.minilm import GROUP_TOKENS, MiniLM, _groups, _model_directory, _tokenizer
from instep.inference.minilm_graph import cached_graph
from instep.testing.embedder_suite import check_embedder
from instep.testing.model_server import ModelServer


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("minilm")


@pytest.fixture
async def minilm(cache_dir):
    embedder = MiniLM(cache_dir, threads=1)
    yield embedder
    await embedder.close()


async def test_conformance(minilm):
    await check_embedder(minilm)


async def test_published_similarity(minilm):
    a, b = (await minilm.embed(["A man is eating food.", "A man is eating a piece of bread."])).vectors
    assert float(a @ b) == pytest.approx(0.755, abs=0.005)
    assert np.linalg.norm(a) == pytest.approx(1, abs=1e-5)


async def test_the_graph_equals_a_numpy_forward_pass(minilm):
    text = "Derived data stays in step with its rows; naïve caches don't."
    expected = numpy_forward(_tokenizer(_model_directory()).encode(text).ids)
    # beside a longer text, so that padding and its mask are in the check
    answer = await minilm.embed([text, text + " And this one is longer, so the first gets padded."])
    np.testing.assert_allclose(answer.vectors[0], expected, atol=2e-5)


async def test_long_text_is_cut_to_256_tokens_and_counted(minilm):
    words = [f"word{n}" for n in range(300)]
    answer = await minilm.embed(["short", " ".join(words), ""])
    assert set(answer.truncated) == {1}
    shorter = " ".join(words[:200])
    assert minilm.measure()(shorter) > 256
    same = (await minilm.embed([shorter])).vectors[0]
    np.testing.assert_allclose(answer.vectors[1], same, atol=1e-4)


async def test_measure_counts_the_special_tokens(minilm):
    count = minilm.measure()
    assert count("") == 2
    assert count("food") == 3
    assert count("a " * 254) == minilm.limits.max_tokens
    assert not (await minilm.embed(["a " * 254])).truncated


async def test_the_event_loop_lives_and_an_urgent_text_goes_first(minilm):
    await minilm.probe()
    bulk = asyncio.create_task(minilm.embed(["some words of bulk work " * 30] * 12))
    await asyncio.sleep(0.01)
    await minilm.embed(["a query"], urgent=True)
    assert not bulk.done()
    await bulk


def test_two_builds_at_once_leave_one_whole_graph_and_a_damaged_one_is_built_again(cache_dir, tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    weights = _model_directory() / "model.safetensors"
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: cached_graph(weights, tmp_path), range(2))
    assert first == second
    assert list(tmp_path.iterdir()) == [first]
    first.write_bytes(first.read_bytes()[:1000])

    async def embed():
        embedder = MiniLM(tmp_path, threads=1)
        answer = await embedder.embed(["a"])
        await embedder.close()
        return answer.vectors

    assert asyncio.run(embed()).any()
    assert first.stat().st_size > 80_000_000


def test_groups_hold_every_text_once_and_stay_small():
    lengths = [3, 256, 40, 41, 3, 100, 256, 7]
    groups = list(_groups(lengths))
    assert sorted(index for group in groups for index in group) == list(range(8))
    assert all(
        len(group) == 1 or len(group) * max(lengths[i] for i in group) <= GROUP_TOKENS for group in groups
    )


async def test_the_server_can_answer_with_minilm(minilm):
    from instep.inference.providers import create_embedder

    async with ModelServer("ollama", model=minilm) as server:
        client = create_embedder("ollama", url=server.url, model="all-minilm")
        over_http = (await client.embed(["A man is eating food."])).vectors
        await client.close()
    np.testing.assert_allclose(over_http, (await minilm.embed(["A man is eating food."])).vectors, atol=1e-6)


def numpy_forward(ids):
    """BERT as published, in plain numpy: post-norm layers, erf GELU, mean pooling, L2."""
    from safetensors.numpy import load_file

    w = load_file(str(_model_directory() / "model.safetensors"))
    erf = np.vectorize(math.erf)

    def linear(x, at):
        return x @ w[at + ".weight"].T.astype(np.float64) + w[at + ".bias"]

    def norm(x, at):
        centred = x - x.mean(-1, keepdims=True)
        return (
            centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12) * w[at + ".weight"]
            + w[at + ".bias"]
        )

    def heads(x):
        return x.reshape(len(ids), 12, 32).transpose(1, 0, 2)

    e = "embeddings."
    x = w[e + "word_embeddings.weight"][ids] + w[e + "position_embeddings.weight"][: len(ids)]
    x = norm(x.astype(np.float64) + w[e + "token_type_embeddings.weight"][0], e + "LayerNorm")
    for layer in range(6):
        at = f"encoder.layer.{layer}."
        q, k, v = (heads(linear(x, f"{at}attention.self.{part}")) for part in ("query", "key", "value"))
        scores = np.exp(q @ k.transpose(0, 2, 1) / np.sqrt(32))
        mixed = (scores / scores.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(len(ids), 384)
        x = norm(x + linear(mixed, at + "attention.output.dense"), at + "attention.output.LayerNorm")
        wide = linear(x, at + "intermediate.dense")
        wide = wide * 0.5 * (1 + erf(wide / np.sqrt(2)))
        x = norm(x + linear(wide, at + "output.dense"), at + "output.LayerNorm")
    mean = x.mean(0)
    return mean / np.linalg.norm(mean)
