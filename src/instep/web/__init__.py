"""What the faces over HTTP share: roles and keys, problems, request ids, limits, the page kit.

A catalogue's routes and pages import this room, and never the server:

    routes = Routes("/api/v1/toys", tag="toys")

    @routes.get("", role=Role.READER)
    async def list_toys(app: App, caller: Who) -> dict[str, Any]: ...

What is light here (roles, keys) is used by the command line too, so nothing is imported by this module.
"""
