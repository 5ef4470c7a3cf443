"""Documents of a harness benchmark as ``datasets`` would give them, from local files, without that library
where it is not needed. ``splits`` is the entrance; JSON, CSV and folders are read behind it.
"""
