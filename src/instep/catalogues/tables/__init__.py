"""The tables catalogue: anybody's own table, embedded, searchable and kept in step."""

from instep.registry import Catalogue

catalogue = Catalogue(name="tables", commands="instep.catalogues.tables.commands:commands")
