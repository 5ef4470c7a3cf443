"""The embedded model server: OpenAI's protocol over a solver of word problems and a byte-level language
model.
"""
