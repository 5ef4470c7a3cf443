"""Makes rows for a definition whose dataset is not at hand, and tries the definition on them.

``columns`` reads from templates and functions which columns they use and what these hold, ``shapes``
keeps that and draws rows of it from a seed, and ``trial`` runs every template and function on them.
Validation without data enters by ``apart``, and so do benches.
"""
