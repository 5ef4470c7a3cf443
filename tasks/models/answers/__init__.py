"""Answers, kept one by one. A request's answer goes to a journal on local disk the moment it arrives, and to
a segment of the store when its partition is done; the next run finds both under the request's key.
``respond`` and the forecast enter; nobody else reads segments.
"""
