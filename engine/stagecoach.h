#ifndef STAGECOACH_ENGINE_STAGECOACH_H_
#define STAGECOACH_ENGINE_STAGECOACH_H_

// Everything that a program which defines, plans and trains a model needs.
#include "engine/checkpoint/checkpoint.h"
#include "engine/data/load.h"
#include "engine/launch/launch.h"
#include "engine/launch/rendezvous.h"
#include "engine/model/layer.h"
#include "engine/model/layers/attention.h"
#include "engine/model/layers/dropout.h"
#include "engine/model/layers/embedding.h"
#include "engine/model/layers/layer_norm.h"
#include "engine/model/layers/linear.h"
#include "engine/model/layers/residual.h"
#include "engine/model/layers/swiglu.h"
#include "engine/model/loss.h"
#include "engine/model/model.h"
#include "engine/train/fit.h"
#include "engine/train/measured_profile.h"
#include "engine/train/parallel.h"
#include "engine/train/prepared_run.h"
#include "engine/train/trainer.h"

#endif  // STAGECOACH_ENGINE_STAGECOACH_H_
