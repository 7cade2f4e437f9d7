"""HTTP and gRPC fronts for existing clients (extras ``http`` and ``grpc``): a process of its own beside the server.

The front is a client of the bus like any other: it decides nothing and owns no model. KServe's Open Inference Protocol
v2 is ``kserve`` (meaning), ``kserve_routes`` (HTTP) and ``grpc_service``; OpenAI's chat protocol is ``chat`` and
``chat_routes``; ``backend`` asks the server; ``front`` puts them together.
"""
