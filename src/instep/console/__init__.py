"""What the command lines of the core and of the catalogues share: answers, questions, progress, errors.

    command.py    a command: an async function that gives an Answer; its flags, its examples, its exit code
    session.py    what a command is given: the terminal, the settings, the app
    terminal.py   results on stdout; notes, questions and errors on stderr
    progress.py   a run as it goes: live bars on a terminal, heartbeat lines elsewhere
    figures.py    numbers, durations and sizes as people read them

Imported by faces alone (instep.cli and a catalogue's commands).
"""
