// The handle of a model, for the files that hold its extern "C" functions.
#pragma once

#include <memory>

#include "model/gpt.h"

struct mg_model {
    std::shared_ptr<mg::Gpt> gpt;
};
