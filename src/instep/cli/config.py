"""`instep config`: each setting, its value, and where that came from."""

from __future__ import annotations

from instep.console.command import Answer, Commands, Example
from instep.console.session import Session


def register(root: Commands) -> None:
    root.leaf(
        "config",
        [
            Example("instep config", "Each setting and where its value came from."),
            Example("instep config --json", "The same with what each takes and means, for a script."),
        ],
    )(config)


def config(session: Session) -> Answer:
    """Show each setting and where its value came from.

    A flag, the environment, instep.toml or the default, in this order. Secrets are masked.
    """
    from rich.text import Text

    from instep.console.terminal import grid

    explained = session.settings.explained()
    payload = {
        "settings": {
            one.name: {
                "value": one.value,
                "source": one.source,
                "variable": one.variable,
                "takes": one.takes,
                "description": one.description,
            }
            for one in explained
        },
        "warnings": list(session.settings.warnings),
    }
    rows = [
        [
            Text(one.name, "bold" if one.source != "default" else ""),
            one.value or "-",
            Text(one.source, "dim" if one.source == "default" else ""),
            Text(one.description, "dim"),
        ]
        for one in explained
    ]
    return Answer(
        payload,
        [grid(rows, titles=("setting", "value", "from", "what it is"), folds=3)],
        after=["To set one: INSTEP_NAME=… in the environment, or name = … in instep.toml"],
    )
