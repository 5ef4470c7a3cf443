"""Providers: one file for each way of asking a model, found by the name that a config's ``type`` gives it.

Code that obtains answers enters by ``provider.provider_of``; a new provider derives from ``AskedProvider`` or
``RecordedProvider`` and registers with ``tasks.models.registry.provider``.
"""
