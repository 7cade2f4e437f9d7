"""Common pieces of the tests of EdgeServe's contracts, shipped so that engines and policies from outside can be held to
them.

``engine_conformance.EngineConformance`` for engines; import the modules themselves (they need pytest).
"""
