"""Makes the files that the ``lm`` engine's ONNX back end runs: ``python -m edgeserve.commands.lm_model FILE.gguf
OUT.onnx``.

``graph`` writes the network, ``weights`` how its matrices are stored, ``gguf_file`` reads a GGUF file,
``tokenizer_file`` writes its vocabulary as a ``tokenizer.json``. No network is run here, and torch is not needed.
"""
