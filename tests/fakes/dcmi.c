/* A libdcmi.so whose chips are those of the state file (state.h): the calls by (card, device) that a 910 has, and the
 * dcmiv2_ ones by device of a 950, each refused by the other generation as the real libraries do. Signatures, layouts
 * and codes are those of Huawei's dcmi_interface_api.h; a function that is not here is missing. One source in parts, in
 * this order. */
#include "dcmi/base.h"
#include "dcmi/cards.h"
#include "dcmi/readings.h"
#include "dcmi/events.h"
