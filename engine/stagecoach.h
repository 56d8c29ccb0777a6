#ifndef STAGECOACH_ENGINE_STAGECOACH_H_
#define STAGECOACH_ENGINE_STAGECOACH_H_

// Everything that a program needs to define, plan and train a model.
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/hugging_face_files.h"
#include "engine/comm/launch.h"
#include "engine/comm/rendezvous.h"
#include "engine/data/formats/load.h"
#include "engine/data/stream_dataset.h"
#include "engine/generate/generator.h"
#include "engine/generate/token_choice.h"
#include "engine/models/model.h"
#include "engine/models/model_file.h"
#include "engine/models/presets.h"
#include "engine/models/transformer.h"
#include "engine/nn/check_layer.h"
#include "engine/nn/layer.h"
#include "engine/nn/layers/layers.h"
#include "engine/nn/loss.h"
#include "engine/session/session.h"
#include "engine/train/fit.h"
#include "engine/train/measured_profile.h"
#include "engine/train/parallel.h"
#include "engine/train/prepared_run.h"
#include "engine/train/trainer.h"

#endif  // STAGECOACH_ENGINE_STAGECOACH_H_
