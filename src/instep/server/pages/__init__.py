"""The core's pages, for people."""

from instep.server.pages.core import pages
from instep.web.pages import Pages

PAGES: tuple[Pages, ...] = (pages,)
