"""What a message of a chat is: who speaks, parts of text, images and sound, the tools that may be called,
the calls that were made, and how an answer ended.

Benchmarks write chats with it, model connections send and read them, reports show them. ``markdown`` shows
what others wrote as text. Nothing here knows a benchmark or an endpoint.
"""
