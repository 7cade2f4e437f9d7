"""What tests of EdgeServe's contracts share, shipped so that engines and policies from outside can be held to them.

``engine_conformance.EngineConformance`` for engines; import the modules themselves (they need pytest).
"""
