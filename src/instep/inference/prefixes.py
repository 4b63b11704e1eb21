"""Prefixes that models were trained with: applied by the caller, and a named part of the target."""

from __future__ import annotations

_BGE_ENGLISH = "Represent this sentence for searching relevant passages: "
_BGE_CHINESE = "为这个句子生成表示以用于检索相关文章："


def known_prefixes(model_name: str) -> tuple[str, str]:
    """(query, document) prefixes of a known model, ("", "") of any other. Source: the models' own cards."""
    name = model_name.casefold().rsplit("/", 1)[-1]
    if "e5-" in name and "mistral" not in name and "instruct" not in name:
        return "query: ", "passage: "
    if name.startswith("bge-") and "-en" in name:
        return _BGE_ENGLISH, ""
    if name.startswith("bge-") and "-zh" in name:
        return _BGE_CHINESE, ""
    return "", ""  # bge-m3 among them: it wants none
