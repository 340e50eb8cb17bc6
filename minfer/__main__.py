"""`python -m minfer`: how other programs of this project start the engine."""

from minfer.cli import main

main()
