// What continue.c does but for saving, in C++17: handles free themselves, what fails throws, and several texts are written at once.
// docs/embedding.md says how to build and run this.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint.h"
#include "microgpt_cuda.h"
#include "vocabulary.h"

namespace {

template <auto free_handle>
struct Freed {
    template <typename T>
    void operator()(T* handle) const {
        free_handle(handle);
    }
};
using Checkpoint = std::unique_ptr<checkpoint, Freed<checkpoint_close>>;
using Vocabulary = std::unique_ptr<vocabulary, Freed<vocabulary_free>>;
using Model = std::unique_ptr<mg_model, Freed<mg_model_free>>;
using Decoder = std::unique_ptr<mg_decoder, Freed<mg_decoder_free>>;
using Tokens = std::vector<std::int32_t>;

void check(mg_status status) {
    if (status != MG_OK) throw std::runtime_error(mg_last_error());
}

// A model with its tokenizer, as a checkpoint holds them.
class Writer {
   public:
    explicit Writer(const std::string& path) {
        char error[CHECKPOINT_ERROR] = "";
        const Checkpoint file(checkpoint_open(path.c_str(), error));
        if (!file) throw std::runtime_error(error);
        config_ = *checkpoint_config(file.get());
        words_.reset(vocabulary_create(checkpoint_metadata(file.get(), "tokenizer"), config_.vocab_size, error));
        if (!words_) throw std::runtime_error(error);
        mg_model* model = nullptr;
        check(mg_model_create(&config_, "auto", "auto", 1, &model));
        model_.reset(model);
        if (!checkpoint_load(file.get(), model, checkpoint_step_count(file.get()) >= 0, error))
            throw std::runtime_error(error);
    }

    Tokens encode(const std::string& text) const {
        char error[VOCABULARY_ERROR] = "";
        Tokens tokens(text.size());
        const std::int64_t count = vocabulary_encode(words_.get(), text.data(), text.size(), tokens.data(), error);
        if (count < 0) throw std::runtime_error(error);
        tokens.resize(static_cast<std::size_t>(count));
        return tokens;
    }

    // What the model writes after each prompt, all in one decoder: a step's products are shared.
    std::vector<std::string> write(std::vector<std::string> texts, int length, unsigned seed) const {
        const auto vocab_size = static_cast<std::size_t>(config_.vocab_size);
        const std::int32_t beginning = vocabulary_beginning(words_.get());
        mg_decoder* handle = nullptr;
        check(mg_decoder_create(model_.get(), static_cast<std::int32_t>(texts.size()), &handle));
        const Decoder decoder(handle);
        std::mt19937 random(seed);
        std::vector<float> logits(texts.size() * vocab_size);
        Tokens tokens, counts;
        for (const std::string& prompt : texts) {
            const Tokens some = encode(prompt);
            tokens.push_back(beginning);
            tokens.insert(tokens.end(), some.begin(), some.end());
            counts.push_back(static_cast<std::int32_t>(some.size()) + 1);
        }
        for (int written = 0; written < length && !tokens.empty(); ++written) {
            check(mg_decoder_feed(decoder.get(), tokens.data(), counts.data(), logits.data()));
            tokens.clear();
            for (std::size_t i = 0; i < texts.size(); ++i) {
                if (counts[i] == 0) continue;
                const std::int32_t next = choose(&logits[i * vocab_size], random);
                counts[i] = next == beginning ? 0 : 1;  // a text that has ended is fed no more
                if (next == beginning) continue;
                std::size_t size = 0;
                const char* bytes = vocabulary_bytes(words_.get(), next, &size);
                texts[i].append(bytes, size);
                tokens.push_back(next);
            }
        }
        return texts;
    }

    // Trains on stretches of the tokens, one after the other; returns the first step's loss and the last one's.
    std::pair<float, float> train(const Tokens& tokens, int steps, std::int32_t batch_size) {
        if (tokens.size() < 2) throw std::runtime_error("the text is too short");
        const std::size_t T = std::min(static_cast<std::size_t>(config_.block_size), tokens.size() - 1);
        mg_step_options options{};
        options.struct_size = sizeof options;
        options.learning_rate = 1e-3f;
        options.beta1 = 0.9f;
        options.beta2 = 0.95f;
        options.epsilon = 1e-8f;
        options.weight_decay = 0.1f;
        options.max_norm = 1.0f;
        std::pair<float, float> losses;
        std::size_t start = 0;
        for (int step = 0; step < steps; ++step) {
            Tokens inputs, targets;
            for (std::int32_t b = 0; b < batch_size; ++b, start = (start + T) % (tokens.size() - T)) {
                const auto first = tokens.begin() + static_cast<std::ptrdiff_t>(start);
                inputs.insert(inputs.end(), first, first + static_cast<std::ptrdiff_t>(T));
                targets.insert(targets.end(), first + 1, first + 1 + static_cast<std::ptrdiff_t>(T));
            }
            check(mg_forward_backward(model_.get(), inputs.data(), targets.data(), batch_size,
                                      static_cast<std::int32_t>(T), 1.0f, &losses.second));
            check(mg_step(model_.get(), &options, nullptr));
            if (step == 0) losses.first = losses.second;
        }
        return losses;
    }

   private:
    // At a temperature of 0.8.
    std::int32_t choose(const float* logits, std::mt19937& random) const {
        const float highest = *std::max_element(logits, logits + config_.vocab_size);
        std::vector<double> weights;
        for (std::int32_t v = 0; v < config_.vocab_size; ++v) weights.push_back(std::exp((logits[v] - highest) / 0.8));
        return std::discrete_distribution<std::int32_t>(weights.begin(), weights.end())(random);
    }

    mg_config config_{};
    Vocabulary words_;
    Model model_;
};

std::string content(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::string text{std::istreambuf_iterator<char>(file), {}};
    if (!file) throw std::runtime_error(path + " can't be read");
    return text;
}

}  // namespace

int main(int count, char** arguments) {
    try {
        if (count < 4) throw std::runtime_error("expected a checkpoint, a text to train on, and one prompt or more");
        if (mg_abi_version() != MG_ABI_VERSION) throw std::runtime_error("the library is not the one of this header");
        Writer writer(arguments[1]);
        const std::vector<std::string> prompts(arguments + 3, arguments + count);
        for (const std::string& text : writer.write(prompts, 60, 2)) std::cout << text << '\n';
        const auto [first, last] = writer.train(writer.encode(content(arguments[2])), 30, 4);
        std::cout << "loss " << first << ", after 30 steps " << last << '\n';
        for (const std::string& text : writer.write(prompts, 60, 2)) std::cout << text << '\n';
        return EXIT_SUCCESS;
    } catch (const std::exception& error) {
        std::cerr << "continue: " << error.what() << '\n';
        return EXIT_FAILURE;
    }
}
