#ifndef STAGECOACH_ENGINE_SESSION_MACHINE_RECORDERS_H_
#define STAGECOACH_ENGINE_SESSION_MACHINE_RECORDERS_H_

#include "engine/comm/launch.h"
#include "engine/diagnosis/flight_recorders.h"
#include "engine/session/machine/notices.h"

namespace stagecoach::engine {

// Tells processes the folder for their flight recorders.
inline constexpr char kRecordersVariable[] = "STAGECOACH_RINGS";

// Returns where the recorders of this process are: in the folder of the variable, if it is set.
// `launch`: that of the processes that have met.
RecorderOptions FindRecorders(const Launch& launch, const Notices& notices);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_SESSION_MACHINE_RECORDERS_H_
