// extern "C" bodies of microgpt_cuda.h: check arguments, call the model, turn exceptions into a status.
#include <cfloat>
#include <cmath>
#include <memory>

#include "backend.h"
#include "mg_config.h"
#include "model_handle.h"
#include "guard.h"
#include "model/decoder.h"
#include "model/gpt.h"
#include "model/plan.h"

struct mg_decoder {
    std::shared_ptr<mg::Gpt> gpt;  // a decoder keeps its model alive
    mg::Decoder decoder;
};

namespace mg {

std::string& last_error() {
    thread_local std::string text;
    return text;
}

namespace {

void check_option(bool holds, const char* name, float value, const char* range) {
    check_argument(holds, "step: %s is %g but must be %s", name, static_cast<double>(value), range);
}

}  // namespace

AdamW adamw_of(const mg_step_options* o, const char* call) {
    check_pointer(o, call, "options");
    check_argument(o->struct_size == sizeof(mg_step_options),
                   "%s: options.struct_size is %zu but this library's is %zu", call, o->struct_size,
                   sizeof(mg_step_options));
    const auto at_least_0 = [](float x) { return std::isfinite(x) && x >= 0; };
    check_option(at_least_0(o->learning_rate), "learning_rate", o->learning_rate, "finite and at least 0");
    check_option(o->beta1 >= 0 && o->beta1 < 1, "beta1", o->beta1, "in [0, 1)");
    check_option(o->beta2 >= 0 && o->beta2 < 1, "beta2", o->beta2, "in [0, 1)");
    // Below it the CPU's arithmetic would divide by 0.
    check_option(std::isfinite(o->epsilon) && o->epsilon >= FLT_MIN, "epsilon", o->epsilon,
                 "finite and at least 1.17549435e-38");
    check_option(at_least_0(o->weight_decay), "weight_decay", o->weight_decay, "finite and at least 0");
    check_option(at_least_0(o->max_norm), "max_norm", o->max_norm, "finite and at least 0 (0: no clipping)");
    // Infinite, too, is a limit that nothing finite is above.
    check_option(o->skip_loss_above >= 0, "skip_loss_above", o->skip_loss_above, "at least 0 (0: no limit)");
    check_option(o->skip_norm_above >= 0, "skip_norm_above", o->skip_norm_above, "at least 0 (0: no limit)");
    return {o->learning_rate, o->beta1,    o->beta2,           o->epsilon,
            o->weight_decay,  o->max_norm, o->skip_loss_above, o->skip_norm_above};
}

}  // namespace mg

using mg::check_argument;
using mg::check_pointer;
using mg::guarded;
using mg::guarded_or;

extern "C" {

// ---- library

int32_t mg_abi_version(void) { return MG_ABI_VERSION; }
const char* mg_version(void) { return MG_VERSION; }
size_t mg_config_size(void) { return sizeof(mg_config); }
size_t mg_step_options_size(void) { return sizeof(mg_step_options); }
const char* mg_last_error(void) { return mg::last_error().c_str(); }

mg_status mg_cpu_isa(const char** name) {
    return guarded([&] {
        check_pointer(name, "cpu_isa", "name");
        *name = mg::cpu_isa();
    });
}

const char* mg_cpu_isa_available(void) {
    return guarded_or("", [] { return mg::available_cpu_isas(); });
}

mg_status mg_set_num_threads(int32_t count) {
    return guarded([&] { mg::set_cpu_threads(count); });
}

int32_t mg_get_num_threads(void) {
    return guarded_or(1, [] { return mg::cpu_threads(); });
}

void mg_get_cuda_info(mg_cuda_info* info) {
    if (info == nullptr) return;
    *info = {};
    guarded([&] { mg::cuda_info(info); });
}

void mg_set_cublaslt_path(const char* path) {
    guarded([&] { mg::set_cublaslt_path(path); });
}

// ---- model

mg_status mg_model_create(const mg_config* config, const char* device, const char* precision, uint64_t seed,
                          mg_model** model) {
    return guarded([&] {
        check_pointer(model, "model_create", "model");
        check_pointer(device, "model_create", "device");
        check_pointer(precision, "model_create", "precision");
        const mg::Config checked = mg::config_of(config, "model_create");
        *model = new mg_model{std::make_shared<mg::Gpt>(checked, mg::create_backend(device, precision), seed)};
    });
}

void mg_model_free(mg_model* model) { delete model; }

mg_status mg_model_config(const mg_model* model, mg_config* config) {
    return guarded([&] {
        check_pointer(model, "model_config", "model");
        mg::write_config(model->gpt->config(), config, "model_config");
    });
}

const char* mg_model_device(const mg_model* model) { return model == nullptr ? "" : model->gpt->backend().device(); }
const char* mg_model_precision(const mg_model* model) {
    return model == nullptr ? "" : model->gpt->backend().precision();
}

const char* mg_model_description(const mg_model* model) {
    return guarded_or("", [&] {
        thread_local std::string text;
        text = model == nullptr ? "" : model->gpt->backend().description();
        return text.c_str();
    });
}

int32_t mg_model_host_readable(const mg_model* model) {
    return model != nullptr && model->gpt->backend().host_readable() ? 1 : 0;
}

uintptr_t mg_model_stream(const mg_model* model) { return model == nullptr ? 0 : model->gpt->backend().stream(); }

mg_status mg_model_wait(mg_model* model, uintptr_t stream) {
    return guarded([&] {
        check_pointer(model, "model_wait", "model");
        model->gpt->backend().wait_for(stream);
    });
}

mg_status mg_model_synchronize(mg_model* model) {
    return guarded([&] {
        check_pointer(model, "model_synchronize", "model");
        model->gpt->backend().synchronize();
    });
}

mg_status mg_model_reset(mg_model* model, uint64_t seed) {
    return guarded([&] {
        check_pointer(model, "model_reset", "model");
        model->gpt->reset(seed);
    });
}

mg_status mg_forward(mg_model* model, const int32_t* tokens, const int32_t* targets, int32_t B, int32_t T,
                     float* loss) {
    return guarded([&] {
        check_pointer(model, "forward", "model");
        check_pointer(tokens, "forward", "tokens");
        check_pointer(targets, "forward", "targets");
        model->gpt->forward(tokens, targets, B, T);
        if (loss != nullptr) *loss = model->gpt->loss();
    });
}

mg_status mg_backward(mg_model* model, float loss_scale) {
    return guarded([&] {
        check_pointer(model, "backward", "model");
        check_argument(std::isfinite(loss_scale), "backward: loss_scale is not finite");
        model->gpt->backward(loss_scale);
    });
}

mg_status mg_forward_backward(mg_model* model, const int32_t* tokens, const int32_t* targets, int32_t B, int32_t T,
                              float loss_scale, float* loss) {
    return guarded([&] {
        check_pointer(model, "forward_backward", "model");
        check_pointer(tokens, "forward_backward", "tokens");
        check_pointer(targets, "forward_backward", "targets");
        check_argument(std::isfinite(loss_scale), "forward_backward: loss_scale is not finite");
        model->gpt->forward_backward(tokens, targets, B, T, loss_scale);
        if (loss != nullptr) *loss = model->gpt->loss();
    });
}

mg_status mg_loss(mg_model* model, float* loss) {
    return guarded([&] {
        check_pointer(model, "loss", "model");
        check_pointer(loss, "loss", "loss");
        *loss = model->gpt->loss();
    });
}

mg_status mg_zero_gradients(mg_model* model) {
    return guarded([&] {
        check_pointer(model, "zero_gradients", "model");
        model->gpt->zero_gradients();
    });
}

mg_status mg_step(mg_model* model, const mg_step_options* options, float* gradient_norm) {
    return guarded([&] {
        check_pointer(model, "step", "model");
        model->gpt->step(mg::adamw_of(options, "step"));
        if (gradient_norm != nullptr) *gradient_norm = model->gpt->gradient_norm();
    });
}

mg_status mg_gradient_norm(mg_model* model, float* gradient_norm) {
    return guarded([&] {
        check_pointer(model, "gradient_norm", "model");
        check_pointer(gradient_norm, "gradient_norm", "gradient_norm");
        *gradient_norm = model->gpt->gradient_norm();
    });
}

mg_status mg_update_loss(mg_model* model, float* loss) {
    return guarded([&] {
        check_pointer(model, "update_loss", "model");
        check_pointer(loss, "update_loss", "loss");
        *loss = model->gpt->update_loss();
    });
}

mg_status mg_logits(mg_model* model, const int32_t* tokens, int32_t B, int32_t T, float* logits) {
    return guarded([&] {
        check_pointer(model, "logits", "model");
        check_pointer(tokens, "logits", "tokens");
        check_pointer(logits, "logits", "logits");
        model->gpt->logits(tokens, B, T, logits);
    });
}

mg_status mg_model_step_count(mg_model* model, int64_t* count) {
    return guarded([&] {
        check_pointer(model, "step_count", "model");
        check_pointer(count, "step_count", "count");
        *count = model->gpt->step_count();
    });
}

mg_status mg_model_set_step_count(mg_model* model, int64_t count) {
    return guarded([&] {
        check_pointer(model, "set_step_count", "model");
        model->gpt->set_step_count(count);
    });
}

// ---- memory that a model takes

mg_status mg_plan_memory(const mg_config* config, const char* device, const char* precision, int32_t B, int32_t T,
                         int32_t use, mg_memory_plan* plan) {
    return guarded([&] {
        check_pointer(plan, "plan_memory", "plan");
        check_pointer(device, "plan_memory", "device");
        check_pointer(precision, "plan_memory", "precision");
        const mg::Config checked = mg::config_of(config, "plan_memory");
        checked.check_batch("plan_memory", B, T);
        check_argument(use >= MG_USE_DECODING && use <= MG_USE_FORWARD, "plan_memory: no use is %d", use);
        if (use == MG_USE_DECODING) checked.check_sequences("plan_memory", B);
        *plan = mg::plan_memory(checked, *mg::create_backend(device, precision), B, T, static_cast<mg::Purpose>(use));
    });
}

// ---- decode

mg_status mg_decoder_create(mg_model* model, int32_t sequences, mg_decoder** decoder) {
    return guarded([&] {
        check_pointer(model, "decoder_create", "model");
        check_pointer(decoder, "decoder_create", "decoder");
        model->gpt->config().check_sequences("decoder_create", sequences);
        *decoder = new mg_decoder{model->gpt, mg::Decoder(*model->gpt, sequences)};
    });
}

void mg_decoder_free(mg_decoder* decoder) { delete decoder; }

mg_status mg_decoder_reset(mg_decoder* decoder) {
    return guarded([&] {
        check_pointer(decoder, "decoder_reset", "decoder");
        decoder->decoder.reset();
    });
}

mg_status mg_decoder_forget(mg_decoder* decoder, int32_t sequence) {
    return guarded([&] {
        check_pointer(decoder, "decoder_forget", "decoder");
        check_argument(sequence >= 0 && sequence < decoder->decoder.sequences(),
                       "decoder_forget: sequence is %d but there are %lld", sequence,
                       static_cast<long long>(decoder->decoder.sequences()));
        decoder->decoder.forget(sequence);
    });
}

mg_status mg_decoder_feed(mg_decoder* decoder, const int32_t* tokens, const int32_t* counts, float* logits) {
    return guarded([&] {
        check_pointer(decoder, "decoder_feed", "decoder");
        check_pointer(tokens, "decoder_feed", "tokens");
        check_pointer(counts, "decoder_feed", "counts");
        check_pointer(logits, "decoder_feed", "logits");
        decoder->decoder.feed(tokens, counts, logits);
    });
}

int32_t mg_decoder_length(const mg_decoder* decoder, int32_t sequence) {
    if (decoder == nullptr || sequence < 0 || sequence >= decoder->decoder.sequences()) return 0;
    return static_cast<int32_t>(decoder->decoder.length(sequence));
}

}  // extern "C"
