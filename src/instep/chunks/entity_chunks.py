"""What one entity's text became, between the model and the tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]


class EntityChunks(NamedTuple):
    """`hashes`, `starts`, `ends` stand in ordinal order, spans in characters of the entity's text; equal texts of one
    entity share a hash. `fresh` maps the hash of each text that was computed to the text, in the order of `rows`, which
    says where in `vectors` (float32, shared by a wave) each one's vector is. A hash that is not in `fresh` is one that the
    tables were seen to hold. `whole`: there is one chunk, and it is the entity's whole text."""

    hashes: tuple[bytes, ...]
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    fresh: Mapping[bytes, str]
    vectors: Vectors
    rows: Sequence[int]
    whole: bool = False
