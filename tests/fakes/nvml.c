/* A libnvidia-ml.so.1 whose cards are those of the state file (state.h). Signatures, layouts, versions and return codes
 * are NVML's; a function that is not here is missing, as in an older driver. One source in parts, in this order. */
#include "nvml/base.h"
#include "nvml/cards.h"
#include "nvml/place.h"
#include "nvml/readings.h"
#include "nvml/errors.h"
#include "nvml/processes.h"
#include "nvml/fields.h"
#include "nvml/events.h"
#include "nvml/gpm.h"
