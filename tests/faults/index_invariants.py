"""The tantivy index of articles, judged by tantivy alone: each eligible row is found by its words, once; nothing else is."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import tantivy

EPOCH = "epoch"  # the one document that is none of an entity


def check_index(directory: Path, wanted: Mapping[int, str]) -> list[str]:
    """`wanted`: the eligible rows' texts by key. What is wrong, in words."""
    index = tantivy.Index.open(str(directory))
    searcher = index.searcher()
    everything = searcher.search(tantivy.Query.all_query(), 100_000).hits
    stored = [searcher.doc(address).get_first("key") for _, address in everything]
    keys = Counter(json.loads(key)[0] for key in stored if key != EPOCH)
    found = [f"duplicate: {key}" for key, times in keys.items() if times > 1]
    found += [f"orphan: {key}" for key in keys.keys() - wanted.keys()]
    found += [f"missing: {key}" for key in wanted.keys() - keys.keys()]
    if stored.count(EPOCH) != 1:
        found.append(f"{stored.count(EPOCH)} epochs")
    holders: dict[str, set[int]] = {}
    for key, text in wanted.items():
        for word in text.lower().split():
            holders.setdefault(word, set()).add(key)
    for word, expected in holders.items():
        query = tantivy.Query.term_query(index.schema, "words", word, "freq")
        hits = searcher.search(query, 100_000).hits
        given = {json.loads(searcher.doc(address).get_first("key"))[0] for _, address in hits}
        if given != expected:
            found.append(f"stale: {word} is found in {sorted(given)}, not {sorted(expected)}")
    return found
