"""The private names of other libraries that this package depends on, each behind a function or class of its own.

A library may rename or change them in any release. Nothing outside this folder uses one. Each is looked up when it is used,
with a public, slower way where it is missing: see :mod:`fl_lightning.compat.private`. ``tests/compat`` checks each against
the installed release, and without it.
"""
