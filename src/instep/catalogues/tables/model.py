"""What is known of the model that a target is made by, before anything is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from instep.catalogues.tables.options import TableOptions
from instep.chunks.derivation import Making, making_of
from instep.chunks.splitting import DEFAULT_CHARACTERS, DEFAULT_TOKENS
from instep.chunks.vector_type import choose_type
from instep.engine.declaration import Target
from instep.errors import Refused
from instep.inference.ports import Embedder
from instep.inference.prefixes import known_prefixes


@dataclass(frozen=True, slots=True)
class EmbeddingModel:
    """A model and where it runs. `provider` is not part of a target's identity, the model's name is."""

    embedder: Embedder
    provider: str
    leaves_machine: bool = False


async def embed_target(options: TableOptions, model: EmbeddingModel, derivation: str) -> Target:
    """The target of these options: asks the model for its name and dimensions. Refused where they do not fit."""
    found = await model.embedder.dimensions()  # also lets a server say its model's name
    if options.dimensions and options.dimensions != found:
        raise Refused(
            f"--dimensions is {options.dimensions}; the model {model.embedder.name} gives {found}.",
            hint="leave --dimensions out, or set the model up to give so many",
        )
    query, document = known_prefixes(model.embedder.name)
    type = choose_type(found, options.halfvec)
    spec: dict[str, Any] = {
        "provider": model.provider,
        "model": model.embedder.name,
        "dimensions": found,
        "type": type,
        "splitter": options.splitter or _default_splitter(model.embedder),
        "document_prefix": document if options.document_prefix is None else options.document_prefix,
        "query_prefix": query if options.query_prefix is None else options.query_prefix,
        "columns": list(options.text),
    }
    unnamed = Target(0, derivation, "", "reading", spec)
    return Target(0, derivation, _name(unnamed, model, document), "reading", spec)


def making(target: Target, model: EmbeddingModel) -> Making:
    return making_of(target, model.embedder)


def _default_splitter(embedder: Embedder) -> str:
    """By tokens where the tokenizer is at hand, as many as the model takes, at most 256."""
    if embedder.measure() is None:
        return DEFAULT_CHARACTERS
    most = embedder.limits.max_tokens
    return DEFAULT_TOKENS if most is None or most >= 256 else f"{most}t"


def _name(target: Target, model: EmbeddingModel, known_prefix: str) -> str:
    """Model and shape of the input; what differs from the model's own ways is named too."""
    spec = target.spec
    parts = [str(spec["model"]).rsplit("/", 1)[-1] if model.provider == "minilm" else str(spec["model"])]
    parts.append(making_of(target, model.embedder).splitter.name)
    if spec["document_prefix"] != known_prefix:
        parts.append(f"prefix-{_short(str(spec['document_prefix']))}")
    if spec["type"] == "halfvec":
        parts.append("halfvec")
    return "-".join(parts)


def _short(prefix: str) -> str:
    """A prefix as part of a name: words where it has some, else their absence."""
    words = "".join(c if c.isalnum() else "-" for c in prefix.lower()).strip("-")
    return words[:40] or "none"
