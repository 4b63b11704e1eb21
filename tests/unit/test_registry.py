"""Catalogues are found by entry points, and finding them imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

from instep.errors import Refused
from instep.registry import catalogues, load


def test_the_tables_catalogue_is_found():
    (catalogue,) = [c for c in catalogues() if c.name == "tables"]
    assert catalogue.name == "tables"
    assert callable(load(catalogue.derivations))


@pytest.mark.parametrize("reference", ["", "no.such.module:x", "instep.registry:nothing", "instep.registry"])
def test_a_reference_that_leads_nowhere(reference):
    with pytest.raises(Refused, match="leads nowhere"):
        load(reference)


def test_finding_is_light():
    code = "import sys, instep.registry as r; r.catalogues(); print(sorted({m.split('.')[0] for m in sys.modules} & {'numpy', 'psycopg', 'onnxruntime', 'tantivy'}))"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
