"""Obtains responses to requests: from endpoints, from recorded responses, from the embedded server. Answers
are kept under their request keys, so that nothing is asked twice. The stages enter by ``respond``,
``connection.probe`` and ``config``.
"""
