#include "mg_config.h"

#include "guard.h"

namespace mg {
namespace {

constexpr float kUsualStd = 0.02f;  // GPT-2's initialisation

void check_size(size_t size, const char* call) {
    check_argument(size == sizeof(mg_config), "%s: config.struct_size is %zu but this library's is %zu", call, size,
                   sizeof(mg_config));
}

bool switch_of(int32_t value, const char* name, bool usual = true) {
    check_argument(value >= MG_DEFAULT && value <= MG_OFF,
                   "config: %s is %d but must be 0 (default), 1 (on) or 2 (off)", name, value);
    return value == MG_DEFAULT ? usual : value == MG_ON;
}

// The enumerators of both sides have the same order.
template <typename Choice>
Choice choice_of(int32_t value, const char* name, Choice last) {
    const int32_t most = static_cast<int32_t>(last);
    check_argument(value >= 0 && value <= most, "config: %s is %d but must be 0 to %d", name, value, most);
    return static_cast<Choice>(value);
}

int32_t number_of(bool is_on) { return is_on ? MG_ON : MG_OFF; }

}  // namespace

Activation activation_of(int32_t value) { return choice_of(value, "activation", Activation::swiglu); }

Config config_of(const mg_config* c, const char* call) {
    check_pointer(c, call, "config");
    check_size(c->struct_size, call);
    Config config{};
    config.vocab_size = c->vocab_size;
    config.block_size = c->block_size;
    config.n_layer = c->n_layer;
    config.n_head = c->n_head;
    config.n_embd = c->n_embd;
    config.norm = choice_of(c->norm, "norm", Norm::rmsnorm);
    config.norm_affine = switch_of(c->norm_affine, "norm_affine");
    config.norm_position = choice_of(c->norm_position, "norm_position", NormPosition::none);
    config.residual = switch_of(c->residual, "residual");
    config.activation = activation_of(c->activation);
    config.mlp_dim = c->mlp_dim == 0 ? usual_mlp_dim(config.n_embd, config.activation) : c->mlp_dim;
    config.attn_bias = switch_of(c->attn_bias, "attn_bias");
    config.mlp_bias = switch_of(c->mlp_bias, "mlp_bias");
    config.tie_embeddings = switch_of(c->tie_embeddings, "tie_embeddings");
    config.final_norm = switch_of(c->final_norm, "final_norm");
    config.embedding_norm = switch_of(c->embedding_norm, "embedding_norm", false);
    config.scaled_init = switch_of(c->scaled_init, "scaled_init");
    config.init_std = c->init_std == 0.0f ? kUsualStd : c->init_std;
    config.check();
    return config;
}

void write_config(const Config& from, mg_config* to, const char* call) {
    check_pointer(to, call, "config");
    check_size(to->struct_size, call);
    to->vocab_size = static_cast<int32_t>(from.vocab_size);
    to->block_size = static_cast<int32_t>(from.block_size);
    to->n_layer = static_cast<int32_t>(from.n_layer);
    to->n_head = static_cast<int32_t>(from.n_head);
    to->n_embd = static_cast<int32_t>(from.n_embd);
    to->mlp_dim = static_cast<int32_t>(from.mlp_dim);
    to->norm = static_cast<int32_t>(from.norm);
    to->norm_affine = number_of(from.norm_affine);
    to->norm_position = static_cast<int32_t>(from.norm_position);
    to->residual = number_of(from.residual);
    to->activation = static_cast<int32_t>(from.activation);
    to->attn_bias = number_of(from.attn_bias);
    to->mlp_bias = number_of(from.mlp_bias);
    to->tie_embeddings = number_of(from.tie_embeddings);
    to->final_norm = number_of(from.final_norm);
    to->embedding_norm = number_of(from.embedding_norm);
    to->scaled_init = number_of(from.scaled_init);
    to->init_std = from.init_std;
}

}  // namespace mg
