"""The flows that people start, and their command lines: the top layer, which nothing imports."""
