"""From settings to an embedder. Clients are imported when they are asked for: they need numpy, aiohttp, onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from instep.clock import SYSTEM, Clock
from instep.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from instep.inference.ports import Embedder, Precedence

PROVIDERS = ("minilm", "tei", "openai", "ollama")
DEFAULT_URLS = {
    "tei": "http://127.0.0.1:8080",
    "openai": "https://api.openai.com/v1",
    "ollama": "http://127.0.0.1:11434",
}


def default_url(provider: str) -> str:
    """The address that an empty INSTEP_EMBED_URL means; "" for the model inside the process."""
    return DEFAULT_URLS.get(provider, "")


def leaves_machine(provider: str, url: str = "") -> bool:
    """True if texts are sent to another machine: adding a table says so."""
    if provider == "minilm":
        return False
    from instep.inference.transport import is_local

    return not is_local(url or default_url(provider))


def create_embedder(
    provider: str,
    *,
    url: str = "",
    api_key: str | None = None,
    model: str = "",
    concurrency: int = 4,
    request_timeout: float = 60.0,
    cache_dir: Path | None = None,
    threads: int = 0,
    batch: int | None = None,
    dimensions: int | None = None,
    sleep: Callable[[float], Awaitable[object]] | None = None,
    clock: Clock = SYSTEM,
    precedence: Precedence | None = None,
) -> Embedder:
    """A client of `provider`; nothing is loaded or connected before its first call.

    `request_timeout` in seconds, 0 for none. `cache_dir` (minilm) holds the ONNX graph, `threads` 0 means all cores.
    `batch` lowers the texts of one request. `dimensions`: what the target has; another answer is a Configuration
    error. `concurrency` is the upper bound of the adaptive limit; `precedence` tells it of other processes' queries.
    `sleep` and `clock` replace the pauses between tries and what is measured by, for tests. Raises SettingsError for an unknown provider and for
    one that needs a model's name and has none, Configuration for a `url` that is none.
    """
    if provider not in PROVIDERS:
        raise SettingsError(
            f"INSTEP_EMBED_PROVIDER is {provider!r}: it takes one of {', '.join(PROVIDERS)}",
            hint="minilm needs no server",
        )
    if provider == "minilm":
        from instep.inference.minilm import MODEL, MiniLM

        if model and model.rsplit("/", 1)[-1].casefold() != MODEL.casefold():
            raise SettingsError(
                f"INSTEP_EMBED_MODEL is {model!r}, but INSTEP_EMBED_PROVIDER=minilm has {MODEL} only",
                hint="choose tei, openai or ollama for another model",
            )
        if cache_dir is None:
            raise SettingsError(
                "INSTEP_EMBED_PROVIDER=minilm needs a directory for its graph: INSTEP_DATA_DIR"
            )
        return MiniLM(cache_dir, threads=threads)
    if provider != "tei" and not model:
        raise SettingsError(
            f"INSTEP_EMBED_MODEL is empty: INSTEP_EMBED_PROVIDER={provider} needs a model's name",
            hint="for example INSTEP_EMBED_MODEL="
            + ("nomic-embed-text" if provider == "ollama" else "text-embedding-3-small"),
        )
    import asyncio

    from instep.inference.adaptive import AdaptiveLimit
    from instep.inference.ollama import OllamaDialect
    from instep.inference.openai import OpenAIDialect
    from instep.inference.remote import HttpEmbedder
    from instep.inference.tei import TeiDialect
    from instep.inference.transport import Transport, http_url, public_address

    address = http_url(url or default_url(provider))
    transport = Transport(
        address,
        limit=AdaptiveLimit(concurrency, server=public_address(address), precedence=precedence, clock=clock),
        api_key=api_key or None,
        request_timeout=request_timeout,
        sleep=sleep or asyncio.sleep,
        clock=clock,
    )
    dialects: dict[str, type[TeiDialect | OpenAIDialect | OllamaDialect]] = {
        "tei": TeiDialect,
        "openai": OpenAIDialect,
        "ollama": OllamaDialect,
    }
    return HttpEmbedder(dialects[provider](), transport, model=model, batch=batch, dimensions=dimensions)
