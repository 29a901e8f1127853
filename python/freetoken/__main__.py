"""`python -m freetoken` is `ft`."""

from freetoken.cli import main

if __name__ == "__main__":
    main(prog_name="ft")
