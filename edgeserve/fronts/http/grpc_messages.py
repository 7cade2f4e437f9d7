"""The messages of KServe's ``inference.GRPCInferenceService``, described at run time.

Field numbers and types are the protocol's (``inference.proto`` of the Open Inference Protocol v2, with what Triton adds
for statistics, the repository and shared memory). Generated code would have to fit protobuf's release, and would meet a
client's own copy of the same names in one process: these messages live in a pool of their own.
"""

from __future__ import annotations

from typing import Any, Dict, List

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "inference"
SERVICE = PACKAGE + ".GRPCInferenceService"

_TENSOR = (
    "name string 1; datatype string 2; shape int64* 3; parameters {InferParameter} 4; contents InferTensorContents 5"
)
_DURATIONS = "success fail queue compute_input compute_infer compute_output cache_hit cache_miss"
_NAMED = "name string 1; version string 2"
_PARAMETER = "bool_param bool 1 |; int64_param int64 2 |; string_param string 3 |"

MESSAGES: Dict[str, str] = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "live bool 1",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "ready bool 1",
    "ModelReadyRequest": _NAMED,
    "ModelReadyResponse": "ready bool 1",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "name string 1; version string 2; extensions string* 3",
    "ModelMetadataRequest": _NAMED,
    "ModelMetadataResponse.TensorMetadata": "name string 1; datatype string 2; shape int64* 3",
    "ModelMetadataResponse": "name string 1; versions string* 2; platform string 3; "
    "inputs ModelMetadataResponse.TensorMetadata* 4; "
    "outputs ModelMetadataResponse.TensorMetadata* 5",
    "InferParameter": _PARAMETER + "; double_param double 4 |; uint64_param uint64 5 |",
    "InferTensorContents": "bool_contents bool* 1; int_contents int32* 2; int64_contents int64* 3; uint_contents "
    "uint32* 4; uint64_contents uint64* 5; fp32_contents float* 6; fp64_contents double* 7; "
    "bytes_contents bytes* 8",
    "ModelInferRequest.InferInputTensor": _TENSOR,
    "ModelInferRequest.InferRequestedOutputTensor": "name string 1; parameters {InferParameter} 2",
    "ModelInferRequest": "model_name string 1; model_version string 2; id string 3; parameters {InferParameter} 4; "
    "inputs ModelInferRequest.InferInputTensor* 5; "
    "outputs ModelInferRequest.InferRequestedOutputTensor* 6; raw_input_contents bytes* 7",
    "ModelInferResponse.InferOutputTensor": _TENSOR,
    "ModelInferResponse": "model_name string 1; model_version string 2; id string 3; parameters {InferParameter} 4; "
    "outputs ModelInferResponse.InferOutputTensor* 5; raw_output_contents bytes* 6",
    "ModelStreamInferResponse": "error_message string 1; infer_response ModelInferResponse 2",
    "ModelConfigRequest": _NAMED,
    # Of Triton's model_config.proto, the fields that say something here.
    "ModelInput": "name string 1; data_type DataType 2; dims int64* 4",
    "ModelOutput": "name string 1; data_type DataType 2; dims int64* 3",
    "ModelTransactionPolicy": "decoupled bool 1",
    "ModelConfig": "name string 1; platform string 2; backend string 17; max_batch_size int32 4; input ModelInput* 5; "
    "output ModelOutput* 6; model_transaction_policy ModelTransactionPolicy 19",
    "ModelConfigResponse": "config ModelConfig 1",
    "ModelStatisticsRequest": _NAMED,
    "StatisticDuration": "count uint64 1; ns uint64 2",
    "InferStatistics": "; ".join(
        f"{name} StatisticDuration {number}" for number, name in enumerate(_DURATIONS.split(), 1)
    ),
    "InferBatchStatistics": "batch_size uint64 1",
    "ModelStatistics": "name string 1; version string 2; last_inference uint64 3; inference_count uint64 4; "
    "execution_count uint64 5; inference_stats InferStatistics 6; batch_stats InferBatchStatistics* 7",
    "ModelStatisticsResponse": "model_stats ModelStatistics* 1",
    "RepositoryIndexRequest": "repository_name string 1; ready bool 2",
    "RepositoryIndexResponse.ModelIndex": "name string 1; version string 2; state string 3; reason string 4",
    "RepositoryIndexResponse": "models RepositoryIndexResponse.ModelIndex* 1",
}
"""Message -> its fields: name, type, number; ``*`` is repeated, ``{...}`` a map from string, ``|`` one of several. A
message inside another has its name before the dot."""

_WHOLE = ("UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64")
DATA_TYPES = ("INVALID", "BOOL", *_WHOLE, "FP16", "FP32", "FP64", "STRING")
"""Triton's ``DataType``, in the order of its numbers."""

_OWN = {"double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "bool": 8, "string": 9, "bytes": 12, "uint32": 13}
_MESSAGE, _ENUM, _OPTIONAL, _REPEATED = 11, 14, 1, 3


def _add_field(message: Any, path: str, spec: str) -> None:
    name, kind, number, *one_of = spec.split()
    field = message.field.add(name=name, number=int(number), label=_REPEATED if kind[-1] in "*}" else _OPTIONAL)
    if kind.startswith("{"):
        entry = message.nested_type.add(name="".join([part.capitalize() for part in name.split("_")]) + "Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=_OPTIONAL, type=_OWN["string"])
        entry.field.add(name="value", number=2, label=_OPTIONAL, type=_MESSAGE, type_name=f".{PACKAGE}.{kind[1:-1]}")
        field.type, field.type_name = _MESSAGE, f".{PACKAGE}.{path}.{entry.name}"
    elif kind.rstrip("*") in _OWN:
        field.type = _OWN[kind.rstrip("*")]
    else:
        field.type = _ENUM if kind == "DataType" else _MESSAGE
        field.type_name = f".{PACKAGE}.{kind.rstrip('*')}"
    if one_of:
        field.oneof_index = 0


def _described() -> Any:
    """The file that holds all messages. Those inside others come before them in the table."""
    file = descriptor_pb2.FileDescriptorProto(name="edgeserve/inference.proto", package=PACKAGE, syntax="proto3")
    types = file.enum_type.add(name="DataType")
    for number, name in enumerate(DATA_TYPES):
        types.value.add(name="TYPE_" + name, number=number)
    inner: Dict[str, List[str]] = {}
    for path in MESSAGES:
        outer, _, name = path.rpartition(".")
        inner.setdefault(outer, []).append(name)
    for name in inner[""]:
        _fill(file.message_type.add(name=name), name)
        for nested in inner.get(name, ()):
            _fill(file.message_type[-1].nested_type.add(name=nested), f"{name}.{nested}")
    return file


def _fill(message: Any, path: str) -> None:
    fields = [spec for spec in MESSAGES[path].split("; ") if spec]
    if any(spec.endswith("|") for spec in fields):
        message.oneof_decl.add(name="parameter_choice")
    for spec in fields:
        _add_field(message, path, spec)


def _messages() -> Dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_described())
    return {path: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{path}")) for path in MESSAGES}


KINDS = _messages()
"""Message -> its class."""
