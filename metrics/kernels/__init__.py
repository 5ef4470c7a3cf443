"""Compiled kernels of the extra ``fast``. Kept out of the package itself, whose modules are all imported at
the first look-up of a name, whatever is installed."""
