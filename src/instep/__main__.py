"""`python -m instep`: the command line."""

from instep.cli.main import main

if __name__ == "__main__":
    main()
