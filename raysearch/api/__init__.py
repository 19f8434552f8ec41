"""The Python API: functions that start work, and handles on the searches and studies of a store.

Overrides are ``key=value`` texts, as on the command line. Keyword arguments are the same keys with Python values; a
mapping sets the keys of a group: ``data={"samples": 32}``.

Every function raises `raysearch.UserError` if a key or a value is not understood, or does not fit the model, the data
or the machine. Functions that compute raise `raysearch.EvaluationError` if an evaluation fails.
"""
