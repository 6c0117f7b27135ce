// mg_config and the model's configuration, both ways.
#pragma once

#include "microgpt_cuda.h"
#include "model/config.h"

namespace mg {

// Checked, with the defaults filled in; raises MG_ERROR_ARGUMENT.
Config config_of(const mg_config* config, const char* call);
Activation activation_of(int32_t value);  // of an mg_activation_function
void write_config(const Config& from, mg_config* config, const char* call);

}  // namespace mg
