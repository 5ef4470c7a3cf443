"""Runs the server, as a folder that Python is given (``python transformers_server``) or as a module."""

import sys
from pathlib import Path

if not __package__:  # a folder: the modules beside this file become a package of this name, and nothing else
    place = Path(__file__).resolve().parent
    sys.path[0] = str(place.parent)
    __package__ = place.name
    __import__(__package__)
    del sys.path[0]

from .http_server import main

main()
