"""Anybody's own table: embedded, searchable, and kept so."""

from instep.registry import Catalogue

catalogue = Catalogue(
    name="tables",
    derivations="instep.catalogues.tables.workshop:workshop",
    commands="instep.catalogues.tables.commands:app",
    routes="instep.catalogues.tables.routes:routes",
    checks="instep.catalogues.tables.checks:CHECKS",
    docs="docs/tables.md",
)
