"""MindSpore's training modes, as the environment that they stand for."""

from muster.supervisors.model.spec import TrainingMode

#: As the training guide's table of modes (5.1) says it: MindSpore's own log and its Running Data Recorder; in the fault
#: diagnosis CANN's log from INFO on too. Levels of glog and of CANN's log: 0 debug, 1 info, 2 warning, 3 error.
_PRESETS: dict[str, dict[str, str]] = {
    TrainingMode.NORMAL: {"GLOG_v": "1", "MS_RDR_ENABLE": "0"},
    TrainingMode.HIGH_PERFORMANCE: {
        "GLOG_v": "3",
        "ASCEND_GLOBAL_LOG_LEVEL": "3",
        "ASCEND_GLOBAL_EVENT_ENABLE": "0",
        "ASCEND_SLOG_PRINT_TO_STDOUT": "0",
        "MS_RDR_ENABLE": "0",
    },
    TrainingMode.DIAGNOSIS: {
        "GLOG_v": "1",
        "ASCEND_GLOBAL_LOG_LEVEL": "1",
        "ASCEND_GLOBAL_EVENT_ENABLE": "1",
        "MS_RDR_ENABLE": "1",
    },
}


def of(mode: str) -> dict[str, str]:
    """Variables of a training mode; none for the empty one."""
    return dict(_PRESETS.get(mode, {}))
