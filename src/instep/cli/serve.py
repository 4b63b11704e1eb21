"""`instep serve`: the HTTP API and the pages."""

from __future__ import annotations

from typing import Annotated

import typer

from instep.console.command import Answer, Commands, Example
from instep.console.session import Session


def register(root: Commands) -> None:
    root.leaf(
        "serve",
        [
            Example(
                "instep serve",
                "On http://127.0.0.1:8470, for those who have a key.",
                stays=True,
                needs="client",
            ),
            Example(
                "instep serve --demo",
                "For everybody on this machine, without a key.",
                stays=True,
                needs="client",
            ),
            Example(
                "instep serve --host 0.0.0.0 --port 80",
                "For other machines, by key.",
                stays=True,
                needs="client",
            ),
        ],
    )(serve)


async def serve(
    session: Session,
    host: Annotated[str | None, typer.Option("--host", help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option("--port", help="The port; 0: any that is free.")] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="No key is needed; on this machine's own addresses alone.")
    ] = False,
) -> Answer:
    """Serve the HTTP API and the pages.

    A key is needed (instep keys create). Ends by SIGINT or SIGTERM, when the requests in hand are answered.
    """
    from instep.console.logs import configure
    from instep.server.factory import create_app
    from instep.server.serving import serve as serve_app

    changes = {"serve_host": host, "serve_port": port, "serve_demo": demo or None}
    settings = session.settings.model_copy(
        update={name: value for name, value in changes.items() if value is not None}
    )
    configure(settings.log_level, session.terminal)
    app = create_app(settings)
    session.announce_embedded()
    await serve_app(app, settings, lambda url: session.terminal.note(f"serving on {url} (Ctrl-C ends it)"))
    return Answer({"served": True}, [])
