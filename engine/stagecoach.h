#ifndef STAGECOACH_ENGINE_STAGECOACH_H_
#define STAGECOACH_ENGINE_STAGECOACH_H_

// Everything that a program which defines, plans and trains a model needs.
#include "engine/data/load.h"
#include "engine/fit.h"
#include "engine/layer.h"
#include "engine/layers/layer_norm.h"
#include "engine/layers/linear.h"
#include "engine/layers/residual.h"
#include "engine/measured_profile.h"
#include "engine/model.h"
#include "engine/plan_model.h"
#include "engine/trainer.h"

#endif  // STAGECOACH_ENGINE_STAGECOACH_H_
