"""python -m edgeforge"""

from edgeforge.cli import main

main()
