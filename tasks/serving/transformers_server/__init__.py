"""The built-in model server, a program of its own (``http_server``)."""
