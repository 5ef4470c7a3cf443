"""The flows that people start, and their command lines."""
