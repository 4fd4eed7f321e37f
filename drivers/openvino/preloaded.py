"""The parts of OpenVINO that each launch needs, opened once before launches are forked: the core and the CPU's plug-in, without a
thread."""

from drivers.openvino.runtime import runtime

_opened = runtime()
_opened.core.get_versions("CPU")
