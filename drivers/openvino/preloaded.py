"""What each launch needs of OpenVINO, opened once before they are forked: the core and the CPU's plug-in, without a thread."""

from drivers.openvino.runtime import runtime

_opened = runtime()
_opened.core.get_versions("CPU")
